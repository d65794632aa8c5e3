"""Writes the results of a circuits command: data, manifest and page, whole or not at all."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli.target import check_writable
from tokendynamics.numerics.errors import ArgumentValueError, expected

if TYPE_CHECKING:
    from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
    from tokendynamics.cli.output import Output
    from tokendynamics.report.circuits_page import CircuitsReport

PAGE, MANIFEST = "report.html", "manifest.json"
_WRITERS = (["circuits"], ["simulate"], ["diagnose"])


def out_option(help: str, *, required: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --out, refused at once where nothing can be written or another command's results are."""

    def checked(context: click.Context, _: click.Parameter, value: str | None) -> Path | None:
        if value is None:
            return None
        if not value:
            raise ArgumentValueError(
                expected("--out", "the name of a folder", "an empty one", "'.' is the current one")
            )
        folder = Path(value)
        check_writable(folder)
        _check_own(folder, context.command_path)
        return folder

    return click.option("--out", type=click.Path(file_okay=False), required=required, callback=checked, help=help)


def _check_own(folder: Path, command: str) -> None:
    """Refuse a folder whose manifest another command wrote: its page and manifest would be replaced."""
    former = _former(folder)
    if former is not None and former != command:
        wanted = f"a folder without the results of another command than {command}"
        raise ArgumentValueError(expected("--out", wanted, f"{folder} with those of {former}", "choose another folder"))


def _former(folder: Path) -> str | None:
    """The command whose results are in a folder; None if there are none, or nobody's."""
    if any(folder.glob("seed-*/record.json")) or any(folder.glob("seed-*/progress.pt")):
        # One that was interrupted has no manifest yet.
        return "tokendynamics circuits learn"
    try:
        written = shlex.split(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    words = [word for word in written if not word.startswith("-")]
    return " ".join(words[: 3 if words[1] == "circuits" else 2]) if words[1:2] in _WRITERS else None


def record_of(parameters: Mapping[str, Any], *, seed: int | None, started: datetime) -> dict[str, Any]:
    """The manifest of this call, with the versions of what was used."""
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
) -> tuple[str, ...]:
    """Write everything under temporary names in `folder` and rename it when complete.

    Args:
        folder: Made if it does not exist. Files of an earlier call are replaced, and that is said.
        summary: File name and content of the JSON.
        manifest: Goes to a file of its own.
        page: Makes the page from the names of the data files.
        output: Says what was replaced.
        arrays: File name and content of the NPZ.

    Returns:
        Names of what was written, the page last.
    """
    import numpy as np

    from tokendynamics.report.circuits_page import write_circuits

    named = [arrays[0]] if arrays is not None else []
    names = (*named, summary[0], MANIFEST)
    # Made first: figures that cannot be drawn leave nothing behind.
    report = page(names)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as scratch:
        made = Path(scratch)
        if arrays is not None:
            values: dict[str, Any] = {name: np.asarray(value) for name, value in arrays[1].items()}
            np.savez(made / arrays[0], **values)
        (made / summary[0]).write_text(as_json(summary[1], indent=2) + "\n", encoding="utf-8")
        (made / MANIFEST).write_text(as_json(manifest, indent=2) + "\n", encoding="utf-8")
        write_circuits(report, made / PAGE)
        replaced = [name for name in (*names, PAGE) if (folder / name).exists()]
        for name in (*names, PAGE):
            (made / name).replace(folder / name)
    if replaced:
        output.say(f"replaced in {folder}: {', '.join(replaced)}")
    return (*names, PAGE)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON text; NaN and infinity are null."""
    from tokendynamics.circuits.evidence.instrument import plain

    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def matrices_of(model: OneLayerTransformer) -> dict[str, Any]:
    """The weights of a transformer by name, as arrays."""
    weights = {
        "q_true": model.task.q_true,
        "law": model.task.law,
        "key_query": model.key_query,
        "ov": model.ov,
        "B": model.B,
        "bias": model.bias,
        "C": model.C,
    }
    if model.norm is not None:
        weights |= {"norm_gain": model.norm.gain, "norm_shift": model.norm.shift}
    return {name: value.detach().numpy() for name, value in weights.items()} | {"offset": model.offset}
