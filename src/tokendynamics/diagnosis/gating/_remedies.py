"""Remedies against consensus tried on the network as it is: what each does to κ and to the loss, and which to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis.gating._levers import MUCH, halves_of
from tokendynamics.diagnosis.gating._result import CHEAP, LITTLE, NONE_TRIED, Halves, why_no_advice
from tokendynamics.diagnosis.gating.sensitivities import kappa_of, reading_layer
from tokendynamics.diagnosis.gating.trials import CONFIDENCE, Costs, EffectEstimate, Loss, Trials, columns_of
from tokendynamics.diagnosis.tracing._directions import directions_of
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import NamedPrompts, checkpoint_for
from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import why
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import relative_kappa
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.variant import Variant
from tokendynamics.pretrained.loading import Model
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.words import count, estimate, fixed, plural

UPDATES = {
    "attention updates": ("attention",),
    "feed-forward updates": ("feed_forward",),
    "all updates": ("attention", "feed_forward"),
}
"""Parts whose updates of the residual stream are scaled, in all layers."""

SCALES = (0.9, 0.7)
"""Factors on updates: a tenth less is within what training leaves, 0.7 shows where it leads."""

LOGITS, FACTORS = "attention logits", (0.5, 0.8, 1.25, 2.0)
"""Factors on the logits of attention, inverse temperatures."""

REMEDY, LAMBDAS = "λA", (-0.007, -0.03, -0.13)
"""λ with A = I: docs/remedy.md learned entries of λA with the median −0.007, and layers with a mean down to −0.13."""

AFTER_TRAINING = (
    f"SmolLM2, λ and A after 40 steps: κ′ {estimate(0.004, (0.003, 0.005), 0.9, places=3, sign=True)}, "
    f"loss {estimate(-0.016, (-0.023, -0.009), 0.95, places=3, sign=True)} nats"
)
"""What docs/remedy.md measured."""

MEASURED = "measured"

_DESCRIPTIONS = {
    "name": "what is changed",
    "strength": "factor on updates or logits, λ, or 0 for a direction that is projected out",
    "changes": "the change as what_if names it",
    "consensus_change": "κ with the remedy minus κ without; NaN where it was not measured",
    "consensus_change_interval": "interval of consensus_change over texts",
    "loss_change": "loss with the remedy minus loss without; NaN where the loss is unknown",
    "loss_change_interval": "interval of loss_change over texts; NaN for a loss that was passed",
    "status": f"{MEASURED!r}, or why the network cannot have the remedy",
    "after_training": "what the remedy did in a network that was trained with it; empty where that was not measured",
    "recommended": "whether it lowers κ significantly at an acceptable cost, where κ′ is not small",
}


@dataclass(frozen=True)
class _Remedy:
    """One remedy to try; `problem` says why it cannot be made, if it cannot."""

    name: str
    strength: float
    variant: Variant
    problem: str = ""


@dataclass(frozen=True)
class _Tried:
    """What a remedy does, and whether it was measured."""

    remedy: _Remedy
    kappa: EffectEstimate
    cost: EffectEstimate
    status: str

    def advised(self, much: bool, costs: Costs) -> bool:
        """Whether it lowers κ significantly at a known cost within the budget, or at any cost where κ′ is large."""
        return self.kappa.high < 0 and not math.isnan(self.cost.value) and costs.allow(self.cost.value, much)


@typed_arguments
def remedies(
    ckpt: Model,
    texts: Any,
    *,
    loss: Loss | None = None,
    budget: float = CHEAP,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    packed: bool = True,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Try remedies against consensus on a network without training it: effects on κ and on the loss.

    Tried are factors on the updates of attention, of feed-forward parts and of both in all layers; factors on the
    attention logits; λI beside the query-key matrices (`apply_remedy`); and projecting out the direction that all
    texts share, in the layer of the largest κ′. Every second text chooses the layers, the others measure.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded; a network in memory.
        texts: At least five different prompts of one kind, as `tokendynamics.trace` takes them.
        loss: Function of the network, with its language head where there is one, that returns one number; lower is
            better. It is called with each remedy in force. None for the cross-entropy of the next token, in nats.
        budget: Largest rise of the loss at which a remedy is recommended. It does not count where κ′ ≥ 0.55.
        sinks: Which tokens are excluded; see `tokendynamics.levers`.
        sink_ratio: Likewise.
        truncate: Whether a prompt longer than the context is cut.
        packed: Whether prompts may share a forward pass: faster, the same to rounding.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with the dim ``trial``: ``name``, ``strength``, ``changes``, ``consensus_change`` and ``loss_change``
        (with the remedy minus without, paired over texts; float64) with 95 % intervals over dim ``bound``; ``status``,
        "measured" or why the network cannot have the remedy; ``after_training`` and ``recommended``. The attribute
        ``summary`` says the result in words.

    Raises:
        ArgumentTypeError, ArgumentValueError: Too few texts, equal ones, or some that this network does not read; a
            loss that is not one finite number.
        CheckpointError: The parts of a layer are not found, or the network is streamed.

    >>> texts = ["one fish", "two red birds", "it rains again", "who goes there", "a long way home"]
    >>> table = remedies("random:gpt2-tiny", texts)
    >>> table.sizes["trial"], int((table.status == "measured").sum())  # λA needs rotary positions
    (14, 11)
    """
    ckpt = checkpoint_for(ckpt, texts)
    prompts, halves, _, measure = halves_of(
        ckpt, texts, 1, sink_ratio, truncate=truncate, packed=packed, progress=progress
    )
    counting, costs = {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}, Costs(ckpt, loss, budget)
    with reporting(progress) as report:
        finding = NamedPrompts({name: prompts[name] for name in halves.finding})
        where, direction = _shared_direction(ckpt, finding, counting, report)
        with ckpt.gated() as gated:
            trials = Trials(gated, measure, where, sink_ratio, sinks)
        chosen = [*_remedies(), direction]
        tried = [_tried(ckpt, remedy, trials, costs) for remedy in tracked(chosen, report, "trying remedies")]
    return _as_dataset(ckpt.name, trials, tried, costs, halves)


