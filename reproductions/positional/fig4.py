"""`positional` Figure 4: groups of similar direction in the last of 24 trained layers, without and with norms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional import fig8
from reproductions.positional.by_seed import of_trainings
from reproductions.positional.trained import PROJECTIONS, words_of_training
from reproductions.positional.trained_groups import Paths, Sample, compared_groups, trained_groups
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.provenance.progress import Progress

VARIANTS = ("no-ffn", "full")


@timed
def reproduce(
    *,
    seeds: Sequence[int] = (1, 2),
    layers: int = 24,
    steps: int = 150,
    texts: int = 10,
    tokens: int = 40,
    draws: int = 10,
    seed: int = 3,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Group tokens in the last layers of Figure 3's divergent networks, as they are and without feed-forward parts.

    Args:
        seeds: Of weights and data.
        layers: Of the networks.
        steps: Of training.
        texts: Of the test split, whose tokens are grouped.
        tokens: Of each.
        draws: Sets of directions without groups, for each text and layer.
        seed: Of the texts; that of the directions is the next one.
        folder: Where trained networks are kept and taken from.
        progress: Of the trainings.
    """
    sample = Sample(texts, tokens, draws, seed)
    size: dict[str, Any] = {"seeds": seeds, "layers": layers, "steps": steps}
    trainings, grouped, paths = trained_groups(
        ("divergence",), VARIANTS, sample, **size, folder=folder, progress=progress
    )
    return Record(
        paper="positional",
        figure="Figure 4",
        statement=fig8.said(grouped),
        quantities=(*compared_groups(grouped), *of_trainings(trainings)),
        invented=f"the networks and {words_of_training(layers, steps)}, both projections, {sample.words}",
        seed=seed,
        results={"paths": paths},
    )


def draw(record: Record) -> Figure:
    """Draw the tokens of one text through the layers, coloured by their groups in the last one."""
    paths: Paths = record.results["paths"]
    titles = [f"{PROJECTIONS[output]}: {fig8.VARIANTS[variant]}" for output in paths for variant in VARIANTS]
    rows = max(len(paths), 1)
    figure, panels = figures.panels(2, rows, width=figures.DOUBLE, height=2.6 * rows, titles=titles)
    for panel, path in zip(panels, (paths[output][variant] for output in paths for variant in VARIANTS), strict=False):
        fig8.draw_paths(panel, path)
    return footnote(
        figure,
        record,
        f"{record.statement} Drawn: one text, its tokens' directions through the layers in the plane in which they "
        f"vary most, from the middle of the network on; circles are the last layer.",
    )
