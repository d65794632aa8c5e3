"""Trainable matrices whose symmetric part has chosen signs, or whose eigenvalues lie in a chosen half plane.

Their eigenvalues stay away from zero by a floor, a multiple of the rounding error.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tokendynamics.modules._arguments import LARGEST, check_choices, check_sizes, check_spreads, placement
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_positive, as_square
from tokendynamics.numerics.signatures import typed_arguments


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or in float64 where it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def without_autocast(like: Tensor) -> torch.autocast:
    """Return a context in which products of tensors on the device of `like` keep their precision.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.eye(2)):
    ...     (torch.eye(2) @ torch.eye(2)).dtype
    torch.float32
    """
    device = "cpu" if like.is_meta else like.device.type  # autocast does not know the device "meta"
    return torch.autocast(device, enabled=False)


MARGIN = 128
"""Least size of an eigenvalue of a symmetric part, as a multiple of the rounding error of the matrix.

It leaves room for what products with other matrices and their inverses do to that error.
"""
_HALVINGS = 60


def eye_like(matrix: Tensor) -> Tensor:
    """Return the identity of the size, dtype and device of (…, size, size)."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def margin(symmetric: Tensor, skew: Tensor | None, eps: float) -> Tensor:
    """Return ``m = MARGIN·eps·|B|_F``, (block,), for a symmetric and a skew part (block, size, size)."""
    return MARGIN * eps * _size(symmetric, skew)


def _size(symmetric: Tensor, skew: Tensor | None) -> Tensor:
    """Return ``|B|_F``, (block,), or the root of the root of the least normal number where B is smaller.

    Pivots that are too small to be told from zero would leave nothing that a floor could be relative to.
    """
    squares = symmetric.square().sum((-2, -1)) + (0 if skew is None else skew.square().sum((-2, -1)))
    return squares.clamp(min=torch.finfo(symmetric.dtype).tiny ** 0.5).sqrt()


def definite_floor(definite: Tensor, skew: Tensor | None) -> Tensor:
    """Return ``f = max(0, 2m − 1/|(D + m I)^{-1}|_F)``, (block,): every eigenvalue of D + f I is at least m.

    ``1/|(D + m I)^{-1}|_F`` is at most the lowest eigenvalue of D + m I, and at least that by the root of the size.
    """
    least = margin(definite, skew, torch.finfo(definite.dtype).eps)
    # With m on its diagonal D can be inverted however small its pivots are.
    inverse = torch.linalg.inv_ex(definite + least[:, None, None] * eye_like(definite))[0]
    return (2 * least - 1 / torch.linalg.matrix_norm(inverse)).relu()


def above_floor(symmetric: Tensor, skew: Tensor | None, negative: Tensor) -> Tensor:
    """Return ``S + f sgn(S)``, whose eigenvalues have sizes of at least 2m; f = 0 where those of S have.

    ``sgn(S) = U diag(s) U^T`` has the eigenvectors of S and s = −1 for its lowest eigenvalues, as many as are negative
    by construction: rounding may have hidden their signs. The first derivatives are those of the formula.

    Args:
        symmetric: S, (block, size, size).
        skew: The skew part of the same matrix; None without one.
        negative: Number of negative eigenvalues of each block, (block,).
    """
    constant = symmetric.detach().nan_to_num(0.0, 0.0, 0.0)  # what is not finite stays so in the sum below
    eigenvalues, vectors = torch.linalg.eigh(constant)
    place = torch.arange(symmetric.shape[-1], device=symmetric.device)
    signs = torch.where(place < negative.unsqueeze(-1), -1.0, 1.0).to(symmetric.dtype)
    # The eigenvectors are constants: derivatives of single ones do not exist where eigenvalues are equal.
    within = vectors.mT @ symmetric @ vectors
    least, eps = margin(symmetric, skew, torch.finfo(symmetric.dtype).eps), torch.finfo(symmetric.dtype).eps
    floor = (2 * least - (signs * within.diagonal(dim1=-2, dim2=-1)).amin(-1)).relu()
    smallest = (eps * torch.linalg.matrix_norm(constant))[:, None, None].clamp(min=torch.finfo(symmetric.dtype).tiny)
    gaps = (eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2)).abs().maximum(smallest)
    slopes = (signs.unsqueeze(-1) - signs.unsqueeze(-2)).abs() / gaps
    sign = vectors @ (torch.diag_embed(signs) + slopes * (within - within.detach())) @ vectors.mT
    return symmetric + floor[:, None, None] * sign


