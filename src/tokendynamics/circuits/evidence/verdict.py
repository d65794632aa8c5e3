"""One answer from the two instruments that change something and watch what happens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tokendynamics.circuits.evidence.instrument import Estimate, Instrument, all_of
from tokendynamics.circuits.evidence.trial import Trial

Verdict = Literal["attention", "feed-forward", "both", "undecided"]

TAKES_PART = 0.1
"""A part takes part if it carries more than this share of the interaction, of either sign, its whole interval above."""

MAY_MISS = 0.25
"""A model does the task if its loss stays below this share of the interaction's variance, its whole interval below."""


@dataclass(frozen=True)
class Decision:
    """The verdict and why."""

    verdict: Verdict
    sentence: str


def decide(
    trial: Trial, loss: Estimate, missed: Estimate, patched: Instrument, ablated: Instrument, probed: Instrument
) -> Decision:
    """Which part does the logic, or why that cannot be told.

    The attention takes part if more than `TAKES_PART` of the interaction, of either sign,

    - leaves the own pair when the keys see other categories, and so when the queries do (path patching), and
    - is lost when what attention writes becomes additive in the categories (ablation).

    The feed-forward part takes part if more than `TAKES_PART` of the interaction, of either sign,

    - is left when what attention writes is additive (something after it made that), and
    - is lost when the hidden units, or the norm and the hidden units, become linear (both ablation).

    A part that fails is only ruled out if nothing speaks against that; see `_objection`.

    Args:
        trial: For what the task holds.
        loss: Mean squared error.
        missed: The loss over the interaction's variance.
        patched: Path patching.
        ablated: Ablation.
        probed: Probing; only for objections.

    Returns:
        "undecided" where there is no logic, where the model does not do the task, where the intervals do not settle
        it, where there is an objection, or where no part passes; the sentence says which.
    """
    refused = _refused(trial, loss, missed)
    if refused is not None:
        return Decision("undecided", refused)
    attention, feed_forward = all_of(patched.attention, ablated.attention), ablated.feed_forward
    numbers = _numbers(patched, ablated)
    if attention is None or feed_forward is None:
        return Decision("undecided", f"the intervals do not settle it at the threshold {TAKES_PART:g} ({numbers}).")
    objection = _objection(attention, feed_forward, ablated, probed)
    if objection is not None:
        return Decision("undecided", f"{objection} ({numbers}).")
    if not attention and not feed_forward:
        return Decision("undecided", f"no part passes path patching and ablation ({numbers}).")
    if attention and feed_forward:
        return Decision("both", f"the attention and the feed-forward part each carry some of the logic ({numbers}).")
    part: Verdict = "attention" if attention else "feed-forward"
    where = "in the attention's weights" if attention else "in the feed-forward part"
    return Decision(part, f"the logic is {where} ({numbers}).")


def _refused(trial: Trial, loss: Estimate, missed: Estimate) -> str | None:
    """Why there is nothing to decide, if so."""
    if not trial.has_logic:
        return "there is no logic to attribute: q_true is a sum of one-category functions."
    if loss.value is None:
        return "the model's answers are not finite numbers."
    if missed.above(MAY_MISS) is not False:
        return f"the model does not do the task: its loss is {missed.value:.2g} of the interaction's variance."
    return None


def _objection(attention: bool, feed_forward: bool, ablated: Instrument, probed: Instrument) -> str | None:
    """What speaks against ruling out a part that fails, if anything.

    A part may make an interaction that is not along q_true's, for the other part to take off again, and attention may
    make q_true's without the keys, from weights that depend on one category and values that depend on another. No
    share shows that, but the interaction of any shape that comes and goes with the part does: it then has a quarter
    of the variance of q_true's. Hidden units must again fail to do without their bend as well.

    Hidden units may also bend a pure interaction that attention wrote (|A| from A), and leave nothing without it:
    then what attention writes does not hold the answer.
    """
    if not attention and _large(ablated, "interaction of any shape", "whole attention"):
        return "the attention makes an interaction, but not by its keys, or not along that of q_true"
    made = _large(ablated, "interaction of any shape", "left without it")
    bends = any(_large(ablated, "rise of the loss", name) for name in ("hidden units", "norm and hidden units"))
    if not feed_forward and made and bends:
        return "the feed-forward part makes an interaction, but not along that of q_true"
    if not feed_forward and probed.feed_forward:
        return "no linear readout finds the interaction in what attention writes, yet none of it is left without that"
    return None


def _large(instrument: Instrument, kind: str, name: str) -> bool:
    """Whether a number of the details may be above √`MAY_MISS`, so that the loss would be above `MAY_MISS`."""
    return any(
        entry.name == name and entry.above(math.sqrt(MAY_MISS)) is not False for entry in instrument.details[kind]
    )


def _numbers(patched: Instrument, ablated: Instrument) -> str:
    attention = (patched.named("keys"), patched.named("queries"), ablated.named("whole attention"))
    shown = ("left without it", "hidden units", "norm and hidden units")
    feed_forward = [entry for entry in ablated.estimates if entry.name in shown]
    return f"attention: {', '.join(map(str, attention))}; feed-forward: {', '.join(map(str, feed_forward))}"
