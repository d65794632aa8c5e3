"""What tokens share: with every text, with their own prompt, with nothing; estimated from states grouped by prompt.

Let u be the unit rows of the tokens of P prompts, drawn from one population of texts. With m_p the mean unit row of
prompt p and c_p the mean of u_i·u_j over the pairs i ≠ j of its tokens,

    common = mean over p ≠ q of m_p·m_q,    prompt = mean_p c_p − common,    own = 1 − common − prompt,

three U-statistics: unbiased for any number of prompts from 2 on. Each prompt counts alike, whatever its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, as_tensor, check_open
from tokendynamics.numerics.errors import shown
from tokendynamics.observables.directions import are_many, unit_rows

ROUNDINGS = 10.0
"""Directions closer than this number of rounding errors of the states' dtype count as equal."""


@dataclass(frozen=True)
class Shares:
    """Three parts of a token's direction that add to 1, at each site.

    Attributes:
        common: What tokens of different prompts share (anisotropy); float64, shape (*site), as the two others.
        prompt: What tokens of one prompt share beyond that.
        own: What is left. A negative estimate is noise, or a population that points both ways.
        resolution: Below it ``1 − common`` is rounding.

    >>> found = shares([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    >>> round(float(found.common + found.prompt + found.own), 6)
    1.0
    """

    common: Float64[Tensor, "*site"]
    prompt: Float64[Tensor, "*site"]
    own: Float64[Tensor, "*site"]
    resolution: float = 0.0

    @property
    def kappa(self) -> Float64[Tensor, "*site"]:
        """Consensus κ = prompt / (1 − common), the intraclass correlation; NaN where all directions are one."""
        beyond = 1 - self.common
        resolved = beyond > self.resolution
        return torch.where(resolved, self.prompt / torch.where(resolved, beyond, 1.0), torch.nan)


def shares(prompts: Sequence[ArrayLike]) -> Shares:
    """Return what tokens share with every prompt, with their own and with none (`mathematics` 10).

    Args:
        prompts: States of each prompt, shape (…, token, dim), without the tokens that do not count; the leading axes
            are sites, the same for all. At least two prompts; one of a single token counts between prompts alone.

    Returns:
        Float64 tensors of shape (…,); differentiable.

    Raises:
        ArgumentValueError: Fewer than two prompts, other sites or widths, a token that is zero or not finite.

    Three prompts, the tokens of each nearly in one direction of its own, and all within a right angle:

    >>> found = shares([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> round(float(found.common), 4), round(float(found.prompt), 4), round(float(found.kappa), 4)
    (0.4714, 0.5286, 1.0)
    """
    check_open(prompts, "prompts")
    listed = isinstance(prompts, Tensor | Sequence | np.ndarray) and not isinstance(prompts, str | bytes)
    if not listed or (isinstance(prompts, np.ndarray) and prompts.ndim == 0):
        raise ArgumentTypeError("prompts", "a list of states, one entry a prompt", shown(prompts))
    if isinstance(prompts, Tensor) or len(prompts) < 2:
        came = "one tensor" if isinstance(prompts, Tensor) else len(prompts)
        raise ArgumentValueError("prompts", "the states of at least two prompts", came)
    states = [as_states(prompt, f"prompts[{place}]") for place, prompt in enumerate(prompts)]
    first = states[0]
    for place, state in enumerate(states):
        if (*state.shape[:-2], state.shape[-1]) != (*first.shape[:-2], first.shape[-1]):
            wanted = f"sites and width of prompts[0], {tuple(first.shape)} but for the tokens"
            raise ArgumentValueError(f"prompts[{place}]", wanted, f"shape {tuple(state.shape)}")
    directions = [unit_rows(state.double(), f"prompts[{place}]") for place, state in enumerate(states)]
    means = torch.stack([units.mean(dim=-2) for units in directions])
    within = torch.stack([_mean_pair_product(units) for units in directions])
    return shares_of_sums(within, gram_of_means(means), resolution_of(first.dtype))


def relative_kappa(kappa: ArrayLike, reference: ArrayLike) -> Tensor:
    """Return κ' = (κ − κ_0)/(1 − κ_0), consensus beyond that of the embedding (`mathematics` 10).

    Args:
        kappa: κ, of any shape; NaN where it is not defined.
        reference: κ_0, of a shape that fits.

    Raises:
        ArgumentTypeError, ArgumentValueError: No real numbers, or shapes that do not fit.

    >>> round(float(relative_kappa(0.55, 0.1)), 6)
    0.5
    """
    value = as_tensor(kappa, "kappa", finite=False).double()
    start = as_tensor(reference, "reference", finite=False).double()
    try:
        return (value - start) / (1 - start)
    except RuntimeError as error:
        came = f"shapes {tuple(value.shape)} and {tuple(start.shape)}"
        raise ArgumentValueError("reference", "a shape that fits that of kappa", came) from error


