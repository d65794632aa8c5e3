"""Signs measured from what a layer does: its scores on the basis, and its outputs for one token alone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import tokendynamics as td
from tokendynamics.modules import REGIMES, ConstrainedAttention, Regime

HEADS = {16: 2, 64: 4, 128: 8, 410: 10}
SIGNED = {
    "w_only": (1, None),
    "convergence": (1, -1),
    "intermediate": (1, 0),
    "divergence": (1, 1),
}


def built(layer: ConstrainedAttention) -> tuple[np.ndarray, np.ndarray]:
    """W and V^T of a layer, from its scores and outputs alone."""
    basis = torch.eye(layer.dim, dtype=layer.query.weight.dtype)
    with torch.no_grad():
        logits = layer.scores(basis).double().sum(0) * np.sqrt(layer.dim / layer.heads)
        outputs = layer(basis.unsqueeze(-2)).squeeze(-2).double()  # each system is one token, which sees itself alone
    return logits.numpy(), outputs.numpy().T


def contraction(layer: ConstrainedAttention) -> np.ndarray:
    product, value = built(layer)
    return product @ np.linalg.inv(value)


def signs(matrix: np.ndarray) -> tuple[int, int]:
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    return int((eigenvalues > 0).sum()), int((eigenvalues < 0).sum())


def wanted(dim: int, sign: int) -> tuple[int, int]:
    return {1: (dim, 0), -1: (0, dim), 0: (dim - dim // 2, dim // 2)}[sign]


def assert_signs(layer: ConstrainedAttention, regime: str) -> None:
    of_w, of_a = SIGNED[regime]
    product, value = built(layer)
    assert signs(product) == wanted(layer.dim, of_w)
    if of_a is not None:
        assert signs(product @ np.linalg.inv(value)) == wanted(layer.dim, of_a)


def away(layer: ConstrainedAttention, seed: int = 5, far: float = 0.5) -> None:
    """Move every parameter a long way from where it started, the query included."""
    generator = torch.Generator().manual_seed(seed)
    spread = 1 / np.sqrt(layer.dim)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if not parameter.requires_grad:
                continue
            size = far if name.endswith("diagonal") else far * spread
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def trained(layer: ConstrainedAttention, steps: int = 300, *, autocast: bool = False) -> list[float]:
    """Let the layer learn to copy the first token's features, reversed, from noisy sequences."""
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 6, layer.dim, generator=generator)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = nn.functional.mse_loss(layer(x).float(), x[:, :1].flip(-1).expand_as(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.few(10)
@pytest.mark.parametrize("form", ["congruence", "solve"])
@pytest.mark.parametrize("regime", list(SIGNED))
@pytest.mark.parametrize("dim", list(HEADS))
def test_at_the_start_and_far_from_it(dim, regime, form):
    layer = ConstrainedAttention(
        dim, HEADS[dim], regime, form=form, generator=torch.Generator().manual_seed(dim), dtype=torch.float64
    )
    assert_signs(layer, regime)
    away(layer)
    assert_signs(layer, regime)


# Every regime in both forms, and every regime in both precisions; the other pairs are among the slow.
TRAINED = [
    pytest.param(dim, regime, form, precision, marks=() if (dim, precision == "bfloat16") == kept else pytest.mark.slow)
    for regime in SIGNED
    for form, kept in (("congruence", (16, False)), ("solve", (16, True)))
    for dim in (16, 64)
    for precision in ("float32", "bfloat16")
]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("dim", "regime", "form", "precision"), [*TRAINED])
def test_after_300_steps_of_training(dim, regime, form, precision):
    layer = ConstrainedAttention(dim, HEADS[dim], regime, form=form, generator=torch.Generator().manual_seed(0))
    before = copy.deepcopy(layer.state_dict())
    losses = trained(layer, autocast=precision == "bfloat16")
    assert np.mean(losses[-20:]) < 0.99 * np.mean(losses[:20])
    shifted = max(float((after - before[name]).abs().max()) for name, after in layer.state_dict().items())
    assert shifted > 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        assert_signs(layer, regime)


@pytest.mark.few(1)
@pytest.mark.parametrize("dim", [128, 410])
def test_training_of_wide_layers_keeps_the_signs(dim):
    layer = ConstrainedAttention(dim, HEADS[dim], "convergence", generator=torch.Generator().manual_seed(0))
    trained(layer, 30)
    assert_signs(layer, "convergence")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["congruence", "solve"])
