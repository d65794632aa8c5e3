"""Finds where queries, keys and values come from: each column is an output column of some module, times a factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained._torch_attention import InProjection, Projection
from tokendynamics.pretrained.discovery._calls import ModuleCall
from tokendynamics.pretrained.discovery._maps import (
    AFFINE,
    ROUNDED,
    Affine,
    AsStored,
    Gain,
    Norm,
    Probed,
    Unpacked,
    affine_misfit,
    format_of,
    is_packed,
    norms_by_function,
    probed,
)
from tokendynamics.pretrained.discovery.attention_call import as_features
from tokendynamics.pretrained.network import weight_is_a_method

Storage: TypeAlias = Literal["out x in", "in x out", "heads", Projection] | Probed
"""How the weight of an affine map is stored."""


class LayoutNotFoundError(CheckpointError):
    """A network whose layout could not be found, or only in part; the message says what did not match."""


@dataclass(frozen=True)
class Part:
    """Some columns of a tensor as output columns of one module, times a factor.

    Attributes:
        columns: Which columns of the tensor.
        module: Name of the module, within its block.
        rows: Which of the module's outputs, one for each column.
        factor: What multiplies each of them.
        does: The normalization that it is; or, for an affine map, how its weight is stored: as ``weight[out, in]``, as
            ``weight[in, out]``, not at all in one piece (`Probed`), or in an
            `nn.MultiheadAttention` (a `Projection` of it).
        reads: What the module reads, column by column; None for what the attention itself reads.
    """

    columns: tuple[int, ...] = field(repr=False)  # as many numbers as the network has features
    module: str
    rows: tuple[int, ...] = field(repr=False)
    factor: tuple[float, ...] = field(repr=False)
    does: Storage | Norm
    reads: tuple[Part, ...] | None = None


_TOKENS = 4
"""Fewest tokens of one input that distinguish a column from others."""


class Tracer:
    """Follows tensors of one block's forward pass back to what its attention reads.

    Attributes:
        after_turning: Norms of queries or keys that read what positions have already turned.

    Args:
        calls: Of modules that may stand on the way.
        start: What the attention reads, (batch, token, dim).
        prefix: Name of the block, with a dot; taken off the modules' names.
        numbers: Of the attention module, such as its scale: a factor that is one of them is taken from there.
    """

    def __init__(self, calls: Sequence[ModuleCall], start: Tensor, prefix: str, numbers: Sequence[float] = ()) -> None:
        self.calls, self.start, self.prefix, self.numbers = calls, start, prefix, numbers
        self.after_turning: list[str] = []
        self.batch, self.tokens = start.shape[:2]
        self.tolerance = 1e-8 if start.dtype == torch.float64 else 1e-4

    def parts(self, target: Tensor, what: str, *, first_token: bool = False) -> tuple[Part, ...]:
        """Return the sources of the columns of a tensor (batch, token, column).

        Args:
            target: The tensor.
            what: What it is, for the message.
            first_token: Whether to compare the first token alone, which rotary positions leave as it is.

        Raises:
            LayoutNotFoundError: Some column is no output column of any module.
        """
        return self._parts(target, self.calls, what, first_token)

    def normalized_parts(self, target: Tensor, what: str, width: int, owner: ModuleCall) -> tuple[Part, ...]:
        """Return the sources of queries or keys that a function normalizes, each head by itself or all together.

        The first token is compared, whose features positions do not turn. Cosines are root mean squares times a factor.

        Args:
            target: The queries or keys.
            what: Likewise, for the message.
            width: Features of a head.
            owner: The attention module, whose parameters may be gains.

        Raises:
            LayoutNotFoundError: They are no normalized outputs of modules.
        """
        usable = [(call, as_features(call.y, self.batch, self.tokens)) for call in self.calls]
        affine = [(call, y) for call, y in usable if y is not None and stored_how(call) is not None]
        for size in dict.fromkeys((width, target.shape[-1])):
            given = [(call, y) for call, y in affine if y.shape[-1] % size == 0]
            if not given:
                continue
            # The columns of one group show which norm it is.
            norm = min(
                norms_by_function(size), key=lambda norm: self._norm_misfit(norm, target[..., : norm.width], given)
            )
            candidates = [(call, norm.apply(y, None, None)) for call, y in given]
            chosen, row, factor, error = matched_columns(target, candidates, self.tolerance, first_token=True)
            if error <= self.tolerance:
                return tuple(
                    self._normalized_part(given[index][0], norm, chosen == index, row, factor, owner)
                    for index in chosen.unique().tolist()
                )
        raise LayoutNotFoundError(f"no module gives the {what}, and no norm of what one gives is these")

    def _norm_misfit(self, norm: Norm, target: Tensor, given: list[tuple[ModuleCall, Tensor]]) -> float:
        """Return how far columns of the first token are from those of a norm, by value: cosines show no epsilon."""
        outputs = [(call, norm.apply(y[:, :1], None, None)) for call, y in given]
        chosen, row, factor, _ = matched_columns(target[:, :1], outputs, self.tolerance)
        pairs = zip(chosen.tolist(), row.tolist(), strict=True)
        columns = torch.stack([outputs[index][1][:, 0, place] for index, place in pairs], dim=-1)
        return float((factor * columns - target[:, 0]).norm())

    def _normalized_part(
        self, call: ModuleCall, norm: Norm, chosen: Tensor, row: Tensor, factor: Tensor, owner: ModuleCall
    ) -> Part:
        """Return columns that a function normalizes, with the parameter of the attention module that is their gain."""
        count = call.y.shape[-1]
        columns, every = chosen.nonzero()[:, 0], torch.arange(count)
        reads = self._part(call, torch.ones(count, dtype=torch.bool), every, torch.ones(count).to(factor), False)
        rows, factors, name = row[columns], factor[columns], owner.name_in(self.prefix[:-1])
        of_heads = factors.unflatten(0, (-1, norm.width)) if len(factors) % norm.width == 0 else factors[None]
        if not all(map(self._is_even, of_heads)):  # a factor of each head is that of the layer itself, see `verified`
            norm, name, gain = self._with_gain(norm, rows, factors, owner.module, name)
            factors = factors / gain
        scale = tuple(self._cleaned(factors).tolist())
        return Part(tuple(columns.tolist()), name, tuple(rows.tolist()), scale, norm, (reads,))

    def _is_even(self, factors: Tensor) -> bool:
        """Whether factors are one, but for rounding."""
        middle = factors.median()
        return float((factors - middle).abs().max()) <= self.tolerance * float(middle.abs())

    def _with_gain(
        self, norm: Norm, rows: Tensor, factors: Tensor, module: nn.Module, name: str
    ) -> tuple[Norm, str, Tensor]:
        """Return the norm with the gain that the factors of its columns are, the module that has it, and the gain."""
        gains: tuple[Gain, ...] = ("weight", "1 + weight")
        for label, parameter in module.named_parameters():
            for gain in gains if parameter.shape == (norm.width,) else ():
                inner, _, leaf = label.rpartition(".")
                with_gain = replace(norm, gain=gain, parameter=leaf)
                sizes = with_gain.gain_of(parameter.detach(), factors)
                if sizes is not None and self._is_even(factors / sizes[rows % norm.width]):
                    return with_gain, ".".join(filter(None, (name, inner))), sizes[rows % norm.width]
        raise LayoutNotFoundError("its queries and keys are normalized by a function with a gain that is not read")

    def is_shifted(self, target: Tensor) -> bool:
        """Return whether the first token's columns are those of modules but for what is the same for all inputs."""
        outputs = [(call, as_features(call.y, self.batch, self.tokens)) for call in self.calls if _holds(call.module)]
        usable = [(call, y[:, :1]) for call, y in outputs if y is not None]
        first = target[:, :1]
        if not usable or matched_columns(first, usable, self.tolerance)[3] <= self.tolerance:
            return False
        centred = [(call, y - y.mean(dim=0)) for call, y in usable]
        return matched_columns(first - first.mean(dim=0), centred, self.tolerance)[3] <= self.tolerance

    def multiples_by_input(self, *targets: Tensor) -> bool:
        """Return whether columns are those of modules times a number that is another one for some inputs."""
        outputs = [(call, as_features(call.y, self.batch, self.tokens)) for call in self.calls if _holds(call.module)]
        usable = [(call, y) for call, y in outputs if y is not None]
        if not usable or self.batch < 2 or self.tokens < _TOKENS:
            return False

        def fits(target: Tensor, some: slice) -> bool:
            given = [(call, y[some]) for call, y in usable]
            return matched_columns(target[some], given, self.tolerance)[3] <= self.tolerance

        alone = all(fits(target, one) for target in targets for one in (slice(0, 1), slice(1, 2)))
        return alone and not all(fits(target, slice(None)) for target in targets)

    def _parts(self, target: Tensor, calls: Sequence[ModuleCall], what: str, first_token: bool) -> tuple[Part, ...]:
        usable = [(call, as_features(call.y, self.batch, self.tokens)) for call in calls]
        # A module without weights that is no norm (a dropout, another order of axes) gives what one before it gave.
        candidates = [
            (call, features)
            for call, features in usable
            if features is not None and (_holds(call.module) or _does(call) is not None)
        ]
        if not candidates:
            raise LayoutNotFoundError(f"no module gives the {what}")
        owner, row, factor, error = matched_columns(target, candidates, self.tolerance, first_token=first_token)
        if error > self.tolerance:
            raise LayoutNotFoundError(
                f"no module gives every column of the {what} (the cosine misses 1 by {error:.1g})"
            )
        return tuple(
            self._part(candidates[index][0], owner == index, row, factor, first_token) for index in owner.unique()
        )

    def _part(self, call: ModuleCall, chosen: Tensor, row: Tensor, factor: Tensor, first_token: bool) -> Part:
        columns = chosen.nonzero()[:, 0]
        # The projections of a block that is an attention of PyTorch itself have its name.
        name = call.name_in(self.prefix[:-1])
        does = _does(call)
        if does is None:
            misfit = affine_misfit(call.module, call.x)
            if misfit < AFFINE:
                raise LayoutNotFoundError(f"{name} reads another number of features than its inner modules state")
            if misfit < ROUNDED:
                came = f"{name} ({format_of(call.module)}) is a linear map only to {misfit:.1g}"
                raise LayoutNotFoundError(f"{came}, as where it quantises what it reads")
            coarse = [parameter for parameter in call.module.parameters() if not parameter.is_floating_point()]
            if coarse:
                kind = str(coarse[0].dtype).removeprefix("torch.")
                raise LayoutNotFoundError(f"{name} holds its weights as {kind}, without real numbers to read")
            raise LayoutNotFoundError(f"{name} is neither an affine map nor a normalization")
        scale = self._cleaned(factor[columns])
        reads = self._reads(call, name, first_token and isinstance(does, Norm))
        return Part(tuple(columns.tolist()), name, tuple(row[columns].tolist()), tuple(scale.tolist()), does, reads)

    def _cleaned(self, factor: Tensor) -> Tensor:
        """Return measured factors as the network has them: 1, or one of its own numbers, or one for all columns."""
        factor = torch.where((factor - 1).abs() < self.tolerance, 1.0, factor)
        middle = float(factor.median())
        if float((factor - middle).abs().max()) > self.tolerance * abs(middle):
            return factor
        exact = next(
            (number for number in self.numbers if abs(number - middle) <= self.tolerance * abs(middle)), middle
        )
        return torch.full_like(factor, exact, dtype=torch.float64)

    def _reads(self, call: ModuleCall, name: str, may_turn: bool) -> tuple[Part, ...] | None:
        x = as_features(call.x, self.batch, self.tokens)
        if x is None:
            raise LayoutNotFoundError(f"{name} reads no states")
        if x.shape == self.start.shape and torch.allclose(x, self.start, rtol=1e-5, atol=1e-6 * float(x.abs().max())):
            return None
        added = x - self.start if x.shape == self.start.shape else x
        if len(x) > 1 and float((added - added[:1]).abs().max()) <= self.tolerance * float(x.abs().max()):
            words = (
                "the state plus what is the same for all inputs, as where positions are added to queries and keys alone"
            )
            raise LayoutNotFoundError(f"{name} reads {words}")
        earlier = [other for other in self.calls if other.end < call.start]  # ever fewer: this comes to an end
        try:
            return self._parts(x, earlier, f"input of {name}", False)
        except LayoutNotFoundError:
            if not may_turn:
                raise
        parts = self._parts(x, earlier, f"input of {name}", True)
        self.after_turning.append(name)
        return parts


