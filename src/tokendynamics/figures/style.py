"""The one look of every figure in print: sizes of a column, a palette that survives grey, no ornament; and its files.

Colours follow blue-orange and purple-orange pairs, which colour-blind readers tell apart; lines that stand for
different things differ in dash as well, so that a photocopy can still be read. Nothing here touches matplotlib's
settings for good: `paper_style` holds only while a figure is drawn, and it hides the settings of the user, so that
the same call gives the same figure everywhere.

Sizes that a figure may have, in inches and in pixels. Files are PNG for the screen, SVG and PDF for print, the same
bytes each time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style as mpl_style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tokendynamics.figures.palette import AXIS, BLUE, INK, MUTED, PRINTED
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.whole import whole_file

_SMALLEST, _LARGEST = 0.1, 500.0
_COARSEST, _MOST_PIXELS = 10.0, 1e8
_MOST_PANELS = 1000


def check_inches(**sizes: float) -> None:
    """Refuse a size that nothing could be drawn on.

    Raises:
        ArgumentValueError: Not 0.1 to 500 inches.
    """
    for argument, size in sizes.items():
        if not _SMALLEST <= size <= _LARGEST:
            raise ArgumentValueError(argument, f"{_SMALLEST:g} to {_LARGEST:g} inches", f"{size:g}")


def check_panels(columns: int, rows: int) -> None:
    """Refuse no panels, and more than can be drawn.

    Raises:
        ArgumentValueError: Fewer than one of either, or more than 1000 panels in all.
    """
    for argument, count in (("columns", columns), ("rows", rows)):
        if count < 1:
            raise ArgumentValueError(argument, "at least 1", count)
    if columns * rows > _MOST_PANELS:
        raise ArgumentValueError("columns", f"at most {_MOST_PANELS} panels", f"{columns} columns of {rows}")


def check_pixels(figure: Figure, dots_per_inch: float) -> None:
    """Refuse a picture without legible letters, and one that does not fit into memory.

    Raises:
        ArgumentValueError: Fewer than 10 dots per inch, or more than 10^8 pixels; the number is printed.
    """
    width, height = figure.get_size_inches()
    pixels = width * height * dots_per_inch * dots_per_inch  # a power of a huge float raises
    if not (dots_per_inch >= _COARSEST and pixels <= _MOST_PIXELS):
        most = f"{_COARSEST:g} to {int((_MOST_PIXELS / (width * height)) ** 0.5)} for {width:g} x {height:g} inches"
        advice = f"a picture may have {_MOST_PIXELS:.0e} pixels"
        raise ArgumentValueError("dots_per_inch", most, f"{dots_per_inch:g}", advice)


SINGLE, DOUBLE = 3.3, 6.9
"""Widths in inches of one column and of both columns of a printed page."""

PATH, PATH_HIDDEN = BLUE, "#afc6de"
START, END, END_HIDDEN = "#ffffff", AXIS, "#d5d9df"
SURFACE, WIRE, WIRE_HIDDEN = "#f5f6f8", "#c3c9d1", "#e3e6eb"
BAND, THIN = "#d6e3f1", "#9dbbd9"

LINES: tuple[tuple[str, Any], ...] = tuple((colour, (0, dash) if dash else "solid") for colour, dash in PRINTED)
"""`PRINTED` as matplotlib takes it."""

_COLOURS: dict[str, Any] = dict.fromkeys(("text.color", "axes.labelcolor"), INK)
_COLOURS |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), AXIS)
_COLOURS |= dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), MUTED)


@contextmanager
def paper_style() -> Iterator[None]:
    """Hold the look of all figures inside the block, or during the function it decorates; restore it after."""
    with mpl_style.context(["default", "tokendynamics.figures.paper", _COLOURS]):
        yield


@paper_style()
@typed_arguments
def panels(
    columns: int = 1, rows: int = 1, *, width: float = SINGLE, height: float | None = None, titles: Sequence[str] = ()
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of fixed printed size and its panels, to be passed on as ``axes=``.

    Args:
        columns: Panels side by side.
        rows: Rows of panels.
        width: Inches; `SINGLE` (3.3) for one printed column, `DOUBLE` (6.9) for both.
        height: Inches; None for rows as high as three quarters of a panel's width.
        titles: One title for each panel, row by row; empty for none.

    Returns:
        The figure and its axes, row by row.

    Raises:
        ArgumentValueError: A size outside 0.1 to 500 inches, no panels or more than 1000, or as many titles as do not
            fit the panels.

    >>> figure, (left, right) = panels(2, width=DOUBLE, height=2.5, titles=["paths", "distances"])
    >>> figure.get_size_inches().tolist(), right.get_title(loc="left")
    ([6.9, 2.5], 'distances')
    """
    check_panels(columns, rows)
    height = 0.75 * width / columns * rows if height is None else height
    check_inches(width=width, height=height)
    if titles and len(titles) != columns * rows:
        raise ArgumentValueError("titles", f"{columns * rows} titles, one for each panel", len(titles))
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, title in zip(axes, titles, strict=False):
        panel.set_title(title)
    return figure, axes


def panel_for(axes: Axes | None, width: float, height: float | None = None) -> tuple[Figure, Axes]:
    """Return the given panel and its figure, or those of a new figure with one panel."""
    if axes is None:
        figure, (panel,) = panels(width=width, height=height)
        return figure, panel
    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure):
        raise ArgumentValueError("axes", "a panel of a figure", "one that was removed from its figure")
    return figure, axes


def known_suffix(path: str | Path, known: Sequence[str]) -> str:
    """Return the suffix of `path` in lower case, without its dot.

    Raises:
        ArgumentValueError: It is not in `known`, or `path` is a folder.
    """
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in known:
        wanted = "a file name that ends in " + ", ".join(f".{kind}" for kind in known)
        raise ArgumentValueError("path", wanted, repr(target.name))
    if target.is_dir():
        raise ArgumentValueError("path", "a file name", f"the folder {target}")
    return suffix


# Neither a date nor a program's version, so that equal figures are equal files.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def _without_dates_of_fonts() -> Iterator[None]:
    """Keep fontTools from warning, at every PDF with a formula, that a font of matplotlib was made before 1970."""
    logger = logging.getLogger("fontTools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@paper_style()
@typed_arguments
def save(figure: Figure, path: str | Path, *, dots_per_inch: float = 300) -> Path:
    """Write `figure` to `path`, whole or not at all; the suffix says how.

    SVG and PDF are vector graphics with text as text (TrueType fonts are embedded in the PDF). The same figure
    gives the same bytes: no date is written.

    Args:
        figure: From any function of `tokendynamics.figures`.
        path: Ends in ``.png``, ``.svg`` or ``.pdf``; its folder is made if need be.
        dots_per_inch: Resolution of a PNG: a figure 3.3 inches wide has 990 pixels at 300.

    Returns:
        The path written.

    Raises:
        ArgumentValueError: Another suffix, a folder, fewer than 10 dots per inch, or more than 10^8 pixels.

    >>> import tempfile
    >>> from tokendynamics.figures import over_time
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(over_time([0.0, 1.0], [1.0, 2.0], "V"), f"{folder}/V.svg").read_text()[:13]
    '<?xml version'
    """
    kind = known_suffix(path, tuple(_METADATA))
    check_pixels(figure, dots_per_inch)
    with whole_file(path) as temporary, _without_dates_of_fonts():
        figure.savefig(temporary, format=kind, dpi=dots_per_inch, metadata=_METADATA[kind])
    return Path(path)
