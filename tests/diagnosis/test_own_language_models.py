"""The loss of networks of the user's own: from logits that they are seen to give, unknown where that is doubtful."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from diagnosis.text_halves import finding, measuring

_IDS, _DIM = 40, 16


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(_DIM), nn.Linear(_DIM, 3 * _DIM), nn.Linear(_DIM, _DIM)
        self.mlp = nn.Sequential(
            nn.LayerNorm(_DIM), nn.Linear(_DIM, 32), nn.GELU(), nn.Linear(32, _DIM), nn.Dropout(0.3)
        )

    def forward(self, x: Tensor, causal: bool = True) -> Tensor:
        q, k, v = (heads.unflatten(-1, (2, 8)).transpose(1, 2) for heads in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class _Model(nn.Module):
    """A language model as people write them; `scores` is how many numbers its head gives."""

    def __init__(self, scores: int = _IDS) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(_IDS, _DIM), nn.ModuleList(_Block() for _ in range(2))
        self.end, self.head = nn.LayerNorm(_DIM), nn.Linear(_DIM, scores, bias=False)

    def followed(self, ids: Tensor, causal: bool = True) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, causal)
        return self.end(x)


class _Returned(_Model):
    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.followed(idx))
        return logits, None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _Named(_Model):
    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"hidden": (states := self.followed(tokens)), "logits": self.head(states)}


class _Masked(_Model):
    def forward(self, input_ids: Tensor, keep: Tensor) -> Tensor:
        return self.head(self.followed(input_ids) * keep[..., None])


class _OfTheLast(_Model):
    """nanoGPT without targets."""

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.followed(idx)[:, [-1]])


class _CappedOfTheLast(_Model):
    """Without an axis of places, with something behind the head."""

    def forward(self, idx: Tensor) -> dict[str, Any]:
        return {"scores": 5 * torch.tanh(self.head(self.followed(idx)[:, -1]) / 5)}


class _OfTheLastByHand(_Model):
    """The head is no module that reads the last state."""

    def forward(self, idx: Tensor) -> Tensor:
        return self.followed(idx)[:, -1] @ self.head.weight.mT


class _CentredOfTheLast(_Model):
    """Over all places, there would be another centre than over the last alone."""

    def forward(self, idx: Tensor) -> Tensor:
        scores = self.head(self.followed(idx)[:, [-1]])
        return scores * scores.abs().mean(dim=(1, 2), keepdim=True)


class _Bidirectional(_Model):
    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.followed(idx, causal=False))


class _LooksAhead(_Model):
    """Causal blocks, and scores that read the next token's state as well."""

    def forward(self, idx: Tensor) -> Tensor:
        states = self.followed(idx)
        return self.head(states + states.roll(-1, dims=1))


class _Tags(_Model):
    def __init__(self) -> None:
        super().__init__(7)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.followed(idx))


def _texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, _IDS, (6 + number,), generator=generator) for number in range(5)]


def _loaded(kind: type[nn.Module]) -> tuple[Any, td.Checkpoint, list[Any]]:
    torch.manual_seed(2)
    network: Any = kind()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    example: Any = torch.randint(0, _IDS, (1, 9))
    texts: list[Any] = list(_texts())
    if kind is _Masked:
        example = {"input_ids": example, "keep": torch.ones(1, 9)}
        texts = [{"input_ids": ids[None], "keep": torch.ones(1, len(ids))} for ids in texts]
    return network, td.load(network, inputs=example), texts


_LOGITS: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    _Returned: lambda network, ids: network(ids[None])[0],
    _Named: lambda network, ids: network(ids[None])["logits"],
    _Masked: lambda network, ids: network(ids[None], torch.ones(1, len(ids))),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", list(_LOGITS))
