"""The explorer of the five presets, written beside the pages."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from tokendynamics.report import explore

FOLDER = Path(__file__).parents[1] / "built" / "beside"


def write_explorer(app: Sphinx) -> None:
    """Write explorer-presets.html."""
    explore(FOLDER / "explorer-presets.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write it before the files beside the pages are copied."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    app.connect("builder-inited", write_explorer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
