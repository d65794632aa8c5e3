"""Token ids as prompts: what is accepted everywhere, what is refused by name, ids that the tokenizer does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import tokendynamics as td
from tokendynamics.diagnosis import Levers
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, TokenDynamicsError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained._live import inputs_like

PROMPTS = [torch.arange(3 + place, 15 + 2 * place) for place in range(6)]
WORDS = {"<unk>": 0, **{f"w{number}": number for number in range(1, 20)}}


def tokenizer_of_twenty_words() -> Any:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")  # noqa: S106


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    """A network whose table of 64 tokens is longer than its tokenizer, which knows 20."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = AutoConfig.for_model("llama", **sizes, num_attention_heads=2, num_key_value_heads=2)
    torch.manual_seed(0)
    return td.load(AutoModelForCausalLM.from_config(config).eval(), tokenizer_of_twenty_words())


TAKES_IDS: dict[str, Callable[[Checkpoint, Any], Any]] = {
    "trace": td.trace,
    "levers": lambda ckpt, ids: td.levers(ckpt, [*PROMPTS[1:], ids], candidates=1),
    "what_if": lambda ckpt, ids: td.what_if(ckpt, [ids], {"layer 1 attention": 0.5}),
    "passes": lambda ckpt, ids: td.passes(ckpt, ids, 1),
    "deeper": lambda ckpt, ids: td.deeper(ckpt, [ids], 1, variants=("full",)),
    "decode": lambda ckpt, ids: td.decode(ckpt, ids, (0, 1)),
    "generate": lambda ckpt, ids: td.decode(ckpt, ids, (1,), how="generate", new_tokens=2),
    "logit_lens": td.logit_lens,
    "attention_seen": td.attention_seen,
    "token_paths": td.diagnosis.token_paths,
    "diagnose": lambda ckpt, ids: td.diagnose(ckpt, [ids], levers=False, passes=1),
    "compare": lambda ckpt, ids: td.compare(ckpt, ckpt.under({"layer 1 attention": 0.5}), texts=[ids]),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", TAKES_IDS)
def test_ids_beyond_the_tokenizer_are_read(checkpoint: Checkpoint, name: str) -> None:
    TAKES_IDS[name](checkpoint, [5, 63, 20, 19, 40])


def test_ids_beyond_the_tokenizer_are_labelled_by_their_number(checkpoint: Checkpoint) -> None:
    labels = td.trace(checkpoint, [5, 63, 20, 19]).token_text.values[0].tolist()
    assert labels == ["w5", "<id 63>", "<id 20>", "w19"]
    decoded = td.decode(checkpoint, [5, 63, 20, 19], (1,))
    for number, label in zip(decoded.token_id.values.ravel(), decoded.token_text.values.ravel(), strict=True):
        assert label == (f"w{number}" if number < 20 else f"<id {number}>")


@pytest.mark.parametrize("name", TAKES_IDS)
@pytest.mark.parametrize(
    "ids",
    [[5, -1], [5, 64], [5, 2**70], [5, 2**63], np.array([5, 6], dtype=np.uint64), torch.tensor([5, 6]).to(torch.uint64),
     np.array([5, 2**64 - 1], dtype=np.uint64), torch.tensor([[5, -1]]), {"input_ids": torch.tensor([[5, 64]])}],
    ids=str,
)  # fmt: skip
def test_impossible_ids_are_refused_by_name(checkpoint: Checkpoint, name: str, ids: Any) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError)) as refused:
        TAKES_IDS[name](checkpoint, ids)
    words = str(refused.value)
    assert words.startswith(("prompt", "text", "ids", "input", "arguments"))
    assert any(part in words for part in ("ids from 0 to 63", "signed type", "token ids", "integer of 71 bits"))


