"""Repeated passes: against blocks applied by hand, weights drawn by law against drawn ones, and runs that go on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import ks_2samp
from torch import Tensor, nn

import tokendynamics as td
from pretrained.families import half_of_network, inputs_of, network_of
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, CheckpointError, MemoryLimitError
from tokendynamics.observables.share_decomposition import shares
from tokendynamics.pretrained.edits._fresh_weights import InitialLaw

IDS = torch.tensor([7, 21, 3, 40, 55, 12, 9, 33, 4])


def _loaded(family: str) -> tuple[td.Checkpoint, Any]:
    network, half = network_of(family)
    return td.load(network, half=half), half_of_network(network, half)


def _small(layers: int = 2, dim: int = 32, **more: Any) -> td.Checkpoint:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(3)
    config = GPT2Config(n_embd=dim, n_layer=layers, n_head=4, vocab_size=61, n_positions=32, **more)
    return td.load(GPT2Model(config).eval())


def _same(one: xr.Dataset, other: xr.Dataset) -> None:
    for name, values in one.data_vars.items():
        if "estimate" in values.dims and one.sizes["pass"] < 10:  # fits over fewer passes are other fits
            continue
        np.testing.assert_array_equal(values.values, other[name].values, err_msg=str(name))


def _gpt2(network: Any, x: Tensor) -> Tensor:
    for block in network.h:
        x = _state(block(x))
    return x


def _rotated(network: Any, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])[None]
    for number, block in enumerate(network.layers):
        if hasattr(network.config, "layer_types") and network.config.model_type == "gemma3_text":
            angles = network.rotary_emb(x, places, network.config.layer_types[number])
        else:
            angles = network.rotary_emb(x, places)
        x = _state(block(x, attention_mask=None, position_embeddings=angles, position_ids=places))
    return x


def _bert(network: Any, x: Tensor) -> Tensor:
    for block in network.encoder.layer:
        x = _state(block(x))
    return x


def _vit(network: Any, x: Tensor) -> Tensor:
    for block in getattr(network, "layers", None) or network.encoder.layer:
        x = _state(block(x))
    return x


def _state(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


BY_HAND: dict[str, tuple[Callable[[Any, Tensor], Tensor], str | None]] = {
    "gpt2": (_gpt2, "ln_f"),
    "llama": (_rotated, "norm"),
    "gpt_neox": (_rotated, "final_layer_norm"),
    "gemma3": (_rotated, "norm"),
    "bert": (_bert, None),
    "vit": (_vit, "layernorm"),
}


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("feed_back", ["after_norm", "before_norm"])
@pytest.mark.parametrize("family", BY_HAND)
def test_a_pass_is_the_blocks_applied_by_hand(family: str, feed_back: str) -> None:
    ckpt, network = _loaded(family)
    inputs = inputs_of(network)
    blocks, norm = BY_HAND[family]
    pass_table = td.passes(ckpt, inputs, 3, feed_back=feed_back)
    x = ckpt.states(inputs).feed_forward[:1]
    for number in range(1, 4):
        with torch.no_grad():
            x = blocks(network, x)
            x = getattr(network, norm)(x) if norm is not None and feed_back == "after_norm" else x
        for name, value in _by_hand(x[0].double()).items():
            assert float(pass_table[name][0, number]) == pytest.approx(value, rel=1e-5, abs=1e-6), (name, number)
    if norm is None:
        assert pass_table.attrs["feed_back"] == "there is no final norm"


def _by_hand(x: Tensor) -> dict[str, float]:
    unit = nn.functional.normalize(x, dim=-1)
    cosines, count = unit @ unit.T, len(x)
    return {
        "consensus": 1 - float(cosines[0].abs().mean()),
        "consensus_signed": 1 - float(cosines[0].mean()),
        "mean_pair_cosine": float((cosines.sum() - count) / (count * (count - 1))),
        "log_norm": float(x.norm(dim=-1).median().log()),
    }


def test_where_positions_are_added() -> None:
    ckpt, network = _loaded("gpt2")
    table = network.wpe.weight[: len(IDS)]
    words = network.wte(IDS)[None]
    by_name = {how: td.passes(ckpt, IDS, 2, positions=how) for how in ("once", "each", "never")}
    with torch.no_grad():
        once = network.ln_f(_gpt2(network, words + table))
        expected = {
            "once": _gpt2(network, once),
            "each": _gpt2(network, once + table),
            "never": _gpt2(network, network.ln_f(_gpt2(network, words))),
        }
        for how, x in expected.items():
            value = _by_hand(network.ln_f(x)[0].double())["consensus"]
            assert float(by_name[how].consensus[0, 2]) == pytest.approx(value, rel=1e-5)
    assert [by_name[how].attrs["positions_act"] for how in by_name] == [
        "in the embedding",
        "in the embedding",
        "nowhere",
    ]


def test_positions_with_a_norm_behind_them_are_added_as_the_embedding_does() -> None:
    ckpt, network = _loaded("bert")
    pass_table = td.passes(ckpt, IDS, 2, positions="each")
    with torch.no_grad():
        x = _bert(network, network.embeddings(input_ids=IDS[None]))
        x = _bert(network, network.embeddings(inputs_embeds=x))
    assert float(pass_table.consensus[0, 2]) == pytest.approx(_by_hand(x[0].double())["consensus"], rel=1e-5)


def test_rotations_act_in_every_pass_or_never() -> None:
    ckpt, network = _loaded("llama")
    once, entry, never = (td.passes(ckpt, IDS, 2, positions=how) for how in ("once", "each", "never"))
    _same(once, entry)
    assert once.attrs["positions_act"] == "in the attention of every pass"
    identity = torch.ones(1, len(IDS), 12), torch.zeros(1, len(IDS), 12)
    x = network.embed_tokens(IDS)[None]
    with torch.no_grad():
        for _ in range(2):
            for block in network.layers:
                x = _state(block(x, attention_mask=None, position_embeddings=identity))
            x = network.norm(x)
    assert float(never.consensus[0, 2]) == pytest.approx(_by_hand(x[0].double())["consensus"], rel=1e-5)


def test_a_variant_is_one_in_every_pass() -> None:
    ckpt, network = _loaded("gpt2")
    pass_table = td.passes(ckpt, IDS, 2, variant="no-ffn")
    x = network.wte(IDS)[None] + network.wpe.weight[: len(IDS)]
    with torch.no_grad():
        for _ in range(2):
            for block in network.h:
                x = x + block.attn(block.ln_1(x))[0]
            x = network.ln_f(x)
    assert float(pass_table.consensus[0, 2]) == pytest.approx(_by_hand(x[0].double())["consensus"], rel=1e-5)
    assert pass_table.attrs["variant"] == "feed_forward × 0"


@pytest.mark.parametrize("weights", ["fixed", "law"])
def test_a_checkpoint_under_a_variant_passes_under_it(weights: str) -> None:
    ckpt, _ = _loaded("llama")
    pass_table = td.passes(ckpt.under("no-ffn"), IDS, 2, weights=weights)
    _same(pass_table, td.passes(ckpt, IDS, 2, weights=weights, variant="no-ffn"))
    _same(td.passes(ckpt.under("no-ffn"), IDS, 2, variant="full"), td.passes(ckpt, IDS, 2))
    assert pass_table.attrs["variant"] == "feed_forward × 0"


@pytest.mark.parametrize("weights", ["fixed", "resample", "law"])
def test_nothing_is_left_of_a_run(weights: str) -> None:
    ckpt, network = _loaded("gpt2")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    plain = ckpt.states(IDS).feed_forward
    td.passes(ckpt, IDS, 2, weights=weights, variant="attention-only", positions="each")
    assert torch.equal(ckpt.states(IDS).feed_forward, plain)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def _energies(ckpt: td.Checkpoint, weights: str, seeds: range, count: int = 10, std: float | None = None) -> np.ndarray:
    rows = [td.passes(ckpt, IDS[:6], count, weights=weights, seed=seed, std=std).consensus.values[0] for seed in seeds]
    return np.array(rows)[:, [1, 3, count]]


@cache
def _drawn() -> np.ndarray:
    return _energies(_small(initializer_range=0.15), "resample", range(50))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_weights_by_law_give_what_drawn_ones_give() -> None:
    """E after 1, 3 and 10 passes over 50 seeds each: a two-sample Kolmogorov–Smirnov test at 1 %."""
    by_law = _energies(_small(initializer_range=0.15), "law", range(1000, 1050))
    for place in range(3):
        assert ks_2samp(_drawn()[:, place], by_law[:, place]).pvalue > 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_another_law_is_told_apart() -> None:
    """The same test on weights that are 1.3 times as large, so that passing it means something."""
    others = _energies(_small(initializer_range=0.15 * 1.3), "law", range(1000, 1050))
    assert min(ks_2samp(_drawn()[:, place], others[:, place]).pvalue for place in range(3)) < 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_weights_of_one_deviation_by_law_give_what_drawn_ones_give() -> None:
    """The same test with one deviation for all; projections of transformers' own are half as large, and told apart."""
    ckpt = _small()
    by_law = _energies(ckpt, "law", range(1000, 1050), std=0.15)
    resampled = _energies(ckpt, "resample", range(50), std=0.15)
    for place in range(3):
        assert ks_2samp(resampled[:, place], by_law[:, place]).pvalue > 0.01
    assert min(ks_2samp(_drawn()[:, place], by_law[:, place]).pvalue for place in range(3)) < 0.01


