"""No Trainer has garbage collected."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_collected(uncollected: None) -> None:
    """Let Trainers leave garbage to Python."""
