"""Eigenvectors that LAPACK does not return: of repeated and defective eigenvalues, and common to several heads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

import tokendynamics as td
from tokendynamics.theorems import Check, certify, check
from tokendynamics.theorems.statements._positional_3_6 import common_eigenspaces

NAMES = {"positional-3.6": None, "positional-C.2": "absolute", "positional-C.3": "rotary"}


def flow_of_run(ov: np.ndarray, positions: object = None) -> td.Flow:
    qk = np.random.default_rng(0).normal(size=ov.shape)
    return td.Flow(td.Attention(qk, ov, positions=positions), td.Free())


def found(flow: td.Flow, x0: np.ndarray, name: str = "positional-3.6") -> Check:
    return next(one for one in check(flow, x0) if one.statement == name)


@pytest.mark.parametrize("name", NAMES)
def test_growth_is_found_along_1_1_where_no_coordinate_has_all_tokens_on_one_side(name: str) -> None:
    x0 = np.array([[2.0, -1.0], [-1.0, 2.0], [1.0, 1.0]])
    positions = {
        None: None,
        "absolute": td.AbsolutePositions(np.zeros((3, 2))),
        "rotary": td.RotaryPositions(np.eye(2), np.eye(2)),
    }[NAMES[name]]
    flow = flow_of_run(np.eye(2), positions)
    applies = found(flow, x0, name)
    # The deepest n is (1, 1)/√2: n·x = 1/√2, 1/√2 and √2.
    assert "0.7071 exp(t)" in str(applies.prediction)
    (certificate,) = certify(td.simulate(flow, x0, np.linspace(0, 1, 5)), [name])
    assert certificate.outcome == "holds"


def test_no_growth_is_claimed_where_zero_lies_in_the_hull_of_the_start() -> None:
    around = np.array([[2.0, -1.0], [-1.0, 2.0], [-1.0, -1.0]])
    text = str(found(flow_of_run(np.eye(2)), around).prediction)
    assert "no such n is known with all tokens strictly on one side" in text


def test_a_batch_says_at_how_many_systems_growth_follows() -> None:
    one, around = [[2.0, -1.0], [-1.0, 2.0], [1.0, 1.0]], [[2.0, -1.0], [-1.0, 2.0], [-1.0, -1.0]]
    text = str(found(flow_of_run(np.eye(2)), np.array([one, around])).prediction)
    assert "at 1 of 2 systems, elsewhere growth does not follow" in text


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_eigenvector_of_a_defective_eigenvalue_is_found_behind_any_rotation(size: int, seed: int) -> None:
    # Computed eigenvalues of a Jordan block of size m are off by eps^(1/m), in complex pairs.
    block = np.eye(size) + np.diag(np.ones(size - 1), 1)
    whole = np.block([[block, np.zeros((size, 2))], [np.zeros((2, size)), -np.eye(2)]])
    q = ortho_group.rvs(size + 2, random_state=seed)
    hidden = q @ whole @ q.T
    applies = found(flow_of_run(hidden), np.random.default_rng(seed).normal(size=(3, size + 2)))
    assert applies.applies, applies
    # The left eigenvector is the last unit vector of the block.
    n = q[:, size - 1]
    spaces = common_eigenspaces(hidden.T[None], lowest=0.0)
    assert max(np.linalg.norm(space.basis.T @ n) for space in spaces) == pytest.approx(1, abs=1e-3)
    assert all(np.linalg.norm(hidden.T @ s.basis - s.values[0] * s.basis) < 1e-9 for s in spaces)


@pytest.mark.parametrize("angle", [1e-9, 1e-5, 0.3])
def test_a_pair_of_complex_eigenvalues_however_near_the_axis_has_no_eigenvector(angle: float) -> None:
    turn = np.array([[1.0, -angle], [angle, 1.0]])
    q = ortho_group.rvs(2, random_state=0)
    text = found(flow_of_run(q @ turn @ q.T), np.eye(2)).reasons
    assert len(text) == 1
    assert "none found: the largest real part of an eigenvalue is 1" in text[0]


def test_there_is_none_is_said_only_where_all_real_parts_are_negative() -> None:
    assert (
        "none exists: the largest real part of an eigenvalue is −1"
        in found(flow_of_run(-np.eye(2)), np.eye(2)).reasons[0]
    )
    assert (
        "none found: the largest real part of an eigenvalue is 0"
        in found(flow_of_run(0 * np.eye(2)), np.eye(2)).reasons[0]
    )


def sharing(dim: int, shared: int, heads: int, seed: int, sign: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Heads that are `sign` · (1, 2, …) times the identity on `shared` common directions of V, and random beyond."""
    rng = np.random.default_rng(seed)
    q = ortho_group.rvs(dim, random_state=seed)
    made = []
    for head in range(heads):
        values = rng.normal(size=(dim, dim))
        values[:shared] = 0
        values[:shared, :shared] = (sign if head else 1.0) * (1 + head) * np.eye(shared)
        made.append(q @ values @ q.T)
    return np.stack(made), q[:, :shared]


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_eigenvectors_common_to_two_heads_are_found_behind_any_rotation(shared: int, seed: int) -> None:
    ov, common = sharing(5, shared, 2, seed)
    # n^T ov = λ n^T for the common directions: repeated for shared = 2, where LAPACK's vectors of the sum mix freely.
    assert found(flow_of_run(ov), np.eye(5)).applies
    spaces = common_eigenspaces(np.swapaxes(ov, -1, -2), lowest=0.0)
    best = max(spaces, key=lambda space: np.linalg.norm(space.basis.T @ common))
    assert np.linalg.norm(best.basis.T @ common) == pytest.approx(np.sqrt(shared), abs=1e-6)
    assert best.values == pytest.approx([1.0, 2.0])


