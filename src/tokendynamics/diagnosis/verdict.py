"""The verdict: a state for the end, for the worst layer and for each one, and at most three sentences first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.auditing._words import weights_findings
from tokendynamics.diagnosis.network import (
    PART_NAMES,
    WHAT_VARIES,
    changed_between,
    joins_there,
    part_of_layer,
    parts_there,
    passes_differ,
)
from tokendynamics.diagnosis.tracing.layer_states import (
    ANISOTROPIC,
    COLLAPSES,
    FEWEST,
    OF_ALL_TEXTS,
    ROUNDED,
    SPREAD,
    State,
    deciding_measure,
    final_norm_state,
    layer_states,
    states_within,
    worst_layer,
    worst_layers,
)
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.diagnosis.tracing.words import (
    MOST_TEXTS_NAMED,
    detailed_findings,
    determined_by_place,
    merging_neighbours,
    own_share,
    qualifications,
)
from tokendynamics.numerics.arguments import as_integer
from tokendynamics.numerics.printable import printable
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.results.result import Readable
from tokendynamics.results.tables import findings_of, one_of
from tokendynamics.words import (
    Finding,
    digits_apart,
    estimate,
    fixed,
    in_layers,
    listing,
    number,
    percent,
    places_beyond_zero,
    plural,
    sentence,
    share,
)

FigureName = Literal[
    "shares", "agreement", "norms", "updates", "attention", "components", "levers", "deeper", "weights", "paths",
    "halved", "directions", "heads",
]  # fmt: skip
"""Names of the figures that findings stand beside."""

MOST_PARTS_NAMED = 3
"""Parts named at most, and at most a quarter of all, as those that cause the larger half of a change: beyond that, all
parts cause it."""

INDISTINCT = 0.01
"""Share of a direction that is a token's own, below which texts can hardly be distinguished by direction."""

_SUBJECTS = {"common share": "The common share", "line excess": "The line excess"}
"""Measures that decide a state, at the beginning of a sentence."""

_ENTER_ALIKE = "enter the network exactly as others do"

_PLAIN = {"κ′": "similarity"}
"""Measures that have a symbol, in the words of the first screen."""


@dataclass(frozen=True)
class Worst:
    """The layers at which the tokens' state is worst.

    Attributes:
        state: Their state there.
        layer: Counted from 1; of several that are equal, the first with the largest value.
        layers: All layers that do not differ significantly from it; see `worst_layers`. Empty where not recorded.
    """

    state: State
    layer: int
    layers: tuple[int, ...] = ()

    def __str__(self) -> str:
        layers = self.layers or (self.layer,)
        return f"{self.state}, {in_layers(layers)}"


