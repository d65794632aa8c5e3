"""The audit against dense matrices built from the same model's weights, and against constructed layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.diagnosis import audit
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.pretrained import Checkpoint, load


def symmetric_eigenvalues(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.eigvalsh(((matrix + matrix.T) / 2).numpy())


def signs(eigenvalues: np.ndarray) -> list[int]:
    small = 1e-11 * np.abs(eigenvalues).max()
    above, below = int((eigenvalues > small).sum()), int((eigenvalues < -small).sum())
    return [above, below, len(eigenvalues) - above - below]


def constrained(pattern: list[int], seed: int) -> torch.Tensor:
    """A matrix whose symmetric part has these signs, well away from zero, with an antisymmetric part."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, len(pattern), len(pattern), generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(draw[0]).Q
    values = torch.tensor(pattern, dtype=torch.float64) * (1 + draw[1].diagonal().abs())
    return basis @ torch.diag(values) @ basis.T + 0.3 * (draw[1] - draw[1].T)


PAPER: dict[str, Any] = {"value": "V", "fold_norms": False}
"""What the papers' tables are of."""

PLUS, MINUS, HALF = [1] * 6, [-1] * 6, [1, -1] * 3


@pytest.mark.parametrize(
    ("w_signs", "a_signs", "name"),
    [
        (PLUS, MINUS, "convergence"),
        (PLUS, PLUS, "divergence"),
        (PLUS, HALF, "intermediate"),
        (HALF, HALF, "intermediate"),
        (HALF, PLUS, "mixed"),
    ],
)
def test_a_constructed_layer_on_disk_is_in_its_regime(
    one_layer: Callable[..., Checkpoint], w_signs: list[int], a_signs: list[int], name: str
) -> None:
    W, A = constrained(w_signs, 1), constrained(a_signs, 2)
    table = audit(one_layer(W, torch.linalg.solve(A, W).T), **PAPER)
    assert str(table.regime[0].item()) == name
    assert bool(table.A_defined[0])
    assert table.W_inertia[0].values.tolist() == [w_signs.count(1), w_signs.count(-1), 0]
    assert table.A_inertia[0].values.tolist() == [a_signs.count(1), a_signs.count(-1), 0]


def test_a_singular_value_map_is_undefined_with_its_rank(one_layer: Callable[..., Checkpoint]) -> None:
    V = torch.diag(torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))
    ckpt = one_layer(constrained(PLUS, 1), V)
    table = audit(ckpt, **PAPER)
    assert str(table.regime[0].item()) == "undefined"
    assert "undefined (rank 3/6)" in str(table.regime_reason[0].item())
    assert not bool(table.A_defined[0])
    assert np.isnan(table.A_inertia[0]).all()
    assert (int(table.V_rank[0]), float(table.V_condition[0])) == (3, float("inf"))
    with_pinv = audit(ckpt, singular="pinv", **PAPER)
    explicit = constrained(PLUS, 1).float().double() @ torch.linalg.pinv(V.double().T)
    assert with_pinv.A_inertia[0].values.tolist() == signs(symmetric_eigenvalues(explicit))
    assert not with_pinv.A_defined.values.any()
    assert "A from the pseudo-inverse" in str(with_pinv.regime_reason[0].item())
    assert with_pinv.attrs["singular"] == "pinv"


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("value", ["V", "VO"])
def test_every_number_is_the_dense_one(tiny: Callable[..., Checkpoint], family: str, value: str) -> None:
    ckpt = tiny(family)
    table = audit(ckpt, value, fold_norms=False)  # type: ignore[arg-type]
    for layer in range(1, ckpt.architecture.layers + 1):
        row, weights = table.sel(layer=layer), ckpt.attention(layer)
        query, key = weights.query.double(), weights.key_per_head.double()
        values, output = weights.value_per_head.double(), weights.output.double()
        W = sum(q @ k.T for q, k in zip(query, key, strict=True))
        V = torch.cat(list(values), dim=1)
        if value == "VO":
            V = V @ torch.cat(list(output), dim=0)
        assert row.W_inertia.values.tolist() == signs(symmetric_eigenvalues(W))
        eigenvalues = np.linalg.eigvals(V.numpy())
        assert int(row.V_rank) == np.linalg.matrix_rank(V.numpy())
        assert float(row.V_max_real) == pytest.approx(max(eigenvalues.real), abs=1e-12)
        if bool(row.A_defined):
            A = W @ torch.linalg.inv(V.T)
            assert row.A_inertia.values.tolist() == signs(symmetric_eigenvalues(A))
            assert float(row.V_condition) == pytest.approx(np.linalg.cond(V.numpy()), rel=1e-8)
            assert int(row.V_near_zero) == (np.abs(eigenvalues) < 1e-3).sum()
        for head, (q, k) in enumerate(zip(query, key, strict=True)):
            dense = symmetric_eigenvalues(q @ k.T)
            scaled = dense[np.argsort(np.abs(dense))[-row.sizes["eigenvalue"] :]] / np.sqrt(weights.query.shape[-1])
            np.testing.assert_allclose(row.qk_eigenvalues[head], np.sort(scaled), atol=1e-12)
            assert row.qk_inertia[head].values.tolist() == signs(dense)
            assert float(row.qk_balance[head]) == pytest.approx(dense.sum() / np.abs(dense).sum(), abs=1e-12)
            ov = (values[head] @ output[head]).T
            assert row.ov_inertia[head].values.tolist() == signs(symmetric_eigenvalues(ov))
            general = np.linalg.eigvals(ov.numpy())
            general = general[np.argsort(np.abs(general))][-weights.query.shape[-1] :]
            assert float(row.ov_balance[head]) == pytest.approx(general.real.sum() / np.abs(general).sum(), abs=1e-10)


