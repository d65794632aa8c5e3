"""A real network as a flow: its layers' circuits, one after the other and over again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from tokendynamics.attention.attention import Attention
from tokendynamics.attention.circuits import FactoredMatrix
from tokendynamics.attention.positions import RotaryPositions
from tokendynamics.attention.schedules import Periodic
from tokendynamics.diagnosis.layer_circuits import LayerCircuits
from tokendynamics.dynamics.flow import Flow
from tokendynamics.numerics.errors import ArgumentValueError, expected, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.layers import as_layers
from tokendynamics.spaces.geometry import geometry_of
from tokendynamics.spaces.space import Space
from tokendynamics.spaces.sphere import Sphere


@typed_arguments
def flow_of(
    checkpoint: Checkpoint,
    layers: int | Iterable[int] | None = None,
    *,
    space: Space | None = None,
    dtype: torch.dtype = torch.float64,
) -> Flow:
    """Return the attention of a network as a flow in which each layer lasts one unit of time.

    The QK and OV circuits are piecewise constant and periodic: the first of `layers` holds on [0, 1), the next on
    [1, 2), and after the last one the first comes again (`asymptotic` section 7.5). Feed-forward parts and biases are
    left out.

    On the sphere (default) tokens are unit vectors, and attention reads what the network's norm makes of them:
    √dim · y, times the norm's gain, less the mean for LayerNorm. With a state x of norm √dim the velocity before its
    tangent part is the network's attention output divided by √dim. In free space no norm is applied, as in
    `positional` (2), and ``flow.step(x, k)`` is x plus the attention of layer
    k + 1, of all layers, on x itself.

    Args:
        checkpoint: From `tokendynamics.load`.
        layers: Which layers, counted from 1, in this order; one, several, or None for all.
        space: `Sphere()` or `Free()`.
        dtype: Precision of the circuits.

    Returns:
        A flow with the network's mask, its rotary positions where it has them, and plain softmax weights. Learned
        position tables belong to the embeddings it starts from.

    Raises:
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: No such layer, no layer at all, another space, or another dtype.

    >>> from tokendynamics.pretrained import load
    >>> flow = flow_of(load("random:distilgpt2:7"), layers=[1, 6])
    >>> flow.heads, flow.dim, flow.attention.causal
    (12, 768, True)

    The embeddings of a prompt are where its flow starts: ``ckpt.states(ckpt.encode(text).ids).feed_forward[0]``.
    """
    space = Sphere() if space is None else space
    geometry = geometry_of(space) if isinstance(space, Space) else None
    if geometry is None or not geometry.closed_form or geometry.metric is not None:
        raise ArgumentValueError(expected("space", "Sphere() or Free()", repr(space)))
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentValueError(expected("dtype", "torch.float32 or torch.float64", shown(dtype)))
    several = layers if layers is None or isinstance(layers, Iterable) else [layers]
    chosen = as_layers(several, checkpoint.architecture.layers)
    parts = [LayerCircuits(weights, space.constrained, dtype) for weights in checkpoint.iter_attention(chosen)]
    period = float(len(parts))
    ov = Periodic(_stacked([part.ov for part in parts]), period)
    qk = Periodic(_stacked([part.qk for part in parts]), period)
    attention = Attention(
        qk,
        ov,
        causal=checkpoint.architecture.causal,
        normalization="plain",
        positions=_positions(parts, period),
    )
    return Flow(attention, space)


def _positions(parts: Sequence[LayerCircuits], period: float) -> RotaryPositions | None:
    rotary = [part.rotary for part in parts if part.rotary is not None]
    if not rotary:
        return None
    query, key = (Periodic(torch.stack([part[side] for part in rotary]), period) for side in (0, 1))
    return RotaryPositions(query, key, frequencies=rotary[0][2])


def _stacked(circuits: Sequence[FactoredMatrix]) -> FactoredMatrix:
    return FactoredMatrix(
        torch.stack([circuit.left for circuit in circuits]), torch.stack([circuit.right for circuit in circuits])
    )
