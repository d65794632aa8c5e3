"""The result of `levers`: derivatives by every gate, trials of a few, and one of several answers, in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import xarray as xr
from jaxtyping import Float64

from tokendynamics.diagnosis.gating._what_if import MODELS
from tokendynamics.diagnosis.gating.sensitivities import lasting
from tokendynamics.diagnosis.gating.trials import CONFIDENCE, Costs, EffectEstimate, Trial
from tokendynamics.diagnosis.network import part_of_layer
from tokendynamics.diagnosis.tracing.layer_states import ANISOTROPIC, COLLAPSES, CONSENSUS, State
from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.results.result import Readable, Refused
from tokendynamics.words import Convention, Finding, estimate, fixed, in_layers, listing, percent, plural

Answer: TypeAlias = Literal[
    "one part does it", "one part does it, at an unknown cost", "all layers do it and no single part helps",
    "some layers do it and no single part helps", "nothing needs doing", "not tried for this state",
]  # fmt: skip

NOTHING: Answer = "nothing needs doing"

ALL_LAYERS: Answer = "all layers do it and no single part helps"

SOME_LAYERS: Answer = "some layers do it and no single part helps"


LITTLE = 0.06
"""κ′ below which tokens of a prompt share too little to need a change. Over 31 networks, those whose tokens stay spread
lie below 0.024 and the next above 0.144."""

CHEAP = 0.02
"""Loss in nats per token below which a lever is cheap: about the value of one per cent of training, and less than the
difference between texts of one kind."""

EVEN_SHARE = 0.1
"""A layer contributes to a rise of κ if log(1 − κ) falls in it by at least this share of the mean fall per layer. The
logarithm weighs changes far from one point and near it alike; layers built to do nothing stay below 0.01."""

_NEARLY_ALL = 0.99
"""Share of κ beyond which more digits than its interval has would be needed to say that it is not all."""

_UNLIKE = 0.1
"""Difference of κ on the prompts that measure and on all of them from which the first screen says so."""

_NAMED = 3
"""Prompts that are named before the rest is counted."""

NONE_TRIED = "None was tried."
"""End of a sentence on sets of changes that were not tried."""

_NO_SETS = " Combinations of parts were not tried."

_NOTHING_NEEDED = "No change is needed to avoid consensus. "

_NOT_SHOWN = "No change is shown to be needed to avoid consensus. "
"""The same where the interval of κ′ reaches consensus."""

_UNDETERMINED = "Nothing is recommended because whether the tokens collapse is undetermined."

_NEEDLESS = re.compile(
    r"^(?:No change is (?:shown to be )?needed to avoid consensus\. ?|Nothing needs doing about consensus: ?)"
)
"""How an answer that names no change begins; the last of results stored by earlier versions."""

_NO_PART = "No single part was found whose removal halves the similarity"
"""As `SHARE` of `_levers` asks; a part that removes less of it helps all the same."""

UNMEASURED: dict[State, str] = {
    "rank collapse": "a collapse onto a line in both directions",
    "anisotropic": "the common direction",
    "one point": "the common direction",
}
"""States that κ does not measure: levers, which lower κ, say nothing about them."""

_AS_NOUNS: dict[State, str] = {"anisotropic": "common direction", "one point": "collapse to one point"}
"""States whose name is no noun, or none with an article."""


@dataclass(frozen=True, repr=False)
class Levers(Readable):
    """The part of a network that causes consensus, and the effect of turning it down; returned by `levers`.

    Attributes:
        table: Dims ``layer`` (from 1), ``component`` ("attention", "feed_forward"): ``consensus_sensitivity`` ∂κ/∂α and
            ``loss_sensitivity`` ∂loss/∂α (nats) at α = 1, on the texts that find. Dim ``depth`` (0 … L): ``consensus``,
            κ there on the same texts. Dims ``candidate``, ``bound`` ("low", "high"): ``candidate_layer``,
            ``candidate_part``, ``alpha``, and measured on the other texts ``kappa_change``, ``kappa_interval``,
            ``loss_change``, ``loss_interval`` and ``verified``, whether the interval of the change of κ lies below 0.
            ``found_on`` and ``measured_on`` name the texts.
        kappa: κ on the texts that measure, without gates.
        where: After which layer, from 1 on, κ is read.
        answer: One of `Answer`: whether one part causes consensus, at a known or unknown cost; whether all layers
            contribute, or some; whether consensus needs no change. "not tried for this state" occurs in a diagnosis
            whose verdict is undetermined or a state that κ does not measure.
        text: The answer in sentences, with its numbers and their intervals.
        conventions: Every choice that the numbers depend on.
        best: Index of the candidate that the answer names; None where it names none.
        effect: Its effect on every measure at every depth, from `tokendynamics.what_if` on the texts that measure;
            None without one.
        advice: The answer without symbols, for the first screen; empty in results of versions that had none.

    >>> from tokendynamics.diagnosis import levers
    >>> texts = ["one fish", "two red birds", "it rains again", "who goes there", "a long way home"]
    >>> trials = levers("random:gpt2-tiny", texts, candidates=1)
    >>> trials.where, trials.consensus_sensitivity.shape
    (6, (6, 2))
    """

    table: xr.Dataset
    kappa: float
    where: int
    answer: Answer
    text: str
    conventions: tuple[Convention, ...]
    best: int | None = None
    effect: xr.Dataset | None = None
    advice: str = ""

    @property
    def changes(self) -> dict[str, float]:
        """The change that the answer names, for `tokendynamics.what_if` and `Checkpoint.under`; empty without one.

        With ``ckpt.under(found.changes).save(folder)`` it becomes a checkpoint.
        """
        if self.best is None:
            return {}
        row = self.table.isel(candidate=self.best)
        return {f"layer {int(row.candidate_layer)} {row.candidate_part.item()}": float(row.alpha)}

    @property
    def headline(self) -> str:
        """The answer."""
        return self.answer

    @property
    def findings(self) -> tuple[str, ...]:
        """The answer in two or three sentences."""
        return (self.text,)

    def __str__(self) -> str:
        return self.text

    @property
    def consensus_sensitivity(self) -> xr.DataArray:
        """∂κ/∂α by (layer, component), of `table`."""
        return self.table.consensus_sensitivity

    @property
    def loss_sensitivity(self) -> xr.DataArray:
        """∂loss/∂α by (layer, component), of `table`, in nats."""
        return self.table.loss_sensitivity

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return a variable of `table`."""
        return self.table[name]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `table`, so that ``levers(…).sel(layer=3)`` works as on any dataset."""
        if name.startswith("__"):  # copies and pickles ask before there is a table
            raise AttributeError(name)
        return getattr(self.table, name)


@dataclass(frozen=True)
class Halves:
    """Which prompts find candidates and which measure them, what prompts are called, and which have only one token."""

    finding: Sequence[str]
    measuring: Sequence[str]
    noun: str
    left_out: Sequence[str] = ()

    @property
    def without(self) -> str:
        """A sentence on prompts that are left out; empty for none."""
        if not self.left_out:
            return ""
        they = "it has one token" if len(self.left_out) == 1 else "they have one token each"
        return f" Left out because {they}: {listing(list(self.left_out), most=_NAMED)}."

    @property
    def facts(self) -> dict[str, Any]:
        """What a table of effects says of its texts and intervals."""
        return {
            "prompts_measured": len(self.measuring),
            "intervals": f"{percent(CONFIDENCE)} over {self.noun}s, each by itself: jackknife-t for κ, Student's t of "
            "paired differences for the loss",
            "proposed_on": ", ".join(self.finding),
            "measured_on": ", ".join(self.measuring),
            **({"left_out": self.without.strip()} if self.left_out else {}),
        }


def contributing_layers(consensus: Float64[np.ndarray, " depth"], where: int) -> tuple[int, ...]:
    """Return the layers, from 1, that contribute to the rise of κ up to the layer where it is read.

    Args:
        consensus: κ of the input of the first block and after each.
        where: The layer at which κ is read.

    >>> contributing_layers(np.array([0.0, 0.5, 0.5, 0.8, 0.8]), 4), contributing_layers(np.array([0.1, 0.1]), 1)
    ((1, 3), ())
    >>> contributing_layers(np.array([0.0, 0.9, 0.0, 0.3]), 3)  # the first rise is undone
    (3,)
    """
    left = np.maximum(1.0 - lasting(consensus[: where + 1]), np.finfo(float).eps)
    falls = -np.diff(np.log(left))
    if not falls.sum() > 0:
        return ()
    return tuple((np.flatnonzero(falls >= EVEN_SHARE * falls.sum() / where) + 1).tolist())


def needless(relative: EffectEstimate) -> str:
    """Return the sentence, with a space behind it, that no change is needed, as far as the interval of κ′ shows it."""
    return _NOT_SHOWN if relative.high >= CONSENSUS else _NOTHING_NEEDED


def little_beyond(relative: EffectEstimate, noun: str) -> str:
    """Return what a κ′ below `LITTLE` and its interval say, as the end of a sentence that gives both.

    Args:
        relative: κ′.
        noun: What a prompt is.

    >>> little_beyond(EffectEstimate(-0.2, -0.7, 0.3), "text")
    'but the interval also allows values above 0.06'
    """
    if relative.high >= LITTLE:
        return f"but the interval also allows values above {LITTLE:g}"
    return f"so tokens of one {noun} share little beyond that"


def qualified(answer: Answer, best: Trial | None, layers: Sequence[int], where: int) -> Answer:
    """Return the answer qualified by an unknown cost, or by layers that do not contribute.

    Args:
        answer: By κ and by the cost, where it is known.
        best: The trial that it is about.
        layers: From `contributing_layers`.
        where: The layer at which κ is read.
    """
    if answer == "one part does it" and best is not None and np.isnan(best.loss_change.value):
        return "one part does it, at an unknown cost"
    return SOME_LAYERS if answer == ALL_LAYERS and len(layers) < where else answer


@dataclass(frozen=True)
class LeverWords:
    """Writes an answer in sentences.

    Attributes:
        where: The layer at which κ is read.
        kappa: κ there.
        relative: κ' there.
        tried: All trials.
        halves: The texts.
        normed: Whether the layers have norms.
        layers: From `contributing_layers`.
        costs: Of changes.
    """

    where: int
    kappa: EffectEstimate
    relative: EffectEstimate
    tried: Sequence[Trial]
    halves: Halves
    normed: bool
    layers: Sequence[int]
    costs: Costs

    def of(self, answer: Answer, best: Trial | None) -> str:
        """Return the sentences for an answer and the trial that it is about."""
        similarity = f"Similarity κ after layer {self.where} is {_plain(self.kappa)}"
        if answer.startswith("one part does it") and best is not None:
            words = self._one_part(best)
        elif answer in (ALL_LAYERS, SOME_LAYERS):
            words = f"{self._contributors(answer)} {similarity}. {self._strongest(best)}{self._what_else(answer)}"
        elif self.relative.value < LITTLE:
            relative = f"relative to the embedding κ′ is {_plain(self.relative)}"
            words = (
                f"{needless(self.relative)}{similarity}; {relative}, {little_beyond(self.relative, self.halves.noun)}."
            )
        else:
            words = f"{needless(self.relative)}{similarity}. {self._strongest(best)}"
        return f"{words} {self._measured_on()}"

    def advice(self, answer: Answer, best: Trial | None) -> str:
        """Return the same for the first screen: what to do, or why nothing, without symbols."""
        if answer.startswith("one part does it") and best is not None:
            return self._advice_on(best)
        if answer in (ALL_LAYERS, SOME_LAYERS):
            return f"{self._contributors(answer)}{self._still(best)}{self._what_else(answer)}"
        none = needless(self.relative)
        if self.relative.value < LITTLE or not self.tried:
            return none.strip()
        if best is None:
            return f"{none}{self._too_dear()}"
        unknown = np.isnan(best.loss_change.value)
        change = "change" if unknown else "affordable change"
        strongest = f"Of {self._of_parts}, the most effective {change}{self._among(best)}, {_scaled(best)},"
        if not best.lowers:
            return f"{none}{strongest} does not lower similarity significantly."
        cost = "an unknown cost" if unknown else f"{best.loss_change.as_change.partition(' (')[0]}{self.costs.of_loss}"
        return f"{none}{strongest} lowers similarity by {self._fall(best)} at {cost}."

    def _advice_on(self, best: Trial) -> str:
        how = "Without it" if best.alpha == 0 else f"With it scaled by {best.alpha:g}"
        lowers = f"{how}, similarity after layer {self.where} falls by {self._fall(best)}"
        if np.isnan(best.loss_change.value):
            return (
                f"A single part causes most of the similarity: {_named(best)}. {lowers}. The cost is unknown because "
                f"{self.costs.why_unknown}, so no change is recommended."
            )
        return (
            f"A single part causes most of the similarity: {_named(best)}. {lowers}, and the loss changes by "
            f"{best.loss_change.as_change}{self.costs.unit}{self.costs.above(best.loss_change)}."
        )

    def _fall(self, best: Trial) -> str:
        """Return how far κ falls, as a share of it; more than all of κ is no share."""
        after = self.kappa.value + best.kappa_change.value
        if round(after, 2) < 0:
            return fixed(-best.kappa_change.value)
        fall = min(-best.kappa_change.value / self.kappa.value, 1.0)
        return f"more than {percent(_NEARLY_ALL)}" if _NEARLY_ALL < fall < 1 else percent(fall)

    def _one_part(self, best: Trial) -> str:
        after = self.kappa.value + best.kappa_change.value
        share = f", by {self._fall(best)}" if round(after, 2) >= 0 else ""
        from_to = f"{fixed(self.kappa.value)} to {fixed(after)}"
        lowers = f"Scaled to α = {best.alpha:g}, it lowers similarity κ after layer {self.where} from {from_to}{share}."
        change = f"κ changes by {best.kappa_change.as_change}"
        if np.isnan(best.loss_change.value):
            return (
                f"A single part causes most of the similarity, at an unknown cost: {_named(best)}. {lowers} {change}. "
                f"Whether that helps is not measured because {self.costs.why_unknown}."
            )
        loss = f"the loss by {best.loss_change.as_change}{self.costs.unit}{self.costs.above(best.loss_change)}"
        return f"A single part causes most of the similarity: {_named(best)}. {lowers} {change}, {loss}."

    def _contributors(self, answer: Answer) -> str:
        """Say in how many layers similarity rises; before the end of the first layer no other has any effect."""
        if self.where == 1 or not self.layers:
            return f"{_NO_PART}."
        up_to_there = in_layers(range(1, self.where + 1))
        if answer == ALL_LAYERS:
            return f"{_NO_PART}, and it rises in all of {up_to_there}."
        return f"{_NO_PART}, and it rises in {len(self.layers)} of {up_to_there} ({in_layers(self.layers)})."

    def _still(self, best: Trial | None) -> str:
        """Say what the most effective part leaves, since it may be the one that contributes most."""
        if best is None:
            return ""
        parts, after = self._parts, fixed(self.kappa.value + best.kappa_change.value)
        which = f"the most effective of {parts} parts tried" if parts > 1 else "the one part tried"
        change = f"Removing {which}, {_named(best)}," if best.alpha == 0 else f"Scaling {which}, {_named(best)}, by 0.5"
        return f" {change} leaves similarity at {after}."

    def _what_else(self, answer: Answer) -> str:
        if answer == SOME_LAYERS:
            return _NO_SETS
        norms = ", or the position of the norms" if self.normed else ""
        return (
            " Training can change what all layers share: the scale of the residual updates or of their initial "
            f"weights{norms}."
        )

    def _strongest(self, best: Trial | None) -> str:
        """Say what the best of the affordable trials did; without one, whether that is because of their cost."""
        parts = self._parts
        if not parts:
            return "To first order, turning down a part does not lower it in any layer."
        if best is None:
            return f"{self._too_dear()}{self._cheapest()}"
        which = f"The most effective of {parts} parts tried{self._among(best)}" if parts > 1 else "The one part tried"
        limit, cheap = f"{self.costs.budget:g}{self.costs.unit}", best.loss_change.value <= self.costs.budget
        which += f" at an estimated cost of at most {limit}" if cheap else ""
        cost = f"and the loss by {best.loss_change.as_change}{self.costs.unit}"
        if np.isnan(best.loss_change.value):
            cost = f"at an unknown cost, because {self.costs.why_unknown}"
        change = f"changes κ by {best.kappa_change.as_change}"
        return f"{which} is {_named(best)} at α = {best.alpha:g}. It {change} {cost}."

    def _too_dear(self) -> str:
        """Say that no trial is affordable; whether because of its cost, or because that is uncertain."""
        known, parts = self._defined, self._parts
        which = f"any of the {parts} parts tried" if parts > 1 else "the one part tried"
        if not known:
            return f"With {which} turned down, similarity is undefined."
        limit = f"{self.costs.budget:g}{self.costs.of_loss}"
        return f"Turning down {which} {'costs' if self._all_dear else 'may cost'} more than {limit}."

    def _cheapest(self) -> str:
        """Name the cheapest trial where it is not shown that all cost too much."""
        if self._all_dear:
            return ""
        cheapest = min(self._defined, key=lambda trial: trial.loss_change.value)
        return (
            f" The smallest estimated cost is {cheapest.loss_change.as_change}, for {_named(cheapest)} at α = "
            f"{cheapest.alpha:g}."
        )

    @property
    def _all_dear(self) -> bool:
        """Whether every trial is shown to cost more than the budget; a loss that was passed has no interval."""
        changes = [trial.loss_change for trial in self._defined]
        return all((change.value if np.isnan(change.low) else change.low) > self.costs.budget for change in changes)

    def _among(self, best: Trial) -> str:
        """Say what the change named is the first of, where an affordable one without a significant effect does more."""
        affordable = [trial for trial in self._defined if self.costs.allow(trial.loss_change.value, False)]
        more = any(trial.kappa_change.value < best.kappa_change.value for trial in affordable)
        return " with a significant effect" if more else ""

    @property
    def _of_parts(self) -> str:
        return f"{self._parts} parts tried" if self._parts > 1 else "the one part tried"

    @property
    def _parts(self) -> int:
        return len({(trial.layer, trial.part) for trial in self.tried})

    @property
    def _defined(self) -> list[Trial]:
        return [trial for trial in self.tried if trial.defined]

    def _measured_on(self) -> str:
        names = self.halves.measuring
        texts = f"{plural(len(names), self.halves.noun)} ({listing(names, most=_NAMED)})"
        return f"Measured on {texts}; candidates were chosen on {len(self.halves.finding)} others.{self.halves.without}"


def in_view_of(levers: Levers, verdict: Verdict, sets: bool = False) -> Levers:
    """Return levers as a diagnosis reports them: "nothing needs doing" is withdrawn in states that κ does not measure.

    Args:
        levers: From `tokendynamics.levers`.
        verdict: Of the same network.
        sets: Whether combinations of parts were tried as well.
    """
    if sets:
        text, advice = (words.replace(_NO_SETS, "") for words in (levers.text, levers.advice))
        levers = replace(levers, text=text, advice=advice)
    if verdict.state == "undetermined":
        text = (
            f"{_UNDETERMINED} {_NEEDLESS.sub('', levers.text, count=1)}" if levers.answer == NOTHING else _UNDETERMINED
        )
        answer: Answer = "not tried for this state"
        return replace(levers, answer=answer, text=text, advice=_UNDETERMINED, best=None, effect=None)
    earlier = _effect_on_consensus_before(levers, verdict)
    if earlier not in levers.text:  # a stored diagnosis may have it
        levers = replace(levers, text=f"{levers.text} {earlier}", advice=f"{levers.advice} {earlier}")
    unmeasured = [end for end in _reported(verdict) if end[0] in UNMEASURED or end[0] in COLLAPSES]
    if levers.answer != NOTHING or not unmeasured:
        return levers
    state, where = unmeasured[0]
    why = f"κ does not measure {UNMEASURED[state]}" if state in UNMEASURED else f"κ was read after layer {levers.where}"
    untried = f"No lever was tried for the {_AS_NOUNS.get(state, state)} after {where}"
    of_state = f"Similarity does not measure {UNMEASURED[state]}." if state in UNMEASURED else ""
    rest = of_state or _NEEDLESS.sub("", levers.advice, count=1)
    advice = " ".join(filter(None, (f"{untried}.", rest)))
    text = _NEEDLESS.sub("", levers.text, count=1)
    return replace(levers, answer="not tried for this state", text=f"{untried} because {why}. {text}", advice=advice)


def _effect_on_consensus_before(levers: Levers, verdict: Verdict) -> str:
    """Say what the named change does to a consensus on the way that later layers undo; empty without one."""
    worst = verdict.worst
    if worst.state != "consensus" or verdict.state == "consensus" or levers.where in (worst.layers or (worst.layer,)):
        return ""
    if levers.effect is None:
        return (
            ""
            if levers.answer == NOTHING
            else f"No lever was tried for the consensus after {in_layers((worst.layer,))}."
        )
    there = levers.effect.sel(site="feed_forward", layer=worst.layer)
    before, after = (float(there.consensus_within.sel(model=model)) for model in MODELS)
    if np.isnan([before, after]).any():
        return ""
    (alpha,) = levers.changes.values()
    how = "Without that part" if alpha == 0 else f"With that part scaled by {alpha:g}"
    remains = there.state.sel(model=MODELS[1]).item() == "consensus"
    return (
        f"{how}, similarity after layer {worst.layer}, where the tokens are in consensus, is {fixed(after)} instead of "
        f"{fixed(before)}{', still a consensus' if remains else ''}."
    )


def unmeasured_by_kappa(verdict: Verdict, answer: Answer) -> str:
    """Return what κ does not measure of the states that a verdict reports, the end first; empty if nothing.

    Args:
        verdict: Of the network.
        answer: Of its levers; a part that they name was tried, and neighbours that merge are then no further question.
    """
    if answer == "not tried for this state":
        return ""
    measures = {key for what in verdict.sentences[:1] for key in what.values}
    others = {"position": "the share of position"}
    others |= {"adjacent": "how alike neighbouring tokens are"} if answer == NOTHING else {}
    beside = next((words for key, words in others.items() if key in measures), "")
    return next((UNMEASURED[state] for state, _ in _reported(verdict) if state in UNMEASURED), beside)


def _reported(verdict: Verdict) -> list[tuple[State, str]]:
    """Return the states that a verdict reports, and where: at the end, the worst one, and after the final norm."""
    worst, last = verdict.worst, in_layers((len(verdict.layers),))
    states: list[tuple[State, str]] = [(verdict.state, last)]
    if any(finding.values.get("common", 0.0) >= ANISOTROPIC for finding in verdict.sentences[:1]):
        states.append(("one point" if verdict.state == "one point" else "anisotropic", last))
    states.append((worst.state, in_layers(worst.layers or (worst.layer,))))
    if verdict.final_norm is not None:
        states.append((verdict.final_norm, "the final norm"))
    return states


def nothing_tried(reason: str) -> str:
    """Say why no change was tried.

    >>> nothing_tried("it was not requested"), nothing_tried("it is streamed")
    ('Nothing was tried, because levers were not requested.', 'Nothing was tried: it is streamed.')
    """
    if reason == "it was not requested":
        return "Nothing was tried, because levers were not requested."
    return f"Nothing was tried: {reason}."


def advice_finding(levers: Levers | Refused, verdict: Verdict, noun: str = "text") -> Finding:
    """Return what to do, without symbols; or why nothing was tried.

    Args:
        levers: As `in_view_of` returns them.
        verdict: Of the same network.
        noun: What a prompt is.
    """
    if isinstance(levers, Refused):
        return Finding(nothing_tried(levers.reason), "levers", {})
    other = unmeasured_by_kappa(verdict, levers.answer)
    unmeasured = f" Similarity does not measure {other}, so nothing was tried for it." if other else ""
    measured = _measured_on_others(levers, verdict, noun)
    return Finding(
        f"{levers.advice}{measured}{unmeasured}", "levers", {"answer": levers.answer, "changes": levers.changes}
    )


def _measured_on_others(levers: Levers, verdict: Verdict, noun: str) -> str:
    """Say that the prompts on which levers were measured are unlike all of them, where the numbers show it."""
    whole = next((what.values.get("consensus_within", np.nan) for what in verdict.sentences[:1]), np.nan)
    if levers.best is None or levers.where != len(verdict.layers) or not abs(levers.kappa - whole) >= _UNLIKE:
        return ""
    measured, proposing = (levers.table.sizes[name] for name in ("measuring", "finding"))
    more = "more" if levers.kappa > whole else "less"
    return (
        f" This was measured on {measured} of {measured + proposing} {noun}s, within which tokens are {more} alike "
        "than within the others."
    )


def _scaled(trial: Trial) -> str:
    return f"removing {_named(trial)}" if trial.alpha == 0 else f"{_named(trial)} scaled by {trial.alpha:g}"


def why_no_advice(verdict: Verdict, where: int) -> str:
    """Return why no change that lowers κ after a layer is recommended, in words; empty where nothing speaks against it.

    Args:
        verdict: Of the network.
        where: The layer, from 1.
    """
    state, last = verdict.layers[where - 1], verdict.state
    if state in UNMEASURED or last in UNMEASURED:
        return f"κ does not measure {UNMEASURED[state if state in UNMEASURED else last]}"
    return f"the tokens are spread after layer {where}" if state == "spread" else ""


def _named(trial: Trial) -> str:
    return part_of_layer(PARTS[trial.part], trial.layer)


def _plain(measured: EffectEstimate) -> str:
    return estimate(measured.value, (measured.low, measured.high), CONFIDENCE, at_most=1.0)
