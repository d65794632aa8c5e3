"""``tokendynamics circuits evidence``: five instruments and one verdict on a transformer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._signature import Option, Positive, ShareType, command, whole
from tokendynamics.cli._terminal import echo
from tokendynamics.cli.circuits._folder import Delivery, deliver, manifest_of, out
from tokendynamics.cli.circuits._options import SOLUTIONS, SolutionOptions, TaskOptions, flags_of, renamed
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.words import plural

if TYPE_CHECKING:
    from tokendynamics.circuits import OneLayerTransformer
    from tokendynamics.circuits.learning import LearningRecord


_MODEL = "MODEL is the folder of a learned model (or of several, as 'circuits learn' writes it), or one of"


@command("evidence", f"{_MODEL} {', '.join(SOLUTIONS)}.")
@says_what_is_kept
def evidence_command(
    model: str,
    *,
    of_task: TaskOptions,
    options: SolutionOptions,
    samples: Annotated[int, Option(type=whole(50))] = 2000,
    resamples: Annotated[int, Option(type=whole(20))] = 200,
    confidence: Annotated[float, Option(type=ShareType())] = 0.95,
    seed: int = 0,
    threads: Positive | None = None,
    out: Annotated[Path | None, out("evidence.json")] = None,
    delivery: Delivery,
    kept: Kept,
) -> None:
    """Measure which part of MODEL does the logic.

    The parts are the attention and the feed-forward part. Path patching and ablation decide; variance shares,
    correlation and probing are also shown.

    Options:
        samples: Number of sequences that the model is run on.
        resamples: Bootstrap resamples of each interval.
        confidence: Confidence level of each interval.
        seed: Random seed of every draw.
        threads: CPU threads.
        out: Folder for the evidence and its page.
    """
    from tokendynamics.circuits.evidence import evidence
    from tokendynamics.circuits.evidence.measurement import check_measurable
    from tokendynamics.cli._output import Output
    from tokendynamics.numerics.resources import limited_threads
    from tokendynamics.report.circuits.models import evidence_report

    kept.results(out)
    output, started = Output(as_json=delivery.as_json), datetime.now(UTC)
    chosen, about = _chosen(model, of_task, options, output.say)
    check_measurable(chosen, chosen.task, samples, resamples, confidence)
    output.say(f"Measuring {chosen.name} ({plural(samples, 'sequence')})")
    with limited_threads(threads):
        measured = evidence(chosen, chosen.task, samples=samples, seed=seed, resamples=resamples, confidence=confidence)
        parameters = {**about, "samples": samples, "resamples": resamples, "confidence": confidence}
        manifest = manifest_of(parameters, seed=seed, started=started)
    summary = about | {"q_true": chosen.task.q_true.tolist(), "law": chosen.task.law.tolist()} | measured.as_json()
    deliver(
        out,
        ("evidence.json", summary),
        manifest,
        partial(evidence_report, chosen, measured, manifest),
        output,
        lambda files: echo(f"\n{measured}" + (f"\n\n{out}: {', '.join(files)}" if files else "")),
    )


def _chosen(
    model: str, of_task: TaskOptions, options: SolutionOptions, say: Callable[[str], None]
) -> tuple[OneLayerTransformer, dict[str, Any]]:
    """Return the transformer, hand-built or learned, and the entries of a manifest about it."""
    if model in SOLUTIONS and not Path(model).exists():
        task, about = of_task.task(4, 8, options.default_functional(model))
        if task.positions < 2:
            raise ArgumentValueError("--positions", "at least 2, so that there is a pair", task.positions)
        return options.build(model, task), {"model": model, **about, **options.given}
    if not Path(model).is_dir():
        wanted = f"the folder of a learned model or one of {', '.join(SOLUTIONS)}"
        raise ArgumentValueError("MODEL", wanted, repr(model))
    flags = flags_of(click.get_current_context().command)
    superfluous = [flags[name] for name, value in (vars(of_task) | options.given).items() if value is not None]
    if superfluous:
        wanted = "no options of a task or solution with a learned model, which has its own"
        raise ArgumentValueError(", ".join(superfluous), wanted, model)
    record = _learned(model, say)
    about = {"model": model, "architecture": record.architecture, "flavour": record.flavour, "run": record.seed}
    return record.transformer, about | {"categories": record.task.categories, "positions": record.task.positions}


def _learned(model: str, say: Callable[[str], None]) -> LearningRecord:
    """Return the learned model of a folder, or of several the one with the median loss."""
    from tokendynamics.circuits.learning import LearningRecord
    from tokendynamics.report.circuits.models import median_record, why_chosen

    folder = Path(model)
    several = sorted(folder.glob("seed-*/record.json"))
    try:
        if (folder / "record.json").exists() or not several:
            return LearningRecord.open(folder)
        record = median_record([LearningRecord.open(path.parent) for path in several])
    except ArgumentValueError as error:
        raise renamed(error, {"folder": "MODEL"}) from error
    say(f"{folder} holds {plural(len(several), 'run')}; seed {record.seed} is used{why_chosen(len(several))}")
    return record
