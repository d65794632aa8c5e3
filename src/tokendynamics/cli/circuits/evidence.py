"""``tokendynamics circuits evidence``: five instruments and one verdict on a transformer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli.circuits.solution import SOLUTIONS, build_solution, default_functional, solution_options
from tokendynamics.cli.circuits.task_options import task_of, task_options
from tokendynamics.cli.target import check_writable
from tokendynamics.numerics.errors import ArgumentValueError, expected

if TYPE_CHECKING:
    from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer

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
@click.option("--samples", type=int, default=2000, show_default=True, help="Sequences that the model is run on.")
@click.option("--resamples", type=int, default=200, show_default=True, help="Of each interval.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of every draw.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the evidence and its page.")
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON on standard output.")
def evidence_command(
    model: str,
    categories: int | None,
    positions: int | None,
    q_true: str | None,
    law: str,
    samples: int,
    resamples: int,
    confidence: float,
    seed: int,
    threads: int | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure whether MODEL's logic is in the attention or in the feed-forward part.

    Path patching and ablation decide; variance shares, correlation and probing are always shown beside them.
    """
    check_writable(out)

    from tokendynamics.circuits.evidence import evidence
    from tokendynamics.cli.circuits.folder import as_json as json_text
    from tokendynamics.cli.circuits.folder import record_of, write_results
    from tokendynamics.cli.output import Output
    from tokendynamics.numerics.threads import limited_threads
    from tokendynamics.report.circuits_reports import evidence_report

    output, started = Output(as_json=as_json), datetime.now(UTC)
    task_given = {"--categories": categories, "--positions": positions, "--q-true": q_true}
    if model in SOLUTIONS and not Path(model).exists():
        task = task_of(categories, positions, q_true, law, defaults=(4, 8, default_functional(model)))
        chosen = build_solution(model, task, options)
    else:
        chosen = _learned(model, task_given | {f"--{name}": value for name, value in options.items()}, output.say)
    output.say(f"Measuring {chosen.name} ({samples} sequences)")
    with limited_threads(threads):
        found = evidence(chosen, chosen.task, samples=samples, seed=seed, resamples=resamples, confidence=confidence)
        parameters = {"model": model, "samples": samples, "resamples": resamples, "confidence": confidence}
        manifest = record_of(parameters, seed=seed, started=started)
    files: tuple[str, ...] = ()
    if out is not None:
        files = write_results(
            out,
            ("evidence.json", found.as_json()),
            manifest,
            lambda names: evidence_report(chosen, found, manifest, names),
            output,
        )
    if as_json:
        click.echo(json_text(found.as_json() | {"folder": out and str(out), "files": files, "manifest": manifest}))
    else:
        click.echo(f"\n{found}")
        if files:
            click.echo(f"\n{out}: {', '.join(files)}")


def _learned(model: str, given: dict[str, Any], say: Any) -> OneLayerTransformer:
    """The learned model of a folder; of several the one with the median loss."""
    from tokendynamics.circuits.learning import LearningRecord
    from tokendynamics.report.circuits_reports import median_record

    folder = Path(model)
    if not folder.is_dir():
        wanted = f"the folder of a learned model or one of {', '.join(SOLUTIONS)}"
        raise ArgumentValueError(expected("MODEL", wanted, repr(model)))
    superfluous = [name for name, value in given.items() if value is not None]
    if superfluous:
        wanted = "no options of a task or solution with a learned model, which has its own"
        raise ArgumentValueError(expected(", ".join(superfluous), wanted, model))
    several = sorted(folder.glob("seed-*/record.json"))
    if (folder / "record.json").exists() or not several:
        return LearningRecord.open(folder).transformer
    record = median_record([LearningRecord.open(path.parent) for path in several])
    say(f"{folder} holds {len(several)} runs: seed {record.seed} has the median loss and is taken")
    return record.transformer
