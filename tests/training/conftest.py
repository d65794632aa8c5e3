"""What is found in networks is tested in `tests/pretrained`, and no Trainer has garbage collected."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def layouts_found_once(known_layouts: None) -> None:
    """Find the layout of a network once in all tests of training."""


@pytest.fixture(autouse=True)
def nothing_collected(uncollected: None) -> None:
    """Let Trainers leave garbage to Python."""
