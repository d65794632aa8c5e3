"""Which attention heads make tokens of a text alike: first order for all, then runs without the strongest; in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.auditing._words import FEWEST, STRONG, SURE, p_value_in_words, rank_correlation
from tokendynamics.diagnosis.gating._levers import halves_of, try_parts, with_effect
from tokendynamics.diagnosis.gating._result import Halves, Levers
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, layer_of_heads, sensitivities
from tokendynamics.diagnosis.gating.trials import CONFIDENCE, Costs, Loss, Trial, Trials
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for
from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import why
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.gates import GatedNetwork, HeadGates, PartAndHeadGates
from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.results import Refused
from tokendynamics.words import Finding, count, estimate, fixed, indefinite, listing, plural

CANDIDATES = 8
"""Heads that are removed, the most promising first."""

MOST_NAMED = 4
"""Heads that the sentence names; further significant ones are counted."""

_SHORT = 3
"""Heads that the first screen names."""

SMALLEST = 0.001
"""Change of κ below which a significant head is not named: it would be printed as 0."""

_DESCRIPTIONS = {
    "consensus_sensitivity": "derivative of κ by a gate on the head's output, at gate 1; positive: the head raises κ",
    "loss_sensitivity": "derivative of the cross-entropy by the same gate, in nats; NaN where a loss was passed",
    "consensus_effect": "κ of the network minus κ without the head, measured on other texts; NaN: not run without it",
    "consensus_effect_interval": "interval of consensus_effect over texts",
    "loss_effect": "loss of the network minus loss without the head; negative: the head lowers the loss",
    "loss_effect_interval": "interval of loss_effect over texts",
}


@typed_arguments
def head_effects(
    ckpt: Model,
    texts: Any,
    *,
    candidates: int = CANDIDATES,
    loss: Loss | None = None,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    packed: bool = True,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Measure what each attention head adds to the consensus of the tokens, and to the loss (`mathematics` 11, Heads).

    A gate a = 1 multiplies the output of each head, which is what the output projection reads of it. The derivatives
    of consensus κ and of the loss by all gates come from one forward and two backward passes of half of the texts. The
    heads of the largest |∂κ/∂a| are then removed one at a time (a = 0), on the other texts. Where one layer makes at
    least half of κ and the derivatives do not show it, all heads of that layer are removed as well. κ is read after the
    last layer (the attribute ``where``), or where the tokens of each text are in consensus on the way and not there,
    after the layer where they are most alike.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded; a network in memory.
        texts: At least five different prompts of one kind, as `tokendynamics.trace` takes them.
        candidates: Number of heads that are removed, the most promising first, beside those of such a layer.
        loss: Function of the network that returns one number; see `tokendynamics.levers`.
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
        ArgumentTypeError, ArgumentValueError: Too few texts, equal ones, or some that this network does not read; a
            loss that is not one finite number.
        CheckpointError: The heads of no layer are known, a block's parts are not found, or the network is streamed.

    >>> texts = ["one fish", "two red birds", "it rains again", "who goes there", "a long way home"]
    >>> effects = head_effects("random:gpt2-tiny", texts, candidates=2)
    >>> effects.consensus_sensitivity.shape, int(effects.consensus_effect.notnull().sum())
    ((6, 12), 2)
    """
    ckpt = checkpoint_for(ckpt, texts)
    _, halves, find, measure = halves_of(
        ckpt, texts, candidates, sink_ratio, truncate=truncate, packed=packed, progress=progress
    )
    costs = Costs(ckpt, loss, 0.0)
    with reporting(progress) as report, ckpt.gated() as gated:
        heads = _gates_of(gated, ckpt)
        first = sensitivities(heads, find, sink_ratio, report, sinks=sinks)
        first = _where_alike(first, heads, find, (sinks, sink_ratio), report)
        trials = Trials(heads, measure, first.where, sink_ratio, sinks)
        return _removed(ckpt.name, first, trials, halves, costs, report, candidates)


