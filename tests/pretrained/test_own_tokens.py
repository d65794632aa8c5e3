"""Networks that add tokens of their own inside: windows that are filled up, a learned prompt in front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import tokendynamics as td
from diagnosis.text_halves import measuring
from tokendynamics.pretrained import Checkpoint

SIZES: dict[str, Any] = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
HALVES: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 32,
    "pad_token_id": 1,
    **{f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in (
        ("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))},
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "longformer": SIZES
    | {"attention_window": 8, "pad_token_id": 1, "intermediate_size": 48, "max_position_embeddings": 128},
    "led": HALVES | {"attention_window": 8, "max_encoder_position_embeddings": 128},
    "pegasus_x": HALVES | {"block_size": 8, "num_global_tokens": 4},
    "reformer": {
        "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "attn_layers": ["local", "local"],
        "axial_pos_embds": False, "is_decoder": False, "feed_forward_size": 48, "attention_head_size": 8,
        "local_attn_chunk_length": 8, "pad_token_id": 0, "max_position_embeddings": 128,
    },
    "cpmant": SIZES | {"dim_head": 8, "dim_ff": 48, "prompt_length": 4, "prompt_types": 4, "segment_types": 4},
}  # fmt: skip
PROMPTS = [torch.arange(3 + place, 3 + place + length) for place, length in enumerate((13, 10, 21, 16, 7, 18))]


def loaded(network_type: str) -> tuple[Any, Checkpoint]:
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(network_type, **FAMILIES[network_type])).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
    half = "encoder" if network_type in ("led", "pegasus_x") else None
    return model.get_encoder() if half else model, td.load(model, half=half)


def mean_cosine(states: Tensor) -> float:
    unit = torch.nn.functional.normalize(states.double(), dim=-1)
    cosines = unit @ unit.T
    count = len(cosines)
    return float((cosines.sum() - cosines.trace()) / (count * (count - 1)))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("network_type", FAMILIES)
def test_only_the_tokens_of_the_prompt_count(network_type: str) -> None:
    model, checkpoint = loaded(network_type)
    inside: list[Tensor] = []
    block = model.get_submodule(checkpoint.layout.blocks[-1])
    hook = block.register_forward_hook(
        lambda _, __, output: inside.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        given = [model(input_ids=prompt[None]) for prompt in PROMPTS]
    hook.remove()
    direct = [checkpoint.states(prompt) for prompt in PROMPTS]
    expected_cosines = []
    for prompt, states, last, output in zip(PROMPTS, direct, inside, given, strict=True):
        assert states.feed_forward.shape[1] == len(prompt)
        start = last.shape[1] - len(prompt) if network_type == "cpmant" else 0
        assert torch.equal(states.feed_forward[-1], last[0, start : start + len(prompt)])
        if states.final_norm is not None:
            assert torch.equal(states.final_norm, output[0][0])
        expected_cosines.append(mean_cosine(last[0, start : start + len(prompt)]))
    for packed in (True, False):
        traced = td.trace(checkpoint, PROMPTS, packed=packed)
        cosines = traced.mean_pair_cosine.sel(site="feed_forward", sinks="kept").isel(layer=-1)
        np.testing.assert_allclose(cosines, expected_cosines, atol=1e-5)
    alone = td.trace(checkpoint, PROMPTS[0]).mean_pair_cosine.sel(site="feed_forward", sinks="kept")[0, -1]
    assert float(alone) == pytest.approx(expected_cosines[0], abs=1e-5)


@pytest.mark.parametrize("network_type", ["longformer", "cpmant"])
def test_passes_count_the_same_tokens(network_type: str) -> None:
    _, checkpoint = loaded(network_type)
    pass_table = td.passes(checkpoint, PROMPTS[0], 1)
    states = checkpoint.states(PROMPTS[0])
    last = states.feed_forward[-1] if states.final_norm is None else states.final_norm
    assert pass_table.mean_pair_cosine.values[0] == pytest.approx(
        [mean_cosine(states.feed_forward[0]), mean_cosine(last)], abs=1e-5
    )


@pytest.mark.long
def test_levers_count_the_same_tokens() -> None:
    _, checkpoint = loaded("longformer")
    levers, traced = td.levers(checkpoint, PROMPTS, packed=False), td.trace(checkpoint, measuring(PROMPTS))
    where = levers.where
    assert levers.kappa == pytest.approx(float(traced.consensus_within.sel(site="feed_forward", layer=where)), abs=1e-5)


class _OwnCode(nn.Module):
    """A language model with learned tokens beside those of its input, which it cuts off where it gives scores."""

    def __init__(self, before: int, behind: int, cut: str) -> None:
        super().__init__()
        kinds: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.tokens = nn.Embedding(60, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, **kinds) for _ in range(2))
        self.before, self.behind = nn.Parameter(torch.randn(1, before, 16)), nn.Parameter(torch.randn(1, behind, 16))
        self.norm, self.head, self.cut = nn.LayerNorm(16), nn.Linear(16, 60), cut
        self.seen: list[Tensor] = []

    def run(self, ids: Tensor) -> Tensor:
        front, behind = (learned.expand(len(ids), -1, -1) for learned in (self.before, self.behind))
        x = torch.cat([front, self.tokens(ids), behind], dim=1)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        kept = slice(front.shape[1], front.shape[1] + ids.shape[1])
        self.seen = [x[:, kept]]
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
            self.seen.append(x[:, kept])
        if self.cut == "before the norm":
            return self.head(self.norm(x[:, kept]))
        return self.head(self.norm(x))[:, kept] if self.cut == "at the end" else self.head(self.norm(x))


class _NamedIds(_OwnCode):
    def forward(self, input_ids: Tensor) -> Tensor:
        return self.run(input_ids)


class _OtherName(_OwnCode):
    def forward(self, idx: Tensor) -> Tensor:
        return self.run(idx)


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize("code", [_NamedIds, _OtherName])
@pytest.mark.parametrize(("before", "behind"), [(3, 0), (0, 2), (1, 2)])
@pytest.mark.parametrize("cut", ["before the norm", "at the end", "nowhere"])
@pytest.mark.parametrize("drawn", [False, True])
def test_learned_tokens_of_own_code_do_not_count(code: Any, before: int, behind: int, cut: str, drawn: bool) -> None:
    torch.manual_seed(4)
    network = code(before, behind, cut).eval()
    name = "input_ids" if code is _NamedIds else "idx"
    inputs: Any = torch.randint(0, 60, (1, 9))
    if drawn:  # anew whenever some are asked for
        inputs = lambda count: {name: torch.randint(0, 60, (count, 9))}  # noqa: E731
    checkpoint = td.load(network, inputs=inputs)
    prompts = PROMPTS[:3]
    for places in checkpoint.states_in_packs(prompts):
        for number, place in enumerate(places.places):
            with torch.no_grad():
                network(prompts[place][None])
            states = places.of(number).feed_forward
            torch.testing.assert_close(states, torch.cat(network.seen), rtol=1e-4, atol=1e-5)
    changed = td.what_if(checkpoint, prompts, {"layer 1 attention": 0.5})
    if cut == "nowhere":
        assert np.isnan(changed.loss.values).all()
        return
    with torch.no_grad():
        logits = [network(ids[None])[0] for ids in prompts]
        after_first = network.head(network.norm(network.seen[1]))[0]
    losses = [float(nn.functional.cross_entropy(of[:-1], ids[1:])) for of, ids in zip(logits, prompts, strict=True)]
    np.testing.assert_allclose(changed.loss.values[0], np.mean(losses), rtol=1e-5)
    lens = td.logit_lens(checkpoint, prompts[2])
    assert lens.token_id.values[1].tolist() == after_first.argmax(dim=-1).tolist()
    if cut == "before the norm":
        continued = td.decode(checkpoint, prompts[2], (1,), how="generate", new_tokens=2)
        assert int(continued.token_id.values[0, 0]) == int(logits[2][-1].argmax())


class _AmongThem(_OwnCode):
    """Its learned tokens stand in the middle of the input."""

    def forward(self, idx: Tensor) -> Tensor:
        x, half = self.tokens(idx), idx.shape[1] // 2
        x = torch.cat([x[:, :half], self.before.expand(len(idx), -1, -1), x[:, half:]], dim=1)
        for block in self.blocks:
            x = block(x)
        count = self.before.shape[1]
        return self.head(self.norm(torch.cat([x[:, :half], x[:, half + count :]], dim=1)))


def test_learned_tokens_among_those_of_the_input_are_refused() -> None:
    torch.manual_seed(4)
    with pytest.raises(ValueError, match="side by side and in order in its blocks, got the first of"):
        td.load(_AmongThem(2, 0, "").eval(), inputs=torch.randint(0, 60, (1, 9)))
