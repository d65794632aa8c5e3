"""`asymptotic` Figure 6: E after each pass through a trained network, and through one with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from reproductions.asymptotic.repeated import (
    CHOICES,
    CITY,
    ON_AVERAGE,
    Curve,
    consensus_rows,
    decrease_rows,
    decreases,
    draw_energy,
    ends,
    in_short,
    random_network,
    run_curves,
)
from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, timed
from tokendynamics import figures
from tokendynamics.pretrained import load
from tokendynamics.provenance.progress import Progress

WITHIN = 10
"""Passes within which SmolLM2 is expected to collapse, a number chosen here."""


@timed
def reproduce(
    *,
    model: str = "smollm2",
    others: Sequence[str] = ("minilm",),
    passes: int = 2000,
    network: str = "random:gpt2-xl",
    fixed_passes: int = 200,
    fresh_passes: int = 2000,
    seed: int = 7,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Measure E after each pass with a network's own weights, with random ones and with new ones for each pass.

    Args:
        model: The trained network, as `load` takes it; GPT-2 XL in the paper.
        others: Further trained networks.
        passes: Through trained networks.
        network: The untrained one, which has the tokenizer of `model`.
        fixed_passes: Through it with the same weights in each, at two seconds a pass for GPT-2 XL; 2000 in the paper.
        fresh_passes: Through it with new weights for each.
        seed: Of new weights for each pass; the fixed ones are those of `network`.
        folder: Where runs are kept and go on from.
        progress: Of the passes.

    Raises:
        CheckpointError: A network that is not on this machine.
    """
    trained: list[Curve] = []
    for name in (model, *others):
        trained += run_curves(load(name), {name: CITY}, passes, folder=folder, progress=progress)
    untrained, read = random_network(network, model)
    fixed = run_curves(
        untrained, {"random, the same in each pass": CITY}, fixed_passes, folder=folder, progress=progress
    )
    fresh = run_curves(
        untrained,
        {"random, new for each pass": CITY},
        fresh_passes,
        weights="law",
        seed=seed,
        folder=folder,
        progress=progress,
    )
    curves = [*trained, *fixed, *fresh]
    return Record(
        paper="asymptotic",
        figure="Figure 6",
        statement=f"{'; '.join(map(ends, curves))}. The paper says that E decreases with each pass. Whether it "
        f"does, until it is rounding: {'; '.join(map(decreases, curves))}.",
        quantities=tuple(_rows(trained, fixed[0], fresh[0], WITHIN if model == "smollm2" else None)),
        invented=f"the networks, trained: {', '.join((model, *others))}; random: "
        f"{in_short(untrained)}, as transformers initialises it, the text read {read}, {fixed[0].tokens} tokens; "
        f"{passes} passes through trained networks, {fixed_passes} with the same random weights and {fresh_passes} "
        f"with new ones (in the paper GPT-2 XL and 2000 passes for all); {CHOICES}; seed {seed}",
        seed=seed,
        results={"trained": trained, "random": [*fixed, *fresh]},
    )


def _rows(trained: Sequence[Curve], fixed: Curve, fresh: Curve, within: int | None) -> list[Quantity]:
    """Return the comparisons; what the paper claims it claims of GPT-2 XL: of other networks it is a reading."""
    rows = consensus_rows(trained[0], "reading", within)
    rows += [row for curve in trained[1:] for row in consensus_rows(curve, "reading")]
    rows += consensus_rows(fixed, "paper", 100) + consensus_rows(fresh, "reading", 100)
    rows += [row for curve in trained for row in decrease_rows(curve, "reading")]
    return rows + decrease_rows(fixed, "paper") + decrease_rows(fresh, "reading", ON_AVERAGE)


def draw(record: Record) -> Figure:
    """Draw E of trained networks on the left, of random ones on the right."""
    titles = ["trained weights", "random weights"]
    figure, panels = figures.panels(2, width=figures.DOUBLE, height=2.9, titles=titles)
    for panel, group in zip(panels, ("trained", "random"), strict=True):
        draw_energy(panel, record.results[group])
    return footnote(figure, record)
