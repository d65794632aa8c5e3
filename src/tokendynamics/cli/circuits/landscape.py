"""``tokendynamics circuits landscape``: stationary points, basins, and which claims about them hold."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli.circuits.task_options import functional_of, law_of
from tokendynamics.cli.target import check_writable
from tokendynamics.numerics.errors import ArgumentValueError, expected

if TYPE_CHECKING:
    from tokendynamics.report.survey import LandscapeSurvey

_EPILOG = """
\b
3.1  attention on positions only, linear
3.2  attention on positions only, softmax
3.3  attention on categories only

\b
Examples:
  tokendynamics circuits landscape 3.1
  tokendynamics circuits landscape 3.2 --starts 10
  tokendynamics circuits landscape 3.3 --q-true mine.npy --out landscape-3.3
"""


@click.command("landscape", epilog=_EPILOG)
@click.argument("which", type=click.Choice(["3.1", "3.2", "3.3"]))
@click.option("--categories", "-N", type=int, help="N, the number of categories.  [default: 5]")
@click.option("--positions", "-M", type=int, default=6, show_default=True, help="M, the length of the sequences.")
@click.option("--law", default="uniform", show_default=True, metavar="uniform|zipf|P1,P2,…", help="Of the categories.")
@click.option("--q-true", "q_true", metavar="FILE|random:SEED|digits", help="Of 3.3.  [default: random:0]")
@click.option("--causal", is_flag=True, help="Mask the attention of 3.3.")
@click.option("--starts", type=int, default=40, show_default=True, help="Random starts of the descent.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the starts and of free parameters.")
@click.option(
    "--method", type=click.Choice(["quasi-newton", "gradient-flow"]), default="quasi-newton", show_default=True
)
@click.option("--budget", type=int, default=600, show_default=True, help="Steps of one run at most.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the data and the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def landscape_command(
    which: str,
    categories: int | None,
    positions: int,
    law: str,
    q_true: str | None,
    causal: bool,
    threads: int,
    out: Path | None,
    as_json: bool,
    **search: Any,
) -> None:
    """Say where the exact expected loss of the paper's section WHICH has stationary points, and where descent ends."""
    if which != "3.3" and (q_true is not None or causal):
        raise ArgumentValueError(
            expected("--q-true, --causal", "3.3", which, "there the target is the previous category")
        )
    check_writable(out)

    from tokendynamics.circuits.pair_task import category_law
    from tokendynamics.cli.circuits.folder import as_json as json_text
    from tokendynamics.cli.circuits.folder import record_of, write_results
    from tokendynamics.cli.circuits.surveys import summary_of, survey_categories, survey_positions, survey_softmax
    from tokendynamics.cli.output import Output
    from tokendynamics.numerics.threads import limited_threads
    from tokendynamics.report.circuits_reports import landscape_report

    output, started = Output(as_json=as_json), datetime.now(UTC)
    search |= {"track": output.track}
    with limited_threads(threads):
        if which == "3.3":
            functional = functional_of(q_true or "random:0", categories, 5)
            survey = survey_categories(functional, law_of(law), positions, causal, **search)
        else:
            named = law_of(law)
            size = 5 if categories is None else categories
            probabilities = category_law(
                named, size if isinstance(named, str) or categories is not None else len(named)
            )
            surveyed = survey_positions if which == "3.1" else survey_softmax
            survey = surveyed(probabilities, positions, **search)
        parameters = {"which": which, "positions": positions, "law": law, "q_true": q_true, "causal": causal}
        parameters |= {name: value for name, value in search.items() if name != "track"}
        manifest = record_of(parameters, seed=search["seed"], started=started)
    summary = summary_of(survey)
    files: tuple[str, ...] = ()
    if out is not None:
        data = ("landscape.json", summary)
        files = write_results(out, data, manifest, lambda names: landscape_report(survey, manifest, names), output)
    if as_json:
        click.echo(json_text(summary | {"folder": out and str(out), "files": files, "manifest": manifest}))
    else:
        _print(survey, out, files)


def _print(survey: LandscapeSurvey, out: Path | None, files: tuple[str, ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"\n{survey.name}\n", style="bold"))
    table = Table(
        box=SIMPLE_HEAD,
        title="Stationary points: loss per token, relative gradient, lowest curvature",
        title_justify="left",
    )
    for column in ("family", "what its members share", "loss", "gradient", "curvature", "kind"):
        table.add_column(column, justify="right" if column in ("loss", "gradient", "curvature") else "left")
    for point, found in survey.points:
        loss, curvature = f"{point.loss_per_column:.5g}", f"{found.lowest_curvature:.2g}"
        table.add_row(point.family, point.text, loss, f"{found.relative_gradient:.0e}", curvature, found.kind)
    for stall in survey.stalls:
        table.add_row("", f"logits at −{stall.depth:g}", f"{stall.loss:.6g}", f"{stall.gradient:.1e}", "",
                      f"{stall.status} after t = {stall.time:.3g}")  # fmt: skip
    console.print(table)
    table = Table(
        box=SIMPLE_HEAD, title=f"{survey.basins.method}, {len(survey.basins.runs)} starts", title_justify="left"
    )
    for column in ("ends as", "starts", "share", "95 % interval"):
        table.add_column(column, justify="left" if column == "ends as" else "right")
    for share in survey.basins.shares:
        table.add_row(share.kind, str(share.count), f"{share.fraction:.1%}", f"{share.low:.1%} – {share.high:.1%}")
    console.print(table)
    console.print(Text("Runs: " + ", ".join(f"{count} {status}" for status, count in survey.basins.statuses.items())))
    for claim in survey.claims:
        console.print(Text(f"• {claim}"))
    if out is not None:
        console.print(Text(f"\n{out}: {', '.join(files)}"))
