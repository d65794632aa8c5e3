"""Products of tiles give the attention, and the gradients, of its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tokendynamics.modules import (
    ConstrainedAttention,
    DecoupledRotary,
    NegativeDiagonal,
    Rotary,
    _terms_attention,
    _tiled_attention,
)
from tokendynamics.modules._pairs import Pair, angles
from tokendynamics.modules._terms_attention import terms_attention

SCALE = 0.3
BASE = 50.0
"""Of the frequencies by which pairs are turned."""


def drawn(leading: tuple[int, ...], tokens: int, columns: tuple[int, ...] = (32, 8, 32)) -> tuple[list[Pair], Tensor]:
    """Queries and keys with columns beside them, of which the narrow are turned, and values, as a network has them."""
    generator = torch.Generator().manual_seed(0)

    def part(width: int) -> Tensor:
        shape = (*leading, tokens, 3, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64).transpose(-2, -3).requires_grad_()

    def pair(width: int) -> Pair:
        query, key = part(width), part(width)
        return Pair(query, key, *angles(query, BASE)) if width < 32 else Pair(query, key)

    return [pair(width) for width in columns], part(32)


def turned(columns: Tensor) -> Tensor:
    """As complex numbers, times those of their angles."""
    half = columns.shape[-1] // 2
    position = torch.arange(columns.shape[-2], dtype=torch.float64).unsqueeze(-1)
    angle = position * BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    both = torch.complex(columns[..., :half], columns[..., half:]) * torch.exp(1j * angle)
    return torch.cat([both.real, both.imag], -1)


def by_the_formula(pairs: list[Pair], value: Tensor, causal: bool) -> Tensor:
    plain = [(query, key) if cosine is None else (turned(query), turned(key)) for query, key, cosine, _ in pairs]
    logits = sum(torch.einsum("...ic,...jc->...ij", query, key) for query, key in plain) * SCALE
    shares = torch.exp(logits - logits.amax(-1, keepdim=True)) * (torch.ones_like(logits).tril() if causal else 1)
    return torch.einsum("...ij,...jc->...ic", shares / shares.sum(-1, keepdim=True), value)


def flat(pairs: list[Pair], value: Tensor) -> list[Tensor]:
    return [value, *(part for pair in pairs for part in pair[:2])]


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists a 1 for every attention that is made of tiles."""
    calls: list[int] = []
    apply = _tiled_attention._Tiled.apply
    monkeypatch.setattr(_tiled_attention._Tiled, "apply", lambda *given: (calls.append(1), apply(*given))[1])
    return calls


