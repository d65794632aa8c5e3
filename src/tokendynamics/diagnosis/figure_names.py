"""Names of the figures of a diagnosis, and of the two parts of a layer, in sentences and pages."""

from __future__ import annotations

from typing import Literal

FigureName = Literal[
    "shares", "agreement", "norms", "updates", "attention", "components", "levers", "deeper", "weights", "paths",
    "halved",
]  # fmt: skip

PART_NAMES = {"attention": "attention", "feed_forward": "feed-forward part"}
"""Names of the two parts of a layer in sentences, by their label in the data."""