def test_drawn_matrices_have_the_deviation_that_is_asked_for() -> None:
    """Every matrix of the blocks: mean and deviation within five standard errors; gains and biases as they are."""
    ckpt, seen = _small(dim=64), dict[str, Tensor]()
    with ckpt.fresh("resample", 0, 0.1) as fresh:
        block = fresh.network.get_submodule("h.1")

        def note(module: nn.Module, given: Any) -> None:
            seen.update((name, parameter.detach().clone()) for name, parameter in module.named_parameters())

        hook = block.register_forward_pre_hook(note)
        fresh.begin(1)
        with torch.no_grad():
            fresh.network(input_ids=IDS[None])
        hook.remove()
    matrices = [entry for entry in seen.values() if entry.ndim == 2]
    assert len(matrices) == 4
    for matrix in matrices:
        error = 5 * 0.1 / matrix.numel() ** 0.5
        assert abs(float(matrix.mean())) < error
        assert abs(float(matrix.std()) - 0.1) < error
    assert all(len(entry.unique()) == 1 for entry in seen.values() if entry.ndim == 1)
    sentences = [td.passes(ckpt, IDS, 1, weights="law", std=std).attrs["std"] for std in (None, 0.1)]
    assert sentences == ["as transformers initialises", "0.1 for every matrix of the blocks, mean 0"]
    assert td.passes(ckpt, IDS, 1).attrs["std"] == "nothing is drawn"


