"""`positional` Figure 3: 24 trained layers without norms and feed-forward parts: norms of tokens, and their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reproductions.drawing import footnote, layer_lines
from reproductions.positional import fig8
from reproductions.positional.by_seed import (
    SAID,
    Curves,
    curves_of,
    falls,
    finished,
    gains,
    lowest_of_values,
    of_trainings,
    rises,
    why_not,
)
from reproductions.positional.sampled import together
from reproductions.positional.trained import PROJECTIONS, words_of_training
from reproductions.positional.trained_groups import Groups, Paths, Sample, compared_groups, trained_groups
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.provenance.progress import Progress

FALL, GROW = "(a) norms fall in every layer under convergence", "(b) they grow in every layer under divergence"
BARE = "attention-only"


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
    """Train deep networks, take norms and feed-forward parts out, and look at norms, and at groups in the last layers.

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
        ("convergence", "divergence"), (BARE,), sample, **size, folder=folder, progress=progress
    )
    norms = {output: measures["norm"] for output, measures in curves_of(trainings).items()}
    lowest = {output: lowest_of_values(trainings, output, "convergence") for output in PROJECTIONS}
    rows = {output: compared(output, norms[output], lowest[output]) for output in PROJECTIONS}
    return Record(
        paper="positional",
        figure="Figure 3",
        statement=said(layers, rows, grouped),
        quantities=(
            *(row for of_output in rows.values() for of_claim in of_output.values() for row in of_claim),
            *compared_groups(grouped),
            *of_trainings(trainings),
        ),
        invented=f"the networks and {words_of_training(layers, steps)}, both projections, {sample.words}",
        seed=seed,
        results={"found": norms, "paths": paths},
    )


def compared(output: str, curves: Curves, lowest: float) -> dict[str, list[Quantity]]:
    """Return what is compared of the norms of one projection by the claim that it belongs to, and what is beside them.

    Args:
        output: "identity" or "free".
        curves: Of the norm, by regime.
        lowest: Re λ(V) under convergence, of any layer and seed.
    """
    words, reason = f"{PROJECTIONS[output]}, mean norm", why_not(output, lowest)
    lowest_quantity = measured(f"{PROJECTIONS[output]}, convergence: lowest Re λ(V), any layer and seed", lowest)
    return {
        FALL: [falls(f"{words}, convergence", curves["convergence"], reason)],
        GROW: [rises(f"{words}, divergence", curves["divergence"], why_not(output))],
        "": [*gains(words, curves), lowest_quantity],
    }


def said(layers: int, rows: Mapping[str, Mapping[str, Sequence[Quantity]]], grouped: Groups) -> str:
    """Say for each claim with which projection it holds, and what became of groups.

    Args:
        layers: Of the networks.
        rows: What `compared` returned, by projection.
        grouped: By network and variant.
    """
    parts = [
        f"{claim}: "
        + ", ".join(f"{PROJECTIONS[output]} {SAID[together(by_claim[claim])]}" for output, by_claim in rows.items())
        for claim in (FALL, GROW)
    ]
    return f"Without norms and feed-forward parts, in {layers} layers: {'; '.join(parts)}. (c) {fig8.said(grouped)}"


def draw(record: Record) -> Figure:
    """Draw norms by layer under both regimes, and below the tokens of one text under divergence."""
    norms: Mapping[str, Curves] = record.results["found"]
    paths: Paths = record.results["paths"]
    titles = ["(a) convergence", "(b) divergence", *(f"(c) {PROJECTIONS[output]}" for output in paths)]
    figure, panels = figures.panels(2, 1 + (len(paths) + 1) // 2, width=figures.DOUBLE, height=5.2, titles=titles)
    for panel, regime in zip(panels, ("convergence", "divergence"), strict=False):
        lines = {PROJECTIONS[output]: finished(curves[regime]) for output, curves in norms.items()}
        layer_lines(panel, {name: logs for name, logs in lines.items() if len(logs)}, "mean token norm")
    for panel, by_variant in zip(panels[2:], paths.values(), strict=False):
        fig8.draw_paths(panel, by_variant[BARE])
    return footnote(
        figure,
        record,
        f"{record.statement} Lines: medians of seeds; bands: middle 80 %. Below: one text, its tokens' directions in "
        "the plane in which they vary most, from the middle of the network on; circles are the last layer.",
    )
