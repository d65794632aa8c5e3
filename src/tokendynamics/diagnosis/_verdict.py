"""The verdict: plain sentences with their numbers, from the audit and the trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xarray as xr

LayerEffect = Literal["contracts", "neutral", "expands"]
FigureName = Literal["agreement", "norms", "components", "weights", "paths"]

NEUTRAL = 0.005
"""A layer whose two parts together change the mean pair cosine by no more than this is neutral."""

GRADUAL = 0.05
"""Median change of the mean pair cosine by a layer below which the drawing together is called slow."""

COLLAPSED = 0.99
"""Mean pair cosine from which tokens count as collapsed to one direction."""

NOTICEABLE = 0.1
"""Smallest change of the mean pair cosine over the whole depth that is called a change."""


@dataclass(frozen=True)
class Finding:
    """One plain sentence of the verdict.

    Attributes:
        text: The sentence, each claim with its number.
        figure: The figure that shows it.
        values: The numbers in it by name, unrounded.
    """

    text: str
    figure: FigureName
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The diagnosis in words.

    Attributes:
        sentences: Three to six findings, the most important first.
        layers: What each layer 1 … L does to the tokens: draws them together, leaves them, spreads them.
    """

    sentences: tuple[Finding, ...]
    layers: tuple[LayerEffect, ...]

    def __str__(self) -> str:
        return " ".join(finding.text for finding in self.sentences)


def judge(audit: xr.Dataset | None, trace: xr.Dataset, refused: str = "") -> Verdict:
    """Judge in sentences and layer badges from the two datasets, all numbers being means over the prompts.

    Args:
        audit: From `tokendynamics.diagnosis.audit`; None where it was refused.
        trace: From `tokendynamics.diagnosis.trace`.
        refused: Why there is no audit.

    Returns:
        Verdict: what the tokens do, what the sinks hide, which part does it, what the weights predict, where the
        prediction and the observation part and why, and the layers that contract and expand most.
    """
    averaged = mean_over_prompts(trace)
    findings = [_together(averaged, trace), _sinks(trace), _parts(averaged)]
    if audit is None:
        findings.append(_without_weights(refused))
    else:
        findings += [_weights(audit, averaged), _prediction_against_observation(audit, averaged)]
    findings.append(_extremes(averaged))
    return Verdict(tuple(finding for finding in findings if finding is not None), layer_effects(averaged))


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


def layer_effects(averaged: xr.Dataset) -> tuple[LayerEffect, ...]:
    """Return what attention and feed-forward part of each layer 1 … L do together to the mean pair cosine.

    Args:
        averaged: A trace averaged over its prompts.
    """
    return tuple(
        "neutral" if not abs(change) > NEUTRAL else "contracts" if change > 0 else "expands"
        for change in _layer_changes(averaged)
    )


def _layer_changes(averaged: xr.Dataset) -> np.ndarray:
    parts = averaged.component_change.sel(component=["attention", "feed_forward"])
    return parts.sum("component", skipna=False).values[1:]


def _together(averaged: xr.Dataset, trace: xr.Dataset) -> Finding:
    cosine = averaged.mean_pair_cosine.sel(sinks="removed")
    first, last = _ends(cosine)
    final = float(cosine.sel(site="final_norm").values[-1])
    common = float(averaged.anisotropy.sel(site="feed_forward").values[-1])
    values = {"first": first, "last": last, "after_final_norm": final, "between_prompts": common}
    if np.isnan(first) or np.isnan(last):
        text = "Whether the tokens draw together is undefined: fewer than two tokens count in every prompt."
        return Finding(text, "agreement", values)
    after = "" if np.isnan(final) else f" and {final:.2f} after the final norm"
    text = (
        f"{_movement(first, last, _layer_changes(averaged))}: mean pair cosine {first:.2f} at the embedding, "
        f"{last:.2f} after the last layer{after}"
    )
    if np.isnan(common):
        text += "; one prompt alone cannot tell how much of that is a direction common to every prompt."
    else:
        text += (
            f"; between tokens of different prompts it is {common:.2f} after the last layer, so that much is a "
            f"direction common to all prompts (anisotropy) and {last - common:.2f} is particular to the prompt."
        )
    reference = _ends(averaged.consensus_first.sel(sinks="kept"))
    values |= {"consensus_first_first": reference[0], "consensus_first_last": reference[1]}
    return Finding(text, "agreement", values)


def _movement(first: float, last: float, changes: np.ndarray) -> str:
    if min(first, last) >= COLLAPSED:
        return "The tokens point in one direction from the start and stay there"
    if last >= COLLAPSED:
        return "The tokens collapse to one direction"
    if last - first >= NOTICEABLE:
        pace = "slowly" if np.median(np.abs(changes)) < GRADUAL else "quickly"
        return f"The tokens do draw together, {pace}, and do not collapse{_jump(changes)}"
    if first - last >= NOTICEABLE:
        return "The tokens spread apart"
    return "The tokens neither draw together nor spread apart by much"


