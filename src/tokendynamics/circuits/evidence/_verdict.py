"""The rule: from what was measured to one answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tokendynamics.circuits.evidence._instrument import Estimate, Found, Instrument, all_of, any_of
from tokendynamics.circuits.evidence._interventions import twice_or_together
from tokendynamics.circuits.evidence._trial import Trial

Verdict = Literal["attention", "feed-forward", "both", "either", "undecided"]

TAKES_PART = 0.1
"""A part takes part if it carries more than this share of the interaction, of either sign, its whole interval above."""

THRESHOLDS = (0.01, 0.02, 0.05, TAKES_PART, 0.2, 0.3)
"""Shares that the verdict is repeated at, to show how far it depends on the one that was chosen."""

MAY_MISS = 0.25
"""A model does the task if its loss stays below this share of the interaction's variance, its whole interval below."""

MOST = 0.5
"""Either part suffices if more than this share of the interaction is made twice, its whole interval above."""


@dataclass(frozen=True)
class Decision:
    """The verdict and why."""

    verdict: Verdict
    sentence: str


def decide(found: Findings, threshold: float = TAKES_PART) -> Decision:
    """Decide which part does the logic, or say why that cannot be told.

    The attention takes part if more than `threshold` of the interaction, of either sign, is lost when what it writes
    becomes additive in the categories, and as much

    - leaves the own pair when the keys see other categories, and so when the queries do (path patching), or
    - is left when all that follows the attention is linear: nothing but the attention can have made that.

    The feed-forward part takes part if more than `threshold` is left when what attention writes is additive (something
    after it made that), and is lost when the hidden units, or the norm and the hidden units, become linear.

    Where more than `threshold` is made twice, one part stands in for the other: what is lost one by one then shows
    less than what each does, and neither is named alone. The answer is "either" if more than `MOST` is made twice,
    else "both". Nor is a part named alone if the other makes more than `threshold` without it for any other reason,
    or if something else speaks against ruling the other out; see `_objection`.

    The answer is "undecided" where there is no logic, where the model does not do the task, where the intervals do not
    settle it, where there is an objection, or where no part passes; the sentence says which.
    """
    refused = _refused(found)
    if refused is not None:
        return Decision("undecided", refused)
    attention, feed_forward, twice = (
        _attention(found, threshold),
        _feed_forward(found, threshold),
        _twice(found, threshold),
    )
    if twice:
        verdict: Verdict = "either" if found.twice.above(MOST) else "both"
        return Decision(verdict, f"{_stand_in(found, threshold, verdict)} ({_numbers(found)}).")
    if attention is None or feed_forward is None or twice is None:
        return Decision(
            "undecided", f"the intervals do not settle it at the threshold {threshold:g} ({_numbers(found)})."
        )
    objection = _objection(found, threshold, attention, feed_forward)
    if objection is not None:
        return Decision("undecided", f"{objection} ({_numbers(found)}).")
    answers: dict[tuple[bool, bool], Decision] = {
        (True, True): Decision("both", "the attention and the feed-forward part each carry some of the logic"),
        (True, False): Decision("attention", f"the logic is in the attention{_not_by_keys(found, threshold)}"),
        (False, True): Decision("feed-forward", "the logic is in the feed-forward part"),
        (False, False): Decision("undecided", "no part passes path patching and ablation"),
    }
    answer = answers[attention, feed_forward]
    return Decision(answer.verdict, f"{answer.sentence} ({_numbers(found)}).")


def _attention(found: Findings, threshold: float) -> Found:
    weighed = all_of(found.keys.beyond(threshold), found.queries.beyond(threshold))
    return all_of(found.without_attention.beyond(threshold), any_of(weighed, found.by_attention.beyond(threshold)))


def _feed_forward(found: Findings, threshold: float) -> Found:
    bends = any_of(*(lost.beyond(threshold) for lost in found.without_bends))
    return all_of(found.after_attention.beyond(threshold), bends)


def _twice(found: Findings, threshold: float) -> Found:
    """Both parts must make some without the other; a sum of losses alone could come from opposite signs."""
    return all_of(
        found.twice.above(threshold),
        found.by_attention.above(threshold),
        found.after_attention.above(threshold),
    )


def _refused(found: Findings) -> str | None:
    """Why there is nothing to decide, if so."""
    if not found.has_logic:
        return "there is no logic to attribute: q_true is a sum of one-category functions."
    if found.loss.value is None:
        return "the model's answers are not finite numbers."
    if found.missed.above(MAY_MISS) is not False:
        return f"the model does not do the task: its loss is {found.missed.value:.2g} of the interaction's variance."
    return None


def _stand_in(found: Findings, threshold: float, verdict: Verdict) -> str:
    """Say what is made twice, and what is not."""
    lost = {"the attention": [found.without_attention], "the feed-forward part": found.without_bends}
    needed = [
        part for part, shares in lost.items() if any_of(*(share.beyond(threshold) for share in shares)) is not False
    ]
    rest = f", and the rest needs {' or '.join(needed)}" if needed else ""
    if verdict == "either":
        share = (
            f" for {found.twice.number} of the interaction{rest}"
            if needed
            else ": the other makes the logic without it"
        )
        return f"either part suffices{share}"
    return f"both parts make {found.twice.number} of the interaction, each without the other{rest}"


