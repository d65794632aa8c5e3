"""Hardmax weights: straight lines to leaders, and where layers of them end."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.theorems.atlas._leaders import _distance, largest_share

EYE = np.eye(2)
KEEPING: dict[str, Any] = {"engine": "layers", "residual": 0.6, "tau": 0.4}


def hardmax(qk: Any, ov: Any, **options: Any) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, weights="hardmax", **options), td.Free())


def drawn(systems: int, tokens: int, dim: int, seed: int, speed: float = 1.0) -> tuple[td.Flow, np.ndarray]:
    """Systems with definite qk."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(systems, 1, dim, dim))
    flow = hardmax(root @ np.swapaxes(root, -1, -2), speed * np.eye(dim))
    return flow, rng.normal(size=(systems, tokens, dim))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("frame", ["tokens", "rescaled"])
@pytest.mark.parametrize(("tokens", "dim", "speed"), [(4, 2, 1.0), (6, 3, 0.3)])
def test_inside_its_hypotheses_tokens_go_straight(tokens: int, dim: int, speed: float, frame: Any) -> None:
    flow, start = drawn(60, tokens, dim, seed=2, speed=speed)
    (check,) = td.check(flow, start, statements=["hardmax-4"])
    where = check.applies_to
    assert where.mean() > 0.3
    assert not where.all()
    assert "exp(−" in str(check.prediction)
    run = td.simulate(flow, start, [0, 1, 4], frame=frame)
    assert (np.asarray(run.counts["changes"])[where] == 0).all()
    (certificate,) = td.certify(run, ["hardmax-4"])
    assert (certificate.outcomes[where] == "holds").all()
    assert (certificate.outcomes[~where] == "fails").mean() > 0.5


def test_a_corner_that_is_no_leader_does_not_rest() -> None:
    start = [[0.1, 1.0], [5.0, 1.0], [-2.0, -2.0]]
    (check,) = td.check(hardmax(EYE, EYE), start, statements=["hardmax-4"])
    assert check.applies  # both of the other corners are leaders
    run = td.simulate(hardmax(EYE, EYE), start, [0.0, 1.0], frame="rescaled")
    assert np.allclose(run.states[1][0], [5 - 4.9 * math.exp(-1), 1.0])


def test_each_hypothesis_broken_alone_is_named() -> None:
    start = [[3.0, 0.0], [-1.5, 2.6], [0.4, 0.1]]
    changing = td.Periodic([EYE, 2 * EYE], 3.0)
    cases = {
        "qk constant": (hardmax(changing, EYE), start),
        "ov constant": (hardmax(EYE, changing), start),
        "the multiples are positive": (hardmax(EYE, -EYE), start),
        "ov is a multiple of the identity": (hardmax(EYE, np.diag([1.0, 2.0])), start),
        "each token attends to one token": (hardmax(EYE, EYE), [[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]]),
        "those that are attended to are leaders": (
            hardmax(EYE, EYE),
            [[1.0, 0.0], [1.2, -2.0], [0.3, 0.3]],
        ),
        "hardmax weights": (td.Flow(td.Attention(EYE, EYE), td.Free()), start),
        "full mask": (hardmax(EYE, EYE, causal=True), start),
    }
    for name, (flow, place) in cases.items():
        (check,) = td.check(flow, place, statements=["hardmax-4"])
        assert not check.applies
        assert any(name in reason for reason in check.reasons), (name, check.reasons)


@pytest.mark.long
def test_a_soft_softmax_is_not_straight() -> None:
    flow = td.Flow(td.Attention(EYE, EYE), td.Free())
    run = td.simulate(flow, [[3.0, 0.0], [-1.5, 2.6], [0.4, 0.1]], [0, 1, 3], frame="rescaled")
    statement = next(one for one in td.theorems.ATLAS if one.name == "hardmax-4")
    assert statement.certify(run).outcome == "fails"


def test_euler_steps_that_are_off_are_run_again_and_do_not_refute_it() -> None:
    start = [[3.0, 0.0], [-1.5, 2.6], [0.4, 0.1]]
    run = td.simulate(hardmax(EYE, EYE), start, [0.0, 1.0], step=0.1, method="euler", frame="rescaled")
    (certificate,) = td.certify(run, ["hardmax-4"])
    assert certificate.outcome == "undecided"


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_layers_end_at_leaders_or_between_them(share: float) -> None:
    flow, start = drawn(100, 7, 3, seed=3)
    (check,) = td.check(flow, start, statements=["leaders-limit"])
    assert check.applies
    run = td.simulate(flow, start, [0, 1, 2, 40, 80, 81], engine="layers", residual=1 - share, tau=share)
    (certificate,) = td.certify(run, ["leaders-limit"])
    assert (certificate.outcomes == "holds").mean() > 0.9
    assert all((one.outcome == "holds").all() for one in certificate.conditions[:2])


