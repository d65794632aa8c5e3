"""The rule that turns the measurements into one verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tokendynamics.circuits.evidence._interventions import twice_or_together
from tokendynamics.circuits.evidence._trial import EvidenceTrial
from tokendynamics.circuits.evidence.instrument import Estimate, Found, Instrument, all_of, any_of
from tokendynamics.words import number

Verdict = Literal["attention", "feed-forward", "both", "either", "undecided"]

TAKES_PART = 0.1
"""A part counts from this share of the interaction, of either sign; its whole confidence interval must lie above."""

THRESHOLDS = (0.01, 0.02, 0.05, TAKES_PART, 0.2, 0.3)
"""Shares at which the verdict is repeated, to show how much it depends on the chosen one."""

MAY_MISS = 0.25
"""A model does the task if the whole interval of its loss lies below this share of the interaction's variance."""

MOST = 0.5
"""Either part suffices if each computes more than this share of the interaction alone, the whole interval above."""


@dataclass(frozen=True)
class Decision:
    """The verdict and its reason."""

    verdict: Verdict
    sentence: str


def decide(findings: Findings, threshold: float = TAKES_PART) -> Decision:
    """Decide which part does the logic, or say why that is undecided.

    The attention takes part if more than `threshold` of the interaction, of either sign, is lost when what it writes
    becomes additive in the categories, and as much

    - leaves the own pair when the keys see other categories, and so when the queries do (path patching), or
    - is left when everything after the attention is linear: only the attention can have computed that.

    The feed-forward part takes part if more than `threshold` is left when what attention writes is additive (something
    after it computes that), and is lost when the hidden units, or the norm and the hidden units, become linear.

    Where each part computes more than `threshold` without the other, ablating one at a time shows less than what each
    does, and neither is named alone. The answer is "either" if that share is more than `MOST`, else "both". A part is
    not named alone either if the other computes more than `threshold` without it for another reason, or if something
    else prevents ruling out the other; see `_objection`.

    The answer is "undecided" where there is no logic, where the model does not do the task, where the intervals contain
    the threshold, where there is an objection, or where no part passes; the sentence says which.
    """
    refused = _refused(findings)
    if refused is not None:
        return Decision("undecided", refused)
    by_weights = all_of(findings.keys.beyond(threshold), findings.queries.beyond(threshold))
    by_attention = any_of(by_weights, findings.by_attention.beyond(threshold))
    attention = all_of(findings.without_attention.beyond(threshold), by_attention)
    bends = any_of(*(lost.beyond(threshold) for lost in findings.without_bends))
    feed_forward = all_of(findings.after_attention.beyond(threshold), bends)
    # Each part computes some without the other; a sum of losses alone could come from opposite signs.
    alone = (findings.twice, findings.by_attention, findings.after_attention)
    twice = all_of(*(share.above(threshold) for share in alone))
    if twice:
        verdict: Verdict = "either" if findings.twice.above(MOST) else "both"
        return Decision(verdict, f"{_stand_in(findings, threshold, verdict)} {_numbers(findings)}")
    if attention is None or feed_forward is None or twice is None:
        return Decision(
            "undecided",
            f"The confidence intervals are too wide to decide at the threshold {number(threshold)}. "
            f"{_numbers(findings)}",
        )
    objection = _objection(findings, threshold, attention, feed_forward)
    if objection is not None:
        return Decision("undecided", f"{objection} {_numbers(findings)}")
    how = "'s weights" if by_weights else ", in products of its weights and values"
    answers: dict[tuple[bool, bool], Decision] = {
        (True, True): Decision("both", "The attention and the feed-forward part each carry some of the logic."),
        (True, False): Decision("attention", f"The logic is in the attention{how}."),
        (False, True): Decision("feed-forward", "The logic is in the feed-forward part."),
        (False, False): Decision("undecided", "Neither part passes both path patching and ablation."),
    }
    answer = answers[attention, feed_forward]
    return Decision(answer.verdict, f"{answer.sentence} {_numbers(findings)}")


def _refused(findings: Findings) -> str | None:
    """Return why there is nothing to decide; None if there is."""
    if not findings.has_logic:
        return "There is no logic to attribute: q_true is a sum of one-category functions."
    if findings.loss.value is None:
        return "The model's outputs are not finite."
    if findings.missed.above(MAY_MISS) is not False:
        share = number(findings.missed.value, 2)
        return f"The model does not do the task: its loss is {share} of the interaction's variance."
    return None


