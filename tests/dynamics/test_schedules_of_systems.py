"""Schedules beside systems and heads: every engine gives the answer of each system by itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, FactoredMatrix, Periodic, Sinusoidal
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Free, Sphere

pytestmark = pytest.mark.usefixtures("unchecked")

ENGINES = ("batched", "compiled", "stiff", "fixed", "layers")
SYSTEMS, HEADS, TOKENS, DIM = (3, 2), 2, 3, 3
RNG = np.random.default_rng(8)
MATRIX, GATE = RNG.normal(size=(HEADS, DIM, DIM)), RNG.uniform(0.5, 2.0, size=(HEADS, DIM))
START = RNG.normal(size=(*SYSTEMS, TOKENS, DIM))


def options(engine):
    return {"step": 0.1} if engine == "fixed" else {}


def times(engine):
    return [0.0, 1.0, 3.0] if engine == "layers" else [0.0, 0.3, 0.8]


def over(*shape):
    """Numbers between ½ and 2 of the shape."""
    return np.random.default_rng(sum(shape)).uniform(0.5, 2.0, size=shape)


# What differs between systems, and along which axes: each crashed or was silently broadcast along the wrong one.
BROADCASTS = {
    "amplitude": (MATRIX, over(*SYSTEMS, HEADS, DIM), GATE, GATE),
    "phase over the second axis": (MATRIX, over(*SYSTEMS, 1, 1), GATE, over(1, 2, HEADS, DIM)),
    "frequency over the first axis": (MATRIX, 1.0, over(3, 1, HEADS, DIM), over(*SYSTEMS, 1, DIM)),
    "matrix": (over(*SYSTEMS, HEADS, DIM, DIM), GATE, 2.0, 0.3),
    "matrix and gates along different axes": (over(3, 1, HEADS, DIM, DIM), over(1, 2, HEADS, DIM), 2.0, GATE),
    "one matrix for all heads": (MATRIX[:1], over(*SYSTEMS, HEADS, DIM), GATE, 0.3),
    "nothing": (MATRIX, GATE, GATE, GATE),
}


def of_system(part, index, axes):
    """The numbers of one system, by numpy's own rules of broadcasting."""
    array = np.asarray(part)
    if array.ndim <= axes:
        return array
    return np.broadcast_to(array, (*SYSTEMS, *array.shape[-axes:]))[index]


QUICK = ("phase over the second axis", "matrix and gates along different axes")


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.every_value_once
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(engine, name, marks=() if engine == ENGINES[0] or name in QUICK else pytest.mark.slow)
        for engine in ENGINES
        for name in BROADCASTS
    ],
)
def test_gates_of_systems_are_the_systems_one_by_one(engine, name):
    parts, space = BROADCASTS[name], Sphere() if engine in ("batched", "layers") else Free()
    together = simulate(
        Flow(Attention(Sinusoidal(*parts), MATRIX, causal=True), space),
        START,
        times(engine),
        engine=engine,
        **options(engine),
    )
    for index in itertools.product(*map(range, SYSTEMS)):
        direct = [of_system(part, index, 3 if number == 0 else 2) for number, part in enumerate(parts)]
        flow = Flow(Attention(Sinusoidal(*direct), MATRIX, causal=True), space)
        alone = simulate(flow, START[index], times(engine), engine=engine, **options(engine))
        np.testing.assert_allclose(together.states[index], alone.states, rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["periodic", "callable", "factored", "absolute"])