@dataclass(frozen=True, repr=False)
class Verdict(Readable):
    """The diagnosis in words.

    Attributes:
        state: Of the tokens after the last layer.
        worst: The worst state over all layers, and its layers.
        layers: The state after each layer 1 … L.
        sentences: The first screen, without symbols: what becomes of the tokens, why, and what to do. Why is left out
            where the state is undetermined, what to do where nothing but a trace was judged.
        details: Further findings, each with its number and interval; the first says how certain the state is.
        final_norm: The state after the final norm; None for a network without one, or where it is not recorded.

    >>> from tokendynamics.diagnosis import diagnose
    >>> verdict = diagnose("random:gpt2-tiny", "a short text", layers=[1]).verdict  # a state needs several texts
    >>> verdict.state, len(verdict.layers)
    ('undetermined', 6)
    """

    state: State
    worst: Worst
    layers: tuple[State, ...]
    sentences: tuple[Finding, ...]
    details: tuple[Finding, ...]
    final_norm: State | None = None

    @property
    def headline(self) -> str:
        """The state after the last layer, after the final norm if that changes it, and a worse one on the way."""
        normed = "" if self.final_norm in (None, self.state) else f", {self.final_norm} after the final norm"
        if set(self.layers) in ({"spread"}, {"undetermined"}):
            return f"{self.state} after {'every' if self.layers[1:] else 'the only'} layer{normed}"
        worst = "" if self.worst.state == self.state else f"; worst: {self.worst}"
        return f"{self.state} after the last layer{normed}{worst}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The sentences and the details."""
        return (*self.sentences, *self.details)

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The sentences, each behind its name: What, Why, What to do; How sure where an earlier version stored one."""
        names = ("What", "Why", "How sure")
        return tuple(
            ("What to do" if finding.figure == "levers" else name, finding.text)
            for name, finding in zip(names, self.sentences, strict=False)
        )

    def advised(self, advice: Finding) -> Verdict:
        """Return the verdict with a sentence on what to do.

        Args:
            advice: From the levers.
        """
        return replace(self, sentences=(*self.sentences, advice))

    def __str__(self) -> str:
        return printable(" ".join(finding.text for finding in self.sentences))


@typed_arguments
def judge(
    audit: xr.Dataset | None,
    trace: xr.Dataset,
    refused: str = "",
    *,
    usual: Finding | None = None,
    causes: str = "",
    further: Sequence[Finding] = (),
) -> Verdict:
    """Judge in states and sentences from the two datasets.

    Args:
        audit: From `tokendynamics.audit`; None where it was refused.
        trace: From `tokendynamics.trace`.
        refused: Why there is no audit.
        usual: Whether the similarity after the last layer is usual; it continues the first sentence.
        causes: What raises similarity besides parts, such as heads; it continues the second sentence where similarity
            rises.
        further: Details after those on the states.

    >>> from tokendynamics.diagnosis import trace
    >>> from tokendynamics.pretrained import load
    >>> texts = ["The dog sleeps in the sun.", "It rains a lot in May.", "Two and two make four."]
    >>> traced = trace(load("random:gpt2-tiny:0"), texts)
    >>> judge(None, traced, refused="only the trace was asked for").state
    'drawing together'
    """
    states = layer_states(trace)
    layer = worst_layer(trace, states)
    worst = Worst(states[layer - 1], layer, worst_layers(trace, states))
    final = final_norm_state(trace)
    sentences = [_continued(_state_finding(trace, states[-1], final), usual), _where(trace, states, worst, causes)]
    if audit is None:
        because = f" ({refused})" if refused else ""
        text = f"The weights were not audited{because}, so nothing is predicted from them."
        text += " All else is measured on the states."
        weights = [Finding(text, "weights", {"audit_refused": refused})]
    else:
        by_attention = trace.kappa_change.sel(component="attention", drop=True).isel(layer=slice(1, None))
        weights = weights_findings(audit, None if bool(by_attention.isnull().all()) else by_attention)
    details = (_how_sure(trace, states[-1]), *detailed_findings(trace, states), *further, *weights)
    return Verdict(states[-1], worst, states, _without_none(sentences), _without_none(details), final)


def _without_none(findings: Sequence[Finding | None]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding is not None)


_SIMILARITY = re.compile(r"[Ww]ithin-\w+ similarity")


def _continued(finding: Finding, addition: Finding | None) -> Finding:
    """Return a finding with the sentences and values of another one behind its own.

    "This is", which means the similarity, is written out where another sentence stands between.
    """
    if addition is None:
        return finding
    text = addition.text
    last, similarity = finding.text.split(". ")[-1], _SIMILARITY.search(finding.text)
    if text.startswith("This is ") and similarity is not None and not _SIMILARITY.match(last):
        text = f"The {similarity[0].lower()} is {text.removeprefix('This is ')}"
    return Finding(f"{finding.text} {text}", finding.figure, {**finding.values, **addition.values})


def mean_over_prompts(trace: xr.Dataset) -> xr.Dataset:
    """Return the numbers of a trace averaged over its prompts; undefined ones do not count.

    Args:
        trace: From `tokendynamics.diagnosis.trace`.
    """
    return trace.drop_vars(["text", "token_text"]).mean("prompt", skipna=True)


def spread_over_prompts(trace: xr.Dataset) -> xr.Dataset:
    """Return the standard deviation over prompts (n in the denominator) of every number that has one per prompt.

    Args:
        trace: From `tokendynamics.diagnosis.trace`.
    """
    per_prompt = [name for name, values in trace.items() if "prompt" in values.dims and name != "token_text"]
    return trace.drop_vars("text")[per_prompt].std("prompt", skipna=True)


def _state_finding(trace: xr.Dataset, state: State, final: State | None) -> Finding:
    site = trace.sel(site="feed_forward").isel(layer=-1)
    kappa, excess = float(site.consensus_relative), float(site.line_excess)
    common = float(site.shares.sel(share="common"))
    noun, share_own = noun_in(trace), own_share(site)
    # κ is undefined where what is not common is rounding.
    share_own = 0.0 if state == "one point" and np.isnan(float(site.consensus_within)) else share_own
    similarity = estimate(kappa, site.consensus_relative_interval, CONFIDENCE, at_most=1.0)
    after = f"Within-{noun} similarity after the last layer is {similarity}"
    cos2 = share(float(site.centred_cos2), site.centred_cos2_interval, CONFIDENCE)
    one_way = share(common, site.shares_interval.sel(share="common"), CONFIDENCE)
    apart = kappa <= -SPREAD
    beyond = f"{'less than at the embedding' if apart else 'almost nothing'}: within-{noun} similarity is {similarity}"
    more, beside = ("spread further", "below") if apart else ("stay spread", "close to")
    merged = state not in COLLAPSES and len(trace.layer) - 1 in merging_neighbours(trace)
    distinct = " but stay distinct" if not merged and (share_own >= INDISTINCT or common < ANISOTROPIC) else ""
    texts = {
        "spread": f"The tokens {more}. {after}, {beside} that of the embedding (0).",
        "drawing together": f"The tokens of each {noun} draw together{distinct}. {after}; 0 is the embedding's, 1 is "
        f"one point per {noun}.",
        "consensus": f"The tokens of each {noun} end in consensus, near one direction per {noun}. {after}; 1 is one "
        f"point per {noun}.",
        "rank collapse": f"The tokens of each {noun} end in rank collapse, on a line or in a few directions. The line "
        f"excess is {fixed(excess)} (variance of the cosines between centred tokens, relative to the embedding). The "
        f"mean square of these cosines is {cos2}, within-{noun} similarity {similarity}.",
        "one point": f"The tokens of all {noun}s end at one point: the common share of their directions is {one_way} "
        f"after the last layer. {_left_to_a_token(share_own, noun)}.",
        "anisotropic": f"Tokens of all {noun}s point one way: the common share of their directions is {one_way} after "
        f"the last layer. {_left_to_a_token(share_own, noun)}. Beyond the common direction, tokens of one "
        f"{noun} share {'nothing measurable' if np.isnan(kappa) else beyond}.",
        "undetermined": _undetermined(trace),
    }
    within = float(site.consensus_within)
    values = {"consensus_relative": kappa, "line_excess": excess, "common": common, "consensus_within": within}
    values |= {"position": float(site.share_position)} if determined_by_place(trace) else {}
    values |= {"adjacent": float(trace.cosine_at_distance.isel(layer=-1).sel(distance=1))} if merged else {}
    further = (
        texts[state],
        *(
            []
            if state in (*OF_ALL_TEXTS, "undetermined") or common < ANISOTROPIC
            else [_one_way(one_way, share_own, noun)]
        ),
        *_other_states(trace, state),
        *qualifications(trace, state),
        *_after_the_final_norm(trace, state, final),
    )
    return Finding(" ".join(further), "shares", values)


def _after_the_final_norm(trace: xr.Dataset, state: State, final: State | None) -> list[str]:
    """Say what the final norm turns the state into, if into another one."""
    if final in (None, state, "undetermined"):
        return []
    name, values, _ = deciding_measure(trace, final, "final_norm")
    measure = f"{_PLAIN.get(name, name)} {fixed(float(values[-1]))}"
    if final in states_within(trace, -1) and state in states_within(trace, -1, "final_norm"):
        return [f"After the final norm the state is {final} ({measure}), a difference within the confidence intervals."]
    return [f"The final norm changes the state to {final} ({measure})."]


def _one_way(common: str, share_own: float, noun: str) -> str:
    """Say that all tokens share one direction, in a state that another measure decides."""
    return (
        f"Besides, tokens of all {noun}s point one way: the common share of their directions is {common}. "
        f"{_left_to_a_token(share_own, noun)}."
    )


def _other_states(trace: xr.Dataset, state: State) -> list[str]:
    """Say which other states the intervals allow, if any."""
    others = [other for other in states_within(trace, -1) if other != state] if state != "undetermined" else []
    within = f"the {percent(CONFIDENCE)} confidence intervals"
    return [f"Within {within} the state may also be {listing(others, 'or')}."] if others else []


def _left_to_a_token(own_share: float, noun: str) -> str:
    """Say whether tokens can be distinguished where all share one direction."""
    if not own_share >= INDISTINCT:  # undefined where directions are all one
        measurable = own_share > 0
        share = f"Only {number(own_share, 1)}" if measurable else "No measurable share"
        return f"{share} of a direction is a token's own, so the {noun}s can hardly be distinguished by direction"
    return f"{fixed(min(own_share, 1.0))} of a direction is still a token's own, so tokens can be distinguished"


def _undetermined(trace: xr.Dataset) -> str:
    site = trace.sel(site="feed_forward", sinks="removed")
    cosine, noun = site.mean_pair_cosine.mean("prompt").values, noun_in(trace)
    alone = f"one {noun} cannot show which similarity is its own and which all {noun}s share"
    if trace.sizes["prompt"] == 1:
        why = alone
    elif int((trace.repeats < 0).sum()) < 2:
        why = f"all {noun}s are identical, and {alone}"
    elif np.isnan(cosine).any():
        why = f"fewer than two tokens count in every {noun}"
    elif np.isnan(float(site.consensus_within[0])) or np.isnan(float(site.consensus_relative[0])):
        why = f"the tokens of each {noun} already agree before the first layer"
    else:
        why = "the measures are undefined after the last layer"
    course = (
        "" if np.isnan(cosine).any() else f" The mean pair cosine goes from {fixed(cosine[0])} to {fixed(cosine[-1])}."
    )
    return f"Whether the tokens collapse is undetermined because {why}.{course}"


def _where(trace: xr.Dataset, states: tuple[State, ...], worst: Worst, further_causes: str) -> Finding | None:
    """Say after which layers it is strongest, which parts and what else cause it, and what was worse earlier."""
    if worst.state == "undetermined":
        return None
    name, values, intervals = deciding_measure(trace, worst.state)
    value, depth = float(values[worst.layer]), len(states)
    numbers = {"layer": worst.layer, "layers": list(worst.layers), "state": worst.state, "value": value}
    # κ′ rises where it is above 0 as written, and significantly where there is an interval.
    rises = bool(np.any((np.round(values[1:], 2) > 0) & ~(intervals[1:, 0] <= 0)))
    if worst.state == states[-1] == "spread" and not rises:
        text = (
            f"In no layer are the tokens of one {noun_in(trace)} significantly more similar than at the embedding "
            f"(similarity at most {fixed(float(np.nanmax(values[1:])))})."
        )
        return Finding(f"{text}{_by_place(trace)}", "shares", numbers)
    first = worst.layers[0]  # of a plateau, whose largest value may be that of a later layer
    until = "" if fixed(float(values[first])) == fixed(value) else f" up to layer {first}"
    causes = _causes(_steps(trace, worst.state, worst.layers[0]), until)
    if name == "common share" and values[0] >= value / 2:
        causes = f" At the embedding it is {fixed(float(values[0]))} already.{causes}"
    causes += _rise_again(trace, worst, states[-1], values)
    causes += f" {further_causes}" if further_causes and name in _PLAIN else ""
    end = float(values[-1])
    places = 2 if worst.state == states[-1] else digits_apart(value, end)
    measure, where = f"{_PLAIN.get(name, name)} {fixed(value, places)}", _after(worst.layers, depth)
    if len(worst.layers) > 1:
        low, high = intervals[worst.layer]
        plateau = values[list(worst.layers)]
        where += (
            f", equal {'to within the interval' if ((plateau >= low) & (plateau <= high)).all() else 'when rounded'}"
        )
    if worst.state == states[-1]:
        subject = _SUBJECTS.get(name, "Similarity")
        verb = "peaks" if len(worst.layers) == 1 else "is highest"
        text = f"{subject} {verb} {where} ({fixed(value)}).{causes}"
    else:
        earlier = "An earlier layer is worse" if len(worst.layers) == 1 else "Earlier layers are worse"
        text = f"{earlier}: {worst.state} {where} ({measure}; {fixed(end, places)} after the last layer).{causes}"
    return Finding(f"{text}{_by_place(trace)}", "shares", numbers)


def _by_place(trace: xr.Dataset) -> str:
    """Say what makes most of a direction that of a token's place after the last layer; empty where it is not."""
    if not determined_by_place(trace):
        return ""
    by_layer, depth = trace.share_position.sel(site="feed_forward").values, trace.sizes["layer"] - 1
    start, end = float(by_layer[0]), float(by_layer[-1])
    if start >= end / 2:
        return f" The share of position is {fixed(start)} at the embedding already."
    causes = _causes(_steps_of(trace, trace.share_position, depth))
    return f" The share of position goes from {fixed(start)} at the embedding to {fixed(end)}.{causes}"


