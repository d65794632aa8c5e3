"""``tokendynamics circuits learn``: train from several seeds, and measure which part does the logic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from rich.text import Text

from tokendynamics.cli._interrupted import NOTHING, interruptible
from tokendynamics.cli._signature import Option, Positive, command, whole
from tokendynamics.cli._terminal import Console, echo, table
from tokendynamics.cli.circuits._folder import Delivery, deliver, manifest_of, out
from tokendynamics.cli.circuits._options import TaskOptions
from tokendynamics.words import fixed, number

if TYPE_CHECKING:
    from tokendynamics.circuits import PairTask
    from tokendynamics.circuits.evidence import Evidence
    from tokendynamics.circuits.learning import LearningRecord
    from tokendynamics.cli._output import Output
    from tokendynamics.provenance.progress import Progress

_BYTES = 32
"""Bytes for each token of the evidence, checked first since the evidence is measured only after the training."""


@dataclass(frozen=True, kw_only=True)
class LearnRecipe:
    """How each run is trained, named as the arguments of `tokendynamics.circuits.learning.learn`.

    Attributes:
        batch: New sequences per outer step.
        steps: Outer steps.
        inner: Iterations of L-BFGS per outer step.
        hidden: Hidden units.  [default: N², N or M, as the architecture needs]
    """

    batch: int = 500
    steps: int = 50
    inner: int = 20
    hidden: int | None = None


@command("learn")
def learn_command(
    architecture: Annotated[
        Literal["solution-1", "solution-2", "solution-3", "combined"], Option(metavar="ARCHITECTURE")
    ],
    *,
    flavour: Literal["free", "towards-1", "towards-2", "towards-3"] = "free",
    of_task: TaskOptions,
    seeds: Annotated[int, Option(type=whole(1, 10_000))] = 5,
    seed: Annotated[int, Option(type=whole(0))] = 0,
    recipe: LearnRecipe,
    samples: Annotated[int, Option(type=whole(50))] = 1000,
    threads: Positive = 1,
    out: Annotated[Path, out("learning.json")],
    delivery: Delivery,
) -> None:
    """Train one-layer transformers on the pair task.

    Then which part does the logic is measured. ARCHITECTURE is solution-1, solution-2, solution-3 (tailored) or
    combined. q_true is the same for every seed; weights and batches differ. Without options N = 6 and M = 16.

    Options:
        flavour: The solution that a penalty favours at first in the combined model.
        seeds: Number of runs.
        seed: Random seed of the first run.
        samples: Sequences for the evidence.
        threads: CPU threads.
        out: Folder of the results.
    """
    from tokendynamics.cli._output import Output
    from tokendynamics.numerics.resources import check_fits, limited_threads
    from tokendynamics.report.circuits.models import learning_report

    output, started = Output(as_json=delivery.as_json), datetime.now(UTC)
    task, described = of_task.task(6, 16, "random:0")
    chosen = {"architecture": architecture, "flavour": flavour, **vars(recipe)}
    check_fits(_BYTES * samples * task.positions, "samples")
    numbers = range(seed, seed + seeds)
    with interruptible(lambda: _kept(out, numbers)):
        with limited_threads(threads), output.progress() as progress:
            records = [_run(task, number, out, output, progress, chosen) for number in numbers]
            evidences = _measured(records, samples, progress)
            about = {**chosen, **described, "seeds": seeds, "samples": samples}
            manifest = manifest_of(about, seed=seed, started=started)
        deliver(
            out,
            ("learning.json", _summary(records, evidences)),
            manifest,
            lambda names: learning_report(records, evidences, manifest, names),
            output,
            lambda files: _print(records, evidences, out, files),
            shared=True,
        )
    broken = [record for record in records if record.status != "finished"]
    for record in broken:
        where = out / f"seed-{record.seed}"
        echo(f"error: seed {record.seed}: {record.status}; its last finite weights are in {where}", err=True)
    if broken:
        raise click.exceptions.Exit(1)


def _run(
    task: PairTask, seed: int, out: Path, output: Output, progress: Progress, chosen: dict[str, Any]
) -> LearningRecord:
    from tokendynamics.circuits.learning import learn

    folder = out / f"seed-{seed}"
    finished, begun = (folder / "record.json").is_file(), (folder / "progress.pt").is_file()

    def report(done: float, total: float, what: str) -> None:
        # First called after `learn` has verified that the unfinished run is the same.
        if begun and done == 0:
            output.say(f"seed {seed}: continues where it was interrupted, from {folder}")
        progress(done, total, what)

    record = learn(task, **chosen, seed=seed, folder=folder, progress=report, threads=None)
    if finished:
        output.say(f"seed {seed}: finished before, read from {folder}")
    return record


def _measured(records: list[LearningRecord], samples: int, progress: Progress) -> list[Evidence | None]:
    """Return the evidence of each run; None where it stopped early, since its weights are not those of a model."""
    from tokendynamics.circuits.evidence import evidence
    from tokendynamics.provenance.progress import tracked

    return [
        evidence(record.transformer, record.task, samples=samples) if record.status == "finished" else None
        for record in tracked(records, progress, "Measuring")
    ]


def _kept(out: Path, numbers: Iterable[int]) -> str:
    """Return a sentence about the results of an interrupted call."""
    folders = [f"seed-{number}" for number in numbers]
    finished = [name for name in folders if (out / name / "record.json").is_file()]
    begun = [name for name in folders if (out / name / "progress.pt").is_file()]
    if not finished and not begun:
        return NOTHING
    states = ((finished, "finished"), (begun, "unfinished"))
    kept = " and ".join(f"{', '.join(names)} ({state})" for names, state in states if names)
    return f"{out} keeps {kept}; the same command continues from there"


def _summary(records: list[LearningRecord], evidences: Sequence[Evidence | None]) -> dict[str, Any]:
    import numpy as np

    finals = np.array([record.final_loss for record in records])
    return {
        "median_final_loss": float(np.median(finals)),
        "lowest_final_loss": float(finals.min()),
        "highest_final_loss": float(finals.max()),
        "solved": sum(record.solved for record in records),
        "runs": [
            record.as_json() | {"evidence": evidence and evidence.as_json()}
            for record, evidence in zip(records, evidences, strict=True)
        ],
    }


def _print(
    records: list[LearningRecord], evidences: Sequence[Evidence | None], out: Path, files: tuple[str, ...]
) -> None:
    import numpy as np

    console = Console(highlight=False)
    words = ("solved", "verdict", "status")
    columns = ("seed", "final loss", "relative", "solved", "centred |corr|", "verdict", "status")
    title = records[0].name.rpartition(", seed")[0]
    shown = table(*columns, left=words, unbroken=("verdict",), title=title)
    for record, evidence in zip(records, evidences, strict=True):
        correlation = None if evidence is None else evidence.instrument("correlation").estimate
        shown.add_row(
            str(record.seed),
            number(record.final_loss),
            number(record.relative_loss),
            "yes" if record.solved else "no",
            fixed(correlation, 4),
            evidence.verdict if evidence else "not measured",
            record.status.partition(":")[0],
        )
    console.print(shown)
    finals = np.array([record.final_loss for record in records])
    median, lowest, highest = (number(float(value)) for value in (np.median(finals), finals.min(), finals.max()))
    solved = sum(record.solved for record in records)
    console.print(
        Text(f"Final loss: median {median} ({lowest} to {highest}); {solved} of {len(records)} solved the task.")
    )
    console.print(Text(f"{out}: {', '.join((*(f'seed-{record.seed}' for record in records), *files))}"))
