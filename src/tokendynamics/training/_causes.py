"""Likely causes of a loss that is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokendynamics.modules import REGIMES
from tokendynamics.training.experiment import Experiment
from tokendynamics.words import number

_ROSE = 0.5
"""Rise above the lowest loss, in nats, from which a loss counts as rising."""
_GUESS = 20.0
"""Upper bound on the loss of a uniform guess, in nats: e^20 exceeds every vocabulary."""
_SINGULAR = 1e5
"""Condition number from which on an inverse in float32 keeps less than two digits."""

Course = Sequence[Mapping[str, float | None]]


def likely_causes(experiment: Experiment, history: Course, validation: Course) -> list[str]:
    """Return sentences on likely causes, the likeliest first; at least one.

    Args:
        experiment: What was run.
        history: See `Record`.
        validation: See `Record`.
    """
    recipe, causes = experiment.recipe, []
    losses = [loss for each in history if (loss := each["loss"]) is not None]
    remedies = f"halve it, or use a warm-up longer than {recipe.warmup} steps"
    too_high = f"the learning rate {recipe.learning_rate:g} is likely too high; {remedies}"
    if losses and losses[-1] > min(losses) + _ROSE:
        causes.append(f"the loss rose from {min(losses):.3g} to {losses[-1]:.3g} before: {too_high}")
    elif losses and losses[-1] > _GUESS:
        causes.append(f"the last loss was {losses[-1]:.3g}, more than that of a random guess: {too_high}")
    causes += _conditioned(experiment, validation)
    if not causes:
        came = f" (last loss {losses[-1]:.3g})" if losses else " (no loss was logged before)"
        causes.append(f"no cause was recorded{came}: halve the learning rate {recipe.learning_rate:g}")
    if recipe.precision == "fp16":
        causes.append("fp16 has no number above 65504: use bf16 or float32")
    if recipe.clip is None:
        causes.append("gradients are not clipped: use clip = 1.0")
    return causes


def _conditioned(experiment: Experiment, validation: Course) -> list[str]:
    """Name matrices that are inverted and had become nearly singular."""
    regime = REGIMES[experiment.model.get("regime", "baseline")]
    inverted = {"Q": ("query_condition", regime.w), "A": ("contraction_condition", regime.a)}
    if experiment.model.get("form") != "solve" or not validation:
        return []
    causes = []
    for matrix, (name, constraint) in inverted.items():
        value = validation[-1].get(name, 0.0)
        if constraint is not None and (value is None or value > _SINGULAR):
            condition = "infinity" if value is None else number(value, 2)
            causes.append(
                f"the condition number of {matrix} was {condition} and form = 'solve' inverts {matrix}: use form = "
                "'congruence'"
            )
    return causes
