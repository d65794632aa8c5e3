"""A mask of transformers' plain attentions of which only the rows that are asked for are computed."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

MASK_BYTES = 2**23
"""A mask of at most this size is computed whole, as the network itself would."""


class RowMask(Tensor):
    """Stands for a mask (batch, 1, receiver, sender), and has its shape, dtype and device.

    Whatever is done to it but to ask for its rows is done to the mask itself, which is computed then.

    Args:
        mask_of: Returns the mask of some receivers, given how many they are and the number of the first.
        shape: Of the whole mask.
        dtype: Of its entries.
        device: Where it is.

    >>> mask = RowMask(lambda count, first: torch.full((1, 1, count, 3), float(first)), (1, 1, 3, 3))
    >>> mask.rows(slice(2, 3)).tolist(), (mask + 1.0).shape
    ([[[[2.0, 2.0, 2.0]]]], torch.Size([1, 1, 3, 3]))
    """

    _mask_of: Callable[[int, int], Tensor]

    @staticmethod
    def __new__(
        cls,
        mask_of: Callable[[int, int], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> RowMask:
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask._mask_of = mask_of
        return mask

    def rows(self, rows: slice) -> Tensor:
        """Return the mask of some receivers."""
        return self._mask_of(rows.stop - rows.start, rows.start)

    def whole(self) -> Tensor:
        """Return the mask."""
        return self.rows(slice(0, self.shape[-2]))

    def __repr__(self, **named: Any) -> str:
        del named
        return f"RowMask{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.ops.aten.detach.default:
            return args[0]
        args, kwargs = tree_map(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, RowMask) else value


def row_mask(**named: Any) -> Tensor | None:
    """Return the mask of transformers' plain attentions, a large one as a `RowMask`.

    Args:
        **named: As for `transformers.masking_utils.eager_mask`.
    """
    from transformers.masking_utils import eager_mask

    first, dtype = named.get("q_offset"), named.get("dtype", torch.float32)
    if not isinstance(first, int) or "q_offset" not in signature(eager_mask).parameters:
        return eager_mask(**named)  # older versions take the positions themselves, without a q_length
    batch, receivers, senders = (named[name] for name in ("batch_size", "q_length", "kv_length"))
    if receivers < 2 or batch * receivers * senders * dtype.itemsize <= MASK_BYTES:
        return eager_mask(**named)

    def mask_of(count: int, start: int) -> Any:
        some: dict[str, Any] = {**named, "q_length": count, "q_offset": first + start}
        return eager_mask(**some)

    row = mask_of(1, 0)
    if row is None:  # every token sees every token
        return None
    return RowMask(mask_of, (*row.shape[:2], receivers, senders), row.dtype, row.device)
