"""Pictures of the gallery: the figure that the last line of a block returns, drawn without pyplot."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

_DRAWN: WeakSet[Figure] = WeakSet()


def drawn(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Save the figure and return what shows it; an empty text where the block ends with something else."""
    value = variables["example_globals"].get("___")  # stays until another block ends with a value
    if not isinstance(value, Figure) or value in _DRAWN:
        return ""
    _DRAWN.add(value)
    path = next(variables["image_path_iterator"])
    value.savefig(path, dpi=160, metadata={"Software": None})
    return figure_rst([path], settings["src_dir"])
