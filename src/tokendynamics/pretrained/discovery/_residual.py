"""Finds how a block adds its parts to what it reads, and where its state after the attention can be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._calls import ModuleCall, as_features
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._maps import Norm

_TOLERANCE = 1e-5

_ROUNDINGS = 4.0
"""How many roundings of its own size a state may be off by, after two sums."""

_NEAR = 10.0
"""How many times too large a misfit may look before it is computed exactly."""

_BETTER = 0.5
"""A second part counts if the misfit without it is at least twice as large; others change it by a thousandth."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How a block's output comes from its input x.

    Attributes:
        kind: "added": y = x + a·attention + b·feed-forward; "norm after": each sum goes through a norm.
        attention: Module, within the block, whose output is the attention's part; in a block without attention that
            of what mixes tokens otherwise, None where nothing does.
        attention_factor: What multiplies it; None where that is learned, or each feature has a factor of its own, which
            is the same for all tokens (layer scales, gates by a condition).
        feed_forward: Likewise the feed-forward part; None for a block that is an attention alone.
        feed_forward_factor: Likewise.
        parallel: Whether both read the same state.
        attention_norm: Norm at the end of the attention's part, inside the branch or after the sum; None without.
        feed_forward_norm: Likewise.
        after_attention: Module at which the state after the attention shows, and which side of it; the module and
            "sum" where it has to be added up.
        norm: What `attention_norm` is.
    """

    kind: Literal["added", "norm after"]
    attention: str | None
    attention_factor: float | None
    feed_forward: str | None = None
    feed_forward_factor: float | None = 1.0
    parallel: bool = False
    attention_norm: str | None = None
    feed_forward_norm: str | None = None
    after_attention: tuple[str, Literal["input", "output", "sum"]]
    norm: Norm | None = None


class _Block:
    """The calls inside one block."""

    def __init__(self, block: ModuleCall, calls: Sequence[ModuleCall], shape: tuple[int, int]) -> None:
        self.batch, self.tokens = shape
        self.prefix = block.name + "."
        self.x, self.y = self.states(block.x), self.states(block.y)
        if not bool(torch.isfinite(self.x).all() and torch.isfinite(self.y).all()):
            raise LayoutNotFoundError(f"{block.name} gives states that are not finite")
        self.calls = [call for call in calls if block.start < call.start and call.end < block.end]
        self.outputs = [(call, states) for call in self.calls if (states := self._alike(call.y)) is not None]
        generator = torch.Generator().manual_seed(0)
        some = min(self.y.numel(), 4096)
        self.sample = torch.randperm(self.y.numel(), generator=generator)[:some]

    def states(self, tensor: Tensor | None) -> Tensor:
        states = as_features(tensor, self.batch, self.tokens)
        if states is None:
            raise LayoutNotFoundError(f"{self.prefix[:-1]} does not pass on one state for each token")
        return states

    def _alike(self, tensor: Tensor | None) -> Tensor | None:
        states = as_features(tensor, self.batch, self.tokens)
        return states if states is not None and states.shape == self.x.shape else None

    def name(self, call: ModuleCall) -> str:
        return "" if call.name == self.prefix[:-1] else call.name.removeprefix(self.prefix)

    def outermost(self, call: ModuleCall) -> ModuleCall:
        """Return the call of the outermost module with weights that gives what this one gives."""
        states = self.states(call.y)
        same = [
            other
            for other, y in self.outputs
            if torch.equal(y, states) and any(True for _ in other.module.parameters())
        ]
        return max(same, key=lambda candidate: candidate.end, default=call)

    def whole(self, call: ModuleCall) -> str:
        """Return the name of the outermost module that gives what this one gives."""
        return self.name(self.outermost(call))

    def fit(self, target: Tensor, parts: Sequence[Tensor]) -> tuple[float, list[float]]:
        """Return the misfit of target ≈ Σ factor · part, and the factors.

        The target is what is left of two states: where they are far larger, most of its digits are their rounding. The
        misfit is relative to its own size and to that.
        """
        wanted = self._sampled(target)
        given = torch.stack([self._sampled(part) for part in parts], dim=1)
        factors = torch.linalg.lstsq(given, wanted[:, None]).solution
        misfit = (given @ factors)[:, 0] - wanted
        size = self._size(target)
        doubt = (_TOLERANCE * size / given.norm(dim=0).clamp_min(1e-300)).clamp(10 * _TOLERANCE, 0.1)
        # Whole numbers, within what a factor is known to.
        pairs = zip(factors[:, 0].tolist(), doubt.tolist(), strict=True)
        cleaned = [round(factor) * 1.0 if abs(factor - round(factor)) < known else factor for factor, known in pairs]
        return float(misfit.norm() / size.clamp_min(1e-300)), cleaned

    def _sampled(self, states: Tensor) -> Tensor:
        return states.flatten()[self.sample].double()

    def _size(self, target: Tensor) -> Tensor:
        """Return what a misfit is relative to: the size of a difference of two states, and that of their rounding."""
        rounding = _ROUNDINGS * torch.finfo(target.dtype).eps * self._sampled(self.x).norm()
        return self._sampled(target).norm() + rounding / _TOLERANCE

    def likely(self, target: Tensor, parts: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """Return the places of each part, then of each two, whose multiples come near a target: few of very many.

        All that is left of the target beside one part is compared with all that is left of the others at once.
        """
        wanted, most = self._sampled(target), _NEAR * _TOLERANCE * self._size(target)
        given = torch.stack([self._sampled(part) for part in parts])
        given = given / given.norm(dim=1, keepdim=True).clamp_min(1e-300)
        alone, pairs = [], []
        for first, direction in enumerate(given):
            left = wanted - (wanted @ direction) * direction
            if left.norm() <= most:
                alone.append((first,))
            others = given[first + 1 :] - (given[first + 1 :] @ direction)[:, None] * direction
            others = others / others.norm(dim=1, keepdim=True).clamp_min(1e-300)
            misfits = (left - (others @ left)[:, None] * others).norm(dim=1)
            pairs += [(first, first + 1 + place) for place in (misfits <= most).nonzero()[:, 0].tolist()]
        return [*alone, *pairs]

    def reading(self, states: Tensor) -> ModuleCall | None:
        """Return the first module that reads these states."""
        size = 10 * _TOLERANCE * float(states.abs().max())
        for call in self.calls:
            x = self._alike(call.x)
            if x is not None and float((x - states).abs().max()) <= size:
                return call
        return None

    def carries(self, call: ModuleCall, time: int | None, projected: int) -> bool:
        """Return whether a module's output comes from an attention alone.

        Args:
            call: Of the module.
            time: When the attention ran; None if that is not known, and everything may come from it.
            projected: When its output projection ended.
        """
        states = self.states(call.y)
        if time is None or call.end == projected:
            return True
        if any(other_call.start < time < other_call.end and torch.equal(y, states) for other_call, y in self.outputs):
            return True
        x = self._alike(call.x)

        def scaled(y: Tensor) -> bool:
            """Return whether each feature of x is that of y times a factor, as layer scales are."""
            if x is None:
                return False
            given, other = x.flatten(0, 1).double(), y.flatten(0, 1).double()
            factor = (given * other).sum(dim=0) / other.square().sum(dim=0).clamp_min(1e-300)
            return bool((given - factor * other).norm() <= 10 * _TOLERANCE * given.norm())

        earlier = [(earlier_call, y) for earlier_call, y in self.outputs if time < earlier_call.end < call.start]
        return any(scaled(y) and self.carries(earlier_call, time, projected) for earlier_call, y in earlier)

    def norm_giving(self, states: Tensor) -> tuple[ModuleCall, Norm] | None:
        """Return a norm whose output these states are."""
        for call, y in self.outputs:
            norm = call.norm if torch.equal(y, states) else None
            if norm is not None:
                return call, norm
        return None


def residual_of(
    block: ModuleCall, calls: Sequence[ModuleCall], projected: int, shape: tuple[int, int], time: int | None = None
) -> Residual:
    """Find how a block adds its parts.

    Args:
        block: The block's call.
        calls: Of the whole pass.
        projected: When the attention's output projection ended: its part of the block ends then or later.
        shape: Batch and tokens.
        time: When the attention ran; None where it did not show.

    Raises:
        LayoutNotFoundError: The output is neither x plus one or two modules' outputs nor a norm of such sums.
    """
    inside = _Block(block, calls, shape)
    # A norm that scales all tokens alike can be written as a sum, but no sum gives what a norm gives.
    residual = _norm_after(inside, projected) or _added(inside, projected, time)
    residual = residual or _added_by_feature(inside, projected, time)
    if residual is None:
        raise LayoutNotFoundError(
            "the block's output is no sum of its input, its attention and the output of one other module"
        )
    parts = [part for part in (residual.attention, residual.feed_forward) if part is not None]
    for part in parts:
        # Projections of PyTorch's attention are calls of its name, each a module.
        ran = max(Counter(id(call.module) for call in inside.calls if inside.name(call) == part).values(), default=1)
        if ran > parts.count(part):  # a gate would act on all of its outputs
            raise LayoutNotFoundError(f"what it adds comes from {part}, which runs {ran} times in it")
    return residual


def _added(inside: _Block, projected: int, time: int | None) -> Residual | None:
    change = inside.y - inside.x
    # What gives the whole state is no part of it: with an attention that gives x, y = x + y − x would fit as well.
    outputs = [(call, states) for call, states in inside.outputs if not torch.equal(states, inside.y)]
    best: tuple[float, tuple[ModuleCall, ...], list[float]] = (_TOLERANCE, (), [])
    for places in inside.likely(change, [states for _, states in outputs]) if outputs else ():
        error, factors = inside.fit(change, [outputs[place][1] for place in places])
        if error < _BETTER * best[0] or (not best[1] and error < best[0]):
            best = error, tuple(outputs[place][0] for place in places), factors
    calls, factors = tuple(inside.outermost(call) for call in best[1]), best[2]
    if not calls:
        return None
    order = sorted(range(len(calls)), key=lambda index: calls[index].end)
    late = [index for index in order if calls[index].end >= projected and inside.carries(calls[index], time, projected)]
    if not late:
        return None
    first = late[0]
    other = next((index for index in order if index != first), None)
    attention, a = calls[first], factors[first]
    state = inside.x + a * inside.states(attention.y)
    reader = inside.reading(state)
    parallel = other is not None and reader is None
    norm_call = inside.norm_giving(inside.states(attention.y))
    last = None if other is None else inside.norm_giving(inside.states(calls[other].y))
    return Residual(
        kind="added",
        attention=inside.whole(attention),
        attention_factor=a,
        feed_forward=None if other is None else inside.whole(calls[other]),
        feed_forward_factor=1.0 if other is None else factors[other],
        parallel=parallel,
        attention_norm=None if norm_call is None else inside.name(norm_call[0]),
        norm=None if norm_call is None else norm_call[1],
        feed_forward_norm=None if last is None else inside.name(last[0]),
        after_attention=(inside.whole(attention), "sum") if reader is None else (inside.name(reader), "input"),
    )


def _added_by_feature(inside: _Block, projected: int, time: int | None) -> Residual | None:
    """Return a sum of two parts in which every feature has factors of its own, the same for all tokens of an input."""
    change = inside.y - inside.x
    if inside.tokens < _TOKENS or time is None:
        return None
    outputs = [(call, states) for call, states in inside.outputs if not torch.equal(states, inside.y)]
    first = [part for part in outputs if part[0].end >= projected and inside.carries(part[0], time, projected)]
    some = slice(None, None, max(1, inside.x.shape[-1] // _FEATURES))
    for attention, a in first:
        for feed_forward, m in (part for part in outputs if part[0].start >= attention.end):
            if _factors_of_features(change[..., some], a[..., some], m[..., some]) is None:
                continue
            factors = _factors_of_features(change, a, m)
            reader = None if factors is None else inside.reading(inside.x + factors[:, None, :, 0].to(a) * a)
            if reader is not None:
                return Residual(
                    kind="added",
                    attention=inside.whole(attention),
                    attention_factor=None,
                    feed_forward=inside.whole(feed_forward),
                    feed_forward_factor=None,
                    after_attention=(inside.name(reader), "input"),
                )
    return None


def _factors_of_features(change: Tensor, a: Tensor, m: Tensor) -> Tensor | None:
    """Return the factors (input, feature, part) with which two parts add up to a change; None if they do not."""
    parts = torch.stack([a, m], dim=-1).double().transpose(1, 2)  # (input, feature, token, part)
    wanted = change.double().mT[..., None]
    factors = torch.linalg.lstsq(parts, wanted).solution
    size = wanted.norm().clamp_min(1e-300)
    shares = (parts * factors.mT).flatten(0, 2).norm(dim=0) / size
    fits = float((parts @ factors - wanted).norm() / size) <= _TOLERANCE
    return factors[..., 0] if fits and float(shares.min()) > _PART else None


_TOKENS = 4
"""Fewest tokens by which two factors of a feature are overdetermined."""

_FEATURES = 64
"""On how many features a pair of parts is tried first."""

_PART = 1e-3
"""What adds less than this share of the change is no part: the attention of such a block acts in another way."""


def _norm_after(inside: _Block, projected: int) -> Residual | None:
    last = inside.norm_giving(inside.y)
    if last is None:
        return None
    total = inside.states(last[0].x)
    for call, state in inside.outputs:
        if call.end >= last[0].start or call.end < projected:
            continue
        first = inside.norm_giving(state)
        if first is None:
            continue
        before = inside.states(first[0].x) - inside.x
        error, attention, (a,) = _best_one(inside, before, projected, first[0].start)
        wrong, feed_forward, (b,) = _best_one(inside, total - state, first[0].end, last[0].start)
        if attention is not None and feed_forward is not None and max(error, wrong) < _TOLERANCE:
            return Residual(
                kind="norm after",
                attention=inside.whole(attention),
                attention_factor=a,
                feed_forward=inside.whole(feed_forward),
                feed_forward_factor=b,
                attention_norm=inside.name(first[0]),
                norm=first[1],
                feed_forward_norm=inside.name(last[0]),
                after_attention=(inside.name(first[0]), "output"),
            )
    # An attention alone.
    error, attention, (a,) = _best_one(inside, total - inside.x, projected, last[0].start)
    if attention is None or error >= _TOLERANCE:
        return None
    return Residual(
        kind="norm after",
        attention=inside.whole(attention),
        attention_factor=a,
        attention_norm=inside.name(last[0]),
        norm=last[1],
        after_attention=(inside.name(last[0]), "output"),
    )


def _best_one(inside: _Block, target: Tensor, after: int, before: int) -> tuple[float, ModuleCall | None, list[float]]:
    fits = [
        (*inside.fit(target, [states]), call)
        for call, states in inside.outputs
        if after <= call.end and call.start < before
    ]
    if not fits:
        return 1.0, None, [0.0]
    error, factors, call = min(fits, key=lambda candidate: candidate[0])
    return error, call, factors
