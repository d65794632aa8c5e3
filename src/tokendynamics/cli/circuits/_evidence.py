"""``tokendynamics circuits evidence``: five instruments and one verdict on a transformer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._options import ShareType, whole
from tokendynamics.cli._terminal import echo, echo_json
from tokendynamics.cli.circuits._folder import out_option
from tokendynamics.cli.circuits._solution import (
    SOLUTIONS,
    build_solution,
    default_functional,
    given_options,
    solution_options,
)
from tokendynamics.cli.circuits._task_options import flags_of, renamed, task_of, task_options, task_parameters
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import PageError, expected
from tokendynamics.words import plural

if TYPE_CHECKING:
    from tokendynamics.circuits.learning import LearningRecord

_EPILOG = f"""
MODEL is the folder of a learned model (or of several, as 'circuits learn' writes it), or one of
{", ".join(SOLUTIONS)}.

\b
Examples:
  tokendynamics circuits evidence solution-2 -N 6 -M 16
  tokendynamics circuits evidence mixture --share 0.3 --out evidence-mixture
  tokendynamics circuits evidence learned-2/seed-0 --json
"""


@click.command("evidence", epilog=_EPILOG)
@click.argument("model")
@task_options
@solution_options
@click.option(
    "--samples", type=whole(50), default=2000, show_default=True, help="Number of sequences that the model is run on."
)
@click.option(
    "--resamples", type=whole(20), default=200, show_default=True, help="Bootstrap resamples of each interval."
)
@click.option(
    "--confidence",
    type=ShareType(),
    default=0.95,
    show_default=True,
    help="Confidence level of each interval.",
)
@click.option("--seed", type=whole(), default=0, show_default=True, help="Random seed of every draw.")
@click.option("--threads", type=whole(1), help="CPU threads.")
@out_option("Folder for the evidence and its page.", ("evidence.json",))
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON on standard output.")
def evidence_command(
    model: str,
    categories: int | None,
    positions: int | None,
    q_true: str | None,
    law: str | None,
    samples: int,
    resamples: int,
    confidence: float,
    seed: int,
    threads: int | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure whether the logic of MODEL is in the attention or in the feed-forward part.

    Path patching and ablation decide; variance shares, correlation and probing are also shown.
    """
    from tokendynamics.circuits.evidence import check_measurable, evidence
    from tokendynamics.cli._output import Output
    from tokendynamics.cli.circuits._folder import manifest_of, write_results
    from tokendynamics.numerics.resources import limited_threads
    from tokendynamics.provenance.manifest import plain
    from tokendynamics.report.circuits.reports import evidence_report

    output, started = Output(as_json=as_json), datetime.now(UTC)
    given = given_options(options)
    if model in SOLUTIONS and not Path(model).exists():
        functional = default_functional(model, options)
        task = task_of(categories, positions, q_true, law, defaults=(4, 8, functional))
        if task.positions < 2:
            raise ArgumentValueError(expected("--positions", "at least 2, so that there is a pair", task.positions))
        chosen = build_solution(model, task, options)
        about = {"model": model, **task_parameters(task, q_true or functional, law), **given}
    else:
        _refuse_options(model, {"categories": categories, "positions": positions, "q_true": q_true, "law": law} | given)
        record = _learned(model, output.say)
        chosen = record.transformer
        about = {"model": model, "architecture": record.architecture, "flavour": record.flavour}
        about |= {"run": record.seed, "categories": record.task.categories, "positions": record.task.positions}
    check_measurable(chosen, chosen.task, samples, resamples, confidence)
    output.say(f"Measuring {chosen.name} ({plural(samples, 'sequence')})")
    with limited_threads(threads):
        measured = evidence(chosen, chosen.task, samples=samples, seed=seed, resamples=resamples, confidence=confidence)
        parameters = {**about, "samples": samples, "resamples": resamples, "confidence": confidence}
        manifest = manifest_of(parameters, seed=seed, started=started)
    summary = about | {"q_true": chosen.task.q_true.tolist(), "law": chosen.task.law.tolist()} | measured.as_json()
    files: tuple[str, ...] = ()
    undrawn: PageError | None = None
    if out is not None:
        page = partial(evidence_report, chosen, measured, manifest)
        files, undrawn = write_results(out, ("evidence.json", summary), manifest, page, output)
    if as_json:
        echo_json(plain(summary | {"folder": out and str(out), "files": files, "manifest": manifest}))
    else:
        echo(f"\n{measured}" + (f"\n\n{out}: {', '.join(files)}" if files else ""))
    if undrawn:
        raise undrawn


def _learned(model: str, say: Callable[[str], None]) -> LearningRecord:
    """Return the learned model of a folder, or of several the one with the median loss."""
    from tokendynamics.circuits.learning import LearningRecord
    from tokendynamics.report.circuits.reports import median_record

    folder = Path(model)
    several = sorted(folder.glob("seed-*/record.json"))
    try:
        if (folder / "record.json").exists() or not several:
            return LearningRecord.open(folder)
        record = median_record([LearningRecord.open(path.parent) for path in several])
    except ArgumentValueError as error:
        raise renamed(error, {"folder": "MODEL"}) from error
    say(f"{folder} holds {plural(len(several), 'run')}; seed {record.seed} is used, which has the median loss")
    return record


def _refuse_options(model: str, values: dict[str, Any]) -> None:
    """Refuse a model that is not a folder, or options of task and solution, which a learned model already has."""
    if not Path(model).is_dir():
        wanted = f"the folder of a learned model or one of {', '.join(SOLUTIONS)}"
        raise ArgumentValueError(expected("MODEL", wanted, repr(model)))
    flags = flags_of(click.get_current_context().command)
    superfluous = [flags[name] for name, value in values.items() if value is not None]
    if superfluous:
        wanted = "no options of a task or solution with a learned model, which has its own"
        raise ArgumentValueError(expected(", ".join(superfluous), wanted, model))
