"""Each false claim of `positional` is contradicted by a stored counterexample, evaluated by a second route."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import softmax

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.spaces import Free
from tokendynamics.theorems import certify, check
from tokendynamics.theorems.contraction import (
    contraction_form,
    largest_ratio,
    norm_bound,
)
from tokendynamics.theorems.outcomes import outcomes_of
from tokendynamics.theorems.statements._positional_remark_3_2 import COUNTEREXAMPLE
from tokendynamics.theorems.statements.positional_remark_3_5 import (
    observed_criterion,
    paper_conjecture,
)

TIMES = np.concatenate([[0.0], np.geomspace(0.1, 200.0, 67)])

DIVERGING_COUNTEREXAMPLE = {"qk": [[1.0, 2.0], [-2.0, 1.0]], "ov": [[0.6, -0.8], [0.8, 0.6]], "x0": [[1.0, 0.0]]}
"""A = qk · ov^{−1} has the symmetric part −I and qk_sym = I, but ov has the eigenvalues 0.6 ± 0.8i: one token, or any
number of equal ones, moves by x' = ov x, and |x| = e^{0.6 t}."""

RING_COUNTEREXAMPLE = {
    "qk": [[1.0, 5.671281819617709], [-5.671281819617709, 1.0]],
    "ov": [[-1.0, 0.0], [0.0, -1.0]],
    "x0": [[1.5, 0.0], [-0.75, 1.299038105676658], [-0.75, -1.299038105676658]],
}
"""Three tokens at 120° with qk = a rotation by 80° over its cosine, and ov = −I. A_sym = −I and qk_sym = I, and every
Re λ(V) is −1; yet the tokens run away from each other for ever. The ring keeps its shape, and its radius obeys
r' = r (1 − 3 w(r²))/2 with w the weight of a token on itself, which tends to 0: |x| grows like e^{t/2}. So a V whose
eigenvalues all have negative real parts is no proof of boundedness either."""

EQUILIBRIUM_EXAMPLE = {
    "qk": [[0.1, 0.1], [0.7, -0.3]],
    "ov": [[0.0, 1.2], [-0.8, -0.8]],
    "x0": [[-1.7, -0.8], [1.1, 0.3], [0.6, -0.9], [-0.3, 2.4]],
}
"""A third outcome, with qk_sym indefinite: tokens come to rest on a line on which q_qk = 0, where all weights are
equal, with mean zero. With qk_sym definite and ov invertible zero is the only equilibrium (`positional` B.5)."""

PRINTED_RATIO_COUNTEREXAMPLE = {
    "qk": [[0.01, 0.0], [0.0, 0.01]],
    "ov": [[-0.01, 0.0], [0.0, -0.01]],
    "x0": [[1.0, 0.0], [-1.0, 0.0]],
    "printed_c": 100.0,
    "time": 0.5,
}
"""Here A = −I, so ‖x‖²_A = |x|² = 100 q_qk(x): the printed inequality ‖·‖²_A ≥ c‖·‖²_qk allows c = 100, and the bound
with that c is 0.011 at t = 0.5, where ‖x‖²_A is still 0.9999. The right c, with q_qk ≥ c‖·‖²_A, is 0.01."""


def run_of(example: dict, times: np.ndarray = TIMES) -> Trajectory:
    flow = Flow(Attention(example["qk"], example["ov"]), Free())
    start = torch.tensor(example["x0"], dtype=torch.float64)
    return simulate(flow, start, times, events=(NormAbove(1e5),), max_steps=20_000)


