"""Prompts that share a forward pass: the same states as alone, and never where a network would mix them up."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tokendynamics as td
from pretrained.families import ALL, half_of_network, most_slow, network_of
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.packs import _PASS, _cheapest, filled_up, filler_of, packing_of, packs_of

PROMPTS = [[5, 9, 11], [7, 3, 8, 20, 21, 30, 31, 4], [6], [12, 13, 14, 15, 16], [9, 8, 7, 6, 5]]
CPU = torch.device("cpu")
CAUSAL = {
    "gpt2", "gpt_neox", "opt", "opt-post-norm", "phi", "phi3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma",
    "gemma2", "gemma3", "olmo2", "gpt_oss", "deepseek_v3", "clip-text", "cohere", "granite", "glm4", "smollm3",
    "gpt_bigcode", "bloom", "codegen", "ctrl", "falcon", "gpt_neo", "gptj", "mpt", "openai-gpt", "persimmon",
}  # fmt: skip
SHAPES_ALIKE = {
    "whisper", "vit", "deit", "dinov2", "clip-vision", "siglip-vision", "dinov3", "beit",
    "fnet",  # takes no mask
}  # fmt: skip


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("family", most_slow(ALL))
def test_states_in_company_are_those_alone(family: str) -> None:
    network = half_of_network(*network_of(family))
    checkpoint = td.load(network)
    if family in SHAPES_ALIKE:
        assert checkpoint.packing == "equal shapes"
        return
    assert checkpoint.packing == ("any lengths" if family in CAUSAL else "any lengths with a mask")
    prompts = [torch.tensor(ids) for ids in PROMPTS]
    packs = list(checkpoint.states_in_packs(prompts))
    assert len(packs) == 1
    (pack,) = packs
    assert sorted(pack.places) == list(range(len(prompts)))
    for number, place in enumerate(pack.places):
        alone, together = checkpoint.states(prompts[place]), pack.of(number)
        assert together.feed_forward.shape == alone.feed_forward.shape
        torch.testing.assert_close(together.feed_forward, alone.feed_forward, atol=3e-5, rtol=3e-5)
        torch.testing.assert_close(together.attention[1:], alone.attention[1:], atol=3e-5, rtol=3e-5)
        if alone.final_norm is not None:
            torch.testing.assert_close(together.final_norm, alone.final_norm, atol=3e-5, rtol=3e-5)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_trace_in_company_is_the_one_alone_in_the_order_asked_for(family: str, tmp_path: Path) -> None:
    network, half = network_of(family)
    with silenced():
        network.save_pretrained(tmp_path)
    checkpoint = td.load(tmp_path, half=half)
    together, alone = td.trace(checkpoint, PROMPTS, sinks=()), td.trace(checkpoint, PROMPTS, sinks=(), packed=False)
    assert together.attrs["passes"] == "prompts may share a forward pass, which changes their states by rounding"
    assert alone.attrs["passes"] == "each prompt has a forward pass of its own"
    assert together.prompt.values.tolist() == alone.prompt.values.tolist()
    for name, variable in alone.items():
        if variable.dtype.kind == "f":
            np.testing.assert_allclose(together[name], variable, atol=3e-5, rtol=3e-5, err_msg=str(name))
        else:
            assert (together[name] == variable).all(), name
    single = [td.trace(checkpoint, ids, sinks=()) for ids in PROMPTS]
    for number, direct in enumerate(single):
        np.testing.assert_allclose(alone.effective_rank[number], direct.effective_rank[0], atol=1e-12)


def test_images_of_one_shape_share_a_pass_and_others_do_not(tmp_path: Path) -> None:
    network, _ = network_of("vit")
    checkpoint = td.load(network)
    generator = torch.Generator().manual_seed(0)
    pictures = [{"pixel_values": torch.randn(1, 3, 12, 12, generator=generator)} for _ in range(3)]
    (pack,) = checkpoint.states_in_packs(pictures)
    for number in range(3):
        alone = checkpoint.states(pictures[number]).feed_forward
        torch.testing.assert_close(pack.of(number).feed_forward, alone, atol=1e-5, rtol=1e-5)


class Mean(nn.Module):
    """One block that adds the mean over all tokens it is given, also over those behind a prompt's end."""

    main_input_name = "input_ids"

    def __init__(self, weight: float, across: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.weight = nn.Parameter(torch.tensor(weight))
        self.across = across

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        del attention_mask
        x = self.table(input_ids)
        for block in self.blocks:
            x = block(x + self.weight * x.mean(dim=(0, 1) if self.across else 1, keepdim=True))
        return x


def inputs(count: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 40, (count, 7), generator=torch.Generator().manual_seed(count))}


