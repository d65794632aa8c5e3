"""The effects of parts and heads of several networks: of halving each part on the loss, of each head on similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float64
from torch import Tensor

from tokendynamics.diagnosis.comparing._first_difference import ROUNDINGS
from tokendynamics.diagnosis.gating.sensitivities import sensitivities
from tokendynamics.diagnosis.gating.trials import read_losses, why_without_loss
from tokendynamics.diagnosis.network import part_of_layer, sizes_differ
from tokendynamics.diagnosis.tracing._together import nearest_layers
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE, mean_with_interval
from tokendynamics.diagnosis.tracing.variables import BOUNDS
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import why
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.gates import HeadGates
from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.not_finite import check_no_padding
from tokendynamics.provenance.progress import Progress, tracked
from tokendynamics.words import Finding, fixed, listing, number, percent, plural, signed

HALF = 0.5

_HEADS_NAMED = 3
"""Heads that are named; the others are counted."""

_AMONG_THE_LARGEST = 0.25
"""Share of the largest change of an effect from which a head is named beside it."""


@dataclass(frozen=True)
class HalvedParts:
    """The effect of halving the parts of each network on its loss, in nats per token.

    Attributes:
        table: Dims ``model``, ``prompt``, ``layer`` (from 1), ``part``: ``loss`` (model, prompt) and ``loss_change``
            (model, prompt, layer, part), the loss with this part halved less the loss; NaN where there is no loss
            (a prompt of one token) or no such part. Dims ``other`` (all networks but the first), ``layer`` (of the
            first), ``part``: ``difference``, the mean over prompts of the other's change less the first's, with
            ``difference_interval`` of each separately, and ``difference_surely``, simultaneous for all and therefore
            wider. ``other_layer`` (other, layer) is the corresponding layer of the other, 0 for none.
        unknown: For each network, why it has no loss; empty where it has one.
        unpaired: For all but the first, why it has no differences though both have a loss; empty where it has.
    """

    table: xr.Dataset
    unknown: tuple[str, ...]
    unpaired: tuple[str, ...]


@dataclass(frozen=True)
class _Losses:
    plain: Float64[Tensor, " prompt"]
    change: Float64[Tensor, "prompt layer part"]


def halved_parts(
    ckpts: Sequence[Checkpoint],
    given: Sequence[Sequence[Prepared]],
    tokens_shared: bool,
    report: Progress,
    different: Bool[np.ndarray, " prompt"] | None = None,
) -> HalvedParts:
    """Run every network once unchanged and once with each part halved, and compare the changes of the loss.

    All read the same prompts, and differences are paired over them. Networks of different depth are compared at the
    nearest relative depth.

    Args:
        ckpts: The first is the one that the others are compared with.
        given: The prompts of each.
        tokens_shared: Whether they have the same tokens in all; otherwise nats per token are not comparable.
        report: Called after each run.
        different: Which of the prompts repeat no earlier one and count in differences; None for all.

    Raises:
        CheckpointError: A network does not run.
    """
    counted = torch.ones(len(given[0]), dtype=torch.bool) if different is None else torch.from_numpy(different)
    by_model, unknown = [], []
    for ckpt, texts in zip(ckpts, given, strict=True):
        why = _parts_unknown(ckpt, texts)
        losses = None if why else _losses(ckpt, texts, report)
        unknown.append(why or ("" if losses is not None else why_without_loss(ckpt)))
        shapes = ((), (ckpt.architecture.layers, len(PARTS)))
        by_model.append(losses or _Losses(*(torch.full((len(texts), *rest), torch.nan).double() for rest in shapes)))
    depth, prompts = max(ckpt.architecture.layers for ckpt in ckpts), len(given[0])
    changes = np.full((len(ckpts), prompts, depth, len(PARTS)), np.nan)
    for place, losses in enumerate(by_model):
        changes[place, :, : losses.change.shape[1]] = losses.change.numpy()
    grid = ("other", "layer", "part")
    rows = [_difference(by_model[0], other, depth, counted & tokens_shared) for other in by_model[1:]]
    variables = {
        "loss": (("model", "prompt"), np.stack([losses.plain.numpy() for losses in by_model])),
        "loss_change": (("model", "prompt", "layer", "part"), changes),
        **{
            name: ((*grid, "bound") if "_" in name else grid, np.stack([row[name] for row in rows]))
            for name in ("difference", "difference_interval", "difference_surely")
        },
        "other_layer": (("other", "layer"), np.stack([row["other_layer"] for row in rows])),
    }
    coords = {"layer": np.arange(1, depth + 1), "part": list(PARTS), "bound": list(BOUNDS)}
    unpaired = tuple(_why_unpaired(by_model[0], other, tokens_shared) for other in by_model[1:])
    return HalvedParts(xr.Dataset(variables, coords=coords), tuple(unknown), unpaired)


def _parts_unknown(ckpt: Checkpoint, given: Sequence[Prepared]) -> str:
    """Return why parts of a network are not halved; empty if they are."""
    if ckpt.streamed or not ckpt.causal:
        return why_without_loss(ckpt)
    try:
        check_no_padding(ckpt, [prompt.inputs for prompt in given])
    except ArgumentValueError as error:
        return why(error, "texts", ckpt.name)
    unread = (place for place, layer in enumerate(ckpt.layout.layers, start=1) if layer.residual is None)
    if (layer := next(unread, 0)) == 0:
        return ""
    return f"the parts of layer {layer} were not identified ({ckpt.layout.layers[layer - 1].problem})"


def _losses(ckpt: Checkpoint, given: Sequence[Prepared], report: Progress) -> _Losses | None:
    packs = ckpt.packs([prompt.inputs for prompt in given])
    with ckpt.gated() as gated, torch.no_grad():
        exists = gated.exists
        plain = read_losses(gated, packs, torch.ones(exists.shape, dtype=torch.float64))
        if plain is None:
            return None
        change = torch.full((len(plain), *exists.shape), torch.nan, dtype=torch.float64)
        for layer, part in tracked(exists.nonzero().tolist(), report, "halving parts"):
            gates = torch.ones(exists.shape, dtype=torch.float64)
            gates[layer, part] = HALF
            halved = read_losses(gated, packs, gates)
            if halved is not None:
                change[:, layer, part] = halved - plain
    return _Losses(plain, change)


def _why_unpaired(first: _Losses, other: _Losses, tokens_shared: bool) -> str:
    if not tokens_shared:
        return "their tokens differ, and losses per token are then not comparable"
    if not bool((first.plain.isfinite() & other.plain.isfinite()).any()):
        return "no text has a second token to predict"
    everything = torch.ones(len(first.plain), dtype=torch.bool)
    return "" if bool(_gaps(first, other, everything).isfinite().any()) else "the loss with a part halved is not finite"


def _gaps(first: _Losses, other: _Losses, counted: Bool[Tensor, " prompt"]) -> Float64[Tensor, "some layer part"]:
    """Return the other's changes less the first's of the prompts that count and have losses in both."""
    where = _nearest(first, other)
    gaps = other.change[:, [layer - 1 for layer in where]] - first.change
    return gaps[counted & first.plain.isfinite() & other.plain.isfinite()]


def _nearest(first: _Losses, other: _Losses) -> list[int]:
    layers, its_layers = first.change.shape[1], other.change.shape[1]
    return [max(1, layer) for layer in nearest_layers(layers, its_layers)[1:]]


def _difference(first: _Losses, other: _Losses, depth: int, counted: Bool[Tensor, " prompt"]) -> dict[str, np.ndarray]:
    gaps = _gaps(first, other, counted)
    layers = gaps.shape[1]
    value, interval = mean_with_interval(gaps)
    known = max(1, int((~value.isnan()).sum()))
    # Bonferroni: one of many differs most in any case, so all intervals must hold at once.
    surely = 1 - (1 - CONFIDENCE) / known
    variables = {
        "difference": value,
        "difference_interval": interval,
        "difference_surely": mean_with_interval(gaps, surely)[1],
    }
    filled = {name: np.full((depth, *values.shape[1:]), np.nan) for name, values in variables.items()}
    for name, values in variables.items():
        filled[name][:layers] = values.numpy()
    return filled | {"other_layer": np.array(_nearest(first, other) + [0] * (depth - layers))}


def halved_finding(names: tuple[str, str], halved: HalvedParts, place: int, eps: float, noun: str = "text") -> Finding:
    """Name the part whose halving changes the two losses most differently, if significant and above rounding.

    Args:
        names: Of the first network and the other one.
        halved: From `halved_parts`.
        place: Index of the other one.
        eps: Of the coarser of their dtypes.
        noun: What a prompt is called.
    """
    pair = halved.table.isel(other=place)
    reasons = [halved.unknown[0], halved.unknown[place + 1]]
    if reasons[0] and reasons[0] == reasons[1]:
        why = f"neither has a known loss ({reasons[0]})"
    else:
        unknown = [f"the loss of {name} is unknown ({why})" for name, why in zip(names, reasons, strict=True) if why]
        why = "; ".join(unknown) or halved.unpaired[place]
    if why:
        text = f"The effect of halving parts was not compared between {names[1]} and {names[0]} because {why}."
        return Finding(text, "halved", {"why": why})
    gaps = pair.difference.values
    least = ROUNDINGS * eps * max(1.0, float(halved.table.loss.isel(model=[0, place + 1]).max()))
    if not np.nanmax(np.abs(gaps)) > least:
        how = "to the last bit" if not np.nanmax(np.abs(gaps)) else "except for rounding"
        text = f"Halving one part changes the loss of {names[1]} and {names[0]} equally, {how}."
        return Finding(text, "halved", {"parts": []})
    low, high = (pair.difference_surely.sel(bound=bound).values for bound in ("low", "high"))
    significant = ((low > 0) | (high < 0)) & (np.abs(gaps) > least)
    if not significant.any():
        return _not_significant(names, pair, noun if bool(np.isnan(low).all()) else "")
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps))
    at = np.unravel_index(np.argmax(np.where(significant, size, -1.0)), gaps.shape)
    among = "" if size[at] == size.max() else ", among significant differences,"
    changes = halved.table.loss_change.mean("prompt").values
    its_layer = int(pair.other_layer[at[0]])
    first, other = changes[0][at], changes[place + 1][its_layer - 1, at[1]]
    known = int((~np.isnan(gaps)).sum())
    text = (
        f"Halving one part changes the loss of {names[1]} and {names[0]} most differently{among} for "
        f"{_part(pair, at)}: by {signed(other, 2)} and {signed(first, 2)} nats. The difference is "
        f"{signed(gaps[at], 2)} ({_interval(low[at], high[at])}); it is significant for {int(significant.sum())} of "
        f"{plural(known, 'part')}."
    )
    values = _values(pair, at) | {"parts": int(significant.sum()), "interval": [float(low[at]), float(high[at])]}
    return Finding(text, "halved", values)


def _not_significant(names: tuple[str, str], pair: xr.Dataset, too_few: str) -> Finding:
    """Say that no part stands out, or that there are too few prompts, by their noun, to say so."""
    gaps = pair.difference.values
    at = np.unravel_index(np.nanargmax(np.abs(gaps)), gaps.shape)
    gap = f"{signed(gaps[at], 2)} nats, for {_part(pair, at)}"
    if too_few:
        text = (
            f"Whether halving one part changes the loss of {names[1]} and {names[0]} differently is unknown: there are "
            f"too few {too_few}s for a confidence interval. The largest difference is {gap}."
        )
    else:
        text = (
            f"Halving one part changes the loss of {names[1]} and {names[0]} without significant differences. The "
            f"largest is {gap} ({_interval(*pair.difference_surely.values[at])})."
        )
    return Finding(text, "halved", _values(pair, at) | {"parts": 0})


def _interval(low: float, high: float) -> str:
    """Write an interval that holds for all parts at once, with significant digits rather than decimal places."""
    return f"{percent(CONFIDENCE)} simultaneous CI {number(low, 2)} to {number(high, 2)}"


def _part(pair: xr.Dataset, at: Any) -> str:
    layer, its_layer = int(pair.layer[at[0]]), int(pair.other_layer[at[0]])
    instead = f" (layer {its_layer} in the other)" if its_layer != layer else ""
    return part_of_layer(str(pair.part.values[at[1]]), layer) + instead


def _values(pair: xr.Dataset, at: Any) -> dict[str, Any]:
    layer, part = int(pair.layer[at[0]]), str(pair.part.values[at[1]])
    return {"layer": layer, "part": part, "difference": float(pair.difference.values[at])}


def halved_convention(noun: str) -> tuple[str, str, str]:
    """Return name, choice and alternative of the convention."""
    return (
        "Halved parts",
        "the update of one part times 0.5, before the norm in post-norm blocks, one part at a time; change of the mean "
        f"cross-entropy of the next token; {percent(CONFIDENCE)} intervals over {noun}s, in the sentence simultaneous "
        "for all parts",
        "at 0, parts that stabilise others stand out more; separate intervals miss one part in ten",
    )


@dataclass(frozen=True)
class HeadEffects:
    """First-order effects of the heads of several networks on the similarity of tokens after the last layer.

    Attributes:
        table: Dims ``model``, ``layer`` (from 1), ``head``: ``consensus_sensitivity``, ∂κ/∂a by a gate a = 1 on the
            output of the head. NaN for networks that were not measured; None where none was.
        unknown: For all but the first, why its effects were not compared; empty where they were, and where κ′ does not
            differ significantly.
    """

    table: xr.Dataset | None
    unknown: tuple[str, ...]


def head_effects_of(
    ckpts: Sequence[Checkpoint],
    given: Sequence[Sequence[Prepared]],
    differing: Sequence[bool],
    sinks: tuple[float, str | Sequence[int]],
    report: Progress,
) -> HeadEffects:
    """Differentiate κ after the last layer by a gate on every head, of the first network and of those that differ.

    Takes one forward and one backward pass of every text for each of these networks.

    Args:
        ckpts: The first is the one that the others are compared with.
        given: The prompts of each that count.
        differing: For all but the first, whether κ′ differs significantly; the others are not measured.
        sinks: From which ratio a token is massive, and which tokens are excluded; see `tokendynamics.trace`.
        report: Called after each pass.
    """
    unlike = [_why_without_heads(ckpts[0], other) for other in ckpts[1:]]
    wanted = [place for place, one in enumerate(differing, 1) if one and not unlike[place - 1]]
    values: dict[int, np.ndarray] = {}
    problems = {place: why for place, (one, why) in enumerate(zip(differing, unlike, strict=True), 1) if one and why}
    for place in [0, *wanted] if wanted else ():
        try:
            values[place] = _head_sensitivities(ckpts[place], given[place], sinks, report)
        except (ArgumentValueError, CheckpointError) as error:
            problems |= dict.fromkeys([place] if place else wanted, why(error, "texts", ckpts[place].name))
    unknown = tuple(problems.get(place, "") for place in range(1, len(ckpts)))
    if len(values) < 2 or 0 not in values:
        return HeadEffects(None, unknown)
    rows = [values.get(place, np.full_like(values[0], np.nan)) for place in range(len(ckpts))]
    coords = {"layer": np.arange(1, len(values[0]) + 1), "head": np.arange(values[0].shape[1])}
    table = xr.Dataset({"consensus_sensitivity": (("model", "layer", "head"), np.stack(rows))}, coords=coords)
    return HeadEffects(table, unknown)


def _why_without_heads(first: Checkpoint, other: Checkpoint) -> str:
    if why := sizes_differ(other, first, "depths", "heads"):
        return why
    for ckpt in (first, other):
        if not any(layer.attention is not None for layer in ckpt.layout.layers):
            return f"the heads of {ckpt.name} are not known"
    return ""


def _head_sensitivities(
    ckpt: Checkpoint, given: Sequence[Prepared], sinks: tuple[float, str | Sequence[int]], report: Progress
) -> Float64[np.ndarray, "layer head"]:
    ratio, excluded = sinks
    inputs = [prompt.inputs for prompt in given]
    check_no_padding(ckpt, inputs)
    with ckpt.gated() as gated:
        packs = ckpt.packs(inputs)
        return sensitivities(HeadGates(gated), packs, ratio, report, ckpt.architecture.layers, excluded).kappa


def heads_finding(names: tuple[str, str], effects: HeadEffects, place: int, gap: float) -> Finding | None:
    """Say which of two networks is closer to collapse, and by which heads; None where κ′ does not differ significantly.

    Args:
        names: Of the first network and the other one.
        effects: From `head_effects_of`.
        place: Index of the other one.
        gap: Significant difference of κ′ after the last layer; NaN where it is not significant.
    """
    if np.isnan(gap):
        return None
    closer = f"{names[1]} is {'closer to' if gap > 0 else 'further from'} collapse than {names[0]}"
    if effects.unknown[place] or effects.table is None:
        text = f"{closer}. Which heads cause this is unknown because {effects.unknown[place]}."
        return Finding(text, "heads", {"why": effects.unknown[place]})
    values = effects.table.consensus_sensitivity.values
    change = np.nan_to_num(values[place + 1] - values[0])
    towards, total = change * np.sign(gap), float(change.sum())
    if total * gap <= 0:
        in_all = _effect(total)
        text = f"{closer}. First-order effects of heads do not explain this: they change by {in_all} in sum."
        return Finding(text, "heads", {"heads": [], "change": total})
    most = float(towards.max())
    order = np.argsort(-towards, axis=None, kind="stable")[:_HEADS_NAMED]
    least = _AMONG_THE_LARGEST * most
    chosen = [np.unravel_index(place, change.shape) for place in order if towards.flat[place] >= least]
    heads = [(int(effects.table.layer[layer]), int(head)) for layer, head in chosen]
    named = [f"layer {layer} head {head} ({_effect(float(change[layer - 1, head]))})" for layer, head in heads]
    text = (
        f"{closer}. To first order, the effect on κ {'rises' if gap > 0 else 'falls'} most for {listing(named)}. Over "
        f"all heads it changes by {_effect(total)}."
    )
    return Finding(text, "heads", {"heads": [list(place) for place in heads], "change": total})


_ROUNDED = 1e-6
"""Change of κ below which it is rounding."""


def _effect(change: float) -> str:
    """Write a change of κ in three decimal places, or with two significant digits where these would read 0."""
    return signed(change, 2) if abs(change) >= _ROUNDED and not round(change, 3) else fixed(change, 3, sign=True)


def heads_convention(noun: str) -> tuple[str, str, str]:
    """Return name, choice and alternative of the convention."""
    return (
        "Effects of heads",
        f"derivative of κ after the last layer by a gate on the output of each head, on all {noun}s, in models whose "
        "κ′ differs significantly",
        "the effect of removing a head may differ from its derivative",
    )
