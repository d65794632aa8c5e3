"""Reads the axes of a product: as logits of queries and keys, or as an attention, of weights and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._followed_tensors import ROUNDINGS, Logits, Weights, with_lead
from tokendynamics.pretrained.discovery.attention_call import LOWEST_BIAS, AttentionCall


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors.

    Attributes:
        first: The one as (…, row, inner).
        second: The other as (…, column, inner).
        factor: What multiplies the product.
        of_output: The axes of the result in the order (…, row, column).
    """

    first: Tensor
    second: Tensor
    factor: float
    of_output: tuple[int, ...]

    def logits(self) -> Logits | None:
        """Return what it is if its rows are queries and its columns keys."""
        if self.of_output != tuple(range(len(self.of_output))) or not self.first.is_floating_point():
            return None
        lead = np.broadcast_shapes(self.first.shape[:-2], self.second.shape[:-2])
        query, key = (tensor.expand(*lead, *tensor.shape[-2:]).detach() for tensor in (self.first, self.second))
        return Logits(query, key, self.factor)

    def attention(self, weights: Weights, output: Tensor) -> AttentionCall | None:
        """Return the attention whose weights it multiplies with values; None if these stand in another order."""
        logits, source = weights.logits, weights.source
        lead, width = logits.shape[:-2], self.second.shape[-2]
        if self.first.shape[-1] != logits.shape[-1] or self.first.numel() != logits.numel():
            return None
        value, summed = self.second.mT, output.permute(self.of_output)
        if summed.numel() != lead.numel() * logits.shape[-2] * width:
            return None
        aligned = with_lead(value, lead)
        value = value.expand(*lead, *value.shape[-2:]) if aligned is None else aligned
        first, summed = self.first.reshape(logits.shape), summed.reshape(*lead, -1, width)
        return _call(logits, source, first, value, summed, weights.sinks)


def _call(
    logits: Tensor, source: Logits, weights: Tensor, value: Tensor, output: Tensor, sinks: Tensor | None
) -> AttentionCall:
    grouped = in_groups(source.query, source.key)
    logits, weights, query, key, value, output = (
        by_head(tensor.detach(), grouped) for tensor in (logits, weights, source.query, source.key, value, output)
    )

    def mask_of(rows: slice) -> Tensor | None:
        given, scaled = (
            logits[:, :, rows],
            Logits(query.to(logits), key.to(logits), source.scale, source.soft_cap).scaled(rows),
        )
        added, low = given - scaled, given - scaled < LOWEST_BIAS
        # Padding ahead of a text may see no token under a causal mask, and still has weights.
        hidden = low & ((weights[:, :, rows] == 0) | low.all(dim=-1, keepdim=True))
        if sinks is None:  # a softmax sees no shift
            highest = added.masked_fill(hidden, -torch.inf).amax(dim=-1, keepdim=True)
            added = added - torch.where(highest.isfinite(), highest, 0.0)
        added = added.masked_fill(hidden, 0.0)
        size = scaled.abs().amax().clamp_min(1.0)
        if not bool((added.abs() > ROUNDINGS * torch.finfo(logits.dtype).eps * size).any()):
            added = torch.zeros_like(added)
        elif not bool(hidden.any()):
            return added
        return added.masked_fill(hidden, torch.finfo(logits.dtype).min) if bool(hidden.any() | added.any()) else None

    def shown(rows: slice) -> Tensor | None:
        given, zero = logits[:, :, rows], weights[:, :, rows] == 0
        # No product of a query and a key is larger: what is far below it is hidden, whatever the product is.
        largest = abs(source.scale) * float(query.norm(dim=-1).max() * key.norm(dim=-1).max())
        hidden = given < LOWEST_BIAS - largest
        if bool((given[zero & ~hidden] < LOWEST_BIAS + largest).any()):
            mask = mask_of(rows)
            return None if mask is None else mask > LOWEST_BIAS
        return ~hidden if bool(hidden.any()) else None

    return AttentionCall(
        module=None,
        query=query.to(value.dtype),  # some networks have their logits in another format
        key=_shared(key).to(value.dtype),
        value=_shared(value),
        output=output.transpose(1, 2),
        weights_of=lambda rows: weights[:, :, rows],
        mask_of=mask_of,
        scale=source.scale,
        soft_cap=source.soft_cap,
        sinks=sinks,
        explicit=True,
        shown_by_weights=shown,
    )


def by_head(tensor: Tensor, grouped: bool = False) -> Tensor:
    """Return a tensor (…, head, token, feature) as (batch, head, token, feature); one without heads has one.

    Args:
        tensor: Of an attention.
        grouped: Whether heads have two axes, as those in groups that share a key; see `in_groups`.
    """
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.flatten(0, -5).flatten(1, 2) if grouped and tensor.ndim > 4 else tensor.flatten(0, -4)