def test_a_network_that_overlooks_the_mask_shares_only_equal_lengths() -> None:
    torch.manual_seed(0)
    assert packing_of(Mean(0.5), inputs, causal=False) == "equal shapes"
    assert packing_of(Mean(0.5, across=True), inputs, causal=False) == "none"
    # That nothing is seen to leak says nothing of a mask that is not needed: only a causal mask does.
    assert packing_of(Mean(0.0), inputs, causal=False) == "any lengths with a mask"
    assert packing_of(Mean(0.0), inputs, causal=True) == "any lengths"


def test_a_live_network_is_tried_again_when_it_has_changed() -> None:
    torch.manual_seed(0)
    network = Mean(0.0)
    checkpoint = td.load(network, inputs=inputs)
    assert checkpoint.packing == "any lengths with a mask"
    with torch.no_grad():
        network.weight.fill_(0.5)
    assert checkpoint.packing == "equal shapes"
    network.across = True
    assert checkpoint.packing == "none"


@pytest.mark.long
def test_within_one_call_it_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Mean(0.0)
    checkpoint = td.load(network, inputs=inputs)
    with checkpoint.packing_kept():
        for weight in (0.0, 0.5):
            network.weight.data.fill_(weight)
            assert checkpoint.packing == "any lengths with a mask"
    assert checkpoint.packing == "equal shapes"
    tried: list[object] = []

    def tried_on(network: nn.Module, *given: Any, **named: Any) -> Any:
        tried.append(network)
        return packing_of(network, *given, **named)

    monkeypatch.setattr("tokendynamics.pretrained._checkpoint.packing_of", tried_on)
    models = [td.load(network_of("llama")[0]) for _ in range(2)]
    td.diagnose(models[0], PROMPTS, baseline=None)
    assert len(tried) == 1
    td.compare(*models, texts=PROMPTS)
    assert tried[1:] == [model.model for model in models]


@pytest.mark.long
def test_half_precision_runs_each_prompt_alone(tmp_path: Path) -> None:
    network, _ = network_of("gpt2")
    with silenced():
        network.save_pretrained(tmp_path)
    checkpoint = td.load(tmp_path, dtype="bfloat16")
    assert checkpoint.packing == "none"
    packs = list(checkpoint.states_in_packs([torch.tensor(ids) for ids in PROMPTS]))
    assert [pack.places for pack in packs] == [(0,), (1,), (2,), (3,), (4,)]
    assert td.trace(checkpoint, PROMPTS).attrs["passes"] == "each prompt has a forward pass of its own"


def test_the_filler_is_the_networks_own() -> None:
    network = half_of_network(*network_of("roberta"))
    network.config.pad_token_id = 0
    checkpoint = td.load(network)
    (pack,) = checkpoint.states_in_packs([torch.tensor(ids) for ids in PROMPTS])
    assert torch.isfinite(pack.feed_forward).all()
    result = filled_up([torch.tensor([4, 5]), torch.tensor([6])], filler=9)
    assert result["input_ids"].tolist() == [[4, 5], [6, 9]]
    assert result["attention_mask"].tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize(("token", "filler"), [(5, 5), (0, 0), (8, 8), (9, 0), (-1, 0), (None, 0)])
def test_a_filler_outside_the_vocabulary_is_none(token: int | None, filler: int) -> None:
    network = nn.Module()
    network.config = SimpleNamespace(pad_token_id=token, vocab_size=9)
    assert filler_of(network) == filler


