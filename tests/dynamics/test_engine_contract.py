"""One contract for engines × flows × spaces × masks × schedules × positions × dtypes, against sums in plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dynamics.products import Choice, choices, draw, whole
from tokendynamics.attention import Attention, FactoredMatrix, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Sphere

TIMES = np.array([0.0, 0.4, 1.0])
LAYERS = np.array([0.0, 1.0, 3.0])
STRETCHES = {"batched": 160, "compiled": 184, "stiff": 208, "fixed": 232, "dopri5": 160, "dop853": 208}
"""For each engine, and two methods of the engine "batched", where its stretch of the product begins."""

VELOCITIES = choices(0, 160)
# Every third is quick; so are all that "compiled" runs with 3 features, for which alone it has to be compiled.
SOLUTIONS = [
    pytest.param(
        engine,
        choice,
        id=f"{engine}-{choice}",
        marks=[pytest.mark.slow] * (choice.shape[1] > 3 if engine == "compiled" else place % 3 > 0),
    )
    for engine, first in STRETCHES.items()
    for place, choice in enumerate(choices(first, first + 24))
    if engine != "compiled" or "callable" not in (choice.qk, choice.ov)
]


def options_of(engine: str, step: float, rtol: float) -> dict:
    """What the engine is told of its accuracy."""
    return {"fixed": {"step": step}, "layers": {}}.get(engine, {"rtol": rtol, "atol": rtol / 100})


def engine_of(name: str) -> dict:
    """The engine of a name in `STRETCHES`, and its method."""
    return {"engine": "batched", "method": name} if name in ("dopri5", "dop853") else {"engine": name}


def close(result: object, wanted: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(np.asarray(result), wanted, rtol=0, atol=tolerance * scale)


def test_every_pair_of_options_meets_in_the_thinned_products():
    fields = ("space", "mask", "weights", "qk", "ov", "positions", "shape")
    for thinned, share in ((VELOCITIES, 0.85), ([param.values[1] for param in SOLUTIONS], 0.65)):
        for one, other in itertools.combinations(fields, 2):
            possible = {(getattr(choice, one), getattr(choice, other)) for choice in whole()}
            met = {(getattr(choice, one), getattr(choice, other)) for choice in thinned}
            assert len(met) >= share * len(possible), (one, other, possible - met)


@pytest.mark.few(80)
@pytest.mark.parametrize("choice", VELOCITIES, ids=str)
def test_velocity_and_layer_are_the_plain_sums(choice: Choice):
    system, starts = draw(choice)
    flow, t = system.flow(), 1.3
    wanted = np.array([system.velocity(x, t) for x in starts])
    close(flow.velocity(starts, t), wanted, 1e-13)
    layers = np.array([system.layer(x, 2, 0.3) for x in starts])
    close(flow.step(starts, 2, 0.3), layers, 1e-13)
    alphas = np.array([system.alphas(system.project(x), t) for x in starts])
    projected = flow.space.project(starts)
    close(flow.weight_factor * np.asarray(flow.attention.pattern(projected, t)), alphas, 1e-13)


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize(("engine", "choice"), SOLUTIONS)
def test_every_engine_follows_the_plain_sums(engine: str, choice: Choice, unchecked: None):
    system, starts = draw(choice)
    run = simulate(system.flow(), starts[:2], TIMES, **engine_of(engine), **options_of(engine, 0.05, 1e-8))
    assert run.states.dtype == np.float64
    assert run.status.tolist() == ["reached the horizon"] * 2
    for computed, start in zip(run.states, starts, strict=False):
        # The kinks of |sin| leave a fixed step second order at best.
        kinks = engine == "fixed" and "absolute" in (choice.qk, choice.ov)
        close(computed, system.solution(start, TIMES, rtol=1e-10, atol=1e-11), 1e-3 if kinks else 1e-6)
    assert system.flow().space.defect(run.states) <= 1e-14


@pytest.mark.parametrize("choice", choices(232, 256), ids=str)
def test_the_layers_engine_repeats_the_plain_layer(choice: Choice):
    system, starts = draw(choice)
    run = simulate(system.flow(), starts, LAYERS, engine="layers", tau=0.4)
    for computed, x in zip(run.states, starts, strict=True):
        states = [system.project(x)]
        for k in range(3):
            states.append(system.layer(states[-1], k, 0.4))
        close(computed, np.array([states[0], states[1], states[3]]), 1e-12)


@pytest.mark.every_value_once
@pytest.mark.parametrize("choice", choices(256, 260), ids=str)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "layers", "fixed"])
def test_float32_runs_are_those_of_float64_to_single_precision(engine: str, choice: Choice, unchecked: None):
    system, starts = draw(choice)
    if engine == "compiled" and "callable" in (choice.qk, choice.ov):
        with pytest.raises(
            ArgumentValueError, match=r"'batched', .* for circuits that are a function of time of your own"
        ):
            simulate(system.flow(), starts, TIMES, engine=engine)
        return
    times = LAYERS if engine == "layers" else TIMES
    options = options_of(engine, 0.1, 1e-5)
    single = simulate(system.flow(), starts.astype(np.float32), times, engine=engine, **options)
    assert single.states.dtype == np.float32
    assert set(single.status.tolist()) == {"reached the horizon"}
    double = simulate(system.flow(), starts, times, engine=engine, **options)
    assert double.states.dtype == np.float64
    close(single.states, double.states, 2e-4)
    cast = simulate(system.flow(), starts, times, engine=engine, dtype=torch.float32, **options)
    np.testing.assert_array_equal(cast.states, single.states)
    close(system.flow().velocity(starts.astype(np.float32), 0.7), system.flow().velocity(starts, 0.7), 3e-5)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        pytest.param(
            engine, kind, marks=() if engine in ("batched", "compiled") or kind == "sinusoidal" else pytest.mark.slow
        )
        for engine in ("batched", "compiled", "stiff", "layers", "fixed")
        for kind in ("dense", "factored", "sinusoidal")
    ],
)
def test_a_batch_with_matrices_of_its_own_for_each_system_is_the_systems_one_by_one(engine: str, kind: str):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return 0.7 * torch.randn(*shape, dtype=torch.float64, generator=generator)

    leading, heads, tokens, dim = (2, 2), 2, 4, 3
    start, ov, roots = normal(*leading, tokens, dim), normal(*leading, heads, dim, dim), normal(*leading, dim, dim)
    metrics = roots @ roots.mT + torch.eye(dim)
    parts = {
        "dense": (normal(*leading, heads, dim, dim),),
        "factored": (normal(*leading, heads, dim, 2), normal(*leading, heads, dim, 2)),
        "sinusoidal": (normal(*leading, heads, dim, dim), *(normal(*leading, heads, dim) for _ in range(3))),
    }[kind]
    build = {"dense": lambda matrix: matrix, "factored": FactoredMatrix, "sinusoidal": Sinusoidal}[kind]
    options = options_of(engine, 0.1, 1e-6)
    # Rounding moves the steps that a controlled solver chooses: its two answers agree as its tolerance says.
    tolerance = 10 * options["rtol"] if engine in ("batched", "compiled", "stiff") else 1e-11
    times = LAYERS if engine == "layers" else TIMES
    for space in (lambda index: Ellipsoid(metrics[index]), lambda index: Free()):
        together = Flow(Attention(build(*parts), ov, causal=True), space(...))
        run = simulate(together, start, times, engine=engine, **options)
        assert run.states.shape == (*leading, len(times), tokens, dim)
        assert run.status.shape == run.end_times.shape == run.counts["right_hand_sides"].shape == leading
        assert run.reached.shape == (*leading, len(times))
        for index in itertools.product(range(2), range(2)):
            single = Flow(Attention(build(*(part[index] for part in parts)), ov[index], causal=True), space(index))
            alone = simulate(single, start[index], times, engine=engine, **options)
            close(run.states[index], alone.states.numpy(), tolerance)
            counted = run.counts["right_hand_sides"][index], alone.counts["right_hand_sides"]
            assert counted[0] == pytest.approx(counted[1], rel=0.1)
            velocity = together.velocity(start, 0.3)[index]
            close(velocity, single.velocity(start[index], 0.3).numpy(), 1e-13)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "layers", "fixed"])
def test_states_come_back_in_the_type_they_came_in(engine: str):
    matrix = [[0.0, 1.0], [-1.0, 0.5]]
    options = {"step": 0.25} if engine == "fixed" else {}
    flow = Flow(Attention(matrix, matrix), Sphere())
    start, times = [[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]], [0.0, 1.0]
    nested = simulate(flow, start, times, engine=engine, **options)
    array = simulate(flow, np.array(start), times, engine=engine, **options)
    tensor = simulate(flow, torch.tensor(start, dtype=torch.float64), torch.tensor(times), engine=engine, **options)
    assert isinstance(nested.states, list)
    assert isinstance(array.states, np.ndarray)
    assert isinstance(tensor.states, torch.Tensor)
    np.testing.assert_array_equal(np.array(nested.states), array.states)
    np.testing.assert_array_equal(tensor.states.numpy(), array.states)
    np.testing.assert_array_equal(nested.tensor.numpy(), array.states)
    np.testing.assert_array_equal(nested.times, times)
    assert nested.engine == engine
    assert isinstance(flow.velocity(start), list)
    assert isinstance(flow.step(np.array(start)), np.ndarray)
    assert flow.velocity(torch.tensor(start)).dtype == torch.float32


@pytest.mark.long
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "layers", "fixed"])
def test_the_start_is_returned_projected_and_is_not_changed(engine: str):
    start = np.array([[3.0, 4.0], [0.0, -2.0]])
    before = start.copy()
    options = {"step": 0.25} if engine == "fixed" else {}
    run = simulate(Flow(Attention(np.eye(2), -np.eye(2)), Sphere()), start, [0.0, 1.0], engine=engine, **options)
    np.testing.assert_array_equal(start, before)
    np.testing.assert_allclose(run.states[0], [[0.6, 0.8], [0.0, -1.0]], rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_time_may_start_anywhere_and_only_differences_count_for_constant_matrices(engine: str):
    rng = np.random.default_rng(1)
    flow = Flow(Attention(rng.normal(size=(3, 3)), rng.normal(size=(3, 3))), Sphere())
    start = rng.normal(size=(4, 3))
    here = simulate(flow, start, [0.0, 0.5, 2.0], engine=engine, rtol=1e-9, atol=1e-11).states
    there = simulate(flow, start, [-7.0, -6.5, -5.0], engine=engine, rtol=1e-9, atol=1e-11).states
    close(there, np.asarray(here), 1e-8)


def test_the_state_of_a_fast_neighbour_does_not_enter_a_system():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, 4, 3, dtype=torch.float64, generator=generator)
    qk = torch.randn(3, 3, dtype=torch.float64, generator=generator)
    flow = Flow(Attention(qk, torch.eye(3, dtype=torch.float64)), Free())
    alone = simulate(flow, start, [0.0, 1.0])
    crowd = simulate(flow, torch.cat([start, 8 * torch.randn(5, 4, 3, generator=generator).double()]), [0.0, 1.0])
    close(crowd.states[0], alone.states[0].numpy(), 10 * 1e-8)  # ten times the default rtol
    assert crowd.counts["accepted"][0] == alone.counts["accepted"][0]
