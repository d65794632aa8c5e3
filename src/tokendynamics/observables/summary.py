"""All observables of many states at once, from one Gram matrix per state; and those of the user, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, first_system
from tokendynamics.numerics.errors import shown
from tokendynamics.observables._distances import euclidean, exp_entropy
from tokendynamics.observables.directions import (
    LARGEST_SAFE,
    SMALLEST_SAFE,
    are_many,
    distance_sums,
    lengths,
    mean_over_pairs,
    refuse_zero_tokens,
    with_reference,
)

Observable: TypeAlias = Callable[[Tensor], float]
"""A number of one state, shape (token, dim)."""

_PIECE_BYTES = 2**21
"""States are taken to float64 in pieces of this size: larger ones leave the cache and pay for fresh memory."""


@dataclass(frozen=True)
class Gram:
    """States of the same tokens at several sites, with their norms and pairwise cosines.

    Attributes:
        parts: The states, each of shape (some sites, token, dim), in the dtype that came.
        size: Norms, shape (site, token), float64, the parts one after the other.
        cosines: Gram matrices of the unit rows, shape (site, token, token), float64; rows of zero tokens are zero.
            None where there are too many tokens to keep them; see `are_many`.
    """

    parts: tuple[Float[Tensor, "_ token dim"], ...]
    size: Float64[Tensor, "site token"]
    cosines: Float64[Tensor, "site token token"] | None

    @property
    def dim(self) -> int:
        """Width of the states."""
        return self.parts[0].shape[-1]

    def sums_of_directions(self, keep: Bool[Tensor, "site token"]) -> Float64[Tensor, "site dim"]:
        """Return ``Σ_i x_i/|x_i|`` over the tokens that count."""
        weights = (keep / torch.where(self.size == 0, 1.0, self.size)).unsqueeze(-2)
        pieces = list(_pieces(self.parts))
        of_pieces = weights.split([len(piece) for piece in pieces])
        return torch.cat([weight @ piece.double() for weight, piece in zip(of_pieces, pieces, strict=True)]).squeeze(-2)

    def split(self, sites: int) -> Iterator[Gram]:
        """Yield the same in pieces of at most `sites` sites."""
        states = [state for part in self.parts for state in part]
        for start in range(0, len(states), sites):
            piece = slice(start, start + sites)
            cosines = None if self.cosines is None else self.cosines[piece]
            yield Gram(tuple(state[None] for state in states[piece]), self.size[piece], cosines)

    def directions(self) -> Float64[Tensor, "site token dim"]:
        """Return the unit rows themselves; zero tokens stay zero."""
        return torch.cat(self.parts).double() / torch.where(self.size == 0, 1.0, self.size).unsqueeze(-1)

    def exact_distances(self, sites: Bool[Tensor, " site"]) -> Float64[Tensor, "chosen token token"]:
        """Return distances at the chosen sites from differences, right even where tokens nearly coincide."""
        chosen = sites.split([len(part) for part in self.parts])
        return euclidean(torch.cat([part[mask].double() for part, mask in zip(self.parts, chosen, strict=True)]))


def gram_of(*parts: Float[Tensor, "_ token dim"]) -> Gram:
    """Measure norms and cosines of token states, in float64.

    Args:
        *parts: One or more tensors of shape (site, token, dim) with the same tokens and dim, real floating.

    Raises:
        ArgumentValueError: A number that is not finite.

    >>> gram_of(torch.tensor([[[3.0, 4.0], [0.0, 2.0]]])).cosines.tolist()
    [[[1.0, 0.8], [0.8, 1.0]]]
    """
    for part in parts:
        check_finite(part, "states")
    if are_many(*parts[0].shape[-2:]):
        return Gram(parts, torch.cat([lengths(piece.double()) for piece in _pieces(parts)]), None)
    sizes, cosines = zip(*(_norms_and_cosines(piece.double()) for piece in _pieces(parts)), strict=True)
    return Gram(parts, torch.cat(sizes), torch.cat(cosines))


def _norms_and_cosines(
    states: Float64[Tensor, "site token dim"],
) -> tuple[Float64[Tensor, "site token"], Float64[Tensor, "site token token"]]:
    size = lengths(states)
    divisor = torch.where(size == 0, 1.0, size)
    if bool(((divisor > SMALLEST_SAFE) & (divisor < LARGEST_SAFE)).all()):
        # Dividing token² products instead of token · dim entries saves a pass over the states.
        return size, (states @ states.mT) / (divisor.unsqueeze(-1) * divisor.unsqueeze(-2))
    unit = states / divisor.unsqueeze(-1)
    return size, unit @ unit.mT


def _pieces(parts: tuple[Float[Tensor, "_ token dim"], ...]) -> Iterator[Float[Tensor, "_ token dim"]]:
    for part in parts:
        yield from part.split(max(1, _PIECE_BYTES // (8 * part[0].numel())))


# Below this share of |x_i||x_j| a squared distance from the Gram matrix has lost more than ten digits' worth.
_CLOSE = 1e-5

_CHUNK_BYTES = 2**20
"""Sites are summarised in pieces whose pairwise arrays have this size: what they need then comes from the cache."""


def summarize(x: ArrayLike, keep: Tensor | None = None) -> dict[str, Float64[Tensor, "*site"]]:
    """Return every summary observable of many states in one go.

    The same definitions as the functions of their name, and equal to them to 1e-10, but from one Gram matrix of
    the unit rows, in float64. Differences in precision: here 1 − |cos| is known to about 1e-16 absolutely
    (`consensus` resolves far smaller values), and squared distances are clamped at 0 where they come from the
    Gram matrix; a state with tokens so close that this would show is measured from differences instead.

    Args:
        x: States of shape (…, token, dim); the leading axes are sites (prompts, layers).
        keep: The tokens that count, a boolean tensor of shape (…, token); all by default. The others
            (attention sinks) are left out of every quantity, and "first" and "last" mean the first and the
            last token kept.

    Returns:
        Float64 tensors of shape (…,), whatever type came in, by name:

        - ``consensus_first``, ``consensus_last``: `consensus` (`asymptotic` (25)) with that reference, and
          ``consensus_first_signed``;
        - ``mean_pair_cosine``: NaN, meaning "undefined", where fewer than two tokens are kept;
        - ``effective_rank``, ``effective_rank_unit_rows``: `effective_rank` with exponent 2;
        - ``stable_rank``, ``stable_rank_unit_rows``: `stable_rank`;
        - ``rank_one_distance``: `rank_one_distance`;
        - ``norm_median``, ``norm_lower_quartile``, ``norm_upper_quartile``: quantiles of `norms`, interpolated
          linearly, in the units of `x`;
        - ``distance_mean``: the mean of |x_i − x_j| over the pairs i ≠ j, in the units of `x`; NaN, meaning
          "undefined", where fewer than two tokens are kept.

    Raises:
        ArgumentTypeError: `keep` is not boolean.
        ArgumentValueError: `keep` has another shape, a kept token is zero (its index is printed), or a state
            keeps no token.

    >>> x = torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> found = summarize(x, torch.tensor([False, True, True]))
    >>> {name: round(float(found[name]), 6) for name in ("consensus_first", "mean_pair_cosine")}
    {'consensus_first': 0.5, 'mean_pair_cosine': 0.0}
    """
    states = as_states(x)
    *sites, tokens, dim = states.shape
    keep = torch.ones(*sites, tokens, dtype=torch.bool, device=states.device) if keep is None else keep
    _check_mask(keep, (*sites, tokens))
    gram = gram_of(states.reshape(-1, tokens, dim))
    refuse_zero_tokens(keep & (gram.size.reshape(keep.shape) == 0), "x")
    summary = summarize_gram(gram, keep.reshape(1, -1, tokens))
    return {name: values.reshape(sites) for name, values in summary.items()}


def summarize_gram(
    gram: Gram, keep: Bool[Tensor, "mask site token"], *, cosines_only: bool = False
) -> dict[str, Float64[Tensor, "mask site"]]:
    """Return what `summarize` does under several masks at once, for states whose cosines are at hand.

    Args:
        gram: From `gram_of`.
        keep: The tokens that count under each mask, none of them zero and at least one in every state.
        cosines_only: Whether ranks, distances and norms, which cost more than the cosines, are left out.

    >>> gram = gram_of(torch.tensor([[[9.0, 9.0], [1.0, 0.0], [0.0, 1.0]]]))
    >>> masks = torch.tensor([[[True, True, True]], [[False, True, True]]])
    >>> summarize_gram(gram, masks)["mean_pair_cosine"].round(decimals=6).tolist()
    [[0.471405], [0.0]]
    """
    sites = max(1, _CHUNK_BYTES // (8 * keep.shape[0] * keep.shape[-1] ** 2))
    blocks = [
        _summarize_piece(piece, mask, cosines_only)
        for piece, mask in zip(gram.split(sites), keep.split(sites, dim=1), strict=True)
    ]
    return {name: torch.cat([values[name] for values in blocks], dim=-1) for name in blocks[0]}


def _summarize_piece(
    gram: Gram, keep: Bool[Tensor, "mask site token"], cosines_only: bool
) -> dict[str, Float64[Tensor, "mask site"]]:
    # Tokens left out become zero rows: they add zeros to sums and zero eigenvalues to spectra.
    cosines = None if gram.cosines is None else gram.cosines * (keep.unsqueeze(-1) & keep.unsqueeze(-2))
    agreement = _agreement_of_many(gram.directions(), keep) if cosines is None else _agreement(cosines, keep)
    if cosines_only:
        return agreement
    size = gram.size * keep
    relative = size / size.amax(dim=-1, keepdim=True)
    return {
        **agreement,
        **_ranks(gram, cosines, relative, keep),
        **(_spread_of_many(gram, keep) if gram.cosines is None else _spread(gram, gram.cosines, keep)),
        **_norm_quantiles(gram.size, keep),
    }


def _check_mask(keep: Tensor, shape: tuple[int, ...]) -> None:
    if keep.dtype != torch.bool:
        raise ArgumentTypeError("keep", "a boolean mask", f"dtype {keep.dtype}")
    if tuple(keep.shape) != shape:
        raise ArgumentValueError("keep", f"one entry per token, shape {shape}", f"shape {tuple(keep.shape)}")
    if not bool(keep.any(dim=-1).all()):
        came = "none" + first_system(~keep.any(dim=-1), "state")
        raise ArgumentValueError("keep", "at least one token to keep in every state", came)


def _agreement(
    cosines: Float64[Tensor, "mask site token token"], keep: Bool[Tensor, "mask site token"]
) -> dict[str, Float64[Tensor, "mask site"]]:
    count, (first, last) = keep.sum(dim=-1), _ends(keep)
    diagonal = cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    pairs = (cosines.sum(dim=(-2, -1)) - diagonal) / (count * (count - 1))
    return {
        "consensus_first": _consensus(cosines, keep, first),
        "consensus_first_signed": _consensus(cosines, keep, first, signed=True),
        "consensus_last": _consensus(cosines, keep, last),
        "mean_pair_cosine": torch.where(count > 1, pairs, torch.nan),
    }


def _ends(keep: Bool[Tensor, "mask site token"]) -> tuple[Int64[Tensor, "mask site"], Int64[Tensor, "mask site"]]:
    """Return the first and the last token that counts."""
    position = torch.arange(keep.shape[-1], device=keep.device)
    first = torch.where(keep, position, keep.shape[-1]).amin(dim=-1)
    return first, torch.where(keep, position, -1).amax(dim=-1)


def _agreement_of_many(
    directions: Float64[Tensor, "site token dim"], keep: Bool[Tensor, "mask site token"]
) -> dict[str, Float64[Tensor, "mask site"]]:
    first, last = (with_reference(directions, reference) for reference in _ends(keep))
    return {
        "consensus_first": _disagreement(first.abs(), keep),
        "consensus_first_signed": _disagreement(first, keep),
        "consensus_last": _disagreement(last.abs(), keep),
        "mean_pair_cosine": mean_over_pairs(directions, keep),
    }


def _consensus(
    cosines: Float64[Tensor, "mask site token token"],
    keep: Bool[Tensor, "mask site token"],
    reference: Int64[Tensor, "mask site"],
    signed: bool = False,
) -> Float64[Tensor, "mask site"]:
    row = torch.take_along_dim(cosines, reference[..., None, None], dim=-2).squeeze(-2)
    return _disagreement(row if signed else row.abs(), keep)


def _disagreement(
    cosines: Float64[Tensor, "mask site token"], keep: Bool[Tensor, "mask site token"]
) -> Float64[Tensor, "mask site"]:
    return torch.where(keep, (1 - cosines).clamp(min=0), 0.0).sum(dim=-1) / keep.sum(dim=-1)


def _ranks(
    gram: Gram,
    cosines: Float64[Tensor, "mask site token token"] | None,
    relative: Float64[Tensor, "mask site token"],
    keep: Bool[Tensor, "mask site token"],
) -> dict[str, Float64[Tensor, "mask site"]]:
    if keep.shape[-1] <= gram.dim and cosines is not None:
        raw = cosines * relative.unsqueeze(-1) * relative.unsqueeze(-2)
        grams = torch.stack([raw, cosines])
    else:
        unit = gram.directions()
        scaled, counted = unit * relative.unsqueeze(-1), unit * keep.unsqueeze(-1)
        grams = torch.stack([scaled.mT @ scaled, counted.mT @ counted])
    energies = torch.linalg.eigvalsh(grams).clamp(min=0)
    (effective, effective_unit), (stable, stable_unit) = exp_entropy(energies), energies.sum(dim=-1) / energies[..., -1]
    return {
        "effective_rank": effective,
        "effective_rank_unit_rows": effective_unit,
        "stable_rank": stable,
        "stable_rank_unit_rows": stable_unit,
    }


def _spread(
    gram: Gram, cosines: Float64[Tensor, "site token token"], keep: Bool[Tensor, "mask site token"]
) -> dict[str, Float64[Tensor, "mask site"]]:
    """Return what pairwise distances come to: measured once, and summed under each mask."""
    largest = torch.where(keep.any(dim=0), gram.size, 0.0).amax(dim=-1, keepdim=True)
    relative = gram.size / largest
    product = relative.unsqueeze(-1) * relative.unsqueeze(-2)
    squared = (relative.unsqueeze(-1) - relative.unsqueeze(-2)).square() + 2 * product * (1 - cosines)
    squared.diagonal(dim1=-2, dim2=-1).fill_(0.0)
    counted = keep.any(dim=0)
    pairs = counted.unsqueeze(-1) & counted.unsqueeze(-2)
    pairs.diagonal(dim1=-2, dim2=-1).fill_(False)
    close = ((squared < _CLOSE * product) & pairs).flatten(start_dim=-2).any(dim=-1)
    squared.clamp_(min=0)
    distance = squared.sqrt()
    if bool(close.any()):
        distance[close] = gram.exact_distances(close) / largest[close].unsqueeze(-1)
        squared[close] = distance[close].square()
    weights = keep.to(distance)
    count = keep.sum(dim=-1)
    mean = _sum_of_pairs(distance, weights) / (count * (count - 1)) * largest.squeeze(-1)
    # Σ_i |x_i − x̄|² = Σ_ij |x_i − x_j|²/(2ℓ)
    scatter = _sum_of_pairs(squared, weights) / (2 * count)
    return {
        "rank_one_distance": (scatter / (relative.square() * weights).sum(dim=-1)).sqrt(),
        "distance_mean": torch.where(count > 1, mean, torch.nan),
    }


def _spread_of_many(gram: Gram, keep: Bool[Tensor, "mask site token"]) -> dict[str, Float64[Tensor, "mask site"]]:
    """Return what `_spread` does, site by site and in blocks of rows."""
    largest = torch.where(keep.any(dim=0), gram.size, 0.0).amax(dim=-1)
    states = [state for part in gram.parts for state in part]
    sums = [
        distance_sums(state.double() / scale, size / scale, mask, _CLOSE)
        for state, size, scale, mask in zip(states, gram.size, largest, keep.unbind(dim=1), strict=True)
    ]
    distances, squares = (torch.stack(of_states, dim=-1) for of_states in zip(*sums, strict=True))
    count = keep.sum(dim=-1)
    mean = distances / (count * (count - 1)) * largest
    relative = gram.size / largest.unsqueeze(-1)
    return {
        "rank_one_distance": (squares / (2 * count) / (relative.square() * keep).sum(dim=-1)).sqrt(),
        "distance_mean": torch.where(count > 1, mean, torch.nan),
    }


def _sum_of_pairs(
    values: Float64[Tensor, "site token token"], weights: Float64[Tensor, "mask site token"]
) -> Float64[Tensor, "mask site"]:
    """Return Σ_ij w_i v_ij w_j under each mask."""
    return ((values @ weights.movedim(0, -1)).movedim(-1, 0) * weights).sum(dim=-1)


def _norm_quantiles(
    size: Float64[Tensor, "site token"], keep: Bool[Tensor, "mask site token"]
) -> dict[str, Float64[Tensor, "mask site"]]:
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=size.dtype, device=size.device)
    lower, median, upper = torch.nanquantile(torch.where(keep, size, torch.nan), levels, dim=-1)
    return {"norm_median": median, "norm_lower_quartile": lower, "norm_upper_quartile": upper}


def read_observables(given: Any, taken: Collection[str]) -> dict[str, Observable]:
    """Return the functions by name, each made to refuse what is no number; none for None.

    Args:
        given: Functions of a state (token, dim), by name, or None.
        taken: Names that they may not have.

    Raises:
        ArgumentTypeError: No mapping of functions; later, from a function whose value is no number.
        ArgumentValueError: A name that is taken, or none.

    >>> import torch
    >>> read_observables({"tokens": len}, taken=["rank"])["tokens"](torch.eye(3))
    3.0
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentTypeError("observables", "functions of states by name", shown(given))
    for name, function in given.items():
        if not callable(function):
            raise ArgumentTypeError(f"observables[{name!r}]", "a function of states", shown(function))
        if not isinstance(name, str) or not name or name in taken:
            raise ArgumentValueError("observables", "names that no variable has", shown(name))
    return {name: _checked(name, function) for name, function in given.items()}


def _checked(name: str, function: Observable) -> Observable:
    def number(state: Tensor) -> float:
        value = function(state)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentTypeError(f"observables[{name!r}]", "a number for each state", shown(value)) from error

    return number