def test_layers_outside_the_hypotheses_leave_the_hull_or_go_on() -> None:
    flow, start = drawn(1, 5, 2, seed=4)
    for other, name, outcome in [
        (hardmax(EYE, -2 * EYE), "ov is the identity", "fails"),
        (hardmax(-EYE, EYE), "qk positive definite", "undecided"),
        (hardmax([[1.0, 0.8], [-0.8, 1.0]], EYE), "qk symmetric", None),
    ]:
        (check,) = td.check(other, start[0], statements=["leaders-limit"])
        assert [reason.partition(":")[0] for reason in check.reasons] == [name]
        run = td.simulate(other, start[0], range(30), **KEEPING)
        (certificate,) = td.certify(run, ["leaders-limit"])
        assert outcome in (None, certificate.outcome)
    assert td.check(flow, start, statements=["leaders-limit"])[0].applies


def test_a_token_that_ends_between_two_leaders() -> None:
    # The token at the origin is drawn to both with equal logits, and stays between them.
    start = [[2.0, 0.0], [-2.0, 0.0], [0.0, 0.5]]
    run = td.simulate(hardmax(EYE, EYE), start, [0, 10, 60, 61], **KEEPING)
    assert np.allclose(run.states[-1], [[2.0, 0.0], [-2.0, 0.0], [0.0, 0.5]], atol=1e-9) or np.allclose(
        run.states[-1][2], [0.0, 0.0], atol=1e-9
    )
    (certificate,) = td.certify(run, ["leaders-limit"])
    assert certificate.outcome == "holds"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step": 0.1}, "one of the engine fixed"),
        ({"engine": "layers"}, "no shares that add to 1"),
        ({"engine": "layers", "residual": 0.0, "tau": 1.0}, "no shares that add to 1"),
    ],
)
def test_other_runs_are_undecided(options: dict[str, Any], why: str) -> None:
    run = td.simulate(hardmax(EYE, EYE), [[1.0, 0.0], [0.2, 0.3]], [0, 1, 2], **options)
    (certificate,) = td.certify(run, ["leaders-limit"])
    assert certificate.outcome == "undecided"
    assert why in certificate.text


def test_distances_from_a_hull() -> None:
    square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    for token, distance in [((0.3, -0.2), 0.0), ((3.0, 0.5), 2.0), ((2.0, 2.0), math.sqrt(2)), ((1.0, 0.0), 0.0)]:
        assert math.isclose(_distance(square, np.array(token)), distance, abs_tol=1e-6)
    assert _distance(square, np.array([np.nan, 0.0])) == math.inf


# --- layers with the shares 2/(k + 2) ---------------------------------------------------------------------------------

SHARES = [Fraction(2, k + 2) for k in range(200)]
FALLING: dict[str, Any] = {"engine": "fixed", "method": "euler", "step": 1.0, "frame": "rescaled"}
TIMES = [float(time) for time in accumulate(SHARES, initial=Fraction(0))]


def turning(form: Any) -> td.Flow:
    """Tokens that attend to the least x·By."""
    return hardmax(-np.asarray(form, dtype=float), np.eye(np.shape(form)[-1]))


def on_a_line(tokens: list[int], layers: int) -> list[list[Fraction]]:
    """All layers in exact numbers, B = 1: tokens above 0 turn to the least token, those below to the largest."""
    states = [[Fraction(token) for token in tokens]]
    for share in SHARES[:layers]:
        x = states[-1]
        assert all(x)
        states.append([(1 - share) * one + share * (min(x) if one > 0 else max(x)) for one in x])
    return states


@pytest.mark.parametrize(
    ("tokens", "limit"),
    [
        ([3, -1], Fraction(1, 3)),
        ([-5, 1, 2, -2], Fraction(-1, 3)),
        ([3, 1, -2], Fraction(1, 2)),
        ([7, -6, 3], Fraction(1, 2)),
    ],
)
def test_on_a_line_tokens_end_beside_zero(tokens: list[int], limit: Fraction) -> None:
    """At (M − 2m)/3, or (M − m)/2 where neither of the largest and the least, M and −m, is twice the other."""
    exact = on_a_line(tokens, 200)
    flow, start = turning([[1.0]]), [[float(one)] for one in tokens]
    assert td.check(flow, start, statements=["hardmax-3"])[0].applies
    run = td.simulate(flow, start, TIMES, **FALLING)
    assert np.abs(run.tensor[:, :, 0].numpy() - np.array(exact, dtype=float)).max() < 1e-12
    assert min(exact[-1], key=abs) == limit
    left = next(k for k, x in enumerate(exact) if min(x) * max(x) > 0)
    assert left in (2, 3)
    (certificate,) = td.certify(run, ["hardmax-3"])
    assert (certificate.outcome, certificate.standing) == ("fails", "false")
    assert certificate.first_failure == TIMES[left]
    assert "0 stays in the hull of the tokens" in certificate.text
    assert certificate.conditions[1].outcome == "holds"


