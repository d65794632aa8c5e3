"""Figures as files: PNG for the screen, SVG and PDF for print, the same bytes each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tokendynamics.figures.style import check_pixels, paper_style
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.whole import whole_file


def known_suffix(path: str | Path, known: Sequence[str]) -> str:
    """Return the suffix of `path` in lower case, without its dot.

    Raises:
        ArgumentValueError: It is not in `known`, or `path` is a folder.
    """
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in known:
        wanted = "a file name that ends in " + ", ".join(f".{kind}" for kind in known)
        raise ArgumentValueError(expected("path", wanted, repr(target.name)))
    if target.is_dir():
        raise ArgumentValueError(expected("path", "a file name", f"the folder {target}"))
    return suffix


# Neither a date nor a program's version, so that equal figures are equal files.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


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
    with whole_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dots_per_inch, metadata=_METADATA[kind])
    return Path(path)