def test_a_run_of_another_deviation_is_not_gone_on_with(tmp_path: Path) -> None:
    ckpt, file = _small(), tmp_path / "run.npz"
    td.passes(ckpt, IDS, 1, weights="law", std=0.1, store=file)
    with pytest.raises(ArgumentValueError, match="another one"):
        td.passes(ckpt, IDS, 1, weights="law", std=0.2, store=file)


def test_what_a_map_gives_has_the_covariance_of_its_law() -> None:
    """XW for one X and many W: entries of one column have covariance σ² X Xᵀ, those of two are uncorrelated."""
    from tokendynamics.pretrained.edits._fresh_weights import FreshBlocks

    network = nn.ModuleDict({"block": nn.ModuleDict({"map": nn.Linear(5, 400, bias=False)})})
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    fresh = FreshBlocks(network, ["block"], {"block.map.weight": InitialLaw(std=0.3)}, "law", 0, "it")
    rows = []
    with fresh:
        for number in range(50):
            fresh.begin(number)
            rows.append(network["block"]["map"](x))  # type: ignore[index]
    y = torch.cat(rows, dim=1).double()
    expected = 0.09 * x.double() @ x.double().T
    error = (y @ y.T / y.shape[1] - expected) / expected.diagonal().max()
    assert float(error.abs().max()) < 5 * (2 / y.shape[1]) ** 0.5
    other = y[:, :-1] @ y[:, 1:].T / y.shape[1] / expected.diagonal().max()
    assert float(other.abs().max()) < 5 * (1 / y.shape[1]) ** 0.5


