"""Which texts find candidates, and which measure them; `test_levers.py` sees that the results name the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tokendynamics.diagnosis.gating._levers import split_in_halves

Text = TypeVar("Text")


def finding(texts: Sequence[Text]) -> list[Text]:
    return [texts[place] for place in split_in_halves(len(texts))[0]]


def measuring(texts: Sequence[Text]) -> list[Text]:
    return [texts[place] for place in split_in_halves(len(texts))[1]]
