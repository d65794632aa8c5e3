"""`positional` Figure 7: norms of tokens and distances between them by layer, of networks trained in each regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reproductions.positional.by_seed import (
    SAID,
    Curves,
    curves_of,
    draw_by_projection,
    falls,
    gains,
    growth,
    lowest_of_values,
    mean_of_seeds,
    of_trainings,
    rises,
    why_not,
)
from reproductions.positional.depth import MEASURES
from reproductions.positional.sampled import together
from reproductions.positional.trained import PROJECTIONS, short_trainings, trained_in, words_of_training
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.provenance.progress import Progress

REGIMES = {name: {"regime": name} for name in ("convergence", "intermediate", "divergence", "baseline")}
FALLS = "fall in every layer under convergence"
RISE = "rise under the intermediate regime, and in every layer under divergence"
STEEPEST, STEEPER = "rise more under divergence than under the intermediate regime", "and than in the baseline"
CLAIMS = (FALLS, RISE, STEEPEST, STEEPER)


@timed
def reproduce(
    *,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    layers: int = 4,
    steps: int = 200,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Train every regime with either projection, take norms and feed-forward parts out, and measure.

    Args:
        seeds: Of weights and data; regimes of one seed are paired.
        layers: Of the networks.
        steps: Of training.
        folder: Where trained networks are kept and taken from.
        progress: Of the trainings.
    """
    records = trained_in(folder, short_trainings(REGIMES, seeds, layers, steps), progress)
    curves = curves_of(records)
    lowest = {output: lowest_of_values(records, output, "convergence") for output in PROJECTIONS}
    rows = {output: compared(output, curves[output], lowest[output]) for output in PROJECTIONS}
    claimed = [row for of_output in rows.values() for of_claim in of_output.values() for row in of_claim]
    return Record(
        paper="positional",
        figure="Figure 7",
        statement=f"{said(rows)} {T_COVERAGE}.",
        quantities=(*claimed, *of_trainings(records)),
        invented=f"the networks and {words_of_training(layers, steps)}, and both projections",
        seed=seeds[0],
        results={"found": curves},
    )


def compared(output: str, curves: Mapping[str, Curves], lowest: float) -> dict[str, list[Quantity]]:
    """Return what is compared of one projection by the claim that it belongs to, and what is beside them.

    Args:
        output: "identity" or "free".
        curves: By measure and regime.
        lowest: Re λ(V) under convergence, of any layer and seed.
    """
    reason, outside = why_not(output, lowest), why_not(output)
    rows: dict[str, list[Quantity]] = {claim: [] for claim in (*CLAIMS, "")}
    for measure in MEASURES:
        words, of_measure = f"{PROJECTIONS[output]}, mean {measure}", curves[measure]
        gained = {regime: growth(logs) for regime, logs in of_measure.items()}
        rows[FALLS] += [falls(f"{words}, convergence", of_measure["convergence"], reason)]
        rows[RISE] += [
            mean_of_seeds(f"{words}, intermediate: gain of ln over all layers", gained["intermediate"], "≥", outside),
            rises(f"{words}, divergence", of_measure["divergence"], outside),
        ]
        # The baseline is outside the constraint with either projection: that explains nothing there.
        for claim, other, because in ((STEEPEST, "intermediate", outside), (STEEPER, "baseline", "")):
            gap = gained["divergence"] - gained[other]
            rows[claim] += [mean_of_seeds(f"{words}: gain of ln, divergence less {other}", gap, "≥", because)]
        rows[""] += gains(words, of_measure)
    rows[""].append(measured(f"{PROJECTIONS[output]}, convergence: lowest Re λ(V), any layer and seed", lowest))
    return rows


def said(rows: Mapping[str, Mapping[str, Sequence[Quantity]]]) -> str:
    """Say for each projection which claims hold.

    Args:
        rows: What `compared` returned, by projection.
    """
    parts = [
        f"{PROJECTIONS[output].capitalize()}: "
        + "; ".join(f"{claim}: {SAID[together(by_claim[claim])]}" for claim in CLAIMS)
        for output, by_claim in rows.items()
    ]
    return f"Norms and distances, without norms and feed-forward parts. {'. '.join(parts)}."


draw = draw_by_projection
