"""The verdict: a state for the end, for the worst layer and for each one, and at most three sentences first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._details import detailed_findings
from tokendynamics.diagnosis._figure_names import PART_NAMES
from tokendynamics.diagnosis._layer_states import State, layer_states, states_within, worst_layer
from tokendynamics.diagnosis._noun import noun_in
from tokendynamics.diagnosis._parts_there import parts_there
from tokendynamics.diagnosis._prompt_shares import CONFIDENCE
from tokendynamics.diagnosis._weights_in_words import weights_findings
from tokendynamics.diagnosis._worst_layers import deciding_measure, worst_layers
from tokendynamics.numerics._printable import printable
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.results import Readable
from tokendynamics.words import Finding, estimate, fixed, in_layers, plural, share

MOST_PARTS_NAMED = 3
"""So many parts at most, and a quarter of all, are named as those that make the better half of a movement: what more of
them make is made by all."""

ONE_POINT = 0.01
"""Share of a direction that is a token's own, below which texts can hardly be told apart by direction."""

MOST_TEXTS_NAMED = 4
"""So many texts are named beside κ, which hangs on them; a longer list is read by nobody."""


@dataclass(frozen=True)
class Worst:
    """Where the tokens are furthest gone.

    Attributes:
        state: Their state there.
        layer: Counted from 1; of several that are equal, the first with the largest value.
        layers: All layers that cannot be told from it; see `worst_layers`. Empty where that was not recorded.
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

    @property
    def headline(self) -> str:
        """The state after the last layer, and where it is worst."""
        return f"{self.state} after the last layer; worst: {self.worst}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The sentences and the details."""
        return (*self.sentences, *self.details)

    def __str__(self) -> str:
        return printable(" ".join(finding.text for finding in self.sentences))


@typed_arguments
def judge(audit: xr.Dataset | None, trace: xr.Dataset, refused: str = "") -> Verdict:
    """Judge in states and sentences from the two datasets.

    Args:
        audit: From `tokendynamics.audit`; None where it was refused.
        trace: From `tokendynamics.trace`.
        refused: Why there is no audit.
    """
    states = layer_states(trace)
    layer = worst_layer(trace, states)
    worst = Worst(states[layer - 1], layer, worst_layers(trace, states))
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
    noun, known = noun_in(trace), f"κ' {estimate(kappa, site.consensus_relative_interval, CONFIDENCE, at_most=1.0)}"
    texts = {
        "spread": f"The tokens stay spread: at the end those of one {noun} share next to nothing that the embedding "
        f"did not give them ({known}).",
        "drawing together": f"The tokens of each {noun} draw together, and do not meet ({known} after the last layer).",
        "consensus": f"The tokens of each {noun} end in consensus, near one direction of its own ({known} after the "
        "last layer).",
        "rank collapse": f"The tokens of each {noun} end in rank collapse, on a line or in a few directions (centred "
        f"cos² {share(float(site.centred_cos2), site.centred_cos2_interval, CONFIDENCE)}, line excess {fixed(excess)}, "
        f"{known}).",
        "anisotropic": f"All {noun}s share one direction (common share "
        f"{share(common, site.shares_interval.sel(share='common'), CONFIDENCE)} after the last layer). "
        f"{_left_to_a_token(float(site.shares.sel(share='own')), noun)}; beyond it the tokens of one {noun} share "
        f"{_nothing(kappa)}.",
        "undetermined": _undetermined(trace),
    }
    within = float(site.consensus_within)
    values = {"consensus_relative": kappa, "line_excess": excess, "common": common, "consensus_within": within}
    return Finding(texts[state], "shares", values)


def _left_to_a_token(own: float, noun: str) -> str:
    """Say whether tokens can be told apart where all share one direction."""
    if not own >= ONE_POINT:  # undefined where directions are all one
        share = "nothing that can be measured" if np.isnan(own) or own <= 0 else f"only {own:.1g}"
        return f"Of a direction {share} is a token's own, so {noun}s can hardly be told apart by direction"
    return f"A share of {fixed(min(own, 1.0))} is still a token's own, so tokens can be told apart"


def _nothing(kappa: float) -> str:
    return "nothing that can be measured" if np.isnan(kappa) else f"next to nothing (κ' {fixed(kappa)})"


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
        else f"; their mean pair cosine goes from {fixed(cosine[0])} to {fixed(cosine[-1])}"
    )
    return f"Whether the tokens collapse is not determined: {why}{seen}."


