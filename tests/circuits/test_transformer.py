"""The one-layer transformer against formulas written out token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from circuits.pair_cases import close
from tokendynamics.attention import AbsolutePositions, Attention, Periodic, RotaryPositions, Sinusoidal
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import LayerNorm, OneLayerTransformer
from tokendynamics.circuits.constructions import linear_case, solution_1, solution_2
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

N, M, SCRATCH, HIDDEN = 3, 5, 2, 7
WIDTH = N + M + SCRATCH


def random_model(weights: str, causal: bool, heads: int = 2, **options: object) -> OneLayerTransformer:
    """Every weight drawn, none of them structured."""
    draws = generator(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    attention = Attention(draw(heads, WIDTH, WIDTH), draw(heads, WIDTH, WIDTH), causal=causal, weights=weights)  # type: ignore[arg-type]
    task = PairTask(draw(N, N), positions=M)
    return OneLayerTransformer(attention, draw(HIDDEN, WIDTH), draw(HIDDEN), draw(HIDDEN), task, **options)  # type: ignore[arg-type]


def attended(model: OneLayerTransformer, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of one sequence by loops over heads, receivers and senders, with the receiver-first matrix."""
    received, sent, carried = model.embed(x), model.embed(keys), model.embed(values)
    result = torch.zeros_like(received)
    for qk, v in zip(model.qk, model.ov, strict=True):
        for i in range(len(x)):
            senders = range(i + 1 if model.attention.causal else len(x))
            logits = [float(received[i] @ qk @ sent[j]) for j in senders]
            if model.attention.weights == "softmax":
                total = sum(math.exp(logit) for logit in logits)
                logits = [math.exp(logit) / total for logit in logits]
            for j, weight in zip(senders, logits, strict=True):
                result[i] += weight * (v @ carried[j])
    return result


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("weights", ["linear", "softmax"])
def test_attention_is_the_sum_over_senders(weights: str, causal: bool) -> None:
    model = random_model(weights, causal)
    x, keys, values = model.task.sample(3, seed=0, length=4)
    assert close(model.attend(x), attended(model, x, x, x), 100.0)
    assert close(model.attend(x, keys=keys, values=values), attended(model, x, keys, values), 100.0)
    batch = model.task.sample(6, seed=1).reshape(2, 3, M)
    assert close(model.attend(batch)[1, 2], attended(model, batch[1, 2], batch[1, 2], batch[1, 2]), 100.0)


def test_the_feed_forward_part_is_the_formula() -> None:
    gain, shift = torch.linspace(0.5, 2, WIDTH).double(), torch.linspace(-1, 1, WIDTH).double()
    norm = LayerNorm(gain, shift, eps=0.1)
    model = random_model("linear", False, norm=norm, skip=0.7, offset=-2.5)
    x = torch.tensor([1, 3, 2, 2])
    stream = model.attend(x) + 0.7 * model.task.embed(x, scratch=SCRATCH)
    assert close(model.stream(x), stream)
    for i, z in enumerate(stream):
        mean, variance = z.mean(), z.var(unbiased=False)
        normal = gain * (z - mean) / math.sqrt(float(variance) + 0.1) + shift
        hidden = [max(0.0, float(row @ normal + b)) for row, b in zip(model.B, model.bias, strict=True)]
        wanted = sum(c * h for c, h in zip(model.C.tolist(), hidden, strict=True)) - 2.5
        assert float(model(x)[i]) == pytest.approx(wanted, rel=1e-12)
        assert close(model.hidden(stream)[i], hidden)


def test_the_identity_activation_keeps_negative_values() -> None:
    model = random_model("linear", False, activation="identity")
    x = torch.tensor([1, 3, 2])
    wanted = (model.stream(x) @ model.B.T + model.bias) @ model.C
    assert close(model(x), wanted, 1000.0)
    assert model.hidden(model.stream(x)).min() < 0


def test_layer_norm_may_leave_features_alone() -> None:
    norm = LayerNorm(torch.ones(2).double(), torch.zeros(2).double(), eps=0.0, features=slice(1, 3))
    stream = torch.tensor([[5.0, 3.0, 1.0, 7.0]]).double()
    assert norm(stream).tolist() == [[5.0, 1.0, -1.0, 7.0]]


def test_another_qk_replaces_attention_and_nothing_else() -> None:
    task = PairTask(random_functional(4, seed=0), positions=6)
    model = solution_2(task, K=64.0)
    other = model.qk.clone()
    other[0, :4, :4] = task.q_true
    changed = model.with_qk(other)
    assert torch.equal(changed.qk, other)
    assert torch.equal(changed.ov, model.ov)
    x = task.sample(20, seed=0)
    swapped = PairTask(task.q_true.mT.contiguous(), positions=6)
    assert close(changed(x), swapped.targets(x))