@pytest.mark.long
@pytest.mark.few(5)
@pytest.mark.parametrize(
    "convert",
    [lambda ids: ids, lambda ids: ids[None], lambda ids: ids.int(), lambda ids: ids.numpy(), lambda ids: ids.tolist(),
     lambda ids: ids.numpy().astype(np.uint16), lambda ids: [np.int64(entry) for entry in ids.tolist()],
     lambda ids: tuple(ids.tolist()), lambda ids: [ids.tolist()], lambda ids: {"input_ids": ids[None]},
     lambda ids: ids.numpy().astype(">i8"), lambda ids: {"input_ids": ids.numpy().astype(">i4")[None]},
     lambda ids: {"input_ids": ids.flip(0).numpy()[None, ::-1]}],
)  # fmt: skip
def test_every_form_of_ids_gives_the_same_numbers(checkpoint: Checkpoint, convert: Callable[[Tensor], Any]) -> None:
    given = [convert(prompt) for prompt in PROMPTS]
    wanted = td.trace(checkpoint, PROMPTS)
    np.testing.assert_array_equal(td.trace(checkpoint, given).consensus_within, wanted.consensus_within)
    named = {f"text {number}": ids for number, ids in enumerate(given)}
    np.testing.assert_array_equal(td.trace(checkpoint, named).consensus_within, wanted.consensus_within)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["one axis", "two axes"])
def test_diagnose_runs_the_levers_on_ids(checkpoint: Checkpoint, form: str) -> None:
    prompts = [prompt if form == "one axis" else prompt[None] for prompt in PROMPTS]
    diagnosis = td.diagnose(checkpoint, prompts)
    assert isinstance(diagnosis.levers, Levers), diagnosis.levers_refused
    named = td.diagnose(checkpoint, {f"text {place}": prompt for place, prompt in enumerate(prompts)})
    assert isinstance(named.levers, Levers), named.levers_refused


class Own(nn.Module):
    """A network without a configuration, whose one input has a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )

    def forward(self, idx: Tensor) -> Tensor:
        x = self.table(idx)
        for block in self.blocks:
            x = block(x)
        return x


def own_inputs(count: int) -> dict[str, Tensor]:
    return {"idx": torch.arange(count * 7).reshape(count, 7) % 40}


@pytest.mark.long
def test_a_network_of_ones_own_takes_ids_whatever_its_input_is_called() -> None:
    torch.manual_seed(0)
    network = Own().eval()
    checkpoint = td.load(network, inputs=own_inputs)
    traced = td.trace(checkpoint, PROMPTS)
    by_name = td.trace(checkpoint, [{"idx": prompt[None]} for prompt in PROMPTS])
    np.testing.assert_array_equal(traced.consensus_within, by_name.consensus_within)
    assert torch.equal(checkpoint.states(PROMPTS[0]).feed_forward[0], network.table(PROMPTS[0]))
    with pytest.raises(ArgumentValueError, match="ids from 0 on, got ids from -1"):
        td.trace(checkpoint, [5, -1])
    with pytest.raises(TokenDynamicsError):
        td.trace(checkpoint, [5, 40])


def test_a_batch_of_two_is_refused_with_what_to_do(checkpoint: Checkpoint) -> None:
    two = torch.stack([PROMPTS[0], PROMPTS[0] + 1])
    with pytest.raises(ArgumentValueError, match=r"one prompt, shape \(1, token\)"):
        td.trace(checkpoint, {"input_ids": two})
    loaded = td.load(Own().eval(), inputs=own_inputs)
    for read in (lambda: td.trace(loaded, {"idx": two}), lambda: loaded.states({"idx": two})):
        with pytest.raises(ArgumentValueError, match=r"one input.*a batch of 2; pass several inputs as a list"):
            read()


class _Series(Own):
    """The same on real numbers (input, token, feature)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, values: Tensor, padding_mask: Tensor | None = None
    ) -> Tensor:
        for block in self.blocks:
            values = block(values, src_key_padding_mask=padding_mask)
        return values