def _rise_again(trace: xr.Dataset, worst: Worst, last: State, values: np.ndarray) -> str:
    """Say what causes most of the measure after the last layer where it has fallen behind the worst layers."""
    start, end = (worst.layers or (worst.layer,))[-1], float(values[-1])
    behind = np.where(np.isnan(values[start:]), np.inf, values[start:])
    lowest = float(behind.min())
    name = deciding_measure(trace, worst.state)[0]
    if deciding_measure(trace, last)[0] != name or end - lowest < max(end / 2, 0.1):
        return ""
    dip = start + int(np.flatnonzero(behind <= lowest + ROUNDED)[-1])
    causes = _causes(_steps(trace, worst.state, len(values) - 1, dip))
    subject = _SUBJECTS.get(name, "Similarity")
    return f" {subject} falls to {fixed(lowest)} after layer {dip} and rises to {fixed(end)} after the last.{causes}"


def _after(layers: Sequence[int], depth: int) -> str:
    return "after the last layer" if tuple(layers) == (depth,) else f"after {in_layers(layers)} of {depth}"


def _steps(trace: xr.Dataset, state: State, last: int, first: int = 0) -> dict[str, float]:
    """Return what each part does to the measure of a state, by its name, in the order in which they run.

    Args:
        trace: From `tokendynamics.trace`.
        state: What the measure decides.
        last: The last layer that counts; of a plateau the first one, since behind it nothing rises any more.
        first: The layer after which parts count.
    """
    name, _, _ = deciding_measure(trace, state)
    variables = {"common share": trace.shares.sel(share="common"), "line excess": trace.line_excess}
    return _steps_of(trace, variables.get(name, trace.consensus_relative), last, first)


