"""`positional` Tables 2 and 6: a vision transformer in each regime, on handwritten digits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from reproductions.positional.printed import Column
from reproductions.positional.study_table import Table, drawn, reproduced
from reproductions.record import Quantity, Record, timed
from tokendynamics.provenance._progress import Progress

TOP_1 = Column(
    "ImageNet, top-1 in % (Table 6)",
    {
        "baseline": (71.79, 0.02),
        "convergence": (71.37, 0.02),
        "intermediate": (71.62, 0.03),
        "divergence": (71.93, 0.02),
    },
    digits=2,
    lower_is_better=False,
)
TOP_5 = Column(
    "ImageNet, top-5 in % (Table 6)",
    {
        "baseline": (90.99, 0.02),
        "convergence": (90.65, 0.01),
        "intermediate": (90.94, 0.02),
        "divergence": (91.03, 0.03),
    },
    digits=2,
    lower_is_better=False,
)
TABLE_2: Mapping[str, Mapping[str, float]] = {
    TOP_1.name: {"baseline": 71.80, "convergence": 71.34, "intermediate": 71.60, "divergence": 71.96},
    TOP_5.name: {"baseline": 91.01, "convergence": 90.64, "intermediate": 90.91, "divergence": 91.05},
}
"""The same columns as Table 2 prints them."""


def both_prints() -> Quantity:
    """Hold Tables 2 and 6 against each other: both are means of the same runs."""
    apart = [abs(TABLE_2[column.name][arm] - column.rows[arm][0]) for column in (TOP_1, TOP_5) for arm in column.rows]
    other = sum(gap > 0.001 for gap in apart)
    reason = f"{other} of {len(apart)} entries differ between the two prints" if other else ""
    return Quantity("Tables 2 and 6, the same means: largest difference (%)", 0.0, max(apart), 0.001, reason=reason)


TABLE = Table(
    figure="Tables 2 and 6",
    example="table2",
    columns=(TOP_1, TOP_5),
    orders=(
        ("divergence", "baseline"),
        ("baseline", "intermediate"),
        ("baseline", "convergence"),
        ("divergence", "intermediate"),
        ("intermediate", "convergence"),
    ),
    called={
        "baseline": "baseline",
        "tied": "tied",
        "w_only": "W only",
        "convergence": "convergence",
        "intermediate": "intermediate",
        "divergence": "divergence",
    },
    paper="DeiT-Tiny on ImageNet (preset imagenet; top-5 of ten classes is not compared)",
    arithmetic=(both_prints(),),
)


@timed
def reproduce(
    *,
    steps: int | None = None,
    seeds: int | None = None,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Run the study "table2" and test what the table claims.

    Args:
        steps: None for the study as it is; of runs of tiny networks without tuning, to see that all works.
        seeds: Of these, how many; None for all.
        folder: Where runs are kept and taken from.
        progress: Of the runs.
    """
    return reproduced(TABLE, folder, steps, seeds, progress)


def draw(record: Record) -> Figure:
    """Draw every arm and seed, and the differences from the baseline."""
    return drawn(record)
