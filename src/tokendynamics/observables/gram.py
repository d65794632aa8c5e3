"""The cosines of all pairs of tokens, computed once and shared by everything that needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.numerics.arguments import check_finite
from tokendynamics.observables.directions import LARGEST_SAFE, SMALLEST_SAFE, lengths
from tokendynamics.observables.distances import euclidean

_CHUNK_BYTES = 2**21
"""States are taken to float64 in pieces of this size: larger ones leave the cache and pay for fresh memory."""


@dataclass(frozen=True)
class Gram:
    """States of the same tokens at several sites, with their norms and pairwise cosines.

    Attributes:
        parts: The states, each of shape (some sites, token, dim), in the dtype that came.
        size: Norms, shape (site, token), float64, the parts one after the other.
        cosines: Gram matrices of the unit rows, shape (site, token, token), float64; rows of zero tokens are zero.
    """

    parts: tuple[Float[Tensor, "_ token dim"], ...]
    size: Float64[Tensor, "site token"]
    cosines: Float64[Tensor, "site token token"]

    @property
    def dim(self) -> int:
        """Width of the states."""
        return self.parts[0].shape[-1]

    def sums_of_directions(self, keep: Bool[Tensor, "mask site token"]) -> Float64[Tensor, "mask site dim"]:
        """Return ``Σ_i x_i/|x_i|`` over the tokens that count under each mask."""
        weights = (keep / torch.where(self.size == 0, 1.0, self.size)).transpose(0, 1)
        lengths_of_pieces = [len(piece) for piece in _pieces(self.parts)]
        sums = [
            weight @ piece.double()
            for weight, piece in zip(weights.split(lengths_of_pieces), _pieces(self.parts), strict=True)
        ]
        return torch.cat(sums).transpose(0, 1)

    def split(self, sites: int) -> Iterator[Gram]:
        """Yield the same in pieces of at most `sites` sites."""
        states = [state for part in self.parts for state in part]
        for start in range(0, len(states), sites):
            piece = slice(start, start + sites)
            yield Gram(tuple(state[None] for state in states[piece]), self.size[piece], self.cosines[piece])

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
        yield from part.split(max(1, _CHUNK_BYTES // (8 * part[0].numel())))
