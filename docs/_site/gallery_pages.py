"""How pages of the galleries show the figure or picture file that a block ends with, and in which order they stand."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakSet

from matplotlib.figure import Figure
from paper_scripts import place_of
from sphinx_gallery.scrapers import figure_rst
from sphinx_gallery.sorting import FileNameSortKey

from reproductions.figures import FIGURES
from tokendynamics.figures import save

_PLACES = [place_of(name).name for name in FIGURES]
_FIGURES: WeakSet[Figure] = WeakSet()
_FILES: set[Path] = set()
"""What is on a page already."""

_DOTS_PER_INCH = 150
_PICTURES = (".gif", ".png", ".svg")


def scrape(block: Any, block_vars: Mapping[str, Any], gallery_conf: Mapping[str, Any]) -> str:
    """Keep a block's last value beside the page if it is a picture, and return the RST that shows it."""
    value = block_vars["example_globals"].get("___")  # stays until another block ends with a value
    picture = isinstance(value, Path) and value.suffix in _PICTURES and value.is_file()
    if not (isinstance(value, Figure) or picture):
        return ""
    shown: Any = _FIGURES if isinstance(value, Figure) else _FILES
    if value in shown:
        return ""
    shown.add(value)
    place = Path(next(block_vars["image_path_iterator"]))
    if isinstance(value, Figure):
        save(value, place, dots_per_inch=_DOTS_PER_INCH)
        return figure_rst([place.as_posix()], gallery_conf["src_dir"], _described(value))
    place = place.with_suffix(value.suffix)
    shutil.copyfile(value, place)
    return figure_rst([place.as_posix()], gallery_conf["src_dir"], value.stem)


def _described(figure: Figure) -> str:
    """Return titles and axes of the panels, for those who do not see them."""
    panels = []
    for axes in figure.axes:
        title = axes.get_title() or axes.get_title(loc="left")
        sides = " over ".join(label for label in (axes.get_ylabel(), axes.get_xlabel()) if label)
        panels.append(": ".join(part for part in (title, sides) if part))
    return "; ".join(dict.fromkeys(panel for panel in panels if panel)) or "a figure without axes"


class InOrder(FileNameSortKey):
    """Sorts figures of the papers as the papers do, and other pages by the names of their files."""

    def __call__(self, filename: str | PathLike[str]) -> str:
        """Return what to sort by."""
        name = Path(filename).name
        return f"{_PLACES.index(name):03d}" if name in _PLACES else name


def _get_sg_image_scraper() -> Any:
    return scrape
