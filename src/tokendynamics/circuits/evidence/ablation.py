"""Instrument 4: take the interaction out of the attention, or the bend out of the hidden units."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.circuits.evidence.additive_attention import additive_attention
from tokendynamics.circuits.evidence.centring import QK_BLOCKS, block_name, double_centred, weights_of
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument, all_of, any_of
from tokendynamics.circuits.evidence.linear_units import linear_units
from tokendynamics.circuits.evidence.trial import Trial
from tokendynamics.circuits.hand_built.transformer import Block, OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask


def ablation(trial: Trial, threshold: float) -> Instrument:
    """What is lost when a part keeps all it does except the logic.

    - "whole attention": what attention writes becomes additive in the categories; see `additive_attention`. The loss
      is what the attention's interaction contributes. What is "left without it" is made after the attention.
    - "hidden units": they become affine in their own inputs; see `linear_units`. Where there is a norm, also "norm and
      hidden units": section 8 of mathematics counts it with the feed-forward part.
    - each block of ``k^t q``, in every head, becomes its additive part (row + column + mean). Without the
      position–position block a transformer that routes by position loses its way, which says nothing about logic.

    The attention takes part if the first share exceeds the threshold. Hidden units may bend for other reasons than
    the logic (to drop what other positions wrote, say), and they may clip what an additive attention writes; so the
    feed-forward part takes part if both hold: making it linear loses some, and some is left without the attention's.

    Shares are slopes on the interaction (see `Trial.lost`). "Rise" is
    √(rise of the loss / variance of the interaction), which also counts additive terms that are spoilt on the way;
    "interaction of any shape" (see `Trial.any_interaction`) counts logic that is not along q_true's.

    Args:
        trial: Model and sequences.
        threshold: A share counts from this size on, of either sign.
    """
    without = additive_attention(trial)
    outputs = {"whole attention": without, **_without_bends(trial)}
    bends = [name for name in outputs if name != "whole attention"]
    for block in QK_BLOCKS:
        outputs[block_name(block)] = trial.run(without_interaction(trial.model, trial.task, block), trial.x)
    lost = {name: trial.lost(name, changed) for name, changed in outputs.items()}
    attended, left = lost.pop("whole attention"), trial.left("left without it", without)
    sentence = (
        f"{attended.number} of the interaction is lost with an attention that writes sums and {left.number} is left; "
        f"{lost['hidden units'].number} is lost with linear hidden units"
        if trial.has_logic
        else "q_true has no interaction that could be lost"
    )
    return Instrument(
        "ablation",
        "interaction taken out of the attention or of a block of k^t q, or hidden units made linear",
        attended.beyond(threshold),
        all_of(left.beyond(threshold), any_of(*(lost[name].beyond(threshold) for name in bends))),
        (attended, left, *lost.values()),
        f"{sentence}.",
        {
            "rise of the loss": [trial.rise_share(name, changed) for name, changed in outputs.items()],
            "interaction of any shape": [
                trial.any_interaction("whole attention", trial.outputs - without),
                trial.any_interaction("left without it", without),
            ],
            "category–category by head": _by_head(trial),
        },
    )


def _without_bends(trial: Trial) -> dict[str, Tensor]:
    """The outputs with linear hidden units, and with a linear norm too where there is one."""
    outputs = {"hidden units": linear_units(trial)}
    if trial.model.norm is not None:
        outputs["norm and hidden units"] = linear_units(trial, norm=True)
    return outputs


def without_interaction(
    model: OneLayerTransformer, task: PairTask, block: tuple[Block, Block], head: int | None = None
) -> OneLayerTransformer:
    """The transformer with one block of ``k^t q`` replaced by its additive part, in one head or in all."""
    heads = slice(None) if head is None else slice(head, head + 1)
    sender, receiver = block
    where = heads, model.block(sender), model.block(receiver)
    changed: Tensor = model.key_query.clone()
    changed[where] -= double_centred(changed[where], weights_of(task, sender), weights_of(task, receiver))
    return model.with_key_query(changed)


def _by_head(trial: Trial) -> list[Estimate]:
    """The category–category block taken out of one head at a time."""
    count = trial.model.key_query.shape[0]
    if count == 1:
        return []
    changed = [without_interaction(trial.model, trial.task, QK_BLOCKS[0], head) for head in range(count)]
    return [trial.lost(f"head {head + 1}", trial.run(one, trial.x)) for head, one in enumerate(changed)]
