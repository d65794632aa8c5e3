"""Live networks and inputs that cannot be read are refused in words that say what to do; unusual ones are read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained._live import checked_inputs
from tokendynamics.pretrained.other_libraries import silenced


class _Encoder(nn.Module):
    """Layers of PyTorch's own encoder behind an embedding."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed, self.batch_first = nn.Embedding(31, 16), batch_first
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=batch_first)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) if self.batch_first else self.embed(ids).transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return x if self.batch_first else x.transpose(0, 1)


def _ids(count: int, tokens: int = 7) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 31, (count, tokens))}


def test_layers_are_read_whichever_axis_of_their_states_is_first() -> None:
    network = _Encoder(batch_first=True).eval()
    loaded = td.load(network, inputs=_ids)
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda m, a, y: outputs.append(y[0])) for layer in network.layers]
    ids = torch.randint(0, 31, (1, 9))
    with torch.inference_mode():
        network(ids)
    for hook in hooks:
        hook.remove()
    states = loaded.states({"ids": ids}).feed_forward
    torch.testing.assert_close(states[1:], torch.stack(outputs))
    other = _Encoder(batch_first=False).eval()
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(td.load(other, inputs=_ids).states({"ids": ids}).feed_forward, states)


_WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "returns a tensor": (lambda count: torch.zeros(count, 3), ArgumentTypeError, "one that returns a Tensor"),
    "takes nothing": (lambda: {}, ArgumentTypeError, "takes 0 positional arguments"),
    "fails": (lambda count: 1 / 0, ArgumentTypeError, "division by zero"),
    "returns nothing": (lambda count: {}, ArgumentValueError, "got no tensor"),
    "another number": (lambda count: _ids(1), ArgumentValueError, "the 2 inputs asked for"),
    "tokens first": (lambda count: {"ids": _ids(7, count)["ids"]}, ArgumentValueError, r"\{'ids': \(7, 2\)\}"),
    "another name": (lambda count: {"x": _ids(count)["ids"]}, CheckpointError, "unexpected keyword argument 'x'"),
    "one token": (lambda count: _ids(count, 1), CheckpointError, "inputs of at least two tokens"),
}


@pytest.mark.parametrize("case", _WRONG)
def test_inputs_that_are_none_are_refused_by_name(case: str) -> None:
    inputs, kind, words = _WRONG[case]
    with pytest.raises(kind, match=words):
        td.load(_Encoder(batch_first=True).eval(), inputs=inputs)


def test_weights_that_are_no_parameters_are_named_with_what_makes_them_some() -> None:
    network = _Encoder(batch_first=True).eval()
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    with pytest.raises(
        CheckpointError, match=r"parameters, got buffers alone \((\w|\.)+ and others\); make each weight an"
    ):
        td.load(network, inputs=_ids)
    for module in network.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            delattr(module, name)
            setattr(module, name, nn.Parameter(buffer, requires_grad=False))
    assert td.load(network, inputs=_ids).architecture.layers == len(network.layers)
    with pytest.raises(CheckpointError, match="parameters, got neither parameters nor buffers"):
        td.load(nn.Identity(), inputs=_ids)


def test_a_tensor_is_no_function_that_makes_inputs() -> None:
    # Here, not through `load`, whose annotations are checked while the tests run.
    with pytest.raises(
        ArgumentTypeError,
        match="inputs: expected an example, or a function that makes the arguments",
    ):
        checked_inputs(torch.zeros(2, 3))


@pytest.mark.parametrize("tuning", ["PromptTuningConfig", "PromptEncoderConfig"])
def test_virtual_tokens_are_refused_and_the_network_below_them_is_read(tuning: str) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    with silenced():
        network = AutoModelForCausalLM.from_config(network_of("llama")[0].config)
        further = {"encoder_hidden_size": 16} if tuning == "PromptEncoderConfig" else {}
        tuned = peft.get_peft_model(
            network, getattr(peft, tuning)(task_type="CAUSAL_LM", num_virtual_tokens=4, **further)
        )
    with pytest.raises(CheckpointError, match=r"4 virtual tokens before every prompt.*get_base_model\(\)"):
        td.load(tuned.eval())
    assert td.load(tuned.get_base_model().eval()).architecture.layers == 3


