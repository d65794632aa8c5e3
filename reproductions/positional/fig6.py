"""`positional` Figure 6: norms of tokens and distances between them by layer, rotary against sinusoidal positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reproductions.positional.by_seed import (
    SAID,
    Curves,
    curves_of,
    draw_by_projection,
    gains,
    growth,
    mean_of_seeds,
    of_trainings,
)
from reproductions.positional.depth import MEASURES
from reproductions.positional.sampled import together
from reproductions.positional.trained import PROJECTIONS, short_trainings, trained_in, words_of_training
from reproductions.record import Quantity, Record, timed
from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.provenance.progress import Progress

POSITIONS = {
    name: {"regime": "baseline", "positions": positions}
    for name, positions in (("rotary", "decoupled"), ("sinusoidal", "sinusoidal"))
}
"""What the configuration calls the paper's rotary positions (7), and the sinusoidal ones."""


@timed
def reproduce(
    *,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    layers: int = 4,
    steps: int = 200,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Train networks without a constraint with either positions, take norms and feed-forward parts out, and measure.

    Args:
        seeds: Of weights and data; networks of one seed are paired.
        layers: Of the networks.
        steps: Of training.
        folder: Where trained networks are kept and taken from.
        progress: Of the trainings.
    """
    records = trained_in(folder, short_trainings(POSITIONS, seeds, layers, steps), progress)
    curves = curves_of(records)
    rows = {output: compared(output, curves[output]) for output in PROJECTIONS}
    return Record(
        paper="positional",
        figure="Figure 6",
        statement=f"{said(rows)} {T_COVERAGE}.",
        quantities=(*(row for of_projection in rows.values() for row in of_projection), *of_trainings(records)),
        invented=f"the networks and {words_of_training(layers, steps)}, 16 rotary columns, what faster is (ln gains "
        "more from the embedding to the last layer), and both projections",
        seed=seeds[0],
        results={"found": curves},
    )


def compared(output: str, curves: Mapping[str, Curves]) -> list[Quantity]:
    """Return how much more both measures gain with rotary positions than with sinusoidal ones, and each by itself.

    Args:
        output: "identity" or "free".
        curves: By measure and positions.
    """
    rows: list[Quantity] = []
    for measure in MEASURES:
        words, of_measure = f"{PROJECTIONS[output]}, mean {measure}", curves[measure]
        more = growth(of_measure["rotary"]) - growth(of_measure["sinusoidal"])
        rows.append(mean_of_seeds(f"{words}: gain of ln over all layers, rotary less sinusoidal", more, "≥"))
        rows += gains(words, of_measure)
    return rows


def said(rows: Mapping[str, Sequence[Quantity]]) -> str:
    """Say for each projection whether both measures grow faster with rotary positions.

    Args:
        rows: What `compared` returned, by projection.
    """
    parts = [
        f"{PROJECTIONS[output]} {SAID[together([row for row in quantities if row.verdict != 'measured'])]}"
        for output, quantities in rows.items()
    ]
    return (
        "Without norms and feed-forward parts norms and distances grow faster with rotary positions than with "
        f"sinusoidal ones: {', '.join(parts)}."
    )


draw = draw_by_projection
