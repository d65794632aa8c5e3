"""``tokendynamics circuits landscape``: stationary points, basins, and the paper's claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from rich.text import Text

from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._signature import Option, Positive, command
from tokendynamics.cli._terminal import Console, table
from tokendynamics.cli.circuits._folder import Delivery, deliver, manifest_of, out
from tokendynamics.cli.circuits._options import LAWS, functional_of, law_of
from tokendynamics.words import count, listing, number, plural

if TYPE_CHECKING:
    from tokendynamics.circuits.landscape.claims import LandscapeSurvey
    from tokendynamics.cli._output import Output

_FUNCTIONAL = "random:0"
_WRAPS = "definition"


@dataclass(frozen=True, kw_only=True)
class Surveying:
    """What is surveyed, named as the arguments of `tokendynamics.circuits.landscape.survey`.

    Attributes:
        categories: N, the number of categories.  [default: 5]
        positions: M, the length of the sequences.
        law: Law of the categories.
        q_true: q_true of 3.3.  [default: random:0]
        causal: Mask the attention of 3.3.
        starts: Random starts of the descent.  [default: 40; 10 for 3.2, which is slow]
        seed: Random seed of the starts and of free parameters.
        method: Method of descent.
        budget: Largest number of steps of one run.
    """

    categories: Annotated[int | None, Option("--categories", "-N")] = None
    positions: Annotated[int, Option("--positions", "-M")] = 6
    law: Annotated[str, Option(metavar=LAWS)] = "uniform"
    q_true: Annotated[str | None, Option(metavar="FILE|random:SEED|digits[:BASE]")] = None
    causal: bool = False
    starts: int | None = None
    seed: int = 0
    method: Literal["quasi-newton", "gradient-flow"] = "quasi-newton"
    budget: int = 600


@command("landscape")
@says_what_is_kept
def landscape_command(
    section: Annotated[Literal["3.1", "3.2", "3.3"], Option(metavar="WHICH")],
    *,
    surveying: Surveying,
    threads: Positive = 1,
    out: Annotated[Path | None, out("landscape.json")] = None,
    delivery: Delivery,
    kept: Kept,
) -> None:
    """Find where the exact loss is stationary, and descent ends.

    WHICH is the section of the paper.

    Options:
        threads: CPU threads.
        out: Folder for the data and the page.
    """
    from tokendynamics.cli._output import Output
    from tokendynamics.numerics.resources import limited_threads
    from tokendynamics.report.circuits.landscape import landscape_report

    kept.results(out)
    output, started = Output(as_json=delivery.as_json), datetime.now(UTC)
    given = {"section": section, **vars(surveying)}
    with limited_threads(threads):
        surveyed = _surveyed(given, output)
        # The options, with the values of those that were left out.
        asked = {**given, "categories": len(surveyed.landscape.law), "starts": len(surveyed.basins.runs)}
        if section == "3.3":
            asked["q_true"] = surveying.q_true or _FUNCTIONAL
        manifest = manifest_of(asked, seed=surveyed.basins.seed, started=started)
    deliver(
        out,
        ("landscape.json", surveyed.as_json()),
        manifest,
        lambda names: landscape_report(surveyed, manifest, names),
        output,
        lambda files: _print(surveyed, out, files),
    )


def _surveyed(given: Mapping[str, Any], output: Output) -> LandscapeSurvey:
    from tokendynamics.circuits.landscape import survey

    functional, law = given["q_true"], law_of(given["law"])
    if given["section"] == "3.3":
        functional = functional_of(_FUNCTIONAL if functional is None else functional, given["categories"], 5, law)
    with output.progress() as progress:
        return survey(**{**given, "law": law, "q_true": functional}, progress=progress)


def _print(survey: LandscapeSurvey, out: Path | None, files: tuple[str, ...]) -> None:
    console, runs = Console(highlight=False), survey.basins
    console.print(Text(f"\n{survey.name}\n", style="bold"))
    console.print(_points(survey) if survey.points else _stalls(survey))
    title = f"{runs.method}, {plural(len(runs.runs), 'start')}"
    shown = _table(title, ("ends as", "starts", "share"), ("ends as",))
    for share in runs.shares:
        shown.add_row(share.kind, count(share.count), share.percent)
    console.print(shown)
    reasons = listing([f"{number_of} {why}" for why, number_of in runs.statuses.items()])
    console.print(Text(f"Why {plural(len(runs.runs), 'run')} stopped: {reasons}"))
    for claim in survey.claims:
        console.print(Text(f"• {claim}"))
    if out is not None:
        console.print(Text(f"\n{out}: {', '.join(files)}"))


def _table(title: str, columns: Sequence[str], words: Sequence[str]) -> Table:
    """Return an empty table in which only the column of definitions may wrap."""
    made = table(*columns, left=words, unbroken=set(columns) - {_WRAPS}, title=title)
    made.padding = (0, 1, 0, 0)
    return made


def _points(survey: LandscapeSurvey) -> Table:
    columns = ("family", _WRAPS, "loss", "gradient", "curvature", "kind")
    title = "Stationary points: loss per token, relative gradient, lowest curvature"
    shown = _table(title, columns, ("family", _WRAPS, "kind"))
    for point, one in survey.points:
        numbers = (number(point.loss_per_column, 5), number(one.relative_gradient, 1), number(one.lowest_curvature, 2))
        shown.add_row(point.family, point.text, *numbers, one.kind)
    return shown


def _stalls(survey: LandscapeSurvey) -> Table:
    shown = _table(
        "Stalls: gradient flow from logits of −depth", ("depth", "loss per token", "gradient", "time to leave"), ()
    )
    for one in survey.stalls:
        time = number(one.time) if one.status == "left" else one.status
        shown.add_row(number(one.depth), number(survey.per_token(one.loss), 6), number(one.gradient, 2), time)
    return shown
