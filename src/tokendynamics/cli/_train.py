"""``tokendynamics train``: train a network in a chosen regime, or continue a stopped run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from rich.text import Text

from tokendynamics.cli._interrupted import NOTHING, interruptible
from tokendynamics.cli._options import OutFolder, check_writable
from tokendynamics.cli._signature import Json, Number, Option, Positive, command, whole
from tokendynamics.cli._terminal import Console, command_line, echo, echo_json, table

if TYPE_CHECKING:
    from tokendynamics.training import Experiment, Record


class Setting(click.ParamType):
    """An entry of the experiment, such as model.hidden_size=128 or recipe.steps=1000; the value is JSON, or a text.

    >>> Setting().convert("recipe.steps=100", None, None), Setting().convert("model.norms=post", None, None)
    (('recipe', 'steps', 100), ('model', 'norms', 'post'))
    """

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, Any]:
        """Return part, name and value."""
        if isinstance(value, tuple):
            return value
        place, equal, text = str(value).partition("=")
        part, dot, name = place.partition(".")
        if not (equal and dot and name) or part not in ("model", "recipe", "options"):
            self.fail(f"expected model.NAME=VALUE, recipe.NAME=VALUE or options.NAME=VALUE, got {value!r}", param, ctx)
        try:
            return part, name, json.loads(text)
        except ValueError:
            return part, name, text


@dataclass(frozen=True, kw_only=True)
class Changing:
    """What differs from a preset.

    Attributes:
        regime: Regime of the attention: baseline, convergence, divergence, intermediate, ….
        remedy: Add λI (identity) or λA (diagonal) to the logits.
        data: Data instead of those of the preset.
        seed: Random seed of weights, data and dropout.  [default: 0]
        steps: Steps of the optimiser, instead of those of the preset.
        learning_rate: Highest learning rate, instead of that of the preset.
        settings: Set any other entry of the experiment.
    """

    regime: str | None = None
    remedy: Literal["none", "identity", "diagonal"] | None = None
    data: Annotated[str | None, Option(metavar="PATH")] = None
    seed: Annotated[int | None, Option(type=whole(0))] = None
    steps: Positive | None = None
    learning_rate: Annotated[float | None, Option(type=Number(above=0.0))] = None
    settings: Annotated[tuple[Any, ...], Option("--set", type=Setting(), metavar="PART.NAME=VALUE")] = ()

    def by_part(self) -> dict[str, Any]:
        """Return the arguments of `Experiment.changed`; a separate option takes precedence over --set."""
        changes: dict[str, dict[str, Any]] = {"model": {}, "recipe": {}, "options": {}}
        for part, name, value in self.settings:
            changes[part][name] = value
        recipe = {"steps": self.steps, "learning_rate": self.learning_rate}
        changes["recipe"] |= {name: value for name, value in recipe.items() if value is not None}
        return {"regime": self.regime, "remedy": self.remedy, "data": self.data, "seed": self.seed, **changes}


@command("train")
def train_command(
    preset: str,
    *,
    changing: Changing,
    out: OutFolder | None = None,
    resume: bool = False,
    threads: Annotated[int, Option(type=whole(1, 1024))] = 1,
    loggers: Annotated[tuple[str, ...], Option("--log-to")] = ("tensorboard",),
    sample_every: Annotated[Positive | None, Option(metavar="STEPS")] = None,
    sample_tokens: Positive | None = None,
    as_json: Json = False,
) -> None:
    """Train the network of PRESET and measure it on held-out data.

    Options:
        out: Folder of the run.  [default: train-PRESET]
        resume: Continue the run in the folder.
        threads: PyTorch threads.
        loggers: Name of a logger. May be repeated.
        sample_every: Write a sample of text every STEPS steps.
        sample_tokens: Tokens of each sample.  [default: 1024]
        as_json: Print the summary as JSON on standard output.
    """
    from tokendynamics.cli._output import UNDRAWN, Output, attempted
    from tokendynamics.training.experiment import PRESETS

    if preset == "list":
        echo("\n".join(_line(experiment) for experiment in PRESETS.values()))
        return
    check_writable(out)
    folder = out or Path(f"train-{preset}")
    with interruptible(lambda: kept(folder)):
        from tokendynamics.training import preset as preset_named
        from tokendynamics.training import train

        callbacks = _samples(sample_every, sample_tokens)
        options: dict[str, Any] = {"resume": resume, "threads": threads, "loggers": loggers, "callbacks": callbacks}
        experiment = preset_named(preset).changed(**changing.by_part())
        with Output(as_json=as_json).progress() as progress:
            record = train(experiment, folder, progress=progress, command=command_line(), **options)
        if int(os.environ.get("RANK", "0")) > 0:  # the first of several processes reports for all
            return
        undrawn = attempted(lambda: record.report(folder / "report.html"))
        if as_json:
            measures = {split: dict(values) for split, values in record.measures.items()}
            state = {"status": record.status, "steps": record.steps, "measures": measures}
            echo_json({"folder": str(folder), **state, "notes": list(record.notes)})
        else:
            _print(record, folder, UNDRAWN if undrawn else folder / "report.html")
    if undrawn:
        raise undrawn
    if not record.finished:
        raise click.exceptions.Exit(1)


def kept(folder: Path) -> str:
    """Return a sentence about what an interrupted run left in its folder.

    Args:
        folder: The folder of the run; it need not exist.
    """
    from tokendynamics.training.folder import CHECKPOINTS, EXPERIMENT, RECORD

    if (folder / RECORD).is_file():
        return f"the run in {folder} is complete, with its record"
    if not (folder / EXPERIMENT).is_file():
        return NOTHING
    written = [path for path in (folder / CHECKPOINTS).glob("checkpoint-*") if path.is_dir()]
    if not written:
        return f"{folder} has no checkpoint yet; --resume starts again from step 0"
    last = max(written, key=lambda path: int(path.name.rpartition("-")[2]))
    return f"{last.name} is in {folder}; continue with --resume"


def _samples(every: int | None, tokens: int | None) -> list[Any]:
    """Return the callback that writes samples, if --sample-every is given."""
    if every is None:
        if tokens is not None:
            raise click.UsageError("--sample-tokens needs samples: add --sample-every STEPS, or remove --sample-tokens")
        return []
    from tokendynamics.training import Samples

    return [Samples(every) if tokens is None else Samples(every, tokens)]


def _line(experiment: Experiment) -> str:
    from tokendynamics.training.experiment import PROCESSES

    model, recipe, processes = experiment.model, experiment.recipe, PROCESSES.get(experiment.name, 1)
    size = f"{model['num_hidden_layers']} layers × {model['hidden_size']}"
    spread = f", {processes} processes × {recipe.batch}" if processes > 1 else ""
    return f"{experiment.name:<14}{experiment.task:<8}{experiment.data:<14}{size:<18}{recipe.steps:,} steps{spread}"


def _print(record: Record, folder: Path, page: Path | str) -> None:
    from tokendynamics.words import plural

    console = Console(highlight=False)
    model = record.experiment.model
    regime, remedy = model.get("regime", "baseline"), model.get("remedy", "none")
    title = f"{record.experiment.name}, regime {regime}" + (f", remedy {remedy}" if remedy != "none" else "")
    console.print(Text(f"\n{title}: {record.status} after {plural(record.steps, 'step')}", style="bold"))
    for note in record.notes:
        console.print(Text(f"• {note}"))
    if record.measures:
        names = list(next(iter(record.measures.values())))
        columns = ("split", *[name.replace("_", " ") for name in names])
        shown = table(*columns, left=columns)
        for split, values in record.measures.items():
            shown.add_row(split, *[f"{values[name]:.4f}" for name in names])
        console.print(shown)
    console.print(Text(f"Report: {page}\nModel:  {folder / 'model'}" if record.finished else f"Report: {page}"))
