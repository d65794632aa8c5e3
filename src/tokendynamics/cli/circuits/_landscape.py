"""``tokendynamics circuits landscape``: stationary points, basins, and the paper's claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._options import whole
from tokendynamics.cli._terminal import echo_json
from tokendynamics.cli.circuits._folder import out_option
from tokendynamics.cli.circuits._task_options import functional_of, law_of
from tokendynamics.numerics.errors import PageError
from tokendynamics.words import count, listing, number, percent_estimate, plural

if TYPE_CHECKING:
    from tokendynamics.circuits.landscape import Basins, LandscapeSurvey
    from tokendynamics.cli._output import Output

_FUNCTIONAL = "random:0"
_WRAPS = "definition"
_EPILOG = """
\b
3.1  attention on positions only, linear
3.2  attention on positions only, softmax
3.3  attention on categories only

\b
Examples:
  tokendynamics circuits landscape 3.1
  tokendynamics circuits landscape 3.2 --starts 40
  tokendynamics circuits landscape 3.3 --q-true mine.npy --out landscape-3.3
"""


@click.command("landscape", epilog=_EPILOG)
@click.argument("section", metavar="WHICH", type=click.Choice(["3.1", "3.2", "3.3"]))
@click.option("--categories", "-N", type=whole(), help="N, the number of categories.  [default: 5]")
@click.option("--positions", "-M", type=whole(), default=6, show_default=True, help="M, the length of the sequences.")
@click.option(
    "--law", default="uniform", show_default=True, metavar="uniform|zipf|P1,P2,…", help="Law of the categories."
)
@click.option(
    "--q-true", "q_true", metavar="FILE|random:SEED|digits[:BASE]", help="q_true of 3.3.  [default: random:0]"
)
@click.option("--causal", is_flag=True, help="Mask the attention of 3.3.")
@click.option("--starts", type=whole(), help="Random starts of the descent.  [default: 40; 10 for 3.2, which is slow]")
@click.option(
    "--seed", type=whole(), default=0, show_default=True, help="Random seed of the starts and of free parameters."
)
@click.option(
    "--method",
    type=click.Choice(["quasi-newton", "gradient-flow"]),
    default="quasi-newton",
    show_default=True,
    help="Method of descent.",
)
@click.option("--budget", type=whole(), default=600, show_default=True, help="Largest number of steps of one run.")
@click.option("--threads", type=whole(1), default=1, show_default=True, help="CPU threads.")
@out_option("Folder for the data and the page.", ("landscape.json",))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def landscape_command(threads: int, out: Path | None, as_json: bool, **given: Any) -> None:
    """Find the stationary points of the exact expected loss of the paper's section WHICH, and where descent ends."""
    from tokendynamics.cli._output import Output
    from tokendynamics.cli.circuits._folder import manifest_of, write_results
    from tokendynamics.numerics.resources import limited_threads
    from tokendynamics.provenance.manifest import plain
    from tokendynamics.report.circuits.reports import landscape_report

    output, started = Output(as_json=as_json), datetime.now(UTC)
    with limited_threads(threads):
        surveyed = _surveyed(given, output)
        manifest = manifest_of(_parameters(given, surveyed), seed=surveyed.basins.seed, started=started)
    summary = surveyed.as_json()
    files: tuple[str, ...] = ()
    undrawn: PageError | None = None
    if out is not None:
        data = ("landscape.json", summary)
        files, undrawn = write_results(
            out, data, manifest, lambda names: landscape_report(surveyed, manifest, names), output
        )
    if as_json:
        echo_json(plain(summary | {"folder": out and str(out), "files": files, "manifest": manifest}))
    else:
        _print(surveyed, out, files)
    if undrawn:
        raise undrawn


def _surveyed(given: Mapping[str, Any], output: Output) -> LandscapeSurvey:
    from tokendynamics.circuits.landscape import survey

    functional, law = given["q_true"], law_of(given["law"])
    if given["section"] == "3.3":
        functional = functional_of(_FUNCTIONAL if functional is None else functional, given["categories"], 5, law)
    with output.progress() as progress:
        return survey(**{**given, "law": law, "q_true": functional}, progress=progress)


def _parameters(given: Mapping[str, Any], survey: LandscapeSurvey) -> dict[str, Any]:
    """Return the options, with the values of those that were left out."""
    asked = {**given, "categories": len(survey.landscape.law), "starts": len(survey.basins.runs)}
    drawn = survey.section == "3.3" and given["q_true"] is None
    return asked | {"q_true": _FUNCTIONAL} if drawn else asked


def _print(survey: LandscapeSurvey, out: Path | None, files: tuple[str, ...]) -> None:
    from rich.text import Text

    from tokendynamics.cli._terminal import Console

    console, runs = Console(highlight=False), survey.basins
    console.print(Text(f"\n{survey.name}\n", style="bold"))
    console.print(_points(survey) if survey.points else _stalls(survey))
    console.print(_shares(runs))
    reasons = listing([f"{number_of} {why}" for why, number_of in runs.statuses.items()])
    console.print(Text(f"Why {plural(len(runs.runs), 'run')} stopped: {reasons}"))
    for claim in survey.claims:
        console.print(Text(f"• {claim}"))
    if out is not None:
        console.print(Text(f"\n{out}: {', '.join(files)}"))


def _table(title: str, columns: Sequence[str], words: Sequence[str]) -> Any:
    """Return an empty table with right-aligned numbers, in which only the column of definitions may wrap."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", no_wrap=column != _WRAPS)
    return table


def _points(survey: LandscapeSurvey) -> Any:
    columns = ("family", _WRAPS, "loss", "gradient", "curvature", "kind")
    title = "Stationary points: loss per token, relative gradient, lowest curvature"
    table = _table(title, columns, ("family", _WRAPS, "kind"))
    for point, one in survey.points:
        numbers = (number(point.loss_per_column, 5), number(one.relative_gradient, 1), number(one.lowest_curvature, 2))
        table.add_row(point.family, point.text, *numbers, one.kind)
    return table


def _stalls(survey: LandscapeSurvey) -> Any:
    table = _table(
        "Stalls: gradient flow from logits of −depth", ("depth", "loss per token", "gradient", "time to leave"), ()
    )
    for one in survey.stalls:
        time = number(one.time) if one.status == "left" else one.status
        table.add_row(number(one.depth), number(survey.per_token(one.loss), 6), number(one.gradient, 2), time)
    return table


def _shares(runs: Basins) -> Any:
    from tokendynamics.circuits.landscape.basins import CONFIDENCE

    title = f"{runs.method}, {plural(len(runs.runs), 'start')}"
    table = _table(title, ("ends as", "starts", "share"), ("ends as",))
    for share in runs.shares:
        table.add_row(
            share.kind, count(share.count), percent_estimate(share.fraction, [share.low, share.high], CONFIDENCE)
        )
    return table
