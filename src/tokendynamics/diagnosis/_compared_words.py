"""What a comparison says: how the ends differ, where networks part first, and what their weights have to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._first_difference import Difference, Parting
from tokendynamics.diagnosis._prompt_shares import CONFIDENCE
from tokendynamics.diagnosis._verdict import Verdict
from tokendynamics.words import Finding, estimate, fixed, plural, ranges
from tokendynamics.words import interval as interval_of

WEIGHTS_DIFFER = 1e-5
"""Relative difference of a product from which its weights differ by more than the rounding of single precision."""

MOST_NAMED = 6
"""So many parts are named one by one."""

SMALL = 0.1
"""Relative difference of the last states up to which networks that differ from the embedding on are near each other:
rounding all weights of SmolLM2 to half precision makes 0.003, one percent of noise on them 0.04."""


def end_finding(
    names: tuple[str, str], verdicts: tuple[Verdict, Verdict], ends: tuple[float, float], difference: xr.Dataset
) -> Finding:
    """Say what the tokens of both end in, and by how much κ' differs.

    Args:
        names: Of the first network and the other one.
        verdicts: Likewise.
        ends: κ' of each after its last layer.
        difference: From `paired_differences`, of the other one.
    """
    site = difference.sel(site="feed_forward").isel(layer=-1)
    gap, interval = float(site.consensus_relative), site.consensus_relative_interval.values
    states = verdicts[0].state, verdicts[1].state
    if states[0] == states[1]:
        text = f"{names[1]} against {names[0]}: the end state is the same ({states[0]})"
    else:
        each = [
            f"{name} ends in “{state}” ({_known(end)})" for name, state, end in zip(names, states, ends, strict=True)
        ]
        text = f"{names[1]} against {names[0]}: the end states differ: {each[0]}, {each[1]}"
    values = {"states": list(states), "consensus_relative_difference": gap, "interval": interval.tolist()}
    return Finding(f"{text}; {_gap(gap, interval)}.", "shares", values)


def _known(kappa: float) -> str:
    return "κ' is not defined" if np.isnan(kappa) else f"κ' {fixed(kappa)}"


def _gap(gap: float, interval: np.ndarray) -> str:
    if np.isnan(gap):
        return "κ' is not defined in both, so that it has no difference"
    if gap == 0 and (np.isnan(interval).any() or not interval.any()):
        return "κ' is the same"
    words = f"κ' differs by {estimate(gap, interval, CONFIDENCE, sign=True)}"
    if np.isnan(interval).any():
        return f"{words}, of too few texts for an interval"
    if interval[0] <= 0 <= interval[1]:
        return f"{words}, which is not significant"
    return words


def parting_finding(
    names: tuple[str, str], parting: Parting | None, why: str, dtype: str, tensors: Sequence[str] = ()
) -> Finding:
    """Say where two networks part first, and which part does it.

    Args:
        names: Of the first network and the other one.
        parting: From `parting_of`; None where states have no pairs.
        why: Then, why not.
        dtype: The coarser of their dtypes.
        tensors: Stored tensors of the first difference's layer that differ unlike those of other layers.
    """
    if parting is None:
        text = f"Where {names[1]} parts from {names[0]} cannot be said token by token, since {why}."
        return Finding(text, "updates", {"why": why})
    texts = {
        "equal": "All states are equal, to the last bit.",
        "rounding": f"They differ everywhere by rounding ({dtype}: {_ends(parting)}), and no layer stands out.",
        "from the start": f"They differ from the embedding on, {_ends(parting)}, and no layer stands out"
        f"{_near(parting)}.",
        "gradual": f"They part little by little ({_ends(parting)}), and no layer stands out.",
    }
    text = texts.get(parting.kind) or _located(parting, tensors)
    return Finding(f"{names[1]} against {names[0]}: {text[0].lower()}{text[1:]}", "updates", _known_values(parting))


def _known_values(parting: Parting) -> dict[str, Any]:
    """Return the numbers of a sentence: what is none, or infinite, does not stand there."""
    found = {name: each for name, each in parting.plain().items() if each is not None}
    for each in (*(found.get(name, {}) for name in ("first", "start", "largest")), *found["resized"]):
        each.pop("rounding", None)
    return found


def _ends(parting: Parting) -> str:
    start = "" if parting.start is None else f"{_share(parting.start.update)} of their size there, "
    return f"{start}{_share(parting.early)} after layer 1, {_share(parting.late)} at the end"


def _near(parting: Parting) -> str:
    return ", as where all weights are rounded or trained a little further" if parting.late <= SMALL else ""


def _located(parting: Parting, tensors: Sequence[str]) -> str:
    first = parting.first
    if first is None:
        return "They differ."
    subject = "states differ" if first.part == "final norm" else "update differs"
    what = f"its {subject} by {_share(first.update)} of its size"
    larger = f" ({first.size:.2g} times as large)" if abs(np.log(max(first.size, 1e-9))) > 0.05 else ""
    if first.exact:
        equal = "to the last bit" if first.before == 0 else "but for rounding"
        text = f"The first difference is in {first}: {what}{larger}, and all states before it are equal {equal}."
    else:
        text = (
            f"{_capital(str(first))} stands out: {what}{larger} where its input differs by {_share(first.before)}; all "
            f"before it differs too ({_ends(parting)})."
        )
    if first.beside > 0:
        text += (
            f" On the same input it differs by {_share(first.own)}, the same part of its neighbours by "
            f"{_share(first.beside)} in the median."
        )
    if tensors:
        more = f" and {len(tensors) - MOST_NAMED} more" if len(tensors) > MOST_NAMED else ""
        text += f" Of its layer's tensors these differ unlike those of others: {', '.join(tensors[:MOST_NAMED])}{more}."
    others = [each for each in parting.resized if (each.layer, each.part) != (first.layer, first.part)]
    if others:
        shown = ", ".join(f"{each} (× {each.size:.2g})" for each in others[:MOST_NAMED])
        more = f" and {plural(len(others) - MOST_NAMED, 'more part')}" if len(others) > MOST_NAMED else ""
        text += f" After it updates are larger or smaller by two or more in {shown}{more}."
    if parting.largest is not None and str(parting.largest) != str(first):
        text += (
            f" The largest difference is that of {parting.largest} ({_share(parting.largest.update)} of its update)."
        )
    return text


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _share(number: float) -> str:
    return f"{number:.2g}" if number < 100 else f"{number:,.0f}"


def weights_finding(names: tuple[str, str], weights: xr.Dataset, why: str) -> Finding:
    """Say in which layers the attention's products differ.

    Args:
        names: Of the first network and the other one.
        weights: From `weight_differences`, of the other one.
        why: What was not compared, and why.
    """
    if bool(weights.ov_difference.isnull().all() and weights.qk_difference.isnull().all()):
        text = f"The attention weights of {names[1]} and {names[0]} are not compared{': ' * bool(why)}{why}."
        return Finding(text, "weights", {"why": why})
    layers = weights.layer.values
    largest = {name: weights[f"{name}_difference"].values for name in ("ov", "qk")}
    either = np.fmax(largest["ov"], largest["qk"])
    differing = layers[np.nan_to_num(either, nan=0.0) > WEIGHTS_DIFFER]
    known = int((~np.isnan(either)).sum())
    some = f" In some layers they are not compared: {why}." if why else ""
    values = {"layers": differing.tolist(), **{name: each.tolist() for name, each in largest.items()}}
    if not len(differing):
        text = f"The QK and OV products of {names[1]} are those of {names[0]} in all layers that are compared."
        return Finding(text + some, "weights", values)
    where = "in every layer" if len(differing) == known and known > 1 else f"in {_layers(differing)} alone"
    most = {name: int(np.nanargmax(each)) for name, each in largest.items() if np.nanmax(each) > WEIGHTS_DIFFER}
    parts = [f"{name.upper()} most in layer {layers[at]} ({_share(largest[name][at])})" for name, at in most.items()]
    text = f"The attention weights of {names[1]} differ from those of {names[0]} {where}, relative to their norm "
    return Finding(f"{text}{' and '.join(parts)}.{some}", "weights", values)


def _layers(layers: Sequence[int] | np.ndarray) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"


def updates_finding(names: tuple[str, str], difference: xr.Dataset) -> Finding | None:
    """Name the part whose updates, beside the states that they are added to, differ most in size.

    Args:
        names: Of the first network and the other one.
        difference: From `paired_differences`, of the other one.
    """
    there = {"component": ["attention", "feed_forward"]}
    quotient, interval = difference.update_quotient.sel(there), difference.update_quotient_interval.sel(there)
    logs = np.abs(np.log(quotient.transpose("layer", "component").values))
    if np.isnan(logs).all() or np.nanmax(logs) < np.log(1.05):
        return None
    low, high = (interval.sel(bound=bound).transpose("layer", "component").values for bound in ("low", "high"))
    # Of too few texts there is no interval, and the largest difference stands without one.
    sure = (low > 1) | (high < 1) | np.isnan(low).all()
    logs = np.where(sure & ~np.isnan(logs), logs, -1.0)
    if logs.max() < np.log(1.05):
        text = (
            f"Beside the states that they are added to, no part's updates of {names[1]} differ significantly in size "
            f"from those of {names[0]}."
        )
        return Finding(text, "updates", {})
    layer, component = np.unravel_index(np.argmax(logs), logs.shape)
    size, part = float(quotient.values[layer, component]), ("attention", "feed-forward part")[component]
    ends = interval_of([low[layer, component], high[layer, component]], CONFIDENCE)
    text = (
        f"Beside the states that they are added to, the updates of {names[1]} differ most from those of {names[0]} in "
        f"the {part} of layer {layer}: {size:.2g} times as large{f' ({ends})' if ends else ''}."
    )
    return Finding(text, "updates", {"layer": int(layer), "part": part, "quotient": size})


def tokens_finding(
    tokens_shared: bool,
    left_out: int,
    depths: Sequence[int],
    repeated: Sequence[str] = (),
    *,
    counts_shared: bool = True,
) -> Finding:
    """Say which tokens and which layers are held against each other.

    Args:
        tokens_shared: Whether every text is the same tokens in all.
        left_out: Tokens that are left out at some layer.
        depths: Of all networks.
        repeated: Texts that repeat others.
        counts_shared: Whether all have as many states for the same tokens.
    """
    if tokens_shared and not counts_shared:
        text = (
            "The models have different numbers of tokens for the same input, since they add tokens of their own (a "
            "class, registers): tokens have no pairs, and the massive ones of each are left out of it alone."
        )
    elif tokens_shared:
        text = "All models read the same tokens, and those that are massive in one of them are left out in all "
        text += f"({left_out} of them)." if left_out else "(there are none)."
    else:
        text = (
            "The models cut the texts into different tokens, which cannot be shared: each has its own, and its own "
            "massive ones are left out; what its tokens share, its states and its update ratios are compared."
        )
    if len(set(depths)) > 1:
        shown = ", ".join(map(str, depths))
        text += f" Depths differ ({shown} layers): layers are held against each other by relative depth."
    if repeated:
        shown = ", ".join(f"“{name}”" for name in repeated[:MOST_NAMED])
        more = f" and {len(repeated) - MOST_NAMED} more" if len(repeated) > MOST_NAMED else ""
        text += f" Of the texts, {shown}{more} repeat{'s' * (len(repeated) == 1)} others and count for nothing new."
    return Finding(text, "norms", {"tokens_shared": tokens_shared, "left_out": left_out, "depths": list(depths)})


def part_named(difference: Difference | None) -> str:
    """Return the first difference in a few words, for a table."""
    return "none" if difference is None else str(difference).removeprefix("the ")
