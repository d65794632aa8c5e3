"""Sentences of a comparison: end states, the first difference, sizes of updates, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.comparing._first_difference import SIZE_CHANGED, Difference, Parting
from tokendynamics.diagnosis.comparing._outliers import NEIGHBOURS
from tokendynamics.diagnosis.comparing._tensors import MissingLayers
from tokendynamics.diagnosis.comparing._weight_words import MOST_NAMED, of_norm, scale_in_words
from tokendynamics.diagnosis.comparing._weights import CIRCUITS
from tokendynamics.diagnosis.network import PART_NAMES, WHAT_VARIES
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.words import (
    Finding,
    factor,
    fixed,
    in_layers,
    listing,
    number,
    percent,
    places_beyond_zero,
    places_that_add,
    plural,
    ranges,
    signed,
)
from tokendynamics.words import interval as interval_of

NEGLIGIBLE = 5e-4
"""Difference of κ′ below which neither network is called closer to collapse, significant or not: it may be rounding."""

SMALL = 0.1
"""Relative difference of the last states up to which networks with different embeddings count as close: rounding all
weights of SmolLM2 to half precision gives 0.003, one percent of noise on them 0.04."""


def chance_finding(varying: Sequence[str]) -> Finding | None:
    """Say that differences may be those of two passes of one network; None where no network has any.

    Args:
        varying: Names of the networks whose passes over the same input differ.
    """
    if not varying:
        return None
    text = (
        f"Two passes of {listing(list(varying))} over the same input give different numbers ({WHAT_VARIES}): "
        "differences of states and of what follows from them can be of that kind."
    )
    return Finding(text, "shares", {"varying": list(varying)})


def end_finding(
    names: tuple[str, str],
    verdicts: tuple[Verdict, Verdict],
    ends: tuple[float, float],
    difference: xr.Dataset,
    noun: str = "text",
) -> Finding:
    """Say in which states the tokens of both end, and by how much κ′ differs.

    Args:
        names: Of the first network and the other one.
        verdicts: Likewise.
        ends: κ′ of each after its last layer.
        difference: From `paired_differences`, of the other one.
        noun: What a prompt is called.
    """
    site = difference.sel(site="feed_forward").isel(layer=-1)
    gap, interval = float(site.consensus_relative), site.consensus_relative_interval.values
    states = verdicts[0].state, verdicts[1].state
    places = 2
    if states[0] == states[1] == "undetermined":
        text = "the end states of both are undetermined."
    elif states[0] == states[1]:
        text = f"both end in the same state ({states[0]})."
    else:
        if np.isfinite(gap) and np.isclose(gap, ends[1] - ends[0]):  # in networks of one depth
            places = places_that_add(ends[1], ends[0])
        similarities = ["κ′ undefined" if np.isnan(end) else f"κ′ {fixed(end, places)}" for end in ends]
        both = [f"{name} in “{state}” ({end})" for name, state, end in zip(names, states, similarities, strict=True)]
        text = f"the end states differ, {both[0]} and {both[1]}."
    values = {"states": list(states), "consensus_relative_difference": gap, "interval": interval.tolist()}
    return Finding(f"{names[1]} vs {names[0]}: {text} {_gap(gap, interval, noun, places)}", "shares", values)


def _gap(gap: float, interval: np.ndarray, noun: str, places: int) -> str:
    subject = f"within-{noun} similarity κ′"
    if np.isnan(gap):
        return f"The difference in {subject} is undefined because κ′ is not defined in both."
    if gap == 0 and (np.isnan(interval).any() or not interval.any()):
        return f"{subject.capitalize()} is identical."
    if np.isnan(interval).any():
        difference = signed(gap, 2) if round(gap, places) == 0 else fixed(gap, places, sign=True)
        return f"The difference in {subject} is {difference}; there are too few {noun}s for a confidence interval."
    if (largest := float(np.abs([gap, *interval]).max())) < NEGLIGIBLE:
        return f"{subject.capitalize()} is the same to within {number(largest, 2)}."
    places = places_beyond_zero(interval, places)
    difference = f"{fixed(gap, places, sign=True)}, {interval_of(interval, CONFIDENCE, places=places)}"
    if interval[0] <= 0 <= interval[1]:
        return f"The difference in {subject} ({difference}) is not significant."
    return f"The difference in {subject} ({difference}) is significant."


def parting_finding(
    names: tuple[str, str],
    parting: Parting | None,
    why: str,
    dtype: str,
    tensors: Sequence[str] = (),
    weights: xr.Dataset | None = None,
    *,
    left_out: int = 0,
    depth: int | None = None,
    blocks_equal: bool = False,
) -> Finding:
    """Say where two networks first differ, and in which part.

    Args:
        names: Of the first network and the other one.
        parting: From `parting_of`; None where states have no pairs.
        why: The reason in that case.
        dtype: The coarser of their dtypes.
        tensors: Stored tensors of that layer that differ unlike those of other layers.
        weights: From `weight_differences`, of the other one; None where not compared.
        left_out: Number of tokens that are excluded in some layer.
        depth: The depth up to which states are compared, where that is not the depth of both.
        blocks_equal: Whether all stored tensors of the blocks are equal.
    """
    if parting is None:
        text = f"{names[1]} vs {names[0]}: the first difference is not located because {why}."
        return Finding(text, "updates", {"why": why})
    slight = ", which is typical of weights that were rounded or trained slightly further"
    places = [] if parting.start is None else [(parting.start.update, "at the embedding")]
    one_layer = depth == 1 or parting.early == parting.late  # then both ends are one
    places += [(parting.early, "after layer 1")] * (not one_layer)
    places += [(parting.late, "at the end" if depth is None else f"after layer {depth}")]
    sizes = [f"{of_norm(size, 'their')} {place}" for size, place in places]
    ends, of_tokens = f"by {listing(sizes)}", " of the compared tokens" if left_out else ""
    compared = f"all states{of_tokens}{'' if depth is None else f' up to layer {depth}'}"
    texts = {
        "equal": f"{compared} are equal to the last bit.",
        "rounding": f"the states differ only by rounding in {dtype}: {ends}. No layer stands out.",
        "from the start": f"the states differ from the embedding on: {ends}. No layer stands out"
        f"{_OF_THE_EMBEDDING if blocks_equal else slight if parting.late <= SMALL else ''}.",
        "gradual": f"the states diverge gradually: {ends}. No layer stands out.",
    }
    text = texts.get(parting.kind) or _located(parting, tensors, weights, of_tokens, ends, names[0])
    # The numbers of a sentence, without those that are undefined or infinite.
    values = {name: value for name, value in parting.plain().items() if value is not None}
    for part in (*(values.get(name, {}) for name in ("first", "start", "largest")), *values["resized"]):
        part.pop("rounding", None)
        if np.isinf(part.get("size", 0.0)):
            del part["size"]
    return Finding(f"{names[1]} vs {names[0]}: {text}", "updates", values)


_OF_THE_EMBEDDING = ": all weights of the blocks are equal, so none of them causes the difference"


def missing_finding(names: tuple[str, str], missing: MissingLayers) -> Finding:
    """Say which layers one of two networks lacks.

    Args:
        names: Of the deeper network and the shallower one.
        missing: From `missing_layers`.
    """
    rest = f"the same up to {of_norm(missing.rest, 'their')} in the median"
    if missing.most == 0:
        rest = "equal"
    elif missing.rest == 0:
        rest = f"mostly equal; at most they differ by {of_norm(missing.most, 'their')}"
    text = f"{names[1]} lacks {in_layers(missing.layers)} of {names[0]}; the matrices of its other blocks are {rest}."
    values = {"missing": list(missing.layers), "rest": missing.rest, "most": missing.most}
    return Finding(text, "updates", values)


def _located(
    parting: Parting, tensors: Sequence[str], weights: xr.Dataset | None, of_tokens: str, ends: str, name: str
) -> str:
    first = parting.first
    if first is None:
        return "the states differ."
    text = _first(first, of_tokens, ends, name) if parting.kind == "located" else _by_weights(parting, first, ends)
    if first.heads and weights is not None:
        text += f" {_heads_standing_out(first, weights)}"
    elif first.beside > 0 and parting.kind == "located" and np.isfinite(first.size):
        text += (
            f" On identical inputs its update differs by {of_norm(first.own)}; the median of the same part in "
            f"neighbouring layers is {number(first.beside, 2)}."
        )
    if tensors:
        named = listing(tensors, most=MOST_NAMED)
        text += f" Tensors whose difference stands out from that in other layers: {named}."
    others = [part for part in parting.resized if (part.layer, part.part) != (first.layer, first.part)]
    if others:
        sizes = [factor(part.size) if np.isfinite(part.size) else f"zero in {name}" for part in others[:MOST_NAMED]]
        named = [f"{part} ({size})" for part, size in zip(others, sizes, strict=False)]
        if len(others) > MOST_NAMED:
            named.append(plural(len(others) - MOST_NAMED, "more part"))
        text += f" Later updates that change at least twofold: {listing(named)}."
    if parting.largest is not None and (parting.largest.layer, parting.largest.part) != (first.layer, first.part):
        size = of_norm(parting.largest.update) if np.isfinite(parting.largest.size) else f"zero in {name}"
        text += f" The largest difference is in the update of {parting.largest}: {size}."
    return text


def _first(first: Difference, of_tokens: str, ends: str, name: str) -> str:
    """Say how the first part that stands out differs from that of the network of this name, and what precedes it."""
    last, part = first.part == "final norm", _or_its_norm(first)
    verb, is_, its = ("differ", "are", "their") if last else ("differs", "is", "its")
    whose = "its states" if last else "its update"
    if not last and (part != str(first) or first.heads):
        whose = f"the update of this {first.part}"
    size = f" and {is_} {_times(first.size)}" if abs(np.log(max(first.size, 1e-9))) > 0.05 else ""
    change = f"{whose} {verb} by {of_norm(first.update, its)}{size}"
    if np.isinf(first.size):
        change = f"{whose} {'are' if last else 'is'} zero in {name}"
    if first.exact:
        equal = "to the last bit" if first.before == 0 else "except for rounding"
        return f"the first difference is in {part}: {change}. All earlier states{of_tokens} are equal {equal}."
    before = f"although its input differs by only {of_norm(first.before)}"
    earlier = f"Earlier parts changed as well: the states differ {ends}."
    if np.isinf(first.size):
        return f"{part} stands out: {change}. {earlier}"
    whose = whose[0].upper() + whose[1:]
    if not last and first.size >= SIZE_CHANGED:
        return f"{part} stands out. {whose} is {_times(first.size)} {before}. {earlier}"
    return f"{part} stands out. {whose} {verb} by {of_norm(first.update, its)}{size} {before}. {earlier}"


def _or_its_norm(first: Difference) -> str:
    """Return the part that stands out, or the norm of it where nothing else of the part was changed."""
    return f"the norm of {first}" if first.norms else str(first)


def _by_weights(parting: Parting, first: Difference, ends: str) -> str:
    """Say which part stands out by its weights; that its updates do not only where they hardly differ more."""
    start = "diverge gradually" if parting.start is None else "differ from the embedding on"
    its, subject = (
        "output" if first.part == "final norm" else "update",
        f"{_or_its_norm(first)} stands out by its weights",
    )
    if first.beside > 0 and np.isfinite(first.size) and first.own >= SIZE_CHANGED * first.beside:
        around = f"the median of the same part in neighbouring layers is {number(first.beside, 2)}"
        more = f" On identical inputs its {its} differs by {of_norm(first.own)}; {around}."
    elif 1 / SIZE_CHANGED < first.size < SIZE_CHANGED:
        return f"{subject}. Its {its} does not stand out: the states {start}, {ends}."
    else:
        more = f" Its {its} is {_times(first.size)}." if np.isfinite(first.size) else ""
    return f"{subject}.{more} The states {start}, {ends}."


def _heads_standing_out(first: Difference, weights: xr.Dataset) -> str:
    """Say by how much the circuits of the heads that stand out differ, and those of the heads around them."""
    near = weights.sel(layer=slice(first.layer - NEIGHBOURS, first.layer + NEIGHBOURS))
    here = weights.sel(layer=first.layer, head=list(first.heads))
    name = max(CIRCUITS, key=lambda circuit: float(here[f"head_{circuit}_difference"].max()))
    differences = here[f"head_{name}_difference"].values
    place = int(np.argmax(differences))
    scale, around = float(here[f"head_{name}_scale"][place]), float(near[f"head_{name}_difference"].median())
    size = f"{of_norm(differences[place])}{scale_in_words(scale, differences[place])}"
    numbers = f"{size}, theirs by {number(around, 2)} in the median"
    if len(first.heads) > 1:
        which = f"Heads {ranges(first.heads)} differ unlike the heads around them"
        return f"{which}: {name.upper()} of head {first.heads[place]} by {numbers}."
    head, other = first.heads[place], int(here.head_matched[place])
    matched = f" (head {other} in the other network)" if other != head else ""
    return f"Head {head}{matched} alone differs unlike the heads around it: {name.upper()} by {numbers}."


def _end(size: float) -> str:
    """Write an end of an interval of a factor, with the digits of the factor from 10 on."""
    return number(size, 2) if size >= 10 else fixed(size)


def _times(size: float) -> str:
    return f"{factor(size)} as large"


def updates_finding(names: tuple[str, str], difference: xr.Dataset) -> Finding | None:
    """Name the part whose updates, relative to the residual stream, differ most in size.

    Args:
        names: Of the first network and the other one.
        difference: From `paired_differences`, of the other one.
    """
    parts = {"component": list(PART_NAMES)}
    quotient, interval = difference.update_quotient.sel(parts), difference.update_quotient_interval.sel(parts)
    with np.errstate(divide="ignore"):  # of an update that is zero in one of them
        logs = np.abs(np.log(quotient.transpose("layer", "component").values))
    if np.isnan(logs).all() or np.nanmax(logs) < np.log(1.05):
        return None
    low, high = (interval.sel(bound=bound).transpose("layer", "component").values for bound in ("low", "high"))
    # With too few texts there is no interval, and the largest difference is reported without one.
    significant = (low > 1) | (high < 1) | np.isnan(low).all()
    logs = np.where(significant & ~np.isnan(logs), logs, -1.0)
    if logs.max() < np.log(1.05):
        text = f"Relative to the residual stream, no updates of {names[1]} and {names[0]} differ significantly in size."
        return Finding(text, "updates", {})
    layer, component = np.unravel_index(np.argmax(logs), logs.shape)
    size, part = float(quotient.values[layer, component]), list(PART_NAMES.values())[component]
    if np.isinf(logs[layer, component]):
        text = (
            f"Relative to the residual stream, the updates of {names[1]} and {names[0]} differ most in the {part} of "
            f"layer {layer}: those of {names[0] if size else names[1]} are zero."
        )
        return Finding(text, "updates", {"layer": int(layer), "part": part})
    ends = [low[layer, component], high[layer, component]]
    between = "" if np.isnan(ends).any() else f" ({percent(CONFIDENCE)} CI {'–'.join(map(_end, ends))})"
    text = (
        f"Relative to the residual stream, the updates of {names[1]} and {names[0]} differ most in the {part} of layer "
        f"{layer}: those of {names[1]} are {_times(size)}{between}."
    )
    return Finding(text, "updates", {"layer": int(layer), "part": part, "quotient": size})


def tokens_finding(
    tokens_shared: bool,
    left_out: int,
    depths: Sequence[int],
    repeated: Sequence[str] = (),
    *,
    counts_shared: bool = True,
    noun: str = "text",
) -> Finding:
    """Say which tokens and which layers are compared.

    Args:
        tokens_shared: Whether every text has the same tokens in all networks.
        left_out: Number of tokens that are excluded in some layer.
        depths: Of all networks.
        repeated: Texts that repeat others.
        counts_shared: Whether all have as many states for the same tokens.
        noun: What a prompt is called.
    """
    if tokens_shared and not counts_shared:
        text = (
            "The models have different numbers of tokens for the same input because they add tokens (a class, "
            "registers). They are not compared token by token; each excludes only its own massive tokens."
        )
    elif tokens_shared:
        massive = (
            f"{plural(left_out, 'token')} massive in one of them {'is' if left_out == 1 else 'are'} excluded in all"
        )
        text = f"All models read the same tokens; {massive if left_out else 'no token is massive'}."
    else:
        text = (
            f"The models split the {noun}s into different tokens, so they are not compared token by token. Shares, "
            "states and update ratios are compared, each without the massive tokens of its own model."
        )
    if len(set(depths)) > 1:
        text += f" Depths differ ({listing(list(map(str, depths)))} layers); layers are compared by relative depth."
    if repeated:
        repeat = f"repeats another {noun} and does" if len(repeated) == 1 else f"repeat other {noun}s and do"
        text += f" {listing([f'“{name}”' for name in repeated], most=MOST_NAMED)} {repeat} not count."
    return Finding(text, "norms", {"tokens_shared": tokens_shared, "left_out": left_out, "depths": list(depths)})


def part_named(difference: Difference | None) -> str:
    """Return the first difference in a few words, for a table."""
    return "none" if difference is None else str(difference).removeprefix("the ")