def gram_of_means(means: Float64[Tensor, "prompt ... dim"]) -> Float64[Tensor, "*site prompt prompt"]:
    """Return the products m_p·m_q of the prompts' mean unit rows."""
    by_site = means.movedim(0, -2)
    return by_site @ by_site.mT


def shares_of_sums(
    within: Float64[Tensor, "prompt ..."], between: Float64[Tensor, "*site prompt prompt"], resolution: float
) -> Shares:
    """Return the shares from what each prompt leaves behind, for states that are no longer there.

    Args:
        within: Mean product of different tokens of each prompt; NaN for a prompt of one token.
        between: From `gram_of_means`.
        resolution: From `resolution_of`.
    """
    return _shares(within.nanmean(dim=0), _sum_of_pairs(between), between.shape[-1], resolution)


def shares_without_each(
    within: Float64[Tensor, "prompt ..."], between: Float64[Tensor, "*site prompt prompt"], resolution: float
) -> Shares:
    """Return the shares of all prompts but one, for each one left out: (prompt, …), as the jackknife needs them.

    Args:
        within: See `shares_of_sums`, also for the others.
        between: Likewise.
        resolution: Likewise.
    """
    known = ~within.isnan()
    count = known.sum(dim=0) - known.long()
    rest = within.nansum(dim=0) - within.nan_to_num()
    same = torch.where(count > 0, rest / count.clamp(min=1), torch.nan)
    own_pairs = between.sum(dim=-1) - between.diagonal(dim1=-2, dim2=-1)
    left = _sum_of_pairs(between) - 2 * own_pairs.movedim(-1, 0)
    return _shares(same, left, between.shape[-1] - 1, resolution)


def _sum_of_pairs(between: Float64[Tensor, "*site prompt prompt"]) -> Float64[Tensor, "*site"]:
    return between.sum(dim=(-2, -1)) - between.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def _shares(same: Tensor, pairs: Tensor, count: int, resolution: float) -> Shares:
    common = pairs / (count * (count - 1)) if count > 1 else torch.full_like(pairs, torch.nan)
    return Shares(common, same - common, 1 - same, resolution)


def resolution_of(dtype: torch.dtype) -> float:
    """Return the 1 − cos of two directions that differ by the rounding of a network in this dtype.

    Not less than what the cosine itself, which is taken in float64, can tell from 1.
    """
    of_network = (ROUNDINGS * torch.finfo(dtype).eps) ** 2 / 2
    return max(of_network, ROUNDINGS * torch.finfo(torch.float64).eps)


def cosines_by_place(
    directions: Float[Tensor, "prompt token dim"], counts: Bool[Tensor, "prompt token"]
) -> tuple[Float64[Tensor, "prompt prompt"], Float64[Tensor, "prompt prompt"]]:
    """Return, for each pair of prompts, the mean cosine of tokens at the same place, and of tokens at different places.

    Their means over pairs of prompts are U-statistics, unbiased from two prompts on. What the first has beyond the
    second is what a place gives to a direction.

    Args:
        directions: Unit rows of each prompt from its first token on, zeros for tokens that do not count.
        counts: The tokens that count.

    Returns:
        Both NaN on the diagonal, and for prompts that share no place or have no tokens at different ones.

    >>> x = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    >>> [round(float(cosine[0, 1]), 6) for cosine in cosines_by_place(x, torch.ones(2, 3, dtype=torch.bool))]
    [1.0, 0.0]
    """
    there, sums = counts.double(), directions.sum(dim=1).double()  # in float64 it takes ten times as long
    same, shared = (directions.flatten(1) @ directions.flatten(1).mT).double(), there @ there.mT
    others = torch.outer(there.sum(dim=1), there.sum(dim=1)) - shared
    known = (shared > 0) & (others > 0) & ~torch.eye(len(counts), dtype=torch.bool)
    both = same / shared, (sums @ sums.mT - same) / others
    return torch.where(known, both[0], torch.nan), torch.where(known, both[1], torch.nan)


def mean_of_others(means: Float64[Tensor, "prompt ... dim"]) -> Float64[Tensor, "prompt *site dim"]:
    """Return, for each prompt, the mean of the mean unit rows of all others; NaN where undefined."""
    count = len(means)
    return (means.sum(dim=0) - means) / (count - 1) if count > 1 else torch.full_like(means, torch.nan)