@pytest.mark.long
def test_a_block_whose_attention_runs_twice_is_one_layer() -> None:
    from transformers import AutoConfig, AutoModel

    settings = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
    with silenced():
        config = AutoConfig.for_model("diffllama", vocab_size=61, num_key_value_heads=2, pad_token_id=0, **settings)
        network = AutoModel.from_config(config).eval()
    computed, ids = td.load(network), torch.arange(3, 14)[None]
    with torch.inference_mode(), silenced():
        reference = computed.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    states = computed.states(ids)
    assert computed.architecture.layers == 3
    assert computed.layout.layers[0].problem == "its attention runs 2 times"
    assert all(
        torch.equal(actual, state[0]) for actual, state in zip(states.feed_forward[:-1], reference[:-1], strict=True)
    )
    assert bool(states.attention[1:].isfinite().all())


@pytest.mark.parametrize(
    "sizes",
    [
        {"v_head_dim": 3, "qk_nope_head_dim": 5, "qk_rope_head_dim": 2},
        {"kv_lora_rank": 7, "q_lora_rank": 5},
        {"q_lora_rank": None, "num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 40},
    ],
)
@pytest.mark.parametrize("model_type", ["deepseek_v3", "minicpm3", "deepseek_v2"])
def test_oddly_sized_latent_attentions_are_read_or_refused_in_words(model_type: str, sizes: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModel

    from pretrained.families import FAMILIES

    torch.manual_seed(2)
    with silenced():
        network = AutoModel.from_config(AutoConfig.for_model(model_type, **(FAMILIES["deepseek_v3"][1] | sizes))).eval()
    try:
        with torch.inference_mode():
            network(torch.arange(3, 12)[None])
    except RuntimeError:  # transformers itself does not run this one
        with pytest.raises(CheckpointError, match="expected a network that runs on random inputs"):
            td.load(network)
        return
    loaded = td.load(network)
    assert [layer.problem for layer in loaded.layout.layers] == [""] * 3
    assert loaded.attention(1).query.shape[0] == network.config.num_attention_heads


class _Leaving(nn.Module):
    """Runs other blocks for some inputs, as early exits, halting and chunks of long texts do."""

    def __init__(self, usual: list[int], other: list[int]) -> None:
        super().__init__()
        self.words, self.usual, self.other = nn.Embedding(30, 8), usual, other
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True) for _ in range(3)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for number in self.usual if ids[0, 0] < 20 else self.other:
            x = self.blocks[number](x)
        return x


@pytest.mark.parametrize(
    ("usual", "other", "came"),
    [
        ([0], [0, 1, 2], r"through 1 block, .*through {}3 \(blocks\.0, blocks\.1, blocks\.2\)"),
        ([0, 1, 2], [0, 1], r"through 3 blocks, .*through 2 \(blocks\.0, blocks\.1\)"),
        ([0, 1], [0, 2], r"through 2 blocks, .*through 2 \(blocks\.0, blocks\.2\)"),
        ([0, 0], [0, 0, 0], r"through 2 blocks, .*through {}3 \(blocks\.0, blocks\.0, blocks\.0\)"),
    ],
)
def test_other_blocks_than_those_of_the_layout_are_refused(usual: list[int], other: list[int], came: str) -> None:
    checkpoint = td.load(_Leaving(usual, other).eval(), inputs={"ids": torch.randint(0, 20, (2, 6))})
    ids = [torch.tensor([number, 3, 9, 4, 17, 5]) for number in (21, 22, 7)]
    assert checkpoint.states(ids[-1]).feed_forward.shape[0] == len(usual) + 1
    with pytest.raises(CheckpointError, match=came.format("")):
        td.trace(checkpoint, ids, packed=False)
    with pytest.raises(CheckpointError, match=came.format("")):
        checkpoint.under({"layer 1 attention": 0}).states(ids[0])
    pack = checkpoint.one_pack(ids[:1])
    gates = torch.ones(len(usual), 2)
    with checkpoint.gated() as gated, pytest.raises(CheckpointError, match=came.format("(at least )?")):
        gated.run(pack, gates)


def _first_layers(network: nn.Module) -> nn.Module:
    del network
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)