def levers_and_heads(
    ckpt: Checkpoint,
    texts: Any,
    *,
    sinks: str | Sequence[int],
    sink_ratio: float,
    truncate: bool,
    loss: Loss | None,
    budget: float,
    report: Progress,
) -> tuple[Levers, xr.Dataset | Refused]:
    """Return what `levers` and `head_effects` measure, from the same derivatives: one forward and two backward passes.

    Args:
        ckpt: A network in memory.
        texts: See `levers`, also for the next five.
        sinks: Likewise.
        sink_ratio: Likewise.
        truncate: Likewise.
        loss: Likewise.
        budget: Likewise.
        report: Told how far the work is.

    Returns:
        The levers, and the effects of heads; refused where no gates on heads run.

    Raises:
        ArgumentTypeError, ArgumentValueError, CheckpointError: As `levers` does.
    """
    prompts, halves, find, measure = halves_of(
        ckpt, texts, CANDIDATES, sink_ratio, truncate=truncate, packed=True, progress=report
    )
    costs = Costs(ckpt, loss, budget)
    trials: Trials | None = None
    with ckpt.gated() as gated:
        try:
            heads = _gates_of(gated, ckpt)
            both = PartAndHeadGates(gated)
            of_both = sensitivities(both, find, sink_ratio, report, sinks=sinks)
            first = _columns(of_both, slice(len(PARTS)))
            of_heads = _columns(of_both, slice(len(PARTS), None))
            of_heads = _where_alike(of_heads, heads, find, (sinks, sink_ratio), report)
            trials = Trials(both, measure, of_heads.where, sink_ratio, sinks)
            effects = _removed(ckpt.name, of_heads, trials.of_gates(heads), halves, costs, report)
        except CheckpointError as error:
            effects, first = Refused(why(error, ckpt.name)), sensitivities(gated, find, sink_ratio, report, sinks=sinks)
        if trials is not None and trials.where == first.where:
            trials = trials.of_gates(gated)
        else:
            trials = Trials(gated, measure, first.where, sink_ratio, sinks)
        tried = try_parts(ckpt, first, trials, halves, costs, report)
    counting = {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}
    return with_effect(tried, ckpt, prompts, halves, counting), effects


def _where_alike(
    first: Sensitivities,
    heads: HeadGates,
    find: Sequence[Pack],
    counting: tuple[str | Sequence[int], float],
    report: Progress,
) -> Sensitivities:
    """Return the derivatives at the layer where heads are judged; they are taken anew where that is another one."""
    where = layer_of_heads(first.consensus, first.where)
    if where == first.where:
        return first
    sinks, sink_ratio = counting
    return sensitivities(heads, find, sink_ratio, report, where, sinks)


def _columns(first: Sensitivities, chosen: slice) -> Sensitivities:
    """Return the derivatives by some of the gates."""
    return replace(first, kappa=first.kappa[:, chosen], loss=first.loss[:, chosen])


def _removed(
    name: str,
    first: Sensitivities,
    trials: Trials,
    halves: Halves,
    costs: Costs,
    report: Progress,
    candidates: int = CANDIDATES,
) -> xr.Dataset:
    """Remove the strongest heads one at a time, and return all numbers."""
    strongest = _strongest(first, candidates)
    removed = trials.of_each([(layer, head, 0.0) for layer, head in strongest], report, "removing heads")
    removed = costs.charged(removed, lambda trial: f"layer {trial.layer} head {trial.part}")
    first = replace(first, loss=np.full_like(first.loss, np.nan)) if costs.given else first
    return _as_dataset(name, first, trials, removed, halves, costs)


def heads_findings(
    effects: xr.Dataset | Refused, levers: Levers | Refused, audit: xr.Dataset | None, noun: str
) -> tuple[Finding, ...]:
    """Return the heads that change κ in words, and whether their weights predict it; or why no head was removed.

    Args:
        effects: From `head_effects`.
        levers: Of the same diagnosis; a refusal that they share is not repeated.
        audit: The balances of the heads; None without one.
        noun: What a prompt is.
    """
    if isinstance(effects, Refused):
        if effects.reason == "it was not requested" or effects == levers:
            return ()
        return (Finding(f"No single head was removed: {effects.reason}.", "components", {}),)
    prediction = () if audit is None else prediction_of_heads(effects, audit)
    return (_effects_in_words(effects, noun), *prediction)


def strongest_heads(effects: xr.Dataset | Refused, worst: Sequence[int] = ()) -> str:
    """Return the heads that raise similarity most, without symbols; empty where none does significantly.

    Args:
        effects: From `head_effects`, or why there are none.
        worst: Layers that the words before are about; where similarity was read after another one, that is said.
    """
    if isinstance(effects, Refused):
        return ""
    values = effects.consensus_effect.values
    raising = [(layer, head) for layer, head in _significant_heads(effects).tolist() if values[layer, head] > 0]
    if not raising:
        return ""
    named = [
        f"layer {layer + 1} head {head} ({fixed(values[layer, head], 3, sign=True)})"
        for layer, head in raising[:_SHORT]
    ]
    verb = "contributes" if len(named) == 1 else "contribute"
    where = effects.attrs["where"]
    elsewhere = f" to similarity after layer {where}" if worst and where not in worst else ""
    # A larger effect that is not significant is in the table as well.
    among = " with a significant effect" if np.nanmax(values) > values[tuple(raising[0])] else ""
    return f"Of the heads removed one at a time{among}, {listing(named)} {verb} most{elsewhere}."


def _significant_heads(effects: xr.Dataset) -> np.ndarray:
    """Return (layer, head), from 0, of the heads with a significant effect that shows, the largest first."""
    effect, bounds = effects.consensus_effect.values, effects.consensus_effect_interval.values
    significant = (bounds[..., 0] > 0) | (bounds[..., 1] < 0)
    shown = np.argwhere(significant & (np.abs(effect) >= SMALLEST))
    return shown[np.argsort([-abs(effect[tuple(place)]) for place in shown], kind="stable")]


