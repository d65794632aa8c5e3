"""Which attention heads make tokens of a text alike: first order for all, then runs without the strongest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.gating._levers import halves_of
from tokendynamics.diagnosis.gating._result import Halves
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, sensitivities
from tokendynamics.diagnosis.gating.trials import CONFIDENCE, Trial, Trials
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.gates import GatedNetwork, HeadGates
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.words import percent

_DESCRIPTIONS = {
    "consensus_sensitivity": "derivative of κ by a gate on the head's output, at gate 1; positive: the head raises κ",
    "loss_sensitivity": "derivative of the loss by the same gate, in nats",
    "consensus_effect": "κ of the network minus κ without the head, measured on other texts; NaN: not run without it",
    "consensus_effect_interval": "interval of consensus_effect over texts",
    "loss_effect": "loss of the network minus loss without the head, in nats; negative: the head lowers the loss",
    "loss_effect_interval": "interval of loss_effect over texts",
}


@typed_arguments
def head_effects(
    ckpt: Model,
    texts: Any,
    *,
    candidates: int = 8,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    packed: bool = True,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Measure what each attention head adds to the consensus of the tokens, and to the loss (`mathematics` 11, Heads).

    A gate a = 1 multiplies the output of each head, which is what the output projection reads of it. The derivatives
    of consensus κ and of the loss by all gates come from one forward and two backward passes of every second text. The
    heads of the largest |∂κ/∂a| are then removed one at a time (a = 0), on the other texts.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded; a network in memory.
        texts: At least five different prompts of one kind, as `tokendynamics.trace` takes them.
        candidates: Number of heads that are removed, the most promising first.
        sinks: Which tokens are excluded; see `tokendynamics.trace`. Detection by norm uses the whole network.
        sink_ratio: Likewise.
        truncate: Whether a prompt longer than the context is cut.
        packed: Whether prompts may share a forward pass: faster, the same to rounding.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with dims ``layer`` (1 … L) and ``head`` (from 0), float64: ``consensus_sensitivity``,
        ``loss_sensitivity`` (NaN without a loss), ``consensus_effect`` and ``loss_effect`` (NaN for heads that were
        not removed) and their 95 % intervals over dim ``bound``. The sensitivities of a layer's heads add up to that
        of its attention, but for what the bias of the output projection adds.

    Raises:
        ArgumentTypeError, ArgumentValueError: Too few texts, equal ones, or some that this network does not read.
        CheckpointError: The heads of no layer are known, a block's parts are not found, or the network is streamed.

    >>> texts = ["one fish", "two red birds", "it rains again", "who goes there", "a long way home"]
    >>> effects = head_effects("random:distilgpt2", texts, candidates=2)
    >>> effects.consensus_sensitivity.shape, int(effects.consensus_effect.notnull().sum())
    ((6, 12), 2)
    """
    ckpt = as_checkpoint(ckpt)
    _, halves, find, measure = halves_of(ckpt, texts, candidates, sink_ratio, truncate=truncate, packed=packed)
    with reporting(progress) as report, ckpt.gated() as gated:
        heads = _gates_of(gated, ckpt)
        first = sensitivities(heads, find, sink_ratio, report, sinks=sinks)
        trials = Trials(heads, measure, first.where, sink_ratio, sinks)
        strongest = _strongest(first, candidates)
        removed = [trials.of(layer, head, 0.0) for layer, head in tracked(strongest, report, "removing heads")]
    return _as_dataset(ckpt.name, first, trials, removed, halves)


def _gates_of(gated: GatedNetwork, ckpt: Checkpoint) -> HeadGates:
    """Return the gates on heads; refuse a network of which no head is known."""
    if not bool(gated.heads.any()):
        problems = {layer.problem for layer in ckpt.layout.layers if layer.problem}
        wanted = "a network with an attention whose heads are known"
        raise CheckpointError(expected(ckpt.name, wanted, "; ".join(sorted(problems)) or "none"))
    return HeadGates(gated)


def _strongest(first: Sensitivities, count: int) -> list[tuple[int, int]]:
    """Return layer, from 1, and head of those that change κ most, to first order."""
    sizes = np.nan_to_num(np.abs(first.kappa), nan=-1.0)
    order = np.argsort(-sizes, axis=None, kind="stable")[: min(count, int((sizes >= 0).sum()))]
    return [(int(place) // sizes.shape[1] + 1, int(place) % sizes.shape[1]) for place in order]


def _as_dataset(
    name: str, first: Sensitivities, trials: Trials, removed: Sequence[Trial], halves: Halves
) -> xr.Dataset:
    measured = {key: np.full((*first.kappa.shape, 3), np.nan) for key in ("consensus_effect", "loss_effect")}
    for trial in removed:
        for key, change in (("consensus_effect", trial.kappa_change), ("loss_effect", trial.loss_change)):
            # Without the head minus with it is what was measured; the effect is the other way round.
            measured[key][trial.layer - 1, trial.part] = (-change.value, -change.high, -change.low)
    variables: dict[str, Any] = {
        "consensus_sensitivity": (("layer", "head"), first.kappa),
        "loss_sensitivity": (("layer", "head"), first.loss),
    }
    for key, values in measured.items():
        variables[key] = (("layer", "head"), values[..., 0])
        variables[f"{key}_interval"] = (("layer", "head", "bound"), values[..., 1:])
    layers, heads = first.kappa.shape
    coords = {"layer": np.arange(1, layers + 1), "head": np.arange(heads), "bound": ["low", "high"]}
    attrs = {
        "model": name,
        "where": first.where,
        "kappa": trials.kappa.value,
        "intervals": f"{percent(CONFIDENCE)} over {halves.noun}s, each by itself: jackknife-t for κ, Student's t of "
        "paired differences for the loss",
        "proposed_on": ", ".join(halves.finding),
        "measured_on": ", ".join(halves.measuring),
    }
    table = xr.Dataset(variables, coords=coords, attrs=attrs)
    for key, description in _DESCRIPTIONS.items():
        table[key].attrs["description"] = description
    return table