def matched_columns(
    target: Tensor, candidates: list[tuple[ModuleCall, Tensor]], tolerance: float, *, first_token: bool = False
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return, for each column of the target, which candidate, which of its columns, which factor; and the error.

    Where several fit equally well, one that gives the column as it stands, whose factor no other weights can change;
    among such, the module that ended last: one that wraps another does what its inner one does.
    """

    def samples(features: Tensor) -> Tensor:
        return features[:, 0] if first_token else features.flatten(0, 1)

    wanted = samples(target)
    unit = _unit(wanted).mT
    cosines, rows, factors = [], [], []
    for _, features in candidates:  # one at a time: all columns against all columns of a large layer would be gigabytes
        responses = samples(features)
        largest = (unit @ _unit(responses)).abs().max(dim=1)
        chosen = responses[:, largest.indices]
        cosines.append(largest.values)
        rows.append(largest.indices)
        factors.append((wanted * chosen).sum(dim=0) / chosen.square().sum(dim=0))
    best = torch.stack(cosines).max(dim=0).values
    fits = torch.stack(cosines) >= best - tolerance / 10
    end = torch.tensor([[call.end] for call, _ in candidates])
    as_it_stands = (torch.stack(factors) - 1).abs() < tolerance
    owner = torch.where(fits, end + as_it_stands * (end.max() + 1), -1).argmax(dim=0)[None]
    row, factor = (torch.stack(by_candidate).gather(0, owner)[0] for by_candidate in (rows, factors))
    return owner[0], row, factor, float((1 - best).max())


def _unit(columns: Tensor) -> Tensor:
    return columns / torch.linalg.vector_norm(columns, dim=0).clamp_min(torch.finfo(columns.dtype).tiny)


def _does(call: ModuleCall) -> Storage | Norm | None:
    return call.norm or stored_how(call)


def stored_how(call: ModuleCall) -> Storage | None:
    """Return how the weight of an affine map is stored; None if the call is no affine map."""
    if call.x is None:
        return None
    if isinstance(call.module, Unpacked) or any(True for _ in call.module.children()):
        return probed(call.module, call.x)
    weight, bias = (getattr(call.module, name, None) for name in ("weight", "bias"))
    if not isinstance(weight, Tensor) or type(weight) not in (Tensor, nn.Parameter):
        return probed(call.module, call.x)
    if weight.ndim != 2 or not weight.is_floating_point():
        return probed(call.module, call.x)  # quantised, or put together from other tensors
    forms: tuple[tuple[Storage, Tensor], ...] = (("out x in", weight.mT), ("in x out", weight))
    for storage, matrix in forms:
        if matrix.shape == (call.x.shape[-1], call.y.shape[-1]):
            y = call.x @ matrix.to(call.x) + (0.0 if bias is None else bias.to(call.x))
            # A router gives all tokens of all inputs in one row.
            if y.shape == call.y.shape and torch.allclose(y, call.y, rtol=1e-4, atol=1e-4 * float(call.y.abs().max())):
                return call.module.which if isinstance(call.module, InProjection) else storage
    return probed(call.module, call.x)


def _holds(module: nn.Module) -> bool:
    """Whether a module has weights, be they real numbers, packed ones, or packed ones in a buffer."""
    if any(True for _ in module.parameters()) or isinstance(module, AsStored):
        return True
    return any(weight_is_a_method(inner) or is_packed(inner) for inner in module.modules())


def composed(parts: tuple[Part, ...] | None, dim: int, read: Callable[[Part], Affine]) -> Affine | None:
    """Return the map of the attention's input to the columns, with every norm on the way replaced by its gain.

    Exact where no norm is on the way; else the map as it acts on tokens that the norms have normalized. None stands
    for the identity.

    Args:
        parts: The columns.
        dim: Width of the attention's input.
        read: Gives the affine map of a part, or for a norm its gain as a diagonal matrix, (1, width), and its bias.
    """
    if parts is None:
        return None
    count = sum(len(part.columns) for part in parts)
    whole: Tensor | None = None
    bias: Tensor | None = None
    for part in parts:
        piece = _composed_part(part, dim, read)
        if whole is None:
            whole = piece.weight.new_zeros(dim, count)
        whole[:, list(part.columns)] = piece.weight
        if piece.bias is not None:
            bias = piece.weight.new_zeros(count) if bias is None else bias
            bias[list(part.columns)] = piece.bias
    return None if whole is None else Affine(whole, bias)


def _composed_part(part: Part, dim: int, read: Callable[[Part], Affine]) -> Affine:
    affine, before, rows, norm = read(part), composed(part.reads, dim, read), list(part.rows), part.does
    factor = affine.weight.new_tensor(part.factor)
    if not isinstance(norm, Norm):
        weight = affine.weight[:, rows]
        bias = None if affine.bias is None else affine.bias[rows]
        if before is not None:
            through = None if before.bias is None else before.bias @ weight
            bias = through if bias is None else bias if through is None else bias + through
            weight = before.weight @ weight
    elif before is None:
        raise LayoutNotFoundError(f"{part.module} normalizes what the attention reads a second time")
    else:
        columns = before.weight.unflatten(-1, (-1, norm.width))
        centred = columns - columns.mean(dim=-1, keepdim=True) if norm.kind == "layer" else columns
        weight = (centred * affine.weight[0]).flatten(-2)[:, rows]
        bias = before.bias
        bias = None if bias is None else (bias.unflatten(0, (-1, norm.width)) * affine.weight[0]).flatten()[rows]
    return Affine(factor * weight, None if bias is None else factor * bias)


def through_norm(gain: Affine, norm: Norm, after: Affine) -> Affine:
    """Return the map that follows a norm as it acts on what the norm has divided by its size and not yet centred.

    >>> double = Affine(2 * torch.eye(2), None)
    >>> through_norm(Affine(torch.tensor([[1.0, 3.0]]), None), Norm("rms", "weight", 0.0, 2), double).weight.tolist()
    [[2.0, 0.0], [0.0, 6.0]]

    Args:
        gain: Of the norm, as a diagonal (1, width), and its bias.
        norm: What it is; it may act on several groups of features side by side.
        after: What follows.
    """
    groups = after.weight.unflatten(0, (-1, norm.width))
    weight = groups * gain.weight[0].to(groups)[:, None]
    weight = weight - weight.mean(dim=1, keepdim=True) if norm.kind == "layer" else weight
    if gain.bias is None:
        return Affine(weight.flatten(0, 1), after.bias)
    through = torch.einsum("i,gio->o", gain.bias.to(groups), groups)
    return Affine(weight.flatten(0, 1), through if after.bias is None else through + after.bias)


def evaluated(parts: tuple[Part, ...] | None, x: Tensor, read: Callable[[Part], Affine]) -> Tensor:
    """Return the columns for the attention's input x (…, dim), norms and biases included."""
    if parts is None:
        return x
    whole = x.new_zeros(*x.shape[:-1], sum(len(part.columns) for part in parts))
    for part in parts:
        affine, z = read(part), evaluated(part.reads, x, read)
        if isinstance(part.does, Norm):
            y = Norm(part.does.kind, "weight", part.does.eps, part.does.width).apply(z, affine.weight[0], affine.bias)
        else:
            y = z @ affine.weight.to(z)
            y = y if affine.bias is None else y + affine.bias.to(z)
        whole[..., list(part.columns)] = y.new_tensor(part.factor) * y[..., list(part.rows)]
    return whole