def test_any_schedule_stands_beside_matrices_of_systems(engine, kind):
    if (engine, kind) == ("compiled", "callable"):
        pytest.skip("a function of one's own is not for the compiled loop")
    factors = torch.tensor(RNG.normal(size=(2, HEADS, DIM, 2)))
    qk = {
        "periodic": Periodic(np.stack([MATRIX, -MATRIX, 0 * MATRIX]), 1.5),
        "callable": lambda t: MATRIX * math.cos(t),
        "factored": FactoredMatrix(*factors),
        "absolute": Sinusoidal(MATRIX, 1.0, 4.0, 0.3, absolute=True),
    }[kind]
    ov = RNG.normal(size=(*SYSTEMS, HEADS, DIM, DIM))
    together = simulate(Flow(Attention(qk, ov), Sphere()), START, times(engine), engine=engine, **options(engine))
    for index in itertools.product(*map(range, SYSTEMS)):
        flow = Flow(Attention(qk, ov[index]), Sphere())
        alone = simulate(flow, START[index], times(engine), engine=engine, **options(engine))
        np.testing.assert_allclose(together.states[index], alone.states, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BROADCASTS)
def test_the_shape_of_gates_is_that_of_their_matrices(name):
    gates = Sinusoidal(*BROADCASTS[name])
    flat = gates.flattened()
    for entry in (gates, flat, flat.select(torch.tensor([0])) if len(flat.shape) > 3 else flat):
        assert tuple(entry.shape) == tuple(entry.matrix_at(0.3).shape)


def test_gates_that_do_not_fit_each_other_are_refused():
    wanted = r"amplitude, frequency, phase: expected gates that broadcast .* shapes \(3, 2, 3\), \(2, 2, 3\), \(1, 3\)"
    with pytest.raises(ArgumentValueError, match=wanted):
        Sinusoidal(MATRIX, over(3, HEADS, DIM), over(2, HEADS, DIM), 0.0)


GATED = Sinusoidal(MATRIX[0], 1.5, 2.0, 0.3)
HEAD_LISTS = {
    "gate and matrix": ([GATED, MATRIX[1]], lambda t: np.stack([1.5 * math.sin(2 * t + 0.3) * MATRIX[0], MATRIX[1]])),
    "matrix and periodic": (
        [MATRIX[1].tolist(), Periodic(np.stack([MATRIX[0], -MATRIX[0]]), 1.0)],
        lambda t: np.stack([MATRIX[1], MATRIX[0] if t % 1 < 0.5 else -MATRIX[0]]),
    ),
    "function and gate": (
        [lambda t: MATRIX[0] * math.cos(t), Sinusoidal(MATRIX[1], 1.0, 3.0, 0.2, absolute=True)],
        lambda t: np.stack([MATRIX[0] * math.cos(t), abs(math.sin(3 * t + 0.2)) * MATRIX[1]]),
    ),
    "two kinds of gates": (
        [GATED, Sinusoidal(MATRIX[1], 1.0, 3.0, 0.2, absolute=True)],
        lambda t: np.stack([1.5 * math.sin(2 * t + 0.3) * MATRIX[0], abs(math.sin(3 * t + 0.2)) * MATRIX[1]]),
    ),
    "factors": ([FactoredMatrix(torch.tensor(MATRIX[0]), torch.tensor(MATRIX[1])), MATRIX[1]], None),
}
HEAD_LISTS["factors"] = (HEAD_LISTS["factors"][0], lambda t: np.stack([MATRIX[0] @ MATRIX[1].T, MATRIX[1]]))


@pytest.mark.parametrize("name", HEAD_LISTS)
def test_a_list_has_one_schedule_for_each_head(name):
    heads, wanted = HEAD_LISTS[name]
    attention = Attention(heads, np.stack([np.eye(DIM), -np.eye(DIM)]))
    assert attention.heads == 2
    for t in (0.0, 0.2, 0.7, 3.1):
        np.testing.assert_allclose(attention.qk.matrix_at(t), wanted(t), rtol=1e-13, atol=1e-15)
        whole = Attention(wanted(t), attention.ov)
        np.testing.assert_allclose(attention.logits(START, t), whole.logits(START), rtol=1e-12, atol=1e-13)