def test_two_heads_whose_sum_has_a_repeated_eigenvalue_share_what_lapack_would_mix() -> None:
    # The sum is 3 I on the first three coordinates: any vector is one of its own; (1, 0, 0) alone is common with λ ≥ 0.
    q = ortho_group.rvs(3, random_state=3)
    first = np.array([[1.0, 0, 0], [0, 1.0, 0.5], [0, 0.2, 2.0]])
    heads = np.stack([q @ first @ q.T, q @ (3 * np.eye(3) - first) @ q.T])
    spaces = common_eigenspaces(np.swapaxes(heads, -1, -2), lowest=0.0)
    assert max(abs(float((space.basis.T @ q[:, 0])[0])) for space in spaces) == pytest.approx(1, abs=1e-8)
    assert found(flow_of_run(heads), np.eye(3)).applies


def test_heads_without_a_common_eigenvector_or_with_opposite_signs_have_none() -> None:
    rng = np.random.default_rng(0)
    apart = rng.normal(size=(2, 4, 4))
    apart = apart @ np.swapaxes(apart, -1, -2)
    assert "none found" in found(flow_of_run(apart), np.eye(4)).reasons[0]
    ov, _ = sharing(4, 1, 2, 1, sign=-1.0)
    assert not found(flow_of_run(ov), np.eye(4)).applies


KINDS = st.sampled_from(["zero", "multiple", "rank one", "repeated", "defective", "nilpotent", "tiny", "huge"])


def degenerate(kind: str, seed: int, dim: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a, q = rng.normal(size=(dim, dim)), np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    step = np.diag(np.ones(dim - 1), 1)
    return {
        "zero": 0 * a,
        "multiple": rng.normal() * np.eye(dim),
        "rank one": np.outer(a[0], a[1 % dim]),
        "repeated": q @ np.diag(np.where(np.arange(dim) < 2, 1.5, -0.5)) @ q.T,
        "defective": q @ (np.eye(dim) + step) @ q.T,
        "nilpotent": q @ step @ q.T,
        "tiny": 1e-30 * a,
        "huge": 1e6 * q,
    }[kind]


def test_a_limit_of_what_is_no_number_is_undecided_at_an_infinite_distance() -> None:
    flow = td.Flow(td.Attention(degenerate("zero", 0, 2), degenerate("huge", 0, 2), causal=True), td.Sphere())
    start = np.random.default_rng(0).normal(size=(2, 3, 2))
    run = td.simulate(flow, start, [0.0, 1e-3, 2e-3], rtol=1e-5, max_steps=50)
    limit = certify(run, ["clusters-4"])[0].conditions[1]
    assert limit.outcome.tolist() == ["undecided", "undecided"]
    assert limit.margin.tolist() == [-np.inf, -np.inf]


@pytest.mark.long
@settings(max_examples=15)
@given(
    qk=KINDS, ov=KINDS, seed=st.integers(0, 10**6), dim=st.integers(1, 4), free=st.booleans(), heads=st.integers(1, 2)
)
def test_degenerate_circuits_never_raise_nor_give_nan(
    qk: str, ov: str, seed: int, dim: int, free: bool, heads: int
) -> None:
    matrices = [np.stack([degenerate(kind, seed + head, dim) for head in range(heads)]) for kind in (qk, ov)]
    flow = td.Flow(td.Attention(*matrices, causal=seed % 2 == 0), td.Free() if free else td.Sphere())
    start = np.random.default_rng(seed).normal(size=(2, 3, dim))
    for one in check(flow, start):
        assert all(hypothese.margin is None or not np.isnan(hypothese.margin) for hypothese in one.hypotheses), one
    run = td.simulate(flow, start, [0.0, 1e-3, 2e-3], rtol=1e-5, max_steps=50)
    for certificate in certify(run, [one.statement for one in check(flow, start)]):
        assert all(not np.isnan(part.margin).any() for part in certificate.conditions), certificate
    for certificate in certify(run):
        assert certificate.outcome != "fails", certificate


def test_the_bounds_are_checked_along_every_direction_of_an_eigenspace() -> None:
    flow, x0 = flow_of_run(np.eye(2)), np.array([[2.0, -1.0], [-1.0, 2.0], [1.0, 1.0]])
    run = td.simulate(flow, x0, np.linspace(0, 1, 5))
    states = run.tensor.clone()
    states[3] += torch.tensor([3.0, 3.0]).double()
    (certificate,) = certify(dataclasses.replace(run, tensor=states), ["positional-3.6"])
    assert certificate.outcome == "fails"
