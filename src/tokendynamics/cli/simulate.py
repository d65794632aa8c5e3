"""``tokendynamics simulate``: run what a file describes and write trajectory, figures and certificates."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli.numbers import whole
from tokendynamics.cli.target import Folder, check_writable, overwrite_option
from tokendynamics.cli.terminal import echo, json_line

if TYPE_CHECKING:
    from tokendynamics.cli.output import Output
    from tokendynamics.dynamics import Trajectory
    from tokendynamics.specification.build import Problem
    from tokendynamics.specification.read import SpecificationFile
    from tokendynamics.specification.saving import Results
    from tokendynamics.theorems import Condition

_EPILOG = """
\b
Examples:
  tokendynamics simulate --example list               files to start from
  tokendynamics simulate --example fig3 > fig3.toml   one of them
  tokendynamics simulate fig3.toml                    writes simulation-fig3
  tokendynamics simulate fig3.toml --out run --json
  tokendynamics check fig3.toml                       theorems, no integration

The folder holds trajectory.zarr, certificates.json, manifest.json, a copy of the file, and the figures. A system that
ends before the horizon keeps what it reached; the table of statuses says so, and the exit code is still 0. After
Ctrl-C what was reached is saved with the status "interrupted", and the exit code is 130.
"""


@click.command("simulate", epilog=_EPILOG)
@click.argument("spec", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--example", help="Print a documented example instead of running; 'list' names them.")
@click.option("--out", type=Folder(), help="Folder of the results.  [default: simulation-SPEC]")
@click.option("--threads", type=whole(1), help="CPU threads; wins over [solver] threads.")
@overwrite_option()
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
def simulate_command(
    spec: Path | None, example: str | None, out: Path | None, threads: int | None, overwrite: bool, as_json: bool
) -> None:
    """Simulate the flow that the TOML file SPEC describes.

    An unknown key, a wrong unit or a shape that does not fit is one line with its line number in the file.
    """
    if example is not None and spec is None:
        _print_example(example)
        return
    if spec is None or example is not None:
        raise click.UsageError("expected either SPEC or --example NAME; --example list names the examples")
    check_writable(out)

    from tokendynamics.cli.output import Output
    from tokendynamics.dynamics import Interrupted, simulate
    from tokendynamics.numerics.threads import limited_threads
    from tokendynamics.provenance.whole_folder import check_free
    from tokendynamics.specification.build import build
    from tokendynamics.specification.figures import chosen_figures
    from tokendynamics.specification.read import read_specification
    from tokendynamics.specification.saving import WRITER, Results, entries_of, save_simulation
    from tokendynamics.specification.theory import certified, checked

    output, started = Output(as_json=as_json), datetime.now(UTC)
    file = read_specification(spec)
    problem = build(file)
    names = chosen_figures(file, problem)
    folder = out or Path(f"simulation-{spec.stem}")
    check_free(folder, entries_of(names, file.tables.output), WRITER, overwrite=overwrite, argument="--out")
    with limited_threads(threads or file.tables.solver.threads) as in_force:
        checks = checked(file, problem)
        certificates, title = None, file.tables.title or spec.name
        try:
            with file.blaming(("solver",)), output.progress() as progress:
                trajectory = simulate(
                    problem.flow,
                    problem.start,
                    problem.times,
                    events=problem.events,
                    progress=lambda done, total, _: progress(done, total, f"Simulating {title}"),
                    **problem.options,
                )
            certificates = certified(trajectory, checks)
        except Interrupted as stopped:
            trajectory = stopped.trajectory
        drawn = {} if certificates is None else _draw(names, trajectory, problem, file, output)

    record = _manifest(file, trajectory, started, in_force)
    results = Results(trajectory, checks, certificates, record, drawn)
    paths = save_simulation(results, file, folder, overwrite=overwrite)
    if certificates is None:
        _say_interrupted(trajectory, folder)
        raise click.exceptions.Exit(130)
    if as_json:
        _print_json(results, folder, paths)
    else:
        _print_tables(results, folder, paths)
    _warn_of_early_ends(trajectory, output)


def _print_example(name: str) -> None:
    from tokendynamics.specification.examples import example_names, example_text

    if name == "list":
        titles = {
            each: example_text(each).splitlines()[0].removeprefix("title = ").strip('"# ') for each in example_names()
        }
        width = max(map(len, titles))
        click.echo("\n".join(f"{each:<{width}}  {title}" for each, title in titles.items()))
    else:
        click.echo(example_text(name), nl=False)


def _draw(
    names: list[Any], trajectory: Trajectory, problem: Problem, file: SpecificationFile, output: Output
) -> dict[str, Any]:
    """The figures of the run; one that its values do not allow is a warning, since the run itself is worth keeping."""
    from tokendynamics.numerics.errors import TokenDynamicsError
    from tokendynamics.specification.figures import draw
    from tokendynamics.specification.tables import SpacedTimes

    time = file.tables.time
    log_times = isinstance(time, SpacedTimes) and time.spacing == "log"
    drawn: dict[str, Any] = {}
    for name in names:
        try:
            system = file.tables.output.system
            drawn[name] = draw(name, trajectory, problem.flow, system=system, log_times=log_times)
        except TokenDynamicsError as error:
            output.say(f"warning: figure {name!r} was not drawn: {error}")
    return drawn


def _manifest(file: SpecificationFile, trajectory: Trajectory, started: datetime, threads: int) -> dict[str, Any]:
    from tokendynamics.provenance.manifest import manifest

    record = manifest(
        shlex.join(["tokendynamics", *sys.argv[1:]]),
        file.tables.model_dump(mode="json", exclude_unset=True),
        seed=getattr(file.tables.start, "seed", None),
        started=started,
        threads=threads,
    )
    # Nothing of a network runs here: what is installed and was not imported made none of the numbers.
    used = {name: version for name, version in record["versions"].items() if name in ("python", *sys.modules)}
    return record | {
        "versions": used,
        "engine": trajectory.engine,
        "counts": trajectory.counts,
        "status": dict(_statuses(trajectory)),
        "horizon": float(trajectory.times[-1]),
        "end_times": trajectory.end_times,
    }


def _statuses(trajectory: Trajectory) -> Counter[str]:
    return Counter(str(status) for status in trajectory.status.reshape(-1).tolist())


def _warn_of_early_ends(trajectory: Trajectory, output: Output) -> None:
    """The run's own warnings, and a line where systems did not arrive, at the horizon or by an event that means it."""
    for note in trajectory.notes:
        if note.startswith("warning: "):
            output.say(note)
    arrived = {"reached the horizon", "consensus", "equilibrium"}
    early = Counter({status: count for status, count in _statuses(trajectory).items() if status not in arrived})
    if early:
        what = ", ".join(f"{count} {status}" for status, count in early.items())
        last = float(trajectory.end_times.min())
        output.say(
            f"warning: not every system reached the horizon t = {trajectory.times[-1]:g}: {what}; "
            f"the earliest ended at t = {last:g}, and what was reached is kept"
        )


