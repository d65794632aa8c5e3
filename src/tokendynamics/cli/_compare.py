"""``tokendynamics compare``: several models on the same texts, where they first differ and by which part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from rich.text import Text

from tokendynamics.cli._interrupted import PAGE, Kept, says_what_is_kept
from tokendynamics.cli._options import (
    Counting,
    Limits,
    OutFolder,
    ReadingOptions,
    Results,
    as_file_name,
    check_writable,
)
from tokendynamics.cli._prompts import Cutting, Prompts, named_prompts
from tokendynamics.cli._signature import Option, Positive, command, whole
from tokendynamics.cli._terminal import Console, command_line, table

if TYPE_CHECKING:
    from tokendynamics.cli._output import Output
    from tokendynamics.diagnosis import Comparison
    from tokendynamics.pretrained import Checkpoint

DTYPES = ("float32", "float64", "bfloat16", "float16")


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


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """What is compared, named as the arguments of `tokendynamics.compare`.

    Attributes:
        baseline: Add one more model: the first with its initial weights.
        seed: Random seed of the weights of --baseline.
        names: Name of a model in the results; once for each model, in order.
        dtypes: Precision of the forward passes: one for all models, one for each, or several for one model.
        weights: Whether to compare the weights too.
        halved: Also halve every part, and compare the changes of the loss.
        heads: Whether to name the heads that bring a model closer to collapse, where that is significant.
    """

    baseline: Literal["untrained"] | None = None
    seed: Annotated[int, Option(type=whole(0))] = 0
    names: Annotated[tuple[str, ...], Option("--name")] = ()
    dtypes: str = "float32"
    weights: bool = True
    halved: bool = False
    heads: bool = True


@command("compare")
@says_what_is_kept
def compare_command(
    models: tuple[str, ...],
    *,
    texts: Prompts,
    cutting: Cutting,
    comparing: Comparing,
    counting: Counting,
    threads: Positive | None = None,
    adapter: OutFolder | None = None,
    reading: ReadingOptions,
    limits: Limits,
    out: OutFolder | None = None,
    results: Results,
    kept: Kept,
) -> int:
    """Compare MODELS on the same texts, and write a report.

    It says what differs, and in which layer and part that begins. Each further model is compared with the first. A
    model is a built-in name (smollm2, minilm), a folder with config.json and safetensors, a .gguf file, a hub id, or
    random:NAME[:SEED] for untrained weights. Options of reading (--half, --stream, --device, …) apply to all models;
    limits apply to all but the first.

    Options:
        threads: CPU threads; two are often slower than one.
        adapter: Folder of an adapter (such as LoRA) for all MODELS but the first; a single model is compared with
            itself plus the adapter.
        out: Folder of the results.  [default: comparison-MODELS]
    """
    several = _to_load(models, parse_dtypes(comparing.dtypes), adapter, comparing.baseline)
    prompts = named_prompts(**vars(texts))
    check_writable(out)

    from tokendynamics.cli._output import Output, saved
    from tokendynamics.diagnosis import compare
    from tokendynamics.diagnosis.comparing.result import WRITER
    from tokendynamics.provenance.whole import check_free
    from tokendynamics.results.tables import check_texts

    check_texts(prompts, results.data_format)
    output = Output(results.as_json, limits.quiet, results.markdown)
    folder = out or Path(f"comparison-{as_file_name('-'.join(Path(name).name for name in models))}")
    check_free(folder, (PAGE, "comparison.json"), WRITER, overwrite=results.overwrite, argument="--out")
    kept.results(folder)
    kept.models(models)
    ckpts = [_loaded(given, reading, output) for given in several]
    output.note_repeated(prompts or {})
    with output.progress() as progress:
        chosen: dict[str, Any] = {**vars(comparing), **vars(counting), "names": comparing.names or None}
        del chosen["dtypes"]
        chosen |= {**vars(cutting), "chat": texts.chat}
        comparison = compare(
            *ckpts, texts=prompts, **chosen, threads=threads, command=command_line(), progress=progress
        )
    comparison, undrawn = saved(comparison, folder, results)
    _show(output, comparison, None if undrawn else folder / PAGE)
    code = limits.code_for(list(zip(comparison.models, comparison.verdicts, comparison.traces, strict=True))[1:])
    if undrawn:
        raise undrawn
    return code


@dataclass(frozen=True)
class _ToLoad:
    """A model to load, with its number format and adapter."""

    name: str
    dtype: str
    adapter: Path | None


def _to_load(models: tuple[str, ...], formats: list[str], adapter: Path | None, baseline: str | None) -> list[_ToLoad]:
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
    return [_ToLoad(name, dtype, adapter if place else None) for place, (name, dtype) in pairs]


def _loaded(given: _ToLoad, reading: ReadingOptions, output: Output) -> Checkpoint:
    from tokendynamics.pretrained import load

    output.say(f"Loading {given.name}")
    with output.progress() as progress:
        return load(given.name, adapter=given.adapter, dtype=given.dtype, **vars(reading), progress=progress)


def _show(output: Output, comparison: Comparison, report: Path | None) -> None:
    from tokendynamics.cli._output import UNDRAWN
    from tokendynamics.diagnosis.comparing.words import part_named
    from tokendynamics.words import fixed

    if output.in_a_form(comparison, comparison.record, report):
        return
    console = Console(highlight=False)
    console.print()
    for finding in comparison.sentences:
        console.print(Text("• ").append(finding.text), soft_wrap=False)
    console.print()
    textual = ("model", "end state", "worst state", "first difference")
    columns = ("model", "layers", "dim", "κ′ at the end", *textual[1:])
    shown = table(*columns, left=textual, title="State of the tokens")
    partings = (None, *comparison.partings)
    rows = zip(
        comparison.models, comparison.descriptions, comparison.traces, comparison.verdicts, partings, strict=True
    )
    for place, (name, facts, trace, verdict, parting) in enumerate(rows):
        kappa = fixed(float(trace.consensus_relative.sel(site="feed_forward")[-1]))
        first = "" if place == 0 else "not located" if parting is None else part_named(parting.first)
        shown.add_row(name, str(facts["layers"]), str(facts["dim"]), kappa, verdict.state, str(verdict.worst), first)
    console.print(shown)
    console.print(Text(f"\nReport: {report or UNDRAWN}\nData:   {', '.join(comparison.files)}"))
