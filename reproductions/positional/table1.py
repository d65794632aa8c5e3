"""`positional` Tables 1 and 5: a language model in each regime, on a small text, with the controls that they lack."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from reproductions.positional.printed import Column, in_the_text
from reproductions.positional.study_table import Table, drawn, reproduced
from reproductions.record import Record, timed
from tokendynamics.provenance._progress import Progress

ENWIK8 = Column(
    "EnWik8, test bits per character",
    {
        "baseline": (1.331, 0.002),
        "convergence": (1.350, 0.003),
        "intermediate": (1.345, 0.002),
        "divergence": (1.324, 0.002),
    },
    digits=3,
)
VALID = Column(
    "WikiText-103, validation perplexity",
    {
        "baseline": (31.63, 0.12),
        "convergence": (32.24, 0.15),
        "intermediate": (31.91, 0.11),
        "divergence": (31.12, 0.11),
    },
    digits=2,
)
TEST = Column(
    "WikiText-103, test perplexity",
    {
        "baseline": (32.37, 0.10),
        "convergence": (33.05, 0.13),
        "intermediate": (32.78, 0.12),
        "divergence": (32.07, 0.13),
    },
    digits=2,
)

TABLE = Table(
    figure="Tables 1 and 5",
    example="table1",
    columns=(ENWIK8, VALID, TEST),
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
    paper="EnWik8 and WikiText-103 (presets enwik8 and wikitext103; WikiText-103 has no small study)",
    arithmetic=(
        in_the_text(
            "5.1, “by 1.12 and 0.51”: validation perplexity, convergence − divergence",
            1.12,
            VALID.difference("convergence", "divergence"),
        ),
        in_the_text(
            "5.1, “by 1.12 and 0.51”: validation perplexity, baseline − divergence",
            0.51,
            VALID.difference("baseline", "divergence"),
        ),
    ),
)


@timed
def reproduce(
    *,
    steps: int | None = None,
    seeds: int | None = None,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Run the study "table1" and test what the table claims.

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
