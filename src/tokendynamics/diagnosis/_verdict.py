"""The verdict: a state for the end, for the worst layer and for each one, and at most three sentences first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._details import detailed_findings
from tokendynamics.diagnosis._finding import PART_NAMES, Finding, between, plain, several, signed
from tokendynamics.diagnosis._layer_states import (
    State,
    layer_states,
    measures,
    states_within,
    worst_layer,
)
from tokendynamics.diagnosis._noun import noun_in
from tokendynamics.diagnosis._parts_there import parts_there
from tokendynamics.diagnosis._weights_in_words import weights_findings

MOST_PARTS_NAMED = 3
"""So many parts at most, and a quarter of all, are named as those that make the better half of a movement: what more of
them make is made by all."""

MOST_TEXTS_NAMED = 4
"""So many texts are named beside κ, which hangs on them; a longer list is read by nobody."""


@dataclass(frozen=True)
class Worst:
    """Where the tokens are furthest gone.

    Attributes:
        state: Their state there.
        layer: Counted from 1.
    """

    state: State
    layer: int


@dataclass(frozen=True)
class Verdict:
    """The diagnosis in words.

    Attributes:
        state: Of the tokens after the last layer.
        worst: The state and the layer at which they are furthest gone.
        layers: The state after each layer 1 … L.
        sentences: What becomes of the tokens, where, and how sure that is.
        details: What else was measured, each with its number and its interval.
    """

    state: State
    worst: Worst
    layers: tuple[State, ...]
    sentences: tuple[Finding, ...]
    details: tuple[Finding, ...]

    def __str__(self) -> str:
        return " ".join(finding.text for finding in self.sentences)


def judge(audit: xr.Dataset | None, trace: xr.Dataset, refused: str = "") -> Verdict:
    """Judge in states and sentences from the two datasets.

    Args:
        audit: From `tokendynamics.audit`; None where it was refused.
        trace: From `tokendynamics.trace`.
        refused: Why there is no audit.
    """
    states = layer_states(trace)
    layer = worst_layer(trace, states)
    worst = Worst(states[layer - 1], layer)
    sentences = [_what(trace, states[-1]), _where(trace, states, worst), _how_sure(trace, states[-1])]
    weights = [_without_weights(refused)] if audit is None else weights_findings(audit, _by_attention(trace))
    details = (*detailed_findings(trace, states), *weights)
    return Verdict(states[-1], worst, states, tuple(each for each in sentences if each is not None), details)


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


def _what(trace: xr.Dataset, state: State) -> Finding:
    site = trace.sel(site="feed_forward").isel(layer=-1)
    kappa, excess = float(site.consensus_relative), float(site.line_excess)
    common = float(site.shares.sel(share="common"))
    noun, known = noun_in(trace), f"κ' {plain(kappa)}{between(site.consensus_relative_interval)}"
    texts = {
        "spread": f"The tokens stay spread: at the end those of one {noun} share next to nothing that the embedding "
        f"did not give them ({known}).",
        "drawing together": f"The tokens of each {noun} draw together, and do not meet ({known} after the last layer).",
        "consensus": f"The tokens of each {noun} end in consensus, near one direction of its own ({known} after the "
        "last layer).",
        "rank collapse": f"The tokens of each {noun} end in rank collapse, on a line or in a few directions (centred "
        f"cos² {plain(float(site.centred_cos2))}{between(site.centred_cos2_interval)}, line excess {plain(excess)}, "
        f"{known}).",
        "anisotropic": f"All {noun}s share one direction (common share {plain(common)}"
        f"{between(site.shares_interval.sel(share='common'))} after the last layer), which is no collapse: beyond it "
        f"the tokens of one {noun} share {_nothing(kappa)}.",
        "undetermined": _undetermined(trace),
    }
    within = float(site.consensus_within)
    values = {"consensus_relative": kappa, "line_excess": excess, "common": common, "consensus_within": within}
    return Finding(texts[state], "shares", values)


def _nothing(kappa: float) -> str:
    return "nothing that can be measured" if np.isnan(kappa) else f"next to nothing (κ' {plain(kappa)})"


def _undetermined(trace: xr.Dataset) -> str:
    site = trace.sel(site="feed_forward", sinks="removed")
    cosine, noun = site.mean_pair_cosine.mean("prompt").values, noun_in(trace)
    alone = f"one {noun} cannot tell what its tokens share from what all {noun}s share"
    if trace.sizes["prompt"] == 1:
        why = alone
    elif int((trace.repeats < 0).sum()) < 2:
        why = f"all {noun}s are the same, and {alone}"
    elif np.isnan(cosine).any():
        why = f"fewer than two tokens count in every {noun}"
    elif np.isnan(float(site.consensus_within[0])) or np.isnan(float(site.consensus_relative[0])):
        why = f"the tokens of each {noun} agree before the first layer already"
    else:
        why = "the measures do not exist there"
    seen = (
        ""
        if np.isnan(cosine).any()
        else f"; their mean pair cosine goes from {plain(cosine[0])} to {plain(cosine[-1])}"
    )
    return f"Whether the tokens collapse is not determined: {why}{seen}."


def _where(trace: xr.Dataset, states: tuple[State, ...], worst: Worst) -> Finding | None:
    """Say at which layers it happens, and what was worse on the way."""
    if worst.state == "undetermined":
        return None
    name, moved = _measure_of(trace, worst.state)
    by_part = _steps(trace, worst)
    place = "at the end" if worst.layer == len(states) else f"after layer {worst.layer} of {len(states)}"
    if worst.state == states[-1]:
        most = "What they share is most" if worst.state == "spread" else "It is strongest"
        text = f"{most} {place} ({name} {plain(moved[worst.layer])}){_makers(by_part)}."
    else:
        text = (
            f"On the way it is worse: {worst.state} {place} ({name} {plain(moved[worst.layer])}, "
            f"{plain(moved[-1])} at the end){_makers(by_part)}."
        )
    return Finding(text, "shares", {"layer": worst.layer, "state": worst.state, "value": float(moved[worst.layer])})


def _measure_of(trace: xr.Dataset, state: State) -> tuple[str, np.ndarray]:
    """Return the measure that a state is decided by, over the layers, and its name."""
    common, kappa, excess = measures(trace)
    if state == "anisotropic":
        return "common share", common
    return ("line excess", excess) if state == "rank collapse" else ("κ'", kappa)


def _steps(trace: xr.Dataset, worst: Worst) -> dict[str, float]:
    """Return what each part up to the worst layer does to that measure, by its name, in the order in which they run."""
    variable = {"anisotropic": trace.shares.sel(share="common"), "rank collapse": trace.line_excess}.get(
        worst.state, trace.consensus_relative
    )
    after = variable.sel(site=list(PART_NAMES)).transpose("layer", "site").values[: worst.layer + 1]
    steps = np.diff(np.concatenate([after[:1, 1], after[1:].ravel()])).reshape(worst.layer, len(PART_NAMES))
    there = parts_there(trace)
    return {
        f"the {noun} of layer {layer}": float(steps[layer - 1, number])
        for layer in range(1, worst.layer + 1)
        for number, (part, noun) in enumerate(PART_NAMES.items())
        if there[part][layer - 1]
    }


def _makers(by_part: dict[str, float]) -> str:
    """Say which parts make the better half of a rise that shows in two decimals, if they are few."""
    parts, steps = list(by_part), np.array(list(by_part.values()))
    total = steps.sum()
    if not round(total, 2) > 0:
        return ""
    order = np.argsort(steps)[::-1]
    enough = int(np.searchsorted(np.cumsum(steps[order]), total / 2)) + 1
    if enough > min(MOST_PARTS_NAMED, max(1, len(steps) // 4)):
        return f"; no few parts make it, the most is {signed(float(steps[order[0]]))} by {parts[order[0]]}"
    chosen = sorted(order[:enough].tolist())
    named = " and ".join(filter(None, [", ".join(parts[place] for place in chosen[:-1]), parts[chosen[-1]]]))
    makes = "makes" if enough == 1 else "make"
    return f"; {named} {makes} {signed(float(steps[chosen].sum()))} of {signed(float(total))} on the way there"


def _how_sure(trace: xr.Dataset, state: State) -> Finding | None:
    if state == "undetermined":
        return None
    prompts, noun = trace.prompt.values.tolist(), noun_in(trace)
    named = ", ".join(f"“{name}”" for name in prompts[:MOST_TEXTS_NAMED])
    more = f" and {len(prompts) - MOST_TEXTS_NAMED} more" if len(prompts) > MOST_TEXTS_NAMED else ""
    texts = f"{several(len(prompts), noun)} ({named}{more})"
    repeated = [str(name) for name, first in zip(prompts, trace.repeats.values, strict=True) if first >= 0]
    if repeated:
        texts += f", of which {', '.join(f'“{name}”' for name in repeated)} repeat others and count for nothing new"
    possible = states_within(trace, -1)
    values = {"prompts": len(prompts), "states": list(possible)}
    if not possible:
        return Finding(f"That is of {texts}, too few for an interval.", "shares", values)
    if possible == (state,):
        text = f"That is of {texts}; the state is the same at every end of the 90 % intervals over {noun}s like these."
    else:
        others = " or ".join(each for each in possible if each != state)
        text = f"That is of {texts}; within the 90 % intervals over {noun}s like these it may also be {others}."
    return Finding(text, "shares", values)


def _by_attention(trace: xr.Dataset) -> xr.DataArray | None:
    """Return what attention does to κ in each layer 1 … L; None where that is not defined."""
    change = trace.kappa_change.sel(component="attention", drop=True).isel(layer=slice(1, None))
    return None if bool(change.isnull().all()) else change


def _without_weights(refused: str) -> Finding:
    why = f" ({refused})" if refused else ""
    text = f"The weights are not audited{why}, so nothing is predicted from them; all else is measured on the states."
    return Finding(text, "weights", {"audit_refused": refused})
