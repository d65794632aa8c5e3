"""What the tokens of a trace share with every prompt and with their own, at each layer and site, with intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing.prompt_trace import PromptTrace
from tokendynamics.diagnosis.tracing.variables import COMPONENTS, SINK_HANDLING, SITES
from tokendynamics.numerics.intervals import jackknife_interval
from tokendynamics.observables import Shares, relative_kappa
from tokendynamics.observables.share_decomposition import (
    ROUNDINGS,
    centred_cosines,
    centred_cosines_of_gram,
    cosines_by_place,
    gram_of_means,
    mean_of_others,
    resolution_of,
    shares_of_sums,
    shares_without_each,
)

CONFIDENCE = 0.9
"""Of every interval over prompts."""


SAME_EMBEDDING = 0.95
"""κ of the embedding from which κ′ is undefined: the tokens of a prompt already agree before the first layer, as with
one repeated word, and the denominator 1 − κ is nearly 0."""

BINS = 40
"""Of the cosines of pairs of tokens, between −1 and 1."""

_REMOVED = SINK_HANDLING.index("removed")

_FEED_FORWARD = SITES.index("feed_forward")

_PIECE_BYTES = 2**21
"""States are compared with the other prompts' mean in pieces of this size, which stay in the cache."""


Estimates: TypeAlias = dict[str, tuple[Tensor, Tensor]]
"""Numbers over all prompts by name, each with what it is without each prompt, which stands in front."""


def share_variables(rows: Sequence[PromptTrace], estimates: Estimates | None = None) -> dict[str, Any]:
    """Return variables of a trace, each as (dims, values), of the tokens that count.

    Args:
        rows: What each prompt left.
        estimates: Filled with the jackknife estimates behind the intervals, for differences of two networks; or None.

    Returns:
        (layer, site): ``consensus_within``, ``consensus_relative``, ``centred_cos2``,
        ``line_excess``; (layer, site, share):
        ``shares``; (layer, component): ``kappa_change``; (component): ``kappa_change_sum``; each with its interval, one
        more dimension ``bound``, under its name and ``_interval``. (prompt, layer, site): ``kappa_of_prompt``. Of a
        text and its copies one counts.
    """
    repeats = _repeats(rows)
    rows = [row for row, first in zip(rows, repeats, strict=True) if first < 0]
    before = np.concatenate([[0], np.cumsum(repeats < 0)])
    of_all = [int(before[place if first < 0 else first]) for place, first in enumerate(repeats)]
    within = _stacked([row.observables["mean_pair_cosine"][:, :, _REMOVED] for row in rows])
    counts = _stacked([row.token_count[:, _REMOVED] for row in rows])
    means = _stacked([row.unit_sums for row in rows]) / counts[:, :, None, None]
    resolution = resolution_of(rows[0].states[0].dtype)
    between = gram_of_means(means)
    whole = shares_of_sums(within, between, resolution)
    numbers, left = _numbers(whole), _numbers(shares_without_each(within, between, resolution))
    variables: dict[str, Any] = {}
    kept = {} if estimates is None else estimates
    kept |= {name: (value, left[name][of_all]) for name, value in numbers.items()}
    for name, value in numbers.items():
        variables |= _with_interval(name, value, jackknife_interval(value, left[name], CONFIDENCE))
    resolved = 1 - whole.common > whole.resolution
    beyond = torch.where(resolved, 1 - whole.common, 1.0)
    of_prompt = torch.where(resolved, (within - whole.common) / beyond, torch.nan)  # their mean over prompts is κ
    centers = mean_of_others(means)
    centred = [_centred_of(row, center, resolution) for row, center in zip(rows, centers, strict=True)]
    mean, cos2 = _stacked(centred).unbind(dim=-1)  # mean centred cos and cos² of each prompt
    variance = cos2 - mean.square()
    start = variance[:, 0, _FEED_FORWARD].nanmean()
    for name, values in (("centred_cos2", cos2), ("line_excess", _relative(variance, start))):
        value, without = _over_prompts(values)
        kept[name] = value, without[of_all]
        variables |= _with_interval(name, value, jackknife_interval(value, without, CONFIDENCE))
    return variables | {
        "kappa_of_prompt": (("prompt", "layer", "site"), of_prompt[of_all].numpy()),
        "repeats": (("prompt",), repeats),
    }