class _OfMapping(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.inner(batch["ids"])


@pytest.mark.parametrize(
    ("made", "inputs", "words"),
    [
        (
            lambda network: torch.jit.trace(network, _ids(2)["ids"], check_trace=False),
            _ids(2),
            "got a program without them .*made from$",
        ),
        (lambda network: torch.export.export(network, (_ids(2)["ids"],)).module(), _ids(2), "got a program without"),
        (_first_layers, torch.randn(7, 2, 8), r"got one with tokens first.*wrap it .*network\(x.transpose\(0, 1\)\)"),
        (_OfMapping, {"batch": _ids(2)}, "got tensors inside of batch; wrap the network"),
        (_OfMapping, lambda count: {"batch": _ids(count)}, "got tensors inside of batch; wrap the network"),
        (lambda network: nn.Sequential(network, nn.LazyLinear(3)), _ids(2)["ids"], "1.weight, which has no shape yet"),
    ],
)
def test_what_cannot_be_watched_is_refused_with_what_to_do(made: Any, inputs: Any, words: str) -> None:
    with silenced(), pytest.raises((CheckpointError, ArgumentValueError), match=words):
        td.load(made(_Encoder(batch_first=True).eval()), inputs=inputs)


class _AsCompiled(nn.Module):
    """As the module that torch.compile returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self._orig_mod(*arguments, **named)


def test_an_example_fits_the_network_inside_a_wrapper() -> None:
    network = _Encoder(batch_first=True).eval()
    ids = torch.arange(3, 9)
    states = td.load(network, inputs=_ids(2)["ids"]).states(ids).feed_forward
    for wrapped in (
        nn.DataParallel(network),
        _AsCompiled(network),
        nn.DataParallel(_Outer(network)),
    ):
        assert torch.equal(td.load(wrapped, inputs=_ids(2)["ids"]).states(ids).feed_forward, states)


class _Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids)


class _InHalf(nn.Module):
    """A part that asks for half precision itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.bfloat16()).float()


def test_a_network_whose_code_asks_for_half_precision_is_read_as_it_is() -> None:
    network = _Encoder(batch_first=True).eval()
    for layer in network.layers:
        assert isinstance(layer, nn.TransformerEncoderLayer)
        layer.linear1 = _InHalf(layer.linear1)  # pyright: ignore[reportAttributeAccessIssue]
    checkpoint, ids, given = td.load(network, inputs=_ids(2)["ids"]), torch.arange(3, 9), list[Tensor]()
    network.layers[-1].register_forward_hook(lambda *seen: given.append(seen[2][0]))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            network(ids[None])
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(checkpoint.states(ids).feed_forward[-1], given[0])
    assert td.audit(checkpoint).sizes["layer"] == 2


def test_blocks_that_change_while_a_layout_is_found_are_named() -> None:
    network = _Leaving([0, 1, 2], [0]).eval()

    def inputs(count: int) -> dict[str, Tensor]:
        ids = torch.full((count, 6), 3 if count == 2 else 24)
        return {"ids": ids + torch.arange(6)}

    with pytest.raises(
        CheckpointError, match=r"same blocks for all inputs, got blocks\.0, .* and then blocks\.0; switch"
    ):
        td.load(network, inputs=inputs)