def signs(flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of A_sym and of qk_sym, by numpy."""
    qk, ov = (schedule.matrix_at(0.0)[0].numpy() for schedule in (flow.attention.qk, flow.attention.ov))
    a = qk @ np.linalg.inv(ov)
    return np.linalg.eigvalsh(a + a.T) / 2, np.linalg.eigvalsh(qk + qk.T) / 2


def test_distances_can_grow_for_a_negative_definite_form_that_is_not_symmetric() -> None:
    a, qk, x = (np.array(COUNTEREXAMPLE[key]) for key in ("A", "qk", "x0"))
    assert np.linalg.eigvalsh(a + a.T).max() < 0
    weights = np.exp(x @ qk @ x.T)
    velocity = weights / weights.sum(axis=1, keepdims=True) @ x @ np.linalg.solve(a, qk).T
    i, j = COUNTEREXAMPLE["pair"]
    rate = (x[i] - x[j]) @ (a + a.T) @ (velocity[i] - velocity[j])
    assert rate == pytest.approx(COUNTEREXAMPLE["rate"], rel=1e-10)
    assert rate < 0

    run = simulate(Flow(Attention(qk, np.linalg.solve(a, qk)), Free()), x, np.array([0.0, 1e-3, 2e-3]))
    forms = [(state[i] - state[j]) @ a @ (state[i] - state[j]) for state in run.states]
    assert np.diff(forms) == pytest.approx(2 * [rate * 1e-3], rel=0.05)
    (certificate,) = certify(run, ["positional-remark-3.2"])
    assert certificate.outcome == "fails"
    assert certificate.first_failure == 0.0


@pytest.mark.long
def test_one_token_escapes_although_both_forms_have_the_signs_of_the_remark() -> None:
    run = run_of(DIVERGING_COUNTEREXAMPLE)
    form, logits = signs(run.flow)
    assert form == pytest.approx([-1.0, -1.0])
    assert logits == pytest.approx([1.0, 1.0])
    seen = run.reached
    norms = run.tensor.norm(dim=-1)[seen, 0].numpy()
    assert np.log(norms) == pytest.approx(0.6 * run.times[seen], rel=1e-6, abs=1e-8)
    assert outcomes_of(run) == "diverged"
    assert paper_conjecture(run.flow) == "zero"
    assert observed_criterion(run.flow) == "diverged"
    (certificate,) = certify(run, ["positional-remark-3.5"])
    assert [one.outcome.item() for one in certificate.conditions] == ["fails", "holds"]


@pytest.mark.slow
def test_a_ring_of_three_escapes_although_every_eigenvalue_of_v_is_negative() -> None:
    run = run_of(RING_COUNTEREXAMPLE)
    form, logits = signs(run.flow)
    assert form == pytest.approx([-1.0, -1.0])
    assert logits == pytest.approx([1.0, 1.0])
    assert paper_conjecture(run.flow) == "zero"
    assert observed_criterion(run.flow) == "bounded"
    assert outcomes_of(run) == "diverged"

    angle = np.deg2rad(80) - np.deg2rad([0, 120, 240])

    def radius_rate(t: float, r: np.ndarray) -> np.ndarray:
        logits_of_ring = r[0] ** 2 * np.cos(angle) / np.cos(np.deg2rad(80))
        return r * (1 - 3 * softmax(logits_of_ring)[0]) / 2

    times = run.times[run.reached]
    radius = solve_ivp(radius_rate, (0.0, times[-1]), [1.5], t_eval=times, rtol=1e-11, atol=1e-12).y[0]
    assert run.tensor.norm(dim=-1)[run.reached].amax(dim=-1).numpy() == pytest.approx(radius, rel=1e-5)
    (certificate,) = certify(run, ["positional-remark-3.5"])
    assert [one.outcome.item() for one in certificate.conditions] == ["fails", "fails"]


@pytest.mark.slow
def test_a_small_ring_shrinks_to_zero() -> None:
    small = {**RING_COUNTEREXAMPLE, "x0": (0.2 * np.array(RING_COUNTEREXAMPLE["x0"])).tolist()}
    run = run_of(small, np.concatenate([[0.0], np.geomspace(1.0, 4000.0, 40)]))
    assert outcomes_of(run) == "zero"


@pytest.mark.long
def test_tokens_may_rest_away_from_zero() -> None:
    run = run_of(EQUILIBRIUM_EXAMPLE)
    assert outcomes_of(run) == "nonzero equilibrium"
    last = run.tensor[-1]
    qk = torch.tensor(EQUILIBRIUM_EXAMPLE["qk"], dtype=torch.float64)
    assert float(last.norm(dim=-1).amin()) > 1
    assert last.mean(dim=0).numpy() == pytest.approx(np.zeros(2), abs=1e-4)
    assert (last @ qk @ last.T).numpy() == pytest.approx(np.zeros((4, 4)), abs=1e-3)


def test_negative_eigenvalues_of_v_say_nothing_without_the_signs_of_the_forms() -> None:
    flow = Flow(Attention([[-1.0]], [[-1.0]]), Free())
    assert observed_criterion(flow) == "undecided"
    run = simulate(flow, [[1.0], [-0.8]], np.linspace(0.0, 12.0, 13))
    assert outcomes_of(run) == "diverged"


def test_the_bound_with_the_printed_direction_of_c_is_violated() -> None:
    example = PRINTED_RATIO_COUNTEREXAMPLE
    time, printed = example["time"], torch.tensor(example["printed_c"], dtype=torch.float64)
    run = run_of(example, np.array([0.0, time]))
    form = contraction_form(run.flow)
    norms = -(run.tensor @ form.matrix * run.tensor).sum(dim=-1)
    logits = (run.tensor @ form.qk * run.tensor).sum(dim=-1)
    assert bool((norms >= printed * logits - 1e-12).all())
    times = torch.tensor([time], dtype=torch.float64)
    assert float(norms[1, 0]) > 0.99
    assert float(norm_bound(norms[0], printed, 2, times)[0, 0]) < 0.02
    right = largest_ratio(form)
    assert float(right) == pytest.approx(0.01)
    assert float(norms[1, 0]) <= float(norm_bound(norms[0], right, 2, times)[0, 0])


def test_what_is_printed_wrongly_is_said() -> None:
    errata = {one.statement: one.erratum for one in check(Flow(Attention([[1.0]], [[1.0]]), Free()), [[1.0]])}
    assert "n^T is missing" in errata["positional-C.2"]
    assert "q_W ≥ c‖·‖²_A" in errata["positional-3.3"]
    assert "wrong sign" in errata["positional-remark-3.2"]
    assert "74 %" in errata["positional-remark-3.5"]
