"""Each regime from a layer constructed to be in it (`positional` section D.2), whatever the antisymmetric parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spectra import inertia, regime


def constrained(signs: list[int], seed: int) -> torch.Tensor:
    """``L diag(s softplus(d)) L^T + T − T^T`` with L unit lower triangular: its symmetric part has the signs s."""
    generator = torch.Generator().manual_seed(seed)
    dim = len(signs)
    draw = torch.randn(3, dim, dim, generator=generator, dtype=torch.float64)
    lower = torch.eye(dim, dtype=torch.float64) + torch.tril(draw[0], -1)
    diagonal = torch.tensor(signs, dtype=torch.float64) * torch.nn.functional.softplus(draw[1].diagonal())
    return lower @ torch.diag(diagonal) @ lower.T + draw[2] - draw[2].T


def layer(w_signs: list[int], a_signs: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """qk = W and ov = V^T with V = [A^{-1} W]^T, so that A = qk ov^{-1} has the wanted signs."""
    W, A = constrained(w_signs, seed), constrained(a_signs, seed + 10_000)
    return W, torch.linalg.solve(A, W)


PLUS, MINUS, HALF = [1] * 6, [-1] * 6, [1, -1] * 3


@pytest.mark.parametrize(
    ("w_signs", "a_signs", "name"),
    [
        (PLUS, MINUS, "convergence"),
        (PLUS, PLUS, "divergence"),
        (PLUS, HALF, "intermediate"),
        (HALF, HALF, "intermediate"),
        (MINUS, MINUS, "mixed"),
        (MINUS, PLUS, "mixed"),
        (HALF, MINUS, "mixed"),
        (PLUS, [1, 1, 1, 1, 1, -1], "mixed"),
        ([1, 1, 1, 1, -1, -1], HALF, "mixed"),
    ],
)
def test_constructed_layers_are_in_their_regime(w_signs: list[int], a_signs: list[int], name: str) -> None:
    for seed in range(20):
        chosen_regime = regime(*layer(w_signs, a_signs, seed))
        assert chosen_regime.name == name
        assert chosen_regime.reason.startswith(name)
        assert chosen_regime.a_inertia is not None
        assert tuple(chosen_regime.a_inertia) == (a_signs.count(1), a_signs.count(-1), 0)
        assert tuple(chosen_regime.qk_inertia) == (w_signs.count(1), w_signs.count(-1), 0)


@given(seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_the_signs_of_A_need_no_inverse(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    qk, ov = torch.randn(2, 7, 7, generator=generator, dtype=torch.float64)
    explicit = qk @ torch.linalg.inv(ov)
    eigenvalues = np.linalg.eigvalsh((explicit + explicit.T).numpy() / 2)
    computed = regime(qk, ov).a_inertia
    assert computed is not None
    assert computed == inertia(explicit)
    assert computed.positive == (eigenvalues > 0).sum()


def test_a_singular_value_map_leaves_A_undefined_with_its_rank() -> None:
    qk = torch.eye(4, dtype=torch.float64)
    chosen_regime = regime(qk, torch.diag(torch.tensor([1.0, -2.0, 0.0, 0.0], dtype=torch.float64)))
    assert chosen_regime.name == "undefined"
    assert chosen_regime.a_inertia is None
    assert "undefined (rank 2/4)" in chosen_regime.reason


def test_a_float32_product_of_low_rank_is_singular_in_its_own_precision() -> None:
    left, right = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
    chosen_regime = regime(torch.eye(64), left @ right.T)
    assert chosen_regime.name == "undefined"
    assert "rank 16/64" in chosen_regime.reason


@pytest.mark.parametrize("small", [1e-3, 1e-7, 1e-9])
def test_badly_conditioned_value_maps_keep_their_signs(small: float) -> None:
    """A = −I exactly, however small an entry of qk and ov becomes."""
    scales = torch.tensor([1.0, small, small / 10], dtype=torch.float64)
    chosen_regime = regime(torch.diag(scales), -torch.diag(scales))
    assert chosen_regime.a_inertia is not None
    assert tuple(chosen_regime.a_inertia) == (0, 3, 0)
    assert chosen_regime.name == "convergence"


def test_a_spectrum_on_the_imaginary_axis_is_undecided() -> None:
    draw = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert regime(torch.eye(6, dtype=torch.float64), draw - draw.T).by_spectrum.startswith("undecided")


def test_both_criteria_are_told_apart() -> None:
    """Symmetric A ≺ 0, W ≻ 0 gives Re λ(V) < 0; without symmetry the two criteria can part."""
    qk = torch.eye(3, dtype=torch.float64)
    assert regime(qk, -qk).by_spectrum.startswith("does not diverge")
    assert regime(qk, qk).by_spectrum.startswith("diverges")
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert regime(torch.eye(2, dtype=torch.float64), rotation @ rotation.T * 0).name == "undefined"
    parted = [
        entry
        for entry in (regime(*layer(PLUS, MINUS, seed)) for seed in range(200))
        if entry.by_spectrum.startswith("diverges")
    ]
    assert parted, "the paper's conjecture and the spectrum of V agree on every draw: Remark 3.5 would be safe"


def test_circuits_that_do_not_fit_are_refused_with_both_shapes() -> None:
    with pytest.raises(ArgumentValueError, match=r"ov: .*\(3, 3\), got shape \(2, 2\)"):
        regime(torch.eye(3), torch.eye(2))
