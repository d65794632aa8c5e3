"""What the modules inside one block read and gave in a pass, and how sums of that come near a target."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._calls import ModuleCall, as_features
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._maps import Norm

TOLERANCE = 1e-5
"""Relative misfit of a sum in float32."""

_ROUNDINGS = 4.0
"""How many roundings of its own size a state may be off by, after two sums."""

_NEAR = 10.0
"""How many times too large a misfit may look before it is computed exactly."""


_MULTIPLE = 1e-3
"""Share of an output that must be beside its multiple of the block's input for it to be a part of a sum."""


class BlockOutputs:
    """The calls inside one block.

    Args:
        block: The block's call.
        calls: Of the whole pass.
        shape: Batch and tokens.
        any_skip: Whether sums may hold any multiple of what the block reads, which is fitted with them (`skip`).
    """

    def __init__(
        self, block: ModuleCall, calls: Sequence[ModuleCall], shape: tuple[int, int], *, any_skip: bool = False
    ) -> None:
        self.batch, self.tokens = shape
        self.any_skip = any_skip
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
        given = self.matrix(parts)
        factors = torch.linalg.lstsq(given, wanted[:, None]).solution
        misfit = (given @ factors)[:, 0] - wanted
        size = self._size(target)
        doubt = (TOLERANCE * size / given.norm(dim=0).clamp_min(1e-300)).clamp(10 * TOLERANCE, 0.1)
        # Whole numbers, within what a factor is known to.
        pairs = zip(factors[:, 0].tolist(), doubt.tolist(), strict=True)
        cleaned = [round(factor) * 1.0 if abs(factor - round(factor)) < known else factor for factor, known in pairs]
        return float(misfit.norm() / size.clamp_min(1e-300)), cleaned

    def skip(self, target: Tensor, parts: Sequence[Tensor], factors: Sequence[float]) -> float:
        """Return what multiplies the block's input beside multiples of parts in a sum."""
        given = self.x.flatten()[self.sample].double()
        left = target.double() - sum(factor * part.double() for factor, part in zip(factors, parts, strict=True))
        skip = float((left.flatten()[self.sample] * given).sum() / given.square().sum().clamp_min(1e-300))
        return round(skip) * 1.0 if abs(skip - round(skip)) < 10 * TOLERANCE else skip

    def matrix(self, several: Sequence[Tensor]) -> Tensor:
        """Return a sample of the entries of states, (entry, state), without multiples of the input where any fits."""
        return torch.stack([self._sampled(states) for states in several], dim=1)

    def reading_from(self, states: Tensor) -> BlockOutputs:
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
        return self._sampled(target).norm() + rounding / TOLERANCE

    def likely(self, target: Tensor, parts: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """Return the places of each part, then of each two, whose multiples come near a target: few of very many.

        All that is left of the target beside one part is compared with all that is left of the others at once.
        """
        wanted, most = self._sampled(target), _NEAR * TOLERANCE * self._size(target)
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
            if float((x - states).abs().max()) <= 10 * TOLERANCE * largest:
                return call, 1.0
            multiple = float((x.double() * states.double()).sum() / total) if self.any_skip else 0.0
            if multiple and float((x - multiple * states).abs().max()) <= 10 * TOLERANCE * abs(multiple) * largest:
                return call, multiple
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
            return bool((given - factor * other).norm() <= 10 * TOLERANCE * given.norm())

        earlier = [(earlier_call, y) for earlier_call, y in self.outputs if time < earlier_call.end < call.start]
        return any(scaled(y) and self.carries(earlier_call, time, projected) for earlier_call, y in earlier)

    def norm_giving(self, states: Tensor) -> tuple[ModuleCall, Norm] | None:
        """Return a norm whose output these states are."""
        for call, y in self.outputs:
            norm = call.norm if torch.equal(y, states) else None
            if norm is not None:
                return call, norm
        return None
