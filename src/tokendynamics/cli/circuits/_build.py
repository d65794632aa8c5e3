"""``tokendynamics circuits build``: a transformer built by hand, and whether it computes the task."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._options import whole
from tokendynamics.cli._terminal import echo_json
from tokendynamics.cli.circuits._folder import out_option
from tokendynamics.cli.circuits._solution import (
    SOLUTIONS,
    build_solution,
    checked_name,
    default_functional,
    given_options,
    solution_options,
)
from tokendynamics.cli.circuits._task_options import task_of, task_options, task_parameters
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import PageError, expected
from tokendynamics.words import number, plural

if TYPE_CHECKING:
    from tokendynamics.circuits.constructions import Comparison
    from tokendynamics.circuits.constructions.comparison import Answer
    from tokendynamics.report.circuits.reports import Meant

_EPILOG = f"""
SOLUTION is one of {", ".join(SOLUTIONS)}.

\b
Examples:
  tokendynamics circuits build solution-1 --x "1,3,2,2"
  tokendynamics circuits build solution-1-printed -N 3 --out printed   the pairs for which it fails
  tokendynamics circuits build solution-2 --q-true mine.csv -M 20 --json
  tokendynamics circuits build softmax-3 --sharpness 10
  tokendynamics circuits build softmax-2 -M 200   exact up to about 1/√M
"""


@click.command("build", epilog=_EPILOG)
@click.argument("solution")
@task_options
@click.option(
    "--x", "sequences", multiple=True, help='A sequence such as "1,3,2,2"; may be repeated.  [default: drawn]'
)
@solution_options
@click.option("--seed", type=whole(), default=0, show_default=True, help="Random seed of the drawn sequences.")
@out_option("Folder for matrices and page.", ("circuits.npz", "circuits.json"))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def build_command(
    solution: str,
    categories: int | None,
    positions: int | None,
    q_true: str | None,
    law: str | None,
    sequences: tuple[str, ...],
    seed: int,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build a one-layer transformer by hand and compare its outputs with the targets.

    Every pair of categories is tried. For a construction that is wrong as printed the pairs for which it fails are
    listed; the exit code is still 0.
    """
    checked_name(solution)
    given = [_parsed(x) for x in sequences]

    from tokendynamics.circuits.constructions import compare
    from tokendynamics.cli._output import Output

    output, started = Output(as_json=as_json), datetime.now(UTC)
    longest, functional = max((len(x) for x in given), default=6), default_functional(solution, options)
    task = task_of(categories, positions, q_true, law, defaults=(4, longest, functional))
    model = build_solution(solution, task, options)
    comparison = compare(model, given or task.sample(1, seed).tolist(), seed)

    from tokendynamics.cli.circuits._folder import manifest_of, matrices_of, write_results
    from tokendynamics.provenance.manifest import plain
    from tokendynamics.report.circuits.reports import built_report

    parameters = {"solution": solution, **task_parameters(task, q_true or functional, law), **given_options(options)}
    manifest = manifest_of(parameters, seed=seed, started=started)
    summary = {"solution": solution, "q_true": task.q_true.tolist(), "law": task.law.tolist(), **comparison.as_json()}
    files: tuple[str, ...] = ()
    undrawn: PageError | None = None
    if out is not None:
        wrong = solution.endswith("printed") or options["form"] == "printed"
        meant: Meant = "wrong" if wrong else "approximate" if solution == "softmax-2" else "exact"
        files, undrawn = write_results(
            out,
            ("circuits.json", summary),
            manifest,
            lambda names: built_report(comparison, manifest, names, meant=meant),
            output,
            arrays=("circuits.npz", matrices_of(model)),
        )
    if as_json:
        echo_json(plain(summary | {"folder": out and str(out), "files": files, "manifest": manifest}))
    else:
        _print(comparison, out, files)
    if undrawn:
        raise undrawn


def _parsed(words: str) -> list[int]:
    """Return ``"1,3,2,2"`` as a list.

    >>> _parsed("1, 3 2")
    [1, 3, 2]
    """
    parts = re.split(r"[\s,]+", words.strip().strip("[]"))
    try:
        return [int(part) for part in parts]
    except ValueError as error:
        raise ArgumentValueError(expected("--x", "categories such as 1,3,2,2", repr(words))) from error


def _print(comparison: Comparison, out: Path | None, files: tuple[str, ...]) -> None:
    from rich.text import Text

    from tokendynamics.cli._terminal import Console

    console, model = Console(highlight=False), comparison.model
    task = model.task
    shape = f"N = {task.categories}, M = {task.positions}, {plural(len(model.C), 'hidden unit')}"
    console.print(Text(f"\n{model.name}: {shape}\n", style="bold"))
    for answer in comparison.answers:
        console.print(_table(answer))
    for sentence in comparison.sentences:
        console.print(Text(f"• {sentence}"))
    if out is not None:
        console.print(Text(f"\n{out}: {', '.join(files)}"))


def _table(answer: Answer) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for column in ("token", "X", "Y", "output", "error"):
        table.add_column(column, justify="right")
    for place, (category, target, output) in enumerate(
        zip(answer.x.tolist(), answer.targets.tolist(), answer.outputs.tolist(), strict=True), start=1
    ):
        error = number(abs(output - target), 2) if place > 1 else ""
        table.add_row(str(place), str(category), number(target, 6), number(output, 6), error)
    return table
