"""Write the results of a circuits command, data, manifest and page, completely or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from tokendynamics.cli._interrupted import PAGE
from tokendynamics.cli._options import check_writable
from tokendynamics.cli._signature import Json, Option
from tokendynamics.cli._terminal import command_line, echo_json
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import PageError
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.whole import check_free, whole_folder

if TYPE_CHECKING:
    from tokendynamics.circuits import OneLayerTransformer
    from tokendynamics.cli._output import Output
    from tokendynamics.report.circuits.page import CircuitsReport


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What happens with the results.

    Attributes:
        overwrite: Also replace files that no earlier run of this command wrote.
        as_json: Print the results as JSON on standard output.
    """

    overwrite: Annotated[bool, Option(is_eager=True)] = False  # before --out, which needs its value
    as_json: Json = False


def out(*entries: str) -> Option:
    """Return how --out is read: a folder is refused at once if another file is in the way.

    Args:
        entries: Names of the data files; the page and the manifest are added.
    """

    def checked(context: click.Context, _: click.Parameter, value: str | None) -> Path | None:
        if value is None:
            return None
        if not value:
            raise ArgumentValueError("--out", "the name of a folder", "an empty one", "'.' is the current one")
        folder, command = Path(value), context.command_path
        check_writable(folder)
        # Refuse a folder with learned models that have no manifest yet: their command continues there.
        learning = "tokendynamics circuits learn"
        run_files = (*folder.glob("seed-*/record.json"), *folder.glob("seed-*/progress.pt"))
        if run_files and command != learning:
            wanted = f"a folder without results of other commands than {command}"
            raise ArgumentValueError("--out", wanted, f"{folder} with results of {learning}", "choose another folder")
        check_free(folder, (*entries, PAGE), command, overwrite=context.params["overwrite"], argument="--out")
        return folder

    return Option(type=click.Path(file_okay=False), callback=checked)


def manifest_of(parameters: Mapping[str, Any], *, seed: int | None, started: datetime) -> dict[str, Any]:
    """Return the manifest of this call, with the versions of the imported packages."""
    import torch

    from tokendynamics.provenance.manifest import manifest

    record = manifest(command_line(), dict(parameters), seed=seed, started=started, threads=torch.get_num_threads())
    used = {name: version for name, version in record["versions"].items() if name in ("python", *sys.modules)}
    return record | {"versions": used}


def deliver(
    folder: Path | None,
    summary: tuple[str, Mapping[str, Any]],
    manifest: Mapping[str, Any],
    page: Callable[[tuple[str, ...]], CircuitsReport],
    output: Output,
    show: Callable[[tuple[str, ...]], None],
    *,
    arrays: tuple[str, Mapping[str, Any]] | None = None,
    shared: bool = False,
) -> None:
    """Write the data, then the page, each completely or not at all, see `whole_folder`; and print the results.

    `summary` and `arrays` are file name and content of the JSON and the NPZ, `page` makes the page from the names of
    the data files, `show` prints the results and the names of all files, and a folder is `shared` if it holds other
    results, such as learned models, that other processes may be writing. Files of an earlier call are replaced and
    named.

    Raises:
        PageError: There is no page; the results are printed all the same.
    """
    from tokendynamics.provenance.manifest import plain

    files: tuple[str, ...] = ()
    undrawn: PageError | None = None
    if folder is not None:
        files, undrawn = _written(folder, summary, manifest, page, output, arrays, shared)
    if output.as_json:
        echo_json(plain({**summary[1], "folder": folder and str(folder), "files": files, "manifest": manifest}))
    else:
        show(files)
    if undrawn:
        raise undrawn


def _written(
    folder: Path,
    summary: tuple[str, Mapping[str, Any]],
    manifest: Mapping[str, Any],
    page: Callable[[tuple[str, ...]], CircuitsReport],
    output: Output,
    arrays: tuple[str, Mapping[str, Any]] | None,
    shared: bool,
) -> tuple[tuple[str, ...], PageError | None]:
    """Return the names of the files, the page last; and the error if there is no page."""
    import numpy as np

    from tokendynamics.cli._output import attempted
    from tokendynamics.provenance.manifest import write_json
    from tokendynamics.report import write

    names = (*([arrays[0]] if arrays else []), summary[0], MANIFEST)
    replaced = [name for name in (*names, PAGE) if (folder / name).exists()]
    context = click.get_current_context()
    overwrite, command = context.params["overwrite"], context.command_path
    put = partial(whole_folder, folder, manifest, command, overwrite=overwrite, shared=shared, argument="--out")
    with put() as made:
        if arrays is not None:
            values: dict[str, Any] = {name: np.asarray(value) for name, value in arrays[1].items()}
            np.savez(made / arrays[0], **values)
        write_json(made / summary[0], summary[1])
    if replaced:
        output.say(f"replaced in {folder}: {', '.join(replaced)}")

    def draw() -> None:
        report = page(names)
        with put(keep=True) as made:
            write(report, made / PAGE)

    undrawn = attempted(draw)
    return (names if undrawn else (*names, PAGE)), undrawn


def matrices_of(model: OneLayerTransformer) -> dict[str, Any]:
    """Return the weights of a transformer by name, as arrays."""
    weights = {"q_true": model.task.q_true, "law": model.task.law}
    weights |= {name: getattr(model, name) for name in ("qk", "ov", "B", "bias", "C")}
    if model.norm is not None:
        weights |= {"norm_gain": model.norm.gain, "norm_shift": model.norm.shift}
    return {name: value.detach().numpy() for name, value in weights.items()} | {"offset": model.offset}
