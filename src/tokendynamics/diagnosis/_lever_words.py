"""What is said of levers: which part or how many layers make the tokens agree, and what turning one down costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from tokendynamics.diagnosis._layer_states import COLLAPSES, State
from tokendynamics.diagnosis._lever_trials import CONFIDENCE, Estimate, Trial
from tokendynamics.diagnosis._levers_found import ALL_LAYERS, NOTHING, SOME_LAYERS, Answer, Levers
from tokendynamics.diagnosis._verdict import Verdict
from tokendynamics.words import estimate, fixed, in_layers, percent, plural

LITTLE = 0.06
"""κ' below which tokens of a prompt share too little for anything to be done about it: over 31 networks, those whose
tokens stay apart lie below 0.024 and the next above 0.144."""

CHEAP = 0.02
"""Nats of loss for each token below which a lever is cheap: about what a per cent more or less of training
is worth, and below what texts of one kind differ by."""

EVEN_SHARE = 0.1
"""A layer takes part in a rise of κ if log(1 − κ) falls in it by at least this part of the mean fall per layer. The
logarithm counts alike what a layer does far from a point and near it; layers built to do nothing stay below 0.01."""

_NAMED = 3
"""Prompts that are named before the rest is counted."""

_NOTHING_NEEDED = "Nothing needs doing about consensus: "

UNMEASURED: dict[State, str] = {
    "rank collapse": "a collapse to a line through both sides of the center",
    "anisotropic": "the direction that all prompts share",
}
"""States that may stand beside a small κ: levers, which lower κ, say nothing about them."""


@dataclass(frozen=True)
class Halves:
    """Which prompts find candidates and which measure them, and what prompts are called."""

    finding: Sequence[str]
    measuring: Sequence[str]
    noun: str


def contributing_layers(consensus: Float64[np.ndarray, " depth"], where: int) -> tuple[int, ...]:
    """Return the layers, from 1, that take part in the rise of κ up to the layer where it is read.

    Args:
        consensus: κ of the input of the first block and after each.
        where: The layer at which κ is read.

    >>> contributing_layers(np.array([0.0, 0.5, 0.5, 0.8, 0.8]), 4), contributing_layers(np.array([0.1, 0.1]), 1)
    ((1, 3), ())
    """
    left = np.maximum(1.0 - np.asarray(consensus[: where + 1], dtype=float), np.finfo(float).eps)
    falls = -np.diff(np.log(left))
    if not falls.sum() > 0:
        return ()
    return tuple((np.flatnonzero(falls >= EVEN_SHARE * falls.sum() / where) + 1).tolist())


def qualified(answer: Answer, best: Trial | None, layers: Sequence[int], where: int) -> Answer:
    """Return the answer with what is not known, or not true, of its plain form taken into account.

    Args:
        answer: By κ and by the cost, where it is known.
        best: The trial that it is about.
        layers: From `contributing_layers`.
        where: The layer at which κ is read.
    """
    if answer == "one part does it" and best is not None and np.isnan(best.loss_change.value):
        return "one part does it, at an unknown cost"
    return SOME_LAYERS if answer == ALL_LAYERS and len(layers) < where else answer


@dataclass(frozen=True)
class LeverWords:
    """Puts an answer in sentences.

    Attributes:
        where: The layer at which κ is read.
        kappa: κ there.
        relative: κ' there.
        tried: All trials.
        halves: The texts.
        normed: Whether the layers have norms.
        layers: From `contributing_layers`.
    """

    where: int
    kappa: Estimate
    relative: Estimate
    tried: Sequence[Trial]
    halves: Halves
    normed: bool
    layers: Sequence[int]

    def of(self, answer: Answer, best: Trial | None) -> str:
        """Return the sentences for an answer and the trial that it is about."""
        now = f"κ after layer {self.where} is {_plain(self.kappa)}"
        if answer.startswith("one part does it") and best is not None:
            words = self._one_part(best)
        elif answer in (ALL_LAYERS, SOME_LAYERS):
            words = f"{self._who(answer)}: {now}, and {self._most(best)}.{self._what_else(answer)}"
        elif self.relative.value < LITTLE:
            words = f"{_NOTHING_NEEDED}{now}, κ' {_plain(self.relative)}: tokens of a prompt share little of their own."
        else:
            words = f"{_NOTHING_NEEDED}{now}, and {self._most(best)}."
        return f"{words} {self._measured_on()}"

    def _one_part(self, best: Trial) -> str:
        after = self.kappa.value + best.kappa_change.value
        # More than all of κ is no share of it.
        share = f", by {percent(-best.kappa_change.value / self.kappa.value)} of it" if round(after, 2) >= 0 else ""
        falls = f"At α = {best.alpha:g} κ after layer {self.where} falls from {self.kappa.value:.2f} to"
        change = f"{falls} {fixed(after)}{share}: {_change(best.kappa_change)}"
        if np.isnan(best.loss_change.value):
            return (
                f"One part makes most of it, at a cost that is not known: {_named(best)}. {change}. No head that "
                "predicts the next token was found, so whether turning it down helps is not known."
            )
        return f"One part does it: {_named(best)}. {change}, {_cost(best)}."

    def _who(self, answer: Answer) -> str:
        """Say how many layers take part; before the first layer's end no other layer has done anything."""
        if self.where == 1 or not self.layers:
            return "No single part helps"
        if answer == ALL_LAYERS:
            return "All layers do it and no single part helps"
        does = "does" if len(self.layers) == 1 else "do"
        return (
            f"{len(self.layers)} of {self.where} layers {does} it ({in_layers(self.layers)}) and no single part helps"
        )

    def _what_else(self, answer: Answer) -> str:
        if answer == SOME_LAYERS:
            return " Turning several parts down at once was not tried."
        words = (
            " A trainer can change what every layer has in common: the scale at which the parts are added (residual or "
            "initial)"
        )
        return words + (", or the place of the norms." if self.normed else ".")

    def _most(self, best: Trial | None) -> str:
        """Say what the best of the fair trials did; without one, whether that is for what they cost."""
        parts = len({(each.layer, each.part) for each in self.tried})
        if not parts:
            return "to first order no part lowers it when it is turned down"
        if best is None:
            return self._without_best(parts)
        which = f"the best of {parts} parts turned down" if parts > 1 else "the one part turned down"
        which += f" at an estimated cost of at most {CHEAP:g} nats" if best.loss_change.value <= CHEAP else ""
        change = f"changes it by {_change(best.kappa_change)}"
        return f"{which}, {_named(best)} at α = {best.alpha:g}, {change}, {_cost(best)}"

    def _without_best(self, parts: int) -> str:
        known = [each for each in self.tried if each.defined]
        which = f"each of the {parts} parts" if parts > 1 else "the one part"
        if not known:
            return f"with {which} turned down it is not defined"
        if all(each.loss_change.low > CHEAP for each in known):
            return f"{which} turned down costs more than {CHEAP:g} nats of loss"
        cheapest = min(known, key=lambda each: each.loss_change.value)
        none = f"none of the {parts} parts" if parts > 1 else "the one part tried"
        shown = "is shown to cost" if parts > 1 else "is not shown to cost"
        return (
            f"{none} {shown} {CHEAP:g} nats of loss or less when it is turned down; the smallest estimate is "
            f"{_change(cheapest.loss_change)}, for {_named(cheapest)} at α = {cheapest.alpha:g}"
        )

    def _measured_on(self) -> str:
        names, found = self.halves.measuring, f"{len(self.halves.finding)} others"
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        measured = f"{plural(len(names), self.halves.noun)} ({', '.join(names[:_NAMED])}{more})"
        return f"Measured on {measured}, for candidates found on {found}; {percent(CONFIDENCE)} confidence intervals."


