"""The compiled loops as functions of PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from tokendynamics.modules._compiled._loops import Shape, attend, gradients
from tokendynamics.modules._pairs import Pair


class _Task(NamedTuple):
    """What is asked for beside the tensors."""

    causal: bool
    scale: float
    threads: int


def compiled_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, threads: int = 1) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j``, in the shape of the values, (…, head, token, width)."""
    return _Attention.apply(value, _Task(causal, float(scale), threads), *itertools.chain(*pairs))[0]


class _Attention(torch.autograd.Function):
    """Gives the attention and, for the gradients, of each row the largest logit and one over its exponentials' sum."""

    @staticmethod
    def forward(value: Tensor, task: _Task, *parts: Any) -> tuple[Tensor, Tensor]:
        given, mixed = _Given.of(value, parts), _by_token(value)
        kept, shape = value.new_empty(*value.shape[:-1], 2), _shape(value, task)
        tables, rows = (*given.tables(), _table([mixed])), _rows(kept)
        _on_threads(lambda units: attend(*tables, rows, shape, units), len(rows), task.threads)
        return mixed.view(value.shape), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        value, ctx.task, *parts = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(value, output[1], *parts)

    @staticmethod
    def backward(ctx: Any, towards: Tensor, *_: None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        value, kept, *parts = ctx.saved_tensors
        of_value, *of_sides = _Gradients.apply(value, ctx.task, kept, towards, *parts)
        of_pairs = zip(of_sides[::2], of_sides[1::2], strict=True)
        return of_value, None, *(each for pair in of_pairs for each in (*pair, None, None))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        return _Attention.apply(*_with_axis(info.batch_size, in_dims, inputs)), (0, 0)


class _Gradients(torch.autograd.Function):
    """Gives the gradients by the values and by queries and keys of each pair."""

    @staticmethod
    def forward(value: Tensor, task: _Task, kept: Tensor, towards: Tensor, *parts: Any) -> tuple[Tensor, ...]:
        given, shape, rows = _Given.of(value, parts), _shape(value, task), _rows(kept)
        slopes = _plain(towards)
        of_queries, of_keys = ([_by_token(part) for part in side] for side in (given.queries, given.keys))
        made = _Given(of_queries, of_keys, given.turns, _by_token(value))
        tables = (*given.tables(), _table([slopes]), *made.tables())
        _on_threads(lambda units: gradients(*tables, rows, shape, units), len(rows), task.threads)
        pairs = zip(made.queries, made.keys, strict=True)
        sides = [own.view(part.shape) for pair, part in zip(pairs, parts[::4], strict=True) for own in pair]
        return made.values.view(value.shape), *sides

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep nothing: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise RuntimeError(
            "attention was made by compiled loops, whose gradients cannot be differentiated again: for that, call the "
            "layer within torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        made = _Gradients.apply(*_with_axis(info.batch_size, in_dims, inputs))
        return made, (0,) * len(made)


class _Given(NamedTuple):
    """Queries and keys of all pairs, what turns them, and values, as the loops read them."""

    queries: list[Tensor]
    keys: list[Tensor]
    turns: list[tuple[Tensor, Tensor] | None]
    values: Tensor

    @classmethod
    def of(cls, value: Tensor, parts: Sequence[Any]) -> _Given:
        queries, keys = ([_plain(part) for part in parts[side::4]] for side in (0, 1))
        angles = zip(parts[2::4], parts[3::4], strict=True)
        turns = [None if cosine is None else (cosine.contiguous(), sine.contiguous()) for cosine, sine in angles]
        return cls(queries, keys, turns, _plain(value))

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _table(self.queries, self.turns), _table(self.keys, self.turns), _table([self.values])


def _with_axis(many: int, in_dims: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs with an axis in front of all that have heads: the one they are mapped over, or a new one."""

    def with_axis(one: Any, axis: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        if axis is not None:
            return one.movedim(axis, 0)
        return one.expand(many, *one.shape) if one.ndim > 2 else one

    return [with_axis(one, axis) for one, axis in zip(inputs, in_dims, strict=True)]


def _plain(part: Tensor) -> Tensor:
    """Return (…, head, token, column) with one axis of systems, and a token's columns side by side in memory."""
    one = part.detach().reshape(-1, *part.shape[-3:])
    return one if one.stride(-1) == 1 else one.contiguous()


def _by_token(like: Tensor) -> Tensor:
    """Return memory for (system, head, token, column) in which a token's heads are side by side, as others read it."""
    heads, tokens, width = like.shape[-3:]
    return like.new_empty(like.shape[:-3].numel(), tokens, heads, width).transpose(1, 2)


def _table(side: Sequence[Tensor], turns: Sequence[tuple[Tensor, Tensor] | None] = (None,)) -> np.ndarray:
    """Return where all parts of queries, keys or values stand, and what turns them, as the loops read it."""
    rows = [
        (part.data_ptr(), *part.stride()[:3], part.shape[-1], *(each.data_ptr() for each in turn or ()))
        for part, turn in zip(side, turns, strict=True)
    ]
    return np.array([(*row, 0, 0)[:7] for row in rows], dtype=np.int64)


def _shape(value: Tensor, task: _Task) -> Shape:
    return Shape(value.shape[-3], value.shape[-2], task.causal, task.scale)


def _rows(kept: Tensor) -> np.ndarray:
    """Return (head of all systems, token, 2) in the same memory."""
    return kept.contiguous().view(-1, *kept.shape[-2:]).numpy()


def _on_threads(work: Callable[[tuple[int, int]], Any], units: int, threads: int) -> None:
    """Call with the first and the last of equal parts of the units, each on a thread."""
    own, *others = itertools.pairwise([units * thread // threads for thread in range(threads + 1)])
    if not others:
        work(own)
        return
    with ThreadPoolExecutor(len(others)) as pool:
        runs = [pool.submit(work, part) for part in others]
        work(own)
    for run in runs:
        run.result()
