"""Names of a diagnosis's figures and of the two parts of a layer, as sentences and pages use them."""

from __future__ import annotations

from typing import Literal

FigureName = Literal[
    "shares", "agreement", "norms", "updates", "attention", "components", "levers", "deeper", "weights", "paths",
    "halved",
]  # fmt: skip

PART_NAMES = {"attention": "attention", "feed_forward": "feed-forward part"}
"""What the two parts of a layer are called in sentences, by their label in the data."""