def _where(trace: xr.Dataset, states: tuple[State, ...], worst: Worst) -> Finding | None:
    """Say after which layers it is strongest, what made it, and what was worse on the way."""
    if worst.state == "undetermined":
        return None
    name, values, intervals = deciding_measure(trace, worst.state)
    value, depth = float(values[worst.layer]), len(states)
    found = {"layer": worst.layer, "layers": list(worst.layers), "state": worst.state, "value": value}
    if worst.state == states[-1] == "spread" and not _rises(value, intervals[worst.layer]):
        more = f"In no layer do the tokens of one {noun_in(trace)} share significantly more than at the embedding"
        text = f"{more} (κ' at most {fixed(value)})."
        return Finding(text, "shares", found)
    makers = _makers(_steps(trace, worst))
    if worst.state == states[-1]:
        subject = {"anisotropic": "The common share", "rank collapse": "The line excess"}.get(worst.state, "Similarity")
        verb = "peaks" if len(worst.layers) == 1 else "is highest"
        text = f"{subject} {verb} {_after(worst.layers, depth)} ({name} {fixed(value)}){makers}."
    else:
        text = (
            f"On the way it is worse: {worst.state} {_after(worst.layers, depth)} ({name} {fixed(value)}, "
            f"{fixed(float(values[-1]))} at the end){makers}."
        )
    return Finding(text, "shares", found)


def _rises(value: float, interval: np.ndarray) -> bool:
    """Tell whether κ' is above 0 as written, and beyond chance where there is an interval."""
    return round(value, 2) > 0 and not interval[0] <= 0


def _after(layers: Sequence[int], depth: int) -> str:
    return "after the last layer" if tuple(layers) == (depth,) else f"after {in_layers(layers)} of {depth}"


def _steps(trace: xr.Dataset, worst: Worst) -> dict[str, float]:
    """Return what each part up to the worst layers does to that measure, by its name, in the order in which they run.

    Of a plateau the first layer counts: behind it nothing rises any more.
    """
    variable = {"anisotropic": trace.shares.sel(share="common"), "rank collapse": trace.line_excess}.get(
        worst.state, trace.consensus_relative
    )
    last = worst.layers[0]
    after = variable.sel(site=list(PART_NAMES)).transpose("layer", "site").values[: last + 1]
    steps = np.diff(np.concatenate([after[:1, 1], after[1:].ravel()])).reshape(last, len(PART_NAMES))
    there = parts_there(trace)
    return {
        f"the {noun} of layer {layer}": float(steps[layer - 1, number])
        for layer in range(1, last + 1)
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
        part, layer = parts[order[0]].removeprefix("the ").split(" of ")
        most = f"the largest contribution is {fixed(float(steps[order[0]]), sign=True)} ({part}, {layer})"
        return f"; no small set of parts causes it, {most}"
    chosen = sorted(order[:enough].tolist())
    named = " and ".join(filter(None, [", ".join(parts[place] for place in chosen[:-1]), parts[chosen[-1]]]))
    makes, by_them = "makes" if enough == 1 else "make", float(steps[chosen].sum())
    undone = by_them - float(total)
    if round(undone, 2) > 0:  # more than all of it is no share of it
        return f"; {named} {makes} {fixed(by_them, sign=True)}, of which the other parts undo {fixed(undone)}"
    return f"; {named} {makes} {fixed(by_them, sign=True)} of {fixed(float(total), sign=True)} on the way there"


def _how_sure(trace: xr.Dataset, state: State) -> Finding | None:
    if state == "undetermined":
        return None
    prompts, noun = trace.prompt.values.tolist(), noun_in(trace)
    named = ", ".join(f"“{name}”" for name in prompts[:MOST_TEXTS_NAMED])
    more = f" and {len(prompts) - MOST_TEXTS_NAMED} more" if len(prompts) > MOST_TEXTS_NAMED else ""
    texts = f"{plural(len(prompts), noun)} ({named}{more})"
    repeated = [str(name) for name, first in zip(prompts, trace.repeats.values, strict=True) if first >= 0]
    if repeated:
        texts += f", of which {', '.join(f'“{name}”' for name in repeated)} repeat others and count for nothing new"
    possible = states_within(trace, -1)
    values = {"prompts": len(prompts), "states": list(possible)}
    if not possible:
        return Finding(f"Based on {texts}, too few for a confidence interval.", "shares", values)
    if possible == (state,):
        text = f"Based on {texts}; the state is the same throughout the 90 % confidence intervals."
    else:
        others = " or ".join(each for each in possible if each != state)
        text = f"Based on {texts}; within the 90 % confidence intervals it may also be {others}."
    return Finding(text, "shares", values)


def _by_attention(trace: xr.Dataset) -> xr.DataArray | None:
    """Return what attention does to κ in each layer 1 … L; None where that is not defined."""
    change = trace.kappa_change.sel(component="attention", drop=True).isel(layer=slice(1, None))
    return None if bool(change.isnull().all()) else change


def _without_weights(refused: str) -> Finding:
    why = f" ({refused})" if refused else ""
    text = f"The weights are not audited{why}, so nothing is predicted from them; all else is measured on the states."
    return Finding(text, "weights", {"audit_refused": refused})
