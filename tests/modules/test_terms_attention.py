"""Attention of queries and keys with columns beside them: PyTorch's own, of columns of one width."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from modules.attention_formula import SCALE, by_the_formula, drawn
from tokendynamics.modules import ConstrainedAttention, DecoupledRotary, NegativeDiagonal, Rotary
from tokendynamics.modules.positions import Pair, terms_attention


def test_the_fused_kernel_gets_all_of_one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[list[int]] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def watched(*parts: Tensor, **choices: object) -> Tensor:
        widths.append([part.shape[-1] for part in parts])
        return fused(*parts, **choices)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    pairs, value = drawn((1,), 5)
    mixed = terms_attention(pairs, value, causal=True, scale=SCALE, dropout=0.0)
    assert widths == [[72, 72, 72]]
    torch.testing.assert_close(mixed, by_the_formula(pairs, value, True), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("systems", "tokens", "dtype"),
    [(22, 64, torch.float32), (22, 64, torch.float64), (3, 31, torch.float32), (22, 64, torch.bfloat16)],
)
@pytest.mark.parametrize("columns", [(32,), (32, 32)])
@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_formula_in_every_precision(
    systems: int, tokens: int, columns: tuple[int, ...], dtype: torch.dtype, causal: bool
) -> None:
    pairs, value = drawn((systems,), tokens, columns)
    narrow = [Pair(query.to(dtype), key.to(dtype)) for query, key, _, _ in pairs]
    mixed = terms_attention(narrow, value.to(dtype), causal=causal, scale=SCALE, dropout=0.0)
    tolerance = {torch.bfloat16: 0.1, torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(mixed.double(), by_the_formula(pairs, value, causal), rtol=0, atol=tolerance)


def test_gradients_without_entries_and_with_the_negative_bit() -> None:
    """Tensors that PyTorch does not store as they are: what reads memory by address fails on them."""
    pairs, value = drawn((2,), 64, (32,))
    query, key = (part.detach() for part in pairs[0][:2])
    negative = torch.complex(query, -query).conj().imag
    assert negative.is_neg()
    mixed = terms_attention([Pair(negative, key)], value, causal=True, scale=SCALE, dropout=0.0)
    torch.testing.assert_close(mixed, by_the_formula([Pair(query, key)], value, True), rtol=0, atol=1e-12)
    absent = torch._efficientzerotensor(value.shape, dtype=value.dtype)
    (slope,) = torch.autograd.grad(mixed, value, absent)
    assert not slope.any()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_layer_gives_the_same_with_and_without_gradients(order: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    terms = [
        Rotary(32),
        DecoupledRotary(64, 2, 4, generator=generator),
        NegativeDiagonal(64, 2, "diagonal", start=-0.5),
    ]
    layer = ConstrainedAttention(64, 2, "divergence", terms=[terms[i] for i in order], generator=generator).double()
    x = torch.randn(3, 256, 64, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        plain = layer(x)
    learning = layer(x)
    torch.testing.assert_close(learning, plain, rtol=0, atol=1e-11)
    weights = (layer.scores(x) + torch.full((256, 256), -torch.inf, dtype=x.dtype).triu(1)).softmax(-1)
    direct = (weights @ layer.value(x).unflatten(-1, (2, 32)).transpose(1, 2)).transpose(1, 2).flatten(2)
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    towards = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    gradients = (torch.autograd.grad(entry, parameters, towards) for entry in (learning, direct))
    for separate, other in zip(*gradients, strict=True):
        torch.testing.assert_close(separate, other, rtol=1e-9, atol=1e-9)


class Watching(TorchFunctionMode):
    """Notes the columns of what PyTorch's attention gets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.seen.append([part.shape[-1] for part in args])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("learning", [True, False])
def test_whoever_watches_sees_columns_and_values_as_they_are(learning: bool) -> None:
    terms = [Rotary(32), NegativeDiagonal(64, 2, "diagonal", start=-0.5)]
    layer = ConstrainedAttention(64, 2, terms=terms, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(3, 256, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.set_grad_enabled(learning):
        plain = layer(x)
        with Watching() as watching:
            seen = layer(x)
    assert watching.seen == [[64, 64, 32]]
    torch.testing.assert_close(seen, plain, rtol=0, atol=1e-12)


def test_a_pair_that_stands_twice_counts_twice() -> None:
    ((query, key, *_), *_), value = drawn((1,), 300)
    twice = terms_attention([Pair(query, key), Pair(query, key)], value, causal=True, scale=SCALE, dropout=0.0)
    torch.testing.assert_close(twice, by_the_formula([Pair(2 * query, key)], value, True), rtol=0, atol=1e-12)


def test_functions_that_transform_functions_get_the_gradients() -> None:
    (pair, *_), value = drawn((2,), 300, (8,))

    def summed(value: Tensor, query: Tensor, key: Tensor) -> Tensor:
        single = Pair(query, key, pair.cosine, pair.sine)
        return terms_attention([single, single], value, causal=True, scale=SCALE, dropout=0.0).square().sum()

    parts = [item.detach() for item in (value, *pair[:2])]
    direct = torch.autograd.grad(summed(value, *pair[:2]), [value, *pair[:2]])
    turned_over = [parts[0], parts[1], parts[2].movedim(0, 1)]
    transformed = (
        torch.func.grad(summed, argnums=(0, 1, 2))(*parts),
        torch.func.vmap(torch.func.grad(summed, argnums=(0, 1, 2)), in_dims=(0, 0, 1))(*turned_over),
    )
    for entry in transformed:
        for separate, other in zip(entry, direct, strict=True):
            torch.testing.assert_close(separate, other, rtol=0, atol=1e-11)
    shared = torch.func.vmap(torch.func.grad(summed), in_dims=(0, None, None))(parts[0], parts[1][0], parts[2][0])
    torch.testing.assert_close(shared[0], direct[0][0], rtol=0, atol=1e-11)
    towards = torch.eye(2, dtype=torch.float64)
    _, back = torch.func.vjp(lambda value: _sums(pair, value), parts[0])
    rows = torch.func.vmap(back)(towards)[0]
    for system in range(2):
        (separate,) = torch.autograd.grad(_sums(pair, value)[system], value)
        torch.testing.assert_close(rows[system], separate, rtol=0, atol=1e-11)


def _sums(pair: Pair, value: Tensor) -> Tensor:
    return terms_attention([pair], value, causal=True, scale=SCALE, dropout=0.0).sin().sum((1, 2, 3))


def test_second_derivatives_are_those_of_the_formula() -> None:
    pairs, value = drawn((1,), 40)

    def slope(direct: bool) -> Tensor:
        choices = {} if direct else {"scale": SCALE, "dropout": 0.0}
        mixed = (by_the_formula if direct else terms_attention)(pairs, value, causal=True, **choices)
        return torch.autograd.grad(mixed.square().sum(), value, create_graph=True)[0]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        (separate,) = torch.autograd.grad(slope(direct=False).sum(), value)
    (other,) = torch.autograd.grad(slope(direct=True).sum(), value)
    torch.testing.assert_close(separate, other, rtol=0, atol=1e-11)
