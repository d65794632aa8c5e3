"""Several inputs in one array are the prompts one by one; what can be gone through only once is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError


class _Series(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, series: Tensor) -> Tensor:
        return self.encoder(self.enter(series))


@pytest.fixture(scope="module")
def series() -> tuple[td.Checkpoint, Tensor]:
    torch.manual_seed(0)
    inputs = torch.randn(4, 7, 3)
    return td.load(_Series(), inputs=inputs[:2]), inputs


@pytest.mark.long
@pytest.mark.parametrize("form", [lambda inputs: inputs, lambda inputs: inputs.numpy(), lambda inputs: inputs.double()])
def test_an_array_of_inputs_is_the_inputs(series: tuple[td.Checkpoint, Tensor], form: Any) -> None:
    ckpt, inputs = series
    assert td.trace(ckpt, form(inputs[:2])).sizes["prompt"] == 2
    together, listed = td.trace(ckpt, form(inputs)), td.trace(ckpt, list(inputs))
    assert together.prompt.values.tolist() == listed.prompt.values.tolist()
    np.testing.assert_array_equal(together.consensus_within, listed.consensus_within)
    one = td.trace(ckpt, form(inputs[:1]))
    assert one.sizes["prompt"] == 1
    with pytest.raises(ArgumentValueError, match="expected one series, an array of 2 axes, got shape"):
        td.trace(ckpt, form(inputs[:, None]))


@pytest.mark.long
@pytest.mark.parametrize("form", [lambda ids: ids, lambda ids: ids.numpy(), lambda ids: ids.to(torch.int32)])
def test_rows_of_ids_are_prompts(form: Any) -> None:
    ckpt = td.load(network_of("gpt2")[0])
    ids = torch.randint(3, 60, (3, 8), generator=torch.Generator().manual_seed(1))
    together, listed = td.trace(ckpt, form(ids)), td.trace(ckpt, ids.tolist())
    np.testing.assert_array_equal(together.consensus_within, listed.consensus_within)
    first = td.trace(ckpt, ids[0].tolist()).centred_cos2
    for one in (form(ids[0]), form(ids[:1])):
        np.testing.assert_array_equal(td.trace(ckpt, one).centred_cos2, first)


def test_what_is_gone_through_once_is_refused_with_what_to_do(series: tuple[td.Checkpoint, Tensor]) -> None:
    ckpt, inputs = series
    for several in (DataLoader(TensorDataset(inputs), 2), (row for row in inputs), {"a text", "another"}):
        with pytest.raises(ArgumentTypeError, match=r"texts: expected .*; pass a list of inputs, such as list"):
            td.trace(ckpt, several)