def _steps_of(trace: xr.Dataset, variable: xr.DataArray, last: int, first: int = 0) -> dict[str, float]:
    """Return what each part does to a measure; see `_steps`."""
    after = variable.sel(site=list(PART_NAMES)).transpose("layer", "site").values[first : last + 1]
    steps = np.diff(np.concatenate([after[:1, 1], after[1:].ravel()])).reshape(last - first, len(PART_NAMES))
    existing = parts_there(trace)
    return {
        part_of_layer(part, layer): float(steps[layer - first - 1, number])
        for layer in range(first + 1, last + 1)
        for number, part in enumerate(PART_NAMES)
        if existing[part][layer - 1]
    }


def _causes(by_part: dict[str, float], until: str = "") -> str:
    """Say which parts cause the larger half of a rise that shows in two decimals, if they are few.

    Args:
        by_part: What each does.
        until: What follows the total, where the rise ends before the layer whose number stands beside it.
    """
    parts, steps = list(by_part), np.array(list(by_part.values()))
    total = steps.sum()
    if not round(total, 2) > 0:
        return ""
    order = np.argsort(steps)[::-1]
    enough = int(np.searchsorted(np.cumsum(steps[order]), total / 2)) + 1
    if enough > min(MOST_PARTS_NAMED, max(1, len(steps) // 4)):
        part, layer = parts[order[0]].removeprefix("the ").split(" of ")
        step = float(steps[order[0]])
        largest = f"the largest contribution is {fixed(step, _places(step), sign=True)} ({part}, {layer})"
        return f" No small set of parts causes {f'the rise{until}' if until else 'it'}; {largest}."
    chosen = sorted(order[:enough].tolist())
    of_kinds = _by_kind([parts[place] for place in chosen])
    named, contribution = listing(of_kinds), float(steps[chosen].sum())
    contributes = "contributes" if len(of_kinds) == 1 else "contribute"
    places = _places(contribution)
    undone, whole = contribution - float(total), fixed(float(total), places, sign=True)
    subject = f" {named[0].upper()}{named[1:]} {contributes}"
    if round(undone, 2) > 0:  # more than the whole rise is no share of it
        return f"{subject} {fixed(contribution, sign=True)}{until}, of which the other parts undo {fixed(undone)}."
    part = fixed(contribution, places, sign=True) if undone <= 0 else whole
    return f"{subject} {part} of the total {whole}{until}."


def _by_kind(parts: Sequence[str]) -> list[str]:
    """Write parts of layers, those of one kind together.

    >>> _by_kind(["the attention of layer 1", "the feed-forward part of layer 1", "the attention of layer 3"])
    ['the attention of layers 1 and 3', 'the feed-forward part of layer 1']
    """
    layers: dict[str, list[int]] = {}
    for part, _, layer in (name.partition(" of layer ") for name in parts):
        layers.setdefault(part, []).append(int(layer))
    return [f"{part} of {listing(in_layers(of_part).split(', '))}" for part, of_part in layers.items()]


def _places(step: float) -> int:
    """Return the decimal places, 2 or more, at which a part that causes most of a rise does not read 0."""
    return places_beyond_zero([step, step])


def _how_sure(trace: xr.Dataset, state: State) -> Finding | None:
    if state == "undetermined":
        return None
    prompts, noun = trace.prompt.values.tolist(), noun_in(trace)
    texts = f"{plural(len(prompts), noun)} ({listing([f'“{name}”' for name in prompts], most=MOST_TEXTS_NAMED)})"
    repeated = [f"“{name}”" for name, first in zip(prompts, trace.repeats.values, strict=True) if first >= 0]
    if repeated:
        repeat, count = (
            ("repeats another", "does not count") if len(repeated) == 1 else ("repeat others", "do not count")
        )
        if not _same_tokens(trace):  # other tokens with equal embeddings
            repeat = "enters the network exactly as another does" if len(repeated) == 1 else _ENTER_ALIKE
        texts += f", of which {listing(repeated, most=MOST_TEXTS_NAMED)} {repeat} and {count}"
    possible = states_within(trace, -1)
    values = {"prompts": len(prompts), "states": list(possible)}
    if not possible:
        few = int((trace.repeats < 0).sum()) < FEWEST
        why = (
            "too few for a confidence interval" if few else "with no confidence interval because a measure is undefined"
        )
        sure = f"Based on {texts}, {why}."
    else:
        same = "is the same" if possible == (state,) else "is not the same"
        sure = f"Based on {texts}; the verdict {same} throughout the {percent(CONFIDENCE)} confidence intervals."
    if passes_differ(trace):
        sure += (
            f" Two passes of this network over the same input give different numbers ({WHAT_VARIES}), so another run "
            "may give another verdict."
        )
    if joins := joins_there(trace):
        sure += f" {sentence(changed_between(joins))}"
    site = trace.sel(site="feed_forward")
    first, last = (fixed(float(site.consensus_within[layer])) for layer in (0, -1))
    meaning = f"Within-{noun} similarity is κ′: κ is {first} at the embedding and {last} after the last layer, and κ′ "
    meaning += "is (κ − κ₀)/(1 − κ₀) with κ₀ the embedding's."
    return Finding(f"{sure} {meaning}", "shares", values)


def _same_tokens(trace: xr.Dataset) -> bool:
    """Return whether every text that repeats another one, by its states at the embedding, has the same tokens."""
    words, repeats = trace.token_text.transpose("prompt", "token").values, trace.repeats.values
    return all(bool((words[place] == words[first]).all()) for place, first in enumerate(repeats) if first >= 0)


def verdict_as_plain(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as it is stored."""
    return {
        "state": verdict.state,
        "worst": asdict(verdict.worst),
        "layers": list(verdict.layers),
        "final_norm": verdict.final_norm,
        "sentences": [plain(asdict(finding)) for finding in verdict.sentences],
        "details": [plain(asdict(finding)) for finding in verdict.details],
    }


def verdict_of(values: Any) -> Verdict:
    """Return a stored verdict."""
    stored = values["worst"]
    several = tuple(as_integer(layer, "layer") for layer in stored.get("layers", ()))  # absent before there were any
    worst = Worst(one_of(State, stored["state"]), as_integer(stored["layer"], "layer"), several)
    layers = tuple(one_of(State, state) for state in values["layers"])
    sentences, details = (findings_of(values[name], FigureName) for name in ("sentences", "details"))
    stored_final = values.get("final_norm")  # absent before there was one
    final = None if stored_final is None else one_of(State, stored_final)
    return Verdict(one_of(State, values["state"]), worst, layers, sentences, details, final)