@pytest.mark.long
def test_draws_are_those_of_the_seed_and_the_pass() -> None:
    ckpt = _small()
    for weights in ("resample", "law"):
        one, again, other = (td.passes(ckpt, IDS, 3, weights=weights, seed=seed) for seed in (5, 5, 6))
        _same(one, again)
        assert abs(float(one.consensus[0, 1] - other.consensus[0, 1])) > 1e-6
        norms = td.passes(ckpt, IDS, 3, weights=weights, feed_back="before_norm").log_norm.values[0]
        assert len({round(float(step), 6) for step in np.diff(norms)}) == 3


@pytest.mark.long
def test_resampled_weights_have_the_initial_law() -> None:
    ckpt = _small(layers=6, dim=64)
    seen: list[Tensor] = []
    with ckpt.fresh("resample", 0) as fresh:
        block = fresh.network.get_submodule("h.0")
        hook = block.register_forward_pre_hook(lambda module, given: seen.append(module.attn.c_attn.weight.clone()))
        again = block.register_forward_pre_hook(lambda module, given: seen.append(module.attn.c_proj.weight.clone()))
        for number in (1, 2):
            fresh.begin(number)
            with torch.no_grad():
                fresh.network(input_ids=IDS[None])
        hook.remove()
        again.remove()
    first, projected, second, _ = seen
    assert float(first.std()) == pytest.approx(0.02, rel=0.05)
    assert float(projected.std()) == pytest.approx(0.02 / 12**0.5, rel=0.05)
    assert abs(float((first * second).mean() / (first.std() * second.std()))) < 0.05
    assert all(parameter.is_meta for name, parameter in fresh.network.named_parameters() if "c_attn.weight" in name)


def test_a_weight_that_is_used_twice_has_no_such_law() -> None:
    ckpt, _ = _loaded("albert")
    with pytest.raises(CheckpointError, match="runs 3 times"):
        td.passes(ckpt, IDS, 1, weights="law")
    assert td.passes(ckpt, IDS, 1, weights="resample").sizes["pass"] == 2


def test_what_is_no_map_with_a_normal_law_is_drawn_as_it_is() -> None:
    ckpt, _ = _loaded("mixtral")
    pass_table = td.passes(ckpt, IDS, 1, weights="law")
    assert pass_table.attrs["drawn_whole"] == "mlp.gate.weight, mlp.experts.gate_up_proj, mlp.experts.down_proj"
    assert td.passes(_small(), IDS, 1, weights="law").attrs["drawn_whole"] == "none"


