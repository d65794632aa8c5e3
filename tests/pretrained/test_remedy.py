"""λA beside the query-key matrices of a trained network: the logits it says, nothing else, and nothing left behind."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pretrained.families import ALL, FAMILIES, most_slow
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import apply_remedy, load, remedy_coefficients, remedy_parameters, remove_remedy
from tokendynamics.pretrained._remedied_network import LambdaColumns
from tokendynamics.pretrained.other_libraries import silenced

IDS = torch.tensor([[5, 9, 33, 21, 7, 50, 12, 3, 40], [8, 8, 31, 4, 17, 22, 9, 59, 6]])
MULTI_QUERY = {"num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 44, "head_dim": 8}
KINDS = ("lambda-identity", "lambda-diagonal")


def language_model(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A causal language model of the family with random weights, gains and biases."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, sizes, _ = ALL[family]
    with silenced(), torch.random.fork_rng():
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes | changes)).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype)


def remedied(model: Any, kind: str = "lambda-diagonal", start: float = -0.2) -> Any:
    """The model with a remedy of which no two coefficients are alike."""
    apply_remedy(model, kind, start=start)
    generator = torch.Generator().manual_seed(3)
    for parameter in remedy_parameters(model):
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS, **named: Any) -> Tensor:
    return model(ids, use_cache=False, **named).logits


class DenseAttention(nn.Module):
    """An attention of LLaMA's kind written out, with the term of every pair of tokens added to its logits."""

    def __init__(self, attention: Any, coefficients: Tensor) -> None:
        super().__init__()
        self.own, self.coefficients = [attention], coefficients

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any) -> Any:
        direct, x = self.own[0], hidden_states
        tokens, dim = x.shape[1:]
        query, key, value = (
            part(x).reshape(len(x), tokens, -1, direct.head_dim)
            for part in (direct.q_proj, direct.k_proj, direct.v_proj)
        )
        if hasattr(direct, "q_norm"):
            query, key = direct.q_norm(query), direct.k_norm(key)
        heads, shared = query.shape[2], query.shape[2] // key.shape[2]
        width = -(-dim // heads)
        mixed = torch.zeros_like(query)
        cosine, sine = (embedding[:, :, : direct.head_dim // 2] for embedding in position_embeddings)
        for head in range(heads):
            turned = []
            for rows in (query[:, :, head], key[:, :, head // shared]):
                first, second = rows.chunk(2, dim=-1)
                turned.append(torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1))
            slice_ = slice(head * width, (head + 1) * width)
            term = torch.einsum("blf,f,bif->bli", x[..., slice_], self.coefficients[slice_], x[..., slice_])
            scores = direct.scaling * turned[0] @ turned[1].mT + term
            scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
            mixed[:, :, head] = scores.softmax(-1) @ value[:, :, head // shared]
        return direct.o_proj(mixed.flatten(2)), None


@pytest.mark.few(4)
@pytest.mark.parametrize("remedy", KINDS)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("mistral", MULTI_QUERY | {"sliding_window": None}),
        ("llama", {"attention_bias": True}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("gemma", {}),
    ],
)
def test_the_logits_of_every_pair_get_the_term(family: str, changes: dict[str, Any], remedy: str) -> None:
    model = remedied(language_model(family, **changes), remedy)
    diagonal = remedy_coefficients(model)
    assert (diagonal < 0).all()
    assert (diagonal.std(dim=1) > 0.001).all() == (remedy == "lambda-diagonal")
    dense = remove_remedy(copy.deepcopy(model))
    for layer, direct in zip(dense.model.layers, diagonal, strict=True):
        layer.self_attn = DenseAttention(layer.self_attn, direct)
    torch.testing.assert_close(logits(model), logits(dense), rtol=1e-9, atol=1e-9)
    assert float((logits(model) - logits(remove_remedy(model))).abs().max()) > 0.01


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.booleans(), st.floats(0.1, 2.0))
def test_the_terms_of_the_heads_sum_to_lambda_a(kv: int, groups: int, dim: int, cached: bool, scale: float) -> None:
    columns = LambdaColumns("lambda-diagonal", dim, heads=kv * groups, kv_heads=kv, start=-0.3).double()
    generator = torch.Generator().manual_seed(dim)
    x, columns.log_diagonal.data = (
        torch.randn(*s, generator=generator, dtype=torch.double) for s in ((2, 5, dim), (dim,))
    )
    query, key = (torch.randn(2, n, 5, 4, generator=generator, dtype=torch.double) for n in (kv * groups, kv))
    columns.keep(x)
    given_key = torch.cat([key, columns.of_keys(x)], -1) if cached else key
    wide = columns.extended(query, given_key, key, scale)
    plain = query @ key.repeat_interleave(groups, 1).mT
    computed = wide[3] * (wide[0] @ wide[1].mT - plain).sum(1)
    torch.testing.assert_close(computed, (x * columns.coefficients()) @ x.mT, rtol=1e-10, atol=1e-10)
    assert columns.drop() is None


SERVED = (
    "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt_neox", "phi3", "mistral", "gpt_oss", "smollm3",
    "cohere",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("family", most_slow(SERVED))
def test_zero_changes_nothing_and_what_is_taken_off_leaves_nothing(family: str) -> None:
    model = language_model(family, torch.float32)
    before, names = logits(model), list(model.state_dict())
    configuration, hooks = model.config.to_dict(), [len(module._forward_pre_hooks) for module in model.modules()]
    chosen = model.config._attn_implementation
    assert apply_remedy(model) is model
    assert float(remedy_coefficients(model).abs().max()) == 0.0
    torch.testing.assert_close(logits(model), before, rtol=1e-6, atol=1e-6 * float(before.abs().max()))
    assert float((logits(remedied(remove_remedy(model))) - before).abs().max()) > 0.01
    assert remove_remedy(model) is model
    assert torch.equal(logits(model), before)
    assert (model.config.to_dict(), list(model.state_dict())) == (configuration, names)
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert model.config._attn_implementation == chosen


def loss_of(model: Any) -> Tensor:
    """The loss in the precision of the network: transformers' own is in float32."""
    return nn.functional.cross_entropy(model(IDS).logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


@pytest.mark.parametrize("remedy", KINDS)
def test_at_zero_the_gradient_of_lambda_is_that_from_below(remedy: str) -> None:
    model = apply_remedy(language_model("gpt_neox"), remedy)
    loss = loss_of(model)
    loss.backward()
    for layer in model.gpt_neox.layers:
        entry = layer.attention.remedy
        with torch.no_grad():
            entry.size.fill_(1e-6)
            assert float(entry.coefficients()[0]) == -1e-6
            slope = (loss_of(model) - loss) / 1e-6
            entry.size.fill_(0.0)
        assert abs(float(entry.size.grad)) > 1e-4
        torch.testing.assert_close(entry.size.grad[0], slope, rtol=1e-3, atol=1e-7)


def test_a_step_down_the_gradient_takes_lambda_below_zero_or_leaves_it_there_and_never_above() -> None:
    columns = LambdaColumns("lambda-identity", 1, heads=1, kv_heads=1)
    for direction in (1.0, -1.0):
        columns.size.data.zero_()
        optimizer = torch.optim.SGD([columns.size], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (direction * columns.coefficients()).sum().backward()
            optimizer.step()
            assert columns.coefficients().item() <= 0
        # Where the loss falls with λ it goes down; where it would rise, it comes back to within one step.
        assert columns.coefficients().item() == pytest.approx(-0.5 if direction > 0 else -0.1, abs=1e-6)


def test_the_gradients_of_a_remedy_are_those_of_finite_differences() -> None:
    model = remedied(language_model("gpt_neox"))  # whose norms do not round to float32
    loss_of(model).backward()
    for parameter in remedy_parameters(model):
        entry = parameter.data.view(-1)[:1]
        was, ends = float(entry), []
        for step in (1e-5, -1e-5):
            entry.fill_(was + step)
            ends.append(loss_of(model).item())
        entry.fill_(was)
        assert float(parameter.grad.reshape(-1)[0]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)


def test_gradients_are_the_same_where_activations_are_made_again() -> None:
    model = remedied(language_model("llama")).train()
    loss_of(model).backward()
    values = [parameter.grad.clone() for parameter in remedy_parameters(model)]
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    loss_of(model).backward()
    for before, parameter in zip(values, remedy_parameters(model), strict=True):
        torch.testing.assert_close(parameter.grad, before, rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_lambda_stays_in_single_precision_where_the_network_does_not() -> None:
    model = remedied(language_model("llama", torch.bfloat16))
    assert {parameter.dtype for parameter in remedy_parameters(model)} == {torch.float32}
    assert torch.isfinite(logits(model)).all()
    assert {parameter.dtype for parameter in remedy_parameters(apply_remedy(language_model("llama")))} == {
        torch.float64
    }


CACHED = [
    ("llama", {}),
    ("qwen3", {}),
    ("gpt_neox", {}),
    ("mistral", {"sliding_window": 4}),
    ("gemma3", {"sliding_window": 4}),
    ("smollm3", {}),
]


@pytest.mark.parametrize(("family", "changes"), CACHED)
def test_a_cache_in_pieces_gives_what_one_pass_gives(family: str, changes: dict[str, Any]) -> None:
    model = remedied(language_model(family, **changes))
    whole, cache, pieces = logits(model), None, []
    for ids in IDS.split([4, 1, 1, 3], dim=1):
        with torch.no_grad():
            output = model(ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=["greedy", "beams", "static"]
)
def test_generation_is_the_same_with_a_cache_and_without(how: dict[str, Any]) -> None:
    model = remedied(language_model("llama"), start=-0.5)
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    chosen = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with silenced():
        result = model.generate(IDS, **chosen, **how)
        plain = model.generate(IDS, **chosen, **how | {"cache_implementation": None}, use_cache=False)
        bare = remove_remedy(model).generate(IDS, **chosen, use_cache=False)
    assert torch.equal(result, plain)
    assert not torch.equal(result, bare)


def test_a_cache_that_keeps_no_keys_is_refused_and_the_network_runs_without() -> None:
    model = remedied(language_model("deepseek_v3", torch.float32))
    assert torch.isfinite(logits(model)).all()
    with pytest.raises(CheckpointError, match="use_cache: expected False"):
        model(IDS, use_cache=True)


def test_keys_from_before_the_remedy_are_refused() -> None:
    model = language_model("llama")
    cache = model(IDS[:, :5], use_cache=True).past_key_values
    remedied(model)
    with pytest.raises(RuntimeError):
        model(IDS[:, 5:], past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("remedy", KINDS)
def test_saved_and_read_again_it_gives_the_same_bits(remedy: str, tmp_path: Path) -> None:
    model = remedied(language_model("qwen2", torch.float32), remedy)
    model.save_pretrained(tmp_path / "whole")
    read = load(tmp_path / "whole")
    assert torch.equal(logits(read.model), logits(model))
    assert read.architecture == load(model).architecture
    assert read.name == f"whole with λ{'A' if remedy == 'lambda-diagonal' else 'I'}"
    assert {id(parameter) for parameter in remedy_parameters(read.model)} <= {
        id(parameter) for parameter in read.model.parameters()
    }
    other = apply_remedy(language_model("qwen2", torch.float32), tmp_path / "whole")
    assert torch.equal(logits(other), logits(model))
    remove_remedy(model).save_pretrained(tmp_path / "bare")
    assert "remedy" not in (tmp_path / "bare" / "config.json").read_text()


@pytest.mark.long
def test_layers_find_their_own_in_the_files_of_a_base_model(tmp_path: Path) -> None:
    changes = {"num_hidden_layers": 11, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 4}
    model = remedied(language_model("llama", torch.float32, **changes))
    model.model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    other = apply_remedy(language_model("llama", torch.float32, **changes), tmp_path)
    assert torch.equal(remedy_coefficients(other), remedy_coefficients(model))


def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = language_model("llama", torch.float32)
    model.save_pretrained(tmp_path / "bare")
    with pytest.raises(CheckpointError, match="a network with a remedy, saved as safetensors, got none"):
        apply_remedy(model, tmp_path / "bare")
    remedied(model).save_pretrained(tmp_path / "whole")
    deeper = language_model("llama", torch.float32, num_hidden_layers=4)
    with pytest.raises(CheckpointError, match=r"remedy\.size: expected 4 of shape .*, got 3 of shape"):
        apply_remedy(deeper, tmp_path / "whole")
    with pytest.raises(ArgumentValueError, match="stream: expected None beside the remedy of whole, got True"):
        load(tmp_path / "whole", stream=True)
    assert deeper.config._attn_implementation == "sdpa"


REFUSED = [
    ("gpt2", "expected rotary positions, to which the remedy is added, got positions of the kind 'learned'"),
    ("mamba", r"layer 1: expected an attention whose queries and keys are found, got .*no softmax of products"),
    ("gptj", "expected attentions that use transformers' attention interface, got 3 that do not, the first a GPTJ"),
    ("falcon", "expected attentions that use transformers' attention interface, got 3 that do not, the first a Falcon"),
]


@pytest.mark.parametrize(("family", "words"), REFUSED)
def test_a_network_that_the_remedy_is_not_for_is_refused_in_a_line(family: str, words: str) -> None:
    model = language_model(family, torch.float32)
    before = logits(model)
    with pytest.raises(CheckpointError, match=words) as refusal:
        apply_remedy(model)
    assert "\n" not in str(refusal.value)
    assert torch.equal(logits(model), before)


def test_an_encoder_is_refused() -> None:
    from transformers import AutoConfig, AutoModel

    model_type, sizes, _ = FAMILIES["modernbert"]
    with pytest.raises(CheckpointError, match="layer 1: expected an attention that sees no later token, got one that"):
        apply_remedy(AutoModel.from_config(AutoConfig.for_model(model_type, **sizes)))


def test_wrong_arguments_are_refused_and_change_nothing() -> None:
    model = language_model("llama", torch.float32)
    with pytest.raises(ArgumentTypeError, match="model"):
        apply_remedy(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentValueError, match="kind: expected 'lambda-identity', 'lambda-diagonal' or the folder"):
        apply_remedy(model, "lambda")
    for start in (0.1, float("nan"), -float("inf")):
        with pytest.raises(ArgumentValueError, match="start: expected a λ of 0 or below"):
            apply_remedy(model, start=start)
    for function in (remove_remedy, remedy_parameters, remedy_coefficients):
        with pytest.raises(ArgumentValueError, match="model: expected a network with a remedy"):
            function(model)
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(
        CheckpointError, match="expected an attention implementation that is 'sdpa' or 'eager', got flex"
    ):
        apply_remedy(model)
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(ArgumentValueError, match="remove_remedy first"):
        apply_remedy(apply_remedy(model))


def test_another_implementation_chosen_behind_its_back_is_refused() -> None:
    model = remedied(language_model("llama"))
    model.set_attn_implementation("eager")
    with pytest.raises(CheckpointError, match="expected the attention implementation that the remedy has chosen"):
        logits(model)
    result = logits(remedied(remove_remedy(model)))
    torch.testing.assert_close(result, logits(remedied(language_model("llama"))), rtol=1e-4, atol=1e-5)


def test_copies_and_networks_of_the_same_configuration_are_on_their_own() -> None:
    model = remedied(language_model("llama", torch.float32))
    before, twin = logits(model), copy.deepcopy(model)
    for parameter in remedy_parameters(twin):
        parameter.data *= 3.0
    assert float((logits(twin) - before).abs().max()) > 0.01
    assert torch.equal(logits(model), before)
    other = type(model)(model.config).eval()
    alone = language_model("llama", torch.float32)
    other.load_state_dict(alone.state_dict())
    assert torch.equal(logits(other), logits(alone))
    assert torch.equal(logits(remove_remedy(twin)), logits(alone))


@pytest.mark.long
def test_threads_that_share_a_network_do_not_mix_their_states() -> None:
    model = remedied(language_model("llama", torch.float32))
    inputs = [IDS[:1], IDS[1:]]
    alone, computed = [logits(model, ids) for ids in inputs], {}

    def work(number: int) -> None:
        computed[number] = [logits(model, inputs[number]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        assert all(torch.equal(entry, alone[number]) for entry in computed[number])


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_is_itself_at_zero_and_every_layer_can_learn(tmp_path: Path, sentence: str) -> None:
    from transformers import AutoModelForCausalLM

    stored = load("smollm2")
    ids = stored.encode(sentence).ids
    with silenced():
        model = AutoModelForCausalLM.from_pretrained(stored.save(tmp_path / "model"))
        before, message = logits(model, ids), model.generate(ids, max_new_tokens=5, do_sample=False)
        apply_remedy(model)
        assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False), message)
    torch.testing.assert_close(logits(model, ids), before, rtol=1e-4, atol=1e-4)
    model(ids, labels=ids, use_cache=False).loss.backward()
    slopes = torch.stack([parameter.grad for parameter in remedy_parameters(model) if parameter.numel() == 1])
    assert len(slopes) == 30
    assert (slopes.abs() > 1e-5).all()
