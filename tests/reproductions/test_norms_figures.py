"""The figure of the rates by norm: what the theorem claims of each scheme, and what its bounds are."""

from __future__ import annotations

import numpy as np
import pytest

from reproductions.norms import rates


@pytest.mark.long
def test_every_scheme_has_its_rate() -> None:
    record = rates.reproduce(systems=6)
    assert not record.failures
    logs = record.results["logs"]
    assert list(logs) == list(rates.SPACES)
    # At t = 1000 a norm before attention has left a millionth, one after it nothing but rounding.
    ends = {name: float(np.median(log[:, -1] - log[:, 0])) for name, log in logs.items()}
    assert -16 < ends["pre"] < -12
    assert ends["post"] < -40


@pytest.mark.long
def test_the_figure_draws_a_line_for_each() -> None:
    panel = rates.draw(rates.reproduce(systems=2)).axes[0]
    assert len(panel.lines) >= len(rates.SPACES)
