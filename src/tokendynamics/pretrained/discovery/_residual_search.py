"""Finds how a block adds its parts to what it reads, and where its state after the attention can be seen.

Sums whose factors are the same for all tokens are fitted to the recorded pass. Others, such as a highway's, are found
by trial: the block is run again with multiples of what its parts give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._calls import ModuleCall, Pass
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._fitted_sums import BlockRecord, beside_attention, fitted_sum
from tokendynamics.pretrained.discovery._trials import Repeated, acts_on, mixes_besides, proportional, repeated
from tokendynamics.pretrained.discovery.layout import Residual
from tokendynamics.words import listing

_NO_SUM = "the block's output is no sum of its input and of outputs of its modules, each times a factor"
"""What is said where parts are not found: gates need a module whose output each part is."""

_NOTHING = 1e-3
"""Norm, relative to the usual one, up to which states are taken for zero."""

_LEFT = 1e-4
"""Relative misfit of a multiple: above rounding, and above the epsilon of a norm."""

_MOST_PARTS = 16
"""How many modules are tried as parts of the feed-forward part: each is a few runs of the block."""

_Part: TypeAlias = tuple[str, float | None]
"""A module, and the factor of what it gives in a sum; None where it is not 1, or not known."""


def residual_of(
    block: ModuleCall, recorded: Pass, projected: int, time: int | None = None
) -> tuple[Residual | None, str]:
    """Find how a block adds its parts; None, and why, where its output is no such sum.

    Args:
        block: The block's call.
        recorded: The whole pass.
        projected: When the attention's output projection ended: its part of the block ends then or later.
        time: When the attention ran; None where it did not show.
    """
    try:
        return _residual(block, recorded, projected, time), ""
    except LayoutNotFoundError as problem:
        return None, str(problem)


def _residual(block: ModuleCall, recorded: Pass, projected: int, time: int | None) -> Residual:
    """Return how a block adds its parts.

    Raises:
        LayoutNotFoundError: The output is neither a multiple of x plus outputs of modules nor a norm of such sums.
    """
    inside = BlockRecord(block, recorded.calls, recorded.shape_of(block))
    if not bool(inside.x.any()):  # as of DETR's first block: any norm in it could be one of the sum
        raise LayoutNotFoundError("it reads zeros for every token, so what it adds to them is not found")
    residual = fitted_sum(inside, projected, time) or _by_trial(inside, projected, time)
    if residual is None:
        if not inside.unknown:
            raise LayoutNotFoundError(_NO_SUM)
        added, which = ("outputs", "which of them is") if inside.unknown[1:] else ("output", "whether that is")
        parts = listing(inside.unknown)
        raise LayoutNotFoundError(f"it adds the {added} of {parts}, and {which} its attention is not known")
    beside = beside_attention(inside, residual, projected, time)
    if beside is not None:
        raise LayoutNotFoundError(
            f"what {residual.attention} adds is the sum of its attention's part and of {beside}'s"
        )
    for part in (residual.attention, *residual.feed_forward_modules):
        # Projections of PyTorch's attention are calls of its name, each a module.
        ran = max(Counter(id(call.module) for call in inside.calls if inside.name(call) == part).values(), default=1)
        if part is not None and ran > [residual.attention, *residual.feed_forward_modules].count(part):
            # A gate would act on all of its outputs.
            raise LayoutNotFoundError(f"what it adds comes from {part}, which runs {ran} times in it")
    return residual


def _by_trial(inside: BlockRecord, projected: int, time: int | None) -> Residual | None:
    """Return a sum whose factors depend on the token, such as a highway's, found by multiplying what its parts give.

    The attention is a part if the states that are read after it, or else the block's output, are a sum with what its
    module gives; the feed-forward part likewise. Without both, a multiple of the block's input, or of a norm of it, has
    to be left.

    Args:
        inside: What its modules gave.
        projected: When the attention's output projection ended.
        time: When the attention ran; None where it did not show.

    Raises:
        LayoutNotFoundError: What the attention adds is not proportional to what its module gives.
    """
    usual = repeated(inside.block, {})
    if time is None or usual is None or usual.y.shape != inside.y.shape:
        return None
    attending = [call for call, _ in inside.outputs if call.end >= projected and inside.carries(call, time, projected)]
    attending += [
        call for call in inside.calls if call.norm is not None and any(call.reads_from(other) for other in attending)
    ]
    added_by = cache(partial(_added_by, inside, usual))  # the same for every module that may give the attention's part
    reads_sum = False
    for call in sorted(attending, key=lambda candidate: -candidate.end):
        after = _after_attention(inside, usual, call)
        reads_sum = reads_sum or after is not None
        parts = None if after is None else _feed_forward_by_trial(inside, added_by, inside.whole(call), time)
        if after is not None and parts is not None:
            attention = (inside.whole(call), after[1])
            kept = _kept_of(inside, usual, [name for name, _ in (attention, *parts)])
            if kept is not None:
                return _with_factors_by_token(inside, attention, parts, after[0], kept)
    if attending and not reads_sum:
        name = inside.whole(min(attending, key=lambda call: call.end))
        raise LayoutNotFoundError(f"{_NO_SUM}, and what {name} adds to it is not proportional to what it gives")
    return None


def _with_factors_by_token(
    inside: BlockRecord, attention: _Part, parts: Sequence[_Part], reader: str | None, kept: tuple[str, bool]
) -> Residual:
    """Return a sum whose factors may depend on the token.

    Args:
        inside: What the modules of the block gave.
        attention: Of its attention.
        parts: Of its feed-forward part.
        reader: What reads the state after the attention; None where nothing does.
        kept: What gives the state that is kept, empty for the block's input; and whether all of it is.
    """
    skip = 1.0 if kept[1] else None
    normed = reader is not None and kept[0] == reader  # the state continues from the norm behind the attention
    last = parts[-1] if parts else None
    norms = {inside.name(call): call.norm for call in inside.calls if call.norm is not None}
    norm = reader if normed else attention[0] if attention[0] in norms else None
    return Residual(
        kind="norm after" if normed else "added",
        attention=attention[0],
        attention_factor=attention[1],
        feed_forward=None if last is None else last[0],
        feed_forward_factor=None if last is None else last[1],
        further=tuple(parts[:-1]),
        attention_skip=skip,
        feed_forward_skip=skip,
        parallel=bool(parts) and reader is None,
        attention_norm=norm,
        norm=None if norm is None else norms[norm],
        feed_forward_norm=last[0] if last is not None and last[0] in norms else None,
        by_token=True,
        after_attention=None if reader is None else (reader, "output" if normed else "input"),
    )


class _Multiplied:
    """Runs of a block with multiples of what some modules give, each made when it is asked for."""

    def __init__(self, inside: BlockRecord, names: Sequence[str]) -> None:
        self._block, self._names, self._runs = inside.block, names, dict[float, Repeated | None]()

    def at(self, factor: float) -> Repeated | None:
        """Return the run with this factor; None where the block cannot be run by itself."""
        if factor not in self._runs:
            self._runs[factor] = repeated(self._block, dict.fromkeys(self._names, factor))
        return self._runs[factor]

    def proportional(self, none: Tensor, whole: Tensor, states_of: Callable[[Repeated], Tensor | None]) -> bool:
        """Tell whether some states are a sum with the part, from those without it and those with the whole."""

        def states(factor: float) -> Tensor | None:
            run = self.at(factor)
            return None if run is None else states_of(run)

        return proportional(none, partial(states, 0.5), whole, partial(states, 2.0))


def _after_attention(inside: BlockRecord, usual: Repeated, call: ModuleCall) -> tuple[str | None, float | None] | None:
    """Return what reads the state after an attention, None where nothing does, and the attention's factor in it.

    Args:
        inside: What the modules of the block gave.
        usual: What they give when it is run again.
        call: Gives the attention's part.

    Returns:
        None where the state is no sum with the part.
    """
    runs = _Multiplied(inside, [inside.whole(call)])
    without = runs.at(0.0)
    if without is None:
        return None
    for reader in sorted(inside.calls, key=lambda candidate: candidate.start):
        name = inside.name(reader)
        none, whole = without.read.get(name), usual.read.get(name)
        if reader.start < call.end or none is None or whole is None or not none.shape == whole.shape == inside.x.shape:
            continue
        # What reads the part alone, such as its gate, reads nothing without it.
        if not torch.equal(none, whole) and float(none.norm()) > _NOTHING * float(whole.norm()):
            is_sum = runs.proportional(none, whole, partial(_read_by, name))
            return (name, _factor(inside, call, whole - none)) if is_sum else None
    if torch.equal(without.y, usual.y) or not runs.proportional(without.y, usual.y, _output_of):
        return None
    return None, _factor(inside, call, usual.y - without.y)


def _read_by(name: str, run: Repeated) -> Tensor | None:
    return run.read.get(name)


def _output_of(run: Repeated) -> Tensor:
    return run.y


def _factor(inside: BlockRecord, call: ModuleCall, added: Tensor) -> float | None:
    """Return 1 if what a module gives is what is added to the state, else None."""
    given = inside.states(call.y)
    return 1.0 if float((added - given).norm()) <= _LEFT * float(given.norm()) else None


def _feed_forward_by_trial(
    inside: BlockRecord, added_by: Callable[[tuple[str, ...]], Tensor | None], attention: str, time: int
) -> list[_Part] | None:
    """Return the modules that give the feed-forward part, in the order in which they ran; None where they are no sum.

    Args:
        inside: What the modules of the block gave.
        added_by: Returns what modules add to the block's output; see `_added_by`.
        attention: Gives the attention's part.
        time: When the attention ran.
    """
    outer: list[ModuleCall] = []
    for call, states in sorted(inside.outputs, key=lambda part: (part[0].start, -part[0].end)):
        whole = call.is_open(time) or torch.equal(states, inside.y) or inside.name(call) == attention
        if not whole and not any(call.is_inside(other) for other in outer):
            outer.append(call)
    calls = {inside.name(call): call for call in outer}
    if len(calls) > _MOST_PARTS:
        return None
    added = {name: what for name in calls if (what := added_by((name,))) is not None}
    names = [name for name in added if not any(acts_on(inside.block, name, other) for other in added if other != name)]
    names = [name for name in names if not _through(inside, name, attention)]
    for name in names:
        ahead = acts_on(inside.block, name, attention) is not False
        if ahead or mixes_besides(inside.block, attention, name):
            return None
    if names and added_by(tuple(names)) is None:
        return None
    return [(name, _factor(inside, calls[name], added[name])) for name in names]


def _through(inside: BlockRecord, name: str, attention: str) -> bool:
    """Whether a module changes the block's output through the attention's part alone, as the values do."""
    without, neither = (repeated(inside.block, dict.fromkeys(names, 0.0)) for names in ([attention], [attention, name]))
    return without is not None and neither is not None and torch.equal(without.y, neither.y)


def _added_by(inside: BlockRecord, usual: Repeated, names: Sequence[str]) -> Tensor | None:
    """Return what some modules add to the block's output; None where it is no sum with that and something else."""
    runs = _Multiplied(inside, names)
    without = runs.at(0.0)
    if without is None or torch.equal(without.y, usual.y):
        return None
    if float(without.y.norm()) <= _NOTHING * float(usual.y.norm()):
        return None
    return usual.y - without.y if runs.proportional(without.y, usual.y, _output_of) else None