@pytest.mark.parametrize("form", ["tensor", "tuple", "mapping"])
def test_an_example_does_as_well_as_a_function(form: str) -> None:
    torch.manual_seed(0)
    network, example = Own().eval(), torch.arange(7)[None] + 3
    given = {"tensor": example, "tuple": (example,), "mapping": {"idx": example}}[form]
    by_example, by_function = td.load(network, inputs=given), td.load(network, inputs=own_inputs)
    layouts = [
        replace(layer, attention=replace(layer.attention, error=0.0))  # the errors are roundings of other numbers
        for ckpt in (by_example, by_function)
        for layer in ckpt.layout.layers
        if layer.attention is not None
    ]
    assert len(layouts) == 4
    assert layouts[:2] == layouts[2:]
    one, other = (ckpt.states(PROMPTS[0]).feed_forward for ckpt in (by_example, by_function))
    assert all(torch.equal(state, same) for state, same in zip(one, other, strict=True))


def test_what_is_no_tensor_goes_to_the_network_as_it_is() -> None:
    class Scaled(Own):
        def forward(self, idx: Tensor, factor: float = 1.0, mode: str = "plain") -> Tensor:
            assert mode == "scaled"
            x = factor * self.table(idx)
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    network = Scaled().eval()
    ckpt = td.load(network, inputs={"idx": torch.arange(7)[None] + 3, "factor": 2.0, "mode": "scaled"})
    assert [layer.attention is not None for layer in ckpt.layout.layers] == [True, True]


def test_arguments_without_names_are_refused() -> None:
    class Unnamed(Own):
        def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, first: Tensor, /, idx: Tensor | None = None
        ) -> Tensor:
            return super().forward(first)

    with pytest.raises(ArgumentTypeError, match=r"whose arguments can be passed by name, got first, which cannot"):
        td.load(Unnamed().eval(), inputs=torch.arange(7)[None])


def test_an_example_of_a_series_gives_the_states_that_hooks_see() -> None:
    torch.manual_seed(0)
    network, series = _Series().eval(), torch.randn(2, 9, 16)
    checkpoint, outputs = td.load(network, inputs=series), []
    states = checkpoint.states({"values": series[:1]})
    hooks = [block.register_forward_hook(lambda *call: outputs.append(call[2])) for block in network.blocks]
    with torch.no_grad():
        network(series[:1])
    for hook in hooks:
        hook.remove()
    for state, output in zip(states.feed_forward[1:], outputs, strict=True):
        torch.testing.assert_close(state, output[0], rtol=1e-5, atol=1e-5)


def test_inputs_drawn_from_an_example_keep_its_range_spread_and_masks() -> None:
    ids, mask = torch.tensor([[4, 9, 4], [6, 5, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    made = inputs_like({"idx": ids, "mask": mask, "scale": 2.0}, _Masked())(300)
    assert (int(made["idx"].min()), int(made["idx"].max()), made["scale"]) == (4, 9, 2.0)
    assert torch.equal(made["mask"], mask.repeat(150, 1))
    values = inputs_like(3 + 2 * torch.randn(4, 50, 16), _Series())(40)["values"]
    assert abs(float(values.mean()) - 3) < 0.2
    assert abs(float(values.std()) - 2) < 0.2
    assert values.shape == (40, 50, 16)
    assert not torch.equal(values[0], values[4])


class _Masked(nn.Module):
    def forward(self, idx: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
        return idx * mask * scale


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (torch.ones(1, 0, dtype=torch.long), "of shape"),
        (torch.zeros(1, 7, dtype=torch.long), "numbers that differ"),
        (torch.full((1, 7), float("nan")), "finite"),
        (torch.arange(7), "input, token"),
        ((), "none for idx"),
        (("no tensor",), "no tensor"),
        ((torch.arange(7)[None],) * 2, "2 for 1"),
    ],
)
def test_what_cannot_be_an_example_is_refused(example: Any, words: str) -> None:
    with pytest.raises(TokenDynamicsError, match=words):
        td.load(Own().eval(), inputs=example)
