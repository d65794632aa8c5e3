"""Finds how a block's output is a sum of what it reads and of what its modules give, each times a factor.

Factors are numbers, or one for each feature. They are fitted by least squares to one recorded pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._calls import ModuleCall
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._maps import Norm, norms_by_function
from tokendynamics.pretrained.discovery._trials import (
    acts_besides,
    acts_on,
    acts_without_attention,
    mixes_besides,
    take_tokens_apart,
)
from tokendynamics.pretrained.discovery.attention_call import as_features
from tokendynamics.pretrained.discovery.layout import Residual

_TOLERANCE = 1e-5
"""Relative misfit of a sum in float32."""

_ROUNDINGS = 4.0
"""How many roundings of its own size a state may be off by, after two sums."""

_NEAR = 10.0
"""How many times too large a misfit may look before it is computed exactly."""

_MULTIPLE = 1e-3
"""Share of an output that must be beside its multiple of the block's input for it to be a part of a sum."""

_BETTER = 0.5
"""A second part counts if the misfit without it is at least twice as large; others change it by a thousandth."""

_LEAST_SKIP = 1e-3
"""A block that keeps less than this of its state does not add to it."""

_TERM = 1e-4
"""What adds less than this share of a sum is no part of it."""

_DEPENDENT = 1e-5
"""Singular value, relative to the largest, below which outputs of unit norm depend on each other."""

_TOKENS = 4
"""Fewest tokens by which two factors of a feature are overdetermined."""

_FEATURES = 64
"""On how many features a pair of parts is tried first."""

_PART = 1e-3
"""What adds less than this share of the change is no part: the attention of such a block acts in another way."""