def _remedies() -> list[_Remedy]:
    scaled = [
        _Remedy(name, factor, Variant.of(dict.fromkeys(parts, factor)))
        for name, parts in UPDATES.items()
        for factor in SCALES
    ]
    logits = [_Remedy(LOGITS, factor, Variant.of({"logits": factor})) for factor in FACTORS]
    return [*scaled, *logits, *(_Remedy(REMEDY, size, Variant.of({"remedy": size})) for size in LAMBDAS)]


def _shared_direction(
    ckpt: Checkpoint, prompts: NamedPrompts, counting: dict[str, Any], report: Progress
) -> tuple[int, _Remedy]:
    """Return the layer at which κ is read, and the removal of the common direction in the layer of the largest κ′."""
    shared = directions_of(ckpt, prompts, report, **counting)
    counts = torch.stack([(text.weights > 0).sum(dim=-1) for text in shared.texts])
    within = (counts * shared.means.square().sum(dim=-1) - 1) / torch.where(counts > 1, counts - 1, torch.nan)
    kappa = kappa_of(shared.means, within, ckpt.dtype)
    relative = relative_kappa(kappa, kappa[:1].expand_as(kappa))[1:]
    worst = 1 + int(torch.where(relative.isnan(), -torch.inf, relative).argmax())
    row = shared.common[worst]
    problem = "the mean unit row of the tokens is zero there" if bool(row.isnan().any()) else ""
    removed = {} if problem else {worst: (tuple(row.tolist()),)}
    return reading_layer(kappa), _Remedy(f"common direction of layer {worst}", 0.0, Variant(removed=removed), problem)


def _tried(ckpt: Checkpoint, remedy: _Remedy, trials: Trials, costs: Costs) -> _Tried:
    unknown = EffectEstimate(math.nan, math.nan, math.nan)
    if remedy.problem:
        return _Tried(remedy, unknown, unknown, remedy.problem)
    try:
        with ckpt.varied(remedy.variant), ckpt.gated() as gated:
            reading = trials.reading({}, gated)
    except (ArgumentValueError, CheckpointError) as error:
        return _Tried(remedy, unknown, unknown, why(error, ckpt.name))
    kappa, cost = trials.change(reading, trials.plain)
    if math.isnan(kappa.value):
        return _Tried(remedy, unknown, unknown, "κ is undefined with it")
    return _Tried(remedy, kappa, costs.change(remedy.variant) if costs.given else cost, MEASURED)