@pytest.mark.parametrize("together", [100, 7, 3, 2, 1])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("leading", "tokens"), [((3,), 100), ((), 300), ((2, 1), 300), ((3,), 64)])
def test_tiles_are_the_formula_with_its_gradients(
    leading: tuple[int, ...],
    tokens: int,
    causal: bool,
    together: int,
    tiled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With three heads in a system these are all, two systems and then one, one system, two heads and then one, one."""
    each = (32 if tokens < 256 else 64) * tokens
    monkeypatch.setattr(_tiled_attention, "_ENTRIES", together * each)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    pairs, value = drawn(leading, tokens)
    monkeypatch.setattr(_terms_attention, "suits_tiles", lambda *_: True)
    mixed = terms_attention(pairs, value, causal=causal, scale=SCALE, dropout=0.0)
    direct = by_the_formula(pairs, value, causal)
    torch.testing.assert_close(mixed, direct, rtol=0, atol=1e-12)
    parts, towards = flat(pairs, value), torch.randn(value.shape, dtype=value.dtype)
    gradients = (torch.autograd.grad(each, parts, towards) for each in (mixed, direct))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-11)
    assert tiled == [1]


@pytest.mark.parametrize(("threads", "made"), [(1, [(0, 27), (27, 54), (54, 60)]), (2, [(0, 54), (54, 60)])])
def test_a_thread_makes_as_many_weights_as_stay_in_its_cache(
    threads: int, made: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    groups = _tiled_attention._groups(torch.empty(60, 3, 100, 1))  # 2^18 hold 81 heads of 32 × 100 weights
    assert [(systems.start, min(systems.stop, 60)) for systems, _ in groups] == made


@pytest.mark.parametrize(
    ("tokens", "causal", "expected"),
    [
        # The values have 32 entries a token: 3200 of 100 tokens, where the first rows have 1024, 2048 and 3072 weights.
        (100, True, [(96, 100, 100, False), (64, 96, 96, False), (32, 64, 64, True), (0, 32, 32, True)]),
        (128, False, [(96, 128, 128, False), (64, 96, 128, False), (32, 64, 128, False), (0, 32, 128, True)]),
        (96, True, [(64, 96, 96, False), (32, 64, 64, True), (0, 32, 32, True)]),  # 3072, as many as are there
        (256, True, [(192, 256, 256, False), (128, 192, 192, False), (64, 128, 128, False), (0, 64, 64, True)]),
    ],
)
def test_no_more_weights_are_kept_than_values(
    tokens: int, causal: bool, expected: list[tuple[int, int, int, bool]]
) -> None:
    tiles = _tiled_attention._tiles(torch.empty(3, tokens, 32), causal)
    assert [(rows.start, rows.stop, seen.stop, stays) for rows, seen, _, stays in tiles] == expected


def test_of_very_long_sequences_one_head_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    groups = _tiled_attention._groups(torch.empty(1, 3, 8192, 1))  # 64 × 8192 are more than 2^18
    assert [(heads.start, heads.stop) for _, heads in groups] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("systems", "tokens", "columns", "dtype", "dropout", "expected"),
    [
        (22, 64, (32, 32), torch.float32, 0.0, [1]),
        (21, 64, (32, 32), torch.float32, 0.0, []),  # 258048 weights, fewer than 2^18
        (30, 63, (32, 32), torch.float32, 0.0, []),
        (22, 64, (32,), torch.float32, 0.0, []),
        (22, 64, (32, 32), torch.bfloat16, 0.0, []),
        (22, 64, (32, 32), torch.float32, 1e-9, []),
    ],
)
def test_tiles_serve_where_they_are_faster_and_as_exact(
    systems: int,
    tokens: int,
    columns: tuple[int, ...],
    dtype: torch.dtype,
    dropout: float,
    expected: list[int],
    tiled: list[int],
) -> None:
    pairs, value = drawn((systems,), tokens, columns)
    narrow = [Pair(query.to(dtype), key.to(dtype)) for query, key, _, _ in pairs]
    mixed = terms_attention(narrow, value.to(dtype), causal=True, scale=SCALE, dropout=dropout)
    assert tiled == expected
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(mixed.double(), by_the_formula(pairs, value, True), rtol=0, atol=tolerance)


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


def test_autocast_is_for_the_fused_kernel(tiled: list[int]) -> None:
    pairs, value = drawn((1,), 300)
    with torch.autocast("cpu", torch.bfloat16):
        terms_attention(pairs, value, causal=True, scale=SCALE, dropout=0.0)
    assert tiled == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_layer_gives_the_same_with_and_without_gradients(order: tuple[int, ...], tiled: list[int]) -> None:
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
    assert tiled == [1, 1]
    torch.testing.assert_close(learning, plain, rtol=0, atol=1e-11)
    weights = (layer.scores(x) + torch.full((256, 256), -torch.inf, dtype=x.dtype).triu(1)).softmax(-1)
    direct = (weights @ layer.value(x).unflatten(-1, (2, 32)).transpose(1, 2)).transpose(1, 2).flatten(2)
    parameters = [each for each in layer.parameters() if each.requires_grad]
    towards = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    gradients = (torch.autograd.grad(each, parameters, towards) for each in (learning, direct))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


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
def test_whoever_watches_sees_columns_and_values_as_they_are(learning: bool, tiled: list[int]) -> None:
    terms = [Rotary(32), NegativeDiagonal(64, 2, "diagonal", start=-0.5)]
    layer = ConstrainedAttention(64, 2, terms=terms, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(3, 256, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.set_grad_enabled(learning):
        plain = layer(x)
        with Watching() as watching:
            seen = layer(x)
    assert (tiled, watching.seen) == ([1], [[64, 64, 32]])
    torch.testing.assert_close(seen, plain, rtol=0, atol=1e-12)


def test_a_pair_that_stands_twice_counts_twice() -> None:
    ((query, key, *_), *_), value = drawn((1,), 300)
    twice = terms_attention([Pair(query, key), Pair(query, key)], value, causal=True, scale=SCALE, dropout=0.0)
    torch.testing.assert_close(twice, by_the_formula([Pair(2 * query, key)], value, True), rtol=0, atol=1e-12)


def test_functions_that_transform_functions_get_the_gradient() -> None:
    (pair, *_), value = drawn((1,), 300)

    def summed(given: Tensor) -> Tensor:
        return terms_attention([pair, pair], given, causal=True, scale=SCALE, dropout=0.0).square().sum()

    summed(value).backward()
    torch.testing.assert_close(torch.func.grad(summed)(value.detach()), value.grad, rtol=0, atol=1e-11)


def test_a_second_derivative_is_refused_and_not_left_out() -> None:
    pairs, value = drawn((1,), 300)
    mixed = terms_attention(pairs, value, causal=True, scale=SCALE, dropout=0.0)
    (slope,) = torch.autograd.grad(mixed.square().sum(), value, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
