"""The numbers that a verdict rests on, apart from the rule that makes it."""

from __future__ import annotations

from dataclasses import dataclass

from tokendynamics.circuits.evidence.instrument import Estimate, Found, Instrument
from tokendynamics.circuits.evidence.trial import Trial


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