def _say_interrupted(trajectory: Trajectory, folder: Path) -> None:
    statuses = _statuses(trajectory)
    stopped = trajectory.end_times[trajectory.status == "interrupted"]
    counted = ", ".join(f"{count} {status}" for status, count in statuses.items())
    earliest = f", the first at t = {stopped.min():g} of {trajectory.times[-1]:g}" if stopped.size else ""
    systems = f"{statuses.total()} system{'s' * (statuses.total() > 1)}"
    where = folder / "trajectory.zarr"
    echo(f"interrupted: {systems}, {counted}{earliest}; what was reached is in {where}", err=True)


def _print_json(results: Results, folder: Path, paths: tuple[Path, ...]) -> None:
    from tokendynamics.provenance.plain import plain

    summary = {
        "folder": str(folder),
        "files": [path.name for path in paths],
        "certificates": results.certificates,
        "manifest": results.manifest,
    }
    click.echo(json_line(plain(summary)))


def _print_tables(results: Results, folder: Path, paths: tuple[Path, ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from tokendynamics.cli.console import Console

    console, trajectory = Console(highlight=False), results.trajectory
    ends, statuses = trajectory.end_times.reshape(-1), trajectory.status.reshape(-1)
    table = Table(box=SIMPLE_HEAD, title=f"Engine {trajectory.engine}", title_justify="left")
    for column in ("status", "systems", "earliest end", "latest end"):
        table.add_column(column, justify="left" if column == "status" else "right")
    for status, count in _statuses(trajectory).items():
        chosen = ends[statuses == status]
        table.add_row(status, str(count), f"{chosen.min():g}", f"{chosen.max():g}")
    console.print(table)
    table = Table(box=SIMPLE_HEAD, title="Certificates", title_justify="left")
    for column in ("statement", "outcome", "margin", "tolerance", "what was found"):
        table.add_column(
            column, justify="right" if column in ("margin", "tolerance") else "left", no_wrap=column == "statement"
        )
    for found in results.certificates or ():
        row = (found.statement, found.outcome, f"{found.margin:.3g}", f"{found.tolerance:.3g}", Text(found.text))
        table.add_row(*row)
        for part in found.conditions if len(found.conditions) > 1 else ():
            *numbers, text = _condition_row(part)
            table.add_row("", *numbers, Text(text))
    console.print(table if results.certificates else "No statement of the theory applies: nothing to certify.\n")
    console.print(Text(f"{folder}: {', '.join(path.name for path in paths)}"))


def _condition_row(part: Condition) -> tuple[str, str, str, str]:
    """One condition of a certificate: its worst outcome, and there the margin and the systems."""
    from tokendynamics.theorems.systems import counted

    outcome = next(word for word in ("fails", "undecided", "holds") if (part.outcome == word).any())
    chosen = part.outcome == outcome
    share = f" ({counted(chosen)})" if chosen.size > 1 else ""
    margin = float(part.margin[chosen].min())
    return f"· {outcome}", f"{margin:.3g}", f"{part.tolerance:.3g}", f"{part.text}{share}"
