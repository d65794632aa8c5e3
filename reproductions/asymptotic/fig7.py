"""`asymptotic` Figure 7: E after each pass with new weights for each, with and without feed-forward parts."""

from __future__ import annotations

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
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.provenance.progress import Progress


@timed
def reproduce(
    *,
    model: str = "smollm2",
    network: str = "random:gpt2-xl",
    passes: int = 2000,
    seed: int = 7,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Measure E after each pass through a network whose weights are new for each.

    Args:
        model: Whose tokenizer makes tokens of the prompt.
        network: The untrained one.
        passes: E is rounding from about 260 on.
        seed: Of the weights.
        folder: Where runs are kept and go on from.
        progress: Of the passes.
    """
    ckpt, read = random_network(network, model)
    drawn = {"weights": "law", "seed": seed}
    curves: list[Curve] = []
    for name, variant in (("random, new for each pass", {}), ("without feed-forward parts", {"variant": "no-ffn"})):
        curves += run_curves(ckpt, {name: CITY}, passes, folder=folder, progress=progress, **drawn, **variant)
    rows = [row for curve in curves for row in consensus_rows(curve, "paper")]
    rows += [row for curve in curves for row in decrease_rows(curve, "reading", ON_AVERAGE)]
    return Record(
        paper="asymptotic",
        figure="Figure 7",
        statement="With weights that are new for each pass, and without the feed-forward part of every layer (with its "
        f"norm and skip connection): {'; '.join(map(ends, curves))}. Whether E falls in each pass, until it is "
        f"rounding: {'; '.join(map(decreases, curves))}.",
        quantities=tuple(rows),
        invented=f"the weights, those of {in_short(ckpt)} as transformers initialises it, drawn by the law of what "
        f"they give, seed {seed}; the text read {read}, {curves[0].tokens} tokens; "
        f"{passes} passes{'' if passes == 2000 else ' instead of 2000'}; {CHOICES}",
        seed=seed,
        results={"curves": curves},
    )


def draw(record: Record) -> Figure:
    """Draw E of both networks."""
    figure, (panel,) = figures.panels(width=figures.DOUBLE, height=2.9)
    draw_energy(panel, record.results["curves"])
    return footnote(figure, record)
