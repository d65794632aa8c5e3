"""``tokendynamics explore``: write a page on which tokens move under attention."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from tokendynamics.cli._interrupted import NOTHING, interruptible, stamp
from tokendynamics.cli._signature import Option, command
from tokendynamics.cli._terminal import echo

if TYPE_CHECKING:
    from tokendynamics.provenance.progress import Progress


_RUN, _DIAGNOSIS = "trajectory.zarr", "diagnosis.json"
"""Names of the trajectory in a folder of ``tokendynamics simulate``, and of the summary in one of ``diagnose``."""


@command("explore")
def explore_command(
    subject: str | None = None,
    *,
    prompts: Annotated[tuple[str, ...], Option("--prompt")] = (),
    out: Annotated[Path, Option(type=click.Path(dir_okay=False, path_type=Path))] = Path("explorer.html"),
    open_page: Annotated[bool, Option("--open")] = False,
    overwrite: bool = False,
) -> None:
    """Write a page on which tokens move under attention.

    What moves them can be changed on the page. SUBJECT is a TOML file for simulate, a folder that simulate or diagnose
    wrote, a saved trajectory, or a model as for diagnose. Without it the page has five presets. The page is one file;
    it requests nothing.

    Options:
        prompts: A text for a model to read: the first three are followed. May be repeated.
        out: The file to write.
        open_page: Open the page in a browser.
        overwrite: Also replace a file that is no page of tokendynamics.
    """
    if not overwrite:
        _check_replaces_a_page(out)
    from tokendynamics.cli._output import Output
    from tokendynamics.report import explore

    former = stamp(out)
    with interruptible(lambda: NOTHING if stamp(out) == former else f"{out} is complete"):
        with Output(as_json=False).progress() as progress:
            path = explore(
                out, None if subject is None else _read(subject, progress), list(prompts) or None, progress=progress
            )
        echo(f"{path}: open it in a browser")
        if open_page:
            webbrowser.open(path.resolve().as_uri())


def _check_replaces_a_page(out: Path) -> None:
    """Refuse a file that is no page of this package; what is no file is refused where it is written."""
    if not out.is_file():
        return
    from tokendynamics.numerics import ArgumentValueError

    head = b""
    with suppress(OSError), out.open("rb") as file:
        head = file.read(_HEAD)
    if b'<meta name="generator" content="tokendynamics">' not in head:
        advice = "choose another name, or add --overwrite"
        raise ArgumentValueError("--out", "a new file or a page of tokendynamics", f"{out}; {advice}")


_HEAD = 4096
"""Bytes within which a page names what made it."""


def _read(subject: str, progress: Progress) -> Any:
    """Return a trajectory, a diagnosis, the checked file of a simulation, or a network."""
    from tokendynamics.diagnosis import Diagnosis
    from tokendynamics.dynamics import Trajectory
    from tokendynamics.pretrained import load
    from tokendynamics.specification import read

    path = Path(subject)
    if path.suffix == ".toml":
        return read(path)
    if (path / _DIAGNOSIS).is_file():
        return Diagnosis.open(path)
    if (path / _RUN).is_dir():
        return Trajectory.open(path / _RUN)
    return Trajectory.open(path) if path.suffix == ".zarr" else load(subject, progress=progress)