def product_floors(first: Tensor, second: Tensor, skew: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what to add to the diagonals of P and D, (block,) each, for every Re λ of ``P (D + T)`` to be positive.

    With ``p = |P|_F`` and ``n = |D + T|_F`` both get the same share of their size, ``P + a p I`` and ``D + a n I``: the
    least a ≥ 0 with ``(λ_P/p + a)(λ_D/n + a) ≥ MARGIN·eps``, λ_P and λ_D the lowest eigenvalues. Where
    ``λ_P λ_D ≥ MARGIN·eps·p n`` by the bounds below, a is exactly 0. It is at most ``2 √(MARGIN·eps)``.

    Why that is enough: a product V = P N, N = D + T, that is computed with an error E (rounding of the product, and of
    P to a matrix that is not quite symmetric) is ``P (N + P^{-1} E)``. The eigenvalues of the symmetric part of the
    second factor are at least ``λ_D − |E|/λ_P``, so that it is positive definite while ``|E| < λ_P λ_D``; V is similar
    to ``P^{1/2} (N + P^{-1} E) P^{1/2}``, whose symmetric part is then positive definite too: every Re λ(V) > 0. The
    rounding of a product has ``|E|_F ≤ (size/2)·eps·p n``, and about ``eps·p n`` where single roundings are
    independent. MARGIN·eps is enough up to a size of 250 whatever the roundings are, and far beyond where they are
    independent. Floors of each factor by itself would have to be √(MARGIN·eps) of its size, and would act on matrices
    whose product is far from this.

    λ_P and λ_D relative to p and n are bounded from below by ``(Σ (λ + r)^{-8})^{-1/8} − r``, ``r = √(MARGIN·eps)``:
    exact for one eigenvalue that is much smaller than others, and else (λ + r) is less by size^{1/8} at most.

    Args:
        first: P, symmetric and positive semidefinite, (block, size, size).
        second: D, likewise.
        skew: T, with the opposite transpose; None without one.
    """
    room = MARGIN * torch.finfo(first.dtype).eps
    sizes = _size(first, None), _size(second, skew)
    relative = (part / size[:, None, None] for part, size in zip((first, second), sizes, strict=True))
    lowest, other = (_lowest(part, room**0.5) for part in relative)
    share = (((lowest - other).square() + 4 * room).sqrt() - (lowest + other)).relu() / 2
    return share * sizes[0], share * sizes[1]


def _lowest(definite: Tensor, shift: float) -> Tensor:
    """Return a lower bound of the eigenvalues of blocks whose norm is at most 1, (block,), from −shift on."""
    inverse = shift * torch.linalg.inv_ex(definite + shift * eye_like(definite))[0]  # at most I: its powers are small
    square = inverse @ inverse
    return shift * torch.linalg.matrix_norm(square @ square) ** -0.25 - shift


def before_floor(definite: Tensor, skew: Tensor, eps: float) -> Tensor | None:
    """Return what `definite_floor` adds to the matrix that becomes `definite`, (block,); None where none becomes that.

    Both are in float64, and `eps` is that of the dtype in which the matrix is built.
    """
    eigenvalues = torch.linalg.eigvalsh(definite)
    of_skew = skew.square().sum((-2, -1))

    def excess(floor: Tensor) -> Tensor:
        before = eigenvalues - floor.unsqueeze(-1)
        least = MARGIN * eps * (before.square().sum(-1) + of_skew).sqrt()
        return (2 * least - (before + least.unsqueeze(-1)).square().reciprocal().sum(-1).rsqrt()).relu() - floor

    low, high = torch.zeros_like(of_skew), eigenvalues[:, 0]
    if bool((excess(high) > 0).any()):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = excess(middle) > 0
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return torch.where(excess(torch.zeros_like(low)) > 0, high, torch.zeros_like(high))


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
        check_choices(sign=(sign, SIGNS))
        check_sizes(dim=dim)
        if blocks < 1 or dim % blocks:
            raise ArgumentValueError("blocks", f"a divisor of dim = {dim}", blocks)
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

    def forward(self, *, parts: bool = False) -> Tensor | tuple[Tensor, Tensor | None]:
        """Return B, (dim, dim), in float32 at least, under autocast too: half precision does not hold its signs.

        Args:
            parts: Whether to return `symmetric_part` and `skew_part` in its place.
        """
        with without_autocast(self.lower):
            skew = self.skew_part()
            if parts:
                return self.symmetric_part(), skew
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
        if as_positive(size, "size") > LARGEST:
            raise ArgumentValueError("size", f"a positive number of at most {LARGEST:g}", size)
        self.diagonal.fill_(inverse_softplus(size))
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
                "matrix", "a symmetric matrix", f"one with a skew part of {float(skew.abs().max()):.2g}"
            )
        factors = [unit_lower_factors(half) for half in halves]
        pivots = torch.stack([pivots for _, pivots in factors])
        if sorted(pivots.sign().flatten().tolist()) != sorted(self.signs.flatten().tolist()):
            came = f"{int((pivots > 0).sum())} positive and {int((pivots < 0).sum())} negative"
            wanted = f"{int((self.signs > 0).sum())} positive and {int((self.signs < 0).sum())} negative"
            raise ArgumentValueError("matrix", f"{wanted} eigenvalues of its symmetric part", came)
        lower, raw = self._before_floor(halves, torch.stack([lower for lower, _ in factors]), pivots, skew)
        self.signs.copy_(pivots.sign())
        self.diagonal.copy_(raw + torch.log(-torch.expm1(-raw)))  # the inverse of softplus
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
            raise ArgumentValueError("matrix", wanted, f"{came:.2g}", f"rounding in {self.lower.dtype} hides its sign")
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
                "matrix", f"{len(blocks)} diagonal blocks", f"entries of {float(outside):.2g} outside them"
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
        check_sizes(dim=dim)
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
        raise ArgumentValueError("matrix", f"shape ({dim}, {dim})", tuple(matrix.shape))
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
                "matrix", "leading minors of its symmetric part that are not zero", f"minor {column + 1}"
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


def _signs(sign: str, blocks: int, size: int, like: Tensor) -> Tensor:
    signs = torch.ones(blocks * size, dtype=like.dtype, device=like.device)
    if sign == "negative":
        signs.neg_()
    elif sign == "half":
        signs[1::2] = -1
    return signs.reshape(blocks, size)


Half = Literal["positive", "negative"]


class PlacedSpectrum(nn.Module):
    """``V = ±P N`` with P symmetric and positive definite and N_sym positive definite: every ``±Re λ(V) > 0``.

    ``P N`` is similar to ``P^{1/2} N P^{1/2}``, whose symmetric part is positive definite. By Lyapunov's theorem every
    matrix with its spectrum in that half plane has this form, so that nothing else is asked of V.

    A floor keeps the signs from being lost to rounding: with λ the lowest eigenvalues of P and N_sym,
    ``λ_P λ_N ≥ 128·eps·|P|_F |N|_F`` (eps of the dtype). Where they are smaller, both get the same multiple of the
    identity relative to their size; that multiple is exactly 0 elsewhere.

    Args:
        dim: Rows and columns.
        sign: That of the real parts, ``"positive"`` or ``"negative"``.
        device: Where its parameters are made.
        dtype: Theirs; None is PyTorch's default.

    Raises:
        ArgumentValueError: An unknown sign.

    >>> values = PlacedSpectrum(3, "negative")
    >>> values.start(noise=0.5, generator=torch.Generator().manual_seed(1))
    >>> bool((torch.linalg.eigvals(values().detach()).real < 0).all())
    True
    """

    @typed_arguments
    def __init__(
        self, dim: int, sign: Half, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if sign not in ("positive", "negative"):
            raise ArgumentValueError("sign", "'positive' or 'negative'", repr(sign))
        self.metric = SignedMatrix(dim, symmetric=True, device=device, dtype=dtype)
        self.matrix = SignedMatrix(dim, sign, device=device, dtype=dtype)

    def forward(self) -> Tensor:
        """Return V, (dim, dim), in float32 at least."""
        with without_autocast(self.metric.lower):
            # Called, so that norms and masks of their parameters from before parametrizations are renewed.
            (metric, _), (definite, skew) = self.metric(parts=True), self.matrix(parts=True)
            of_metric, of_definite = (floor[:, None, None] for floor in product_floors(metric, definite, skew))
            metric = metric + of_metric * eye_like(metric)
            matrix = (definite + of_definite * eye_like(definite)) * self.matrix.signs.unsqueeze(-1)
            return (metric @ (matrix if skew is None else matrix + skew))[0]

    @typed_arguments
    def start(self, *, noise: float = 0.0, generator: torch.Generator | None = None) -> None:
        """Set V to ±I, with normal entries of standard deviation `noise` below the diagonals of its factors."""
        self.metric.start(size=1.0, noise=noise, generator=generator)
        self.matrix.start(size=1.0, noise=noise, generator=generator)
