"""Rank collapse with depth, with and without residual connection: the claim, and the runs that test its bounds."""

from __future__ import annotations

import numpy as np

from reproductions.rank import collapse


def test_rank_collapses_without_residual_and_not_with_it() -> None:
    record = collapse.reproduce(systems=10)
    assert not record.failures
    bare, kept = record.results["logs"].values()
    assert bare.shape == kept.shape == (10, 9)
    assert float(np.diff(np.median(bare, axis=0)).max()) < -1
    assert record["without residual: log residual after the last layer, largest"].ours < -1000


def test_the_figure_draws_a_line_for_each() -> None:
    panel = collapse.draw(collapse.reproduce(systems=3, layers=4)).axes[0]
    bare, kept = (np.asarray(line.get_ydata(), dtype=float) for line in panel.lines[:2])
    assert bare[-1] > 20 > kept[-1]