def _effects_in_words(effects: xr.Dataset, noun: str) -> Finding:
    effect, bounds = effects.consensus_effect.values, effects.consensus_effect_interval.values
    significant, order = (bounds[..., 0] > 0) | (bounds[..., 1] < 0), _significant_heads(effects)

    def some(more: bool) -> str:
        return ", ".join(
            f"layer {layer + 1} head {head} {estimate(value, bounds[layer, head], CONFIDENCE, places=3, sign=True)}"
            for layer, head in order[:MOST_NAMED].tolist()
            if ((value := float(effect[layer, head])) > 0) == more
        )

    removed, there = int(np.isfinite(effect).sum()), int(effects.consensus_sensitivity.notnull().sum())
    texts = (
        [f"Heads that make the tokens of {indefinite(noun)} more alike: {raising}."]
        if (raising := some(more=True))
        else []
    )
    texts += [f"Heads that make them less alike: {lowering}."] if (lowering := some(more=False)) else []
    if not texts:
        size = f" by {SMALLEST:g} or more" if significant.any() else ""
        texts = [f"No single head that was removed changes similarity κ significantly{size}."]
    elif not raising:
        texts = [texts[0].replace("them", f"the tokens of {indefinite(noun)}", 1)]
    if len(order) > MOST_NAMED:
        texts.append(f"A significant effect was also measured for {plural(len(order) - MOST_NAMED, 'more head')}.")
    texts.append(
        f"{count(removed)} of {plural(there, 'head')} {'was' if removed == 1 else 'were'} removed one at a time on "
        f"{plural(effects.attrs['prompts_measured'], noun)}; κ is read after layer {effects.attrs['where']}."
    )
    values = {
        "layers": (order[:, 0] + 1).tolist(),
        "heads": order[:, 1].tolist(),
        "effects": [float(effect[tuple(place)]) for place in order],
        "removed": removed,
    }
    return Finding(" ".join(texts), "components", values)


def prediction_of_heads(effects: xr.Dataset, audit: xr.Dataset) -> tuple[Finding, ...]:
    """Say whether the product of a head's QK and OV balance predicts the derivative of κ; nothing for few heads.

    Args:
        effects: From `head_effects`.
        audit: From `tokendynamics.audit`; its layers are compared.
    """
    balance = (audit.qk_balance * audit.ov_balance).transpose("layer", "head").values
    layers = [layer for layer in audit.layer.values.tolist() if layer in effects.layer.values]
    measured = effects.consensus_sensitivity.sel(layer=layers).values[:, : balance.shape[1]]
    known = np.isfinite(balance) & np.isfinite(measured)
    if known.sum() < FEWEST:
        return ()
    correlation, p = rank_correlation(balance[known], measured[known])
    if np.isnan(correlation):
        return ()
    partly = "" if abs(correlation) >= STRONG else "partly "
    opposite = "" if correlation > 0 else "the opposite of "
    verb = f"{partly}predict {opposite}" if p < SURE else "do not predict "
    numbers = f"Spearman ρ = {fixed(correlation)}, p {p_value_in_words(p)}, {plural(int(known.sum()), 'head')}"
    compared = (
        "This compares the product of both balances (1: all eigenvalues are positive, −1: all are negative) with the "
        "derivative of κ."
    )
    text = f"The QK and OV balances of a head {verb}its effect ({numbers}). {compared}"
    return (Finding(text, "components", {"rank_correlation": correlation, "p_value": p}),)


def _gates_of(gated: GatedNetwork, ckpt: Checkpoint) -> HeadGates:
    """Return the gates on heads; refuse a network of which no head is known."""
    if not bool(gated.heads.any()):
        problems = {layer.problem for layer in ckpt.layout.layers if layer.problem}
        wanted = "a network with an attention whose heads are known"
        raise CheckpointError(ckpt.name, wanted, "; ".join(sorted(problems)) or "none")
    return HeadGates(gated)


def _strongest(first: Sensitivities, count: int) -> list[tuple[int, int]]:
    """Return layer, from 1, and head of those that change κ most, to first order.

    What a head writes far beyond the states has no derivative: where derivatives do not show what makes κ, all heads of
    the layer that makes it follow.
    """
    sizes = np.nan_to_num(np.abs(first.kappa), nan=-1.0)
    order = np.argsort(-sizes, axis=None, kind="stable")[: min(count, int((sizes >= 0).sum()))]
    chosen = [(int(place) // sizes.shape[1] + 1, int(place) % sizes.shape[1]) for place in order]
    layer = first.flat_layer
    heads = [] if layer is None else np.flatnonzero(sizes[layer - 1] >= 0).tolist()
    return [*chosen, *((layer, head) for head in heads if layer is not None and (layer, head) not in chosen)]


def _as_dataset(
    name: str, first: Sensitivities, trials: Trials, removed: Sequence[Trial], halves: Halves, costs: Costs
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
        "loss_unit": costs.unit.strip(),
        **halves.facts,
    }
    table = xr.Dataset(variables, coords=coords, attrs=attrs)
    for key, description in _DESCRIPTIONS.items():
        table[key].attrs["description"] = description
    return table