def test_the_bound_solves_its_recurrence() -> None:
    share = Fraction(1)
    for k, bound in enumerate(largest_share(200).tolist()):
        assert math.isclose(float(share), bound, rel_tol=1e-13)
        share = (1 - SHARES[k]) ** 2 * share + SHARES[k] ** 2
        assert share <= Fraction(4, 3 * (k + 1))


def drawn_in_the_plane(systems: int, tokens: int, mirrored: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    root, start = rng.normal(size=(systems, 1, 2, 2)), rng.normal(size=(systems, tokens, 2))
    return root @ np.swapaxes(root, -1, -2), np.concatenate([start, -start], axis=1) if mirrored else start


def last_layer(form: np.ndarray, x: np.ndarray) -> np.ndarray:
    for share in SHARES:
        x = x + float(share) * (x[(x @ form @ x.T).argmin(axis=1)] - x)
    return x


def in_an_open_half_plane(x: np.ndarray) -> bool:
    angles = np.sort(np.arctan2(x[:, 1], x[:, 0]))
    return np.diff(angles, append=angles[0] + 2 * np.pi).max() > np.pi + 1e-9


@pytest.mark.long
def test_in_the_plane_no_drawn_start_keeps_zero_in_its_hull() -> None:
    form, start = drawn_in_the_plane(120, 5, mirrored=False)
    flow = turning(form)
    (check,) = td.check(flow, start, statements=["hardmax-3"])
    assert check.applies_to.tolist() == [not in_an_open_half_plane(one) for one in start]
    assert check.applies_to.sum() > 60
    run = td.simulate(flow, start, TIMES, **FALLING)
    (certificate,) = td.certify(run, ["hardmax-3"])
    assert (certificate.outcomes == "fails").all()
    for matrix, one, state in zip(form[:, 0], start, run.tensor.numpy(), strict=True):
        x = last_layer(matrix, one)
        assert in_an_open_half_plane(x)
        assert np.abs(x - state[-1]).max() < 1e-9
        assert np.einsum("ia,ab,ib->i", x, matrix, x).min() > 1e-4 * np.einsum("ia,ab,ib->i", one, matrix, one).max()


def test_where_zero_is_in_every_hull_the_value_falls_as_claimed() -> None:
    """Tokens in opposite pairs stay so, up to rounding, and up to ties that rounding decides where a pair is at 0."""
    form, start = drawn_in_the_plane(60, 3, mirrored=True)
    run = td.simulate(turning(form), start, TIMES, **FALLING)
    states = run.tensor.numpy()
    assert not any(in_an_open_half_plane(one) for one in states[:, :3].reshape(-1, 6, 2))
    (certificate,) = td.certify(run, ["hardmax-3"])
    assert (certificate.outcomes == "holds").all()
    values = np.einsum("skia,sab,skib->ski", states, form[:, 0], states).max(axis=-1)
    assert (values[:, 1:] <= values[:, :1] * 4 / (3 * np.arange(1, 201)) * (1 + 1e-12)).all()
    assert [one.statement for one in td.certify(run)] == ["hardmax-3"]


def test_each_hypothesis_of_falling_shares_broken_alone_is_named() -> None:
    start = [[3.0, 0.0], [-1.5, 2.6], [-0.4, -1.1]]
    cases = {
        "qk constant in time": (hardmax(td.Periodic([-EYE, -2 * EYE], 3.0), EYE), start),
        "ov is the identity": (hardmax(-EYE, 2 * EYE), start),
        "qk symmetric": (hardmax([[-1.0, 0.5], [-0.5, -1.0]], EYE), start),
        "qk negative definite": (hardmax(EYE, EYE), start),
        "0 in the hull of the start": (hardmax(-EYE, EYE), [[3.0, 0.1], [-1.5, 2.6], [0.4, 1.1]]),
    }
    assert td.check(hardmax(-EYE, EYE), start, statements=["hardmax-3"])[0].applies
    for name, (flow, place) in cases.items():
        (check,) = td.check(flow, place, statements=["hardmax-3"])
        assert [reason.partition(":")[0] for reason in check.reasons] == [name]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engine": "layers"}, "not one of Euler steps"),
        (FALLING | {"method": "heun"}, "not one of Euler steps"),
        (FALLING | {"step": 0.5}, "one step for each saved time"),
        (FALLING, "not 2/(k + 2)"),
    ],
)
def test_other_runs_are_undecided_for_falling_shares(options: dict[str, Any], why: str) -> None:
    times = [0, 1, 2] if options != FALLING | {"step": 0.5} else TIMES[:5]
    run = td.simulate(turning([[1.0]]), [[3.0], [-1.0]], times, **options)
    (certificate,) = td.certify(run, ["hardmax-3"])
    assert certificate.outcome == "undecided"
    assert why in certificate.text
