"""``tokendynamics circuits build``: a transformer built by hand, and whether it computes the task."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._signature import Option, command
from tokendynamics.cli._terminal import Console, table
from tokendynamics.cli.circuits._folder import Delivery, deliver, manifest_of, matrices_of, out
from tokendynamics.cli.circuits._options import SOLUTIONS, SolutionOptions, TaskOptions
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.words import number, plural

if TYPE_CHECKING:
    from tokendynamics.circuits.constructions.comparison import TaskComparison
    from tokendynamics.report.circuits.models import Meant


@command("build", f"SOLUTION is one of {', '.join(SOLUTIONS)}.")
@says_what_is_kept
def build_command(
    solution: str,
    *,
    of_task: TaskOptions,
    sequences: Annotated[tuple[str, ...], Option("--x")] = (),
    options: SolutionOptions,
    seed: int = 0,
    out: Annotated[Path | None, out("circuits.npz", "circuits.json")] = None,
    delivery: Delivery,
    kept: Kept,
) -> None:
    """Build a one-layer transformer by hand, and test it.

    Its outputs are compared with the targets. Every pair of categories is tried. For a construction that is wrong as
    printed the pairs for which it fails are listed; the exit code is still 0.

    Options:
        sequences: A sequence such as "1,3,2,2"; may be repeated.  [default: drawn]
        seed: Random seed of the drawn sequences.
        out: Folder for matrices and page.
    """
    if solution not in SOLUTIONS:
        raise ArgumentValueError("SOLUTION", f"one of {', '.join(SOLUTIONS)}", repr(solution))
    given = [_parsed(x) for x in sequences]
    kept.results(out)

    from tokendynamics.circuits.constructions import compare
    from tokendynamics.cli._output import Output
    from tokendynamics.report.circuits.models import built_report

    output, started = Output(as_json=delivery.as_json), datetime.now(UTC)
    longest = max((len(x) for x in given), default=6)
    task, about = of_task.task(4, longest, options.default_functional(solution))
    model = options.build(solution, task)
    comparison = compare(model, given or task.sample(1, seed).tolist(), seed)
    manifest = manifest_of({"solution": solution, **about, **options.given}, seed=seed, started=started)
    wrong = solution.endswith("printed") or options.form == "printed"
    meant: Meant = "wrong" if wrong else "approximate" if solution == "softmax-2" else "exact"
    described = {"solution": solution, "q_true": task.q_true.tolist(), "law": task.law.tolist()}
    deliver(
        out,
        ("circuits.json", described | comparison.as_json()),
        manifest,
        lambda names: built_report(comparison, manifest, names, meant=meant),
        output,
        lambda files: _print(comparison, out, files),
        arrays=("circuits.npz", matrices_of(model)),
    )


def _parsed(words: str) -> list[int]:
    """Return ``"1,3,2,2"`` as a list.

    >>> _parsed("1, 3 2")
    [1, 3, 2]
    """
    parts = re.split(r"[\s,]+", words.strip().strip("[]"))
    try:
        return [int(part) for part in parts]
    except ValueError as error:
        raise ArgumentValueError("--x", "categories such as 1,3,2,2", repr(words)) from error


def _print(comparison: TaskComparison, out: Path | None, files: tuple[str, ...]) -> None:
    console, model = Console(highlight=False), comparison.model
    task = model.task
    shape = f"N = {task.categories}, M = {task.positions}, {plural(len(model.C), 'hidden unit')}"
    console.print(Text(f"\n{model.name}: {shape}\n", style="bold"))
    for answer in comparison.answers:
        shown = table("token", "X", "Y", "output", "error")
        for place, (category, target, output) in enumerate(
            zip(answer.x.tolist(), answer.targets.tolist(), answer.outputs.tolist(), strict=True), start=1
        ):
            error = number(abs(output - target), 2) if place > 1 else ""
            shown.add_row(str(place), str(category), number(target, 6), number(output, 6), error)
        console.print(shown)
    for sentence in comparison.sentences:
        console.print(Text(f"• {sentence}"))
    if out is not None:
        console.print(Text(f"\n{out}: {', '.join(files)}"))
