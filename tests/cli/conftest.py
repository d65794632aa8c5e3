"""Commands write their pages with empty drawings: `tests/report` and `tests/figures` see pages drawn."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_drawings(undrawn: None, known_layouts: None) -> None:
    """Leave out the drawings of pages that are written in this process, and find each layout once."""
