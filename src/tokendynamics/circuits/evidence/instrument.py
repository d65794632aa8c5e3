"""The result of an instrument: estimates with confidence intervals, and the part of the transformer that they show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tokendynamics.provenance.manifest import plain
from tokendynamics.words import UNDEFINED, estimate

Found = bool | None
"""A part takes part in the logic (True), does not (False), or the instrument cannot decide (None)."""

_READINGS: dict[tuple[Found, Found], str] = {
    (True, True): "both",
    (True, False): "attention",
    (False, True): "feed-forward",
    (False, False): "neither",
    (True, None): "attention takes part",
    (False, None): "attention takes no part",
    (None, True): "feed-forward takes part",
    (None, False): "feed-forward takes no part",
    (None, None): "cannot tell",
}


@dataclass(frozen=True)
class Estimate:
    """One number with its confidence interval. Each is None where it is undefined.

    Attributes:
        name: What was measured.
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end.

    >>> Estimate("keys", 0.5, 0.49, 0.51).written(0.95)
    '0.50 (95 % CI 0.49–0.51)'
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None

    def above(self, threshold: float) -> Found:
        """Return whether the whole interval lies above the threshold; None if the threshold lies inside it."""
        if self.low is None or self.high is None:
            return None
        if self.low > threshold:
            return True
        return False if self.high <= threshold else None

    def beyond(self, threshold: float) -> Found:
        """Return whether the size of the number, whatever its sign, lies above the threshold with its whole interval.

        >>> Estimate("keys", -0.5, -0.6, -0.4).beyond(0.1)
        True
        """
        if self.low is None or self.high is None:
            return None
        if self.low > threshold or self.high < -threshold:
            return True
        return False if -threshold <= self.low and self.high <= threshold else None

    def written(self, confidence: float) -> str:
        """Return the value with its interval.

        Args:
            confidence: Of the interval.
        """
        if self.value is None:
            return UNDEFINED
        low, high = (math.nan if end is None else end for end in (self.low, self.high))
        return estimate(self.value, [low, high], confidence)


@dataclass(frozen=True)
class Instrument:
    """The measurement of one instrument.

    Attributes:
        name: Short, for tables and files.
        title: In words.
        attention: Whether the attention takes part, as far as this instrument can see.
        feed_forward: The same of the feed-forward part.
        estimates: The numbers that `reading` rests on; the first is the headline.
        sentence: Its result in one or two sentences.
        details: Further numbers, in plain types.
    """

    name: str
    title: str
    attention: Found
    feed_forward: Found
    estimates: tuple[Estimate, ...]
    sentence: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def reading(self) -> str:
        """Its answer: "attention", "feed-forward", "both", "neither", one part only, or "cannot tell"."""
        return _READINGS[self.attention, self.feed_forward]

    @property
    def estimate(self) -> float | None:
        """The headline number."""
        return self.estimates[0].value

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Of the headline number."""
        return self.estimates[0].low, self.estimates[0].high

    def named(self, name: str) -> Estimate:
        """Return the estimate of that name."""
        return next(estimate for estimate in self.estimates if estimate.name == name)

    def agrees(self, attention: bool, feed_forward: bool) -> Found:
        """Return whether its answers are these two; None if it has no answer."""
        pairs = [(self.attention, attention), (self.feed_forward, feed_forward)]
        equal = [reading == answer for reading, answer in pairs if reading is not None]
        return all(equal) if equal else None

    def as_json(self) -> dict[str, Any]:
        """Return plain types, without NaN."""
        names = ("name", "title", "reading", "estimate", "interval", "estimates", "sentence", "details")
        return plain({name: getattr(self, name) for name in names})


def all_of(*answers: Found) -> Found:
    """Return whether every answer is True; one False settles it, else one None leaves it open.

    >>> all_of(True, None), all_of(False, None)
    (None, False)
    """
    if any(answer is False for answer in answers):
        return False
    return None if None in answers else True


def any_of(*answers: Found) -> Found:
    """Return whether some answer is True; one True settles it, else one None leaves it open."""
    if any(answers):
        return True
    return None if None in answers else False
