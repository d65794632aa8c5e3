"""``tokendynamics sweep`` and ``study``: run the systems or the trainings of a design, and report their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.text import Text

from tokendynamics.cli._interrupted import NOTHING, interruptible
from tokendynamics.cli._options import OutFolder, Running, SpecFile, check_writable, file_to_run
from tokendynamics.cli._signature import command
from tokendynamics.cli._terminal import Console, command_line, echo_json, table


@command("sweep")
def sweep_command(
    spec: SpecFile | None = None, *, example: str | None = None, out: OutFolder | None = None, running: Running
) -> None:
    """Simulate the many systems of a sweep.

    SPEC is a TOML file as for simulate, with a table [sweep]. An axis that the specification does not have is reported
    in one line with its line number in the file.

    Options:
        example: Print a documented example instead of running; 'list' names them.
        out: Folder of the Zarr store.  [default: sweep-SPEC.zarr]
    """
    _run("sweep", (".zarr", "zarr.json"), _sweep, file_to_run(spec, example, "sweep"), out, running)


@command("study")
def study_command(
    spec: SpecFile | None = None, *, example: str | None = None, out: OutFolder | None = None, running: Running
) -> None:
    """Train the runs of a study, and compare them seed by seed.

    SPEC is a TOML file that describes the study. A failed run is named, and its pair is left out. An error in the file
    is reported in one line with its line number.

    Options:
        example: Print a documented example instead of running; 'list' names them.
        out: Folder of the runs.  [default: study-SPEC]
    """
    _run("study", ("", "study.json"), _study, file_to_run(spec, example, "study"), out, running)


def _run(
    kind: str,
    of_store: tuple[str, str],
    work: Callable[[Path, Path, Running], None],
    spec: Path | None,
    out: Path | None,
    running: Running,
) -> None:
    """Run a design, and say what is kept where it is interrupted; nothing runs where an example was printed.

    Args:
        kind: Name of the command.
        of_store: How the name of a store ends, and the file that is in it from its beginning.
        work: Runs a file into a store.
        spec: The file.
        out: The store; None for one beside the file.
        running: How.
    """
    if spec is None:
        return
    check_writable(out)
    ending, first = of_store
    store = out or Path(f"{kind}-{spec.stem}{ending}")
    kept = f"finished parts are in {store}; continue with --resume"
    with interruptible(lambda: kept if (store / first).is_file() else NOTHING):
        work(spec, store, running)


def _sweep(spec: Path, store: Path, how: Running) -> None:
    from tokendynamics.cli._output import Output, attempted, saved_in
    from tokendynamics.sweeps import read_plan, sweep
    from tokendynamics.sweeps.systems.results import check_results, described, totals, tried_again, write_results
    from tokendynamics.words import number

    output = Output(as_json=how.as_json)
    folder = store.with_name(f"{store.name.removesuffix('.zarr')}-report")
    plan = read_plan(spec)
    check_results(folder, overwrite=how.overwrite)
    output.say(described(plan))
    with output.progress() as progress:
        options: dict[str, Any] = {"resume": how.resume, "progress": progress, "command": command_line()}
        dataset = sweep(plan, store, how.scheduler, how.workers, **options)
    undrawn = attempted(lambda: write_results(dataset, store, folder, title=plan.name, overwrite=how.overwrite))
    if how.as_json:
        shares = {name: totals(dataset, name) for name in ("outcome", "status") if name in dataset}
        echo_json({"store": str(store), "folder": str(folder), **shares})
    else:
        console = Console(highlight=False)
        for variable in ("outcome", "status"):
            if variable not in dataset:
                continue
            shown = table(variable, "systems", "share", "95 % interval", left=(variable,))
            for row in totals(dataset, variable):
                interval = f"{number(row['low'], 4)}–{number(row['high'], 4)}"
                shown.add_row(str(row["word"]), f"{row['count']:,}", number(row["fraction"], 4), interval)
            console.print(shown)
        where = f"{store}\n{folder}: {', '.join(path.name for path in saved_in(folder))}"
        console.print(Text(f"{tried_again(dataset)}\n{where}"))
    if undrawn:
        raise undrawn


def _study(spec: Path, store: Path, how: Running) -> None:
    from tokendynamics.cli._output import Output, attempted, saved_in
    from tokendynamics.sweeps.study import read_plan, study
    from tokendynamics.sweeps.study.result import check_results
    from tokendynamics.sweeps.study.words import about_plan

    output, folder = Output(as_json=how.as_json), store.with_name(f"{store.name}-report")
    plan = read_plan(spec)
    check_results(folder, overwrite=how.overwrite)
    output.say(about_plan(plan))
    with output.progress() as progress:
        options: dict[str, Any] = {"resume": how.resume, "progress": progress, "command": command_line()}
        result = study(plan, store, how.scheduler, how.workers, **options)
    undrawn = attempted(lambda: result.save(folder, overwrite=how.overwrite))
    if how.as_json:
        echo_json({**result.record, "store": str(store), "folder": str(folder)})
    else:
        console, (columns, *rows) = Console(highlight=False), result.table
        shown = table(*columns, left=("arm", "verdict"))
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
        console.print(Text("\n".join(result.sentences)), soft_wrap=False)
        files = ", ".join(path.name for path in saved_in(folder))
        console.print(Text(f"\n{store}\n{folder}: {files}"))
    if undrawn:
        raise undrawn
