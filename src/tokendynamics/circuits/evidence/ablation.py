"""Instrument 4: take the interaction out of one block of ``k^t q``, or the bend out of the hidden units."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.circuits.evidence.centring import QK_BLOCKS, block_name, double_centred, weights_of
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument
from tokendynamics.circuits.evidence.linear_units import linear_units
from tokendynamics.circuits.evidence.trial import Trial
from tokendynamics.circuits.hand_built.transformer import Block, OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask


def ablation(trial: Trial, threshold: float) -> Instrument:
    """What is lost when a part keeps all it does except the logic.

    A block of ``k^t q`` is replaced by its additive part (row + column + mean) in every head. The verdict rests on
    the category–category block; without the position–position block a transformer that routes by position loses its
    way, which says nothing about logic. The feed-forward part is replaced by hidden units that are affine in their own
    inputs; see `linear_units`.

    Two shares for each: "lost", the part of the interaction that leaves the answer (see `Trial.lost`), and "rise",
    √(rise of the loss / variance of the interaction), which also counts additive terms that are spoilt on the way.
    The category–category block of an exact attention gives 1 for both as long as ReLU does not clip the additive part.
    Hidden units may also bend for other reasons than the logic (to drop what other positions wrote, say): what they
    lose counts for the feed-forward part only together with path patching.

    Args:
        trial: Model and sequences.
        threshold: A part takes part from this share on.
    """
    outputs = {
        block_name(block): trial.run(without_interaction(trial.model, trial.task, block), trial.x)
        for block in QK_BLOCKS
    }
    outputs["hidden units"] = linear_units(trial)
    lost = {name: trial.lost(name, changed) for name, changed in outputs.items()}
    rises = [trial.rise_share(name, changed) for name, changed in outputs.items()]
    attended, hidden = lost["category–category"], lost["hidden units"]
    details: dict[str, object] = {"rise of the loss": rises, "category–category by head": _by_head(trial)}
    if trial.model.norm is not None:
        details["norm and hidden units linear"] = trial.lost("norm and hidden units", linear_units(trial, norm=True))
    sentence = (
        f"{attended.number} of the interaction is lost with that of the category–category block, "
        f"{hidden.number} with linear hidden units"
        if trial.has_logic
        else "q_true has no interaction that could be lost"
    )
    return Instrument(
        "ablation",
        "interaction taken out of a block of k^t q, or hidden units made linear",
        attended.above(threshold),
        hidden.above(threshold),
        (attended, hidden, *(entry for name, entry in lost.items() if "position" in name)),
        f"{sentence}.",
        details,
    )


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
