"""What cannot be simulated is refused in one line that names the argument, what came and what was expected."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tokendynamics.attention import AbsolutePositions, Attention, Periodic, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Sphere

EYE = np.eye(3)
START = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
FREE = Flow(Attention(EYE, EYE), Free())
SPHERE = Flow(Attention(EYE, EYE), Sphere())


def refused(pattern: str, kind: type[Exception] = ArgumentValueError) -> object:
    return pytest.raises(kind, match=pattern)


@pytest.mark.parametrize("call", [FREE.velocity, FREE.step, lambda x: simulate(FREE, x, [0.0, 1.0])])
def test_a_dim_that_does_not_fit_is_refused_with_both_shapes(call):
    with refused(
        r"x0?: expected shape \(…, token, 3\) to fit qk, \(…, head, dim, dim\) = \(1, 3, 3\), got shape \(2, 4\)"
    ):
        call(np.ones((2, 4)))


def test_matrices_that_do_not_fit_each_other_are_refused_with_both_shapes():
    with refused(r"ov: .*qk, shape \(1, 3, 3\), got shape \(1, 2, 2\)"):
        Attention(EYE, np.eye(2))
    with refused(r"ov: .*qk, shape \(2, 3, 3\), got shape \(1, 3, 3\)"):
        Attention(np.ones((2, 3, 3)), EYE)
    with refused(r"ov: .*system axes of qk, shape \(4, 1, 3, 3\), or none, got shape \(5, 1, 3, 3\)"):
        Attention(np.ones((4, 1, 3, 3)), np.ones((5, 1, 3, 3)))
    with refused(r"qk: expected square matrices.*got shape \(1, 3, 2\)"):
        Attention(np.ones((3, 2)), EYE)
    with refused(r"qk: expected at least 2 axes.*got shape \(3,\)"):
        Attention(np.ones(3), EYE)


def test_system_axes_that_do_not_fit_are_refused_with_both_shapes():
    flow = Flow(Attention(np.ones((4, 1, 3, 3)), EYE), Free())
    with refused(r"x0: expected leading axes \(4,\).*got shape \(5, 2, 3\)"):
        simulate(flow, np.ones((5, 2, 3)), [0.0, 1.0])
    with refused(r"x: expected leading axes \(4,\).*got shape \(2, 2, 3\)"):
        flow.velocity(np.ones((2, 2, 3)))


@pytest.mark.parametrize("call", ["velocity", "step", "simulate"])
def test_metrics_for_other_systems_are_refused_with_both_shapes(call):
    flow = Flow(Attention(EYE, EYE), Ellipsoid(np.stack([EYE, 2 * EYE])))
    calls = {"velocity": flow.velocity, "step": flow.step, "simulate": lambda x: simulate(flow, x, [0.0, 1.0])}
    with refused(r"x0?: expected .*\(2,\).*got shape \(3, 2, 3\)"):
        calls[call](np.stack([START] * 3))


def test_positions_that_do_not_fit_are_refused_with_both_shapes():
    with refused(r"positions: expected table of shape \(token, 3\) to fit qk, got shape \(2, 4\)"):
        Attention(EYE, EYE, positions=AbsolutePositions(np.ones((2, 4))))
    short = Flow(Attention(EYE, EYE, positions=AbsolutePositions(np.ones((1, 3)))), Free())
    with refused(r"table: expected at least 2 rows.*x, shape \(2, 3\), got shape \(1, 3\)"):
        simulate(short, START, [0.0, 1.0])
    with refused(r"positions: expected query of shape \(1, 3, rank\) to fit qk, got shape \(1, 4, 2\)"):
        Attention(EYE, EYE, positions=RotaryPositions(np.ones((4, 2)), np.ones((4, 2))))
    with refused(r"key: expected the shape of query, \(1, 4, 2\), got shape \(1, 4, 4\)"):
        RotaryPositions(np.ones((4, 2)), np.ones((4, 4)))


def test_an_odd_dim_with_rotary_positions_is_refused():
    with refused(r"query: expected an even number of columns, got 3; rotary positions turn pairs"):
        RotaryPositions(EYE, EYE)


def test_a_metric_of_another_dim_is_refused_with_both_shapes():
    with refused(r"space: expected a metric of shape \(3, 3\) to fit qk, shape \(1, 3, 3\), got shape \(2, 2\)"):
        Flow(Attention(EYE, EYE), Ellipsoid(np.eye(2)))


def test_a_zero_token_on_a_sphere_is_refused_with_its_place():
    zero = np.stack([START, START * [[1.0], [0.0]]])
    for call in (SPHERE.velocity, SPHERE.step, lambda x: simulate(SPHERE, x, [0.0, 1.0])):
        with refused(r"x0?: expected tokens that are not zero, got a zero vector at token 1 of system \(1,\)"):
            call(zero)
    assert np.isfinite(FREE.velocity(zero)).all()


def test_a_layer_that_lands_on_zero_cannot_be_projected():
    # y + τ w ov y with ov = −1 and weight 1: zero at τ = 1 for a single token, weights without the factor.
    flow = Flow(Attention(EYE, -EYE, normalization="plain"), Sphere())
    with refused(r"x: expected states with a next layer, got one in which token 0 lands on zero"):
        flow.step(START[:1], tau=1.0)
    run = simulate(flow, START[:1], [0.0, 1.0, 2.0], engine="layers", tau=1.0)
    assert str(run.status) == "not finite"
    assert run.reached.tolist() == [True, False, False]
    np.testing.assert_array_equal(run.states, [START[:1]] * 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_with_its_place(bad):
    broken = START.copy()
    broken[1, 2] = bad
    for call in (FREE.velocity, FREE.step, lambda x: simulate(FREE, x, [0.0, 1.0])):
        with refused(rf"x0?: expected finite numbers, got {bad} at index \(1, 2\)"):
            call(broken)
    matrix = EYE.copy()
    matrix[0, 1] = bad
    for build in (
        lambda m: Attention(m, EYE),
        lambda m: Attention(EYE, m),
        Ellipsoid,
        lambda m: Periodic(m[None], 1.0),
    ):
        with refused(r"(qk|ov|metric|matrices): expected finite numbers"):
            build(matrix)
    with refused(r"amplitude: expected finite numbers"):
        Sinusoidal(EYE, bad, 1.0, 0.0)


@pytest.mark.parametrize("kind", [np.int64, np.complex128, bool])
def test_integer_boolean_and_complex_arrays_are_refused(kind):
    for call in (
        FREE.velocity,
        lambda x: simulate(FREE, x, [0.0, 1.0]),
        lambda x: Attention(x[:2, :2], np.eye(2)),
        lambda x: Attention(np.eye(2), torch.tensor(x[:2, :2])),
        lambda x: Ellipsoid(x[:2, :2]),
    ):
        with refused(r"(x|x0|qk|ov|metric): expected real floating-point numbers, got dtype", ArgumentTypeError):
            call(START.astype(kind))


@pytest.mark.parametrize("value", ["softmax", None, 2.0, 3])
def test_what_is_no_matrix_is_refused(value, unchecked):
    with refused(r"qk: expected a matrix, a schedule or a function of time", ArgumentTypeError):
        Attention(value, EYE)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0, 1.0, 1.0], r"increasing times, got 1\.0 at index 1 followed by 1\.0"),
        ([0.0, 2.0, 1.0], r"increasing times, got 2\.0 at index 1 followed by 1\.0"),
        ([1.0, 0.0], r"increasing times, got 1\.0 at index 0 followed by 0\.0"),
        ([0.0], r"at least two times, shape \(time,\), got shape \(1,\)"),
        ([[0.0, 1.0]], r"at least two times, shape \(time,\), got shape \(1, 2\)"),
        ([0.0, np.nan], r"finite numbers, got nan at index \(1,\)"),
        ([0.0, np.inf], r"finite numbers, got inf at index \(1,\)"),
    ],
)
def test_times_must_increase(times, message):
    with refused("times: expected " + message):
        simulate(FREE, START, times)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"engine": "turbo"},
            r"engine: expected one of auto, batched, compiled, stiff, hardmax, layers, fixed, sde, got 'turbo'",
        ),
        ({"method": "rk45"}, r"method: expected one of dopri5, bosh3, dop853, rk4, heun, euler, got 'rk45'"),
        (
            {"method": "rk4", "engine": "batched"},
            r"method: expected one of dopri5, bosh3, dop853 for engine batched, got 'rk4'; or take engine fixed \(by",
        ),
        ({"method": "euler"}, r"method: expected one of dopri5, bosh3, dop853 for engine batched, got 'euler'"),
        (
            {"method": "rk4", "engine": "compiled"},
            r"method: expected one of dopri5, bosh3, dop853 for engine compiled, got 'rk4'; or take engine fixed \(by",
        ),
        ({"engine": "fixed"}, r"step: expected a positive time for engine='fixed', got None"),
        (
            {"engine": "batched", "step": 0.1},
            r"engine: expected 'fixed' or 'sde' or 'auto' where step is .*, got 'batched'",
        ),
        (
            {"engine": "layers", "step": 0.1},
            r"engine: expected 'fixed' or 'sde' or 'auto' where step is .*, got 'layers'",
        ),
        ({"engine": "batched", "tau": 0.5}, r"engine: expected 'layers' where tau is given, got 'batched'"),
        ({"engine": "fixed", "step": 0.1, "tau": 1.0}, r"engine: expected 'layers' where tau is given, got 'fixed'"),
        ({"engine": "stiff", "tau": 1.0}, r"engine: expected 'layers' where tau is given, got 'stiff'"),
        (
            {"engine": "layers", "rtol": 1e-8},
            r"engine: expected 'batched' or 'compiled' or 'stiff' or 'auto' where rtol is given, got 'layers'; or",
        ),
        ({"engine": "fixed", "step": 0.1, "atol": 1e-10}, r"engine: expected .* where atol is given, got 'fixed'"),
        (
            {"step": 0.1, "rtol": 1e-8},
            r"engine: expected 'batched' or 'compiled' or 'stiff' where rtol is given, got 'auto', which takes 'fixed'",
        ),
        ({"tau": 1.0}, r"engine: expected 'layers' where tau is given, got 'auto', which takes 'batched' here"),
        (
            {"engine": "stiff", "method": "bosh3"},
            r"engine: expected 'batched' or 'compiled' or 'fixed' or 'auto' where method is giv",
        ),
        (
            {"engine": "layers", "method": "dopri5"},
            r"engine: expected 'batched' .* where method is given, got 'layers'",
        ),
        ({"step": 0.0}, r"step: expected a positive .*got 0\.0"),
        ({"step": -1.0}, r"step: expected a positive .*got -1\.0"),
        ({"step": np.inf}, r"step: expected a positive .*got inf"),
        ({"step": np.nan}, r"step: expected a positive .*got nan"),
        ({"rtol": 0.0}, r"rtol: expected a positive finite number, got 0\.0"),
        ({"atol": -1e-9}, r"atol: expected a positive finite number, got -1e-09"),
        ({"rtol": np.nan}, r"rtol: expected a positive finite number, got nan"),
        ({"max_steps": 0}, r"max_steps: expected a whole number of at least 1, or None, got 0"),
        ({"engine": "layers", "tau": 0.0}, r"tau: expected a positive .*got 0\.0"),
        ({"engine": "layers", "tau": np.nan}, r"tau: expected a positive .*got nan"),
    ],
)
def test_unknown_or_impossible_options_are_named(options, message, unchecked):
    with refused(message):
        simulate(FREE, START, [0.0, 1.0], **options)


def test_an_unknown_precision_is_refused(unchecked):
    wanted = r"dtype: expected 'float64' or 'float32', or torch\.float64 or torch\.float32, got "
    for dtype in (torch.float16, 32, np.float32):
        with refused(wanted if dtype == torch.float16 else "dtype: expected a dtype or str, got ", ArgumentTypeError):
            simulate(FREE, START, [0.0, 1.0], dtype=dtype)  # pyright: ignore[reportArgumentType]
    for word in ("float16", "double", ""):
        with refused(wanted + repr(word)):
            simulate(FREE, START, [0.0, 1.0], dtype=word)


def test_a_precision_may_be_a_word():
    for word, kind in (("float32", np.float32), ("float64", np.float64)):
        assert simulate(FREE, START, [0.0, 1.0], dtype=word).states.dtype == kind


def test_layers_are_counted_in_whole_numbers():
    with refused(r"times: expected whole numbers, got 0\.5; the times of engine='layers' count layers"):
        simulate(FREE, START, [0.0, 0.5, 1.0], engine="layers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "hard"}, r"weights: expected 'softmax', 'linear', 'exponential' or 'hardmax', got 'hard'"),
        ({"normalization": "sqrt"}, r"normalization: expected 'plain', 'paper' or None, got 'sqrt'"),
    ],
)
def test_unknown_options_of_attention_are_named(options, message, unchecked):
    with refused(message):
        Attention(EYE, EYE, **options)


def test_wrong_parts_of_a_flow_are_named(unchecked):
    with refused(r"attention: expected an Attention, got ndarray", ArgumentTypeError):
        Flow(EYE, Free())  # pyright: ignore[reportArgumentType]
    with refused(
        r"space: expected Free\(\), Sphere\(\), Ellipsoid\(metric\) or a space of your own, got 'sphere'",
        ArgumentTypeError,
    ):
        Flow(Attention(EYE, EYE), "sphere")  # pyright: ignore[reportArgumentType]
    with refused(r"positions: expected a Positions, got ndarray", ArgumentTypeError):
        Attention(EYE, EYE, positions=EYE)  # pyright: ignore[reportArgumentType]
    with refused(r"projection: expected 'orthogonal' or 'remark_5_1', got 'remark'"):
        Flow(Attention(EYE, EYE), Sphere(), "remark")  # pyright: ignore[reportArgumentType]


def test_remark_5_1_asks_for_one_constant_head_and_its_own_metric():
    with refused(r"projection: expected one head with a constant ov on an ellipsoid for 'remark_5_1', got 2 heads"):
        Flow(Attention(np.ones((2, 3, 3)), np.stack([EYE, EYE])), Sphere(), "remark_5_1")
    with refused(r"projection: .*Free\(\)"):
        Flow(Attention(EYE, EYE), Free(), "remark_5_1")
    with refused(r"projection: .*ov Sinusoidal"):
        Flow(Attention(EYE, Sinusoidal(EYE, 1.0, 1.0, 0.0)), Sphere(), "remark_5_1")
    with refused(r"space: expected the metric ov\^T ov for 'remark_5_1', got a metric that differs from it by 0\.75"):
        Flow(Attention(EYE, 2 * EYE), Sphere(), "remark_5_1")
    Flow(Attention(EYE, 2 * EYE), Ellipsoid(4 * EYE), "remark_5_1")
    two = np.stack([1e6 * EYE, EYE])  # the first metric is right, the second twice what it should be
    with refused(r"space: expected the metric ov\^T ov for 'remark_5_1', got a metric that differs from it by 1 of"):
        Flow(Attention(EYE, two[:, None]), Ellipsoid(np.stack([1e12 * EYE, 2 * EYE])), "remark_5_1")


@pytest.mark.long
def test_a_function_of_time_is_checked_at_every_time():
    def shrinking(t: float) -> np.ndarray:
        return np.eye(3) if t < 0.5 else np.eye(2)

    # The shape is that at the first time of a run; a velocity has one time only.
    with refused(r"qk\(.*\): expected a matrix of shape \(1, 3, 3\) at every time, got shape \(1, 2, 2\)"):
        simulate(Flow(Attention(shrinking, EYE), Free()), START, [0.0, 1.0], engine="batched")
    with refused(r"ov: expected the heads and dim of qk, shape \(1, 2, 2\), got shape \(1, 3, 3\)"):
        Flow(Attention(shrinking, EYE), Free()).velocity(START, 0.7)

    def failing(t: float) -> np.ndarray:
        return np.full((3, 3), np.nan) if t > 0.5 else EYE

    flow = Flow(Attention(EYE, failing), Free())
    for engine, times in (("batched", [0.0, 0.25, 1.0]), ("stiff", [0.0, 0.25, 1.0]), ("layers", [0.0, 1.0, 2.0])):
        run = simulate(flow, START, times, engine=engine)
        assert str(run.status) == "not finite"
        assert run.reached.tolist() == [True, True, False]
        assert 0.25 <= float(run.end_times) <= (1.0 if engine == "layers" else 0.5 + 1e-9)
        assert np.isfinite(run.states).all()


def test_messages_are_one_line():
    with pytest.raises(ArgumentValueError) as caught:
        simulate(FREE, np.ones((2, 4)), [0.0, 1.0])
    assert re.fullmatch(r"[^\n]+", str(caught.value))
