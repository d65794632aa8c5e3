"""``tokendynamics simulate``: run the simulation of a file and write trajectory, certificates, figures and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from tokendynamics.cli._interrupted import Kept, interrupted_code, says_what_is_kept
from tokendynamics.cli._options import OutFolder, SpecFile, check_writable, file_to_run
from tokendynamics.cli._signature import Json, Positive, command
from tokendynamics.cli._terminal import Console, command_line, echo, echo_json, table
from tokendynamics.words import number, plural

if TYPE_CHECKING:
    from tokendynamics.specification import Simulation


@command("simulate")
@says_what_is_kept
def simulate_command(
    spec: SpecFile | None = None,
    *,
    example: str | None = None,
    out: OutFolder | None = None,
    threads: Positive | None = None,
    overwrite: bool = False,
    as_json: Json = False,
    kept: Kept,
) -> None:
    """Simulate the flow that a TOML file describes.

    An unknown key, a wrong unit or a wrong shape is reported in one line with its line number in the file.

    Options:
        example: Print a documented example instead of running; 'list' names them.
        out: Folder of the simulation.  [default: simulation-SPEC]
        threads: CPU threads; overrides [solver] threads.
        overwrite: Also replace files that no earlier run of this command wrote.
        as_json: Print the summary as JSON on standard output.
    """
    path = file_to_run(spec, example, "simulation")
    if path is None:
        return
    check_writable(out)

    from tokendynamics.cli._output import Output, attempted, saved_in
    from tokendynamics.provenance.manifest import plain
    from tokendynamics.specification import InterruptedRun, Simulation, read, run

    output, folder = Output(as_json=as_json), out or Path(f"simulation-{path.stem}")
    file = read(path)
    Simulation.check_folder(file, folder, overwrite=overwrite, argument="--out")
    kept.results(folder)
    try:
        with output.progress() as progress:
            simulation = run(file, threads=threads, progress=progress, command=command_line())
    except InterruptedRun as stopped:
        stopped.simulation.save(folder, overwrite=overwrite, argument="--out")
        _say_interrupted(stopped.simulation, folder)
        raise click.exceptions.Exit(interrupted_code()) from None
    undrawn = attempted(lambda: simulation.save(folder, overwrite=overwrite, argument="--out"))
    if as_json:
        written = {"folder": str(folder), "files": [path.name for path in saved_in(folder)]}
        echo_json(plain(written | {"certificates": simulation.certificates, "manifest": simulation.manifest}))
    else:
        _print_tables(simulation, folder, saved_in(folder))
    for name, why in simulation.undrawn.items():
        output.say(f"warning: figure {name!r} was not drawn: {why}")
    for warning in simulation.warnings:
        output.say(f"warning: {warning}")
    if undrawn:
        raise undrawn


def _say_interrupted(simulation: Simulation, folder: Path) -> None:
    trajectory, statuses = simulation.trajectory, simulation.statuses
    stopped = trajectory.end_times[trajectory.status == "interrupted"]
    counted = ", ".join(f"{count} {status}" for status, count in statuses.items())
    earliest = (
        f", the first at t = {number(stopped.min(), 6)} of {number(trajectory.times[-1], 6)}" if stopped.size else ""
    )
    systems = plural(statuses.total(), "system")
    where = folder / "trajectory.zarr"
    echo(f"interrupted: {systems}, {counted}{earliest}; the states reached are in {where}", err=True)


def _print_tables(simulation: Simulation, folder: Path, paths: tuple[Path, ...]) -> None:
    from tokendynamics.theorems.result import counted

    console, trajectory = Console(highlight=False), simulation.trajectory
    ends, statuses = trajectory.end_times.reshape(-1), trajectory.status.reshape(-1)
    columns = ("status", "systems", "earliest end", "latest end")
    shown = table(*columns, left=("status",), title=f"Engine {trajectory.engine}")
    for status, count in simulation.statuses.items():
        chosen = ends[statuses == status]
        shown.add_row(status, str(count), number(chosen.min(), 6), number(chosen.max(), 6))
    console.print(shown)
    columns = ("statement", "outcome", "margin", "tolerance", "result")
    shown = table(*columns, left=("statement", "outcome", "result"), unbroken=("statement",), title="Certificates")
    for certificate in simulation.certificates or ():
        numbers = number(certificate.margin), number(certificate.tolerance)
        shown.add_row(certificate.statement, certificate.outcome, *numbers, Text(certificate.text))
        for part in certificate.conditions if len(certificate.conditions) > 1 else ():
            outcome = next(word for word in ("fails", "undecided", "holds") if (part.outcome == word).any())
            having = part.outcome == outcome
            share = f" ({counted(having)})" if having.size > 1 else ""
            margin = float(part.margin[having].min())
            *cells, text = f"· {outcome}", number(margin), number(part.tolerance), f"{part.text}{share}"
            shown.add_row("", *cells, Text(text))
    why = "No statement of the theory applies"
    if trajectory.frame == "rescaled":
        why = "No statement about rescaled tokens applies"
    console.print(shown if simulation.certificates else f"{why}, so nothing is certified.\n")
    console.print(Text(f"{folder}: {', '.join(path.name for path in paths)}"))
