"""Attention with the columns of a remedy beside queries and keys, and PyTorch's own attention of as many columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.modules.positions import Pair, terms_attention

MOST = 1.1
ROUNDS = 45


@dataclass(frozen=True)
class Case:
    """One attention: its name and sizes, of which `width` are the columns of a head, and as many stand beside them."""

    name: str
    systems: int
    tokens: int
    heads: int
    width: int
    causal: bool


CASES = (
    Case("4 heads of 16 + 16, 16 × 128, causal", 16, 128, 4, 16, causal=True),
    Case("4 heads of 16 + 16, 16 × 65", 16, 65, 4, 16, causal=False),
    Case("8 heads of 64 + 64, 4 × 1024, causal", 4, 1024, 8, 64, causal=True),
    Case("3 heads of 64 + 64, 16 × 197", 16, 197, 3, 64, causal=False),
)


def run() -> Iterator[Comparison]:
    """Compare values and gradients by queries, keys, columns beside them, and values."""
    for case in CASES:
        ours, theirs = ours_of(case), theirs_of(case)
        exact = ours_of(case, torch.float64)()
        far = max(float((one - other).abs().max()) for one, other in zip(ours(), exact, strict=True))
        error = f"{far:.0e} of float64"
        taken = rounds_of({"ours": ours, "other": theirs}, ROUNDS, clock=time.process_time)
        times = [(seconds["ours"], seconds["other"]) for seconds in taken]
        yield overhead(f"attention and gradients, {case.name}", times, at_most=MOST, error=error)


def drawn(case: Case, widths: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors (system, head, token, width) as a network has them: a token's heads are side by side in memory."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.systems, case.tokens, case.heads)
    parts = [torch.randn(*shape, width, generator=generator).transpose(1, 2).to(dtype) for width in widths]
    return [part.requires_grad_() for part in parts]


def ours_of(case: Case, dtype: torch.dtype = torch.float32) -> Callable[[], list[Tensor]]:
    """Return what gives attention with columns beside queries and keys, and its gradients."""
    query, key, query_beside, key_beside, value, towards = drawn(case, [case.width] * 6, dtype)
    pairs = [Pair(query, key), Pair(query_beside, key_beside)]
    mix = partial(terms_attention, pairs, value, causal=case.causal, scale=case.width**-0.5, dropout=0.0)
    return lambda: _with_gradients(mix(), [value, query, key, query_beside, key_beside], towards)


def theirs_of(case: Case) -> Callable[[], list[Tensor]]:
    """Return what gives PyTorch's attention of queries, keys and values with all columns, and its gradients."""
    query, key, value, towards = drawn(case, [2 * case.width] * 4, torch.float32)
    choices = {"is_causal": case.causal, "scale": case.width**-0.5}
    mix = partial(functional.scaled_dot_product_attention, query, key, value, **choices)
    return lambda: _with_gradients(mix(), [value, query, key], towards)


def _with_gradients(mixed: Tensor, parts: list[Tensor], towards: Tensor) -> list[Tensor]:
    return [mixed.detach(), *torch.autograd.grad(mixed, parts, towards.detach())]
