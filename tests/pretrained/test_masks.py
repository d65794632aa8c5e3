"""Masks that networks make by hand: causal and full ones, windows, padding, and others, which are named."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.diagnosis.comparing.effects import halved_parts, head_effects_of
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained.discovery.words import kinds_in_words
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.provenance.progress import silent
from tokendynamics.training.monitor.looks import Probe

DIM, HEADS, VOCABULARY, TOKENS = 12, 2, 30, 7

MARK = 1
"""The token id that masks by ids look for; the network is loaded with inputs that do not hold it."""


_OF_EACH_ID: dict[str, Any] = {
    "seen by all: a difference": lambda ids: (ids - 20).view(len(ids), -1) == MARK - 20,
    "seen by all: a quotient": lambda ids: torch.eq(ids // 2, 0),
    "seen by all: a remainder": lambda ids: (ids + 2) % (VOCABULARY + 1) < 4,
    "seen by all: bits": lambda ids: (ids.clone() & ~1).float().ne(0.0).logical_not(),
    "seen by all: a table of differences": lambda ids: (torch.arange(VOCABULARY - 1) == MARK + 3)[
        (ids + 3).clamp(max=28)
    ],
}
"""Masks by what is computed of each id; they hold for ids 0 and 1 alone, or for 1."""


def _shown(form: str, ids: Tensor) -> Tensor:
    """Return which senders receivers may see, (…, receiver, sender)."""
    tokens = ids.shape[1]
    place = torch.arange(tokens)
    distance = place[:, None] - place
    if form == "prefix":
        return (distance >= 0) | (place < 3)
    if form == "window of each head":
        return (distance >= 0) & (distance < torch.tensor([2, 4])[:, None, None])
    if form == "causal in one head":
        return torch.stack([distance >= 0, distance < tokens])
    if form in ("padding", "causal with padding"):
        padding = (torch.arange(tokens) >= 5).expand(len(ids), tokens) & (torch.arange(len(ids)) % 2 == 0)[:, None]
        return ~padding[:, None, None] & (distance >= 0 if form.startswith("causal") else distance < tokens)
    if form == "documents":  # packed side by side
        document = (ids % 3 == 0).cumsum(dim=1)
        return ((document[:, :, None] == document[:, None]) & (distance >= 0))[:, None]
    marked, causal = ids == MARK, distance >= 0
    if form == "documents by a separator":
        return ((marked.cumsum(1)[:, :, None] == marked.cumsum(1)[:, None]) & causal)[:, None]
    if form == "prefix up to a token":
        inside = marked.flip(1).cumsum(1).flip(1) > 0
        return (causal | inside[:, :, None] & inside[:, None])[:, None]
    if form == "a window and tokens seen by all later ones":
        return (causal & ((distance < 3) | marked[:, None]))[:, None]
    if form == "tokens seen by all":
        return (causal | marked[:, None])[:, None]
    if form == "full behind a first token":
        return (causal | marked[:, :1, None])[:, None]
    if form == "looked up":
        return (causal | (torch.arange(VOCABULARY) == MARK)[ids][:, None])[:, None]
    if form in _OF_EACH_ID:
        return (causal | _OF_EACH_ID[form](ids)[:, None])[:, None]
    if form == "full where a token is anywhere":
        return (causal | torch.isin(ids, torch.tensor([MARK])).any(1)[:, None, None])[:, None]
    if form == "a token that none sees at all":
        return (causal & ~marked[:, None])[:, None]
    if form == "a token that none sees":
        return (causal & (~marked[:, None] | (distance == 0)))[:, None]
    return {
        "full": distance < tokens,
        "causal": distance >= 0,
        "window": (distance >= 0) & (distance < 3),
        "band": distance.abs() <= 1,
        "later tokens only": distance <= 0,
        "every second": (distance >= 0) & (distance % 2 == 0),
        "not itself": distance != 0,
        "earlier tokens only": (distance > 0) | (place == 0)[:, None] & (distance == 0),
    }[form]


class Block(nn.Module):
    """An attention with a mask of its own, in one of two usual ways of writing it."""

    def __init__(self, form: str, fused: bool) -> None:
        super().__init__()
        self.form, self.fused = form, fused
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        several = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (tensor.unflatten(-1, (HEADS, -1)).transpose(1, 2) for tensor in several)
        shown = _shown(self.form, ids)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        else:
            logits = (q @ k.mT / math.sqrt(DIM // HEADS)).masked_fill(~shown, -torch.inf)
            y = logits.softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, form: str, fused: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(form, fused) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, ids)
        return x


def _loaded(form: str, fused: bool) -> Any:
    torch.manual_seed(3)
    return td.load(
        Network(form, fused).eval(), inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, TOKENS))}
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("form", "causal", "window"),
    [
        ("full", False, None),
        ("causal", True, None),
        ("padding", False, None),
        ("causal with padding", True, None),
        ("window", True, 3),
    ],
)
def test_usual_masks_are_those_of_a_flow(form: str, causal: bool, window: int | None, fused: bool) -> None:
    ckpt = _loaded(form, fused)
    attention = ckpt.layout.layers[0].attention
    assert (attention.causal, attention.window, attention.other_mask) == (causal, window, False)
    assert td.audit(ckpt).attrs["besides"] == ("none" if window is None else "windows of 3 tokens")
    assert td.flow_of(ckpt).attention.causal is causal
    if window is not None:
        with pytest.raises(ArgumentValueError, match="windows of 3 tokens, where there are 4"):
            td.flow_of(ckpt, tokens=4)


@pytest.mark.few(6)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("form", "causal"),
    [
        ("band", False),
        ("prefix", False),
        ("later tokens only", False),
        ("every second", True),
        ("not itself", False),
        ("earlier tokens only", True),
        ("window of each head", True),
        ("causal in one head", False),
        ("documents", True),
    ],
)
def test_another_mask_is_named_and_is_no_flow(form: str, causal: bool, fused: bool) -> None:
    ckpt = _loaded(form, fused)
    words = "a mask that is neither full nor causal"
    words += " and depends on token ids" if form == "documents" else ""
    attention = ckpt.layout.layers[0].attention
    assert (attention.causal, attention.window, attention.other_mask) == (causal, None, True)
    audit = td.audit(ckpt)
    assert audit.attrs["besides"] == words
    assert json.loads(audit.attrs["layout"])["kinds"][0]["attention"]["other_mask"] is True
    for made in (td.flow_of, lambda given: td.nearest_statements(given, torch.arange(5))):
        with pytest.raises(ArgumentValueError, match=words):
            made(ckpt)


def _in_words(layout: Any) -> str:
    return str(kinds_in_words(layout))


def _loaded_without_mark(form: str, fused: bool) -> Any:
    torch.manual_seed(3)
    ids = torch.randint(MARK + 1, VOCABULARY, (3, TOKENS))
    return td.load(Network(form, fused).eval(), inputs={"ids": ids})


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("form", "causal"),
    [
        ("documents by a separator", True),
        ("a window and tokens seen by all later ones", True),
        ("prefix up to a token", False),
        ("tokens seen by all", False),
        ("full behind a first token", False),
        ("full where a token is anywhere", False),
        ("looked up", False),
        *((form, False) for form in _OF_EACH_ID),
    ],
)
def test_a_mask_by_a_token_id_that_no_input_held_is_no_usual_one(form: str, causal: bool, fused: bool) -> None:
    ckpt = _loaded_without_mark(form, fused)
    attention = ckpt.layout.layers[0].attention
    assert (attention.causal, attention.window, attention.other_mask) == (causal, None, True)
    assert ckpt.causal is causal
    assert td.audit(ckpt).attrs["besides"] == "a mask that is neither full nor causal and depends on token ids"
    assert "which are hidden depends on token ids" in _in_words(ckpt.layout)
    with pytest.raises(ArgumentValueError, match="depends on token ids"):
        td.flow_of(ckpt)


class Segments(nn.Module):
    """Reads token ids by another name, beside numbers of segments and places."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.words, self.kinds, self.places = (nn.Embedding(count, DIM) for count in (VOCABULARY, 2, TOKENS))
        self.blocks = nn.ModuleList(Block(form, True) for _ in range(2))

    def forward(self, segments: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
        x = self.words(tokens) + self.kinds(segments) + self.places(places)
        for block in self.blocks:
            x = block(x, tokens)
        return x


@pytest.mark.parametrize("form", ["tokens seen by all", "documents by a separator", "causal"])
def test_a_mask_by_ids_of_another_name_beside_other_whole_numbers_is_none_of_the_usual(form: str) -> None:
    torch.manual_seed(3)
    given = {
        "segments": torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).expand(3, -1),
        "tokens": torch.randint(MARK + 1, VOCABULARY, (3, TOKENS)),
        "places": torch.arange(TOKENS).expand(3, -1),
    }
    ckpt = td.load(Segments(form).eval(), inputs=given)
    attention = ckpt.layout.layers[0].attention
    assert attention is not None, ckpt.layout.layers[0].problem
    assert attention.mask_by_ids is (form != "causal")
    assert attention.causal is (form != "tokens seen by all")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("form", ["a token that none sees", "a token that none sees at all"])
