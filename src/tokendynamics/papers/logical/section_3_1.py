"""`logical` 3.1 on an exact landscape: the printed derivatives, and zeros that are neither solved nor degenerate."""

from __future__ import annotations

import torch

from tokendynamics.circuits.landscape.classification import classify
from tokendynamics.circuits.landscape.positions_families import families
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.numerics.seeding import generator
from tokendynamics.papers.logical.printed_gradients import by_attention, by_values, true_over_printed
from tokendynamics.papers.record import Quantity, measured

_FACTOR = (
    "the derivative of a square has a factor 2 and the inner one a minus; both are missing, here and in (3.9)–(3.18), "
    "and no zero is moved"
)
_MISSED = (
    "B: columns of q that sum to zero, the case (3.33), of which no more is said: q = (e_{i−1} − 1/M)/Δ, "
    "v = Δ I + w 1^T with p·w = −Δ(|p|² + T/M); C and D: v sends the same for every category"
)


def gradients_3_1(landscape: PositionsOnly, seed: int) -> list[Quantity]:
    """The true derivatives over the printed ones, at a random point."""
    draws = generator(seed)
    q = torch.randn(landscape.attention_shape, generator=draws, dtype=torch.float64)
    v = torch.randn(landscape.v_shape, generator=draws, dtype=torch.float64)
    printed = {"q": by_attention(q, v), "v": by_values(q, v)}
    quotients = true_over_printed(landscape, q, v, printed)
    rows = []
    for name, equations in (("q", "(3.7), (3.8)"), ("v", "(3.18)")):
        values = quotients[name]
        farthest = float(values[(values + 2).abs().argmax()])
        text = f"{equations}: true over printed derivative"
        rows.append(Quantity(text, 1.0, float(values.median()), 1e-9, reason=_FACTOR))
        rows.append(Quantity(f"{text}, farthest from −2", -2.0, farthest, 1e-9, source="theory"))
    return rows


def stationary_3_1(landscape: PositionsOnly, seed: int) -> list[Quantity]:
    """The six families: zeros of the gradient, their losses, and which of them are saddles."""
    points = families(landscape, seed)
    kinds = {point.family: classify(landscape, point.attention, point.v) for point in points}
    gradients, losses = [], []
    for point in points:
        slope = landscape.gradient(point.attention, point.v)
        gradients.append(float(slope.attention.norm() + slope.v.norm()))
        losses.append(abs(float(landscape.loss(point.attention, point.v)) - point.loss))
    others = [point for point in points if point.family != "A" and float(point.attention.norm() * point.v.norm()) > 0]
    saddles = [kinds[point.family].kind == "strict saddle" for point in points if point.family != "A"]
    second = next(point for point in points if point.family == "B")
    return [
        Quantity(
            "3.1: families of zeros besides the solution with q ≠ 0 and v ≠ 0",
            0.0,
            float(len(others)),
            0.0,
            reason=_MISSED,
        ),
        Quantity("3.1: largest gradient at a member of the six families", 0.0, max(gradients), 1e-12, "≤", "theory"),
        Quantity("3.1: largest error of their losses", 0.0, max(losses), 1e-12, "≤", "theory"),
        Quantity(
            "3.1: strict saddles among the five besides the solution", 5.0, float(sum(saddles)), 0.0, source="theory"
        ),
        measured("3.1: loss per token of family B", second.loss_per_column),
        measured("3.1: lowest curvature of family B", kinds["B"].lowest_curvature),
    ]
