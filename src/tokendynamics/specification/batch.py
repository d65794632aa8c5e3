"""Systems of several files, or some systems of one, as one batch that is simulated together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.attention.schedules import Constant, Schedule
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Ellipsoid, Space
from tokendynamics.specification.build import Setup


def selected(setup: Setup, systems: Tensor) -> Setup:
    """Return some systems of a batch, by index."""
    flow = setup.flow
    space = flow.space
    if isinstance(space, Ellipsoid) and space.metric is not None and space.metric.ndim > 2:
        space = Ellipsoid(space.metric[systems])
    chosen = Flow(flow.attention.select(systems), space, projection=flow.projection)
    return replace(setup, flow=chosen, start=setup.start[systems])


def joined(setups: Iterable[Setup]) -> Iterator[Setup]:
    """Join neighbours that can be simulated together: of one shape, with constant matrices and the same options."""
    group: list[Setup] = []
    for setup in setups:
        if group and not _joinable(group[0], setup):
            yield _batch(group)
            group = []
        group.append(setup)
    if group:
        yield _batch(group)


def _joinable(one: Setup, other: Setup) -> bool:
    return (
        one.start.shape[1:] == other.start.shape[1:]
        and one.times.tolist() == other.times.tolist()
        and (one.events, one.options) == (other.events, other.options)
        and one.flow.projection == other.flow.projection
        and _attention_options(one.flow.attention) == _attention_options(other.flow.attention)
        and one.flow.attention.qk.shape[-3:] == other.flow.attention.qk.shape[-3:]
        and _constant(one.flow.attention)
        and _constant(other.flow.attention)
        and type(one.flow.space) is type(other.flow.space)
    )


def _attention_options(attention: Attention) -> tuple[object, ...]:
    positions = attention.positions
    rotary: tuple[object, ...] = ()
    if isinstance(positions, RotaryPositions):
        rotary = positions.base, positions.scale, positions.query.shape[-2:]
    return attention.causal, attention.weights, attention.normalization, type(positions), *rotary


def _constant(attention: Attention) -> bool:
    """Tell whether everything is a dense matrix that does not depend on time."""
    known = attention.positions is None or isinstance(attention.positions, RotaryPositions)
    return known and all(isinstance(schedule, Constant) for schedule in attention.schedules)


def _batch(setups: Sequence[Setup]) -> Setup:
    if len(setups) == 1:
        return setups[0]
    attentions, first = [setup.flow.attention for setup in setups], setups[0]
    counts = [len(setup.start) for setup in setups]
    positions = first.flow.attention.positions
    if isinstance(positions, RotaryPositions):
        turning = [each.positions for each in attentions if isinstance(each.positions, RotaryPositions)]
        query, key = (_matrices([getattr(each, side) for each in turning], counts) for side in ("query", "key"))
        positions = positions.with_schedules(query, key)
    qk, ov = (_matrices([getattr(each, name) for each in attentions], counts) for name in ("qk", "ov"))
    flow = Flow(
        first.flow.attention.with_schedules(qk, ov, positions),
        _space([setup.flow.space for setup in setups], counts),
        projection=first.flow.projection,
    )
    return replace(first, flow=flow, start=torch.cat([setup.start for setup in setups]))


def _matrices(schedules: Sequence[Schedule], counts: Sequence[int]) -> Tensor:
    """Return one matrix where all share it, or else that of each system."""
    return _cat([schedule.matrix_at(0.0) for schedule in schedules], counts, 3)


def _space(spaces: Sequence[Space], counts: Sequence[int]) -> Space:
    metrics = [space.metric for space in spaces if isinstance(space, Ellipsoid) and space.metric is not None]
    return Ellipsoid(_cat(metrics, counts, 2)) if metrics else spaces[0]


def _cat(tensors: Sequence[Tensor], counts: Sequence[int], axes: int) -> Tensor:
    if all(tensor.ndim == axes and torch.equal(tensor, tensors[0]) for tensor in tensors):
        return tensors[0]
    own = (tensor.expand(count, *tensor.shape[-axes:]) for tensor, count in zip(tensors, counts, strict=True))
    return torch.cat(list(own))