@pytest.mark.parametrize("weights", ["fixed", "law", "resample"])
def test_a_run_that_is_stopped_goes_on_to_the_same_numbers(weights: str, tmp_path: Path) -> None:
    ckpt = _small()
    whole = td.passes(ckpt, IDS, 9, weights=weights, positions="each")

    def stop(done: float, total: float, what: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    file = tmp_path / "run.npz"
    with pytest.raises(KeyboardInterrupt):
        td.passes(ckpt, IDS, 9, weights=weights, positions="each", store=file, progress=stop)
    _same(td.passes(ckpt, IDS, 6, weights=weights, positions="each", store=file), whole.isel({"pass": slice(0, 7)}))
    _same(td.passes(ckpt, IDS, 9, weights=weights, positions="each", store=file), whole)
    with pytest.raises(ArgumentValueError, match="another one"):
        td.passes(ckpt, IDS, 9, weights=weights, store=file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ArgumentValueError, match="store"):
        td.passes(ckpt, IDS, 9, weights=weights, positions="each", store=file)


def test_several_prompts_go_as_each_does_alone_and_are_held_against_each_other() -> None:
    ckpt = _small(dim=48)
    prompts = {"one": IDS, "two": IDS.flip(0)[:6], "three": torch.tensor([9, 9, 1, 2, 50])}
    pass_table = td.passes(ckpt, prompts, 4)
    for name, ids in prompts.items():
        alone = td.passes(ckpt, ids, 4)
        np.testing.assert_allclose(pass_table.consensus.sel(prompt=name), alone.consensus[0], rtol=1e-3, atol=1e-6)
        assert np.isnan(alone.consensus_within.values).all()
    embedded = [ckpt.states(ids).feed_forward[0] for ids in prompts.values()]
    expected = shares(embedded)
    for name in ("common", "prompt", "own"):
        assert float(pass_table[f"share_{name}"][0]) == pytest.approx(float(getattr(expected, name)), abs=1e-9)
    assert float(pass_table.consensus_within[0]) == pytest.approx(float(expected.kappa), abs=1e-9)
    total = pass_table.share_common + pass_table.share_prompt + pass_table.share_own
    np.testing.assert_allclose(total.values, 1.0, atol=1e-12)


def test_padding_is_zero_embeddings_that_count_from_the_first_pass_on() -> None:
    ckpt, network = _loaded("gpt2")
    pass_table = td.passes(ckpt, IDS, 2, pad_to=12)
    plain = td.passes(ckpt, IDS, 2)
    assert float(pass_table.consensus[0, 0]) == float(plain.consensus[0, 0])
    x = network.wte(IDS)[None] + network.wpe.weight[: len(IDS)]
    x = torch.cat([x, torch.zeros(1, 3, x.shape[-1])], dim=1)
    with torch.no_grad():
        for number in (1, 2):
            x = network.ln_f(_gpt2(network, x))
            expected = _by_hand(x[0].double())
            assert float(pass_table.consensus[0, number]) == pytest.approx(expected["consensus"], rel=1e-5)


@pytest.mark.long
def test_a_run_ends_where_every_prompt_is_below_the_bound() -> None:
    ckpt = _small(initializer_range=0.15)
    whole = td.passes(ckpt, {"a": IDS, "b": IDS.flip(0)}, 40, variant="no-ffn")
    energy = whole.consensus.values
    bound = float(np.sqrt(energy[:, 10].max() * energy[:, 20].max()))
    end = next(place for place in range(41) if (energy[:, place] < bound).all())
    pass_table = td.passes(ckpt, {"a": IDS, "b": IDS.flip(0)}, 40, variant="no-ffn", until=bound)
    assert pass_table.sizes["pass"] == end + 1 < 41
    assert pass_table.status.values.tolist() == ["E below the bound"] * 2
    rest = ["status", *(name for name in whole.data_vars if "estimate" in whole[name].dims)]
    _same(pass_table.drop_vars(rest), whole.drop_vars(rest).isel({"pass": slice(0, end + 1)}))
    assert pass_table.attrs["asked_for"] == 40


def test_what_overflows_has_a_status_and_no_number() -> None:
    ckpt, network = _loaded("llama")
    for block in network.layers:
        block.mlp.down_proj.weight.data *= 30
    pass_table = td.passes(ckpt, IDS, 20, variant="no-norm", feed_back="before_norm")
    assert pass_table.status.values.tolist() == ["not finite"]
    assert pass_table.sizes["pass"] < 21
    assert np.isnan(pass_table.consensus.values[0, -1])
    assert np.isfinite(pass_table.consensus.values[0, :-1]).all()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"n": 0}, ArgumentValueError, "n: expected"),
        ({"n": 10**14}, MemoryLimitError, "fewer passes"),
        ({"weights": "new"}, ArgumentValueError, "'fixed'"),
        ({"feed_back": "later"}, ArgumentValueError, "'after_norm'"),
        ({"positions": "twice"}, ArgumentValueError, "'once'"),
        ({"variant": "no-attention"}, ArgumentValueError, "'no-ffn'"),
        ({"variant": {"layer 9 attention": 0}}, ArgumentValueError, "layers from 1 to 2"),
        ({"seed": -1}, ArgumentValueError, "seed"),
        ({"std": 0.02}, ArgumentValueError, "std: expected None where nothing is drawn"),
        ({"std": 0.0, "weights": "law"}, ArgumentValueError, "std: expected a positive finite number"),
        ({"std": float("inf"), "weights": "resample"}, ArgumentValueError, "std: expected a positive finite number"),
        ({"std": "small", "weights": "law"}, ArgumentTypeError, "std"),
        ({"pad_to": 5}, ArgumentValueError, r"from 9 \(the longest prompt\) to 32"),
        ({"pad_to": 33}, ArgumentValueError, "to 32 tokens"),
        ({"reference": 9}, ArgumentValueError, "from -9 to 8"),
        ({"until": 0.0}, ArgumentValueError, "between 0 and 1"),
        ({"until": "soon"}, ArgumentTypeError, "until"),
        ({"text": torch.zeros(40, dtype=torch.int64)}, ArgumentValueError, "1 to 32 tokens"),
        ({"text": {"a": IDS, "b": {"input_ids": IDS[None, :4]}, "c": 3.5}}, ArgumentTypeError, "c: expected"),
    ],
)
def test_wrong_input(given: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"text": IDS, "n": 2} | given
    with pytest.raises(error, match=words):
        td.passes(_small(), arguments.pop("text"), arguments.pop("n"), **arguments)