class BlockRecord:
    """What the modules inside one block read and gave in a recorded pass.

    Args:
        block: The block's call.
        calls: Of the whole pass.
        shape: Batch and tokens.

    Attributes:
        any_skip: Whether sums may hold any multiple of what the block reads, which is fitted with them (`skip`).
        unknown: Parts of a sum that was found, where none of them is known to be the attention's.

    Raises:
        LayoutNotFoundError: The block does not give one finite state for each that it reads.
    """

    def __init__(self, block: ModuleCall, calls: Sequence[ModuleCall], shape: tuple[int, int]) -> None:
        self.batch, self.tokens = shape
        self.any_skip = False
        self.unknown: list[str] = []
        self.block = block
        self.x, self.y = self.states(block.x), self.states(block.y)
        if self.x.shape != self.y.shape:
            raise LayoutNotFoundError(f"{block.name} gives other numbers of tokens or features than it reads")
        if not bool(torch.isfinite(self.x).all() and torch.isfinite(self.y).all()):
            raise LayoutNotFoundError(f"{block.name} gives states that are not finite")
        self.calls = [call for call in calls if call.is_inside(block)]
        self.outputs = [(call, states) for call in self.calls if (states := self._alike(call.y)) is not None]
        generator = torch.Generator().manual_seed(0)
        some = min(self.y.numel(), 4096)
        self.sample = torch.randperm(self.y.numel(), generator=generator)[:some]

    def states(self, tensor: Tensor | None) -> Tensor:
        """Return one state for each token, (input, token, feature); refuse what has none."""
        states = as_features(tensor, self.batch, self.tokens)
        if states is None:
            raise LayoutNotFoundError(f"{self.block.name} does not pass on one state for each token")
        return states

    def _alike(self, tensor: Tensor | None) -> Tensor | None:
        states = as_features(tensor, self.batch, self.tokens)
        return states if states is not None and states.shape == self.x.shape else None

    def name(self, call: ModuleCall) -> str:
        """Return the name of a call's module within the block."""
        return call.name_in(self.block.name)

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
        given = self.matrix(parts)
        factors = torch.linalg.lstsq(given, wanted[:, None]).solution
        misfit = (given @ factors)[:, 0] - wanted
        size = self._size(target)
        doubt = (_TOLERANCE * size / given.norm(dim=0).clamp_min(1e-300)).clamp(10 * _TOLERANCE, 0.1)
        # Whole numbers, within what a factor is known to; of others the digits that single precision has.
        pairs = zip((float(f"{factor:.7g}") for factor in factors[:, 0].tolist()), doubt.tolist(), strict=True)
        cleaned = [round(factor) * 1.0 if abs(factor - round(factor)) < known else factor for factor, known in pairs]
        return float(misfit.norm() / size.clamp_min(1e-300)), cleaned

    def skip(self, target: Tensor, parts: Sequence[Tensor], factors: Sequence[float]) -> float:
        """Return what multiplies the block's input beside multiples of parts in a sum."""
        given = self.x.flatten()[self.sample].double()
        left = target.double() - sum(factor * part.double() for factor, part in zip(factors, parts, strict=True))
        skip = float((left.flatten()[self.sample] * given).sum() / given.square().sum().clamp_min(1e-300))
        return round(skip) * 1.0 if abs(skip - round(skip)) < 10 * _TOLERANCE else skip

    def matrix(self, several: Sequence[Tensor]) -> Tensor:
        """Return a sample of the entries of states, (entry, state), without multiples of the input where any fits."""
        return torch.stack([self._sampled(states) for states in several], dim=1)

    def with_any_skip(self) -> BlockRecord:
        """Return the same for sums that hold any multiple of what the block reads."""
        other = copy(self)
        other.any_skip = True
        return other

    def reading_from(self, states: Tensor) -> BlockRecord:
        """Return the same for what the block does from a later state on."""
        later = copy(self)
        later.x = states
        return later

    def counts(self, states: Tensor) -> bool:
        """Return whether an output is more than a multiple of the block's input, where that is fitted too."""
        sample = states.flatten()[self.sample].double()
        return not self.any_skip or float(self._sampled(states).norm()) > _MULTIPLE * float(sample.norm())

    def _sampled(self, states: Tensor) -> Tensor:
        sample = states.flatten()[self.sample].double()
        if not self.any_skip:
            return sample
        given = self.x.flatten()[self.sample].double()
        return sample - (sample @ given) / given.square().sum().clamp_min(1e-300) * given

    def _size(self, target: Tensor) -> Tensor:
        """Return what a misfit is relative to: the size of a difference of two states, and that of their rounding."""
        rounding = _ROUNDINGS * torch.finfo(target.dtype).eps * self.x.flatten()[self.sample].double().norm()
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
        read = self.reading_multiple(states)
        return read[0] if read is not None and read[1] == 1.0 else None

    def reading_multiple(self, states: Tensor) -> tuple[ModuleCall, float] | None:
        """Return the first module that reads a multiple of these states, and which; 1 alone where no other fits."""
        largest, total = float(states.abs().max()), states.double().square().sum().clamp_min(1e-300)
        for call in self.calls:
            x = self._alike(call.x)
            if x is None:
                continue
            if float((x - states).abs().max()) <= 10 * _TOLERANCE * largest:
                return call, 1.0
            multiple = float((x.double() * states.double()).sum() / total) if self.any_skip else 0.0
            if multiple and float((x - multiple * states).abs().max()) <= 10 * _TOLERANCE * abs(multiple) * largest:
                return call, multiple
        return None

    def normalizes(self, states: Tensor) -> bool:
        """Return whether a module reads these states as a function normalizes them, without a gain."""
        forms = [norm.apply(states, None, None) for norm in norms_by_function(states.shape[-1])]
        read = [x for call in self.calls if (x := self._alike(call.x)) is not None]
        return any(
            float((x - form).abs().max()) <= 10 * _TOLERANCE * float(x.abs().max()) for form in forms for x in read
        )

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
        attending = [other for other, y in self.outputs if other.is_open(time) and torch.equal(y, states)]
        if attending:
            return not any(map(self.holds_its_input, attending))
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

    def holds_its_input(self, call: ModuleCall) -> bool:
        """Return whether a module gives the states that it reads plus what a module inside gives, or a norm of that."""
        x, norm = self._alike(call.x), self.norm_giving(self.states(call.y))
        total = norm[0].x if norm is not None and norm[0].is_inside(call) else call.y
        if x is None or total is None:
            return False
        wanted, later = self.states(total) - x, self.reading_from(x)
        later.any_skip = False
        inner = (states for other, states in self.outputs if other.is_inside(call))
        return any(later.fit(wanted, [states])[0] < _TOLERANCE for states in inner)

    def norm_giving(self, states: Tensor) -> tuple[ModuleCall, Norm] | None:
        """Return a norm whose output these states are."""
        for call, y in self.outputs:
            norm = call.norm if torch.equal(y, states) else None
            if norm is not None:
                return call, norm
        return None

    def behind(self, states: Tensor) -> tuple[ModuleCall, Norm | None] | None:
        """Return a norm whose output these states are, or a batch norm, which in evaluation is an affine map."""
        batch = (call for call, y in self.outputs if torch.equal(y, states) and _is_batch_norm(call.module))
        norm = self.norm_giving(states)
        return norm if norm is not None else next(((call, None) for call in batch), None)


