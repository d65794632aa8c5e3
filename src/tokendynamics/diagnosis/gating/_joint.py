"""Sets of parts and heads that lower consensus together: a greedy search on some texts, measured on others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.gating._levers import ALPHAS, HOW_SPLIT, MUCH, halves_of
from tokendynamics.diagnosis.gating._result import CHEAP, LITTLE, NONE_TRIED, Halves, needless
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, sensitivities
from tokendynamics.diagnosis.gating.trials import CONFIDENCE, Costs, EffectEstimate, Loss, Reading, Trials, columns_of
from tokendynamics.diagnosis.network import part_of_layer
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained.edits.gates import PartAndHeadGates
from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.pretrained.loading import Model
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.results.result import Readable
from tokendynamics.words import Convention, digits_apart, estimate, fixed, listing, percent, plural

Values: TypeAlias = dict[tuple[int, int], float]
"""Gates by (layer from 1, gate): the parts' first, then the heads'."""

NEARLY = 0.95
"""Share of the largest gain from which a head is taken in place of a part: the smaller change explains as much."""


@dataclass(frozen=True, repr=False)
class JointLevers(Readable):
    """Parts and heads that lower consensus together; returned by `joint_levers`.

    Attributes:
        table: Dim ``step``: the sets of the greedy search, each with one change more than the one before. ``change``
            (the change that is added, as `tokendynamics.what_if` takes it), ``alpha`` (its gate), ``kappa_change`` and
            ``loss_change`` (of the set, against the network), ``gain`` (change of κ against the set before), each with
            ``…_interval`` over dim ``bound``, and ``reported``, whether the set is part of the answer. Measured on the
            texts that `measured_on` names.
        kappa: κ on these texts, without a change.
        where: After which layer κ is read.
        changes: The largest set whose gain is significant at every step and whose cost is within the budget, for
            `tokendynamics.what_if` and `Checkpoint.under`; empty without one, and where the loss is unknown.
        singles: Number of single changes tried.
        sets: Number of larger sets tried.
        text: The answer in sentences.
        conventions: Every choice that the numbers depend on.
    """

    table: xr.Dataset
    kappa: float
    where: int
    changes: dict[str, float]
    singles: int
    sets: int
    text: str
    conventions: tuple[Convention, ...]

    @property
    def headline(self) -> str:
        """How many changes the answer names."""
        return f"{plural(len(self.changes), 'change')} of parts and heads" if self.changes else "no change"

    @property
    def findings(self) -> tuple[str, ...]:
        """The answer in a few sentences."""
        return (self.text,)

    def __str__(self) -> str:
        return self.text


@typed_arguments
def joint_levers(
    ckpt: Model,
    texts: Any,
    *,
    most: int = 4,
    candidates: int = 8,
    loss: Loss | None = None,
    budget: float = CHEAP,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    packed: bool = True,
    progress: bool | Progress = False,
) -> JointLevers:
    """Find parts and heads that together lower consensus of the tokens within a budget of loss (`mathematics` 11).

    On half of the texts, derivatives by the gates on all parts and heads propose candidates, and a greedy search adds
    the change that lowers κ most by measurement: heads removed, parts at α = 0.5 or removed. Its sets, one of each
    size, are then measured on the other texts. A set is part of the answer if its interval excludes the set before it.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded; a network in memory.
        texts: At least five different prompts of one kind, as `tokendynamics.trace` takes them.
        most: Largest number of changes in a set.
        candidates: Number of parts, and of heads, that are tried, the most promising first.
        loss: Function of the network, with its language head where there is one, that returns one number; lower is
            better. It is called with the changes in force. None for the cross-entropy of the next token, in nats.
        budget: Largest rise of the loss that a set may cost. It does not count where κ′ ≥ 0.55.
        sinks: Which tokens are excluded; see `tokendynamics.levers`.
        sink_ratio: Likewise.
        truncate: Whether a prompt longer than the context is cut.
        packed: Whether prompts may share a forward pass: faster, the same to rounding.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        JointLevers. Without a loss the effects are measured and no change is advised.

    Raises:
        ArgumentTypeError, ArgumentValueError: Too few texts, equal ones, or some that this network does not read; a
            loss that is not one finite number.
        CheckpointError: The parts of a layer are not found, or the network is streamed.

    >>> texts = ["one fish", "two red birds", "it rains again", "who goes there", "a long way home"]
    >>> answer = joint_levers("random:distilgpt2:1", texts, candidates=3, most=2)
    >>> answer.singles, answer.sets, list(answer.changes)
    (9, 4, ['layer 1 attention', 'layer 2 attention'])
    """
    ckpt = checkpoint_for(ckpt, texts)
    as_count(most, "most")
    _, halves, find, measure = halves_of(
        ckpt, texts, candidates, sink_ratio, truncate=truncate, packed=packed, progress=progress
    )
    costs = Costs(ckpt, loss, budget)
    with reporting(progress) as report, ckpt.gated() as gated:
        gates = PartAndHeadGates(gated)
        first = sensitivities(gates, find, sink_ratio, report, sinks=sinks)
        search = _Search(Trials(gates, find, first.where, sink_ratio, sinks), costs)
        chain = search.greedy(_candidates(first, candidates), most, report)
        trials = Trials(gates, measure, first.where, sink_ratio, sinks)
        return _answered(ckpt.name, trials, _measured(trials, chain, costs), search, halves)


class _Search:
    """A greedy search over measured effects.

    Attributes:
        costs: Of changes.
        singles: Single changes measured so far.
        sets: Larger sets measured so far.
        relative: κ′ of the network on the texts that choose.
        much: Whether it is so large that a change counts at any cost.
        little: Whether it is so small that nothing needs a change.
    """

    def __init__(self, trials: Trials, costs: Costs) -> None:
        self._trials, self.costs = trials, costs
        self.singles = self.sets = 0
        self.relative = trials.relative_kappa
        self.much, self.little = self.relative.value >= MUCH, self.relative.value < LITTLE

    def greedy(self, candidates: Sequence[tuple[int, int]], most: int, report: Progress) -> list[Values]:
        """Return the best set of each size, each with one change more than the one before."""
        if self.little:
            return []
        alphas = {place: ALPHAS if place[1] < len(PARTS) else (0.0,) for place in candidates}
        options = [(place, alpha) for place in candidates for alpha in alphas[place]]
        effects: dict[tuple[int, int], float] = {}
        best: Values = {}
        for place, alpha in tracked(options, report, "trying parts and heads"):
            self.singles += 1
            effect = self._effect({place: alpha})
            if effect < effects.get(place, 0.0):
                effects[place], best[place] = effect, alpha
        chain: list[Values] = []
        lowest = 0.0
        while effects:
            place = _choice({place: effect - lowest for place, effect in effects.items()})
            chain.append((chain[-1] if chain else {}) | {place: best[place]})
            lowest, effects = effects[place], {}
            if len(chain) == most:
                break
            left = [place for place in best if place not in chain[-1]]
            for place in tracked(left, report, f"trying sets of {len(chain) + 1}"):
                self.sets += 1
                effect = self._effect(chain[-1] | {place: best[place]})
                if effect < lowest:
                    effects[place] = effect
        return chain

    def _effect(self, values: Values) -> float:
        """Return how a set changes κ; infinity where κ is undefined or the cost is above the budget."""
        reading = self._trials.reading(values)
        kappa, cost = self._trials.change(reading, self._trials.plain)
        cost = self.costs.change(_named(values)) if self.costs.given else cost
        return kappa.value if math.isfinite(kappa.value) and self.costs.allow(cost.value, self.much) else math.inf


@dataclass(frozen=True)
class _Step:
    """A set, measured on texts that did not choose it.

    Attributes:
        values: Its gates.
        added: The one that it adds to the set before.
        kappa: Change of κ against the network.
        gain: Change of κ against the set before.
        cost: Change of the loss against the network; without an interval where it is the user's.
    """

    values: Values
    added: tuple[int, int]
    kappa: EffectEstimate
    gain: EffectEstimate
    cost: EffectEstimate


def _choice(gains: Mapping[tuple[int, int], float]) -> tuple[int, int]:
    """Return the change that lowers κ most; of those that do nearly as much, a head, which is the smaller change."""
    enough = NEARLY * min(gains.values())
    return min(
        (place for place in gains if gains[place] <= enough), key=lambda place: (place[1] < len(PARTS), gains[place])
    )


def _candidates(first: Sensitivities, count: int) -> list[tuple[int, int]]:
    """Return layer and gate of the parts, and of the heads, that lower κ most when turned down, to first order.

    A part contains its heads: together they would leave room for few heads.
    """
    heads = range(len(PARTS), first.kappa.shape[1])
    sizes = np.nan_to_num(first.kappa[:, heads], nan=-np.inf)
    order = np.argsort(-sizes, axis=None, kind="stable")[:count].tolist()
    places = [(place // len(heads), heads[place % len(heads)]) for place in order]
    of_heads = [(layer + 1, gate) for layer, gate in places if first.kappa[layer, gate] > 0]
    return first.parts_to_try(len(PARTS), count) + of_heads


def _measured(trials: Trials, chain: Sequence[Values], costs: Costs) -> list[_Step]:
    steps: list[_Step] = []
    before: Reading = trials.plain
    for number, values in enumerate(chain):
        reading = trials.reading(values)
        kappa, cost = trials.change(reading, trials.plain)
        gain, _ = trials.change(reading, before)
        if costs.given:
            cost = costs.change(_named(values))
        (added,) = set(values) - set(chain[number - 1] if number else {})
        steps.append(_Step(values, added, kappa, gain, cost))
        before = reading
    return steps


def _answered(name: str, trials: Trials, steps: Sequence[_Step], search: _Search, halves: Halves) -> JointLevers:
    reported = 0
    for step in steps:
        # Of an unknown loss no advice follows.
        affordable = search.costs.allow(step.cost.value, search.much) and not math.isnan(step.cost.value)
        if not step.gain.high < 0 or not affordable:
            break
        reported += 1
    changes = _named(steps[reported - 1].values) if reported else {}
    kappa = trials.kappa
    text = _words(kappa, trials, steps, reported, search, halves)
    words = {"kappa": kappa.value, "singles": search.singles, "sets": search.sets, "summary": text}
    words |= {"tried": _tried(search, halves, steps), "loss_unit": search.costs.unit.strip()}
    table = _as_dataset(name, steps, reported, trials.where, halves).assign_attrs(words)
    return JointLevers(
        table, kappa.value, trials.where, changes, search.singles, search.sets, text, _conventions(search, halves)
    )


def _words(
    kappa: EffectEstimate, trials: Trials, steps: Sequence[_Step], reported: int, search: _Search, halves: Halves
) -> str:
    similarity = f"similarity κ after layer {trials.where}"
    plain = estimate(kappa.value, (kappa.low, kappa.high), CONFIDENCE, at_most=1.0)
    unit = search.costs.unit
    if search.little:
        relative = fixed(search.relative.value, digits_apart(search.relative.value, LITTLE))
        none = needless(search.relative).removesuffix(". ")
        none = f"{none}, as κ′ is {relative} on the {halves.noun}s that choose"
        measured = f"{similarity[0].upper()}{similarity[1:]} is {plain} on {len(halves.measuring)} others"
        return f"{none}, below {LITTLE:g}. {measured}. {NONE_TRIED}"
    tried = _tried(search, halves, steps)
    within = "" if search.much else f" at a cost of at most {search.costs.budget:g}{unit}"
    if not steps:
        if not search.singles:
            return (
                f"To first order, turning down a part or head does not lower {similarity} in any layer; it is {plain}."
            )
        choosing = f"On the {halves.noun}s that choose, no part or head tried lowers {similarity}{within}"
        return f"{choosing}; on {len(halves.measuring)} others it is {plain}. {tried}"
    step = steps[max(reported - 1, 0)]
    if reported:
        subject = "One change lowers" if reported == 1 else f"{reported} changes together lower"
        from_to = f"from {fixed(kappa.value)} to {fixed(kappa.value + step.kappa.value)}"
        cost = f"{step.cost.as_change}{unit}{search.costs.above(step.cost)}"
        effect = f"κ changes by {step.kappa.as_change}, the loss by {cost}."
        return f"{subject} {similarity} {from_to}: {_listed(step)}. {effect}{_further(steps, reported)} {tried}"
    if math.isnan(step.cost.value):
        best = _at_unknown_cost(steps, similarity, plain)
        return f"No change is advised because the loss of this network is unknown. {best} {tried}"
    lowering = [step for step in steps if step.kappa.high < 0 and search.costs.allow(step.cost.value, search.much)]
    if lowering:
        best = min(lowering, key=lambda step: step.kappa.value)
        does = f"changes {similarity} by {best.kappa.as_change} and the loss by {best.cost.as_change}{unit}"
        return f"No set is advised because {_WHY_NOT_ALL}. The set {_listed(best)} {does}; κ is {plain}. {tried}"
    # The search takes what does most within the budget on its own texts; on the others a smaller change may be cheaper.
    best = f"The change chosen first, {_listed(step)}, changes it"
    why = f"and the loss by {step.cost.as_change}{unit}, which is above the budget"
    if not step.gain.high < 0:
        why = "which is not significant"
    subject = "The change found does not lower" if len(steps) == 1 else "No set found lowers"
    return (
        f"{subject} {similarity} significantly{within}; it is {plain}. {best} by {step.kappa.as_change}, {why}. {tried}"
    )


_WHY_NOT_ALL = "the change chosen first has no significant effect alone, or costs more than the budget"


def _listed(step: _Step) -> str:
    return listing([f"{_part(*place)} (α = {value:g})" for place, value in step.values.items()])


def _further(steps: Sequence[_Step], reported: int) -> str:
    """Say why the next change found is no part of the answer; nothing where none was found."""
    if reported == len(steps):
        return ""
    step = steps[reported]
    next_change = f"The next change found, {_part(*step.added)} (α = {step.values[step.added]:g}),"
    if not step.gain.high < 0:
        return f" {next_change} does not lower it significantly further."
    return f" With {next_change[0].lower()}{next_change[1:]} the cost is above the budget."


def _at_unknown_cost(steps: Sequence[_Step], similarity: str, plain: str) -> str:
    """Say what the largest set does of which every change adds a significant one, or else the first change."""
    adding = list(takewhile(lambda step: step.gain.high < 0, steps))
    step = adding[-1] if adding else steps[0]
    which = "change" if len(step.values) == 1 else "set"
    return (
        f"{similarity[0].upper()}{similarity[1:]} is {plain}. The {which} found, {_listed(step)}, changes it by "
        f"{step.kappa.as_change}."
    )


def _tried(search: _Search, halves: Halves, steps: Sequence[_Step]) -> str:
    """Say how many changes were tried, and on how many texts; `steps` are those that were then measured."""
    measured_were = "change found was" if len(steps) == 1 else "sets found were"
    measured = f"; the {measured_were} measured on {len(halves.measuring)} others" if steps else ""
    sets = f" and {plural(search.sets, 'larger set')}" if search.sets else ""
    were = "were" if sets or search.singles != 1 else "was"
    return (
        f"{plural(search.singles, 'single change')}{sets} {were} tried on "
        f"{plural(len(halves.finding), halves.noun)}{measured}."
    )


def _as_dataset(name: str, steps: Sequence[_Step], reported: int, where: int, halves: Halves) -> xr.Dataset:
    variables: dict[str, Any] = {
        "change": ("step", np.array([_name(*step.added) for step in steps], dtype=np.str_)),
        "alpha": ("step", np.array([step.values[step.added] for step in steps], dtype=np.float64)),
        "reported": ("step", np.arange(len(steps)) < reported),
    }
    for key, field in (("kappa_change", "kappa"), ("gain", "gain"), ("loss_change", "cost")):
        values, intervals = columns_of(getattr(step, field) for step in steps)
        variables |= {key: ("step", values), f"{key}_interval": (("step", "bound"), intervals)}
    coords = {"step": np.arange(1, len(steps) + 1), "bound": ["low", "high"]}
    attrs = {
        "model": name,
        "where": where,
        "found_on": ", ".join(halves.finding),
        "measured_on": ", ".join(halves.measuring),
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _conventions(search: _Search, halves: Halves) -> tuple[Convention, ...]:
    nouns = f"{halves.noun}s"
    unit = "of the loss that was given" if search.costs.given else "nats per token"
    return (
        Convention(
            "greedy search",
            "one change is added at a time, the one that lowers κ most by measurement, or a head that does at least "
            f"{percent(NEARLY)} of that; heads are removed, parts are run at α = 0.5 and 0",
            "sets that help only together are not found",
        ),
        Convention(
            nouns,
            f"{HOW_SPLIT} chooses the sets ({len(halves.finding)}), the others measure them ({len(halves.measuring)})",
            f"sets measured on the {nouns} that chose them look too good",
        ),
        Convention(
            "what is reported",
            f"the largest set of which every change adds a significant one ({percent(CONFIDENCE)} interval of the gain "
            f"below 0) at a cost of at most {search.costs.budget:g} {unit}; from κ′ = {MUCH:g} on at any cost",
            "another budget or confidence changes the set, not the numbers",
        ),
    )


def _named(values: Values) -> dict[str, float]:
    """Return changes as `Variant.of` reads them."""
    return {_name(*place): value for place, value in values.items()}


def _name(layer: int, gate: int) -> str:
    """Return the change as `Variant.of` reads it."""
    return f"layer {layer} {PARTS[gate]}" if gate < len(PARTS) else f"layer {layer} head {gate - len(PARTS)}"


def _part(layer: int, gate: int) -> str:
    return part_of_layer(PARTS[gate], layer) if gate < len(PARTS) else f"head {gate - len(PARTS)} of layer {layer}"
