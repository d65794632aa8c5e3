"""Instrument 3: feed the attention's keys, values or queries from other sequences, and see what the answer follows."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.circuits.evidence.instrument import Estimate, Instrument
from tokendynamics.circuits.evidence.resampling import root
from tokendynamics.circuits.evidence.trial import Trial, pairs


def patching(trial: Trial, threshold: float) -> Instrument:
    """Path patching of categories, on one side of the attention at a time; everything else sees the true sequence.

    A pair reaches the answer by the keys if attention weighs it (the logic is in the weights), and by the values if
    attention only carries the previous category on (the logic comes later). The queries are an extra: logic in the
    weights needs the current category there, a feed-forward part gets it from the skip connection.

    Two shares for each side, both α for a path that carries α·q_true. "Share" is the slope of (before − after) on
    (interaction of the true pair − interaction of the exchanged pair), both freed of sums of functions of one category
    each: additive terms of the task need no logic, whichever way they go. "Rise" is
    √(rise of the loss / E[(q(a', b) − q(a, b))²]), where they count.

    Args:
        trial: Model and sequences; its `other` ones are fed in.
        threshold: A part takes part from this share on.
    """
    model, x, other = trial.model, trial.x, trial.other

    def asked(received: Tensor, asking: Tensor) -> Tensor:
        return model.read(model.attend(asking, received, received) + model.skip * model.embed(received))

    outputs = {
        "keys": trial.run(lambda true, fed: model.read(model.stream(true, keys=fed)), x, other),
        "values": trial.run(lambda true, fed: model.read(model.stream(true, values=fed)), x, other),
        "queries": trial.run(asked, x, other),
    }
    previous, current = (other[:, :-1], x[:, 1:]), (x[:, :-1], other[:, 1:])
    exchanged = {"keys": previous, "values": previous, "queries": current}
    shares = [_share(trial, side, outputs[side], *exchanged[side]) for side in outputs]
    rises = [_rise(trial, side, outputs[side], *exchanged[side]) for side in outputs]
    keys, values, queries = shares
    sentence = (
        f"of the interaction, {keys.number} comes by the keys and {values.number} by the values; "
        f"{queries.number} depends on what the queries see."
    )
    return Instrument(
        "path patching",
        "other categories fed to one side of the attention",
        keys.above(threshold),
        values.above(threshold),
        (keys, values, queries),
        sentence if trial.has_logic else "q_true has no interaction that could be followed.",
        {"rise of the loss": rises},
    )


def _share(trial: Trial, side: str, outputs: Tensor, previous: Tensor, current: Tensor) -> Estimate:
    contrast = trial.interaction - pairs(trial.task.interaction, previous, current)
    single = trial.x[:, :-1], trial.x[:, 1:], previous, current
    return trial.slope(side, trial.outputs - outputs, contrast, *single)


def _rise(trial: Trial, side: str, outputs: Tensor, previous: Tensor, current: Tensor) -> Estimate:
    reference = (pairs(trial.task.q_true, previous, current) - trial.targets).square().sum(dim=1)
    return trial.bootstrap.ratio(side, trial.rise(outputs), reference, root)
