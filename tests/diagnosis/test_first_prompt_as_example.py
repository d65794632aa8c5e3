"""A user's own network needs no example input where the first prompt can serve as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.test_own_code import DIM, Block, SmallGPT, network_of
from tokendynamics.numerics import ArgumentValueError, CheckpointError

IDS = [[5, 9, 33, 21, 7], [12, 3, 38, 2, 8], [1, 30, 4, 11, 9]]


class OfSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(3, DIM)
        self.h = nn.ModuleList([Block(4, "plain") for _ in range(2)])

    def forward(self, series: Tensor) -> Tensor:
        x = self.into(series)
        for block in self.h:
            x = block(x)
        return x


def of_series() -> tuple[OfSeries, list[Tensor]]:
    torch.manual_seed(2)
    return OfSeries().double().eval(), [torch.randn(length, 3, dtype=torch.float64) for length in (7, 5, 6)]


def check_same(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one["consensus_first"], other["consensus_first"], rtol=1e-12, equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [IDS, torch.tensor(IDS), [torch.tensor([ids]) for ids in IDS], {"a": IDS[0], "b": IDS[1], "c": IDS[2]},
     [{"idx": torch.tensor(ids)} for ids in IDS]],
    ids=["lists", "rows", "with an axis", "by name", "arguments"],
)  # fmt: skip
def test_the_first_prompt_of_token_ids_is_the_example(given: Any) -> None:
    network = network_of()
    ckpt = td.load(network, inputs=torch.tensor(IDS[:1]))
    check_same(td.trace(network, given), td.trace(ckpt, IDS))
    by_itself = td.attention_seen(network, given, patterns=True)
    np.testing.assert_array_equal(by_itself.pattern, td.attention_seen(ckpt, IDS, patterns=True).pattern)


@pytest.mark.long
def test_the_first_series_is_the_example() -> None:
    network, series = of_series()
    ckpt = td.load(network, inputs=series[0][None])
    check_same(td.trace(network, series), td.trace(ckpt, series))
    check_same(td.trace(network, [{"series": one[None]} for one in series]), td.trace(ckpt, series))


def test_what_takes_one_prompt_takes_it_likewise() -> None:
    network = network_of()
    ckpt = td.load(network, inputs=torch.tensor(IDS[:1]))
    for one, other in (
        (td.logit_lens(network, IDS[0]), td.logit_lens(ckpt, IDS[0])),
        (td.decode(network, IDS[0], passes=(1,)), td.decode(ckpt, IDS[0], passes=(1,))),
    ):
        assert one.token_id.equals(other.token_id)
    statements = ["asymptotic-5.1"]
    near = [td.nearest_statements(model, IDS[0], 2, statements=statements) for model in (network, ckpt)]
    assert [one.relaxations for one in near[0]] == [one.relaxations for one in near[1]]


def test_a_comparison_takes_it_likewise() -> None:
    network = network_of()
    ckpt = td.load(network, inputs=torch.tensor(IDS[:1]))
    compared = [td.compare(model, network_of(2), texts=IDS, weights=False, heads=False) for model in (network, ckpt)]
    check_same(compared[0].traces[0], compared[1].traces[0])


@pytest.mark.long
def test_a_diagnosis_of_a_network_alone_is_that_of_its_checkpoint() -> None:
    network = network_of()
    given = {"levers": False, "heads": False, "remedies": False, "joint": False, "directions": False}
    one = td.diagnose(network, IDS, **given)
    other = td.diagnose(td.load(network, inputs=torch.tensor(IDS[:1])), IDS, **given)
    check_same(one.trace, other.trace)
    assert one.verdict.state == other.verdict.state


@pytest.mark.parametrize(
    "given",
    [
        "a text",
        ["a text"],
        torch.randn(4, 7, 3),
        torch.randn(7, 3),
        [torch.randn(1, 3)],
        [{"series": torch.randn(1, 3)}],
    ],
    ids=["text", "texts", "rows or one", "one or rows", "one row", "one row by name"],
)
def test_what_may_be_read_in_two_ways_is_no_example(given: Any) -> None:
    with pytest.raises(CheckpointError, match="pass inputs=, an example of the arguments"):
        td.trace(of_series()[0], given)


def test_a_first_prompt_with_ids_that_the_network_lacks_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="idx: expected ids from 0 to 39"):
        td.trace(SmallGPT().eval(), [[5, 9, 4000]])