def test_blocks_and_sizes_are_those_of_the_tokens() -> None:
    model = solution_1(PairTask(random_functional(4, seed=0), positions=6), form="indicators")
    assert (model.width, model.scratch) == (14, 4)
    tokens = model.embed([2, 4])
    assert tokens[1, model.block("category")].tolist() == [0, 0, 0, 1]
    assert tokens[1, model.block("position")].tolist() == [0, 1, 0, 0, 0, 0]
    assert tokens[1, model.block("scratch")].tolist() == [0, 0, 0, 0]
    assert linear_case(3, 2).scratch == 0


def test_weights_that_do_not_fit_are_refused() -> None:
    task = PairTask(random_functional(2, seed=0), positions=3)
    attention = Attention(torch.zeros(5, 5).double(), torch.zeros(5, 5).double(), weights="linear")
    B, bias, C = torch.zeros(4, 5).double(), torch.zeros(4).double(), torch.zeros(4).double()
    OneLayerTransformer(attention, B, bias, C, task)
    with pytest.raises(ArgumentValueError, match=r"B: expected shape \(4, 5\) to fit the others, got shape \(4, 4\)"):
        OneLayerTransformer(attention, B[:, :4], bias, C, task)
    with pytest.raises(ArgumentValueError, match=r"bias: expected shape \(4,\)"):
        OneLayerTransformer(attention, B, bias[:3], C, task)
    with pytest.raises(ArgumentValueError, match="attention: expected matrices over at least 9 features"):
        OneLayerTransformer(attention, B, bias, C, PairTask(random_functional(2, seed=0), positions=7))


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="activation: expected 'relu' or 'identity', got 'gelu'"):
        random_model("linear", False, activation="gelu")


Z = torch.zeros(5, 5).double()
ASKED = {
    "linear": ({"weights": "linear"}, ""),
    "plain": ({"normalization": "plain"}, ""),
    "normalization": ({"normalization": "paper"}, r"got normalization='paper'"),
    "absolute": ({"positions": AbsolutePositions(torch.ones(3, 5).double())}, r"got positions \(AbsolutePositions\)"),
    "rotary": (
        {"positions": RotaryPositions(torch.ones(1, 5, 2).double(), torch.ones(1, 5, 2).double())},
        r"got positions \(RotaryPositions\)",
    ),
    "qk in time": ({"qk": lambda t: t * Z}, "got matrices that depend on time"),
    "ov in time": ({"ov": Periodic([Z, Z + 1.0], 2.0)}, "got matrices that depend on time"),
    "systems": ({"ov": Z.expand(4, 1, 5, 5)}, r"got matrices for several systems, axes \(4,\)"),
    "precision": ({"ov": Z.float()}, "expected ov in float64, got dtype torch.float32"),
    "two at once": (
        {"normalization": "paper", "qk": Sinusoidal(Z, [1.0] * 5, [1.0] * 5, [0.0] * 5)},
        "got normalization='paper' .* and matrices that depend on time",
    ),
}


@pytest.mark.parametrize(("options", "message"), ASKED.values(), ids=ASKED.keys())
def test_an_attention_is_run_as_it_is_or_refused_by_name(options: dict[str, Any], message: str) -> None:
    task = PairTask(random_functional(2, seed=0), positions=3)
    given = {"qk": Z + 0.5, "ov": Z + 1.0} | options
    attention = Attention(given.pop("qk"), given.pop("ov"), **given)
    B, bias, C = torch.eye(5).double(), torch.zeros(5).double(), torch.ones(5).double()
    if message:
        with pytest.raises(ArgumentValueError, match=f"attention: .*{message}"):
            OneLayerTransformer(attention, B, bias, C, task)
        return
    states = task.embed([1, 2, 1])
    mixed = attention.mix(states, 0.0)
    assert close(OneLayerTransformer(attention, B, bias, C, task).attend([1, 2, 1]), mixed)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_attention_is_refused() -> None:
    task = PairTask(random_functional(2, seed=0), positions=3)
    with pytest.raises(ArgumentTypeError, match="attention: expected an Attention, got "):
        OneLayerTransformer(Z, torch.eye(5).double(), Z[0], Z[0], task)  # type: ignore[arg-type]


def test_a_norm_over_features_with_gaps_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="features: expected a slice without steps"):
        LayerNorm(torch.ones(2).double(), torch.zeros(2).double(), features=slice(0, 4, 2))