def _stand_in(findings: Findings, threshold: float, verdict: Verdict) -> str:
    """Return what each part computes without the other, and which part the rest needs."""
    lost = {"the attention": [findings.without_attention], "the feed-forward part": findings.without_bends}
    needed = [
        part for part, shares in lost.items() if any_of(*(share.beyond(threshold) for share in shares)) is not False
    ]
    share, rest = (
        findings.twice.written(findings.confidence),
        f"; the rest needs {' or '.join(needed)}" if needed else "",
    )
    if verdict == "both":
        return f"Each part computes {share} of the interaction without the other{rest}."
    if needed:
        return f"Either part suffices for {share} of the interaction{rest}."
    return "Either part suffices: each computes the logic without the other."


def _objection(findings: Findings, threshold: float, attention: bool, feed_forward: bool) -> str | None:
    """Return what prevents ruling out a part that fails; None if nothing does.

    The other part computes what is left without a part that would be named alone, whatever else failed.

    A part may also compute an interaction that is not along q_true's, which the other part subtracts again, and
    attention may compute q_true's without the keys, from weights that depend on one category and values that depend on
    another. No share shows that, but the interaction of any shape that is lost with the part does: it then has a
    quarter of the variance of q_true's. Hidden units must again also lose the task when they become linear.

    Hidden units may also turn a pure interaction that attention wrote into another (|A| from A), with nothing left
    without it: then what attention writes does not hold the answer.
    """
    if attention and not feed_forward and findings.after_attention.beyond(threshold) is not False:
        return f"More than {number(threshold)} of the interaction may remain with an additive attention."
    if feed_forward and not attention and findings.by_attention.beyond(threshold) is not False:
        return f"More than {number(threshold)} of the interaction may remain with linear units after the attention."
    if not attention and _large(findings.shape_of_attention):
        return "The attention computes an interaction, but not by its keys, or not along that of q_true."
    if not feed_forward and _large(findings.shape_after_attention) and any(map(_large, findings.rises)):
        return "The feed-forward part computes an interaction, but not along that of q_true."
    if not feed_forward and findings.unread:
        return "No linear readout finds the interaction in what attention writes, yet none of it remains without that."
    return None


def _large(share: Estimate) -> bool:
    """Whether a share may be above √`MAY_MISS`, so that the loss would be above `MAY_MISS`."""
    return share.above(math.sqrt(MAY_MISS)) is not False


def _numbers(findings: Findings) -> str:
    """Return the shares that decide, each with what was changed to measure it."""

    def written(share: Estimate) -> str:
        return share.written(findings.confidence)

    shared, (units, *with_norm) = twice_or_together(findings.twice), findings.without_bends
    together = "is computed by either part alone" if shared is findings.twice else "needs both parts"
    norm = "".join(f", and {written(share)} if the norm is linear, too" for share in with_norm)
    return (
        f"Of the interaction in q_true, {written(findings.keys)} comes through the keys and "
        f"{written(findings.queries)} through the queries. "
        f"If the attention writes only sums of functions of one category, {written(findings.without_attention)} of it "
        f"is lost and {written(findings.after_attention)} is left. "
        f"If the hidden units are linear, {written(units)} is lost{norm}; {written(findings.by_attention)} is left. "
        f"A share of {written(shared)} {together}."
    )


@dataclass(frozen=True)
class Findings:
    """The measurements of patching, ablation and probing on one model; shares are of q_true's interaction.

    Attributes:
        has_logic: Whether q_true has an interaction.
        loss: Mean squared error; without a value where it is not finite.
        missed: The loss over the interaction's variance.
        keys: Share that leaves the own pair when the keys see other categories.
        queries: The same for the queries.
        without_attention: Lost when attention writes sums.
        after_attention: Left then: computed after the attention.
        without_bends: Lost with linear hidden units, and with a linear norm too where there is one.
        by_attention: Left when everything after the attention is linear: computed by the attention.
        twice: Lost with both at once beyond what they lose one by one: what either part computes without the other.
        shape_of_attention: Interaction of any shape that is lost with the attention's.
        shape_after_attention: Interaction of any shape that is left without the attention's.
        rises: Rise of the loss with linear hidden units, and with a linear norm too.
        unread: Whether a linear readout fails to find the interaction in what attention writes.
        confidence: Of the intervals.
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
    confidence: float = 0.95

    @classmethod
    def of(cls, trial: EvidenceTrial, patched: Instrument, ablated: Instrument, probed: Instrument) -> Findings:
        """Return the numbers of the instruments."""
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
            confidence=trial.bootstrap.confidence,
        )