def place_variables(rows: Sequence[PromptTrace]) -> dict[str, Any]:
    """Return the variables that depend on where tokens stand, each as (dims, values), of the tokens that count.

    Args:
        rows: What each prompt left, without copies.

    Returns:
        (layer, site): ``share_position`` with its interval, ``cosine_elsewhere``; (layer, distance):
        ``cosine_at_distance``; (layer, cosine): ``pair_share``; and the coordinates ``distance``: 1, 2, 4 … up to the
        longest prompt, and ``cosine``: the middles of the bins.
    """
    longest = max(len(row.counted[0]) for row in rows)
    distances = [2**power for power in range(max(1, (longest - 1).bit_length()))]
    places = rows[0].places
    without = torch.full((len(rows), len(places.layers)), torch.nan).double()
    share, elsewhere = without.new_full((2, len(places.layers)), torch.nan)
    for state, (directions, counts) in enumerate(_directions(rows, longest)):
        same, other = cosines_by_place(directions, counts)
        excess = same - other
        share[state], elsewhere[state], known = excess.nanmean(), other.nanmean(), ~excess.isnan()
        pairs = known.sum() - 2 * known.sum(dim=0)
        without[:, state] = (excess.nansum() - 2 * excess.nansum(dim=0)) / torch.where(pairs > 0, pairs, torch.nan)
    of_pairs = zip(*(_of_pairs(row, distances) for row in rows), strict=True)
    cosines, pairs_at = (torch.stack(of_rows).nanmean(dim=0) for of_rows in of_pairs)  # each prompt alike
    interval = jackknife_interval(share, without, CONFIDENCE)
    return {
        "share_position": (("layer", "site"), places.grid(share)),
        "share_position_interval": (("layer", "site", "bound"), places.grid(interval)),
        "cosine_elsewhere": (("layer", "site"), places.grid(elsewhere)),
        "cosine_at_distance": (("layer", "distance"), cosines.numpy()),
        "pair_share": (("layer", "cosine"), pairs_at.numpy()),
        "distance": distances,
        "cosine": (np.arange(BINS) + 0.5) * 2 / BINS - 1,
    }


def _directions(
    rows: Sequence[PromptTrace], longest: int
) -> Iterator[tuple[Float[Tensor, "prompt token dim"], Bool[Tensor, "prompt token"]]]:
    """Yield the unit rows of all prompts at each state, zeros where no token counts, and which tokens count."""
    first = rows[0].states[0]
    exact = torch.float32 if first.itemsize <= 4 else torch.float64
    counts = torch.zeros(len(rows[0].sizes), len(rows), longest, dtype=torch.bool)
    scales = torch.zeros(counts.shape, dtype=exact)
    for place, row in enumerate(rows):
        there = slice(row.counted.shape[-1])
        counts[:, place, there] = row.counted
        scales[:, place, there] = torch.where(row.counted, row.sizes.reciprocal(), 0.0).to(exact)
    for number, states in enumerate(zip(*(chain.from_iterable(row.states) for row in rows), strict=True)):
        directions = torch.zeros(len(rows), longest, first.shape[-1], dtype=exact)
        for place, x in enumerate(states):
            directions[place, : len(x)] = x
        yield directions.mul_(scales[number].unsqueeze(-1)), counts[number]


def _of_pairs(
    row: PromptTrace, distances: Sequence[int]
) -> tuple[Float64[Tensor, "layer distance"], Float64[Tensor, "layer bin"]]:
    """Return the mean cosine of a prompt's tokens that are so far apart, and the share of all pairs in each bin.

    Both by layer, of the tokens that count; NaN where there are none.
    """
    counted = row.counted[row.places.of("feed_forward")]
    sums, number_at = torch.zeros(2, len(counted), len(distances), dtype=torch.float64)
    number_in = torch.zeros(len(counted), BINS, dtype=torch.long)
    for layers, start, cosines in _cosines_by_rows(row):
        of_layers = counted[layers]
        pairs = of_layers[:, start : start + cosines.shape[1], None] & of_layers.unsqueeze(-2)
        bins = ((cosines + 1) * (BINS / 2)).long().clamp(0, BINS - 1)
        bins += BINS * torch.arange(len(of_layers))[:, None, None]
        number_in[layers] += bins[pairs].bincount(minlength=BINS * len(of_layers)).unflatten(0, (-1, BINS))
        for place, distance in enumerate(distances):
            apart = pairs.diagonal(start + distance, 1, 2)
            number_at[layers, place] += apart.sum(dim=-1)
            sums[layers, place] += torch.where(apart, cosines.diagonal(start + distance, 1, 2), 0.0).sum(dim=-1)
    number_in[:, -1] -= counted.sum(dim=-1)  # each token with itself
    return sums / number_at, number_in / number_in.sum(dim=-1, keepdim=True).double()


