"""`positional` Figure 11: the same growth without norms and feed-forward parts, for sequences of several lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, layer_lines
from reproductions.given import name_of_model, real_text, sequences_of
from reproductions.positional.depth import MEASURES, DepthCurves, depth_curves, growth_of
from reproductions.positional.fig10 import EXPONENTIAL, exponential
from reproductions.positional.sampled import SAID, together
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.pretrained import load
from tokendynamics.provenance.progress import Progress, reporting, tracked


@timed
def reproduce(
    *,
    model: str = "smollm2",
    text: str | None = None,
    lengths: Sequence[int] = (16, 64, 100, 128, 256),
    sequences: int = 100,
    seed: int = 11,
    dtype: str = "float32",
    progress: bool | Progress = False,
) -> Record:
    """Measure norms and distances after every block, for many sequences of each length.

    Args:
        model: The network.
        text: A text file that the sequences are drawn from; None for CPython's pages of help.
        lengths: In tokens.
        sequences: Of each length.
        seed: Of which; each length has the next one.
        dtype: Number format of the forward passes; states are divided by powers of two on the way.
        progress: Of the lengths.
    """
    source, simplified = real_text(text), load(model, dtype=dtype).under("attention-only")
    drawn = {length: sequences_of(simplified, source, length, sequences, seed + k) for k, length in enumerate(lengths)}
    with reporting(progress) as report:
        counted = tracked(list(drawn), report, "lengths")
        by_length = {length: depth_curves(simplified, drawn[length]) for length in counted}
    rows = {length: compared(length, curves) for length, curves in by_length.items()}
    return Record(
        paper="positional",
        figure="Figure 11",
        statement=said(name_of_model(model), rows, by_length),
        quantities=tuple(row for of_length in rows.values() for row in of_length),
        invented=f"the network, {sequences} sequences of each length from the {source.words} (seeds {seed} to "
        f"{seed + len(lengths) - 1}), and what counts as exponential (R² ≥ {EXPONENTIAL:g} on a logarithmic axis, and "
        "more than that of a straight line)",
        seed=seed,
        results={"found": by_length},
    )


def compared(length: int, curves: DepthCurves) -> list[Quantity]:
    """Hold the curves of one length against exponential growth, and measure how far its sequences are apart."""
    rows = []
    for measure in MEASURES:
        words = f"{length} tokens, mean {measure}"
        slopes = np.array([growth_of(logs).slope for logs in curves.of(measure)])
        rows += exponential(words, curves.of(measure))
        rows.append(measured(f"{words}: standard deviation of that growth over sequences", float(slopes.std())))
    return rows


def said(name: str, rows: Mapping[int, Sequence[Quantity]], by_length: Mapping[int, DepthCurves]) -> str:
    """Say at which lengths growth is exponential, and how much its rate depends on the length."""
    answers = ", ".join(
        f"{length} tokens {SAID[together([row for row in quantities if row.verdict != 'measured'])]}"
        for length, quantities in rows.items()
    )
    rates = [float(np.mean([growth_of(logs).slope for logs in curves.norm])) for curves in by_length.values()]
    return (
        f"Without norms and feed-forward parts norms and distances of {name} grow exponentially with the layer: "
        f"{answers}. From the shortest to the longest the logarithm of the mean norm grows by {rates[0]:.3g} "
        f"to {rates[-1]:.3g} a layer."
    )


def draw(record: Record) -> Figure:
    """Draw distance and norm over layers, a line and a band for each length."""
    by_length: Mapping[int, DepthCurves] = record.results["found"]
    labels = {"distance": "mean distance", "norm": "mean token norm"}
    figure, panels = figures.panels(2, width=figures.DOUBLE, height=2.9, titles=["(a)", "(b)"])
    for panel, (measure, label) in zip(panels, labels.items(), strict=True):
        layer_lines(panel, {f"{length} tokens": curves.of(measure) for length, curves in by_length.items()}, label)
    return footnote(figure, record, f"{record.statement} Lines: medians; bands: middle 80 %.")
