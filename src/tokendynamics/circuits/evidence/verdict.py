"""One answer from the two instruments that change something and watch what happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokendynamics.circuits.evidence.instrument import Estimate, Found, Instrument
from tokendynamics.circuits.evidence.trial import Trial

Verdict = Literal["attention", "feed-forward", "both", "undecided"]

TAKES_PART = 0.1
"""A part takes part in the logic if it carries more than this share of the interaction, its whole interval above."""

MAY_MISS = 0.25
"""A model does the task if its loss stays below this share of the interaction's variance, its whole interval below."""


@dataclass(frozen=True)
class Decision:
    """The verdict and why."""

    verdict: Verdict
    sentence: str


def decide(trial: Trial, loss: Estimate, missed: Estimate, patched: Instrument, ablated: Instrument) -> Decision:
    """Attention takes part if patching (keys) and ablation (category block) both say so; likewise the other part.

    Args:
        trial: For what the task holds.
        loss: Mean squared error.
        missed: The loss over the interaction's variance.
        patched: Path patching; its "keys" and "values" are read.
        ablated: Ablation; its "category–category" and "hidden units" are read.

    Returns:
        "undecided" where there is no logic, where the model does not do the task, where no part passes both
        instruments, or where the intervals do not settle it; the sentence says which.
    """
    if not trial.has_logic:
        return Decision("undecided", "there is no logic to attribute: q_true is a sum of one-category functions.")
    if loss.value is None:
        return Decision("undecided", "the model's answers are not finite numbers.")
    if missed.above(MAY_MISS) is not False:
        sentence = f"the model does not do the task: its loss is {missed.value:.2g} of the interaction's variance."
        return Decision("undecided", sentence)
    attention = _takes_part(patched.attention, ablated.attention)
    feed_forward = _takes_part(patched.feed_forward, ablated.feed_forward)
    shown = {
        "attention": f"{patched.named('keys')}, {ablated.named('category–category')}",
        "feed-forward": f"{patched.named('values')}, {ablated.named('hidden units')}",
    }
    numbers = "; ".join(f"{part}: {entry}" for part, entry in shown.items())
    if attention is None or feed_forward is None:
        return Decision("undecided", f"the intervals do not settle it at the threshold {TAKES_PART:g} ({numbers}).")
    if not attention and not feed_forward:
        return Decision("undecided", f"no part passes both path patching and ablation ({numbers}).")
    if attention and feed_forward:
        return Decision("both", f"the attention and the feed-forward part each carry some of the logic ({numbers}).")
    part: Verdict = "attention" if attention else "feed-forward"
    where = "in the attention's weights" if attention else "in the feed-forward part"
    return Decision(part, f"the logic is {where} ({numbers}).")


def _takes_part(patched: Found, ablated: Found) -> Found:
    if patched is False or ablated is False:
        return False
    return True if patched and ablated else None