def _cosines_by_rows(row: PromptTrace) -> Iterator[tuple[slice, int, Float64[Tensor, "layer some token"]]]:
    """Yield some layers, the first of some tokens, and the cosines of these with all; each piece stays in the cache."""
    places, tokens = row.places.of("feed_forward"), row.counted.shape[-1]
    layers = max(1, _PIECE_BYTES // (8 * tokens**2)) if row.cosines is not None else 1
    for start in range(0, len(places), layers):
        piece = slice(start, min(start + layers, len(places)))
        if row.cosines is not None:
            yield piece, 0, row.cosines[places[piece]]
            continue
        size = row.sizes[places[start]]
        units = _states_at(row, places[start]) / torch.where(size == 0, 1.0, size).unsqueeze(-1)
        several = max(1, _PIECE_BYTES // (8 * tokens))
        for first in range(0, tokens, several):
            yield piece, first, (units[first : first + several] @ units.mT).unsqueeze(0)


def _repeats(rows: Sequence[PromptTrace]) -> np.ndarray:
    """Return for each prompt the first whose tokens enter the network as its own do; −1 where it is itself.

    Where all enter alike, as the latent queries of a network do, those are the same that end alike.
    """
    sites = [row.places.of("feed_forward") for row in rows]
    eps = torch.finfo(rows[0].states[0].dtype).eps
    entering = [_states_at(row, places[0]) for row, places in zip(rows, sites, strict=True)]
    repeats = _first_alike(entering, ROUNDINGS * eps)
    if len(rows) > 1 and bool((repeats[1:] == 0).all()):
        ending = [_states_at(row, places[-1]) for row, places in zip(rows, sites, strict=True)]
        return _first_alike(ending, eps**0.5)
    return repeats


def _states_at(row: PromptTrace, place: int) -> Tensor:
    return next(islice(chain.from_iterable(row.states), place, None)).double()


def _first_alike(several: Sequence[Tensor], tolerance: float) -> np.ndarray:
    """Return for each tensor the first of those before it that it equals, relative to its size; −1 without one."""
    first = np.full(len(several), -1)
    # Of each shape those that equal none before them, by their norms: what is equal has nearly the same norm.
    by_norm: dict[torch.Size, list[tuple[float, int]]] = {}
    for place, states in enumerate(several):
        norm = float(states.norm())
        limit, known = tolerance * norm, by_norm.setdefault(states.shape, [])
        near = known[bisect_left(known, (norm - 2 * limit, 0)) : bisect_right(known, (norm + 2 * limit, place))]
        alike = (other for _, other in near if bool((several[other] - states).norm() <= limit))
        first[place] = min(alike, default=-1)
        if first[place] < 0:
            insort(known, (norm, place))
    return first


_DIMS = {
    "shares": ("layer", "site", "share"),
    "kappa_change": ("layer", "component"),
    "kappa_change_sum": ("component",),
}


def _numbers(shares: Shares) -> dict[str, Float64[Tensor, "*shape"]]:
    """Return everything that follows from the shares, each with the axes of its variable last."""
    kappa = shares.kappa
    change = _change_by_part(kappa)
    return {
        "shares": torch.stack([shares.common, shares.prompt, shares.own], dim=-1),
        "consensus_within": kappa,
        "consensus_relative": _relative(kappa, kappa[..., :1, _FEED_FORWARD, None]),
        "kappa_change": change,
        "kappa_change_sum": torch.cat([change[..., 1:, :2].sum(dim=-2), change[..., -1, 2:]], dim=-1),
    }


def _relative(value: Tensor, reference: Tensor) -> Tensor:
    return torch.where(reference < SAME_EMBEDDING, relative_kappa(value, reference), torch.nan)


def _change_by_part(kappa: Float64[Tensor, "*unit layer site"]) -> Float64[Tensor, "*unit layer component"]:
    """Return what each part does to κ; NaN at layer 0 and where there is no final norm."""
    attention, feed_forward, final = kappa.unbind(dim=-1)
    change = torch.full((*kappa.shape[:-1], len(COMPONENTS)), torch.nan, dtype=kappa.dtype)
    change[..., 1:, 0] = attention[..., 1:] - feed_forward[..., :-1]
    change[..., 1:, 1] = feed_forward[..., 1:] - attention[..., 1:]
    change[..., -1, 2] = final[..., -1] - feed_forward[..., -1]
    return change


def _centred_of(row: PromptTrace, center: Float64[Tensor, "layer site dim"], resolution: float) -> np.ndarray:
    by_state = center[row.places.layers, row.places.sites]
    pieces = [piece for part in row.states for piece in part.split(max(1, _PIECE_BYTES // (8 * part[0].numel())))]
    counts = [len(piece) for piece in pieces]
    if row.cosines is None:
        sizes, centers, counted = (tensor.split(counts) for tensor in (row.sizes, by_state, row.counted))
        centred = [
            torch.stack(_by_differences(*some, resolution), dim=-1).double()
            for some in zip(pieces, sizes, centers, counted, strict=True)
        ]
        return row.places.grid(torch.cat(centred))
    along = torch.cat(
        [
            (piece.double() @ piece_center.unsqueeze(-1)).squeeze(-1)  # twice as fast as vecdot
            for piece, piece_center in zip(pieces, by_state.split(counts), strict=True)
        ]
    )
    means = centred_cosines_of_gram(row.cosines, along / row.sizes, by_state, resolution, row.counted)
    return row.places.grid(torch.stack(means, dim=-1))


def _by_differences(
    states: Float[Tensor, "state token dim"],
    sizes: Float64[Tensor, "state token"],
    center: Float64[Tensor, "state dim"],
    counted: Bool[Tensor, "state token"],
    resolution: float,
) -> tuple[Tensor, Tensor]:
    exact = states if states.dtype == torch.float64 else states.float()
    unit = exact / sizes.to(exact).unsqueeze(-1)
    return centred_cosines(unit, center.to(unit), resolution, counted)


def _over_prompts(values: Float64[Tensor, "prompt layer site"]) -> tuple[Tensor, Tensor]:
    """Return the mean, and the mean without each prompt; the mean direction of the others is taken as known."""
    known = ~values.isnan()
    count = known.sum(dim=0)
    left = (values.nansum(dim=0) - values.nan_to_num()) / (count - known.long()).clamp(min=1)
    return values.nanmean(dim=0), left


def mean_with_interval(
    values: Float64[Tensor, "prompt ..."], confidence: float = CONFIDENCE
) -> tuple[Float64[Tensor, ...], Float64[Tensor, "... bound"]]:
    """Return the mean over prompts and its jackknife interval.

    Args:
        values: One for each prompt, paired where two networks are compared.
        confidence: Of the interval.

    >>> mean, interval = mean_with_interval(torch.tensor([1.0, 2.0, 3.0]).double())
    >>> float(mean), [round(end, 2) for end in interval.tolist()]  # that of a mean is Student's
    (2.0, [0.31, 3.69])
    """
    without_each = (values.sum(dim=0) - values) / max(1, len(values) - 1)
    return values.mean(dim=0), jackknife_interval(values.mean(dim=0), without_each, confidence)


def _with_interval(name: str, value: Tensor, interval: Tensor) -> dict[str, Any]:
    dims = _DIMS.get(name, ("layer", "site"))
    return {name: (dims, value.numpy()), f"{name}_interval": ((*dims, "bound"), interval.numpy())}


def _stacked(arrays: Sequence[np.ndarray]) -> Float64[Tensor, "prompt ..."]:
    return torch.from_numpy(np.stack(arrays)).double()
