"""What the figures of both papers share when they are drawn."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from tokendynamics.plots.style import MUTED, paper_style

_LETTERS_PER_INCH = 17


@paper_style()
def footnote(figure: Figure, text: str) -> Figure:
    """Set `text` small below the panels: what in the figure is invented, or does not come out as printed."""
    width = int(_LETTERS_PER_INCH * figure.get_size_inches()[0])
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize=6.5, color=MUTED)
    return figure