def _jump(changes: np.ndarray) -> str:
    """Say whether three layers or fewer of a deep model make most of the rise."""
    order = np.argsort(changes)[::-1]
    enough = int(np.searchsorted(np.cumsum(changes[order]), changes.sum() / 2)) + 1
    if len(changes) < 6 or enough > 3:
        return ""
    layers = sorted(int(layer) + 1 for layer in order[:enough])
    named = f"layer {layers[0]}" if enough == 1 else f"layers {', '.join(map(str, layers))}"
    return f" (most of the rise, {_signed(changes[order[:enough]].sum())}, is made in {named})"


def _sinks(trace: xr.Dataset) -> Finding:
    """Describe the sinks of the first prompt that has one; the counts run over all prompts."""
    with_sinks = [prompt for prompt in range(trace.sizes["prompt"]) if trace.sink_count[prompt].values.any()]
    if not with_sinks:
        text = "No token is a sink: none stands out by its norm, and raw and unit-row figures can be read alike."
        return Finding(text, "norms", {"prompts_with_sinks": 0})
    rows = trace.isel(prompt=with_sinks)
    persistent = rows.isel(prompt=0)
    layers = np.flatnonzero(persistent.sink_count.values)
    peak = int(persistent.sink_norm.argmax("layer"))
    position, norm = int(persistent.sink_position[peak]), float(persistent.sink_norm[peak])
    token, name = str(persistent.token_text[position].item()).strip(), str(persistent.prompt.item())
    site = persistent.sel(site="feed_forward")
    median = float(site.norm_median.sel(sinks="removed")[peak])
    raw = site.effective_rank.sel(sinks="kept")
    lowest = int(raw.argmin("layer"))
    unit = _ends(site.effective_rank_unit_rows.sel(sinks="removed"))
    several = np.flatnonzero(persistent.sink_count.values > 1)
    text = (
        f"Token {position} (“{token}” in prompt {name}) is an attention sink, as is a token in {len(with_sinks)} of "
        f"{trace.sizes['prompt']} prompts: its norm reaches {norm:,.0f} at layer {peak} against a median of "
        f"{median:,.0f}, and sinks stand out in layers {_ranges(layers)}"
        + (f" (several at once in layers {_ranges(several)})" if len(several) else "")
        + f". The raw effective rank falls to {float(raw[lowest]):.2f} at layer {lowest} and says “collapsed” where it "
        f"sees only the sink; on unit rows without sinks it goes from {unit[0]:.1f} to {unit[1]:.1f}."
    )
    values = {
        "position": position,
        "token": token,
        "prompt": name,
        "norm": norm,
        "median": median,
        "raw_effective_rank": float(raw[lowest]),
        "unit_rows_first": unit[0],
        "unit_rows_last": unit[1],
        "layers": layers.tolist(),
        "layers_with_several": several.tolist(),
        "prompts_with_sinks": len(with_sinks),
    }
    return Finding(text, "norms", values)


def _parts(averaged: xr.Dataset) -> Finding | None:
    change = averaged.component_change.isel(layer=slice(1, None))
    if bool(change.isnull().all()):
        return None
    attention, feed_forward = (change.sel(component=name).values for name in ("attention", "feed_forward"))
    final = float(change.sel(component="final_norm").sum())
    layers = len(attention)
    share = float(averaged.component_share.sel(component="attention"))
    text = (
        f"Attention {_pulling_layers(attention, layers)} (sum {_signed(attention.sum())}), the feed-forward part "
        f"{_pulling_layers(feed_forward, layers)} (sum {_signed(feed_forward.sum())})"
        + (f", the final norm adds {_signed(final)}" if final else "")
        + f"; attention makes {share:.0%} of all movement in mean pair cosine."
    )
    values = {
        "attention": float(attention.sum()),
        "feed_forward": float(feed_forward.sum()),
        "final_norm": final,
        "attention_share": share,
    }
    return Finding(text, "components", values)


def _pulling_layers(change: np.ndarray, layers: int) -> str:
    if not abs(change.sum()) > NEUTRAL:
        return "hardly moves them"
    if change.sum() > 0:
        return f"pulls tokens together in {int((change > 0).sum())} of {layers} layers"
    return f"pushes them apart in {int((change < 0).sum())} of {layers}"


def _without_weights(refused: str) -> Finding:
    why = f" ({refused})" if refused else ""
    text = f"The weights are not audited{why}, so nothing is predicted from them; all else is measured on the states."
    return Finding(text, "weights", {"audit_refused": refused})


