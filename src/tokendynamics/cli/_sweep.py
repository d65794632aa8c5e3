"""``tokendynamics sweep``: run the systems of a file's design, and report their outcomes."""

from __future__ import annotations

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
    path = file_to_run(spec, example, "sweep")
    if path is None:
        return
    check_writable(out)
    store = out or Path(f"sweep-{path.stem}.zarr")
    kept = f"finished parts are in {store}; continue with --resume"
    with interruptible(lambda: kept if (store / "zarr.json").is_file() else NOTHING):
        _run(path, store, running)


def _run(spec: Path, store: Path, how: Running) -> None:
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