def _as_dataset(name: str, trials: Trials, tried: Sequence[_Tried], costs: Costs, halves: Halves) -> xr.Dataset:
    relative = trials.relative_kappa
    much, little = relative.value >= MUCH, not relative.value >= LITTLE
    advised = [not little and trial.advised(much, costs) for trial in tried]
    variables: dict[str, Any] = {
        "name": np.array([trial.remedy.name for trial in tried], dtype=np.str_),
        "strength": np.array([trial.remedy.strength for trial in tried]),
        "changes": np.array([trial.remedy.variant.words for trial in tried], dtype=np.str_),
        "status": np.array([trial.status for trial in tried], dtype=np.str_),
        "after_training": np.array([AFTER_TRAINING * (trial.remedy.name == REMEDY) for trial in tried], dtype=np.str_),
        "recommended": np.array(advised),
    }
    variables = {key: ("trial", values) for key, values in variables.items()}
    for key, field in (("consensus_change", "kappa"), ("loss_change", "cost")):
        values, intervals = columns_of(getattr(trial, field) for trial in tried)
        variables |= {key: ("trial", values), f"{key}_interval": (("trial", "bound"), intervals)}
    measured = sum(trial.status == MEASURED for trial in tried)
    number, were = plural(measured, "remedy", "remedies"), "was" if measured == 1 else "were"
    counted = f"{number} {were} measured on {plural(len(halves.measuring), halves.noun)}."
    attrs = {
        "model": name,
        "where": trials.where,
        "kappa": trials.kappa.value,
        "relative_kappa": relative.value,
        "budget": costs.budget,
        "loss_unit": costs.unit.strip(),
        **halves.facts,
        "tried": counted,
        "summary": f"{_summary(tried, advised, trials, costs, halves)} {counted}",
    }
    table = xr.Dataset(variables, coords={"trial": np.arange(len(tried)), "bound": ["low", "high"]}, attrs=attrs)
    for key, description in _DESCRIPTIONS.items():
        table[key].attrs["description"] = description
    return table


def _summary(tried: Sequence[_Tried], advised: Sequence[bool], trials: Trials, costs: Costs, halves: Halves) -> str:
    """Say which remedies help; none is recommended where there is nothing to lower, or at an unknown cost."""
    relative = trials.relative_kappa
    similarity = f"similarity κ after layer {trials.where}"
    measured = [trial for trial in tried if trial.status == MEASURED]
    good = [trial for trial, chosen in zip(tried, advised, strict=True) if chosen]
    lowering = [trial for trial in measured if trial.kappa.high < 0]
    if not relative.value >= LITTLE:
        small = estimate(relative.value, (relative.low, relative.high), CONFIDENCE)
        share = "share little" if not relative.high >= LITTLE else f"are not shown to share more than {LITTLE:g}"
        words = (
            f"No remedy is recommended because tokens of one {halves.noun} {share} beyond the embedding: κ′ is {small}."
        )
    elif not measured:
        words = "No remedy can be made in this network."
    elif not lowering:
        words = f"No remedy tried lowers {similarity} significantly."
    elif all(math.isnan(trial.cost.value) for trial in lowering):
        best = min(lowering, key=lambda trial: trial.kappa.value)
        words = (
            "No remedy is recommended because the cost is unknown: the loss was not measured. The largest significant "
            f"effect, that of {_label(best.remedy)}, changes {similarity} by {best.kappa.as_change}."
        )
    else:
        much = relative.value >= MUCH
        at = "" if much else f" at an estimated cost of at most {costs.budget:g}{costs.unit}"
        words = f"No remedy tried lowers {similarity} significantly{at}."
        if good:
            best = min(good, key=lambda trial: trial.kappa.value)
            lower = "remedy lowers" if len(good) == 1 else "remedies lower"
            which = "It is" if len(good) == 1 else "The most effective of them is"
            words = (
                f"{count(len(good))} {lower} {similarity} significantly{at}. {which} "
                f"{_label(best.remedy)}, which changes κ by {best.kappa.as_change} and the loss by "
                f"{best.cost.as_change}{costs.unit}{costs.above(best.cost)}."
            )
    return words


_LITTLE_SHARED = (
    "No remedy is recommended because tokens of one", "No change is needed to", "No change is shown to be needed to",
)  # fmt: skip
"""How a summary begins where κ is too low to lower it; the others of sets."""


def advised_in_view_of(table: xr.Dataset, verdict: Verdict) -> xr.Dataset:
    """Return remedies or joint levers as a diagnosis reports them: none recommended in a state that κ does not measure.

    Args:
        table: From `remedies`, or of `joint_levers`.
        verdict: Of the same network.
    """
    flag, what = ("recommended", "remedy") if "recommended" in table else ("reported", "set of parts and heads")
    why = why_no_advice(verdict, table.attrs["where"])
    if not why:
        return table
    if not bool(table[flag].any()):
        # Low similarity is no reason that nothing needs to be done about a state that it does not measure.
        little = why.startswith("κ does not measure") and table.attrs["summary"].startswith(_LITTLE_SHARED)
        rest = table.attrs["tried"] if flag == "recommended" else NONE_TRIED
        return table.assign_attrs(summary=f"No {what} is recommended because {why}. {rest}") if little else table
    summary = f"No {what} is recommended because {why}. {table.attrs['tried']}"
    withdrawn = table[flag].copy(data=np.zeros(table[flag].shape, dtype=bool))
    return table.assign({flag: withdrawn}).assign_attrs(summary=summary)


def _label(remedy: _Remedy) -> str:
    if remedy.name == REMEDY:
        return f"λ = {fixed(remedy.strength, 3)} beside the query-key matrices"
    return f"{remedy.name} × {remedy.strength:g}" if remedy.strength else f"{remedy.name} projected out"