def _weights(audit: xr.Dataset, averaged: xr.Dataset) -> Finding:
    regimes = Counter(audit.regime.values.tolist())
    layers, of_all = audit.sizes["layer"], averaged.sizes["layer"] - 1
    which = f"{layers} layers" if layers == of_all else f"{layers} audited layers (of {of_all})"
    values = {
        "regimes": dict(regimes),
        "V_rank": audit.V_rank.values.tolist(),
        "V_max_real": audit.V_max_real.values.tolist(),
    }
    growing = int(_expects_growth(audit).sum())
    observed = f"the observed criterion (some Re λ(V) > 0, in {growing} of {layers} layers) expects growth"
    if growing == 0:
        observed = "the observed criterion (no Re λ(V) > 0 in any layer) expects no growth"
    if not audit.A_defined.values.any():
        ranks = sorted(set(audit.V_rank.values.tolist()))
        dim = int(audit.W_inertia[0].sum())
        span = f"{ranks[0]}/{dim}" if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]} of {dim}"
        text = (
            f"From the weights alone A is undefined (rank {span}) in all {which}, so the paper's regimes do "
            f"not apply{_pseudo(audit)}; {observed}."
        )
        return Finding(text, "weights", values)
    named = ", ".join(f"{count} {name}" for name, count in regimes.most_common())
    share = float((audit.W_inertia.sel(sign="positive") / audit.W_inertia.sum("sign")).mean())
    theorem = "" if regimes.get("convergence") else ", and no theorem of collapse applies"
    text = (
        f"The weights alone put the {which} in these regimes: {named} "
        f"({share:.1%} of W_sym's eigenvalues are positive){theorem}; {observed}."
    )
    return Finding(text, "weights", values)


def _pseudo(audit: xr.Dataset) -> str:
    if audit.attrs["singular"] != "pinv":
        return ""
    return " (the signs that stand in A's place were asked for from a pseudo-inverse)"


def _expects_growth(audit: xr.Dataset) -> np.ndarray:
    """Tell, for each layer, whether the observed criterion finds Re λ(V) > 0 beyond rounding."""
    return np.array([words.startswith("diverges") for words in audit.regime_by_spectrum.values.tolist()])


def _prediction_against_observation(audit: xr.Dataset, averaged: xr.Dataset) -> Finding:
    norm = averaged.norm_median.sel(sinks="removed", site="feed_forward").values
    factor = float(norm[-1] / norm[0])
    cosine = _ends(averaged.mean_pair_cosine.sel(sinks="removed"))
    expects_growth = bool(_expects_growth(audit).any())
    grows = factor > 1
    seen = f"the median norm goes from {norm[0]:.3g} to {norm[-1]:.3g} (× {factor:.3g})"
    agree = expects_growth == grows
    text = f"Prediction and observation {'agree' if agree else 'disagree'} on size: {seen}; "
    if cosine[1] - cosine[0] >= NOTICEABLE:
        text += (
            "that the directions nevertheless draw together is no contradiction, since the free flow knows neither the "
            "norms, which fix the size that attention sees, nor the feed-forward parts."
        )
    elif agree:
        text += "the free flow knows neither the norms nor the feed-forward parts, so this is no proof of its rule."
    else:
        text += "the free flow knows neither the norms nor the feed-forward parts, so that is to be expected."
    return Finding(text, "norms", {"norm_first": float(norm[0]), "norm_last": float(norm[-1]), "factor": factor})


def _extremes(averaged: xr.Dataset) -> Finding | None:
    changes = _layer_changes(averaged)
    if np.isnan(changes).all():
        return None
    order = np.argsort(changes)
    effects = layer_effects(averaged)
    contracting = [int(layer) for layer in order[::-1][:3] if effects[layer] == "contracts"]
    expanding = [int(layer) for layer in order[:3] if effects[layer] == "expands"]
    parts = [
        f"{verb} most: " + ", ".join(f"layer {layer + 1} ({_signed(changes[layer])})" for layer in chosen)
        for verb, chosen in (("Contracting", contracting), ("expanding", expanding))
        if chosen
    ]
    if not parts:
        return Finding(f"No layer changes the mean pair cosine by more than {NEUTRAL:g}.", "components", {})
    text = "; ".join(parts)
    values = {"contracting": [layer + 1 for layer in contracting], "expanding": [layer + 1 for layer in expanding]}
    return Finding(text[0].upper() + text[1:] + ".", "components", values)


def _ends(values: xr.DataArray) -> tuple[float, float]:
    """Return the value at layer 0 and after the last block."""
    after_block = values.sel(site="feed_forward") if "site" in values.dims else values
    return float(after_block.values[0]), float(after_block.values[-1])


def _signed(number: float) -> str:
    """Write two decimals with a real minus sign."""
    return f"{number:+.2f}".replace("-", "−")


def _ranges(layers: np.ndarray) -> str:
    """Return ``[3, 4, 5, 9]`` as ``3–5, 9``."""
    runs = np.split(layers, np.flatnonzero(np.diff(layers) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
