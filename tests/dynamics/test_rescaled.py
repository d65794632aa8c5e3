"""The rescaled frame z = exp(−t V) x: against x itself, closed forms, and times at which x overflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.linalg import expm
from torch import Tensor

import tokendynamics as td
from tokendynamics.attention import FactoredMatrix
from tokendynamics.dynamics._field import jacobian, jacobian_vector
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.dynamics.rescaled import check_rescaled, rescaled, resolved
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.specification import SpecificationError, parse
from tokendynamics.theorems import ATLAS
from tokendynamics.theorems.outcomes import outcomes_of

Engine = Literal["batched", "compiled", "stiff", "fixed"]
CONTROLLED: tuple[Engine, ...] = ("batched", "compiled", "stiff")
ENGINES: tuple[Engine, ...] = (*CONTROLLED, "fixed")
EYE = np.eye(3)
TIMES = np.array([0.0, 0.4, 1.0, 1.8])
RNG = np.random.default_rng(0)
QK = RNG.normal(size=(3, 3))
START = torch.from_numpy(RNG.normal(size=(4, 5, 3)))
TURNING = np.array([[0.3, -1.0, 0.0], [1.0, 0.3, 0.0], [0.0, 0.0, 0.5]])
SHEAR = np.array([[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.5]])
SYMMETRIC = np.array([[0.7, 0.2, 0.0], [0.2, 0.4, -0.3], [0.0, -0.3, 0.1]])
FLOWS: dict[str, dict[str, Any]] = {
    "multiple": {"qk": QK, "ov": 0.7 * EYE},
    "graph": {"qk": QK, "ov": 0.7 * EYE, "mask": np.roll(np.tri(5, dtype=bool), 1, axis=1)},
    "causal": {"qk": QK, "ov": 0.7 * EYE, "causal": True},
    "contracting": {"qk": QK, "ov": -EYE},
    "paper": {"qk": QK, "ov": EYE, "normalization": "paper"},
    "systems": {"qk": QK, "ov": np.linspace(0.3, 0.9, 4)[:, None, None, None] * EYE},
    "heads": {"qk": np.stack([QK, QK.T]), "ov": np.stack([0.5 * EYE, 0.2 * EYE])},
    "symmetric": {"qk": QK, "ov": SYMMETRIC},
    "general": {"qk": QK, "ov": RNG.normal(size=(3, 3)) * 0.6},
    "of each system": {"qk": QK, "ov": RNG.normal(size=(4, 1, 3, 3)) * 0.5},
    "turning": {"qk": QK, "ov": TURNING},
    "shear": {"qk": QK, "ov": SHEAR},
    "commuting heads": {"qk": np.stack([QK, QK.T]), "ov": np.stack([0.5 * EYE, np.diag([0.1, 0.2, 0.3])])},
    "moving logits": {"qk": td.Sinusoidal(QK, 1.0, 2.0, 0.3), "ov": SYMMETRIC},
    "factored": {"qk": FactoredMatrix(torch.from_numpy(QK[:, :2]), torch.from_numpy(QK[:, 1:])), "ov": 0.7 * EYE},
}
MULTIPLES = ("multiple", "causal", "contracting", "paper", "systems", "heads", "factored")


def flow(qk: Any, ov: Any, **options: Any) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, **options), td.Free())


def growth(of: td.Flow) -> np.ndarray:
    """V = ω Σ_h ov_h, (system, dim, dim)."""
    total = of.weight_factor * of.attention.ov.matrix_at(0.0).sum(dim=-3).double().numpy()
    return np.broadcast_to(total.reshape(-1, *total.shape[-2:]), (len(START), *total.shape[-2:]))


def through(of: td.Flow, states: Tensor, times: np.ndarray) -> np.ndarray:
    """exp(−tV) x of states (system, time, token, dim)."""
    powers = np.stack([[expm(-t * one) for t in times] for one in growth(of)])
    return np.einsum("stij,stnj->stni", powers, states.numpy())


def tight(engine: Engine) -> dict[str, Any]:
    return {"engine": engine, "step": 0.02} if engine == "fixed" else {"engine": engine, "rtol": 1e-10, "atol": 1e-12}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("engine", ENGINES)
def test_rescaled_tokens_are_those_of_the_flow(engine: Engine, name: str) -> None:
    of = flow(**FLOWS[name])
    run = td.simulate(of, START, TIMES, rtol=1e-11, atol=1e-13, engine="batched")
    if engine == "compiled" and name not in MULTIPLES:
        with pytest.raises(
            ArgumentValueError, match=r"'batched', .* for a (rescaled frame in which ov is no multiple|mask)"
        ):
            td.simulate(of, START, TIMES, engine="compiled", frame="rescaled")
        return
    z = td.simulate(of, START, TIMES, frame="rescaled", **tight(engine))
    assert z.engine == engine
    assert z.frame == "rescaled"
    np.testing.assert_allclose(
        z.tensor.numpy(), through(of, run.tensor, TIMES), rtol=0, atol=1e-6 if engine == "fixed" else 3e-8
    )


def test_many_small_systems_move_as_each_does() -> None:
    starts = torch.from_numpy(np.random.default_rng(1).normal(size=(70, 5, 3)))
    for name in ("multiple", "heads", "symmetric", "turning"):
        field = rescaled(flow(**FLOWS[name]).field(starts))
        times = torch.linspace(0.0, 3.0, 70, dtype=torch.float64)
        together = field.velocity(starts, times)
        for system in (0, 33, 69):
            alone = field.velocity(starts[system : system + 1], float(times[system]))
            torch.testing.assert_close(together[system], alone[0], rtol=1e-12, atol=1e-13)


def test_sequences_of_many_tokens_move_by_the_sums_written_out() -> None:
    """Beyond 128 tokens weights are never formed; here they are, one receiver at a time."""
    x = np.random.default_rng(2).normal(size=(150, 3))
    field = rescaled(flow(QK, SYMMETRIC).field(torch.from_numpy(x)))
    velocity = field.velocity(torch.from_numpy(x)[None], 0.7)[0].numpy()
    power = expm(0.7 * SYMMETRIC)
    for i in (0, 149):
        logits = power @ x[i] @ QK @ (power @ x.T)
        weights = np.exp(logits - logits.max())
        assert np.allclose(velocity[i], SYMMETRIC @ (weights @ x / weights.sum() - x[i]), atol=1e-12)


@pytest.mark.parametrize("name", ["multiple", "heads", "symmetric", "turning", "shear"])
def test_the_jacobian_is_that_of_automatic_differentiation(name: str) -> None:
    x = 0.4 * START[:1]
    field = rescaled(flow(**FLOWS[name]).field(x))
    for t in (0.0, 1.3):
        automatic = torch.autograd.functional.jacobian(lambda y, t=t: field.velocity(y[None], t)[0], x[0])
        computed = jacobian(resolved(field, x), x, t)[0]
        torch.testing.assert_close(computed, cast(Tensor, automatic), rtol=1e-11, atol=1e-11)
        direction = torch.from_numpy(np.random.default_rng(3).normal(size=x.shape))
        along = torch.einsum("iakb,kb->ia", computed, direction[0])
        torch.testing.assert_close(jacobian_vector(field, x, t, direction)[0], along, rtol=1e-11, atol=1e-11)


def test_the_derivative_stays_finite_where_logits_are_sharper_than_floats() -> None:
    x = START[:1].clone()
    x[0, 1] = x[0, 0] * (1 + 1e-16) + 1e-17
    for name in ("multiple", "symmetric"):
        field = rescaled(flow(**FLOWS[name]).field(x))
        assert bool(torch.isfinite(field.velocity(x, 1e4)).all())
        assert float(jacobian(resolved(field, x), x, 1e4).abs().max()) < 1e17


def run_of(engine: Engine, of: td.Flow, start: Any, times: Any, *, step: float = 0.02, **options: Any) -> td.Trajectory:
    """Run rescaled tokens, tightly."""
    chosen: dict[str, Any] = {"step": step} if engine == "fixed" else {"rtol": 1e-10, "atol": 1e-12}
    return td.simulate(of, start, times, engine=engine, frame="rescaled", **chosen, **options)


@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ov", [0.3, 1.0, -2.0])
def test_one_token_does_not_move(engine: Engine, ov: float) -> None:
    """One free token is exp(t ov) x."""
    run = run_of(engine, flow([[2.0]], [[ov]]), [[1.7]], [0.0, 30.0], step=1.0)
    assert float(run.tensor[-1]) == 1.7
    assert str(run.status) == "reached the horizon"


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_without_logits_tokens_decay_to_their_mean(engine: Engine) -> None:
    """qk = 0: z = z̄ + e^{−tV} (z(0) − z̄), here with one direction that grows and one that shrinks."""
    ov = 0.7 * EYE if engine == "compiled" else np.diag([0.7, 0.2, -0.1])
    run = run_of(engine, flow(0 * EYE, ov), START, [0.0, 1.0, 6.0])
    mean = START.mean(dim=1, keepdim=True).numpy()
    for index, t in enumerate((0.0, 1.0, 6.0)):
        wanted = mean + (START.numpy() - mean) * np.exp(-t * np.diag(ov))
        np.testing.assert_allclose(run.tensor[:, index].numpy(), wanted, atol=1e-8)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", CONTROLLED)
def test_two_opposite_tokens_have_the_limit_of_their_integral(engine: Engine) -> None:
    """Tokens ±x with ov = λ, qk = β: x' = λ x tanh(β x²).

    With y = β x² that is d log y / dt = 2λ tanh y, and so
    ``log(z(∞)² / z(0)²) = ∫ (1 − coth y) d log y`` from y(0) to infinity. At t = 1000, x is about e^800.
    """
    rate, beta, start = 0.8, 1.5, 0.6
    run = run_of(engine, flow([[beta]], [[rate]]), [[start], [-start]], [0.0, 20.0, 1000.0])
    lost = quad(lambda y: (1 - 1 / np.tanh(y)) / y, beta * start**2, 40.0, epsabs=1e-13)[0]
    wanted = start * np.exp(lost / 2)
    np.testing.assert_allclose(run.tensor[1:, :, 0].numpy(), [[wanted, -wanted]] * 2, atol=1e-8)
    assert str(run.status) == "reached the horizon"


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", CONTROLLED)
def test_where_exponentials_overflow_tokens_are_at_their_hardmax(engine: Engine) -> None:
    """At t = 1000 each token is at a vertex of the hull, the one that its own logits are largest for."""
    start = np.array([[1.0, 0.2, 0.4], [-0.4, 1.1, -0.7], [-0.9, -0.8, 0.2], [0.1, 0.05, -0.1], [0.3, -0.2, 0.1]])
    of = flow(np.diag([1.0, 2.0, 1.5]), EYE)
    run = run_of(engine, of, start, [0.0, 30.0, 1000.0])
    late = run.tensor[-1].numpy()
    assert np.isfinite(late).all()
    np.testing.assert_allclose(late, run.tensor[1].numpy(), atol=1e-9)
    logits = late @ np.diag([1.0, 2.0, 1.5]) @ late.T
    assert (logits.max(axis=1) - logits.diagonal()).max() < 1e-9
    assert np.ptp(late, axis=0).min() > 0.5  # at several vertices: at one point this would hold of any logits
    plain = td.simulate(of, start, [0.0, 1000.0], engine="batched")
    assert str(plain.status) == "diverged"


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["batched", "stiff"])
def test_the_growth_that_qk_sees_counts_and_not_the_largest(engine: Engine) -> None:
    """qk that is 0 in the fastest direction: at t = 700 its logits grow like e^{2·0.1·700} while e^{2·700} overflows.

    The slow coordinate is then a flow of its own, and the fast one follows with the same weights.
    """
    start = np.array([[1.0, 0.9], [-1.0, 0.5], [0.4, -0.7]])
    run = run_of(engine, flow(np.diag([0.0, 1.0]), np.diag([1.0, 0.1])), start, [0.0, 700.0])
    alone = run_of(engine, flow([[1.0]], [[0.1]]), start[:, 1:], [0.0, 700.0])
    np.testing.assert_allclose(run.tensor[-1, :, 1].numpy(), alone.tensor[-1, :, 0].numpy(), atol=1e-7)
    ends = run.tensor[-1].numpy()
    top, bottom = ends[0], ends[2]
    np.testing.assert_allclose(ends[1], top, atol=1e-7)
    assert abs(top - bottom).max() > 0.5


@pytest.mark.long
def test_times_below_zero_and_runs_that_continue_have_one_clock() -> None:
    """z = exp(−t V) x with the time itself: z(t0) is the start, whatever t0 is."""
    of, times = flow(QK, SYMMETRIC), np.array([-1.0, 0.0, 1.5])
    x = td.simulate(of, START, times, rtol=1e-11, atol=1e-13)
    z = td.simulate(of, torch.from_numpy(through(of, x.tensor[:, :1], times[:1]))[:, 0], times, frame="rescaled")
    np.testing.assert_allclose(z.tensor.numpy(), through(of, x.tensor, times), atol=1e-6)
    whole = td.simulate(of, START, [0.0, 1.0, 3.0], frame="rescaled")
    first = td.simulate(of, START, [0.0, 1.0], frame="rescaled")
    longer = td.simulate(of, first, [3.0], frame="rescaled")
    torch.testing.assert_close(longer.tensor[:, -1], whole.tensor[:, -1], rtol=0, atol=1e-6)
    with pytest.raises(ArgumentValueError, match=r"frame: expected 'rescaled', that of the trajectory, got 'tokens'"):
        td.simulate(of, first, [3.0])


@pytest.mark.long
def test_coordinates_in_the_span_of_few_tokens_give_the_same() -> None:
    wide = torch.from_numpy(np.random.default_rng(5).normal(size=(2, 4, 40)))
    qk = np.random.default_rng(6).normal(size=(40, 40)) / 6
    for causal in (False, True):
        of = flow(qk, 0.5 * np.eye(40), causal=causal)
        run = td.simulate(of, wide, [0.0, 9.0], frame="rescaled")
        assert any("span reduction" in note for note in run.notes)
        fixed = td.simulate(of, wide, [0.0, 9.0], frame="rescaled", step=0.05)
        torch.testing.assert_close(run.tensor, fixed.tensor, rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "engine", [pytest.param(one, marks=pytest.mark.slow if one == "compiled" else ()) for one in ENGINES]
)
def test_events_are_those_of_rescaled_tokens(engine: Engine) -> None:
    near = torch.tensor([[1.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    still = run_of(engine, flow(0 * np.eye(2), np.eye(2)), near, [0.0, 60.0], events=[AtRest(1e-6)], step=0.04)
    assert str(still.status) == "equilibrium"
    # |z_i − z̄| = e^{−t}/4 is the speed.
    assert float(still.end_times) == pytest.approx(np.log(0.25 / 1e-6), abs=0.05)
    alike = run_of(engine, flow(0 * np.eye(2), np.eye(2)), near, [0.0, 60.0], events=[Consensus(1e-3)], step=0.04)
    assert str(alike.status) == "consensus"
    bounded = run_of(engine, flow(np.eye(2), np.eye(2)), 3 * near, [0.0, 400.0], events=[NormAbove(10.0)], step=1.0)
    assert str(bounded.status) == "reached the horizon"


def test_rest_ends_no_run_where_another_direction_may_take_over() -> None:
    start = torch.tensor([[1.0, 3.0], [2.0, -3.0]], dtype=torch.float64)
    for ov in (np.diag([1.0, 0.5]), -np.eye(2)):
        run = td.simulate(flow(np.eye(2), ov), start, [0.0, 5.0], frame="rescaled", events=[AtRest(1e-6)])
        assert str(run.status) == "reached the horizon"
        assert any("AtRest ended no run" in note for note in run.notes)


@pytest.mark.slow
def test_a_direction_in_which_tokens_shrink_diverges_in_z() -> None:
    """ov = −1, qk = 0 on one coordinate: z − z̄ grows like e^t, and says so in the end."""
    of = flow([[0.0]], [[-1.0]])
    run = td.simulate(of, [[1.0], [2.0]], [0.0, 400.0], engine="batched", rtol=1e-6, frame="rescaled")
    assert str(run.status) == "diverged"
    assert float(run.end_times) == pytest.approx(np.log(2e100), rel=1e-2)


def test_gradients_reach_the_start() -> None:
    start = START[0].clone().requires_grad_()
    of = flow(QK, SYMMETRIC)
    end = td.simulate(of, start, [0.0, 1.0], step=0.05, frame="rescaled").tensor[-1]
    (slope,) = torch.autograd.grad(end[0, 0], start)
    shifted = START[0].clone()
    shifted[2, 1] += 1e-6
    ahead = td.simulate(of, shifted, [0.0, 1.0], step=0.05, frame="rescaled").tensor[-1]
    assert float(slope[2, 1]) == pytest.approx(float((ahead[0, 0] - end[0, 0]).detach()) / 1e-6, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_single_precision_keeps_its_limit() -> None:
    of = flow(np.eye(3), 0.4 * EYE + 0.2 * SYMMETRIC)
    run = td.simulate(of, START.float(), [0.0, 300.0], frame="rescaled", rtol=1e-4, atol=1e-5)
    exact = td.simulate(of, START, [0.0, 300.0], frame="rescaled", engine="batched")
    assert run.tensor.dtype == torch.float32
    assert float((run.tensor.double() - exact.tensor).abs().max()) < 0.02


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": td.Sphere()}, "'tokens' outside free space, got 'rescaled' with sphere"),
        ({"weights": "linear"}, "'tokens' without softmax or hardmax weights, got 'rescaled' with linear weights"),
        (
            {"weights": "exponential"},
            "'tokens' without softmax or hardmax weights, got 'rescaled' with exponential weights",
        ),
        ({"positions": td.AbsolutePositions(np.ones((5, 3)))}, "'tokens' with positions, got 'rescaled' with Abs"),
        ({"frozen": [1]}, "'tokens' with frozen tokens, got 'rescaled' with 1 of them"),
        (
            {"ov": td.Periodic([EYE, 2 * EYE], period=1.0)},
            "'tokens' where ov depends on time, got 'rescaled' with",
        ),
        ({"ov": torch.eye(3).double().requires_grad_()}, "'tokens' where gradients by ov are wanted"),
        ({"qk": np.stack([QK, QK]), "ov": np.stack([SHEAR, TURNING])}, "'tokens' for heads whose ov do not commute"),
    ],
)
def test_flows_without_a_rescaled_frame_are_refused(changes: dict[str, Any], message: str) -> None:
    changes = {"qk": QK, "ov": EYE, "space": td.Free(), **changes}
    space, frozen = changes.pop("space"), changes.pop("frozen", ())
    of = td.Flow(td.Attention(**changes), space, frozen=frozen)
    with pytest.raises(ArgumentValueError, match=f"frame: expected {message}"):
        check_rescaled(of)
    with pytest.raises(ArgumentValueError, match=f"frame: expected {message}"):
        td.simulate(of, START, TIMES, frame="rescaled")


def test_wrong_words_and_starts_are_refused(unchecked: None) -> None:
    wrong: Any = "scaled"
    of = flow(QK, EYE)
    with pytest.raises(ArgumentValueError, match=r"frame: expected 'tokens' or 'rescaled'"):
        td.simulate(of, START, TIMES, frame=wrong)
    with pytest.raises(
        ArgumentValueError, match=r"'batched', 'compiled', 'stiff' or 'fixed' \(by step=\) for the rescaled frame"
    ):
        td.simulate(of, START, [0.0, 1.0], engine="layers", frame="rescaled")
    with pytest.raises(ArgumentValueError, match=r"x0: expected finite"):
        td.simulate(of, torch.full_like(START, torch.nan), TIMES, frame="rescaled")


def test_auto_takes_an_engine_that_has_the_frame() -> None:
    many = torch.from_numpy(np.random.default_rng(7).normal(size=(10_000, 2, 2)))
    run = td.simulate(flow(np.eye(2), np.diag([1.0, 0.5])), many, [0.0, 0.1], frame="rescaled")
    assert run.engine == "batched"


def test_a_trajectory_keeps_its_frame_on_disk(tmp_path: Path) -> None:
    run = td.simulate(flow(QK, EYE), START, TIMES, frame="rescaled")
    assert any("rescaled tokens" in sentence for sentence in run.findings)
    again = td.Trajectory.open(run.save(tmp_path / "run.zarr"))
    assert again.frame == "rescaled"
    np.testing.assert_array_equal(again.dataset.norm.values, run.tensor.norm(dim=-1).numpy())
    np.testing.assert_array_equal(np.asarray(again.states), run.tensor.numpy())


SPECIFICATION = """
[attention]
qk = "identity"
ov = "identity"
[space]
kind = "free"
[start]
tokens = [[1.0, 0.2], [-0.4, 1.1], [-0.9, -0.8]]
[time]
times = [0.0, 1.0, 900.0]
[solver]
frame = "rescaled"
"""


@pytest.mark.long
def test_a_specification_file_has_a_frame_and_its_page_says_so(tmp_path: Path) -> None:
    simulation = td.specification.run(parse(SPECIFICATION, "a.toml"))
    assert simulation.trajectory.frame == "rescaled"
    assert {one.statement for one in simulation.certificates or ()} == {
        "clusters-3.1",
        "clusters-5",
        "clusters-8-hull",
        "clusters-12",
        "clusters-4-codimension",
    }
    assert "rescaled tokens z = exp(−t ov) x" in simulation.trajectory.report(tmp_path / "run.html").read_text("utf-8")
    played = simulation.trajectory.explore(tmp_path / "explorer.html").read_text("utf-8")
    assert "A browser does not compute rescaled tokens" in played
    with pytest.raises(SpecificationError, match="'potential': expected frame 'tokens'"):
        td.specification.run(parse(SPECIFICATION + '[output]\nfigures = ["potential"]\n', "a.toml"))
    with pytest.raises(SpecificationError, match="engine 'layers' has no frame 'rescaled'"):
        td.specification.run(parse(SPECIFICATION.replace("1.0, 900.0", "1.0, 2.0") + 'engine = "layers"\n', "a.toml"))


def test_what_is_about_x_refuses_rescaled_tokens() -> None:
    run = td.simulate(flow(np.eye(3), EYE), START[0], TIMES, frame="rescaled")
    with pytest.raises(ArgumentValueError, match=r"trajectory: expected a run in the frame 'tokens'"):
        outcomes_of(run)
    with pytest.raises(ArgumentValueError, match=r"a run in the frame 'tokens' for positional-3.1"):
        td.certify(run, ["positional-3.1"])
    assert {one.statement for one in td.certify(run)} <= {one.name for one in ATLAS if one.rescaled}
    with pytest.raises(ArgumentValueError, match=r"probe: expected None for rescaled tokens"):
        td.figures.phase_plane(run, probe=0)
    assert td.figures.phase_plane(run).axes[0].get_xlabel() == "z[0]"
