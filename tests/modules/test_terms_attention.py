"""Who makes the attention of queries and keys with columns beside them, and that it is that of the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from modules.attention_formula import SCALE, by_the_formula, drawn
from tokendynamics.modules import (
    ConstrainedAttention,
    DecoupledRotary,
    NegativeDiagonal,
    Rotary,
    _compiled_attention,
    _terms_attention,
)
from tokendynamics.modules._pairs import Pair
from tokendynamics.modules._terms_attention import terms_attention


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists a 1 for every attention that compiled loops make, of which there is one thread."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    calls: list[int] = []
    apply = _compiled_attention._Attention.apply
    monkeypatch.setattr(_compiled_attention._Attention, "apply", lambda *given: (calls.append(1), apply(*given))[1])
    return calls


@pytest.mark.parametrize(
    ("systems", "tokens", "dtype", "dropout", "expected"),
    [
        (22, 64, torch.float32, 0.0, [1]),
        (22, 64, torch.float64, 0.0, [1]),
        (86, 32, torch.float32, 0.0, [1]),
        (21, 64, torch.float32, 0.0, []),  # 258048 weights, fewer than 2^18
        (100, 31, torch.float32, 0.0, []),
        (22, 64, torch.bfloat16, 0.0, []),
        (22, 64, torch.float32, 1e-9, []),
    ],
)
@pytest.mark.parametrize("columns", [(32,), (32, 32)])
def test_loops_serve_where_they_are_faster_and_as_exact(
    systems: int,
    tokens: int,
    columns: tuple[int, ...],
    dtype: torch.dtype,
    dropout: float,
    expected: list[int],
    looped: list[int],
) -> None:
    pairs, value = drawn((systems,), tokens, columns)
    narrow = [Pair(query.to(dtype), key.to(dtype)) for query, key, _, _ in pairs]
    mixed = terms_attention(narrow, value.to(dtype), causal=True, scale=SCALE, dropout=dropout)
    assert looped == expected
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(mixed.double(), by_the_formula(pairs, value, True), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("systems", "tokens", "width", "available", "expected"),
    [
        (22, 64, 4, 1, 1),
        (22, 64, 4, 2, 1),  # half of PyTorch's threads are as fast
        (22, 64, 4, 3, 0),
        (170, 64, 32, 3, 0),  # 3 heads of 4096 weights with 64 products each: one short of twice 2^26
        (171, 64, 32, 3, 2),
        (171, 64, 32, 4, 2),
        (171, 64, 32, 5, 0),
        (171, 64, 32, 1, 1),
        (2, 4096, 32, 4, 4),
        (1, 4096, 32, 6, 3),  # no more than heads
        (1, 4096, 32, 7, 0),
    ],
)
def test_the_loops_have_threads_with_enough_to_do(
    systems: int, tokens: int, width: int, available: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: available)
    value = torch.empty(systems, 3, tokens, width)
    pairs = [Pair(value[..., : width // 2], value[..., : width // 2])] * 2
    assert _terms_attention.threads_of_loops(pairs, value) == expected


def test_the_loops_get_nothing_but_parts_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read memory by address: what is not as long as they believe would be read past its end."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    value = torch.empty(22, 3, 64, 4)
    alike = Pair(value[..., :2], value[..., :2])
    assert _terms_attention.threads_of_loops([alike, alike], value) == 1
    for key in (
        value[:1, ..., :2],
        value[:, :1, :, :2],
        value[..., :32, :2],
        value[..., :1],
        value[..., :2].double(),
        value[..., :2].to("meta"),
        value[..., :2].as_subclass(Subclass),
    ):
        for odd in (Pair(alike.query, key), Pair(key, alike.key)):
            assert _terms_attention.threads_of_loops([alike, odd], value) == 0
    assert _terms_attention.threads_of_loops([alike], value.as_subclass(Subclass)) == 0


class Subclass(Tensor):
    """Whose numbers may stand elsewhere."""


def test_the_loops_get_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    on_threads = _compiled_attention._on_threads

    def watched(work: Any, units: int, threads: int) -> None:
        given.append((units, threads))
        on_threads(work, units, threads)

    monkeypatch.setattr(_compiled_attention, "_on_threads", watched)
    monkeypatch.setattr(_terms_attention, "threads_of_loops", lambda *_: 2)
    pairs, value = drawn((5,), 40)
    terms_attention(pairs, value, causal=True, scale=SCALE, dropout=0.0).sum().backward()
    assert given == [(15, 2), (15, 2)]


def test_without_numba_pytorch_serves(looped: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_terms_attention, "missing", lambda extra: ("numba",) if extra == "fast" else ())
    _terms_attention._is_installed.cache_clear()
    pairs, value = drawn((1,), 300)
    mixed = terms_attention(pairs, value, causal=True, scale=SCALE, dropout=0.0)
    _terms_attention._is_installed.cache_clear()
    assert looped == []
    torch.testing.assert_close(mixed, by_the_formula(pairs, value, True), rtol=0, atol=1e-12)


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


def test_autocast_is_for_the_fused_kernel(looped: list[int]) -> None:
    pairs, value = drawn((1,), 300)
    with torch.autocast("cpu", torch.bfloat16):
        terms_attention(pairs, value, causal=True, scale=SCALE, dropout=0.0)
    assert looped == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_layer_gives_the_same_with_and_without_gradients(order: tuple[int, ...], looped: list[int]) -> None:
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
    assert looped == [1, 1]
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
def test_whoever_watches_sees_columns_and_values_as_they_are(learning: bool, looped: list[int]) -> None:
    terms = [Rotary(32), NegativeDiagonal(64, 2, "diagonal", start=-0.5)]
    layer = ConstrainedAttention(64, 2, terms=terms, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(3, 256, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.set_grad_enabled(learning):
        plain = layer(x)
        with Watching() as watching:
            seen = layer(x)
    assert (looped, watching.seen) == ([1], [[64, 64, 32]])
    torch.testing.assert_close(seen, plain, rtol=0, atol=1e-12)


def test_a_pair_that_stands_twice_counts_twice() -> None:
    ((query, key, *_), *_), value = drawn((1,), 300)
    twice = terms_attention([Pair(query, key), Pair(query, key)], value, causal=True, scale=SCALE, dropout=0.0)
    torch.testing.assert_close(twice, by_the_formula([Pair(2 * query, key)], value, True), rtol=0, atol=1e-12)


def test_functions_that_transform_functions_get_the_gradients() -> None:
    (pair, *_), value = drawn((2,), 300, (8,))

    def summed(value: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = Pair(query, key, pair.cosine, pair.sine)
        return terms_attention([own, own], value, causal=True, scale=SCALE, dropout=0.0).square().sum()

    parts = [each.detach() for each in (value, *pair[:2])]
    direct = torch.autograd.grad(summed(value, *pair[:2]), [value, *pair[:2]])
    turned_over = [parts[0], parts[1], parts[2].movedim(0, 1)]
    transformed = (
        torch.func.grad(summed, argnums=(0, 1, 2))(*parts),
        torch.func.vmap(torch.func.grad(summed, argnums=(0, 1, 2)), in_dims=(0, 0, 1))(*turned_over),
    )
    for found in transformed:
        for own, other in zip(found, direct, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-11)
    shared = torch.func.vmap(torch.func.grad(summed), in_dims=(0, None, None))(parts[0], parts[1][0], parts[2][0])
    torch.testing.assert_close(shared[0], direct[0][0], rtol=0, atol=1e-11)
    towards = torch.eye(2, dtype=torch.float64)
    _, back = torch.func.vjp(lambda value: _sums(pair, value), parts[0])
    rows = torch.func.vmap(back)(towards)[0]
    for system in range(2):
        (own,) = torch.autograd.grad(_sums(pair, value)[system], value)
        torch.testing.assert_close(rows[system], own, rtol=0, atol=1e-11)


def _sums(pair: Pair, value: Tensor) -> Tensor:
    return terms_attention([pair], value, causal=True, scale=SCALE, dropout=0.0).sin().sum((1, 2, 3))


def test_a_second_derivative_is_refused_and_told_how_to_get(looped: list[int]) -> None:
    pairs, value = drawn((1,), 300)

    def slope(direct: bool) -> Tensor:
        choices = {} if direct else {"scale": SCALE, "dropout": 0.0}
        mixed = (by_the_formula if direct else terms_attention)(pairs, value, causal=True, **choices)
        return torch.autograd.grad(mixed.square().sum(), value, create_graph=True)[0]

    with pytest.raises(RuntimeError, match=r"sdpa_kernel\(torch.nn.attention.SDPBackend.MATH\)"):
        slope(direct=False).sum().backward()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        (own,) = torch.autograd.grad(slope(direct=False).sum(), value)
    (other,) = torch.autograd.grad(slope(direct=True).sum(), value)
    torch.testing.assert_close(own, other, rtol=0, atol=1e-11)
    assert looped == [1]