@pytest.mark.parametrize("regime", list(SIGNED))
@pytest.mark.parametrize("dim", [128, 410])
def test_wide_layers_keep_the_signs_over_300_steps_and_run_as_they_are_built(dim, regime, form, precision):
    """The lowest eigenvalues of a wide W are below what half precision tells from 0: they are those of a copy."""
    layer = ConstrainedAttention(dim, HEADS[dim], regime, form=form, generator=torch.Generator().manual_seed(0))
    losses = trained(layer, autocast=precision == "bfloat16")
    assert np.mean(losses[-20:]) < 0.99 * np.mean(losses[:20])
    exact = copy.deepcopy(layer).double()
    assert_signs(exact, regime)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        running = built(layer)
    for actual, reference in zip(running, built(exact), strict=True):
        error = np.linalg.norm(actual - reference, 2) / np.linalg.norm(reference, 2)
        assert error < {"float32": 1e-4, "bfloat16": 0.02}[precision]


def test_without_a_constraint_signs_are_what_they_are():
    for regime in ("baseline", "tied"):
        layer = ConstrainedAttention(16, 2, regime, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        away(layer)
        assert signs(contraction(layer)) not in [(16, 0), (0, 16), (8, 8)] or signs(built(layer)[0]) != (16, 0)


@pytest.mark.parametrize(("regime", "side"), [("contracting", -1), ("expanding", 1)])
@pytest.mark.parametrize("dim", [16, 65])
def test_the_spectrum_of_v_is_placed(regime, side, dim):
    layer = ConstrainedAttention(dim, 1, regime, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for seed in range(3):
        assert (side * np.linalg.eigvals(built(layer)[1]).real > 0).all()
        away(layer, seed)


def test_signs_of_w_and_a_are_chosen_separately():
    for w, of_w in (("negative", -1), ("half", 0), ("positive", 1)):
        for a, of_a in (("negative", -1), ("half", 0), ("positive", 1)):
            layer = ConstrainedAttention(
                9, 3, Regime(w, a), generator=torch.Generator().manual_seed(1), dtype=torch.float64
            )
            away(layer)
            product, value = built(layer)
            assert signs(product) == wanted(9, of_w)
            assert signs(product @ np.linalg.inv(value)) == wanted(9, of_a)


def test_a_block_for_each_head_makes_single_heads_semidefinite_and_the_sum_definite():
    layer = ConstrainedAttention(
        12, 3, "divergence", scope="head", generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    away(layer)
    assert_signs(layer, "divergence")
    for head in layer.head_circuits()[0]:
        eigenvalues = torch.linalg.eigvalsh(head + head.T)
        assert (eigenvalues > 1e-6).sum() == 4
        assert eigenvalues.abs().lt(1e-12).sum() == 8
    summed = ConstrainedAttention(12, 3, "divergence", generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    away(summed)
    assert all((torch.linalg.eigvalsh(head + head.T) < -1e-6).any() for head in summed.head_circuits()[0])


@pytest.mark.parametrize("form", ["congruence", "solve"])
def test_symmetric_layers_have_symmetric_w_and_a(form):
    layer = ConstrainedAttention(
        8, 1, "convergence", form=form, symmetric=True, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    away(layer)
    for matrix in (built(layer)[0], contraction(layer)):
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-10 * np.abs(matrix).max())


def test_circuits_are_what_the_layer_does():
    layer = ConstrainedAttention(
        6, 3, "divergence", output="free", generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    qk, ov = layer.circuits()
    product, value = built(layer)
    np.testing.assert_allclose(qk.numpy() * np.sqrt(2), product, atol=1e-12)
    np.testing.assert_allclose(ov.numpy(), value, atol=1e-12)
    heads = td.Attention(*layer.head_circuits(), causal=True)
    states = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(heads.mix(states, 0.0), layer(states).detach(), rtol=0, atol=1e-12)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["congruence", "solve"])
def test_theorems_3_1_and_3_4_hold_for_built_symmetric_layers(form):
    layer = ConstrainedAttention(
        3, 1, "convergence", form=form, symmetric=True, causal=False,
        generator=torch.Generator().manual_seed(2), dtype=torch.float64,
    )  # fmt: skip
    away(layer, far=0.2)
    start = np.random.default_rng(0).standard_normal((6, 3))
    run = td.simulate(td.Flow(td.Attention(*layer.circuits()), td.Free()), start, np.geomspace(1.0, 1e5, 60))
    by_name = {one.statement: one.outcome for one in td.certify(run)}
    assert by_name["positional-3.1"] == by_name["positional-3.4"] == "holds"


def test_theorem_3_4_is_not_for_layers_with_a_skew_part():
    layer = ConstrainedAttention(
        3, 1, "convergence", causal=False, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    start = np.random.default_rng(0).standard_normal((6, 3))
    run = td.simulate(td.Flow(td.Attention(*layer.circuits()), td.Free()), start, np.geomspace(1.0, 10.0, 9))
    assert "positional-3.4" not in {one.statement for one in td.certify(run)}


def test_every_regime_has_a_name():
    assert set(REGIMES) == {*SIGNED, "baseline", "tied", "contracting", "expanding"}
