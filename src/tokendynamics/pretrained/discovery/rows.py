"""Attention in blocks of query rows: no array of all pairs of tokens for every head is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._row_mask import RowMask

WHOLE_BYTES = 2**25
"""An attention whose weights take at most this is computed whole, as the network itself would."""

BLOCK_BYTES = 2**23
"""A larger one is computed in blocks of receivers whose weights take at most this."""

Attend: TypeAlias = Callable[[slice], tuple[Tensor, Tensor]]
"""Returns output (batch, row, head, d_value) and weights (batch, head, row, sender) of some receivers."""


def row_blocks(query: Tensor, key: Tensor) -> list[slice]:
    """Cut the receivers of an attention into blocks of `BLOCK_BYTES` of weights; a small one is one block.

    Args:
        query: (batch, head, receiver, d_head).
        key: (batch, kv_head, sender, d_head).

    >>> row_blocks(torch.zeros(1, 2, 7, 4), torch.zeros(1, 1, 7, 4))
    [slice(0, 7, None)]
    """
    batch, heads, receivers, senders = *query.shape[:3], key.shape[2]
    of_row = max(1, batch * heads * senders * max(4, query.itemsize))  # softmax of half precision is in float32
    rows = max(1, receivers if of_row * receivers <= WHOLE_BYTES else BLOCK_BYTES // of_row)
    return [slice(start, min(start + rows, receivers)) for start in range(0, max(1, receivers), rows)]


def rows_of(tensor: Tensor | None, rows: slice, receivers: int) -> Tensor | None:
    """Return the rows of a mask or a bias (…, receiver, sender); all of one that has a single row, and None of None.

    >>> rows_of(torch.eye(3), slice(1, 2), 3).tolist()
    [[0.0, 1.0, 0.0]]
    """
    if tensor is None or (rows.start, rows.stop) == (0, receivers):
        return tensor
    if isinstance(tensor, RowMask):
        return tensor.rows(rows)
    return tensor[..., rows, :] if tensor.ndim > 1 and tensor.shape[-2] == receivers else tensor


def named_rows(named: dict[str, Any], rows: slice, receivers: int, senders: int) -> dict[str, Any]:
    """Return the arguments of an attention for some receivers: of what is (…, receiver, sender) their rows."""

    def of(value: Any) -> Any:
        pairs = isinstance(value, Tensor) and value.ndim > 1 and value.shape[-2:] == (receivers, senders)
        return rows_of(value, rows, receivers) if pairs else value

    return {name: of(value) for name, value in named.items()}


def attended(compute: Attend, blocks: Sequence[slice]) -> tuple[Tensor, Tensor | None]:
    """Return the output of an attention, and its weights where one block is all.

    An attention whose rows depend on which others are computed with them is computed whole.

    Args:
        compute: Of some receivers.
        blocks: From `row_blocks`.
    """
    if len(blocks) == 1:
        return compute(blocks[0])
    if not _row_by_row(compute):
        return compute(slice(0, blocks[-1].stop))
    first = compute(blocks[0])[0]
    # One place for all: outputs kept block by block would lie between the freed weights, and no heap gives these back.
    output = first.new_empty(first.shape[0], blocks[-1].stop, *first.shape[2:])
    output[:, blocks[0]] = first
    del first
    for rows in blocks[1:]:
        output[:, rows] = compute(rows)[0]
    return output, None


def _row_by_row(compute: Attend) -> bool:
    """Tell whether two receivers together give what each gives alone."""
    try:
        together = compute(slice(0, 2))
        first, second = compute(slice(0, 1)), compute(slice(1, 2))
    except RuntimeError:  # it wants all of its rows
        return False
    alone = torch.cat([first[0], second[0]], dim=1), torch.cat([first[1], second[1]], dim=2)
    return all(_close(one, other) for one, other in zip(together, alone, strict=True))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    relative = torch.finfo(one.dtype).eps ** 0.5  # roundings differ; what depends on other rows differs by far more
    return torch.allclose(one, other, rtol=relative, atol=relative * float(other.abs().amax()), equal_nan=True)
