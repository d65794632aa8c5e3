"""The statement of `lipschitz`: the Jacobian of attention in a ball."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td

NAME = ["lipschitz-ball"]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_no_jacobian_exceeds_the_bound(engine: Literal["batched", "compiled", "stiff"], rtol: float) -> None:
    seed, systems = round(-np.log10(rtol)), 12
    for heads, causal in ((1, False), (2, True)):
        attention = td.Attention(
            drawn(seed, systems, heads, 3, 3), 0.3 * drawn(seed + 1, systems, heads, 3, 3), causal=causal
        )
        of_many, start = td.Flow(attention, td.Free()), drawn(seed + 2, systems, 4, 3)
        run = td.simulate(of_many, start, [0.0, 0.2, 0.4], engine=engine, rtol=rtol, atol=rtol)
        (checked,) = td.check(of_many, start, statements=NAME)
        assert checked.applies, checked.reasons
        assert set(td.certify(run, NAME)[0].outcomes.tolist()) == {"holds"}


def test_the_norm_is_that_of_differences_and_reaches_the_root_of_the_tokens() -> None:
    # All tokens but one are 0 and attend alike; a large token gets all attention of those that see it.
    tokens, beta = 9, 40.0
    start = torch.zeros(tokens, 2, dtype=torch.float64)
    start[:, 0] = 1e-3
    start[0, 0] = 1.0
    flow = td.Flow(td.Attention(beta / 1e-3 * torch.eye(2).double(), torch.eye(2).double()), td.Free())
    step = torch.zeros_like(start)
    step[0, 1] = 1e-7
    change = (torch.as_tensor(flow.velocity(start + step)) - torch.as_tensor(flow.velocity(start - step))) / 2e-7
    # Along the second direction the output of every token follows the one that all attend to.
    assert float(change.norm()) >= 0.99 * tokens**0.5
    assert td.certify(td.simulate(flow, start, [0.0, 1e-6]), NAME)[0].outcome == "holds"


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        (td.Flow(td.Attention(np.eye(2), np.eye(2)), td.Sphere()), "free space"),
        (td.Flow(td.Attention(np.eye(2), np.eye(2), weights="linear"), td.Free()), "softmax weights"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(flow: td.Flow, reason: str) -> None:
    (checked,) = td.check(flow, [[1.0, 0.0], [0.6, 0.8]], statements=NAME)
    assert [text.split(":")[0] for text in checked.reasons] == [reason]


def test_linear_attention_exceeds_the_bound() -> None:
    linear = td.Flow(td.Attention(np.eye(2), np.eye(2), weights="linear"), td.Free())
    start: Any = [[1.0, 0.0]] * 12
    assert td.certify(td.simulate(linear, start, [0.0, 1e-3]), NAME)[0].outcome == "fails"