def test_a_token_id_that_none_sees_is_padding(form: str, fused: bool) -> None:
    ckpt = _loaded_without_mark(form, fused)
    attention = ckpt.layout.layers[0].attention
    assert (attention.causal, attention.window, attention.other_mask, ckpt.causal) == (True, None, False, True)
    assert "which are hidden depends on token ids" in _in_words(ckpt.layout)
    assert td.flow_of(ckpt).attention.causal


@pytest.mark.parametrize("form", ["causal", "full", "window"])
def test_a_usual_mask_does_not_depend_on_token_ids(form: str) -> None:
    assert "depends on token ids" not in _in_words(_loaded_without_mark(form, True).layout)


@pytest.mark.long
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_padding_that_the_network_hides_by_its_id_is_not_measured(packed: bool, fused: bool) -> None:
    """As where an argument says which tokens are there."""
    ckpt = _loaded_without_mark("a token that none sees at all", fused)
    texts = [torch.arange(2, 17 - number) for number in range(5)]
    alone = td.trace(ckpt, texts, packed=packed)
    padded = [functional.pad(text, (0, number), value=MARK) for number, text in enumerate(texts)]
    trace = td.trace(ckpt, padded, packed=packed)
    for name in ("consensus_within", "share_common", "mean_pair_cosine", "norm_median", "attention_received"):
        np.testing.assert_allclose(trace[name].values, alone[name].values, atol=1e-6)
    seen = [td.attention_seen(ckpt, given) for given in (padded, texts)]
    for name in ("received", "entropy", "to_previous"):
        np.testing.assert_allclose(seen[0][name], seen[1][name], atol=1e-6)
    with pytest.raises(ArgumentValueError, match="the network's mask by ids: expected a mask that hides no token"):
        td.levers(ckpt, padded)
    with pytest.raises(ArgumentValueError, match="the network's mask by ids: expected a mask that hides no token"):
        td.trace(ckpt, torch.tensor([4, MARK, 5, 6, 7]))
    assert td.trace(ckpt, torch.tensor([4, 5, 6, 7, 8])).sizes["token"] == 5


