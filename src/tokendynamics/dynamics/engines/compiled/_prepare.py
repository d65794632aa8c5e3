"""From a field to the arrays that the compiled loop takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.attention.schedules import Constant, PerHead, Schedule, Sinusoidal
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines.compiled._model import Circuit, Options, Systems


def options_of(field: Field, tokens: int) -> Options:
    """Return what all systems of the field share."""
    attention, positions = field.attention, field.attention.positions
    return Options(
        tokens=tokens,
        heads=attention.heads,
        rotary=positions.rank if isinstance(positions, RotaryPositions) else 0,
        causal=attention.causal,
        softmax=attention.weights == "softmax",
        constrained=field.geometry.constrained,
        has_metric=field.geometry.metric is not None,
        has_table=isinstance(positions, AbsolutePositions),
        turning=not attention.constant,
        multiple=field.has_differences,
    )


def systems_of(field: Field, tokens: int) -> Systems:
    """Return the matrices of a field of constant and sinusoidal circuits."""
    attention, positions = field.attention, field.attention.positions
    heads, dim = attention.heads, attention.dim
    identity = torch.eye(dim, dtype=torch.float64)
    rotary = positions if isinstance(positions, RotaryPositions) else None
    scale = rotary.scale if rotary else 1.0
    none = Circuit(np.zeros((1, 0)), np.zeros((0, 0)), 0, 0)
    metric, table = field.geometry.metric, np.zeros(0)
    if isinstance(positions, AbsolutePositions):
        table = _rows(positions.table[:tokens], 2)[0]
    values = Constant(identity.expand(heads, dim, dim)) if field.identity_values else attention.ov
    return Systems(
        qk=_circuit(attention.qk, scale, heads),
        ov=_circuit(values, field.factor, heads),
        query=_circuit(rotary.query, scale, heads) if rotary else none,
        key=_circuit(rotary.key, 1.0, heads) if rotary else none,
        metric=_rows(identity if metric is None else metric, 2),
        table=table,
        turns=_turns(rotary, tokens) if rotary else np.zeros(0),
    )


def _circuit(schedule: Schedule, factor: float, heads: int) -> Circuit:
    """Return a circuit whose matrices are multiplied by `factor`; one head may stand for all."""
    parts = [_gated(one) for one in (schedule.heads if isinstance(schedule, PerHead) else (schedule,))]
    matrix, gates = (_side_by_side([part[number] for part in parts], heads) for number in (0, 1))
    rows, columns = matrix.shape[-2:]
    turning = not schedule.constant
    return Circuit(_rows(factor * matrix, 3), _rows(gates, 3) if turning else np.zeros((0, 0)), heads * rows, columns)


def _gated(schedule: Schedule) -> tuple[Tensor, Tensor]:
    """Return matrices (*system, head, row, column) and their gates (*system, head, row, 4)."""
    if isinstance(schedule, Sinusoidal):
        numbers = torch.broadcast_tensors(schedule.amplitude, schedule.frequency, schedule.phase)
        absolute = torch.full_like(numbers[0], float(schedule.absolute))
        return schedule.matrix, torch.stack([*numbers, absolute], dim=-1)
    matrix = schedule.matrix_at(0.0)
    # A gate that stands still at sin(π/2) = 1.
    gate = torch.tensor([1.0, 0.0, math.pi / 2, 0.0], dtype=torch.float64)
    return matrix, gate.expand(*matrix.shape[-3:-1], 4)


def _side_by_side(parts: Sequence[Tensor], heads: int) -> Tensor:
    """Return all heads of parts that have one each, or that are one for all heads."""
    systems = max((part.shape[:-3] for part in parts), key=len)
    wide = [part.expand(*systems, *part.shape[-3:]) for part in parts]
    return _of_all(torch.cat(wide, dim=-3), heads)


def _of_all(tensor: Tensor, heads: int) -> Tensor:
    return tensor.expand(*tensor.shape[:-3], heads, *tensor.shape[-2:])


def _rows(tensor: Tensor, axes: int) -> np.ndarray:
    """Return (system or 1, number) of a tensor with this number of axes for each system."""
    numbers = tensor.detach().to(torch.float64)
    return np.ascontiguousarray((numbers if numbers.ndim > axes else numbers.unsqueeze(0)).flatten(1).numpy())


def _turns(rotary: RotaryPositions, tokens: int) -> np.ndarray:
    angles = np.arange(tokens)[:, None] * rotary.frequencies.numpy()
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(-1)
