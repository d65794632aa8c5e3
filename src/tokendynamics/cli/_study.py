"""``tokendynamics study``: train the arms of a file with paired seeds, and compare them with intervals."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokendynamics.cli._interrupted import NOTHING, interruptible
from tokendynamics.cli._options import Folder, check_writable, overwrite_option, whole
from tokendynamics.cli._terminal import echo, echo_json

if TYPE_CHECKING:
    from tokendynamics.sweeps.study import StudyResult

_EPILOG = """
\b
Examples:
  tokendynamics study --example list                  names of examples
  tokendynamics study --example table1 > table1.toml
  tokendynamics study table1.toml                     writes study-table1 and study-table1-report
  tokendynamics study table1.toml --resume            continues after a stop, and repeats failed runs
  tokendynamics study table1.toml --scheduler tcp://10.0.0.1:8786 --out /shared/table1

The folder study-SPEC-report holds report.html, study.json, the tables (CSV) and the dataset (Zarr).
With a scheduler on other machines, --out must be a folder that all its workers share.
"""


@click.command("study", epilog=_EPILOG)
@click.argument("spec", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--example", help="Print a documented example instead of running; 'list' names them.")
@click.option("--out", type=Folder(), help="Folder of the runs.  [default: study-SPEC]")
@click.option("--workers", type=whole(1, 1024), help="Number of simultaneous runs.  [default: one for each processor]")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Address of a scheduler of dask.distributed, such as tcp://10.0.0.1:8786."
)
@click.option("--resume", is_flag=True, help="Continue the study in the folder.")
@overwrite_option()
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
def study_command(
    spec: Path | None,
    example: str | None,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train every run of the study that the TOML file SPEC describes, and compare its arms seed by seed.

    A failed run is named, and its pair is left out. An error in the file is reported in one line with its line number.
    """
    if example is not None and spec is None:
        _print_example(example)
        return
    if spec is None or example is not None:
        raise click.UsageError("expected either SPEC or --example NAME; --example list names the examples")
    if workers is not None and scheduler is not None:
        raise click.UsageError("expected either --workers or --scheduler, which has its own workers; got both")
    check_writable(out)

    store = out or Path(f"study-{spec.stem}")
    with interruptible(lambda: _kept(store)):
        _run(spec, store, scheduler, workers, resume=resume, overwrite=overwrite, as_json=as_json)


def _run(
    spec: Path, store: Path, scheduler: str | None, workers: int | None, *, resume: bool, overwrite: bool, as_json: bool
) -> None:
    from tokendynamics.cli._output import Output, attempted, saved_in
    from tokendynamics.sweeps.study import read_plan, study
    from tokendynamics.sweeps.study.files import check_results
    from tokendynamics.sweeps.study.words import about_plan

    output, folder = Output(as_json=as_json), store.with_name(f"{store.name}-report")
    plan = read_plan(spec)
    check_results(folder, overwrite=overwrite)
    output.say(about_plan(plan))
    command = shlex.join(["tokendynamics", *sys.argv[1:]])
    with output.progress() as progress:
        found = study(plan, store, scheduler, workers, resume=resume, progress=progress, command=command)
    undrawn = attempted(lambda: found.save(folder, overwrite=overwrite))
    if as_json:
        echo_json({**found.record, "store": str(store), "folder": str(folder)})
    else:
        _print(found, f"{store}\n{folder}: {', '.join(path.name for path in saved_in(folder))}")
    if undrawn:
        raise undrawn


def _kept(store: Path) -> str:
    return f"finished parts are in {store}; continue with --resume" if (store / "study.json").is_file() else NOTHING


def _print_example(name: str) -> None:
    from tokendynamics.sweeps.study.examples import example_names, example_text

    if name == "list":
        titles = {each: example_text(each).splitlines()[0].strip("# ") for each in example_names()}
        width = max(map(len, titles))
        echo("\n".join(f"{each:<{width}}  {title}" for each, title in titles.items()))
    else:
        echo(example_text(name), nl=False)


def _print(found: StudyResult, where: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from tokendynamics.cli._terminal import Console

    console, (columns, *rows), shown = Console(highlight=False), found.table, Table(box=SIMPLE_HEAD)
    for column in columns:
        shown.add_column(column, justify="left" if column in ("arm", "verdict") else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    console.print(Text("\n".join(found.sentences)), soft_wrap=False)
    console.print(Text(f"\n{where}"))
