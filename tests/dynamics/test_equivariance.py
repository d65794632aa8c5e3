"""Symmetries every flow must have: rotations, permutations, causality, and the change of time of the 1/√dim factor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Ellipsoid, Free, Sphere

# Many short steps: checking every call of every kernel would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")
FIXTURE = [HealthCheck.function_scoped_fixture]
VELOCITY = settings(max_examples=30, suppress_health_check=FIXTURE)
RUN = settings(max_examples=5, suppress_health_check=FIXTURE)
TIMES = [0.0, 0.5, 1.0]
LOOSE = {"rtol": 1e-7, "atol": 1e-9, "engine": "batched"}


@dataclass(frozen=True)
class Example:
    """One random system; `turned` and the like give its images under a symmetry."""

    seed: int
    tokens: int
    dim: int
    heads: int
    space: str
    weights: str
    causal: bool

    def draw(self, *shape: int, salt: int) -> np.ndarray:
        return np.random.default_rng((self.seed, salt)).normal(size=shape)

    @property
    def start(self) -> np.ndarray:
        x = 0.4 * self.draw(self.tokens, self.dim, salt=0)
        return x + 0.05 * np.sign(x)

    def flow(self, turn: np.ndarray | None = None, **options: object) -> Flow:
        q = np.eye(self.dim) if turn is None else turn
        qk, ov = (0.5 * self.draw(self.heads, self.dim, self.dim, salt=salt) for salt in (1, 2))
        root = self.draw(self.dim, self.dim, salt=3)
        metric = root @ root.T / self.dim + np.eye(self.dim)
        settled = {"causal": self.causal, "weights": self.weights, **options}
        attention = Attention(q @ qk @ q.T, q @ ov @ q.T, **settled)  # pyright: ignore[reportArgumentType]
        turned = q @ metric @ q.T
        space = {"free": Free, "sphere": Sphere, "ellipsoid": lambda: Ellipsoid((turned + turned.T) / 2)}[self.space]()
        return Flow(attention, space)


EXAMPLES = st.builds(
    Example,
    seed=st.integers(0, 2**20),
    tokens=st.integers(1, 6),
    dim=st.integers(2, 7),
    heads=st.integers(1, 3),
    space=st.sampled_from(["free", "sphere", "ellipsoid"]),
    weights=st.sampled_from(["softmax", "linear", "exponential"]),
    causal=st.booleans(),
)


# Other weights in free space may reach infinity in finite time, where runs are compared at no common state.
TAME = EXAMPLES.filter(lambda example: example.space != "free" or example.weights == "softmax")


def rotation_of(example: Example) -> np.ndarray:
    return np.linalg.qr(example.draw(example.dim, example.dim, salt=4))[0]


def close(result: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * max(1.0, np.abs(wanted).max()))


@VELOCITY
@given(EXAMPLES)
def test_velocity_and_layer_turn_with_the_tokens_and_the_matrices(example):
    q, x = rotation_of(example), example.start
    turned = example.flow(q)
    close(turned.velocity(x @ q.T), example.flow().velocity(x) @ q.T, 1e-12)
    close(turned.step(x @ q.T, tau=0.3), example.flow().step(x, tau=0.3) @ q.T, 1e-12)
    close(turned.attention.pattern(x @ q.T), example.flow().attention.pattern(x), 1e-12)


@RUN
@given(TAME)
def test_trajectories_turn_with_the_tokens_and_the_matrices(example):
    q, x = rotation_of(example), example.start
    computed = simulate(example.flow(q), x @ q.T, TIMES, **LOOSE).states
    close(computed, simulate(example.flow(), x, TIMES, **LOOSE).states @ q.T, 1e-5)


@VELOCITY
@given(EXAMPLES)
def test_without_a_mask_tokens_have_no_order(example):
    order = np.random.default_rng((example.seed, 5)).permutation(example.tokens)
    flow, x = example.flow(causal=False), example.start
    close(flow.velocity(x[order]), flow.velocity(x)[order], 1e-13)
    close(flow.step(x[order], tau=0.3), flow.step(x, tau=0.3)[order], 1e-13)


@RUN
@given(TAME)
def test_without_a_mask_trajectories_have_no_order(example):
    order = np.random.default_rng((example.seed, 5)).permutation(example.tokens)
    flow, x = example.flow(causal=False), example.start
    computed = simulate(flow, x[order], TIMES, **LOOSE).states
    close(computed, simulate(flow, x, TIMES, **LOOSE).states[:, order], 1e-5)


@VELOCITY
@given(EXAMPLES, st.integers(1, 3))
def test_causal_tokens_do_not_see_what_is_appended(example, more):
    flow, x = example.flow(causal=True), example.start
    longer = np.concatenate([x, 0.4 + 0.4 * example.draw(more, example.dim, salt=6)])
    close(flow.velocity(longer)[: len(x)], flow.velocity(x), 1e-14)
    close(flow.step(longer, tau=0.3)[: len(x)], flow.step(x, tau=0.3), 1e-14)
    if example.tokens > 1:
        full = example.flow(causal=False)
        assert np.abs(full.velocity(longer)[: len(x)] - full.velocity(x)).max() > 1e-12


@RUN
@given(TAME, st.integers(1, 3))
def test_causal_trajectories_do_not_see_what_is_appended(example, more):
    flow, x = example.flow(causal=True), example.start
    longer = np.concatenate([x, 0.4 + 0.4 * example.draw(more, example.dim, salt=6)])
    computed = simulate(flow, longer, TIMES, **LOOSE).states[:, : len(x)]
    close(computed, simulate(flow, x, TIMES, **LOOSE).states, 1e-5)


@VELOCITY
@given(EXAMPLES)
def test_the_papers_factor_divides_the_velocity_by_the_root_of_dim(example):
    paper, plain = example.flow(normalization="paper"), example.flow(normalization="plain")
    root = math.sqrt(example.dim)
    assert paper.weight_factor == pytest.approx(1 / root, rel=1e-14)
    assert plain.weight_factor == 1.0
    close(root * np.asarray(paper.velocity(example.start)), plain.velocity(example.start), 1e-14)
    close(paper.step(example.start, tau=root * 0.2), plain.step(example.start, tau=0.2), 1e-13)


@pytest.mark.long
@RUN
@given(TAME)
def test_the_papers_factor_is_a_change_of_time(example):
    paper, plain = example.flow(normalization="paper"), example.flow(normalization="plain")
    slow = simulate(paper, example.start, math.sqrt(example.dim) * np.array(TIMES), **LOOSE).states
    close(slow, simulate(plain, example.start, TIMES, **LOOSE).states, 1e-5)


@VELOCITY
@given(EXAMPLES)
def test_the_flow_is_odd(example):
    """Logits are even in x and the values odd, so −x moves as the mirror image of x."""
    flow = example.flow()
    close(-np.asarray(flow.velocity(-example.start)), flow.velocity(example.start), 1e-14)


@VELOCITY
@given(EXAMPLES, st.floats(0.01, 100.0))
def test_on_a_sphere_only_directions_matter_and_velocities_are_tangent(example, size):
    if example.space == "free":
        return
    flow, x = example.flow(), example.start
    y = flow.space.project(x)
    velocity = np.asarray(flow.velocity(x))
    close(flow.velocity(size * x), velocity, 1e-12)
    metric = np.eye(example.dim) if flow.space.metric is None else flow.space.metric.numpy()
    assert np.abs(np.einsum("id,de,ie->i", y, metric, velocity)).max() <= 1e-13 * max(1.0, np.abs(velocity).max())


@VELOCITY
@given(EXAMPLES, st.integers(1, 4))
def test_rotary_positions_only_see_distances(example, shift):
    """Tokens in front that nobody listens to shift all positions; logits between the others stay."""
    query, key = (0.5 * example.draw(example.dim, 4, salt=salt) for salt in (7, 8))
    flow = example.flow(positions=RotaryPositions(query, key, base=50.0, scale=0.5))
    padded = np.concatenate([np.ones((shift, example.dim)), example.start])
    computed = flow.attention.logits(padded)[:, shift:, shift:]
    close(computed, flow.attention.logits(example.start), 1e-12)