def test_a_network_whose_blocks_have_no_known_law_is_not_drawn_anew() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.map(x)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    ckpt = td.load(Own(), inputs=lambda count: {"x": torch.randn(count, 5, 8)})
    text = {"x": torch.randn(1, 5, 8)}
    assert td.passes(ckpt, {"prompt": text}, 2).sizes["pass"] == 3
    with pytest.raises(CheckpointError, match="a network that transformers initialises"):
        td.passes(ckpt, {"prompt": text}, 2, weights="law")


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "phi", "t5", "bert"])
def test_dividing_by_the_scale_changes_no_number(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled at every block against never, while no number is too large for float64: logits, biases and all."""
    from tokendynamics.pretrained.edits import scaled_states as _scaled_blocks

    network, half = network_of(family)
    for parameter in network.parameters():
        parameter.data = parameter.data.double()
    ckpt = td.load(network.double(), half=half)
    inputs = inputs_of(half_of_network(network, half))
    call = {
        "variant": "attention-only",
        "feed_back": "before_norm",
        "positions": "each" if family == "gpt2" else "once",
    }
    monkeypatch.setattr(_scaled_blocks, "_LARGEST", 1.5)
    scaled = td.passes(ckpt, inputs, 3, **call)
    assert scaled.attrs["scale"] == "divided out, in log_norm"
    monkeypatch.setattr(
        "tokendynamics.pretrained.edits.repeated_stack.why_not_scaled", lambda layout, variant: "for once"
    )
    plain = td.passes(ckpt, inputs, 3, **call)
    assert plain.attrs["scale"] == "as they are: for once"
    for name in ("consensus", "consensus_signed", "mean_pair_cosine", "log_norm"):
        np.testing.assert_allclose(scaled[name].values, plain[name].values, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_log_norm_grows_linearly_for_hundreds_of_layers() -> None:
    """Without norms and feed-forward parts: 80 passes of 3 layers, far beyond what float64 holds."""
    ckpt, network = _loaded("llama")
    for block in network.layers:
        block.self_attn.o_proj.weight.data *= 30
    pass_table = td.passes(ckpt, IDS, 200, variant="attention-only", feed_back="before_norm")
    norms = pass_table.log_norm.values[0]
    assert pass_table.status.values.tolist() == ["all passes done"]
    assert norms[-1] > 800
    assert np.isfinite(norms).all()
    steps = np.diff(norms[100:])
    assert np.polyfit(np.arange(101), norms[100:], 1)[0] == pytest.approx(steps.mean(), rel=0.02)
    assert steps.std() < 0.2 * steps.mean()


def test_a_final_norm_reads_what_it_would() -> None:
    """With the norm the scale begins anew; its epsilon counts beside small states and not beside huge ones."""
    ckpt, network = _loaded("llama")
    pass_table = td.passes(ckpt, IDS, 2, variant="attention-only")
    x = network.embed_tokens(IDS)[None]
    places = torch.arange(len(IDS))[None]
    with torch.no_grad():
        for _ in range(2):
            angles = network.rotary_emb(x, places)
            for block in network.layers:
                x = x + block.self_attn(x, position_embeddings=angles, attention_mask=None)[0]
            x = network.norm(x)
    for name, value in _by_hand(x[0].double()).items():
        assert float(pass_table[name][0, 2]) == pytest.approx(value, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("growth", [(1e2, 1e2, 1e2), (1e12, 1e12, 1e12), (1e12, 1e12, 1e6)])
def test_a_final_norm_reads_what_has_grown_beyond_its_squares(growth: tuple[float, ...]) -> None:
    """SmolLM2 reaches 1e34 in one pass: its norm takes squares in float32, in which even 1e20 has none."""
    ckpt, network = _loaded("llama")
    for block, factor in zip(network.layers, growth, strict=True):
        block.self_attn.o_proj.weight.data *= factor
    pass_table = td.passes(ckpt, IDS, 1, variant="attention-only")
    whole = copy.deepcopy(network).double()
    x, places = whole.embed_tokens(IDS)[None], torch.arange(len(IDS))[None]
    with torch.no_grad():
        for block in whole.layers:
            angles = whole.rotary_emb(x, places)
            x = x + block.self_attn(x, position_embeddings=angles, attention_mask=None)[0]
        x = whole.norm.weight * x / (x.square().mean(dim=-1, keepdim=True) + whole.norm.variance_epsilon).sqrt()
    for name, value in _by_hand(x[0]).items():
        assert float(pass_table[name][0, 1]) == pytest.approx(value, rel=1e-4, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "variant", "words"),
    [
        ("qwen3", "attention-only", "are not a form of its states"),
        ("gemma2", "attention-only", "are not a form of its states"),
        ("deberta", "attention-only", "is not read"),
        ("llama", "no-norm", "are there"),
        ("llama", {"norms": 0, "feed_forward": 0, "layer 2 feed_forward": 1}, "are there"),
    ],
)
def test_where_blocks_are_not_homogeneous_the_result_says_so(family: str, variant: Any, words: str) -> None:
    ckpt, _ = _loaded(family)
    pass_table = td.passes(ckpt, IDS, 1, variant=variant)
    assert words in pass_table.attrs["scale"]


@pytest.mark.long
def test_the_half_life_is_that_of_what_is_seen() -> None:
    ckpt = _small(initializer_range=0.15)
    pass_table = td.passes(ckpt, {"a": IDS, "b": IDS.flip(0)}, 40, variant="no-ffn")
    energy = pass_table.consensus.sel(prompt="a").values
    first = int(np.argmax(energy <= energy[0] / 2))
    last = int(np.argmax(energy < pass_table.attrs["resolution"])) or 41
    slope = (np.log(energy[last - 1]) - np.log(energy[first])) / (last - 1 - first)
    value, low, high = pass_table.half_life.sel(prompt="a").values
    assert value == pytest.approx(-np.log(2) / slope, rel=1e-9)
    assert low < value < high
    collapsed = int(np.argmax(energy < 1e-3))
    assert pass_table.collapse_pass.sel(prompt="a").values.tolist() == [collapsed] * 3
    assert pass_table.collapse_depth.sel(prompt="a").values.tolist() == [2 * collapsed] * 3
    short = td.passes(ckpt, IDS, 6, variant="no-ffn")
    assert float(short.collapse_pass.sel(estimate="value")[0]) > 6


def test_a_run_of_another_network_or_other_inputs_is_not_gone_on_with(tmp_path: Path) -> None:
    """Neither shows in the arguments: a live network that was changed in place, and an input by name."""
    ckpt, network = _loaded("vit")
    inputs, file = inputs_of(network), tmp_path / "run.npz"
    td.passes(ckpt, {"image": inputs}, 1, store=file)
    assert td.passes(ckpt, {"image": inputs}, 2, store=file).sizes["pass"] == 3
    with pytest.raises(ArgumentValueError, match="another one"):
        td.passes(ckpt, {"image": {name: -value for name, value in inputs.items()}}, 2, store=file)
    network.get_submodule(ckpt.layout.blocks[1]).layernorm_before.weight.data *= 1.5
    with pytest.raises(ArgumentValueError, match="another one"):
        td.passes(ckpt, {"image": inputs}, 2, store=file)


@pytest.mark.parametrize("weights", ["fixed", "resample", "law"])
def test_half_precision_passes(weights: str, tmp_path: Path) -> None:
    network, _ = network_of("gpt2")
    ckpt = td.load(network.to(torch.bfloat16))
    pass_table = td.passes(ckpt, IDS, 2, weights=weights, store=tmp_path / "run.npz")
    assert np.isfinite(pass_table.consensus.values).all()
    assert "bfloat16" in pass_table.attrs["precision"]
    _same(td.passes(ckpt, IDS, 2, weights=weights, store=tmp_path / "run.npz"), pass_table)
