"""``tokendynamics sweep``: run the systems of a file's design, and report their outcomes."""

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
    import xarray as xr

_EPILOG = """
\b
Examples:
  tokendynamics sweep --example list                  names of examples
  tokendynamics sweep --example outcomes > outcomes.toml
  tokendynamics sweep outcomes.toml                   writes sweep-outcomes.zarr and sweep-outcomes-report
  tokendynamics sweep outcomes.toml --resume          continues after a stop
  tokendynamics sweep outcomes.toml --scheduler tcp://10.0.0.1:8786

The folder sweep-SPEC-report holds report.html, the phase diagram (PNG, SVG) and shares.csv.
Results depend only on the file, to the last bit: not on the workers, nor on when and how often the sweep was stopped.
"""


@click.command("sweep", epilog=_EPILOG)
@click.argument("spec", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--example", help="Print a documented example instead of running; 'list' names them.")
@click.option("--out", type=Folder(), help="Folder of the Zarr store.  [default: sweep-SPEC.zarr]")
@click.option("--workers", type=whole(1, 1024), help="Processes on this machine.  [default: one for each processor]")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Address of a scheduler of dask.distributed, such as tcp://10.0.0.1:8786."
)
@click.option("--resume", is_flag=True, help="Continue the sweep in the store.")
@overwrite_option()
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
def sweep_command(
    spec: Path | None,
    example: str | None,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run the sweep that the TOML file SPEC describes: a specification with a table [sweep].

    An axis that the specification does not have is reported in one line with its line number in the file.
    """
    if example is not None and spec is None:
        _print_example(example)
        return
    if spec is None or example is not None:
        raise click.UsageError("expected either SPEC or --example NAME; --example list names the examples")
    if workers is not None and scheduler is not None:
        raise click.UsageError("expected either --workers or --scheduler, which has its own workers; got both")
    check_writable(out)

    store = out or Path(f"sweep-{spec.stem}.zarr")
    with interruptible(lambda: _kept(store)):
        _run(spec, store, scheduler, workers, resume=resume, overwrite=overwrite, as_json=as_json)


def _run(
    spec: Path, store: Path, scheduler: str | None, workers: int | None, *, resume: bool, overwrite: bool, as_json: bool
) -> None:
    from tokendynamics.cli._output import Output, attempted, saved_in
    from tokendynamics.sweeps import read_plan, sweep
    from tokendynamics.sweeps.results import check_results, write_results
    from tokendynamics.sweeps.words import described

    output = Output(as_json=as_json)
    folder = store.with_name(f"{store.name.removesuffix('.zarr')}-report")
    plan = read_plan(spec)
    check_results(folder, overwrite=overwrite)
    output.say(described(plan))
    command = shlex.join(["tokendynamics", *sys.argv[1:]])
    with output.progress() as progress:
        dataset = sweep(plan, store, scheduler, workers, resume=resume, progress=progress, command=command)
    undrawn = attempted(lambda: write_results(dataset, store, folder, title=plan.name, overwrite=overwrite))
    if as_json:
        echo_json(_summary(dataset, store, folder))
    else:
        _print(dataset, f"{store}\n{folder}: {', '.join(path.name for path in saved_in(folder))}")
    if undrawn:
        raise undrawn


def _kept(store: Path) -> str:
    return f"finished parts are in {store}; continue with --resume" if store.is_dir() else NOTHING


def _print_example(name: str) -> None:
    from tokendynamics.sweeps.examples import example_names, example_text

    if name == "list":
        titles = {each: example_text(each).splitlines()[0].strip("# ") for each in example_names()}
        width = max(map(len, titles))
        echo("\n".join(f"{each:<{width}}  {title}" for each, title in titles.items()))
    else:
        echo(example_text(name), nl=False)


def _summary(dataset: xr.Dataset, store: Path, folder: Path) -> dict[str, object]:
    from tokendynamics.sweeps.words import counted

    return {
        "store": str(store),
        "folder": str(folder),
        **{each: counted(dataset, each) for each in ("outcome", "status") if each in dataset},
    }


def _print(dataset: xr.Dataset, where: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from tokendynamics.cli._terminal import Console
    from tokendynamics.sweeps.words import counted, tried_again

    console = Console(highlight=False)
    for variable in ("outcome", "status"):
        if variable not in dataset:
            continue
        table = Table(box=SIMPLE_HEAD)
        for column in (variable, "systems", "share", "95 % interval"):
            table.add_column(column, justify="left" if column == variable else "right")
        for row in counted(dataset, variable):
            interval = f"{row['low']:.4g} … {row['high']:.4g}"
            table.add_row(str(row["word"]), f"{row['count']:,}", f"{row['fraction']:.4g}", interval)
        console.print(table)
    console.print(Text(f"{tried_again(dataset)}\n{where}"))