def test_the_loss_is_the_cross_entropy_of_its_own_logits(kind: type[nn.Module]) -> None:
    """Of a network in training mode: what is measured is without its dropout."""
    network, ckpt, texts = _loaded(kind)
    changed = td.what_if(ckpt, texts, {"layer 2 attention": 0})
    losses = []
    for gate in (1.0, 0.0):
        network.eval()
        with torch.no_grad():
            network.blocks[1].out.weight.mul_(gate)
            network.blocks[1].out.bias.mul_(gate)
            logits = [_LOGITS[kind](network, ids)[0] for ids in _texts()]
        pairs = zip(logits, _texts(), strict=True)
        losses.append(np.mean([float(nn.functional.cross_entropy(scores[:-1], ids[1:])) for scores, ids in pairs]))
    np.testing.assert_allclose(changed.loss.values, losses, rtol=1e-5)
    assert changed.attrs["no_loss"] == ""
    assert abs(losses[1] - losses[0]) > 1e-3


@pytest.mark.long
def test_levers_and_heads_say_what_a_part_and_a_head_cost() -> None:
    network, ckpt, texts = _loaded(_Returned)
    levers, effects = td.levers(ckpt, texts).table, td.head_effects(ckpt, texts)
    whole = [trial for trial in range(levers.sizes["candidate"]) if float(levers.alpha[trial]) == 0]
    for trial in whole:
        block = network.blocks[int(levers.candidate_layer[trial]) - 1]
        part = block.out if str(levers.candidate_part[trial].values) == "attention" else block.mlp[3]
        measured = _rise_of_the_loss(network, part, slice(None))
        np.testing.assert_allclose(float(levers.loss_change[trial]), measured, atol=1e-6)
    for layer, head in np.argwhere(np.isfinite(effects.loss_effect.values)):
        measured = _rise_of_the_loss(network, network.blocks[layer].out, slice(8 * head, 8 * head + 8))
        np.testing.assert_allclose(-effects.loss_effect.values[layer, head], measured, atol=1e-6)


def _rise_of_the_loss(network: Any, part: nn.Linear, columns: slice) -> float:
    """Return what the loss on the measuring half of the texts gains without a part, or one head's columns of it."""
    losses, former = [], copy.deepcopy(part.state_dict())
    for edited in (False, True):
        with torch.no_grad():
            if edited:
                part.weight[:, columns] = 0
                if columns == slice(None):
                    part.bias.zero_()
            logits = [network.eval()(ids[None])[0][0] for ids in measuring(_texts())]
        pairs = zip(logits, measuring(_texts()), strict=True)
        losses.append(np.mean([float(nn.functional.cross_entropy(scores[:-1], ids[1:])) for scores, ids in pairs]))
    part.load_state_dict(former)
    return float(losses[1] - losses[0])


def _of_prefixes(network: Any, ids: Tensor) -> Tensor:
    """Return the scores after the last token of each beginning of a text."""
    several = [network(ids[None, : place + 1]) for place in range(len(ids))]
    return torch.cat([(given["scores"] if isinstance(given, dict) else given).reshape(1, -1) for given in several])


@pytest.mark.parametrize("kind", [_OfTheLast, _CappedOfTheLast])
def test_scores_of_the_last_place_are_a_loss_as_those_of_all_beginnings_of_a_text(kind: type[nn.Module]) -> None:
    network, ckpt, texts = _loaded(kind)
    changed = td.what_if(ckpt, texts, {"layer 2 attention": 0})
    losses, slopes = [], []
    for gate in (1.0, 1.01, 0.99, 0.0):
        edited = copy.deepcopy(network).eval()
        with torch.no_grad():
            edited.blocks[1].out.weight.mul_(gate)
            edited.blocks[1].out.bias.mul_(gate)
            pairs = [(_of_prefixes(edited, ids), ids) for ids in _texts()]
        of_texts = [float(nn.functional.cross_entropy(scores[:-1].double(), ids[1:])) for scores, ids in pairs]
        losses.append(np.mean(of_texts))
        slopes.append(np.mean(finding(of_texts)))
    np.testing.assert_allclose(changed.loss.values, [losses[0], losses[3]], rtol=1e-5)
    assert changed.attrs["no_loss"] == ""
    sensitivity = td.levers(ckpt, texts, candidates=1).table.loss_sensitivity.values[1, 0]
    assert sensitivity == pytest.approx((slopes[1] - slopes[2]) / 0.02, rel=2e-2)
    with torch.no_grad():
        ids = _of_prefixes(network.eval(), _texts()[3]).argmax(-1).tolist()
    assert td.logit_lens(ckpt, _texts()[3]).token_id.values[-1].tolist() == ids