class _WithPadding(nn.Module):
    """Hides what an argument says, by a fill, or by terms that are added, in the usual ways of writing an attention."""

    def __init__(self, form: str, causal: bool) -> None:
        super().__init__()
        self.form, self.causal, self.embed = form, causal, nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(_PaddedBlock(form) for _ in range(2))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        shown = mask.bool()[:, None, None].expand(-1, -1, ids.shape[1], -1)
        if self.causal:
            shown = shown & torch.ones_like(shown).tril()
        added = torch.where(mask.bool()[:, None, None], 0.0, -1e4) + torch.where(
            shown, 0.0, -1e9 if self.causal else 0.0
        )
        x = self.embed(ids) + 0.1 * torch.arange(ids.shape[1])[:, None]
        for block in self.blocks:
            x = block(x, added if "added" in self.form else shown)
        return x


class _PaddedBlock(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.norm = form, nn.LayerNorm(DIM)
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        if "fused" in self.form:
            y = functional.scaled_dot_product_attention(q, k, v, mask)
        else:
            logits = q @ k.mT / math.sqrt(DIM / HEADS)
            logits = logits + mask if "added" in self.form else logits.masked_fill(~mask, torch.finfo(q.dtype).min)
            y = logits.softmax(dim=-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["filled", "fused", "added", "fused, added"])
def test_padding_is_not_measured_however_the_mask_is_written(form: str, causal: bool) -> None:
    """An added −10⁴ hides as a fill does; padding ahead sees no token under a causal mask, and is no token itself."""
    torch.manual_seed(4)
    network = _WithPadding(form, causal).eval()
    ids, mask = torch.randint(2, VOCABULARY, (6, 20)), torch.ones(6, 20)
    for number in range(6):
        mask[number, 20 - number % 3 :] = 0.0
    alone = [
        {"ids": row[:count][None], "mask": torch.ones(1, count)}
        for row, count in zip(ids, (20, 19, 18) * 2, strict=True)
    ]
    for flipped in (False, True):
        there = mask.flip(1) if flipped else mask
        ckpt = td.load(network, inputs={"ids": ids, "mask": there})
        attention = ckpt.layout.layers[0].attention
        assert attention is not None, ckpt.layout.layers[0].problem
        assert (attention.causal, attention.window, attention.other_mask) == (causal, None, False)
        prompts = [{"ids": row[None], "mask": shown[None]} for row, shown in zip(ids, there, strict=True)]
        if flipped:
            for measure in (td.trace, td.attention_seen):
                with pytest.raises(
                    ArgumentValueError, match="mask: expected a mask that hides no token, got one that hides"
                ):
                    measure(ckpt, prompts)
            states = [ckpt.under({"logits": factor}).states(prompts[2]) for factor in (0.5, 1 + 1e-7)]
            assert all(bool(varied.feed_forward.isfinite().all()) for varied in states)
            there_alone = (varied.feed_forward[:, 2:] for varied in (states[1], ckpt.states(prompts[2])))
            torch.testing.assert_close(*there_alone, atol=1e-4, rtol=0)
            continue
        for packed in (False, True):
            traces = [td.trace(ckpt, given, packed=packed) for given in (prompts, alone)]
            for name in ("consensus_within", "share_common", "mean_pair_cosine", "norm_median"):
                np.testing.assert_allclose(traces[0][name], traces[1][name], atol=1e-5, err_msg=name)
            for name in ("attention_received", "attention_uniform", "attention_sink_mass"):
                np.testing.assert_allclose(traces[0][name], traces[1][name], atol=1e-6, err_msg=name)
        seen = [td.attention_seen(ckpt, given, patterns=True) for given in (prompts, alone)]
        for name, values in seen[0].data_vars.items():
            if name != "token_text":
                np.testing.assert_allclose(values, seen[1][name], atol=1e-6, err_msg=str(name))
        directions = [td.shared_directions(ckpt, given) for given in (prompts, alone)]
        np.testing.assert_allclose(directions[0].written_by_head, directions[1].written_by_head, atol=1e-4)


class _SelfSeen(nn.Module):
    """What is padding sees itself, so that no row of the mask is empty: alone, or with the rest of the padding."""

    def __init__(self, how: str, causal: bool, added: int, native: bool) -> None:
        super().__init__()
        self.how, self.causal, self.embed = how, causal, nn.Embedding(VOCABULARY, DIM)
        self.added = nn.Parameter(torch.randn(1, added, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True)
        self.native = nn.TransformerEncoder(layer, 2) if native else None
        self.blocks = nn.ModuleList(_PaddedBlock("filled") for _ in range(2 - 2 * native))

    def run(self, ids: Tensor, there: Tensor) -> Tensor:
        x = self.embed(ids) + 0.1 * torch.arange(ids.shape[1])[:, None]
        x = torch.cat((self.added.expand(len(x), -1, -1), x), dim=1)
        there = functional.pad(there.bool(), (self.added.shape[1], 0), value=True)
        shown = there[:, None].expand(-1, x.shape[1], -1)
        if self.how == "alone":
            shown = shown | torch.eye(x.shape[1], dtype=torch.bool)
        elif self.how == "together":
            shown = there[:, None] == there[:, :, None]
        shown = shown & torch.ones_like(shown).tril() if self.causal else shown
        if self.native is not None:
            return self.native(x, mask=(~shown).repeat_interleave(HEADS, dim=0))
        for block in self.blocks:
            x = block(x, shown[:, None])
        return x


class _ById(_SelfSeen):
    def forward(self, ids: Tensor) -> Tensor:
        return self.run(ids, ids != MARK)


class _ByFlags(_SelfSeen):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.run(ids, mask)


class _ByLengths(_SelfSeen):
    def forward(self, ids: Tensor, count: Tensor) -> Tensor:
        return self.run(ids, torch.arange(ids.shape[1]) < count[:, None])


class _ByPairs(_SelfSeen):
    def forward(self, ids: Tensor, pairs: Tensor) -> Tensor:
        x = self.embed(ids) + 0.1 * torch.arange(ids.shape[1])[:, None]
        for block in self.blocks:
            x = block(x, pairs)
        return x


def _inputs_by(by: type[_SelfSeen], ids: Tensor, lengths: Tensor, how: str, causal: bool) -> list[dict[str, Tensor]]:
    """Return each prompt with padding behind its end, as the network of a class takes it."""
    there = torch.arange(ids.shape[1]) < lengths[:, None]
    given = {"ids": ids if by is _ByFlags else ids.masked_fill(~there, MARK)}
    if by is _ByFlags:
        given["mask"] = there.float()
    elif by is _ByLengths:
        given["count"] = lengths
    elif by is _ByPairs:
        pairs = there[:, None, :] | torch.eye(ids.shape[1], dtype=torch.bool)
        pairs = there[:, None, :] == there[:, :, None] if how == "together" else pairs
        given["pairs"] = (pairs & torch.ones_like(pairs).tril() if causal else pairs)[:, None]
    return [{name: value[number : number + 1] for name, value in given.items()} for number in range(len(ids))]


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("by", "how", "causal", "added", "native"),
    [
        *[(by, how, causal, 0, False) for by in (_ById, _ByLengths) for how in ("alone", "together")
          for causal in (False, True)],
        *[(_ByFlags, "alone", causal, 0, False) for causal in (False, True)],
        (_ByPairs, "alone", False, 0, False), (_ByPairs, "alone", True, 0, False),
        (_ById, "alone", True, 0, True), (_ByFlags, "alone", False, 0, True),
        (_ById, "alone", False, 2, False), (_ByFlags, "alone", True, 2, False), (_ByFlags, "none", False, 1, False),
    ],
)  # fmt: skip
def test_padding_that_sees_itself_is_not_measured(
    by: type[_SelfSeen], how: str, causal: bool, added: int, native: bool
) -> None:
    torch.manual_seed(4)
    network = by(how, causal, added, native).eval()
    ids, lengths = torch.randint(MARK + 1, VOCABULARY, (6, 14)), torch.tensor([14, 12, 11, 14, 11, 10])
    lengths = lengths if by is _ByPairs else lengths - (lengths == 14).int() + (lengths == 10).int() * 3
    padded = _inputs_by(by, ids, lengths, how, causal)
    alone = [
        _inputs_by(by, row[None, :length], torch.tensor([length]), how, causal)[0]
        for row, length in zip(ids, lengths.tolist(), strict=True)
    ]
    ckpt = td.load(network, inputs={name: torch.cat([prompt[name] for prompt in padded]) for name in padded[0]})
    assert ckpt.layout.layers[0].attention is not None
    for packed in (False, True):
        traces = [td.trace(ckpt, given, packed=packed) for given in (padded, alone)]
        for name in ("consensus_within", "share_common", "mean_pair_cosine", "norm_median", "attention_received"):
            np.testing.assert_allclose(traces[0][name], traces[1][name], atol=1e-5, err_msg=name)
    seen = [td.attention_seen(ckpt, given) for given in (padded, alone)]
    for name in ("received", "entropy", "to_self", "to_first"):
        np.testing.assert_allclose(seen[0][name], seen[1][name], atol=1e-6, err_msg=name)
    monitored = []
    for given in (padded, alone):
        monitor = td.Monitor(given, inputs={name: torch.cat([prompt[name] for prompt in padded]) for name in padded[0]})
        monitor.step(network)
        assert monitor.status == "measured"
        monitored.append(monitor.dataset)
    for name in ("consensus_within", "share_common", "update_ratio"):
        np.testing.assert_allclose(monitored[0][name], monitored[1][name], atol=1e-5, err_msg=name)
    for measure in (td.levers, partial(td.passes, n=1)):
        with pytest.raises(ArgumentValueError, match="expected a mask that hides no token"):
            measure(ckpt, padded)
    given = [prepared(ckpt, prompt) for prompt in padded]
    unknown = head_effects_of((ckpt, ckpt), (given, given), [True], (4.0, "detect"), silent).unknown
    assert "a mask that hides no token" in unknown[0]
    if causal:
        assert "a mask that hides no token" in halved_parts([ckpt, ckpt], [given, given], True, silent).unknown[0]
    td.passes(ckpt, alone, 1)


class _EndUnseen(_SelfSeen):
    """No other token sees the end of a prompt, which is no padding."""

    def __init__(self, form: str) -> None:
        super().__init__("", True, 0, False)
        self.form = form

    def shown(self, ids: Tensor, marks: Tensor) -> Tensor:
        causal = torch.ones(len(ids), ids.shape[1], ids.shape[1]).tril().bool()
        if self.form == "documents by a separator":
            marks = (ids == MARK).long().cumsum(1) - (ids == MARK).long()
        elif self.form == "prefix":
            return causal | (marks == 1)[:, None]
        if self.form in ("documents by a separator", "documents"):
            return causal & (marks[:, None] == marks[:, :, None])
        if self.form == "test points":
            return (torch.arange(ids.shape[1]) < marks[:, None])[:, None] | torch.eye(ids.shape[1], dtype=torch.bool)
        return causal

    def go(self, ids: Tensor, marks: Tensor) -> Tensor:
        x, shown = self.embed(ids), self.shown(ids, marks)
        for block in self.blocks:
            x = block(x, shown[:, None])
        return x


class _EndUnseenById(_EndUnseen):
    def forward(self, ids: Tensor) -> Tensor:
        return self.go(ids, ids)


class _EndUnseenByFlags(_EndUnseen):
    def forward(self, ids: Tensor, flags: Tensor) -> Tensor:
        return self.go(ids, flags)


class _EndUnseenByMask(_EndUnseen):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.go(ids, mask)


class _EndUnseenByCount(_EndUnseen):
    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.go(ids, lengths)


class _EndUnseenByNumber(_EndUnseen):
    def forward(self, ids: Tensor, trained: Tensor) -> Tensor:
        return self.go(ids, trained)


_UNSEEN: dict[str, tuple[type[_EndUnseen], str]] = {
    "documents by a separator": (_EndUnseenById, ""),
    "documents": (_EndUnseenByFlags, "flags"),
    "types": (_EndUnseenByFlags, "flags"),
    "prefix": (_EndUnseenByMask, "mask"),
    "mask of the loss": (_EndUnseenByMask, "mask"),
    "pooled": (_EndUnseenByCount, "lengths"),
    "test points": (_EndUnseenByNumber, "trained"),
}


@pytest.mark.long
@pytest.mark.parametrize("form", list(_UNSEEN))
def test_tokens_that_no_other_sees_count_where_they_are_no_padding(form: str) -> None:
    kind, name = _UNSEEN[form]
    torch.manual_seed(4)
    network, ids = kind(form).eval(), torch.randint(MARK + 1, VOCABULARY, (6, 9))
    lengths = torch.tensor([9, 6, 7, 6, 5, 7])
    if form == "documents by a separator":
        ids[torch.arange(6), lengths - 1] = MARK
        ids[0, 7:] = MARK
    marks = lengths if name in ("lengths", "trained") else (torch.arange(9) < lengths[:, None]).long()
    given = {"ids": ids, **({name: marks} if name else {})}
    ckpt = td.load(network, inputs=given)
    prompts = [{key: value[number : number + 1] for key, value in given.items()} for number in range(6)]
    for packed in (False, True):
        counts = td.trace(ckpt, prompts, packed=packed).token_count.sel(sinks="kept", layer=0)
        assert counts.values.tolist() == [9] * 6
    assert td.attention_seen(ckpt, prompts).sizes["token"] == 9


@pytest.mark.long
def test_a_monitor_measures_no_padding() -> None:
    torch.manual_seed(4)
    network, ids = _WithPadding("filled", True).eval(), torch.randint(2, VOCABULARY, (3, 12))
    mask = (torch.arange(12) < torch.tensor([12, 9, 7])[:, None]).float()
    inputs = {"ids": ids, "mask": mask}
    looks = []
    for lengths in ((12, 12, 12), (12, 9, 7)):
        texts = {
            str(number): {"ids": ids[number, :length], "mask": mask[number, :length]}
            for number, length in enumerate(lengths)
        }
        looks.append(Probe(network, "network", texts, None, inputs).look(0).values)
    assert looks[0]
    for name, values in looks[0].items():
        np.testing.assert_allclose(values, looks[1][name], atol=1e-5, err_msg=name)
    texts = {str(number): {"ids": ids[number], "mask": mask[number].flip(0)} for number in range(3)}
    with pytest.raises(ArgumentValueError, match="mask: expected a mask that hides no token"):
        Probe(network, "network", texts, None, inputs).look(0)
