"""Pictures of the gallery: the figure that the last line of a block returns, drawn without pyplot."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def drawn(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Save the figure and return what shows it; an empty text where the block ends with something else."""
    value = variables["example_globals"].pop("___", None)
    if not isinstance(value, Figure):
        return ""
    path = next(variables["image_path_iterator"])
    value.savefig(path, dpi=160, metadata={"Software": None})
    return figure_rst([path], settings["src_dir"])
