"""Attention and its gradients in compiled loops, beside PyTorch's fused kernel and the rate of a large product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.measure import Comparison, alternate, overhead, share
from tokendynamics.modules._compiled_attention import compiled_attention
from tokendynamics.modules._pairs import Pair, angles
from tokendynamics.modules._terms_attention import joined_attention, threads_of_loops


@dataclass(frozen=True)
class Case:
    """One attention: what it is of, and at most how much of the fused kernel's time and least of a product's rate."""

    name: str
    systems: int
    tokens: int
    heads: int
    width: int
    causal: bool
    turned: bool
    most: float
    rate: float


CASES = (
    Case("4 heads of 16, turned, 16 × 128, causal", 16, 128, 4, 16, causal=True, turned=True, most=0.75, rate=0.2),
    Case("4 heads of 16, 16 × 65", 16, 65, 4, 16, causal=False, turned=False, most=1.1, rate=0.2),
    Case("8 heads of 64, turned, 4 × 1024, causal", 4, 1024, 8, 64, causal=True, turned=True, most=0.75, rate=0.5),
    Case("3 heads of 64, 16 × 197", 16, 197, 3, 64, causal=False, turned=False, most=1.1, rate=0.4),
)
ROUNDS = 15


def run() -> Iterator[Comparison]:
    """Compare values and gradients by queries, keys and values."""
    fused = partial(joined_attention, dropout=0.0)
    for case in CASES:
        pairs, value, towards = drawn(case, torch.float32)
        loops = partial(compiled_attention, threads=max(1, threads_of_loops(pairs, value)))
        ours, theirs = (gradients_of(make, case, pairs, value, towards) for make in (loops, fused))
        exact = gradients_of(fused, case, *drawn(case, torch.float64))()
        far, as_far = (_far(found(), exact) for found in (ours, theirs))
        error = f"{far:.0e} of float64, fused {as_far:.0e}"
        pairs_of_times = alternate(ours, theirs, ROUNDS)
        yield overhead(f"attention and gradients, {case.name}", pairs_of_times, at_most=case.most, error=error)
        yield _rate(case, ours, error)


def drawn(case: Case, dtype: torch.dtype) -> tuple[list[Pair], Tensor, Tensor]:
    """Return queries and keys, values and what the gradients are towards, as a network has them."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.systems, case.tokens, case.heads, case.width)
    query, key, value, towards = (torch.randn(shape, generator=generator).transpose(1, 2).to(dtype) for _ in range(4))
    turn = angles(query, 10000.0) if case.turned else ()
    return [Pair(query.requires_grad_(), key.requires_grad_(), *turn)], value.requires_grad_(), towards


def gradients_of(
    make: Callable[..., Tensor], case: Case, pairs: list[Pair], value: Tensor, towards: Tensor
) -> Callable[[], list[Tensor]]:
    """Return what gives the attention and its gradients."""

    def work() -> list[Tensor]:
        mixed = make(pairs, value, causal=case.causal, scale=case.width**-0.5)
        return [mixed.detach(), *torch.autograd.grad(mixed, [value, *pairs[0][:2]], towards)]

    return work


def _far(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(found, exact, strict=True))


def _rate(case: Case, work: Callable[[], object], error: str) -> Comparison:
    """Compare the rate of what is wanted, seven products of the weights' size, with that of a large product."""
    many = case.systems * case.heads * case.tokens * (case.tokens + 1 if case.causal else 2 * case.tokens) // 2
    square = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    rates = [
        (2e-9 * 7 * many * case.width / ours, 2e-9 * 1024**3 / other)
        for ours, other in alternate(work, lambda: square @ square, ROUNDS)
    ]
    return share(f"rate of attention and gradients, {case.name}", rates, at_least=case.rate, error=error)
