"""``tokendynamics study``: train the arms of a file with paired seeds, and compare them with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from tokendynamics.cli._interrupted import NOTHING, interruptible
from tokendynamics.cli._options import OutFolder, Running, SpecFile, check_writable, file_to_run
from tokendynamics.cli._signature import command
from tokendynamics.cli._terminal import Console, command_line, echo_json, table


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
    path = file_to_run(spec, example, "study")
    if path is None:
        return
    check_writable(out)
    store = out or Path(f"study-{path.stem}")
    kept = f"finished parts are in {store}; continue with --resume"
    with interruptible(lambda: kept if (store / "study.json").is_file() else NOTHING):
        _run(path, store, running)


def _run(spec: Path, store: Path, how: Running) -> None:
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