def _objection(found: Findings, threshold: float, attention: bool, feed_forward: bool) -> str | None:
    """Say what speaks against ruling out a part that fails, if anything.

    What is left without a part that is to be named alone is made by the other one, whatever else failed.

    A part may also make an interaction that is not along q_true's, for the other part to take off again, and attention
    may make q_true's without the keys, from weights that depend on one category and values that depend on another. No
    share shows that, but the interaction of any shape that comes and goes with the part does: it then has a quarter
    of the variance of q_true's. Hidden units must again fail to do without their bend as well.

    Hidden units may also bend a pure interaction that attention wrote (|A| from A), and leave nothing without it:
    then what attention writes does not hold the answer.
    """
    if attention and not feed_forward and found.after_attention.beyond(threshold) is not False:
        return f"more than {threshold:g} of the interaction may be left without the attention's"
    if feed_forward and not attention and found.by_attention.beyond(threshold) is not False:
        return f"more than {threshold:g} of the interaction may be left when all that follows the attention is linear"
    if not attention and _large(found.shape_of_attention):
        return "the attention makes an interaction, but not by its keys, or not along that of q_true"
    if not feed_forward and _large(found.shape_after_attention) and any(map(_large, found.rises)):
        return "the feed-forward part makes an interaction, but not along that of q_true"
    if not feed_forward and found.unread:
        return "no linear readout finds the interaction in what attention writes, yet none of it is left without that"
    return None


def _large(share: Estimate) -> bool:
    """Whether a share may be above √`MAY_MISS`, so that the loss would be above `MAY_MISS`."""
    return share.above(math.sqrt(MAY_MISS)) is not False


def _not_by_keys(found: Findings, threshold: float) -> str:
    weighed = all_of(found.keys.beyond(threshold), found.queries.beyond(threshold))
    return "'s weights" if weighed else ", in products of its weights and values"


def _numbers(found: Findings) -> str:
    attention = (found.keys, found.queries, found.without_attention)
    feed_forward = (found.after_attention, *found.without_bends)
    alone = (found.by_attention, twice_or_together(found.twice))
    return "; ".join(
        f"{part}: {', '.join(map(str, shares))}"
        for part, shares in {"attention": attention, "feed-forward": feed_forward, "alone or together": alone}.items()
    )


@dataclass(frozen=True)
class Findings:
    """What patching, ablation and probing measured of one model; shares are of q_true's interaction.

    Attributes:
        has_logic: Whether q_true has an interaction.
        loss: Mean squared error; without a value where it is not finite.
        missed: The loss over the interaction's variance.
        keys: Share that leaves the own pair when the keys see other categories.
        queries: The same for the queries.
        without_attention: Lost when attention writes sums.
        after_attention: Left then: made after the attention.
        without_bends: Lost with linear hidden units, and with a linear norm too where there is one.
        by_attention: Left when all that follows the attention is linear: made by the attention.
        twice: Lost with both at once beyond what they lose one by one: what either part makes without the other.
        shape_of_attention: Interaction of any shape that comes and goes with the attention's.
        shape_after_attention: Interaction of any shape that is left without the attention's.
        rises: Rise of the loss with linear hidden units, and with a linear norm too.
        unread: Whether a linear readout fails to find the interaction in what attention writes.
    """

    has_logic: bool
    loss: Estimate
    missed: Estimate
    keys: Estimate
    queries: Estimate
    without_attention: Estimate
    after_attention: Estimate
    without_bends: tuple[Estimate, ...]
    by_attention: Estimate
    twice: Estimate
    shape_of_attention: Estimate
    shape_after_attention: Estimate
    rises: tuple[Estimate, ...]
    unread: Found

    @classmethod
    def of(cls, trial: Trial, patched: Instrument, ablated: Instrument, probed: Instrument) -> Findings:
        """Take the numbers out of the instruments."""
        bends = ("hidden units", "norm and hidden units")
        shapes = {entry.name: entry for entry in ablated.details["interaction of any shape"]}
        return cls(
            has_logic=trial.has_logic,
            loss=trial.loss,
            missed=trial.missed,
            keys=patched.named("keys"),
            queries=patched.named("queries"),
            without_attention=ablated.named("whole attention"),
            after_attention=ablated.named("left without it"),
            without_bends=tuple(entry for entry in ablated.estimates if entry.name in bends),
            by_attention=ablated.named("left with linear units"),
            twice=ablated.named("made twice"),
            shape_of_attention=shapes["whole attention"],
            shape_after_attention=shapes["left without it"],
            rises=tuple(entry for entry in ablated.details["rise of the loss"] if entry.name in bends),
            unread=probed.feed_forward,
        )
