"""``tokendynamics compare``: several models on the same texts, where they first differ and by which part."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._diagnose import REPORT
from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._limits import code_for, limit_options
from tokendynamics.cli._loading import LOADING, loading_options_without
from tokendynamics.cli._options import Folder, check_writable, result_options, sink_options, whole
from tokendynamics.cli._prompts import named_prompts, prompt_options

if TYPE_CHECKING:
    from rich.table import Table

    from tokendynamics.cli._output import Output
    from tokendynamics.diagnosis import Comparison
    from tokendynamics.pretrained import Checkpoint

DTYPES = ("float32", "float64", "bfloat16", "float16")

_EPILOG = """
\b
Examples:
  tokendynamics compare smollm2 --baseline untrained       trained and initial weights
  tokendynamics compare ./base ./tuned                     before and after fine-tuning
  tokendynamics compare smollm2 --dtypes float32,bfloat16  one model in two number formats
  tokendynamics compare model-f16.gguf model-q4.gguf --prompts population.txt
  tokendynamics compare ./base --adapter ./lora --halved   the effects of an adapter, and of each part
"""


def parse_dtypes(text: str) -> list[str]:
    """Return the number formats in a text that separates them by commas.

    Raises:
        click.BadParameter: An unknown format.

    >>> parse_dtypes("float32,bfloat16")
    ['float32', 'bfloat16']
    """
    formats = [name.strip() for name in text.split(",")]
    wrong = next((name for name in formats if name not in DTYPES), None)
    if wrong is not None:
        message = f"expected formats among {', '.join(DTYPES)}, separated by commas, got {wrong[:50]!r}"
        raise click.BadParameter(message, param_hint="--dtypes")
    return formats


@click.command("compare", epilog=_EPILOG)
@click.argument("models", nargs=-1, required=True)
@prompt_options
@click.option(
    "--baseline", type=click.Choice(["untrained"]), help="Add one more model: the first with its initial weights."
)
@click.option("--seed", type=whole(0), default=0, show_default=True, help="Random seed of the weights of --baseline.")
@click.option("--name", "names", multiple=True, help="Name of a model in the results; once for each model, in order.")
@click.option(
    "--dtypes",
    default="float32",
    show_default=True,
    help="Precision of the forward passes: one for all models, one for each, or several for one model.",
)
@click.option("--weights/--no-weights", default=True, help="Whether to compare the weights too.  [default: weights]")
@click.option("--halved", is_flag=True, help="Also halve every part, and compare the changes of the loss.")
@sink_options
@click.option("--truncate", is_flag=True, help="Cut prompts longer than the context instead of refusing them.")
@click.option("--threads", type=whole(1), help="CPU threads; two are often slower than one.")
@click.option(
    "--adapter",
    type=Folder(),
    help="Folder of an adapter (such as LoRA) for all MODELS but the first; a single model is compared with itself "
    "plus the adapter.",
)
@loading_options_without("dtype", "adapter")
@limit_options
@result_options("comparison-MODELS")
@says_what_is_kept
def compare_command(
    models: tuple[str, ...],
    prompts: tuple[str, ...],
    text_files: tuple[Path, ...],
    prompt_files: tuple[Path, ...],
    dtypes: str,
    adapter: Path | None,
    names: tuple[str, ...],
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
    """Compare MODELS on the same texts: what differs, in which layer and part it begins; and write a report.

    Each further model is compared with the first. A model is a built-in name (smollm2, minilm), a folder with
    config.json and safetensors, a .gguf file, a hub id, or random:NAME[:SEED] for untrained weights. Options of reading
    (--half, --stream, --device, …) apply to all models; limits apply to all but the first.
    """
    loading = {name: chosen.pop(name) for name in LOADING if name in chosen}
    several = _several(models, parse_dtypes(dtypes), adapter, chosen["baseline"])
    texts = named_prompts(prompts, text_files, prompt_files)
    check_writable(out)

    from tokendynamics.cli._output import Output, attempted
    from tokendynamics.diagnosis import compare
    from tokendynamics.provenance.whole import check_free, whole_folder

    output = Output(as_json=as_json, quiet=quiet)
    folder = out or Path(f"comparison-{re.sub(r'[^A-Za-z0-9._-]+', '-', '-'.join(Path(each).name for each in models))}")
    check_free(folder, (REPORT, "comparison.json"), _writer(), overwrite=overwrite, argument="--out")
    kept.results(folder)
    kept.models(models)
    ckpts = [_loaded(each, loading, output) for each in several]
    output.note_repeated(texts or {})
    with output.progress() as progress:
        command = shlex.join(["tokendynamics", *sys.argv[1:]])
        found = compare(*ckpts, texts=texts, names=names or None, **chosen, command=command, progress=progress)
    found = replace(found, files=found.file_names(data_format))  # type: ignore[arg-type]
    with whole_folder(folder, found.manifest, _writer(), overwrite=overwrite, argument="--out") as made:
        found.write_data(made, data_format)  # type: ignore[arg-type]
    undrawn = attempted(lambda: _write_page(found, folder, overwrite))
    _show(output, found, None if undrawn else folder / REPORT, as_json)
    judged = list(zip(found.models, found.verdicts, found.traces, strict=True))
    code = code_for(judged[1:], fail_on, max_similarity)
    if undrawn:
        raise undrawn
    return code


def _writer() -> str:
    from tokendynamics.diagnosis.comparison import WRITER

    return WRITER


@dataclass(frozen=True)
class _Given:
    """A model to load, with its number format and adapter."""

    name: str
    dtype: str
    adapter: Path | None


def _several(models: tuple[str, ...], formats: list[str], adapter: Path | None, baseline: str | None) -> list[_Given]:
    """Return the models to load: one model once for each of its formats, or without and with its adapter."""
    if len(models) > 1 and len(formats) not in (1, len(models)):
        message = f"expected one format, or one for each of {len(models)} models, got {len(formats)}"
        raise click.BadParameter(message, param_hint="--dtypes")
    if len(models) == 1 and len(formats) > 1 and adapter is not None:
        message = f"expected one format with --adapter, so that the adapter is the only difference, got {len(formats)}"
        raise click.BadParameter(message, param_hint="--dtypes")
    if len(models) == 1 and len(formats) == 1 and baseline is None and adapter is None:
        raise click.UsageError("expected a second model, --baseline untrained, --adapter FOLDER, or several --dtypes")
    count = max(len(models), len(formats), 1 if adapter is None else 2)
    models = models * count if len(models) == 1 else models
    formats = formats * count if len(formats) == 1 else formats
    pairs = enumerate(zip(models, formats, strict=True))
    return [_Given(name, dtype, adapter if place else None) for place, (name, dtype) in pairs]


def _loaded(given: _Given, loading: dict[str, Any], output: Output) -> Checkpoint:
    from tokendynamics.pretrained import load

    output.say(f"Loading {given.name}")
    with output.progress() as progress:
        return load(given.name, adapter=given.adapter, dtype=given.dtype, **loading, progress=progress)


def _write_page(found: Comparison, folder: Path, overwrite: bool) -> None:
    """Add the page to the data, which are complete without the page."""
    from tokendynamics.provenance.whole import whole_folder

    with whole_folder(folder, found.manifest, _writer(), overwrite=overwrite, keep=True, argument="--out") as made:
        found.report(made / REPORT)


def _show(output: Output, found: Comparison, report: Path | None, as_json: bool) -> None:
    from tokendynamics.cli._output import UNDRAWN
    from tokendynamics.cli._terminal import Console, echo_json

    if as_json:
        echo_json(found.record | {"report": report and str(report)})
    if as_json or output.quiet:
        return
    from rich.text import Text

    results = Console(highlight=False)
    results.print()
    for finding in found.sentences:
        results.print(Text("• ").append(finding.text), soft_wrap=False)
    results.print()
    results.print(_states_table(found))
    results.print(Text(f"\nReport: {report or UNDRAWN}\nData:   {', '.join(found.files)}"))


def _states_table(found: Comparison) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    from tokendynamics.diagnosis.compared_words import part_named
    from tokendynamics.words import fixed

    table = RichTable(title="State of the tokens", title_justify="left", box=SIMPLE_HEAD)
    for column in ("model", "layers", "dim", "κ′ at the end", "end state", "worst state", "first difference"):
        table.add_column(column, justify="right" if column in ("layers", "dim", "κ′ at the end") else "left")
    partings = (None, *found.partings)
    rows = zip(found.models, found.descriptions, found.traces, found.verdicts, partings, strict=True)
    for place, (name, facts, trace, verdict, parting) in enumerate(rows):
        kappa = float(trace.consensus_relative.sel(site="feed_forward")[-1])
        first = "" if place == 0 else "not located" if parting is None else part_named(parting.first)
        table.add_row(
            name, str(facts["layers"]), str(facts["dim"]), fixed(kappa), verdict.state, str(verdict.worst), first
        )
    return table
