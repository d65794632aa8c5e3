"""`positional` Tables 3 and 4: rotary positions with the terms λI and λA, on a small text."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from reproductions.positional.printed import Column, in_the_text
from reproductions.positional.study_table import Table, drawn, reproduced
from reproductions.record import Record, timed
from tokendynamics.provenance._progress import Progress

ENWIK8 = Column(
    "EnWik8, test bits per character",
    {"rotary": (1.295, 0.003), "identity": (1.288, 0.002), "diagonal": (1.281, 0.002)},
    digits=3,
)
VALID = Column(
    "WikiText-103, validation perplexity",
    {"rotary": (31.37, 0.14), "identity": (31.10, 0.16), "diagonal": (31.06, 0.11)},
    digits=2,
)
TEST = Column(
    "WikiText-103, test perplexity",
    {"rotary": (32.35, 0.18), "identity": (32.09, 0.17), "diagonal": (32.04, 0.14)},
    digits=2,
)
_TENTH = 0.05
"""Half of the last digit of “0.3”."""

TABLE = Table(
    figure="Tables 3 and 4",
    example="table3",
    columns=(ENWIK8, VALID, TEST),
    orders=(("identity", "rotary"), ("diagonal", "rotary"), ("diagonal", "identity")),
    called={"rotary": "RoPE", "identity": "RoPE + λI", "diagonal": "RoPE + λA"},
    paper="EnWik8 and WikiText-103 (presets enwik8 and wikitext103; WikiText-103 has no small study)",
    arithmetic=tuple(
        in_the_text(
            f"5.2, “a 0.3-point improvement”: {column.name}, RoPE − (RoPE + λA)",
            0.3,
            column.difference("rotary", "diagonal"),
            _TENTH,
        )
        for column in (VALID, TEST)
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
    """Run the study "table3" and test what the table claims.

    Args:
        steps: None for the study as it is; of runs of tiny networks without tuning, to see that all works.
        seeds: Of these, how many; None for all.
        folder: Where runs are kept and taken from.
        progress: Of the runs.
    """
    return reproduced(TABLE, folder, steps, seeds, progress)


def draw(record: Record) -> Figure:
    """Draw every arm and seed, and the differences from rotary positions alone."""
    return drawn(record)
