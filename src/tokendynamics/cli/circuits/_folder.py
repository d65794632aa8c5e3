"""Write the results of a circuits command, data, manifest and page, completely or not at all."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._interrupted import PAGE, Kept, interruptible
from tokendynamics.cli._options import check_writable, overwrite_option
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import PageError, expected
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.whole import check_free, whole_folder

if TYPE_CHECKING:
    from tokendynamics.circuits import OneLayerTransformer
    from tokendynamics.cli._output import Output
    from tokendynamics.report.circuits.page import CircuitsReport

_OVERWRITE = "tokendynamics.overwrite"


def out_option(
    help: str, entries: Sequence[str], *, required: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options --out and --overwrite, and say what is kept when the command is interrupted.

    A folder is refused at once if another file is in the way.

    Args:
        help: The help of --out.
        entries: Names of the data files; the page and the manifest are added.
        required: Whether --out must be given.
    """

    def checked(context: click.Context, _: click.Parameter, value: str | None) -> Path | None:
        if value is None:
            return None
        if not value:
            raise ArgumentValueError(
                expected("--out", "the name of a folder", "an empty one", "'.' is the current one")
            )
        folder, command = Path(value), context.command_path
        check_writable(folder)
        _check_no_runs(folder, command)
        check_free(folder, (*entries, PAGE), command, overwrite=_overwrite(context), argument="--out")
        return folder

    def remembered(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[_OVERWRITE] = value

    def both(command: Callable[..., Any]) -> Callable[..., Any]:
        # Eager: --out needs its value.
        allowing = overwrite_option(is_eager=True, expose_value=False, callback=remembered)
        out = click.option("--out", type=click.Path(file_okay=False), required=required, callback=checked, help=help)
        return out(allowing(_interruptible(command)))

    return both


def _interruptible(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def interruptible_command(**options: Any) -> Any:
        kept = Kept()
        kept.results(options["out"])
        with interruptible(kept):
            return command(**options)

    return interruptible_command


def _overwrite(context: click.Context) -> bool:
    return bool(context.meta.get(_OVERWRITE, False))


def _check_no_runs(folder: Path, command: str) -> None:
    """Refuse a folder with learned models that have no manifest yet: their command continues there."""
    learning = "tokendynamics circuits learn"
    found = (*folder.glob("seed-*/record.json"), *folder.glob("seed-*/progress.pt"))
    if found and command != learning:
        wanted = f"a folder without results of other commands than {command}"
        came = f"{folder} with results of {learning}"
        raise ArgumentValueError(expected("--out", wanted, came, "choose another folder"))


def manifest_of(parameters: Mapping[str, Any], *, seed: int | None, started: datetime) -> dict[str, Any]:
    """Return the manifest of this call, with the versions of the imported packages."""
    import torch

    from tokendynamics.provenance.manifest import manifest

    command = shlex.join(["tokendynamics", *sys.argv[1:]])
    record = manifest(command, dict(parameters), seed=seed, started=started, threads=torch.get_num_threads())
    used = {name: version for name, version in record["versions"].items() if name in ("python", *sys.modules)}
    return record | {"versions": used}


def write_results(
    folder: Path,
    summary: tuple[str, Mapping[str, Any]],
    manifest: Mapping[str, Any],
    page: Callable[[tuple[str, ...]], CircuitsReport],
    output: Output,
    *,
    arrays: tuple[str, Mapping[str, Any]] | None = None,
    shared: bool = False,
) -> tuple[tuple[str, ...], PageError | None]:
    """Write the data, then the page, each completely or not at all; see `whole_folder`.

    `summary` and `arrays` are file name and content of the JSON and the NPZ, `page` makes the page from the names of
    the data files, and a folder is `shared` if it holds other results, such as learned models, that other
    processes may be writing. Files of an earlier call are replaced and named.

    Returns:
        The names of the files, the page last; and the error if there is no page, to be raised after the results are
        printed.
    """
    import numpy as np

    from tokendynamics.cli._output import attempted
    from tokendynamics.report import write

    named = [arrays[0]] if arrays is not None else []
    names = (*named, summary[0], MANIFEST)
    replaced = [name for name in (*names, PAGE) if (folder / name).exists()]
    context = click.get_current_context()
    put = partial(
        whole_folder,
        folder,
        manifest,
        context.command_path,
        overwrite=_overwrite(context),
        shared=shared,
        argument="--out",
    )
    with put() as made:
        if arrays is not None:
            values: dict[str, Any] = {name: np.asarray(value) for name, value in arrays[1].items()}
            np.savez(made / arrays[0], **values)
        (made / summary[0]).write_text(as_json(summary[1], indent=2) + "\n", encoding="utf-8")
    if replaced:
        output.say(f"replaced in {folder}: {', '.join(replaced)}")

    def draw() -> None:
        report = page(names)
        with put(keep=True) as made:
            write(report, made / PAGE)

    undrawn = attempted(draw)
    return (names if undrawn else (*names, PAGE)), undrawn


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON text; NaN and infinity are null."""
    from tokendynamics.provenance.manifest import plain

    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def matrices_of(model: OneLayerTransformer) -> dict[str, Any]:
    """Return the weights of a transformer by name, as arrays."""
    weights = {
        "q_true": model.task.q_true,
        "law": model.task.law,
        "qk": model.qk,
        "ov": model.ov,
        "B": model.B,
        "bias": model.bias,
        "C": model.C,
    }
    if model.norm is not None:
        weights |= {"norm_gain": model.norm.gain, "norm_shift": model.norm.shift}
    return {name: value.detach().numpy() for name, value in weights.items()} | {"offset": model.offset}