def centred_cosines(
    directions: Float[Tensor, "*site token dim"],
    center: Float[Tensor, "*site dim"],
    resolution: float,
    keep: Bool[Tensor, "*site token"] | None = None,
) -> tuple[Float[Tensor, "*site"], Float[Tensor, "*site"]]:
    """Return the means of cos and cos² over pairs of different tokens of a prompt, a direction taken from each first.

    cos² is 1 on a line, whether the tokens stand on one side of it or on both. Less the square of the mean cos, it is a
    variance: 0 for one point, nearly 1 on a line with both sides alike.

    Args:
        directions: Unit rows.
        center: Mean direction of the other prompts, from `mean_of_others`.
        resolution: A token that is nearer to the center counts no longer. NaN where fewer than two count.
        keep: The tokens that count; None for all.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    >>> [round(float(mean), 4) for mean in centred_cosines(x, torch.zeros(2, dtype=torch.float64), 0.0)]
    [-0.3333, 1.0]
    """
    offset = directions - center.unsqueeze(-2)
    if are_many(*offset.shape[-2:]):
        return _of_many_offsets(offset, resolution, keep)
    # The rows are not made unit rows first: what has a token's width is what takes time.
    return _of_centred_gram(offset @ offset.mT, resolution, keep)


def centred_cosines_of_gram(
    cosines: Float64[Tensor, "*site token token"],
    along: Float64[Tensor, "*site token"],
    center: Float64[Tensor, "*site dim"],
    resolution: float,
    keep: Bool[Tensor, "*site token"] | None = None,
) -> tuple[Float64[Tensor, "*site"], Float64[Tensor, "*site"]]:
    """Return `centred_cosines` from cosines at hand: (u_i − c)·(u_j − c) = u_i·u_j − u_i·c − u_j·c + c·c.

    Known to rounding of the cosines: a token nearer to the center than 1e-6 is not told from it.

    Args:
        cosines: Products of the unit rows.
        along: Products of the unit rows with the center.
        center: See `centred_cosines`, also for the next.
        resolution: Likewise.
        keep: Likewise.

    >>> cosines = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0], [1.0, -1.0, 1.0]], dtype=torch.float64)
    >>> along, center = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    >>> [round(float(mean), 4) for mean in centred_cosines_of_gram(cosines, along, center, 0.0)]
    [-0.3333, 1.0]
    """
    of_center = torch.linalg.vecdot(center, center)[..., None, None]
    gram = cosines - along.unsqueeze(-1) - along.unsqueeze(-2) + of_center
    return _of_centred_gram(gram, resolution, keep)


def _of_many_offsets(
    offset: Float[Tensor, "*site token dim"], resolution: float, keep: Bool[Tensor, "*site token"] | None
) -> tuple[Float[Tensor, "*site"], Float[Tensor, "*site"]]:
    """Return what `_of_centred_gram` does: Σ_ij cos = |Σ û|², and Σ_ij cos² is that of the entries of Σ û û^T."""
    squared = offset.square().sum(dim=-1)
    counts = squared > 2 * resolution if keep is None else keep & (squared > 2 * resolution)
    scale = torch.where(counts, squared.clamp(min=torch.finfo(offset.dtype).tiny).rsqrt(), 0.0)
    unit = offset.double() * scale.double().unsqueeze(-1)
    count = counts.sum(dim=-1)
    pairs = torch.where(count > 1, count * (count - 1), torch.nan)
    mean = (unit.sum(dim=-2).square().sum(dim=-1) - count) / pairs
    square = ((unit.mT @ unit).square().sum(dim=(-2, -1)) - count) / pairs
    return mean.to(offset), square.to(offset)


def _of_centred_gram(
    gram: Float[Tensor, "*site token token"], resolution: float, keep: Bool[Tensor, "*site token"] | None
) -> tuple[Float[Tensor, "*site"], Float[Tensor, "*site"]]:
    squared = gram.diagonal(dim1=-2, dim2=-1)
    counts = squared > 2 * resolution if keep is None else keep & (squared > 2 * resolution)
    scale = torch.where(counts, squared.clamp(min=torch.finfo(gram.dtype).tiny).rsqrt(), 0.0)
    cosines = gram * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    count = counts.sum(dim=-1)
    pairs = torch.where(count > 1, count * (count - 1), torch.nan)
    mean = (cosines.sum(dim=(-2, -1)) - count) / pairs
    return mean, (cosines.square().sum(dim=(-2, -1)) - count) / pairs


def _mean_pair_product(directions: Float64[Tensor, "*site token dim"]) -> Float64[Tensor, "*site"]:
    count = directions.shape[-2]
    total = directions.sum(dim=-2).square().sum(dim=-1)
    return (total - count) / (count * (count - 1)) if count > 1 else torch.full_like(total, torch.nan)