@pytest.mark.long
@pytest.mark.parametrize("kind", [_OfTheLastByHand, _CentredOfTheLast, _Bidirectional, _LooksAhead, _Tags])
def test_scores_that_do_not_predict_the_next_token_are_no_loss(kind: type[nn.Module]) -> None:
    _, ckpt, texts = _loaded(kind)
    changed = td.what_if(ckpt, texts, {"layer 2 attention": 0})
    assert np.isnan(changed.loss.values).all()
    causal = "the network is not known to predict the next token from earlier ones alone"
    last = "the head of the network scores what follows the last token alone, not each token"
    words = {_Bidirectional: causal, _OfTheLastByHand: last, _CentredOfTheLast: last}
    assert changed.attrs["no_loss"] == words.get(kind, "no head that predicts the next token was found")


@pytest.mark.long
@pytest.mark.parametrize("kind", [_OfTheLastByHand, _Bidirectional])
def test_the_page_says_why_the_loss_is_unknown(kind: type[nn.Module]) -> None:
    _, ckpt, texts = _loaded(kind)
    levers = td.levers(ckpt, texts)
    reason = levers.table.attrs["no_loss"]
    assert reason == td.what_if(ckpt, texts, {"layer 1 attention": 0}).attrs["no_loss"]
    assert "no_loss" not in td.levers(ckpt, texts, loss=lambda network: 0.0).table.attrs
    if "unknown cost" in levers.text:
        assert f"because {reason}" in levers.text


def test_layers_are_read_through_the_head() -> None:
    network, ckpt, _ = _loaded(_Returned)
    ids = _texts()[3]
    lens = td.logit_lens(ckpt, ids)
    with torch.no_grad():
        logits = network.eval()(ids[None])[0][0]
        after_first = network.head(network.end(network.blocks[0](network.tokens(ids[None]))))[0]
    assert lens.token_id.values[-1].tolist() == logits.argmax(-1).tolist()
    assert lens.token_id.values[1].tolist() == after_first.argmax(-1).tolist()


class _PaddedBlock(_Block):
    def forward(self, x: Tensor, shown: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = (heads.unflatten(-1, (2, 8)).transpose(1, 2) for heads in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class _Padded(_Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_PaddedBlock() for _ in range(2))

    def forward(self, input_ids: Tensor, keep: Tensor) -> Tensor:
        causal = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool).tril()
        x, shown = self.tokens(input_ids), causal & keep[:, None, None].bool()
        for block in self.blocks:
            x = block(x, shown)
        return self.head(self.end(x))


@pytest.mark.long
def test_the_loss_of_a_prompt_with_padding_is_that_of_its_tokens() -> None:
    torch.manual_seed(2)
    example = {"input_ids": torch.randint(0, _IDS, (1, 9)), "keep": torch.ones(1, 9)}
    network = _Padded().eval()
    ckpt = td.load(network, inputs=example)
    prompts = [{"input_ids": ids[None], "keep": torch.ones(1, len(ids))} for ids in _texts()]
    prompts[1]["keep"][0, 5:] = 0
    changed = td.what_if(ckpt, prompts, {"layer 1 attention": 0})
    assert changed.consensus_within.notnull().any()
    losses = []
    for prompt in prompts:
        ids = prompt["input_ids"][:, : int(prompt["keep"].sum())]
        with torch.no_grad():
            scores = network(ids, torch.ones_like(ids))[0]
        losses.append(float(nn.functional.cross_entropy(scores[:-1], ids[0, 1:])))
    assert float(changed.loss.sel(model="as it is")) == pytest.approx(np.mean(losses), rel=1e-5)
