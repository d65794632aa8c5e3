"""What a system does in the engine "compiled" hangs on that system alone, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, Periodic, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, Interrupted, Trajectory, simulate
from tokendynamics.dynamics.engines.compiled import _run
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.spaces import Ellipsoid, Free, Space, Sphere

Array = np.ndarray

SYSTEMS, TOKENS, DIM = 27, 5, 3
TIMES = [0.0, 0.3, 0.31, 1.9, 2.0]
OPTIONS: dict[str, Any] = {"engine": "compiled", "rtol": 1e-6, "atol": 1e-8, "max_steps": 400}


@dataclass(frozen=True)
class Case:
    """Systems with matrices of their own, of which some can be taken.

    Attributes:
        qk: (system, dim, dim).
        ov: (system, dim, dim).
        metric: Of the ellipsoids, (system, dim, dim).
        starts: (system, token, dim).
        kind: "free", "sphere", "ellipsoid" (causal), "turning" (on the sphere, sinusoidal) or "jumping" (on the
            sphere, rotary, two pieces in turn: the step that a system had is taken on into the next piece).
    """

    qk: Array
    ov: Array
    metric: Array
    starts: Array
    kind: str

    @classmethod
    def draw(cls, kind: str, seed: int = 0) -> Case:
        rng = np.random.default_rng(seed)
        qk, ov, root = rng.normal(size=(3, SYSTEMS, DIM, DIM))
        # Runs of very different lengths: lanes are refilled at different times.
        qk *= 10.0 ** rng.uniform(-1, 0.7, size=(SYSTEMS, 1, 1))
        metric = root @ root.transpose(0, 2, 1) + 0.5 * np.eye(DIM)
        return cls(qk, 0.5 * ov, metric, 0.7 * rng.normal(size=(SYSTEMS, TOKENS, DIM)), kind)

    def take(self, which: Any) -> Case:
        return Case(self.qk[which], self.ov[which], self.metric[which], self.starts[which], self.kind)

    def run(self, times: list[float] = TIMES, **options: Any) -> Trajectory:
        spaces: dict[str, Space] = {"free": Free(), "ellipsoid": Ellipsoid(self.metric)}
        qk, positions = self.qk[:, None], None
        if self.kind == "turning":
            waves = np.broadcast_to([1.0, 2.0, 3.0], (len(self.qk), 1, DIM))
            qk = Sinusoidal(qk, waves, 2 * waves, 0.3 * waves)
        if self.kind == "jumping":
            matrix = np.eye(DIM)[:, :2]
            positions = RotaryPositions(matrix, matrix, scale=0.5)
            qk = Periodic(np.random.default_rng(9).normal(size=(2, DIM, DIM)), 0.8)
        attention = Attention(qk, self.ov[:, None], causal=self.kind == "ellipsoid", positions=positions)
        return simulate(Flow(attention, spaces.get(self.kind, Sphere())), self.starts, times, **(OPTIONS | options))


KINDS = ("free", "sphere", "ellipsoid", "turning", "jumping")


def same(one: Trajectory, other: Trajectory, of_one: Any = slice(None), of_other: Any = slice(None)) -> None:
    """Every number of the systems is the same to the last bit."""
    np.testing.assert_array_equal(one.states[of_one], other.states[of_other])
    np.testing.assert_array_equal(one.status[of_one], other.status[of_other])
    np.testing.assert_array_equal(one.end_times[of_one], other.end_times[of_other])
    assert one.counts.keys() == other.counts.keys()
    for name, counts in one.counts.items():
        np.testing.assert_array_equal(counts[of_one], other.counts[name][of_other], err_msg=name)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "method"), [*((kind, "dopri5") for kind in KINDS), ("free", "dop853")])
def test_order_and_lane_of_a_system_change_no_bit(kind: str, method: str):
    case = Case.draw(kind)
    together = case.run(method=method)
    assert len(set(together.counts["accepted"].tolist())) > 3
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(SYSTEMS)
        same(case.take(order).run(method=method), together, of_other=order)
    # The same system in all eight lanes and in the queue behind them.
    copies = case.take(np.full(19, 4)).run(method=method)
    for copy in range(19):
        same(copies, together, copy, 4)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_system_alone_does_what_it_does_in_a_crowd(kind: str):
    case = Case.draw(kind, seed=1)
    together = case.run()
    for number in range(0, SYSTEMS, 4):
        same(case.take([number]).run(), together, 0, number)
    same(case.take(slice(3, 12)).run(), together, of_other=slice(3, 12))


def test_threads_change_no_bit():
    case, threads = Case.draw("sphere", seed=2), torch.get_num_threads()
    runs = {}
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            runs[count] = case.run()
    finally:
        torch.set_num_threads(threads)
    same(runs[1], runs[2])
    same(runs[1], runs[3])


@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_of_a_short_run_comes_before_it_or_after_it(after: bool, monkeypatch):
    case, integrate = Case.draw("sphere", seed=2), _run.integrate
    whole = case.take(slice(0, 3)).run()

    def interrupted(*part: object) -> None:
        if after:
            integrate(*part)
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "integrate", interrupted)
    with pytest.raises(Interrupted) as caught:
        case.take(slice(0, 3)).run()
    run = caught.value.trajectory
    assert run.status.tolist() == ["reached the horizon" if after else "interrupted"] * 3
    np.testing.assert_array_equal(run.states[run.reached], whole.states[run.reached])
    assert run.reached.sum() == (whole.reached.sum() if after else 3)


def wild(kind: str) -> tuple[Array, Array, Array]:
    """qk, ov and start of a system that ends badly."""
    if kind == "not finite":
        # Logits overflow: their differences are no numbers.
        return 1e200 * np.eye(DIM), np.eye(DIM), 1e60 * np.ones((TOKENS, DIM))
    if kind == "diverging":
        return np.zeros((DIM, DIM)), 100.0 * np.eye(DIM), np.full((TOKENS, DIM), 1e90)
    # Rotating a million times within the horizon: it spends its budget.
    turning = np.zeros((DIM, DIM))
    turning[0, 1], turning[1, 0] = 1e6, -1e6
    return np.zeros((DIM, DIM)), turning, np.random.default_rng(5).normal(size=(TOKENS, DIM))


ENDS = {
    "not finite": {"not finite"},
    "diverging": {"diverged"},
    "rough": {"step budget spent"},
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_neighbour_that_ends_badly_changes_no_bit(kind: str):
    case = Case.draw("free", seed=3)
    calm = case.run()
    assert set(calm.status.tolist()) == {"reached the horizon"}
    places = [2, 9, 10]
    qk, ov, start = wild(kind)
    crowd = case.take(slice(None))
    for array, one in ((crowd.qk, qk), (crowd.ov, ov), (crowd.starts, start)):
        array[places] = one
    run, others = crowd.run(), np.setdiff1d(np.arange(SYSTEMS), places)
    same(run, calm, others, others)
    assert set(run.status[places].tolist()) <= ENDS[kind]
    assert np.isfinite(run.states).all()
    # And who comes into its lane after it.
    first = np.concatenate([places, others])
    same(crowd.take(first).run(), calm, slice(3, None), others)
    same(crowd.take(np.array([2] * 8 + [0])).run(), calm, 8, 0)


@pytest.mark.slow
def test_systems_that_end_early_leave_their_lanes_to_others_without_a_trace():
    case = Case.draw("sphere", seed=4)
    events = (AtRest(1e-3), Consensus(1e-2))
    together = case.run([0.0, 5.0, 40.0], events=events)
    assert len(set(together.status.tolist())) > 1
    order = np.random.default_rng(6).permutation(SYSTEMS)
    same(case.take(order).run([0.0, 5.0, 40.0], events=events), together, of_other=order)
    for number in range(0, SYSTEMS, 5):
        same(case.take([number]).run([0.0, 5.0, 40.0], events=events), together, 0, number)


@pytest.mark.slow
def test_recorded_events_hang_on_their_system_alone():
    case = Case.draw("free", seed=5)
    bound = float(np.median(np.linalg.norm(case.run().states[:, -1], axis=-1).max(axis=-1)))
    event = NormAbove(bound, then="record")
    together = case.run(events=(event,)).recorded
    assert together is not None
    assert 3 < (together.counts > 0).sum() < SYSTEMS
    for number in range(0, SYSTEMS, 4):
        alone = case.take([number]).run(events=(event,)).recorded
        assert alone is not None
        count = int(alone.counts[0, 0])
        assert count == together.counts[number, 0]
        np.testing.assert_array_equal(alone.times[0, 0, :count], together.times[number, 0, :count])
        np.testing.assert_array_equal(alone.states[0, 0, :count], together.states[number, 0, :count])


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_output_times_change_no_step(kind: str):
    case = Case.draw(kind, seed=7)
    few, many = case.run([0.0, 2.0]), case.run(np.linspace(0.0, 2.0, 101).tolist())
    np.testing.assert_array_equal(few.states[:, -1], many.states[:, -1])
    for name, counts in few.counts.items():
        np.testing.assert_array_equal(counts, many.counts[name], err_msg=name)
    # Nor does what is saved hang on what else is saved.
    half = case.run(np.linspace(0.0, 2.0, 51).tolist())
    np.testing.assert_array_equal(half.states, many.states[:, ::2])


@pytest.mark.long
@pytest.mark.parametrize("length", [1.0, 0.1 + 0.2, 1e-3 / 3, 7 / 3])
@pytest.mark.parametrize("start", [0.0, -1 / 3, 1e4 / 7])
def test_the_last_time_is_reached_exactly_and_saved(start: float, length: float):
    case, last = Case.draw("sphere", seed=8).take(slice(0, 11)), start + length
    times = [start, start + length / 2, float(np.nextafter(last, start)), last]
    run = case.run(times)
    assert run.status.tolist() == ["reached the horizon"] * 11
    np.testing.assert_array_equal(run.end_times, last)
    assert run.reached.all()
    np.testing.assert_array_equal(run.states[:, -1], case.run([start, last]).states[:, -1])
    # A rounding unit earlier tokens stood where they stand at the end, up to the way made meanwhile.
    np.testing.assert_allclose(run.states[:, -2], run.states[:, -1], rtol=0, atol=1e-10)
    exact = case.run(times, rtol=1e-10, atol=1e-12, max_steps=4000)
    np.testing.assert_allclose(run.states, exact.states, rtol=0, atol=1e-4)