def in_view_of(levers: Levers, verdict: Verdict) -> Levers:
    """Return levers as a diagnosis reports them: beside a state that κ does not show, not even "nothing needs doing".

    Args:
        levers: From `tokendynamics.levers`.
        verdict: Of the same network.
    """
    worst, depth = verdict.worst, len(verdict.layers)
    ends = ((verdict.state, (depth,)), (worst.state, worst.layers or (worst.layer,)))
    unseen = [each for each in ends if each[0] in UNMEASURED or each[0] in COLLAPSES]
    if levers.answer != NOTHING or not unseen:
        return levers
    state, layers = unseen[0]
    other = (
        f"κ does not measure {UNMEASURED[state]}" if state in UNMEASURED else f"κ was read after layer {levers.where}"
    )
    text = f"No lever was tried for the {state} after {in_layers(layers)}: {other}. "
    return replace(levers, answer="not tried for this state", text=text + levers.text.removeprefix(_NOTHING_NEEDED))


def _named(trial: Trial) -> str:
    return f"the {'attention' if trial.part == 0 else 'feed-forward part'} of layer {trial.layer}"


def _cost(trial: Trial) -> str:
    if np.isnan(trial.loss_change.value):
        return "at a cost that is not known: no head that predicts the next token was found"
    return f"at a cost of {_change(trial.loss_change)} nats of loss"


def _plain(found: Estimate) -> str:
    return estimate(found.value, (found.low, found.high), CONFIDENCE)


def _change(found: Estimate) -> str:
    return estimate(found.value, (found.low, found.high), CONFIDENCE, places=3, sign=True)