@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", HEAD_LISTS)
def test_a_list_of_schedules_runs_in_every_engine(engine, name):
    heads, wanted = HEAD_LISTS[name]
    if (engine, name) == ("compiled", "function and gate"):
        pytest.skip("a function of one's own is not for the compiled loop")
    ov = RNG.normal(size=(*SYSTEMS, HEADS, DIM, DIM))
    run = simulate(Flow(Attention(heads, ov), Sphere()), START, times(engine), engine=engine, **options(engine))
    other = "batched" if engine == "compiled" else engine
    plain = simulate(Flow(Attention(wanted, ov), Sphere()), START, times(engine), engine=other, **options(engine))
    # A function hides its jumps and kinks, which costs either engine some of its accuracy.
    np.testing.assert_allclose(run.states, plain.states, rtol=0, atol=2e-2 if engine == "fixed" else 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("beside", [lambda t: MATRIX[1] * math.cos(t), over(*SYSTEMS, 1, DIM, DIM)])
def test_one_head_of_a_list_may_differ_between_systems(beside):
    amplitude = over(*SYSTEMS, 1, DIM)
    heads = [Sinusoidal(MATRIX[0], amplitude, 2.0, 0.3, absolute=True), beside]
    run = simulate(Flow(Attention(heads, MATRIX), Sphere()), START, [0.0, 0.3, 0.8], engine="batched")
    for index in itertools.product(*map(range, SYSTEMS)):
        direct = beside if callable(beside) else beside[index]
        gate = Sinusoidal(MATRIX[0], amplitude[index], 2.0, 0.3, absolute=True)
        alone = simulate(
            Flow(Attention([gate, direct], MATRIX), Sphere()), START[index], [0.0, 0.3, 0.8], engine="batched"
        )
        np.testing.assert_allclose(run.states[index], alone.states, rtol=0, atol=1e-6)
    wanted = rf"qk\[1\]: expected one head of shape \(1, {DIM}, {DIM}\), got shape \(2, 1, {DIM}, {DIM}\)"
    with pytest.raises(ArgumentValueError, match=wanted):
        Attention([heads[0], over(2, 1, DIM, DIM), Periodic(np.stack([MATRIX[1]]), 1.0)], MATRIX)


@pytest.mark.parametrize("name", ["gate and matrix", "matrix and periodic", "two kinds of gates"])
def test_a_list_of_schedules_is_saved_and_read_back(name, tmp_path):
    flow = Flow(Attention(HEAD_LISTS[name][0], MATRIX), Sphere())
    run = simulate(flow, START, [0.0, 0.5])
    opened = Trajectory.open(run.save(tmp_path / "run.zarr"))
    assert opened.flow is not None
    for t in (0.0, 0.6, 1.7):
        np.testing.assert_array_equal(opened.flow.attention.qk.matrix_at(t), flow.attention.qk.matrix_at(t))


def test_what_is_known_of_a_list_is_what_is_known_of_all_its_heads():
    periodic = Periodic(np.stack([MATRIX[0], -MATRIX[0]]), 1.0)
    for heads, bounded, continuous in (
        ([GATED, MATRIX[1]], True, True),
        ([GATED, periodic], True, False),
        ([GATED, lambda t: t * MATRIX[0]], None, None),
        ([periodic, lambda t: t * MATRIX[0]], None, False),
    ):
        qk = Attention(heads, MATRIX).qk
        assert (qk.constant, qk.bounded, qk.uniformly_continuous) == (False, bounded, continuous)
    assert Attention([FactoredMatrix(*torch.tensor(MATRIX)), MATRIX[1]], MATRIX).qk.constant


def test_an_entry_of_a_list_is_one_head():
    with pytest.raises(
        ArgumentValueError, match=r"qk\[1\]: expected one head of shape \(1, 3, 3\), got shape \(2, 3, 3\)"
    ):
        Attention([GATED, MATRIX], MATRIX)
    with pytest.raises(
        ArgumentValueError, match=r"qk\[1\]: expected one head of shape \(1, 3, 3\), got shape \(1, 2, 2\)"
    ):
        Attention([GATED, np.eye(2)], MATRIX)