def in_groups(query: Tensor, key: Tensor) -> bool:
    """Tell whether the last two axes before the tokens are those of heads, one of which shares its keys.

    Further axes are those of inputs, windows or channels. Windows whose heads share their keys have the same shapes;
    but in memory heads lie within the features of a token, and windows are farther apart than tokens.
    """
    shared = [axis for axis in (-3, -4) if key.ndim > 4 and key.shape[axis] > 1 and key.stride(axis) == 0]
    if not shared:
        return False
    other = -7 - shared[0]
    for tensor in (query, key.narrow(shared[0], 0, 1)):
        # What was copied into the order of its axes does not show where it came from.
        if tensor.shape[other] > 1 and not tensor.is_contiguous():
            return tensor.stride(other) < tensor.stride(-2)
    return True


def _shared(tensor: Tensor) -> Tensor:
    """Return one head of keys or values that all heads share."""
    return tensor[:, :1] if tensor.stride(1) == 0 and tensor.shape[1] > 1 else tensor


def factors_of(name: str, args: Any, named: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the tensors that a function multiplies."""
    if name == "einsum":
        several = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        return tuple(several) if isinstance(args[0], str) else ()
    first, labels = (1, ("batch1", "batch2")) if name.startswith("baddbmm") else (0, ("other", "mat2"))
    return (*args[first : first + 2], *(named[label] for label in labels if label in named))


def matmul_product(left: Tensor, right: Tensor, factor: float) -> Product | None:
    if min(left.ndim, right.ndim) < 3:  # a matrix is the weight of a linear map
        return None
    return Product(left, right.mT, factor, tuple(range(max(left.ndim, right.ndim))))


def of_pairs(equation: str) -> bool:
    """Return whether a product of two tensors has one entry for each pair of their places, as logits have.

    >>> of_pairs("ibnd,jbnd->ijbn"), of_pairs("bnd,de->bne")
    (True, False)
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    rows, columns = set(first) & set(result) - set(second), set(second) & set(result) - set(first)
    inner = set(first) & set(second) - set(result)
    return len(rows) == len(columns) == len(inner) == 1


def exchanged(equation: str) -> str:
    """Return an equation for the two tensors in the other order.

    >>> exchanged("bkhw,bhqk->bqhw")
    'bhqk,bkhw->bqhw'
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    return ",".join(reversed(terms.split(","))) + arrow + result


def rows_last(equation: str) -> bool:
    """Return whether the rows of a result are axes of the second tensor and its columns those of the first.

    >>> rows_last("bkhw,bqhw->bhqk"), rows_last("bqhw,bkhw->bhqk"), rows_last("bpd,hdw->bphw")
    (True, False, False)
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    row, column = result[-2:-1], result[-1:]
    return bool(row) and row in set(second) - set(first) and column in set(first) - set(second)


def einsum_product(equation: str, left: Tensor, right: Tensor, *, of_weights: bool) -> Product | None:
    """Return a product with one inner axis, one axis of rows and one of columns; None for another one.

    Heads that share keys or values have an axis in one of the two tensors alone, as rows and columns have.
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if not arrow or len(names) != 2:
        return None
    first, second = (_axes(term, tensor.ndim) for term, tensor in zip(names, (left, right), strict=True))
    several = max(first, second, key=lambda axes: sum(axis.isdigit() for axis in axes))
    out = _axes(result, len(result.replace("...", "")) + sum(axis.isdigit() for axis in several if "..." in result))
    inner = [axis for axis in first if axis in second and axis not in out]
    columns = [axis for axis in second if axis not in first and axis in out]
    rows = [axis for axis in first if axis not in second and axis in out]
    if not inner or not columns or not rows or (of_weights and inner != first[-1:]):  # as where heads are mixed
        return None
    column = out[-1] if out[-1] in columns else columns[-1]
    row = first[-2] if of_weights else out[-2]
    if row not in rows:
        return None
    lead = [axis for axis in (*first, *second) if axis in out and axis not in (row, column)]
    lead = list(dict.fromkeys(lead))
    once = all(len(set(axes)) == len(axes) for axes in (first, second, out))
    if len(inner) != 1 or not once or len({*first, *second, *out}) != len(lead) + 3:
        return None
    one, other = _arranged(left, first, [*lead, row, *inner]), _arranged(right, second, [*lead, column, *inner])
    return Product(one, other, 1.0, tuple(out.index(axis) for axis in (*lead, row, column)))


def _axes(term: str, count: int) -> list[str]:
    """Return the axes of a term by name; those that an ellipsis stands for are numbers, counted from the right."""
    before, dots, after = term.partition("...")
    missing = count - len(before) - len(after)
    return [*before, *(str(number) for number in reversed(range(missing if dots else 0))), *after]


def _arranged(tensor: Tensor, names: list[str], wanted: list[str]) -> Tensor:
    """Return a tensor with its axes in an order; one that it has not is of length 1."""
    there = tensor.permute([names.index(name) for name in wanted if name in names])
    for place, name in enumerate(wanted):
        if name not in names:
            there = there.unsqueeze(place)
    return there
