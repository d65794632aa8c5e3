"""Metastable clusters: speeds far below the rounding of the states, against 60 digits and against closed forms."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Free, Sphere


def cluster_angles(sizes: Sequence[int], apart: float, spread: float) -> np.ndarray:
    """Angles of tokens in two clusters, spread unevenly, so that no token is at rest by symmetry."""
    first, second = (spread * np.arange(size) ** 2 for size in sizes)
    return np.concatenate([first, apart + second])


def on_circle(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def on_sphere(angles: np.ndarray) -> np.ndarray:
    """A great circle in a tilted plane of three dimensions."""
    plane = np.array([[2.0, 1.0, 2.0], [-2.0, 2.0, 1.0]]) / 3
    return on_circle(angles) @ plane


def exact_velocity(x: np.ndarray, beta: float, causal: bool) -> np.ndarray:
    """The field with qk = β·identity and ov = identity on the sphere, in 60 digits, at the stored states."""
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(float(entry)) for entry in row] for row in x]
        lengths = [mpmath.sqrt(mpmath.fsum(entry**2 for entry in row)) for row in rows]
        y = [[entry / length for entry in row] for row, length in zip(rows, lengths, strict=True)]
        velocity = []
        for i, receiver in enumerate(y):
            senders = y[: i + 1] if causal else y
            gains = [mpmath.exp(beta * mpmath.fdot(receiver, sender)) for sender in senders]
            total = mpmath.fsum(gains) * mpmath.sqrt(len(receiver))
            columns = list(zip(*senders, strict=True))
            pull = [mpmath.fdot(gains, column) / total for column in columns]
            outward = mpmath.fdot(pull, receiver)
            velocity.append([float(p - outward * r) for p, r in zip(pull, receiver, strict=True)])
    return np.array(velocity)


def largest_relative_error(flow: Flow, x: np.ndarray, reference: np.ndarray) -> float:
    speed = np.linalg.norm(reference, axis=-1)
    moving = speed > 1e-40  # token 1 of a causal flow is at rest, and 60 digits leave 1e-62 of it
    error = np.linalg.norm(flow.velocity(x) - reference, axis=-1)
    assert np.all(error[~moving] < 1e-40)
    return float(np.max(error[moving] / speed[moving]))


def alike(beta: float, dim: int, causal: bool) -> Flow:
    return Flow(Attention(beta * np.eye(dim), np.eye(dim), causal=causal), Sphere())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("place", [on_circle, on_sphere])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 4), (32, 32)])
def test_coincident_clusters_move_at_the_speed_of_sixty_digits(place, sizes, causal) -> None:
    x = place(cluster_angles(sizes, apart=2.8, spread=0.0))
    flow = alike(25.0, x.shape[-1], causal)
    reference = exact_velocity(x, 25.0, causal)
    assert 1e-23 < np.abs(reference).max() < 1e-20
    assert largest_relative_error(flow, x, reference) <= 1e-10


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("place", [on_circle, on_sphere])
def test_slightly_spread_clusters_move_at_the_speed_of_sixty_digits(place, causal) -> None:
    x = place(cluster_angles((4, 3), apart=2.8, spread=1e-4))
    flow = alike(25.0, x.shape[-1], causal)
    assert largest_relative_error(flow, x, exact_velocity(x, 25.0, causal)) <= 1e-10


def angle_rate(angle, beta: float, sizes: tuple[int, int]):
    """The speed at which two coincident clusters of the circle approach each other.

    A token of cluster 1 weighs cluster 2 by ``n_2 u / (n_1 + n_2 u)`` with ``u = exp(−β (1 − cos φ))``, of which
    sin φ is tangent; likewise for cluster 2; the weights carry 1/√2.
    """
    one, other = sizes
    u = mpmath.exp(-beta * (1 - mpmath.cos(angle)))
    pulls = other * u / (one + other * u) + one * u / (other + one * u)
    return mpmath.sin(angle) * pulls / mpmath.sqrt(2)


def time_between(start: float, end: float, beta: float, sizes: tuple[int, int]) -> float:
    """How long the clusters take from angle `start` down to `end`, by quadrature."""
    with mpmath.workdps(30):
        nodes = mpmath.linspace(end, start, 9)
        return float(mpmath.quad(lambda angle: 1 / angle_rate(angle, beta, sizes), nodes))


@pytest.mark.parametrize(
    ("beta", "start", "end", "sizes"),
    [
        (9.0, 2.9, 2.0, (4, 3)),
        (11.0, 2.9, 2.7, (20, 44)),
        (25.0, 1.4, 1.2, (30, 34)),
        (12.0, 2.8, 2.5, (1, 1)),
    ],
)
def test_two_clusters_meet_the_angle_of_the_quadrature_after_a_very_long_time(beta, start, end, sizes) -> None:
    horizon = time_between(start, end, beta, sizes)
    assert horizon > 1e7
    x0 = on_circle(cluster_angles(sizes, apart=start, spread=0.0))
    run = simulate(alike(beta, 2, False), x0, [0.0, horizon], rtol=1e-10, atol=1e-12, engine="stiff")
    angle = float(Sphere().distance(run.states[-1][:1], run.states[-1][-1:])[0])
    # The collapse accelerates: an error of 5e-9 of the time is this much of the angle at the end.
    allowed = 1e-9 + 5e-9 * horizon * float(angle_rate(end, beta, sizes))
    assert abs(angle - end) <= allowed


def test_clusters_that_move_at_1e_minus_22_have_moved_by_the_product_of_speed_and_time() -> None:
    # At 1e12 the angle has changed by 4e-10, linearly; a field that rounds to 1e-17 gives either nothing or noise.
    start, horizon = 2.8, 1e12
    x0 = on_circle(cluster_angles((5, 9), apart=start, spread=0.0))
    run = simulate(alike(25.0, 2, False), x0, [0.0, horizon], rtol=1e-10, atol=1e-12, engine="stiff")
    angles = [float(Sphere().distance(x[:1], x[-1:])[0]) for x in run.states]
    shifted = float(angle_rate(start, 25.0, (5, 9))) * horizon
    assert angles[0] - angles[1] == pytest.approx(shifted, rel=1e-4)
    assert run.counts["right_hand_sides"] < 200


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_cost_of_rest_does_not_grow_with_the_horizon(causal) -> None:
    x0 = Sphere().sample(64, 2, seed=1)
    flow = alike(25.0, 2, causal)
    run = [
        simulate(flow, x0, torch.tensor([0.0, horizon], dtype=torch.float64), rtol=1e-6, atol=1e-8, engine="stiff")
        for horizon in (1e10, 1e12)
    ]
    counts = [int(part.counts["right_hand_sides"]) for part in run]
    assert counts[0] <= 5000
    assert counts[1] <= counts[0] + 50
    assert all(str(part.status) == "reached the horizon" for part in run)


def test_slow_tokens_of_free_space_move_with_the_mean_and_not_with_differences():
    x = 1e-6 * torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    flow = Flow(Attention(torch.zeros(2, 2, dtype=torch.float64), -torch.eye(2, dtype=torch.float64)), Free())
    torch.testing.assert_close(flow.velocity(x), -x.mean(dim=0).expand(3, 2), rtol=1e-14, atol=0)
