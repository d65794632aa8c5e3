"""Distances from the theorems' hypotheses, and the prediction, against dense recomputation and known layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import spearmanr

from diagnosis.function_preserving import network_of
from tokendynamics.diagnosis import audit
from tokendynamics.diagnosis.auditing import _hypotheses as measured
from tokendynamics.diagnosis.auditing._hypotheses import HeadSums, centred
from tokendynamics.diagnosis.auditing._words import (
    IN_WORDS,
    MET,
    prediction_against_trace,
    rank_correlation,
    theorems_in_words,
    weights_findings,
)
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained import AttentionWeights, load

DIM = 6
EYE = torch.eye(DIM, dtype=torch.float64)
TURN = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)] * 3)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(*heads: tuple[torch.Tensor, torch.Tensor], **more: Any) -> AttentionWeights:
    """A layer of heads as wide as the states, with these W_h and V_h and unit scale."""
    whole = EYE.expand(len(heads), DIM, DIM)
    qk, ov = (torch.stack([head[side] for head in heads]) for side in (0, 1))
    settings: dict[str, Any] = {"scale": 1.0, "norm_eps": 0.0, "norm_kind": "rms"}
    return AttentionWeights(
        query=whole, key=qk.mT, value=ov, output=whole, groups=torch.arange(len(heads)), **settings | more
    )


def distances(weights: AttentionWeights, causal: bool = True, positions: bool = False) -> dict[str, float]:
    numbers = measured.numbers_of(weights, causal=causal, positions=positions)
    return (
        dict(zip(measured.HYPOTHESES, numbers["hypothesis_distance"].tolist(), strict=True))
        | dict(zip(measured.STATEMENTS, numbers["statement_distance"].tolist(), strict=True))
        | {"prediction": float(numbers["predicted_contraction"]), "norm": float(numbers["ov_norm"])}
        | {"nearest": str(numbers["nearest_statement"])}
    )  # fmt: skip


SPD = drawn(DIM, DIM, seed=1) @ drawn(DIM, DIM, seed=1).T + EYE


@pytest.mark.parametrize(
    ("ov", "identity", "asymmetry", "top"),
    [
        (EYE, 0.0, 0.0, 1.0),
        (7 * EYE, 0.0, 0.0, 1.0),
        (-EYE, 1.0, 0.0, 1.0),
        (0 * EYE, 1.0, 0.0, 1.0),
        (torch.diag(torch.arange(1.0, 7.0)).double(), None, 0.0, 0.0),
        (torch.diag(-torch.arange(1.0, 7.0)).double(), 1.0, 0.0, 1.0),
        (TURN, 1.0, 1.0, None),
        (EYE + TURN, np.sqrt(0.5), np.sqrt(0.5), 0.0),
        (-EYE + TURN, 1.0, np.sqrt(0.5), 1.0),
        (drawn(DIM, DIM), None, None, 0.0),
    ],
)
def test_known_value_maps(ov: torch.Tensor, identity: float | None, asymmetry: float | None, top: float | None) -> None:
    distance_values = distances(layer((SPD, ov)))
    V = ov.numpy()
    if np.any(V):
        multiple = max(np.trace(V), 0) / DIM
        by_hand = np.linalg.norm(V - multiple * np.eye(DIM)) / np.linalg.norm(V)
        assert distance_values["ov_identity"] == pytest.approx(by_hand, abs=1e-12)
        assert distance_values["ov_symmetric"] == pytest.approx(
            np.linalg.norm(V - V.T) / 2 / np.linalg.norm(V), abs=1e-12
        )
    assert distance_values["norm"] == pytest.approx(np.linalg.norm(V, 2), abs=1e-12)
    for name, expected in (("ov_identity", identity), ("ov_symmetric", asymmetry), ("ov_top_eigenvalue", top)):
        if expected is not None:
            assert distance_values[name] == pytest.approx(expected, abs=1e-12), name
    assert distance_values["ov_identity_per_head"] == pytest.approx(distance_values["ov_identity"], abs=1e-7)


@pytest.mark.parametrize("causal", [True, False])
def test_the_identity_meets_the_theorem_of_its_mask(causal: bool) -> None:
    distance_values = distances(layer((drawn(DIM, DIM), EYE)), causal=causal)
    direct, other = ("asymptotic-5.1", "asymptotic-4.1") if causal else ("asymptotic-4.1", "asymptotic-5.1")
    assert distance_values["nearest"] == direct
    assert distance_values[direct] <= 1e-12
    assert np.isnan(distance_values[other])
    random = distances(layer((drawn(DIM, DIM), drawn(DIM, DIM, seed=2))), causal=causal)
    assert min(random[name] for name in measured.STATEMENTS if not np.isnan(random[name])) > 0.3


def test_symmetric_values_with_a_simple_top_eigenvalue_meet_6_1_and_without_do_not() -> None:
    assert distances(layer((drawn(DIM, DIM), SPD)))["asymptotic-6.1"] <= 1e-12
    for gap, distance in ((1.01e-3, 0.0), (0.5e-3, 0.5), (0.0, 1.0)):
        top = torch.diag(torch.tensor([1.0, 1.0 - gap, 0.5, 0.1, -2.0, 0.0], dtype=torch.float64))
        assert distances(layer((SPD, top)))["ov_top_eigenvalue"] == pytest.approx(distance, abs=1e-9)


def test_the_gradient_flow_asks_both_for_a_multiple_of_the_identity() -> None:
    assert distances(layer((3 * EYE, EYE)), causal=False)["asymptotic-3.2"] <= 1e-12
    distance_values = distances(layer((SPD, EYE)), causal=False)
    S = SPD.numpy()
    by_hand = np.linalg.norm(S - np.trace(S) / DIM * np.eye(DIM)) / np.linalg.norm(S)
    assert distance_values["asymptotic-3.2"] == distance_values["qk_identity"] == pytest.approx(by_hand, abs=1e-12)
    assert distance_values["qk_positive"] == 0


def test_the_signs_of_positional_3_4_and_their_opposites() -> None:
    # V = −W gives A = W (V^T)^{-1} = −I for symmetric W.
    met = distances(layer((SPD, -SPD)), causal=False)
    assert met["positional-3.4"] <= 1e-12
    assert met["nearest"] == "positional-3.1"  # it asks for less
    flipped = distances(layer((SPD, SPD)), causal=False)
    assert (flipped["a_negative"], flipped["qk_positive"]) == (1.0, 0.0)
    negative = distances(layer((-SPD, SPD)), causal=False)
    assert (negative["a_negative"], negative["qk_positive"]) == (0.0, 1.0)
    half = torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, 0.0]).double())
    assert distances(layer((half, -EYE)), causal=False)["qk_positive"] == 0.5
    singular = distances(layer((SPD, half)), causal=False)
    assert singular["ov_invertible"] == pytest.approx(1 / 6)


def test_the_form_A_is_measured_without_an_inverse() -> None:
    W, V = drawn(DIM, DIM, seed=3), drawn(DIM, DIM, seed=4)
    distance_values = distances(layer((W, V)), causal=False)
    A = W.numpy() @ np.linalg.inv(V.numpy().T)
    assert distance_values["a_negative"] == (np.linalg.eigvalsh(A + A.T) >= 0).mean()
    B = V.numpy() @ W.numpy()
    assert distance_values["a_symmetric"] == pytest.approx(np.linalg.norm(B - B.T) / 2 / np.linalg.norm(B), abs=1e-12)
    symmetric = np.linalg.solve(V.numpy(), (B + B.T) / 2)
    assert distances(layer((torch.tensor(symmetric), V)), causal=False)["positional-3.1"] <= 1e-9


def test_positions_in_attention_leave_nothing_to_ask_of_A() -> None:
    distance_values = distances(layer((SPD, -SPD)), causal=False, positions=True)
    for name in (*measured.ASKED_OF_A, "positional-3.1", "positional-3.3", "positional-3.4"):
        assert np.isnan(distance_values[name])
    assert not np.isnan(distance_values["asymptotic-4.1"])


def test_heads_that_weigh_alike_are_one_head() -> None:
    parts = drawn(DIM, DIM, seed=5)
    alike = distances(layer((SPD, parts), (SPD, EYE - parts)))
    assert alike["heads_alike"] <= 1e-7
    assert alike["asymptotic-5.1"] <= 1e-7
    other = drawn(DIM, DIM, seed=6)
    unlike = distances(layer((SPD, parts), (other, EYE - parts)))
    whole, squares = (SPD + other).square().sum(), SPD.square().sum() + other.square().sum()
    by_hand = float((1 - whole / (2 * squares)).sqrt())
    assert unlike["heads_alike"] == pytest.approx(by_hand, abs=1e-12)
    assert unlike["ov_identity"] <= 1e-12
    assert unlike["asymptotic-5.1"] == pytest.approx(by_hand, abs=1e-12)
    # Heads that differ do no harm where each has a multiple of the identity.
    entry = distances(layer((SPD, 0.3 * EYE), (other, 0.7 * EYE)))
    assert entry["heads_alike"] > 0.1
    assert entry["asymptotic-5.1"] <= 1e-7
    assert distances(layer((0 * SPD, parts), (0 * SPD, EYE - parts)))["asymptotic-5.1"] <= 1e-12


@pytest.mark.parametrize("trace", [0.0, 2.0, -1.0, 900.0])
def test_the_prediction_is_the_growth_of_what_is_shared_against_what_is_own(trace: float) -> None:
    V, other = drawn(DIM, DIM, seed=7), drawn(DIM, DIM, seed=8)
    distance_values = distances(layer((trace / DIM * EYE, V), (TURN, other)))
    kept = V.numpy() / (1 + 20 * np.exp(-trace)) + other.numpy() / 21
    shared = np.linalg.norm(np.eye(DIM) + V.numpy() + other.numpy()) ** 2
    assert distance_values["prediction"] == pytest.approx(
        np.log(shared / np.linalg.norm(np.eye(DIM) + kept) ** 2), abs=1e-10
    )


def test_the_prediction_has_the_sign_that_is_expected() -> None:
    assert distances(layer((0 * EYE, EYE)))["prediction"] == pytest.approx(2 * np.log(2 / (1 + 1 / 21)))
    assert distances(layer((0 * EYE, -0.5 * EYE)))["prediction"] < 0
    assert distances(layer((50 * EYE, EYE)))["prediction"] == pytest.approx(0, abs=1e-12)  # a token sees itself alone
    assert distances(layer((0 * EYE, 0 * EYE)))["prediction"] == 0
    assert np.isfinite(distances(layer((0 * EYE, -EYE)))["prediction"])  # what is shared is wiped out


def test_gains_are_folded_and_what_layer_norm_takes_off_is_left_out() -> None:
    gain = torch.tensor([1.0, -2.0, 3.0, 0.5, 1.5, 4.0], dtype=torch.float64)
    W, V = drawn(DIM, DIM, seed=9), torch.diag(1 / gain)
    G = torch.diag(gain)
    assert distances(layer((W, V), norm_gain=gain))["ov_identity"] <= 1e-12
    plain, folded = distances(layer((G @ W @ G, G @ V))), distances(layer((W, V), norm_gain=gain))
    assert folded.pop("nearest") == plain.pop("nearest")
    assert folded == pytest.approx(plain, abs=1e-12, nan_ok=True)
    centred = layer((W, V + 1 / gain[:, None] * drawn(1, DIM)), norm_gain=gain, norm_kind="layer")
    assert distances(centred)["ov_identity"] <= 1e-12
    # Behind no norm nothing is taken off.
    assert distances(replace(centred, norm_gain=None))["ov_identity"] > 0.1


def test_the_audit_has_them_whatever_its_value_map() -> None:
    network = network_of("gpt2")
    default, papers = audit(load(network)), audit(load(network), "V", False)
    names = ["ov_norm", "hypothesis_distance", "statement_distance", "nearest_statement", "predicted_contraction"]
    # By two routes: of the matrices that the audit has anyway, and of its own.
    xr.testing.assert_allclose(default[names[:3] + names[4:]], papers[names[:3] + names[4:]], rtol=1e-12, atol=1e-12)
    assert default.nearest_statement.values.tolist() == papers.nearest_statement.values.tolist()
    assert default.statement.values.tolist() == list(measured.STATEMENTS)
    assert set(measured.HYPOTHESES) == set(IN_WORDS)
    assert all(set(asked) <= set(measured.HYPOTHESES) for asked in measured.STATEMENTS.values())
    assert "gains folded" in default.attrs["theory"]


def told(distance: float, nearest: str = "asymptotic-5.1", layers: int = 2) -> xr.Dataset:
    """An audit all of whose layers are at one distance from one statement, by its hypothesis on OV."""
    result = xr.Dataset(
        {
            "hypothesis_distance": (("layer", "hypothesis"), np.full((layers, len(measured.HYPOTHESES)), 0.5)),
            "statement_distance": (("layer", "statement"), np.full((layers, len(measured.STATEMENTS)), 2.0)),
            "nearest_statement": ("layer", [nearest] * layers),
            "predicted_contraction": ("layer", np.arange(layers) / 10),
            "ov_norm": ("layer", np.ones(layers)),
        },
        coords={
            "layer": np.arange(1, layers + 1),
            "hypothesis": list(measured.HYPOTHESES),
            "statement": list(measured.STATEMENTS),
        },
    )
    result.statement_distance.loc[{"statement": nearest}] = distance
    result.hypothesis_distance.loc[{"hypothesis": "ov_identity"}] = distance
    return result


def test_words_on_both_sides_of_the_threshold() -> None:
    met = theorems_in_words(told(MET))
    assert met.text == "The hypotheses of a theorem hold in all 2 layers: asymptotic-5.1."
    capped = theorems_in_words(told(MET).assign_attrs(besides="windows of 4 tokens and a soft cap")).text
    assert capped == met.text.replace("theorem hold", "theorem on the weights hold") + (
        " But attention here has windows of 4 tokens and a soft cap, which the theorem does not cover."
    )
    missed = theorems_in_words(told(MET + 1e-9))
    assert missed.text == (
        "No theorem applies to this network: its heads weigh tokens differently. The theory predicts nothing here. The "
        "nearest theorem is asymptotic-5.1 (“Causal consensus at the first token”) in all 2 layers, at distance 0.01 "
        "(0 = its hypotheses hold). The hypothesis that is missed most is “all heads weigh tokens alike” (median "
        "distance 0.50 of at most 1)."
    )
    assert (met.figure, met.values["meeting"], missed.values["meeting"]) == ("weights", 2, 0)
    mixed = told(0.4)
    mixed.hypothesis_distance.loc[{"hypothesis": "ov_identity", "layer": 1}] = MET
    assert "OV is a multiple of the identity in 1 of 2 layers, as asymptotic-4.1" in theorems_in_words(mixed).text
    one = told(0.4)
    one.statement_distance.loc[{"layer": 1, "statement": "asymptotic-5.1"}] = 0.0
    assert (
        "A theorem applies in 1 of 2 layers only; elsewhere its heads weigh tokens differently."
        in theorems_in_words(one).text
    )


def test_the_rank_correlation_is_scipys_and_its_p_value_counts_orders() -> None:
    rng = np.random.default_rng(0)
    for count in (5, 7, 30):
        one, other = rng.normal(size=(2, count)).round(1)
        computed, p_value = rank_correlation(one, other)
        assert computed == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)
        if count <= 7:
            orders = [abs(spearmanr(one, order).statistic) for order in permutations(other)] if count == 5 else None
            if orders is not None:
                assert p_value == pytest.approx(np.mean(np.array(orders) >= abs(computed) - 1e-9))
        else:
            assert p_value == pytest.approx(spearmanr(one, other).pvalue, abs=0.02)
    assert all(np.isnan(rank_correlation(np.ones(6), np.arange(6.0))))


def test_the_weights_alone_tell_or_do_not() -> None:
    table, rng = told(1.0, layers=10), np.random.default_rng(1)
    up = np.arange(10.0)
    cases = {
        "The weights alone predict the order of layers (Spearman ρ = 1.00, p < 0.001; depth alone: ρ = 1.00)": up,
        "The weights alone predict the opposite order of layers (Spearman ρ = −1.00": -up,
        "The weights alone do not predict what attention does (Spearman ρ = ": rng.permutation(up),
        "The prediction from the weights is undefined because it, or what attention does, is equal in": 0 * up,
    }
    for words, seen in cases.items():
        result = prediction_against_trace(table, seen)
        assert result.words.startswith(words), result.words
    few = prediction_against_trace(told(1.0, layers=5), np.array([0.0, 1, 2, 4, 3]))
    assert few.words.startswith("The weights alone do not significantly predict what attention does (Spearman ρ = 0.90")
    by_layer = xr.DataArray(np.append(9.0, up), dims="layer", coords={"layer": np.arange(11)})
    assert prediction_against_trace(table, by_layer).correlation == 1
    long = told(1.0, layers=40)
    weak = np.arange(40.0) + 35 * np.random.default_rng(2).normal(size=40)
    assert "alone partly predict the order" in prediction_against_trace(long, weak).words


@pytest.mark.parametrize(("layers", "told_apart"), [(4, False), (5, True)])
def test_four_layers_are_too_few(layers: int, told_apart: bool) -> None:
    result = prediction_against_trace(told(1.0, layers=layers), np.arange(float(layers)))
    assert ("not tested because there are too few layers" in result.words) != told_apart
    assert np.isnan(result.correlation) != told_apart
    gaps = np.append(np.arange(float(layers)), np.nan)
    assert prediction_against_trace(told(1.0, layers=layers + 1), gaps).layers == tuple(range(1, layers + 1))


def test_a_wrong_number_of_layers_is_named() -> None:
    table = told(1.0, layers=6)
    with pytest.raises(ArgumentValueError, match="kappa_change: expected one number for each of the 6 audited layers"):
        prediction_against_trace(table, [0.1] * 5)
    part = xr.DataArray(np.zeros(3), dims="layer", coords={"layer": [1, 2, 3]})
    with pytest.raises(ArgumentValueError, match="every layer of the audit, got none for 4"):
        prediction_against_trace(table, part)


def test_the_findings_are_one_without_what_was_seen_and_two_with_it() -> None:
    table = told(0.7, layers=6)
    assert [finding.figure for finding in weights_findings(table)] == ["weights"]
    both = weights_findings(table, np.arange(6.0))
    assert [finding.figure for finding in both] == ["weights", "components"]
    assert both[1].values["rank_correlation"] == 1
    assert "the contraction of OV weighted by QK with the change of κ by attention" in both[1].text


@pytest.mark.parametrize("rank", [DIM, DIM - 1, 2, 0])
@pytest.mark.parametrize("without_mean", [False, True])
def test_the_rank_is_that_of_the_singular_values(rank: int, without_mean: bool) -> None:
    """Also where the mean is taken out, so that no rank is full, and where full rank is only just there."""
    left, _ = torch.linalg.qr(drawn(DIM, DIM, seed=11))
    for smallest in (1.0, 1e-7, 1e-11):
        sizes = torch.ones(DIM, dtype=torch.float64)
        sizes[-1] = smallest
        sizes[rank:] = 0.0
        ov = left @ torch.diag(sizes) @ drawn(DIM, DIM, seed=12)
        sums = HeadSums(DIM - without_mean, without_mean, (), (), (), ())
        ov = centred(ov, sums)
        singular = np.linalg.svd(ov.numpy(), compute_uv=False)
        by_hand = int((singular > 1e-12 * max(singular[0], 1e-300)).sum())
        assert measured._rank(ov, sums) == by_hand


_SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "choices", "besides"),
    [
        ("gpt2", {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 60}, "none"),
        ("llama", {}, "rotary positions"),
        ("mistral", {"sliding_window": 4}, "windows of 4 tokens and rotary positions"),
        ("mistral", {"sliding_window": 512}, "rotary positions"),
        ("qwen3", {}, "rotary positions and query and key normalized after their projection"),
        ("gemma2", {"sliding_window": 512, "query_pre_attn_scalar": 8}, "rotary positions and a soft cap"),
        ("bloom", {"hidden_size": 16, "n_head": 2, "n_layer": 1, "vocab_size": 60}, "a bias by position"),
    ],
)
def test_what_attention_has_and_that_of_the_theorems_has_not_is_recorded(
    model_type: str, choices: dict[str, Any], besides: str
) -> None:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    sizes = choices if model_type in ("gpt2", "bloom") else _SMALL | choices
    assert audit(AutoModel.from_config(AutoConfig.for_model(model_type, **sizes))).attrs["besides"] == besides
