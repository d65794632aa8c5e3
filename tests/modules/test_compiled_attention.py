"""The compiled loops give the attention, and the gradients, of its formula."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from functools import partial

import numpy as np
import pytest
import torch
from numba import njit
from numba.core import caching
from torch import Tensor

from modules.attention_formula import SCALE, by_the_formula, drawn, flat
from tokendynamics.modules import _compiled_attention
from tokendynamics.modules._compiled import _loops
from tokendynamics.modules._compiled._lanes import exp, load, start, store
from tokendynamics.modules._compiled_attention import compiled_attention
from tokendynamics.modules._pairs import Pair
from tokendynamics.modules._terms_attention import joined_attention


def check(pairs: list[Pair], value: Tensor, causal: bool, wanted: float, wanted_of_gradients: float) -> None:
    """Compare the loops with the formula, and with its gradients."""
    mixed, direct = compiled_attention(pairs, value, causal=causal, scale=SCALE), by_the_formula(pairs, value, causal)
    torch.testing.assert_close(mixed.double(), direct.double(), rtol=0, atol=wanted)
    parts, towards = flat(pairs, value), torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    gradients = (torch.autograd.grad(each, parts, towards.to(each.dtype)) for each in (mixed, direct))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=wanted_of_gradients)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("leading", "tokens"),
    [((3,), 100), ((), 300), ((2, 1), 33), ((3,), 64), ((2,), 1), ((1,), 5), ((1,), 32), ((0,), 9)],
)
def test_the_loops_are_the_formula_with_its_gradients(leading: tuple[int, ...], tokens: int, causal: bool) -> None:
    """Of lengths that are, and are not, whole blocks of rows and whole lanes."""
    check(*drawn(leading, tokens), causal, 1e-12, 1e-11)


@pytest.mark.parametrize("columns", [(32,), (2,), (8, 8, 8, 8), (33, 6), (64, 40), (1,), (18, 20)])
@pytest.mark.parametrize("width", [32, 1, 20, 50])
def test_of_any_number_of_columns(columns: tuple[int, ...], width: int) -> None:
    """Pairs with an even number below 32 are turned."""
    check(*drawn((2,), 37, columns, width), True, 1e-12, 1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_single_precision_is_as_exact_as_the_fused_kernel(causal: bool) -> None:
    pairs, value = drawn((4,), 200)
    parts = [part.detach().float().requires_grad_() for part in flat(pairs, value)]
    single = [
        Pair(query, key, *(None if turn is None else turn.float() for turn in pair[2:]))
        for query, key, pair in zip(parts[1::2], parts[2::2], pairs, strict=True)
    ]
    towards = torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found: list[list[Tensor]] = []
    for make in (compiled_attention, partial(joined_attention, dropout=0.0)):
        mixed = make(single, parts[0], causal=causal, scale=SCALE)
        found.append([mixed.detach(), *torch.autograd.grad(mixed, parts, towards.float())])
    direct = by_the_formula(pairs, value, causal)
    exact = [direct.detach(), *torch.autograd.grad(direct, flat(pairs, value), towards)]
    for ours, fused, each in zip(*found, exact, strict=True):
        far, as_far = (float((one.double() - each).abs().max()) for one in (ours, fused))
        assert far < 3 * as_far
        assert far < 1e-4


def test_logits_of_any_size_do_not_overflow() -> None:
    ((query, key, *_), *_), value = drawn((2,), 70)
    check([Pair(query * 100, key)], value, True, 1e-10, 1e-8)
    same = torch.full_like(value, 2e154)  # each logit is near the largest number
    far = compiled_attention([Pair(same, same)], value, causal=True, scale=0.01)
    torch.testing.assert_close(far, by_the_formula([Pair(query * 0, key)], value, True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_reaches_those_who_see_it_and_nobody_else(number: float, dtype: torch.dtype) -> None:
    ((query, key, *_), *_), value = drawn((2,), 50)
    bad = key.detach().to(dtype).clone()
    bad[1, 2, 40, 0] = number
    given = [Pair(query.to(dtype), bad)], value.to(dtype)
    ours, theirs = (
        make(*given, causal=True, scale=SCALE) for make in (compiled_attention, partial(joined_attention, dropout=0.0))
    )
    finite = torch.isfinite(ours)
    assert finite[0].all()
    assert finite[1, :2].all()
    assert finite[1, 2, :40].all()
    seen = query[1, 2, 40:, 0] * number
    assert torch.equal(finite[1, 2, 40:].all(-1), seen == -math.inf)  # of weight nought
    torch.testing.assert_close(ours[finite], theirs[finite], rtol=0, atol=1e-5)


@njit
def _exponentials(numbers, lanes, found):
    for first in range(0, len(numbers), lanes):
        store(start(found, first), exp(load(start(numbers, first))))


@pytest.mark.parametrize(("dtype", "lanes", "lowest"), [(np.float32, 16, -87.0), (np.float64, 8, -708.0)])
def test_the_exponential_is_right_to_two_units_in_the_last_place(dtype: type, lanes: int, lowest: float) -> None:
    numbers = np.concatenate([np.linspace(lowest, 0, 16 * 1000), -np.geomspace(1e-30, -lowest, 16 * 1000)]).astype(
        dtype
    )
    found = np.empty_like(numbers)
    _exponentials(numbers, lanes, found)
    exact = np.array([Decimal(float(x)).exp() for x in numbers])
    units = np.array([Decimal(float(y)) for y in found]) - exact
    size = np.array([Decimal(float(np.spacing(dtype(float(y))))) for y in exact])
    assert max(abs(units / size)) < 2
    ends = np.array([0, -0.0, np.nan, -np.inf, 2 * lowest, np.nextafter(dtype(lowest), dtype(-1e9))] + [0] * 10, dtype)
    _exponentials(ends, lanes, found[:16])
    np.testing.assert_array_equal(found[:6], [1, 1, np.nan, 0, 0, 0])


def test_where_nothing_can_be_kept_on_disk_it_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    attend, gradients = _loops._loops(1)
    for one in (attend, gradients):
        assert isinstance(one._cache, caching.NullCache)
    monkeypatch.setattr(_compiled_attention, "attend", attend)
    monkeypatch.setattr(_compiled_attention, "gradients", gradients)
    check(*drawn((1,), 20), True, 1e-12, 1e-11)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same(threads: int) -> None:
    """To the last bit: each head is made by one of them, in one order."""
    pairs, value = drawn((2,), 70)
    found = []
    for many in (1, threads):
        mixed = compiled_attention(pairs, value, causal=True, scale=SCALE, threads=many)
        found.append([mixed, *torch.autograd.grad(mixed.sum(), flat(pairs, value))])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("units", "threads", "expected"),
    [(64, 1, [(0, 64)]), (64, 2, [(0, 32), (32, 64)]), (64, 3, [(0, 21), (21, 42), (42, 64)]), (0, 1, [(0, 0)])],
)
def test_each_thread_does_its_part(units: int, threads: int, expected: list[tuple[int, int]]) -> None:
    done: list[tuple[int, int]] = []
    on: set[int] = set()

    def work(part: tuple[int, int]) -> None:
        done.append(part)
        on.add(threading.get_ident())
        together.wait()

    together = threading.Barrier(threads, timeout=60)  # which one thread alone would not pass
    _compiled_attention._on_threads(work, units, threads)
    assert (sorted(done), len(on)) == (expected, threads)


def test_what_fails_on_a_thread_is_told() -> None:
    def work(units: tuple[int, int]) -> None:
        if units[0]:
            raise ValueError("on the other")

    with pytest.raises(ValueError, match="on the other"):
        _compiled_attention._on_threads(work, 64, 2)


def test_parts_may_stand_anywhere_in_memory() -> None:
    pairs, value = drawn((2,), 40, (32, 32))
    far = torch.randn(2, 3, 40, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pairs = [
        Pair(far[..., ::2].requires_grad_(), pairs[0].key.detach().contiguous().requires_grad_()),
        Pair(far[:, :1, :, :32].expand(2, 3, 40, 32).requires_grad_(), pairs[1].key),
    ]
    check(pairs, value, True, 1e-12, 1e-11)
    check(pairs, value.detach().flip(-1).mT.contiguous().mT.requires_grad_(), False, 1e-12, 1e-11)
