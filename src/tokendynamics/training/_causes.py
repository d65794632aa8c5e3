"""Why a loss may have ceased to be a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokendynamics.modules import REGIMES
from tokendynamics.training._experiment import Experiment

_ROSE = 0.5
"""Nats by which a loss must have risen above its lowest to be called rising."""
_GUESS = 20.0
"""Nats that a guess costs at most: of one among e^20, more than any vocabulary has."""
_SINGULAR = 1e5
"""Condition number from which on an inverse in float32 keeps less than two digits."""

Course = Sequence[Mapping[str, float | None]]


def likely_causes(experiment: Experiment, history: Course, validation: Course) -> list[str]:
    """Return sentences that name what speaks for a cause, the likelier first; at least one.

    Args:
        experiment: What was run.
        history: See `Record`.
        validation: See `Record`.
    """
    recipe, found = experiment.recipe, []
    losses = [loss for each in history if (loss := each["loss"]) is not None]
    remedies = f"try half of it, or a warm-up above {recipe.warmup} steps"
    too_high = f"the learning rate {recipe.learning_rate:g} is likely too high; {remedies}"
    if losses and losses[-1] > min(losses) + _ROSE:
        found.append(f"the loss had risen from {min(losses):.3g} to {losses[-1]:.3g} before: {too_high}")
    elif losses and losses[-1] > _GUESS:
        found.append(f"the loss before was {losses[-1]:.3g}, more than a guess costs: {too_high}")
    found += _conditioned(experiment, validation)
    if not found:
        came = f"; the loss before was {losses[-1]:.3g}" if losses else ", and it came before the first logged loss"
        found.append(f"nothing was seen to build up{came}: try half of the learning rate {recipe.learning_rate:g}")
    if recipe.precision == "fp16":
        found.append("fp16 holds no number above 65504: try bf16 or float32")
    if recipe.clip is None:
        found.append("gradients are not clipped: try clip = 1.0")
    return found


def _conditioned(experiment: Experiment, validation: Course) -> list[str]:
    """Name matrices that are inverted and had become nearly singular."""
    regime = REGIMES[experiment.model.get("regime", "baseline")]
    inverted = {"Q": ("query_condition", regime.w), "A": ("contraction_condition", regime.a)}
    if experiment.model.get("form") != "solve" or not validation:
        return []
    found = []
    for matrix, (name, constraint) in inverted.items():
        value = validation[-1].get(name, 0.0)
        if constraint is not None and (value is None or value > _SINGULAR):
            number = "that is infinite" if value is None else f"of {value:.2g}"
            found.append(
                f"{matrix} had a condition number {number}, and form = 'solve' inverts it: 'congruence' inverts nothing"
            )
    return found
