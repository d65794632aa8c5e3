"""The file formats: a small result of every kind is saved when the site is built, and what it holds is listed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from sphinx.application import Sphinx
from transformers import BertConfig, BertModel

import tokendynamics as td
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.modules.language_model import byte_tokenizer
from tokendynamics.specification.examples import example_text
from tokendynamics.sweeps import parse_plan

PAGE = Path(__file__).parents[1] / "built" / "formats.md"

_SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 256,
}  # fmt: skip


def _network() -> td.Checkpoint:
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    return td.load(
        BertModel(BertConfig(vocab_size=len(tokenizer), **_SIZES)).eval(),
        tokenizer=tokenizer,
    )


def _texts() -> list[str]:
    return [text[:40] for text in list(default_texts().values())[:3]]


def _trajectory(folder: Path) -> None:
    start = td.Sphere().sample(4, 3, seed=1)
    td.simulate(td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Sphere()), start, [0.0, 1.0]).save(folder / "run.zarr")


def _diagnosis(folder: Path) -> None:
    td.diagnose(_network(), _texts(), baseline=None).save(folder)


def _comparison(folder: Path) -> None:
    td.compare(_network(), _network(), texts=_texts(), names=["a", "b"]).save(folder)


def _monitor(folder: Path) -> None:
    monitor = td.Monitor(_texts(), every=1, tokenizer=byte_tokenizer())
    monitor.step(_network().model)
    monitor.save(folder / "watched")


def _sweep(folder: Path) -> None:
    from distributed import Client

    text = example_text("temperature", "sweep").replace("draws = 200", "draws = 2").replace("points = 10", "points = 2")
    plan = parse_plan(
        text.replace("values = [2, 3, 4, 6, 8, 12, 16]", "values = [2, 4]"),
        "temperature.toml",
    )
    with Client(processes=False, dashboard_address=None) as client:
        td.sweep(plan, folder / "sweep.zarr", scheduler=client)


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "Trajectory": ("`run.save(path)`, `td.Trajectory.open(path)`.", _trajectory),
    "Diagnosis": (
        "`d.save(folder)`, `td.Diagnosis.open(folder)`; the command `diagnose`.",
        _diagnosis,
    ),
    "Comparison": (
        "`c.save(folder)`, `td.Comparison.open(folder)`; the command `compare`.",
        _comparison,
    ),
    "Monitor": ("`monitor.save(path)`, `td.Monitor.open(path)`.", _monitor),
    "Sweep": (
        "`td.sweep(plan, store)`, `tokendynamics.sweeps.open_store(store)`; the command `sweep`.",
        _sweep,
    ),
}
"""Each kind: how it is written and read, and a function that writes a small one."""


def _described(folder: Path) -> list[str]:
    lines: list[str] = []
    for path in sorted(folder.iterdir()):
        shown = f"`{path.name}`"
        if (path.is_dir() and (path / ".zattrs").exists()) or (path / "zarr.json").exists():
            lines += _table(shown, path)
        elif path.is_dir():
            lines += _described(path)
        elif path.suffix == ".json":
            lines += [
                "",
                f"**{shown}**: {_keys(json.loads(path.read_text(encoding='utf-8')))}",
                "",
            ]
        else:
            lines += ["", f"**{shown}**", ""]
    return lines


def _keys(value: Any) -> str:
    return ", ".join(f"`{key}`" for key in value) if isinstance(value, dict) else "a list"


def _table(title: str, path: Path) -> list[str]:
    rows = ["| variable | axes | type |", "|---|---|---|"]
    with xr.open_zarr(path, consolidated=False) as table:
        rows += [
            f"| `{name}` | {', '.join(map(str, value.dims))} | {_kind(value.dtype)} |"
            for name, value in sorted(table.variables.items())
        ]
        attributes = ", ".join(f"`{key}`" for key in table.attrs)
    return ["", f"**{title}** (Zarr). Attributes: {attributes}.", "", *rows, ""]


def _kind(dtype: np.dtype[Any]) -> str:
    return {"f": "float", "i": "integer", "u": "integer", "b": "boolean"}.get(dtype.kind, "text") + (
        f" ({8 * dtype.itemsize} bits)" if dtype.kind in "fiu" else ""
    )


def write_page(app: Sphinx) -> None:
    """Write the page once a version: Sphinx reads again what is newer."""
    heading = f"As version {td.__version__} writes them."
    if PAGE.exists() and heading in PAGE.read_text(encoding="utf-8"):
        return
    lines = ["# File formats", "", heading, ""]
    lines += [
        "Tables are Zarr stores that xarray reads without this package; `NaN` is undefined, never zero. The version is "
    ]
    lines += [
        "recorded in `manifest.json`, or in the attribute `parameters` of a trajectory that was saved alone.",
        "",
    ]
    for kind, (words, write) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "result" if kind in ("Diagnosis", "Comparison") else Path(folder))
            lines += [f"## {kind}", "", words, *_described(Path(folder))]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the page before the sources are listed."""
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
