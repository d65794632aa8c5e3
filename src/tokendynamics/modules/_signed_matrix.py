"""A trainable matrix whose symmetric part has chosen signs, whatever its parameters are."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tokendynamics.modules._arguments import check_spreads, placement
from tokendynamics.modules._floor import MARGIN, above_floor, before_floor, definite_floor, eye_like, margin
from tokendynamics.modules._precision import at_least_float32, without_autocast
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_positive, as_square
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

Sign = Literal["positive", "negative", "half"]
SIGNS: tuple[str, ...] = get_args(Sign)


class SignedMatrix(nn.Module):
    """``B = L diag(s·softplus(d)) L^T + T − T^T``, with L unit lower triangular and T strictly lower triangular.

    By Sylvester's law B_sym has the signs s: all +1, all −1, or alternately +1 and −1 (``"half"``; one more +1 where
    dim is odd). Every matrix with a definite symmetric part is one of these; with ``"half"``, those whose leading
    minors have the signs that s asks for.

    A floor keeps the signs from being lost to rounding: eigenvalues of B_sym have sizes of at least
    ``m = 128·eps·|B|_F`` (eps of the dtype). For ``S = L diag(s·softplus(d)) L^T``, B_sym is ``S ± f I`` where it is
    definite, and ``S + f sgn(S)`` with ``"half"``, sgn the sign function of a matrix; f = 0 where the eigenvalues of S
    are far above m.

    Args:
        dim: Rows and columns.
        sign: ``"positive"``, ``"negative"`` or ``"half"``.
        symmetric: Whether T = 0.
        blocks: Number of equal diagonal blocks that B consists of.
        device: Where its parameters are made.
        dtype: Theirs; None is PyTorch's default.

    Raises:
        ArgumentValueError: An unknown sign, or a dim that the blocks do not divide.

    Source: `positional` (21)–(26).

    >>> matrix = SignedMatrix(4, "negative")
    >>> matrix.start(size=1.0, noise=0.1, generator=torch.Generator().manual_seed(0))
    >>> bool((torch.linalg.eigvalsh(matrix().detach() + matrix().detach().T) < 0).all())
    True
    """

    signs: Tensor

    @typed_arguments
    def __init__(
        self,
        dim: int,
        sign: Sign = "positive",
        *,
        symmetric: bool = False,
        blocks: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if sign not in SIGNS:
            raise ArgumentValueError(expected("sign", "one of " + ", ".join(SIGNS), repr(sign)))
        if dim < 1:
            raise ArgumentValueError(expected("dim", "an integer from 1", dim))
        if blocks < 1 or dim % blocks:
            raise ArgumentValueError(expected("blocks", f"a divisor of dim = {dim}", blocks))
        size = dim // blocks
        place = placement(device, dtype)
        self.lower = nn.Parameter(torch.zeros(blocks, size, size, **place))
        self.diagonal = nn.Parameter(torch.full((blocks, size), inverse_softplus(1.0), **place))
        self.skew = None if symmetric else nn.Parameter(torch.zeros(blocks, size, size, **place))
        self.sign: Sign = sign
        # Stored with the parameters: a matrix that was converted may need its signs in another order.
        self.register_buffer("signs", _signs(sign, blocks, size, self.diagonal))

    @property
    def symmetric(self) -> bool:
        """Whether T = 0."""
        return self.skew is None

    @property
    def dim(self) -> int:
        """Rows and columns."""
        return self.signs.numel()

    @torch.no_grad()
    def reset_signs(self) -> None:
        """Put the signs in the order in which they were made: for a copy without values."""
        blocks, size = self.signs.shape
        self.signs.copy_(_signs(self.sign, blocks, size, self.signs))

    def forward(self) -> Tensor:
        """Return B, (dim, dim), in float32 at least, under autocast too: half precision does not hold its signs."""
        with without_autocast(self.lower):
            skew = self.skew_part()
            if self.sign == "half":
                matrix = above_floor(self.symmetric_part(self.signs), skew, (self.signs < 0).sum(-1))
            else:
                definite = self.symmetric_part()
                floor = definite_floor(definite, skew)
                matrix = (definite + floor[:, None, None] * eye_like(definite)) * self.signs.unsqueeze(-1)
        matrix = matrix if skew is None else matrix + skew
        return matrix[0] if len(matrix) == 1 else torch.block_diag(*matrix)

    def symmetric_part(self, signs: Tensor | None = None) -> Tensor:
        """Return ``L diag(s·softplus(d)) L^T``, (block, size, size), without a floor, and without signs by default."""
        below, sizes = at_least_float32(self.lower).tril(-1), nn.functional.softplus(at_least_float32(self.diagonal))
        lower = below + eye_like(below)
        return (lower * (sizes if signs is None else signs * sizes).unsqueeze(-2)) @ lower.mT

    def skew_part(self) -> Tensor | None:
        """Return ``T − T^T``, (block, size, size); None where T = 0."""
        if self.skew is None:
            return None
        below = at_least_float32(self.skew).tril(-1)
        return below - below.mT

    @typed_arguments
    @torch.no_grad()
    def start(
        self, *, size: float, noise: float = 0.0, skew: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Set ``|pivots| = size``, and normal entries below the diagonal of L and of T.

        Args:
            size: Of every pivot, positive.
            noise: Standard deviation of the entries of L, and of T where `skew` is None.
            skew: Standard deviation of the entries of T.
            generator: Of the draws; None is PyTorch's own.

        Raises:
            ArgumentValueError: A size that is not positive, or a negative standard deviation.
        """
        check_spreads(noise=noise, skew=skew)
        self.diagonal.fill_(inverse_softplus(as_positive(size, "size")))
        self.lower.normal_(0.0, noise, generator=generator)
        if self.skew is not None:
            self.skew.normal_(0.0, noise if skew is None else skew, generator=generator)

    @typed_arguments
    @torch.no_grad()
    def take(self, matrix: Tensor) -> None:
        """Set the parameters so that B is `matrix`, which must have the signs (in any order) that B has.

        Raises:
            ArgumentValueError: Other signs, a symmetric part without a factorisation ``L D L^T`` (a leading minor
                is zero) or with eigenvalues near the least size that B may have, entries outside the blocks, or a skew
                part where B is symmetric.
        """
        blocks = self._blocks_of(_of_size(matrix, self.dim).detach().double())
        halves = (blocks + blocks.mT) / 2
        skew = (blocks - blocks.mT) / 2
        if self.skew is None and skew.abs().max() > 1e-6 * blocks.abs().max():
            raise ArgumentValueError(
                expected("matrix", "a symmetric matrix", f"one with a skew part of {float(skew.abs().max()):.2g}")
            )
        factors = [unit_lower_factors(half) for half in halves]
        pivots = torch.stack([pivots for _, pivots in factors])
        if sorted(pivots.sign().flatten().tolist()) != sorted(self.signs.flatten().tolist()):
            came = f"{int((pivots > 0).sum())} positive and {int((pivots < 0).sum())} negative"
            wanted = f"{int((self.signs > 0).sum())} positive and {int((self.signs < 0).sum())} negative"
            raise ArgumentValueError(expected("matrix", f"{wanted} eigenvalues of its symmetric part", came))
        lower, raw = self._before_floor(halves, torch.stack([lower for lower, _ in factors]), pivots, skew)
        self.signs.copy_(pivots.sign())
        self.diagonal.copy_(_inverse_softplus(raw))
        self.lower.copy_(lower.tril(-1))
        if self.skew is not None:
            self.skew.copy_(skew.tril(-1))

    def _before_floor(self, symmetric: Tensor, lower: Tensor, pivots: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
        """Return L and the sizes of the pivots that the floor makes into those given."""
        eps, sizes = torch.finfo(at_least_float32(self.lower).dtype).eps, pivots.abs()
        definite = symmetric * pivots.sign().unsqueeze(-1)
        least, lowest = 2 * margin(symmetric, skew, eps), torch.linalg.eigvalsh(symmetric).abs().amin(-1)
        if self.sign == "half":  # the floor moves those near 2m by less than a rounding error
            floor = torch.zeros_like(least) if bool((lowest >= (1 - 1 / MARGIN) * least).all()) else None
        else:
            floor = before_floor(definite, skew, eps)
        if floor is None:
            below = (least - lowest).argmax()
            wanted, came = f"eigenvalues of its symmetric part from {float(least[below]):.2g}", float(lowest[below])
            advice = f"rounding in {self.lower.dtype} hides its sign"
            raise ArgumentValueError(expected("matrix", wanted, f"{came:.2g}", advice))
        if not bool(floor.any()):
            return lower, sizes
        factors = [unit_lower_factors(block) for block in definite - floor[:, None, None] * eye_like(definite)]
        return torch.stack([lower for lower, _ in factors]), torch.stack([sizes for _, sizes in factors])

    def _blocks_of(self, matrix: Tensor) -> Tensor:
        size = self.lower.shape[-1]
        blocks = torch.stack([matrix[at : at + size, at : at + size] for at in range(0, self.dim, size)])
        outside = (matrix - torch.block_diag(*blocks)).abs().max()
        if outside > 1e-6 * matrix.abs().max():
            raise ArgumentValueError(
                expected("matrix", f"{len(blocks)} diagonal blocks", f"entries of {float(outside):.2g} outside them")
            )
        return blocks


class FreeMatrix(nn.Module):
    """A trainable matrix without signs: what a `SignedMatrix` is compared with.

    Args:
        dim: Rows and columns.
        device: Where its entries are made.
        dtype: Theirs; None is PyTorch's default.

    Raises:
        ArgumentValueError: A dim below 1.

    >>> FreeMatrix(3)().shape
    torch.Size([3, 3])
    """

    @typed_arguments
    def __init__(self, dim: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if dim < 1:
            raise ArgumentValueError(expected("dim", "an integer from 1", dim))
        self.weight = nn.Parameter(torch.eye(dim, **placement(device, dtype)))

    def forward(self) -> Tensor:
        """Return the matrix, (dim, dim), in float32 at least."""
        return at_least_float32(self.weight)

    @typed_arguments
    @torch.no_grad()
    def start(
        self, *, size: float, noise: float = 0.0, skew: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Set it to what a positive `SignedMatrix` starts with: see `SignedMatrix.start`."""
        twin = SignedMatrix(len(self.weight), device=self.weight.device, dtype=self.weight.dtype)
        twin.start(size=size, noise=noise, skew=skew, generator=generator)
        self.weight.copy_(twin())

    @typed_arguments
    @torch.no_grad()
    def take(self, matrix: Tensor) -> None:
        """Set it to `matrix`, (dim, dim).

        Raises:
            ArgumentValueError: Another shape.
        """
        self.weight.copy_(_of_size(matrix, len(self.weight)))


def _of_size(matrix: Tensor, dim: int) -> Tensor:
    if as_square(matrix, "matrix").shape != (dim, dim):
        raise ArgumentValueError(expected("matrix", f"shape ({dim}, {dim})", tuple(matrix.shape)))
    return matrix


def unit_lower_factors(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Return L, unit lower triangular, and the pivots D of ``symmetric = L D L^T``, in float64 and without pivoting.

    Raises:
        ArgumentValueError: A leading minor is zero to rounding.

    >>> lower, pivots = unit_lower_factors(torch.tensor([[2.0, 1.0], [1.0, -1.0]]))
    >>> lower.tolist(), pivots.tolist()
    ([[1.0, 0.0], [0.5, 1.0]], [2.0, -1.5])
    """
    rest = symmetric.double().clone()
    smallest = len(rest) * torch.finfo(torch.float64).eps * float(rest.abs().max())
    lower = torch.eye(len(rest), dtype=rest.dtype, device=rest.device)
    for column in range(len(rest)):
        pivot = rest[column, column].clone()
        if not abs(float(pivot)) > smallest:
            raise ArgumentValueError(
                expected("matrix", "leading minors of its symmetric part that are not zero", f"minor {column + 1}")
            )
        below = rest[column + 1 :, column] / pivot
        lower[column + 1 :, column] = below
        rest[column + 1 :, column + 1 :] -= torch.outer(below, rest[column, column + 1 :])
    return lower, rest.diagonal().clone()


def inverse_softplus(value: float) -> float:
    """Return d with ``log(1 + exp(d)) = value``, for a positive value.

    >>> round(inverse_softplus(math.log(2.0)), 12)
    0.0
    """
    return value + math.log(-math.expm1(-value))


def _inverse_softplus(values: Tensor) -> Tensor:
    return values + torch.log(-torch.expm1(-values))


def _signs(sign: str, blocks: int, size: int, like: Tensor) -> Tensor:
    signs = torch.ones(blocks * size, dtype=like.dtype, device=like.device)
    if sign == "negative":
        signs.neg_()
    elif sign == "half":
        signs[1::2] = -1
    return signs.reshape(blocks, size)