def _kept_of(inside: BlockRecord, usual: Repeated, parts: Sequence[str]) -> tuple[str, bool] | None:
    """Return of what a block gives a multiple without its parts, or norms of that by functions.

    All other modules give what they gave: a multiple is one by numbers that they make, such as a highway's gates. It is
    the negative one for the negative input: then nothing else is added, also where a norm follows.

    Args:
        inside: What its modules gave.
        usual: What they give when it is run again.
        parts: The modules that give its parts.

    Returns:
        The name of a norm, or an empty one for the block's input, and whether it is the input itself; None where it
        gives something else besides.
    """
    within = tuple(f"{part}." for part in parts)
    held = {name: gave for name, gave in usual.gave.items() if name not in parts and not name.startswith(within)}
    none = dict.fromkeys(parts, 0.0)
    left = repeated(inside.block, none, held)
    if left is None or float(left.y.norm()) <= _NOTHING * float(usual.y.norm()):
        return None
    y, near = left.y, _LEFT * float(left.y.norm())
    norms = [inside.name(call) for call in inside.calls if call.norm is not None]
    for carrier in ("", *dict.fromkeys(norms)):
        runs = [repeated(inside.block, none, held, (carrier, factor)) for factor in (-1.0, 2.0)]
        negative, twice = (None if run is None else run.y for run in runs)
        if negative is None or twice is None or float((negative + y).norm()) > near:
            continue
        linear = float((twice - 2 * y).norm()) <= near
        if linear or float((twice - y).norm()) <= near:  # a norm of it
            return carrier, linear and not carrier and float((y - inside.x).norm()) <= near
    return None
