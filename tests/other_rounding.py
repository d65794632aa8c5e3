"""PyTorch as it rounds on another processor: sums in another order, elementary functions with another last bit.

No instruction set that this machine can be told to use is the one of the next machine. Under `OtherRounding` every
product and sum adds its terms in an order that depends on the shape (as blocked kernels do, which is why a batch and
its systems one by one round differently), and exp, sin and their kin are off by up to one unit in the last place.
Both are what a correct library may do, so a test that passes only without them hangs on this machine's rounding.
`OTHER_ROUNDING=1 pytest …` runs every test so (see conftest.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


def rounded(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() > 0


def another_order(like: Tensor) -> Tensor:
    """A permutation of the terms on the last axis that changes with the number of entries beside them."""
    terms = like.shape[-1]
    return rolled_back(terms, like.numel() // terms % terms)


@functools.cache
def rolled_back(terms: int, by: int) -> Tensor:
    return torch.arange(terms - 1, -1, -1).roll(by)


def product(call: Callable, left: Tensor, right: Tensor) -> Tensor:
    if not rounded(left):
        return call(left, right)
    order = another_order(left)
    rows = -2 if right.ndim > 1 else -1
    return call(left.index_select(-1, order), right.index_select(rows, order))


def added_product(call: Callable, bias: Tensor, left: Tensor, right: Tensor, **factors: object) -> Tensor:
    if not rounded(left):
        return call(bias, left, right, **factors)
    order = another_order(left)
    return call(bias, left.index_select(-1, order), right.index_select(-2, order), **factors)


def total(call: Callable, terms: Tensor, *arguments: object, **options: object) -> Tensor:
    """The terms of a sum, mean or norm: the summed axes read backwards."""
    if not rounded(terms):
        return call(terms, *arguments, **options)
    axes = list(range(terms.ndim))
    return call(terms.flip(axes) if summed_all(arguments) else flipped(terms, arguments), *arguments, **options)


def summed_all(arguments: tuple) -> bool:
    return not any(isinstance(argument, list | tuple) and argument for argument in arguments)


def flipped(terms: Tensor, arguments: tuple) -> Tensor:
    axes = next(argument for argument in arguments if isinstance(argument, list | tuple) and argument)
    return terms.flip(list(axes))


def elementary(call: Callable, x: Tensor) -> Tensor:
    """The last bit of about half of the values; what is exact (exp(0), sin(0)) stays so."""
    exact = call(x)
    return last_bit(exact) if rounded(exact) else exact


def last_bit(values: Tensor) -> Tensor:
    """Half of the values one unit further from 0, chosen by the values' own bits."""
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    bits = values.contiguous().view(kinds[values.element_size()]).long()
    shifted = (bits ^ (bits >> 7) ^ (bits >> 19)) & 1 == 1
    further = values * (1 + torch.finfo(values.dtype).eps)
    keep = (values == 0) | (values.abs() == 1) | ~values.isfinite() | ~shifted
    return torch.where(keep, values, further)


def softmax(call: Callable, x: Tensor, axis: int, half_to_float: bool) -> Tensor:
    return call(x.flip(axis), axis, half_to_float).flip(axis) if rounded(x) else call(x, axis, half_to_float)


def attention(call: Callable, query: Tensor, key: Tensor, value: Tensor, *arguments: object, **options: object):
    """Features of queries and keys backwards; the order of the keys is the mask's."""
    return call(query.flip(-1).contiguous(), key.flip(-1).contiguous(), value, *arguments, **options)


ANOTHER: dict[object, Callable] = {
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default), product),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), added_product),
    **dict.fromkeys(
        (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.logsumexp.default), total
    ),
    **dict.fromkeys(
        (aten.exp.default, aten.log.default, aten.sin.default, aten.cos.default, aten.tanh.default, aten.acos.default),
        elementary,
    ),
    aten._softmax.default: softmax,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
}


class OtherRounding(TorchDispatchMode):
    """While it is on, PyTorch's sums and elementary functions round as on no machine in particular."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        changed = ANOTHER.get(func)
        if changed is None:
            return func(*args, **(kwargs or {}))
        return changed(func, *args, **(kwargs or {}))