def test_behind_the_end_of_a_shorter_prompt_stands_its_first_token_again() -> None:
    checkpoint = td.load(half_of_network(*network_of("llama")))
    (pack,) = checkpoint.states_in_packs([torch.tensor(ids) for ids in PROMPTS[:2]])
    short = pack.places.index(0)
    assert pack.lengths[short] == 3
    assert torch.equal(pack.feed_forward[:, short, 3:], pack.feed_forward[:, short, :1].expand(-1, 5, -1))


def cost(cuts: list[tuple[int, int]], lengths: list[int]) -> int:
    return sum(_PASS + (end - start) * lengths[end - 1] for start, end in cuts)


@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=8).map(sorted), most=st.integers(20, 300))
def test_passes_are_the_cheapest_of_all_cuts(lengths: list[int], most: int) -> None:
    cuts = _cheapest(lengths, most)
    assert [start for start, _ in cuts] == [0, *(end for _, end in cuts[:-1])]
    assert cuts[-1][1] == len(lengths)
    assert all((end - start) * lengths[end - 1] <= most or end - start == 1 for start, end in cuts)
    every = []
    for chosen in range(2 ** (len(lengths) - 1)):
        ends = [place + 1 for place in range(len(lengths) - 1) if chosen >> place & 1]
        trial = list(pairwise([0, *ends, len(lengths)]))
        if all((end - start) * lengths[end - 1] <= most or end - start == 1 for start, end in trial):
            every.append(cost(trial, lengths))
    assert cost(cuts, lengths) == min(every)


def test_inputs_are_sorted_into_passes() -> None:
    ids = [{"input_ids": torch.arange(length)[None]} for length in (200, 3, 90, 3, 4)]
    assert [pack.places for pack in packs_of(ids, "none", 0, CPU)] == [(0,), (1,), (2,), (3,), (4,)]
    assert [pack.places for pack in packs_of(ids, "equal shapes", 0, CPU)] == [(0,), (1, 3), (2,), (4,)]
    packs = packs_of(ids, "any lengths with a mask", 0, CPU)
    assert [pack.places for pack in packs] == [(1, 3, 4), (2,), (0,)]
    assert packs[0].lengths == (3, 3, 4)
    assert packs[0].arguments["attention_mask"].sum(dim=1).tolist() == [3, 3, 4]
    assert "attention_mask" not in packs[1].arguments
    assert "attention_mask" not in packs_of(ids, "any lengths", 0, CPU)[0].arguments


@pytest.mark.parametrize("packing", ["equal shapes", "any lengths"])
def test_a_pass_is_longer_where_every_unit_is_to_be_busy(packing: Any) -> None:
    def sizes(count: int, length: int, device: torch.device) -> list[int]:
        packs = packs_of([{"input_ids": torch.arange(length)[None]}] * count, packing, 0, device)
        assert sorted(place for pack in packs for place in pack.places) == list(range(count))
        return sorted(len(pack.places) for pack in packs)

    elsewhere = torch.device("cuda")
    assert sizes(16, 256, elsewhere) == [16]  # 4096 tokens
    assert sizes(17, 241, elsewhere) == [1, 16]  # 4097 tokens
    assert sizes(16, 256, CPU) == [1] * 16
    assert sizes(2, 128, CPU) == [2]
    assert sizes(2, 129, CPU) == [1, 1]


def test_arguments_that_have_no_axis_of_inputs_run_alone() -> None:
    several: list[dict[str, Any]] = [{"pixel_values": torch.zeros(1, 3), "scale": 2.0} for _ in range(2)]
    assert [pack.places for pack in packs_of(several, "equal shapes", 0, CPU)] == [(0,), (1,)]
    many = [{"pixel_values": torch.zeros(1, 3)} for _ in range(6)]
    assert [len(pack.places) for pack in packs_of(many, "equal shapes", 0, CPU)] == [4, 2]
    mixed = [many[0], {"pixel_values": torch.zeros(1, 4)}, many[1]]
    assert [pack.places for pack in packs_of(mixed, "equal shapes", 0, CPU)] == [(0, 2), (1,)]
