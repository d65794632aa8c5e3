"""``tokendynamics diagnose``: audit, trace, verdict and report of one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from click.core import ParameterSource

from tokendynamics.cli._interrupted import PAGE, Kept, says_what_is_kept
from tokendynamics.cli._options import Counting, Limits, Loading, OutFolder, Results, as_file_name, check_writable
from tokendynamics.cli._prompts import Cutting, Prompts, named_prompts
from tokendynamics.cli._signature import VARIANTS, Layers, Option, Positive, Variants, command
from tokendynamics.cli._terminal import command_line


def _as_baseline(context: click.Context, parameter: click.Parameter, value: bool | None) -> str | None:
    """Return what `tokendynamics.diagnose` calls it."""
    del context, parameter
    return "auto" if value is None else "untrained" if value else None


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured, named as the arguments of `tokendynamics.diagnose`.

    Attributes:
        value: The value map V of the theory: W_V as in the papers' tables, or W_V W_O summed over heads.
        fold_norms: Whether to fold the gain of the norm before attention into W_Q, W_K and W_V. The papers' tables do
            not.  [default: fold where there is such a norm]
        singular: How A = W (V^T)^-1 is defined where V is singular.
        levers: Weaken parts to measure which of them make the tokens agree: about 15 passes of each prompt, with
            gradients.
        heads: Remove attention heads one at a time to measure which of them make the tokens agree.
        directions: Measure which directions the tokens share, what writes them and which tokens attention brings them
            from: about one pass of each prompt.
        remedies: Also try remedies without training: scaled updates and attention logits, λA, a direction removed.
        joint: Also try sets of parts and heads together: about 40 passes of each prompt.
        budget: Largest rise of the loss in nats at which a change is recommended.
        baseline: Also trace the same architecture with initial weights on the same prompts, to say whether the
            similarity is usual.  [default: where there is such a network]
        passes: Also run the blocks this many times on their own output.
        weights: With --passes: the network's own weights, weights redrawn for each pass, or their law (much faster).
        variants: With --passes: the variants of the network that are run.
        layers: Layers to audit, such as 1-10,30; tokens are traced through all layers.
    """

    value: Literal["V", "VO"] = "VO"
    fold_norms: Annotated[bool | None, Option("--fold-norms/--keep-norms")] = None
    singular: Literal["undefined", "pinv"] = "undefined"
    levers: bool = True
    heads: bool = True
    directions: bool = True
    remedies: bool = False
    joint: bool = False
    budget: Annotated[float, Option(type=click.FloatRange(min=0.0))] = 0.02
    baseline: Annotated[Any, Option("--baseline/--no-baseline", is_flag=True, callback=_as_baseline)] = None
    passes: Positive | None = None
    weights: Literal["fixed", "resample", "law"] = "fixed"
    variants: Annotated[Any, Option(type=Variants(), metavar="NAMES")] = VARIANTS
    layers: Annotated[Any, Option(type=Layers())] = None

    def __post_init__(self) -> None:
        """Refuse options of repeated passes without --passes."""
        context = click.get_current_context()
        for name in ("weights", "variants"):
            if self.passes is None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name} needs repeated passes: add --passes N, or remove --{name}")


@command("diagnose")
@says_what_is_kept
def diagnose_command(
    model: str,
    *,
    texts: Prompts,
    cutting: Cutting,
    images: Annotated[Path | None, Option(type=click.Path(exists=True, file_okay=False, path_type=Path))] = None,
    measuring: Measuring,
    counting: Counting,
    threads: Positive | None = None,
    loading: Loading,
    limits: Limits,
    out: OutFolder | None = None,
    results: Results,
    kept: Kept,
) -> int:
    """Diagnose where a model's tokens go, and write a report.

    MODEL is a built-in name (smollm2, minilm), a folder with config.json and safetensors, a .gguf file, a hub id,
    or random:NAME[:SEED] for untrained weights. Without prompts it reads fourteen short default texts of several kinds
    and languages. For results about your use of the model, pass a dozen or more texts of that kind.

    Options:
        images: Folder of images for a vision network; each image is a prompt.
        threads: CPU threads; two are often slower than one.
        out: Folder of the results.  [default: diagnosis-MODEL]
    """
    prompts = named_prompts(**vars(texts))
    if prompts and images:
        raise click.UsageError("expected either texts or --images, got both")
    check_writable(out)

    from tokendynamics.cli._output import Output, saved
    from tokendynamics.diagnosis import diagnose
    from tokendynamics.diagnosis.result import WRITER, data_file_names
    from tokendynamics.pretrained import load
    from tokendynamics.provenance.whole import check_free

    output = Output(results.as_json, limits.quiet, results.markdown)
    entries = (*data_file_names(results.data_format), PAGE)
    if out is not None:
        check_free(out, entries, WRITER, overwrite=results.overwrite, argument="--out")
    kept.models([model])
    output.say(f"Loading {model}")
    with output.progress() as progress:
        ckpt = load(model, **vars(loading), progress=progress)
    folder = out or Path(f"diagnosis-{as_file_name(ckpt.name)}")
    check_free(folder, entries, WRITER, overwrite=results.overwrite, argument="--out")
    kept.results(folder)
    output.note_repeated(prompts or {})
    with output.progress() as progress:
        chosen = {**vars(measuring), **vars(counting), **vars(cutting), "chat": texts.chat, "threads": threads}
        diagnosis = diagnose(ckpt, images or prompts, **chosen, command=command_line(), progress=progress)
    diagnosis, undrawn = saved(diagnosis, folder, results, WRITER)
    output.show(diagnosis, None if undrawn else folder / PAGE)
    code = limits.code_for([(ckpt.name, diagnosis.verdict, diagnosis.trace)])
    if undrawn:
        raise undrawn
    return code
