"""Instrument 3: feed the attention's keys, values or queries from other sequences, and see what the answer follows."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.circuits.evidence.instrument import Estimate, Instrument, all_of
from tokendynamics.circuits.evidence.resampling import root
from tokendynamics.circuits.evidence.trial import Trial, pairs


def patching(trial: Trial, threshold: float) -> Instrument:
    """Path patching of categories, on one side of the attention at a time; everything else sees the true sequence.

    The headline of a side is the share of the interaction that no longer follows the own pair (a, b) once that side
    sees another sequence, where the pair is (a', b'). (Before − after) is regressed on the interaction at (a, b),
    (a', b), (a, b') and (a', b') at once, beside one-hots of the four categories; the share is the slope on that of
    (a, b). So it does not matter whether the side brings the previous category, the current one or both, and additive
    terms of the task, which need no logic, do not count. A path that carries α·q_true reads α. The other three slopes,
    the share that now follows another pair, are in the details; a model that is merely thrown off follows none.

    Attention weighs pairs of categories only if they matter in the keys AND in the queries, so it may do the logic
    only where both shares exceed the threshold; keys alone, or keys and queries in a sum, can also serve hidden units
    that do the logic. Interaction that comes by the values is not in the weights: the instrument then points at the
    feed-forward part; without any it says nothing of that part, which may have the categories from the keys.

    "Rise" is √(rise of the loss / E[(q(a', b) − q(a, b))²]), where additive terms count too.

    Args:
        trial: Model and sequences; its `other` ones are fed in.
        threshold: A share counts from this size on, of either sign.
    """
    outputs = _exchanged(trial)
    slopes = {side: _slopes(trial, side, changed) for side, changed in outputs.items()}
    keys, values, queries = (own for own, *_ in slopes.values())
    sentence = (
        f"of the interaction, {keys.number} comes by the keys and {values.number} by the values; "
        f"{queries.number} depends on what the queries see."
    )
    return Instrument(
        "path patching",
        "other categories fed to one side of the attention",
        all_of(keys.beyond(threshold), queries.beyond(threshold)),
        values.beyond(threshold) or None,
        (keys, values, queries),
        sentence if trial.has_logic else "q_true has no interaction that could be followed.",
        {
            "rise of the loss": [_rise(trial, side, changed) for side, changed in outputs.items()],
            "share that follows another pair": {side: others for side, (_, *others) in slopes.items()},
        },
    )


def _exchanged(trial: Trial) -> dict[str, Tensor]:
    """The outputs when one side sees the other sequences."""
    model, x, other = trial.model, trial.x, trial.other

    def asked(received: Tensor, asking: Tensor) -> Tensor:
        return model.read(model.attend(asking, received, received) + model.skip * model.embed(received))

    return {
        "keys": trial.run(lambda true, fed: model.read(model.stream(true, keys=fed)), x, other),
        "values": trial.run(lambda true, fed: model.read(model.stream(true, values=fed)), x, other),
        "queries": trial.run(asked, x, other),
    }


def _slopes(trial: Trial, side: str, changed: Tensor) -> list[Estimate]:
    """How much less the answer follows the own pair, and how much more each of three others."""
    previous, current, fed_previous, fed_current = _categories(trial)
    table = trial.task.interaction
    contrasts = {
        side: trial.interaction,
        "previous exchanged": -pairs(table, fed_previous, current),
        "current exchanged": -pairs(table, previous, fed_current),
        "both exchanged": -pairs(table, fed_previous, fed_current),
    }
    return trial.slopes(trial.outputs - changed, contrasts, previous, current, fed_previous, fed_current)


def _rise(trial: Trial, side: str, changed: Tensor) -> Estimate:
    previous, current, fed_previous, fed_current = _categories(trial)
    pair = (previous, fed_current) if side == "queries" else (fed_previous, current)
    reference = (pairs(trial.task.q_true, *pair) - trial.targets).square().sum(dim=1)
    return trial.bootstrap.ratio(side, trial.rise(changed), reference, root)


def _categories(trial: Trial) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Previous and current category of each token from 2 on, and those fed in."""
    return trial.x[:, :-1], trial.x[:, 1:], trial.other[:, :-1], trial.other[:, 1:]
