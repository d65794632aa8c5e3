"""The trace against plain loops over the model's own hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics import observables
from tokendynamics.diagnosis import attention_seen, token_paths, trace
from tokendynamics.diagnosis.tracing.prompt_trace import find_sinks, tokens_to_remove
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, TokenDynamicsError
from tokendynamics.pretrained import Checkpoint, load

TEXTS = {"one": "a cat sat on the mat", "two": "0123456789", "three": "for x in y:\n    pass"}

SENTENCE = (
    "The museum opened its new wing on a rainy Tuesday, and by noon the line of visitors stretched around "
    "the corner of the square."
)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def mean_pair_cosine(x: np.ndarray) -> float:
    pairs = [cosine(x[i], x[j]) for i in range(len(x)) for j in range(len(x)) if i != j]
    return float(np.mean(pairs))


def consensus(x: np.ndarray, reference: int, signed: bool = False) -> float:
    agreement = [cosine(x[reference], row) for row in x]
    return 1 - float(np.mean(agreement if signed else np.abs(agreement)))


def effective_rank(x: np.ndarray) -> float:
    energy = np.linalg.svd(x, compute_uv=False) ** 2
    share = energy[energy > 1e-14 * energy.max()] / energy.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def by_hand(x: np.ndarray) -> dict[str, float]:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    norms = np.linalg.norm(x, axis=1)
    return {
        "consensus_first": consensus(x, 0),
        "consensus_first_signed": consensus(x, 0, signed=True),
        "consensus_last": consensus(x, -1),
        "mean_pair_cosine": mean_pair_cosine(x),
        "effective_rank": effective_rank(x),
        "effective_rank_unit_rows": effective_rank(unit),
        "stable_rank": float((np.linalg.norm(x) / np.linalg.norm(x, 2)) ** 2),
        "stable_rank_unit_rows": float((np.linalg.norm(unit) / np.linalg.norm(unit, 2)) ** 2),
        "rank_one_distance": float(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x)),
        "norm_median": float(np.median(norms)),
        "norm_lower_quartile": float(np.quantile(norms, 0.25)),
        "norm_upper_quartile": float(np.quantile(norms, 0.75)),
        "distance_mean": float(np.mean([np.linalg.norm(a - b) for i, a in enumerate(x) for b in x[:i]])),
    }


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_every_variable_at_every_layer_is_the_one_computed_by_hand(
    tiny: Callable[..., Checkpoint], family: str
) -> None:
    ckpt = tiny(family)
    table = trace(ckpt, TEXTS, sinks=(1, 2))
    for name, text in TEXTS.items():
        hidden = ckpt.model(ckpt.encode(text).ids, output_hidden_states=True).hidden_states
        last = ckpt.architecture.layers
        for layer in range(last + 1):
            site = "final_norm" if layer == last and family != "bert" else "feed_forward"
            states = hidden[layer][0].double().numpy()
            row = table.sel(prompt=name, layer=layer, site=site)
            for variable, expected in by_hand(states).items():
                assert float(row[variable].sel(sinks="kept")) == pytest.approx(expected, abs=2e-6), variable
            for variable, expected in by_hand(np.delete(states, [1, 2], axis=0)).items():
                assert float(row[variable].sel(sinks="removed")) == pytest.approx(expected, abs=2e-6), variable


def test_sites_that_do_not_exist_are_empty_and_all_others_are_not(tiny: Callable[..., Checkpoint]) -> None:
    filled = ~np.isnan(trace(tiny("gpt2"), TEXTS).mean_pair_cosine).any(["prompt", "sinks"])
    expected = np.zeros((4, 3), bool)
    expected[0, 1] = expected[3, 2] = True
    expected[1:, :2] = True
    np.testing.assert_array_equal(filled, expected)
    assert not (~np.isnan(trace(tiny("bert"), TEXTS).norm_median.sel(site="final_norm"))).any()


def test_component_changes_add_up_to_the_whole_change(tiny: Callable[..., Checkpoint]) -> None:
    table = trace(tiny("llama"), TEXTS, sinks=(0,))
    cosine_of = table.mean_pair_cosine.sel(sinks="removed")
    whole = cosine_of.sel(layer=3, site="final_norm") - cosine_of.sel(layer=0, site="feed_forward")
    np.testing.assert_allclose(table.component_change.sum(["layer", "component"]), whole, atol=1e-12)
    step = cosine_of.sel(layer=2, site="attention") - cosine_of.sel(layer=1, site="feed_forward")
    np.testing.assert_allclose(table.component_change.sel(layer=2, component="attention"), step, atol=1e-12)


def test_shares_are_those_of_the_absolute_changes(tiny: Callable[..., Checkpoint]) -> None:
    table = trace(tiny("llama"), TEXTS)
    shifted = np.abs(table.component_change.values).sum(axis=1)
    np.testing.assert_allclose(table.component_share, shifted / shifted.sum(axis=1, keepdims=True), atol=1e-12)


@pytest.mark.long
def test_slower_observables_on_request_are_the_single_functions(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("gpt2")
    asked: dict[str, Any] = {"extra": ("clusters", "hemisphere_margin"), "cluster_angle": 1.2}
    table = trace(ckpt, TEXTS, sinks=(0,), packed=False, **asked)
    states = ckpt.states(ckpt.encode(TEXTS["two"]).ids).attention[2].double()
    row = table.sel(prompt="two", layer=2, site="attention")
    for handling, kept in (("kept", states), ("removed", states[1:])):
        assert int(row.clusters.sel(sinks=handling)) == int(observables.clusters(kept, 1.2))
        margin = float(observables.hemisphere(kept).margin)
        assert float(row.hemisphere_margin.sel(sinks=handling)) == pytest.approx(margin, abs=1e-12)
    assert table.attrs["cluster_angle"] == 1.2
    assert "clusters" not in trace(ckpt, TEXTS)


def test_shares_of_a_trace_are_those_of_the_states_that_count(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("gpt2")
    table = trace(ckpt, TEXTS, sinks=(0,), packed=False)
    states = [ckpt.states(ckpt.encode(text).ids).feed_forward[:, 1:] for text in TEXTS.values()]
    share_values = observables.shares(states)
    site = table.sel(site="feed_forward")
    for name in ("common", "prompt", "own"):
        np.testing.assert_allclose(site.shares.sel(share=name), getattr(share_values, name).numpy(), atol=1e-12)
    np.testing.assert_allclose(site.consensus_within, share_values.kappa.numpy(), atol=1e-12)
    relative = (share_values.kappa - share_values.kappa[0]) / (1 - share_values.kappa[0])
    np.testing.assert_allclose(site.consensus_relative, relative.numpy(), atol=1e-12)
    np.testing.assert_allclose(site.kappa_of_prompt.mean("prompt"), site.consensus_within, atol=1e-12)
    for name, values in (("common", share_values.common), ("prompt", share_values.prompt), ("own", share_values.own)):
        np.testing.assert_allclose(site[f"share_{name}"], values.numpy(), atol=1e-12)
        np.testing.assert_array_equal(site[f"share_{name}_interval"], site.shares_interval.sel(share=name))
    without = [observables.shares(states[:out] + states[out + 1 :]).kappa for out in range(3)]
    pseudo = np.stack([3 * share_values.kappa.numpy() - 2 * entry.numpy() for entry in without])
    half = 2.919986 * pseudo.std(axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(site.consensus_within_interval.sel(bound="low"), pseudo.mean(axis=0) - half, rtol=1e-6)
    np.testing.assert_allclose(site.consensus_within_interval.sel(bound="high"), pseudo.mean(axis=0) + half, rtol=1e-6)
    alone = trace(ckpt, "one prompt")
    assert np.isnan(alone.shares.sel(share=["common", "prompt"])).all()
    assert np.isnan(alone.consensus_within).all()


def test_what_each_part_does_to_kappa_adds_up(tiny: Callable[..., Checkpoint]) -> None:
    table = trace(tiny("llama"), TEXTS)
    whole = table.consensus_within.sel(site="final_norm")[-1] - table.consensus_within.sel(site="feed_forward")[0]
    assert float(table.kappa_change.sum()) == pytest.approx(float(whole), abs=1e-12)
    assert float(table.kappa_change_sum.sum()) == pytest.approx(float(whole), abs=1e-12)


@pytest.mark.parametrize(
    ("length", "rounding"),
    [(8, 1e-12), (20, 16 * np.finfo(np.float32).eps)],
    ids=["from cosines, in float64", "long ones: from differences, in the states' float32"],
)
def test_centred_measures_of_a_trace_are_over_pairs_without_the_others_mean(
    tiny: Callable[..., Checkpoint], length: int, rounding: float
) -> None:
    ckpt, texts = tiny("gpt2", n_embd=16), {name: (3 * TEXTS[name])[:length] for name in ("one", "two")}
    table = trace(ckpt, texts, sinks=(0,), packed=False).sel(site="feed_forward", layer=[0, 2])
    moments = []
    for layer in (0, 2):
        units = []
        for text in texts.values():
            x = ckpt.states(ckpt.encode(text).ids).feed_forward[layer, 1:].double().numpy()
            units.append(x / np.linalg.norm(x, axis=1, keepdims=True))
        entry = []
        for direct, other in (units, units[::-1]):
            v = direct - other.mean(axis=0)
            cosines = [cosine(a, b) for i, a in enumerate(v) for b in v[:i]]
            entry.append((np.mean(np.square(cosines)), np.var(cosines)))
        moments.append(np.mean(entry, axis=0))
    (start, var_0), (end, var_2) = moments
    np.testing.assert_allclose(table.centred_cos2, [start, end], atol=rounding)
    np.testing.assert_allclose(table.line_excess[-1], (var_2 - var_0) / (1 - var_0), atol=rounding)


def test_update_ratios_are_those_of_the_residual_stream(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("llama")
    table = trace(ckpt, TEXTS, packed=False)
    states = ckpt.states(ckpt.encode(TEXTS["two"]).ids)
    before, after = states.attention[3].double(), states.feed_forward[3].double()
    ratio = np.sort(((after - before).norm(dim=-1) / before.norm(dim=-1)).numpy())
    row = table.update_ratio.sel(prompt="two", layer=3)
    assert float(row.sel(component="feed_forward")) == pytest.approx(ratio[(len(ratio) - 1) // 2], abs=1e-6)
    assert np.isnan(row.sel(component="final_norm"))
    assert np.isnan(table.update_ratio.sel(layer=0)).all()


@pytest.mark.long
@pytest.mark.parametrize("packed", [True, False])
def test_attention_received_is_that_of_the_patterns(tiny: Callable[..., Checkpoint], packed: bool) -> None:
    """Against whole patterns, by hand: heads averaged, receivers at least four away, at least eight of them."""
    ckpt = tiny("gpt2")
    texts = {"long": "a cat sat on the mat and", "longer": "0123456789abcdef, said she"}
    table = trace(ckpt, texts, packed=packed)
    seen = attention_seen(ckpt, texts, patterns=True)
    for name, text in texts.items():
        tokens = len(ckpt.encode(text).ids[0])
        pattern = seen.pattern.sel(prompt=name, layer=2).mean("head").values[:tokens, :tokens]
        for token in range(tokens):
            receivers = [i for i in range(tokens) if i - token >= 4]
            row = table.sel(prompt=name, layer=2).isel(token=token)
            if len(receivers) < 8:
                assert np.isnan(row.attention_received)
                continue
            assert float(row.attention_received) == pytest.approx(pattern[receivers, token].mean(), abs=1e-6)
            uniform = np.mean([1 / (i + 1) for i in receivers])
            assert float(row.attention_uniform) == pytest.approx(uniform, abs=1e-6)
        known = [pattern[token + 4 :, token].mean() for token in range(tokens) if tokens - token - 4 >= 8]
        assert float(table.attention_sink_mass.sel(prompt=name, layer=2)) == pytest.approx(max(known), abs=1e-6)
        assert int(table.attention_sink_position.sel(prompt=name, layer=2)) == int(np.argmax(known))
        assert int(table.attention_sink_position.sel(prompt=name, layer=0)) == -1


def test_observables_of_ones_own_see_the_tokens_that_count(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("gpt2")
    table = trace(ckpt, TEXTS, sinks=(0,), observables={"mine": lambda x: x.abs().max(), "tokens": len})
    state = ckpt.states(ckpt.encode(TEXTS["two"]).ids).attention[2].double()
    row = table.sel(prompt="two", layer=2, site="attention")
    assert float(row.mine.sel(sinks="removed")) == pytest.approx(float(state[1:].abs().max()), rel=1e-6)
    assert float(row.tokens.sel(sinks="kept")) == len(state)
    for wrong in ({"consensus_within": len}, {"shares_interval": len}, {"clusters": len}, {"mine": lambda x: x}):
        with pytest.raises(TokenDynamicsError, match="observables"):
            trace(ckpt, TEXTS, observables=wrong)


def test_a_swollen_token_is_found_and_its_removal_is_that_of_its_position(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("gpt2")
    ckpt.model.wpe.weight.data[0] *= 500
    traced = trace(ckpt, TEXTS, packed=False)
    assert (traced.massive_count == 1).all()
    assert (traced.massive_position == 0).all()
    explicit = trace(ckpt, TEXTS, sinks=(0,), packed=False)
    np.testing.assert_array_equal(
        traced.mean_pair_cosine.sel(sinks="removed"), explicit.mean_pair_cosine.sel(sinks="removed")
    )
    norms = ckpt.states(ckpt.encode(TEXTS["one"]).ids).feed_forward.double().norm(dim=-1)
    np.testing.assert_allclose(traced.massive_norm[0], norms[:, 0], rtol=1e-12)
    np.testing.assert_allclose(traced.massive_share[0], norms[:, 0] / norms.sum(-1), rtol=1e-12)


def test_transient_sinks_leave_where_they_occur_and_persistent_ones_everywhere() -> None:
    norms = torch.tensor([[1.0, 1, 1, 1], [9, 1, 1, 8], [9, 1, 1, 1], [9, 1, 1, 1], [1, 1, 1, 1]])
    sinks = find_sinks(norms)
    assert sinks.sum(-1).tolist() == [0, 2, 1, 1, 0]
    removed = tokens_to_remove(sinks)
    assert removed[:, 0].tolist() == [True] * 5
    assert removed[:, 3].tolist() == [False, True, False, False, False]
    assert not removed[:, 1:3].any()


def test_one_token_has_no_pairs_and_says_so(tiny: Callable[..., Checkpoint]) -> None:
    table = trace(tiny("gpt2"), "x").sel(site="feed_forward")
    assert (table.token_count == 1).all()
    assert np.isnan(table.mean_pair_cosine).all()
    assert np.isnan(table.distance_mean).all()
    assert np.isnan(table.component_change.isel(layer=1)).all()
    np.testing.assert_allclose(table.effective_rank, 1.0, atol=1e-12)
    np.testing.assert_allclose(table.consensus_first, 0.0, atol=1e-12)
    assert np.isfinite(table.norm_median).all()


@pytest.mark.usefixtures("unchecked")
def test_wrong_prompts_and_sinks_are_named(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("gpt2")
    with pytest.raises(ArgumentValueError, match="texts: expected at least one prompt, got none"):
        trace(ckpt, [])
    with pytest.raises(ArgumentValueError, match="prompt"):
        trace(ckpt, "")
    with pytest.raises(ArgumentValueError, match=r"64.*"):
        trace(ckpt, "x" * 65)
    assert int(trace(ckpt, "x" * 65, truncate=True).token_count[0, 0, 0]) == 64
    with pytest.raises(ArgumentValueError, match=r"sinks: expected positions from 0 to 2, got \[3\]"):
        trace(ckpt, "abc", sinks=(3,))
    with pytest.raises(ArgumentValueError, match="sinks: expected 'detect'"):
        trace(ckpt, "abc", sinks="largest")
    with pytest.raises(ArgumentTypeError, match="sinks: expected 'detect' or a sequence"):
        trace(ckpt, "abc", sinks=0)
    with pytest.raises(ArgumentValueError, match=r"sink_ratio: expected a number above 1, got 0\.5"):
        trace(ckpt, "abc", sink_ratio=0.5)
    with pytest.raises(ArgumentValueError, match="extra: expected among clusters, hemisphere_margin, got 'speed'"):
        trace(ckpt, "abc", extra=["speed"])
    with pytest.raises(ArgumentValueError, match="a lone surrogate at character 0"):
        trace(ckpt, "\ud800 x")
    with pytest.raises(ArgumentTypeError, match="texts: expected a text, several, or several by name, got NoneType"):
        trace(ckpt, None)
    with pytest.raises(ArgumentTypeError, match=r"prompt 2: expected a text, token ids, .* got int"):
        trace(ckpt, ["abc", 3])


def test_paths_are_the_principal_plane_of_the_directions(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("llama")
    table = token_paths(ckpt, TEXTS["one"])
    states = ckpt.states(ckpt.encode(TEXTS["one"]).ids).feed_forward.double().numpy()
    units = (states / np.linalg.norm(states, axis=-1, keepdims=True)).reshape(-1, states.shape[-1])
    left, singular, _ = np.linalg.svd(units - units.mean(0), full_matrices=False)
    expected = np.abs(left[:, :2] * singular[:2]).reshape(*states.shape[:2], 2)
    np.testing.assert_allclose(np.abs(table.position), expected, atol=1e-10)
    assert table.attrs["explained"] == pytest.approx((singular[:2] ** 2).sum() / (singular**2).sum(), abs=1e-12)
    assert not table.is_sink.any()


def test_a_sink_has_no_place_in_the_plane(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("gpt2")
    ckpt.model.wpe.weight.data[0] *= 500
    table = token_paths(ckpt, TEXTS["one"])
    assert table.is_sink[:, 0].all()
    assert np.isnan(table.position[:, 0]).all()
    assert np.isfinite(table.position[:, 1:]).all()


@pytest.mark.long
@pytest.mark.pretrained
def test_smollm2_numbers_on_the_museum_sentence() -> None:
    expected = {
        "mean_pair_cosine": ("removed", [0.082, 0.545, 0.565, 0.645, 0.741, 0.565]),
        "consensus_first": ("kept", [0.863, 0.417, 0.526, 0.416, 0.555, 0.717]),
        "effective_rank": ("kept", [12.3, 1.78, 1.01, 1.02, 1.09, 6.04]),
        "effective_rank_unit_rows": ("removed", [12.3, 7.1, 6.8, 5.1, 3.5, 5.6]),
    }
    ckpt = load("smollm2")
    assert ckpt.encode(SENTENCE).ids.shape == (1, 26)
    for sinks in ("detect", (0,)):
        table = trace(ckpt, SENTENCE, sinks=sinks).isel(prompt=0)
        places = [(0, "feed_forward"), *((layer, "feed_forward") for layer in (3, 12, 21, 27)), (30, "final_norm")]
        for variable, (handling, numbers) in expected.items():
            for (layer, site), number in zip(places, numbers, strict=True):
                measured = float(table[variable].sel(layer=layer, site=site, sinks=handling))
                assert measured == pytest.approx(number, rel=0.02), (variable, layer, sinks)


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_sinks_are_found_per_layer() -> None:
    table = trace(load("smollm2"), SENTENCE).isel(prompt=0)
    assert (table.massive_position.sel(layer=slice(12, 29)) == 0).all()
    assert (table.massive_count.sel(layer=slice(12, 29)) == 1).all()
    assert (table.massive_count.sel(layer=slice(3, 9)) == 2).all()
    assert float(table.massive_norm.sel(layer=12)) == pytest.approx(2.26e4, rel=0.02)
    assert float(table.massive_norm.sel(layer=3)) == pytest.approx(680, rel=0.02)
    median = table.norm_median.sel(layer=slice(12, 27), site="feed_forward", sinks="removed")
    assert ((median > 100) & (median < 600)).all()
