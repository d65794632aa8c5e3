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

if TYPE_CHECKING:
    from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
    from tokendynamics.cli.output import Output
    from tokendynamics.report.circuits_page import CircuitsReport

PAGE, MANIFEST = "report.html", "manifest.json"


def record_of(parameters: Mapping[str, Any], *, seed: int | None, started: datetime) -> dict[str, Any]:
    """The manifest of this call, with the versions of what was used."""
    import torch

    from tokendynamics.diagnosis.manifest import manifest

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

    from tokendynamics.report.circuits_page import render_circuits

    named = [arrays[0]] if arrays is not None else []
    names = (*named, summary[0], MANIFEST)
    # Rendered first: a page that cannot be made leaves nothing behind.
    html = render_circuits(page(names))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as scratch:
        made = Path(scratch)
        if arrays is not None:
            values: dict[str, Any] = {name: np.asarray(value) for name, value in arrays[1].items()}
            np.savez(made / arrays[0], **values)
        (made / summary[0]).write_text(as_json(summary[1], indent=2) + "\n", encoding="utf-8")
        (made / MANIFEST).write_text(as_json(manifest, indent=2) + "\n", encoding="utf-8")
        (made / PAGE).write_text(html, encoding="utf-8")
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