def _is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is a batch norm, alone or between modules without weights, such as those that turn axes."""
    holding = [part for part in module.modules() if any(True for _ in part.parameters(recurse=False))]
    return len(holding) == 1 and isinstance(holding[0], nn.BatchNorm1d)


def fitted_sum(inside: BlockRecord, projected: int, time: int | None) -> Residual | None:
    """Return how a block adds its parts; None where its output is no sum with such factors.

    Args:
        inside: What its modules gave.
        projected: When the attention's output projection ended: its part of the block ends then or later.
        time: When the attention ran; None where it did not show.

    Raises:
        LayoutNotFoundError: It is a sum whose parts gates cannot act on.
    """
    whole = None
    for record in (inside, inside.with_any_skip()):
        # A norm that scales all tokens alike can be written as a sum, but no sum gives what a norm gives.
        residual = _norm_after(record, projected) or _added(record, projected, time)
        if residual is None and not record.any_skip:
            residual = _added_by_feature(record, projected, time)
        if residual is not None and beside_attention(record, residual, projected, time) is None:
            return residual
        whole = residual or whole
    return _of_several_parts(record, projected, time) or whole


def beside_attention(inside: BlockRecord, residual: Residual, projected: int, time: int | None) -> str | None:
    """Return what adds a part of each token to what the module of an attention's part gives; None where nothing does.

    Args:
        inside: What the modules of the block gave.
        residual: How it adds its parts.
        projected: When the attention's output projection ended.
        time: When the attention ran; None where it did not show.
    """
    several = (call for call in inside.calls if inside.name(call) == residual.attention)
    sums = (_sum_inside(inside, call, projected, time) for call in several)
    return next((inside.name(parts[1][0]) for parts in sums if parts is not None), None)


def _added(inside: BlockRecord, projected: int, time: int | None) -> Residual | None:
    target = inside.y if inside.any_skip else inside.y - inside.x
    # What gives the whole state is no part of it: with an attention that gives x, y = x + y − x would fit as well.
    outputs = [part for part in inside.outputs if not torch.equal(part[1], inside.y) and inside.counts(part[1])]
    best: tuple[float, tuple[ModuleCall, ...], list[float]] = (_TOLERANCE, (), [])
    for places in inside.likely(target, [states for _, states in outputs]) if outputs else ():
        error, factors = inside.fit(target, [outputs[place][1] for place in places])
        if error < _BETTER * best[0] or (not best[1] and error < best[0]):
            best = error, tuple(outputs[place][0] for place in places), factors
    calls, factors = tuple(inside.outermost(call) for call in best[1]), best[2]
    if not calls:
        return None
    order = sorted(range(len(calls)), key=lambda index: calls[index].end)
    late = _attending(inside, [calls[index] for index in order], projected, time)
    if not late:
        return None
    first = calls.index(late[0])
    other = next((index for index in order if index != first), None)
    skip = 1.0
    if inside.any_skip:
        skip = inside.skip(inside.y, [inside.states(call.y) for call in calls], factors)
        if abs(skip) < _LEAST_SKIP:  # a part that holds the state itself
            return None
    attention, a = calls[first], factors[first]
    if other is None and (inner := _sum_inside(inside, attention, projected, time)) is not None:
        (attention, b), (beside, c) = inner
        return _in_order(inside, (attention, a * b), (beside, a * c), skip)
    return _in_order(inside, (attention, a), None if other is None else (calls[other], factors[other]), skip)


def _attending(inside: BlockRecord, calls: Sequence[ModuleCall], projected: int, time: int | None) -> list[ModuleCall]:
    """Return which parts of a sum come from an attention alone, or the first through which tokens act on each other.

    Args:
        inside: What the modules of the block gave.
        calls: Of the modules that give the parts.
        projected: When the attention's output projection ended.
        time: When the attention ran; None where it did not show.
    """
    late = [call for call in calls if call.end >= projected and inside.carries(call, time, projected)]
    if late or time is None:
        return late
    for call in calls:
        others = (other.name for other in calls if other is not call)
        if call.start > time and not any(mixes_besides(inside.block, call.name, name) for name in others):
            behind = [other for other in inside.calls if time < other.start and other.end <= call.end]
            outer = (inside.name(other) for other in behind if not any(map(other.is_inside, behind)))
            apart = take_tokens_apart(inside.block, list(dict.fromkeys(outer)))  # no recurrence behind the attention
            if apart and not acts_without_attention(inside.block, call.name):
                return [call]
    inside.unknown[:] = [inside.name(call) for call in calls]
    return []


def _sum_inside(
    inside: BlockRecord, attention: ModuleCall, projected: int, time: int | None
) -> list[tuple[ModuleCall, float]] | None:
    """Return the parts, with factors, where what gives an attention's part adds a part of each token to it.

    Args:
        inside: What the modules of the block gave.
        attention: The call that gives the part.
        projected: When the attention's output projection ended.
        time: When the attention ran; None where it did not show.

    Returns:
        The attention's own part and the other one; None where there are no two such parts.
    """
    if time is None or not attention.is_open(time):
        return None
    target, alone = inside.states(attention.y), copy(inside)
    alone.any_skip = False
    inner = [part for part in inside.outputs if part[0].is_inside(attention)]
    places = alone.likely(target, [states for _, states in inner]) if inner else []
    if any(len(several) == 1 for several in places):
        return None
    for several in places:
        parts = [inner[place] for place in several]
        error, factors = alone.fit(target, [states for _, states in parts])
        calls = [alone.outermost(call) for call, _ in parts]
        late = [call for call in calls if call.end >= projected and alone.carries(call, time, projected)]
        if error >= _TOLERANCE or len(late) != 1:
            continue
        first = calls.index(late[0])
        other = calls[1 - first]
        if acts_besides(inside.block, late[0].name, other.name) == "its token":  # an adapter of the attention: nothing
            return [(late[0], factors[first]), (other, factors[1 - first])]
    return None


def _in_order(
    inside: BlockRecord, attention: tuple[ModuleCall, float], other: tuple[ModuleCall, float] | None, skip: float
) -> Residual:
    """Return a sum of two parts with what is known of their order."""
    call, a = attention
    states = inside.states(call.y)
    read = inside.reading_multiple(skip * inside.x + a * states)
    acting, multiple = False, 1.0 if read is None else read[1]
    ahead: tuple[str, ...] = ()
    where: tuple[str, Literal["input", "output", "sum"]] | None
    where = (inside.whole(call), "sum") if read is None else (inside.name(read[0]), "input")
    if read is None and other is not None:
        names = call.name, other[0].name
        before = inside.reading_multiple(skip * inside.x + other[1] * inside.states(other[0].y)) is not None
        acting = acts_on(inside.block, *names) is True
        if before or acts_on(inside.block, *reversed(names)) is True:
            ahead, where = (inside.whole(other[0]),), None
    if where is not None and where[1] == "sum" and skip != 1.0:
        where = ("", "output") if other is None else None  # the multiple that it stands for is not known
    norm_call = inside.norm_giving(states)
    last = None if other is None else inside.norm_giving(inside.states(other[0].y))
    return Residual(
        kind="added",
        attention=inside.whole(call),
        attention_factor=a * multiple,
        feed_forward=None if other is None else inside.whole(other[0]),
        feed_forward_factor=1.0 if other is None else other[1],
        ahead=ahead,
        attention_skip=skip * multiple,
        feed_forward_skip=1.0 / multiple,
        parallel=other is not None and read is None and not ahead and not acting,
        attention_norm=None if norm_call is None else inside.name(norm_call[0]),
        norm=None if norm_call is None else norm_call[1],
        feed_forward_norm=None if last is None else inside.name(last[0]),
        after_attention=where,
    )


def _added_by_feature(inside: BlockRecord, projected: int, time: int | None) -> Residual | None:
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


def _norm_after(inside: BlockRecord, projected: int) -> Residual | None:
    last = inside.behind(inside.y)
    if last is None:
        return None
    total = inside.states(last[0].x)
    for call, state in inside.outputs:
        if call.end >= last[0].start or call.end < projected:
            continue
        first = inside.behind(state)
        if first is None:
            continue
        error, attention, a, skip = _best_one(inside, inside.states(first[0].x), projected, first[0].start)
        second = inside.reading_from(state)
        wrong, feed_forward, b, later_skip = _best_one(second, total, first[0].end, last[0].start)
        if attention is not None and feed_forward is not None and max(error, wrong) < _TOLERANCE:
            return Residual(
                kind="norm after",
                attention=inside.whole(attention),
                attention_factor=a,
                feed_forward=inside.whole(feed_forward),
                feed_forward_factor=b,
                attention_skip=skip,
                feed_forward_skip=later_skip,
                attention_norm=inside.name(first[0]),
                norm=first[1],
                feed_forward_norm=inside.name(last[0]),
                after_attention=(inside.name(first[0]), "output"),
            )
    # An attention alone.
    error, attention, a, skip = _best_one(inside, total, projected, last[0].start)
    if attention is None or error >= _TOLERANCE:
        return None
    return Residual(
        kind="norm after",
        attention=inside.whole(attention),
        attention_factor=a,
        attention_skip=skip,
        attention_norm=inside.name(last[0]),
        norm=last[1],
        after_attention=(inside.name(last[0]), "output"),
    )


def _best_one(
    inside: BlockRecord, total: Tensor, after: int, before: int
) -> tuple[float, ModuleCall | None, float, float]:
    """Return the misfit of a sum of the state and one part, the part, its factor, and that of the state."""
    target = total if inside.any_skip else total - inside.x
    fits = [
        (*inside.fit(target, [states]), call, states)
        for call, states in inside.outputs
        if after <= call.end and call.start < before and inside.counts(states)
    ]
    if not fits:
        return 1.0, None, 0.0, 1.0
    error, factors, call, states = min(fits, key=lambda candidate: candidate[0])
    skip = inside.skip(total, [states], factors) if inside.any_skip else 1.0
    return error if abs(skip) >= _LEAST_SKIP else 1.0, call, factors[0], skip


@dataclass(frozen=True)
class _SeveralParts:
    """A sum of the state, an attention and several modules that act on each token by itself.

    Attributes:
        attention: The call that gives the attention's part, and its factor.
        others: Those of the feed-forward part, in the order in which they ran, with their factors.
        ahead: How many of them act before the attention.
        skip: What multiplies the block's input.
        after: What reads the state after the attention, and which multiple of the sum until there it reads; None where
            nothing does.
        norm: The norm that reads the sum and gives the block's output; None without.
    """

    attention: tuple[ModuleCall, float]
    others: tuple[tuple[ModuleCall, float], ...]
    ahead: int
    skip: float
    after: tuple[ModuleCall, float] | None
    norm: ModuleCall | None


def _of_several_parts(inside: BlockRecord, projected: int, time: int | None) -> Residual | None:
    """Return a sum of an attention and several parts of a feed-forward part, or a norm of such a sum."""
    terms = _several_parts(inside, projected, time)
    if terms is None:
        return None
    (attention, a), read = terms.attention, terms.after
    names = [(inside.whole(call), factor) for call, factor in terms.others]
    multiple = 1.0 if read is None else read[1]
    norm = inside.norm_giving(inside.states(attention.y))
    name, b = names[-1]
    return Residual(
        kind="added" if terms.norm is None else "norm after",
        attention=inside.whole(attention),
        attention_factor=a * multiple,
        feed_forward=name,
        feed_forward_factor=b,
        further=tuple(names[:-1]),
        ahead=tuple(name for name, _ in names[: terms.ahead]),
        attention_skip=terms.skip * multiple,
        feed_forward_skip=1.0 / multiple,
        parallel=read is None and not terms.ahead,
        attention_norm=None if norm is None else inside.name(norm[0]),
        norm=None if norm is None else norm[1],
        feed_forward_norm=None if terms.norm is None else inside.name(terms.norm),
        after_attention=None if read is None else (inside.name(read[0]), "input"),
    )


def _several_parts(inside: BlockRecord, projected: int, time: int | None) -> _SeveralParts | None:
    """Return the parts of a block's sum; None where its output is no such sum.

    Args:
        inside: What its modules gave.
        projected: When the attention's output projection ended.
        time: When the attention ran; None where it did not show.

    Raises:
        LayoutNotFoundError: It is a sum, but of other parts than an attention and what acts on each token by itself.
    """
    last = inside.norm_giving(inside.y)
    total = inside.y if last is None else inside.states(last[0].x)
    outer, skip = _terms(inside, total)
    parts = list[tuple[ModuleCall, float]]()
    for call, factor in outer:
        inner = _sum_inside(inside, call, projected, time)
        parts += [(call, factor)] if inner is None else [(other, factor * times) for other, times in inner]
    parts.sort(key=lambda part: part[0].end)
    if time is None or len(parts) < 2:
        return None
    late = _attending(inside, [call for call, _ in parts], projected, time)
    others = [part for part in parts if part[0] not in late]
    if len(late) != 1:
        return None
    mixing = [inside.name(call) for call, _ in others if mixes_besides(inside.block, late[0].name, call.name)]
    if mixing:
        names = ", ".join(inside.name(call) for call, _ in parts)
        raise LayoutNotFoundError(
            f"it adds the outputs of {len(parts)} modules ({names}), of which {mixing[0]} may act on other tokens "
            "besides the attention: gates stand on one attention and on what acts on each token by itself"
        )
    attention = next(part for part in parts if part[0] is late[0])
    ahead = [part for part in others if acts_on(inside.block, part[0].name, attention[0].name) is not False]
    after = _check_streams(inside, parts, attention, skip)
    norm = None if last is None else last[0]
    return _SeveralParts(attention, tuple(others), len(ahead), skip, None if ahead else after, norm)


def _terms(inside: BlockRecord, total: Tensor) -> tuple[list[tuple[ModuleCall, float]], float]:
    """Return the outermost modules whose outputs, times factors, add up to a sum with the state; and its factor."""
    outputs: list[tuple[ModuleCall, Tensor]] = []
    for call, states in sorted(inside.outputs, key=lambda part: part[0].start):
        usual = torch.equal(states, total) or torch.equal(states, inside.y) or not inside.counts(states)
        same = any(torch.equal(states, other) for _, other in outputs)
        within = any(call.is_inside(other) for other, _ in outputs)
        if not usual and not same and not within and not inside.holds_its_input(call):
            outputs.append((call, states))
    if len(outputs) < 2:
        return [], 1.0
    matrix, wanted = inside.matrix([states for _, states in outputs]), inside.matrix([total])
    size = matrix.norm(dim=0).clamp_min(1e-300)
    values = torch.linalg.svdvals(matrix / size)
    if len(matrix) <= len(outputs) or float(values[-1]) < _DEPENDENT * float(values[0]):
        return [], 1.0
    factors = torch.linalg.lstsq(matrix, wanted).solution[:, 0]
    chosen = [part for part, there in zip(outputs, factors.abs() * size > _TERM * wanted.norm(), strict=True) if there]
    if not chosen:
        return [], 1.0
    error, known = inside.fit(total, [states for _, states in chosen])
    skip = inside.skip(total, [states for _, states in chosen], known)
    if error > _TOLERANCE or abs(skip) < _TERM:
        return [], 1.0
    parts = sorted(zip((call for call, _ in chosen), known, strict=True), key=lambda part: part[0].end)
    return parts, skip


def _check_streams(
    inside: BlockRecord, parts: Sequence[tuple[ModuleCall, float]], attention: tuple[ModuleCall, float], skip: float
) -> tuple[ModuleCall, float] | None:
    """Return what reads the state after the attention; refuse parts that act on later ones otherwise than by the state.

    A factor on the outputs of both would count twice then.
    """
    state, after = skip * inside.x, None
    for place, (call, factor) in enumerate(parts[:-1]):
        state = state + factor * inside.states(call.y)
        read = inside.reading_multiple(state)
        if call is attention[0]:
            after = read
        later = (part.name for part, _ in parts[place + 1 :])
        if (
            read is None
            and not inside.normalizes(state)
            and any(acts_on(inside.block, call.name, name) is not False for name in later)
        ):
            raise LayoutNotFoundError(
                f"{inside.name(call)} acts on further parts of the sum, and no module reads the state after it: "
                "gates cannot act on it alone"
            )
    return after
