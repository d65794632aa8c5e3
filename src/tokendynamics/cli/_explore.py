"""``tokendynamics explore``: write a page on which tokens move under attention."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import click

from tokendynamics.cli._signature import Option, command
from tokendynamics.cli._terminal import echo

_EPILOG = """
\b
Examples:
  tokendynamics explore                           five presets, in explorer.html
  tokendynamics explore fig3.toml                 the flow of a file for simulate
  tokendynamics explore simulation-fig3 --open    a run that was saved
"""

Subject = Annotated[Path, Option(type=click.Path(exists=True, path_type=Path))]
_RUN = "trajectory.zarr"
"""Name of the trajectory in a folder of ``tokendynamics simulate``."""


@command("explore", _EPILOG)
def explore_command(
    subject: Subject | None = None,
    *,
    out: Annotated[Path, Option(type=click.Path(dir_okay=False, path_type=Path))] = Path("explorer.html"),
    open_page: Annotated[bool, Option("--open")] = False,
) -> None:
    """Write a page on which tokens move under attention, and what moves them can be changed.

    SUBJECT is a TOML file for simulate, a folder that simulate wrote, or a saved trajectory. Without it the page has
    five presets. The page is one file; it requests nothing.

    Options:
        out: The file to write.
        open_page: Open the page in a browser.
    """
    from tokendynamics.report import explore

    path = explore(out, None if subject is None else _read(subject))
    echo(f"{path}: open it in a browser")
    if open_page:
        webbrowser.open(path.resolve().as_uri())


def _read(path: Path) -> Any:
    """Return a trajectory, or the checked file of a simulation."""
    from tokendynamics.dynamics import Trajectory
    from tokendynamics.specification import read

    if path.suffix == ".toml":
        return read(path)
    return Trajectory.open(path / _RUN if (path / _RUN).is_dir() else path)