@pytest.mark.long
def test_grouped_queries_leave_A_undefined(tiny: Callable[..., Checkpoint]) -> None:
    for value in ("V", "VO"):
        table = audit(tiny("llama"), value)  # type: ignore[arg-type]
        assert not table.A_defined.values.any()
        assert set(table.regime.values.tolist()) == {"undefined"}
        assert "rank 8/16" in str(table.regime_reason[0].item())


def test_rotary_circuits_at_an_offset_are_the_explicitly_turned_ones(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("llama")
    table = audit(ckpt, offsets=(0, 1, 5), **PAPER)
    np.testing.assert_allclose(table.qk_balance_at_offset.sel(offset=0), table.qk_balance, atol=1e-12)
    weights = ckpt.attention(2)
    frequencies = weights.rotary_frequencies
    assert frequencies is not None
    pairs = len(frequencies)
    for head in range(4):
        angles = 5 * frequencies.double()
        turn = torch.zeros(2 * pairs, 2 * pairs, dtype=torch.float64)
        for pair in range(pairs):
            cosine, sine = torch.cos(angles[pair]), torch.sin(angles[pair])
            turn[pair, pair] = turn[pair + pairs, pair + pairs] = cosine
            turn[pair, pair + pairs], turn[pair + pairs, pair] = sine, -sine
        dense = weights.query[head].double() @ turn @ weights.key_per_head[head].double().T
        eigenvalues = symmetric_eigenvalues(dense)
        expected = eigenvalues.sum() / np.abs(eigenvalues).sum()
        assert float(table.qk_balance_at_offset.sel(layer=2, offset=5)[head]) == pytest.approx(expected, abs=1e-10)


def test_absolute_positions_have_no_offsets(tiny: Callable[..., Checkpoint]) -> None:
    assert "qk_balance_at_offset" not in audit(tiny("gpt2"))


@pytest.mark.long
def test_norm_gains_can_be_folded_in_and_it_is_recorded(one_layer: Callable[..., Checkpoint]) -> None:
    from safetensors.torch import load_file, save_file

    W, V = constrained(HALF, 5), constrained(PLUS, 6)
    folder = one_layer(W, V).source
    weights = load_file(folder / "model.safetensors")
    gain = torch.tensor([1.0, -2.0, 3.0, 0.5, 1.5, 4.0])
    save_file(weights | {"h.0.ln_1.weight": gain}, folder / "model.safetensors", metadata={"format": "pt"})
    plain, folded = audit(load(folder), **PAPER), audit(load(folder), "V", fold_norms=True)
    G = torch.diag(gain).double()
    assert plain.W_inertia[0].values.tolist() == [3, 3, 0]
    assert folded.W_inertia[0].values.tolist() == signs(symmetric_eigenvalues(G @ W.float().double() @ G))
    assert float(folded.V_max_real[0]) == pytest.approx(
        max(np.linalg.eigvals((G @ V.float().double()).numpy()).real), rel=1e-9
    )
    assert "folded into" in folded.attrs["fold_norms"]
    assert plain.attrs["fold_norms"] == "not folded"
    assert "folded into" in audit(load(folder)).attrs["fold_norms"]


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_layers_can_be_chosen_and_wrong_choices_are_named(tiny: Callable[..., Checkpoint]) -> None:
    whole, part = audit(tiny("gpt2")), audit(tiny("gpt2"), layers=[3, 1])
    assert part.layer.values.tolist() == [3, 1]
    np.testing.assert_array_equal(part.qk_balance.sel(layer=1), whole.qk_balance.sel(layer=1))
    for arguments, words in (
        ({"layers": [0, 4]}, "layers: expected a layer from 1 to 3, got 0; layers count from 1; 0 is the embedding"),
        ({"layers": 3}, "layers: expected a sequence of whole numbers"),
        ({"layers": [1.5]}, r"layers\[0\]: expected an integer, got 1.5"),
        ({"layers": []}, "layers: expected layers from 1 to 3, got none"),
        ({"value": "W"}, "value: expected one of V, VO, got 'W'"),
        ({"singular": "zero"}, "singular: expected one of undefined, pinv"),
    ):
        with pytest.raises((ArgumentValueError, ArgumentTypeError), match=words):
            audit(tiny("gpt2"), **arguments)
    with pytest.raises(ArgumentValueError, match="fold_norms: expected False"):
        audit(tiny("bert"), fold_norms=True)
    assert audit(tiny("bert")).attrs["fold_norms"] == "not folded because no layer has one"


def test_a_value_map_that_is_not_square_asks_for_the_other(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("llama", head_dim=8)
    with pytest.raises(ArgumentValueError, match=r"value: expected 'VO' for this model.*not square.*pass value='VO'"):
        audit(ckpt, "V")
    assert audit(ckpt).sizes["layer"] == 3


@pytest.mark.slow
def test_an_untrained_gpt2_has_half_of_its_signs_each_way() -> None:
    """`positional` Table 7, re-initialised: the percentages of 50 reproduce."""
    table = audit(load("random:gpt2"), **PAPER)
    dim = 768
    for name in ("W_inertia", "A_inertia"):
        share = table[name].sel(sign="positive") / dim
        assert abs(float(share.mean()) - 0.5) < 0.005
    assert float(table.V_near_zero.sum()) / (12 * dim) < 0.002
    assert table.A_defined.values.all()


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_has_no_contraction_form_and_says_so() -> None:
    table = audit(load("smollm2"), **PAPER)
    assert (table.sizes["layer"], table.sizes["head"]) == (30, 9)
    assert table.V_rank.values.tolist() == [192] * 30
    assert not table.A_defined.values.any()
    assert np.isnan(table.A_inertia).all()
    assert all("undefined (rank 192/576)" in reason for reason in table.regime_reason.values.tolist())
    assert (table.qk_inertia.values == [64, 64, 448]).all()
    assert audit(load("smollm2"), "VO", layers=[1, 30]).V_rank.values.tolist() == [192, 192]


@pytest.mark.long
def test_whole_spectra_of_the_value_maps_on_request(tiny: Callable[..., Checkpoint]) -> None:
    for family, value in (("gpt2", "V"), ("llama", "VO")):
        ckpt = tiny(family)
        plain, whole = (audit(ckpt, value, False, spectra=wanted) for wanted in ("extremes", "whole"))  # type: ignore[arg-type]
        assert "V_eigenvalues_real" not in plain
        assert set(plain.V_route.values.tolist()) == {"whole spectrum"}
        for layer in whole.layer.values.tolist():
            row, weights = whole.sel(layer=layer), ckpt.attention(layer)
            V = torch.cat(list(weights.value), dim=-1).double()
            if value == "VO":
                heads = zip(weights.groups.tolist(), weights.output.double(), strict=True)
                V = torch.stack([weights.value[group].double() @ output for group, output in heads]).sum(dim=0)
            computed = row.V_eigenvalues_real.values + 1j * row.V_eigenvalues_imag.values
            dense = np.linalg.eigvals(V.numpy())
            np.testing.assert_allclose(np.sort(np.abs(computed)), np.sort(np.abs(dense)), atol=1e-9)
            assert (np.diff(np.abs(computed)) <= 0).all()
            assert float(row.V_max_real) == computed.real.max()
            assert computed.imag.sum() == pytest.approx(0, abs=1e-9)
            assert np.abs(computed.imag).sum() == pytest.approx(np.abs(dense.imag).sum(), abs=1e-8)


def test_an_unknown_choice_of_spectra_is_refused(tiny: Callable[..., Checkpoint], unchecked: None) -> None:
    with pytest.raises(ArgumentValueError, match="spectra: expected one of extremes, whole, got 'all'"):
        audit(tiny("gpt2"), spectra="all")  # type: ignore[arg-type]
