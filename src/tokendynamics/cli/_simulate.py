"""``tokendynamics simulate``: run the simulation of a file and write trajectory, certificates, figures and a page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._options import Folder, check_writable, overwrite_option, whole
from tokendynamics.cli._terminal import echo, echo_json
from tokendynamics.words import plural

if TYPE_CHECKING:
    from tokendynamics.specification import Simulation
    from tokendynamics.theorems import Condition

_EPILOG = """
\b
Examples:
  tokendynamics simulate --example list               names of examples
  tokendynamics simulate --example fig3 > fig3.toml   one of them
  tokendynamics simulate fig3.toml                    writes simulation-fig3
  tokendynamics simulate fig3.toml --out run --json
  tokendynamics check fig3.toml                       theorems only

The folder holds report.html, trajectory.zarr, certificates.json, manifest.json, a copy of the file, and the figures.
A system that ends before the horizon keeps its last state. The table of statuses reports it, and the exit code is
still 0. After Ctrl-C the states reached are saved with the status "interrupted", without figures and page, and the exit
code is 130.
"""


@click.command("simulate", epilog=_EPILOG)
@click.argument("spec", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--example", help="Print a documented example instead of running; 'list' names them.")
@click.option("--out", type=Folder(), help="Folder of the simulation.  [default: simulation-SPEC]")
@click.option("--threads", type=whole(1), help="CPU threads; overrides [solver] threads.")
@overwrite_option()
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
@says_what_is_kept
def simulate_command(
    spec: Path | None,
    example: str | None,
    out: Path | None,
    threads: int | None,
    overwrite: bool,
    as_json: bool,
    kept: Kept,
) -> None:
    """Simulate the flow that the TOML file SPEC describes.

    An unknown key, a wrong unit or a wrong shape is reported in one line with its line number in the file.
    """
    if example is not None and spec is None:
        _print_example(example)
        return
    if spec is None or example is not None:
        raise click.UsageError("expected either SPEC or --example NAME; --example list names the examples")
    check_writable(out)

    from tokendynamics.cli._output import Output, attempted, saved_in
    from tokendynamics.specification import InterruptedRun, read, run
    from tokendynamics.specification.simulation import check_folder

    output, folder = Output(as_json=as_json), out or Path(f"simulation-{spec.stem}")
    file = read(spec)
    check_folder(file, folder, overwrite=overwrite, argument="--out")
    kept.results(folder)
    try:
        with output.progress() as progress:
            command = shlex.join(["tokendynamics", *sys.argv[1:]])
            simulation = run(file, threads=threads, progress=progress, command=command)
    except InterruptedRun as stopped:
        stopped.simulation.save(folder, overwrite=overwrite, argument="--out")
        _say_interrupted(stopped.simulation, folder)
        raise click.exceptions.Exit(130) from None
    undrawn = attempted(lambda: simulation.save(folder, overwrite=overwrite, argument="--out"))
    if as_json:
        _print_json(simulation, folder, saved_in(folder))
    else:
        _print_tables(simulation, folder, saved_in(folder))
    for name, why in simulation.undrawn.items():
        output.say(f"warning: figure {name!r} was not drawn: {why}")
    for warning in simulation.warnings:
        output.say(f"warning: {warning}")
    if undrawn:
        raise undrawn


def _print_example(name: str) -> None:
    from tokendynamics.specification.examples import example_names, example_text

    if name == "list":
        titles = {
            each: example_text(each).splitlines()[0].removeprefix("title = ").strip('"# ') for each in example_names()
        }
        width = max(map(len, titles))
        echo("\n".join(f"{each:<{width}}  {title}" for each, title in titles.items()))
    else:
        echo(example_text(name), nl=False)


def _say_interrupted(simulation: Simulation, folder: Path) -> None:
    trajectory, statuses = simulation.trajectory, simulation.statuses
    stopped = trajectory.end_times[trajectory.status == "interrupted"]
    counted = ", ".join(f"{count} {status}" for status, count in statuses.items())
    earliest = f", the first at t = {stopped.min():g} of {trajectory.times[-1]:g}" if stopped.size else ""
    systems = plural(statuses.total(), "system")
    where = folder / "trajectory.zarr"
    echo(f"interrupted: {systems}, {counted}{earliest}; the states reached are in {where}", err=True)


def _print_json(simulation: Simulation, folder: Path, paths: tuple[Path, ...]) -> None:
    from tokendynamics.provenance.manifest import plain

    summary = {
        "folder": str(folder),
        "files": [path.name for path in paths],
        "certificates": simulation.certificates,
        "manifest": simulation.manifest,
    }
    echo_json(plain(summary))


def _print_tables(simulation: Simulation, folder: Path, paths: tuple[Path, ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from tokendynamics.cli._terminal import Console

    console, trajectory = Console(highlight=False), simulation.trajectory
    ends, statuses = trajectory.end_times.reshape(-1), trajectory.status.reshape(-1)
    table = Table(box=SIMPLE_HEAD, title=f"Engine {trajectory.engine}", title_justify="left")
    for column in ("status", "systems", "earliest end", "latest end"):
        table.add_column(column, justify="left" if column == "status" else "right")
    for status, count in simulation.statuses.items():
        chosen = ends[statuses == status]
        table.add_row(status, str(count), f"{chosen.min():g}", f"{chosen.max():g}")
    console.print(table)
    table = Table(box=SIMPLE_HEAD, title="Certificates", title_justify="left")
    for column in ("statement", "outcome", "margin", "tolerance", "result"):
        table.add_column(
            column, justify="right" if column in ("margin", "tolerance") else "left", no_wrap=column == "statement"
        )
    for certificate in simulation.certificates or ():
        numbers = f"{certificate.margin:.3g}", f"{certificate.tolerance:.3g}"
        table.add_row(certificate.statement, certificate.outcome, *numbers, Text(certificate.text))
        for part in certificate.conditions if len(certificate.conditions) > 1 else ():
            *cells, text = _condition_row(part)
            table.add_row("", *cells, Text(text))
    console.print(
        table if simulation.certificates else "No statement of the theory applies, so nothing is certified.\n"
    )
    console.print(Text(f"{folder}: {', '.join(path.name for path in paths)}"))


def _condition_row(part: Condition) -> tuple[str, str, str, str]:
    """Return the worst outcome of a condition, with its margin and the systems that have it."""
    from tokendynamics.theorems.result import counted

    outcome = next(word for word in ("fails", "undecided", "holds") if (part.outcome == word).any())
    chosen = part.outcome == outcome
    share = f" ({counted(chosen)})" if chosen.size > 1 else ""
    margin = float(part.margin[chosen].min())
    return f"· {outcome}", f"{margin:.3g}", f"{part.tolerance:.3g}", f"{part.text}{share}"
