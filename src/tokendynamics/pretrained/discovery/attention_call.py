"""What one attention of a network was given and gave, with its weights by rows, and who is given it while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

LOWEST_BIAS = -1e3
"""What is added to the logit of a token that must not be seen is below this; so is no bias that leaves it a weight."""

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
        """Make a tensor without values."""
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
        given = args, kwargs or {}
        args, kwargs = tree_map(lambda value: value.whole() if isinstance(value, RowMask) else value, given)
        return func(*args, **kwargs)


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
    # Roundings differ; what depends on other rows differs by far more.
    relative = torch.finfo(together[0].dtype).eps ** 0.5
    return all(
        one.shape == other.shape
        and torch.allclose(one, other, rtol=relative, atol=relative * float(other.abs().amax()), equal_nan=True)
        for one, other in zip(together, alone, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What one attention was given and gave: the tensors themselves, which what runs next may overwrite; see `kept`.

    Attributes:
        module: The attention module; None where it called torch's fused attention itself.
        query: Queries, with norms and rotations applied.
        key: Keys, likewise.
        value: Values.
        output: Σ_j w_ij v_j of each head, before the output projection.
        weights_of: Returns the attention weights of some receivers, (batch, head, row, sender).
        mask_of: Returns what is added to their logits, (…, row, sender); None where every token sees every token.
        scale: Factor of the logits.
        soft_cap: Logits s become c·tanh(s/c) before the mask; None without.
        sinks: A learned logit for each head that takes part in the softmax and carries no value; None without.
        bias: Added to the logits by position, (…, head, query, key); None without.
        window: Width of the sliding window; None without.
        explicit: Whether the network itself holds the weights of all pairs of tokens while it runs.
        further: Keys and values that come from no token and take part in the softmax; None without. Queries attend to
            them beside `key`; their weights are left out.
        shown_by_weights: Returns what `shown` returns at less cost than by the mask; None where the mask is at hand.
        runs: How many attentions of the network it is: more than one where its heads run one after the other.
        order: The places among the heads that ran of those that are given; empty where they are given as they ran.
    """

    module: nn.Module | None
    query: Float[Tensor, "batch head token d_head"]
    key: Float[Tensor, "batch kv_head sender d_head"]
    value: Float[Tensor, "batch kv_head sender d_value"]
    output: Float[Tensor, "batch token head d_value"]
    weights_of: Callable[[slice], Tensor]
    mask_of: Callable[[slice], Tensor | None]
    scale: float
    soft_cap: float | None = None
    sinks: Float[Tensor, " head"] | None = None
    bias: Tensor | None = None
    window: int | None = None
    explicit: bool = False
    further: tuple[Tensor, Tensor] | None = None
    shown_by_weights: Callable[[slice], Tensor | None] | None = None
    runs: int = 1
    order: tuple[int, ...] = ()

    @property
    def weights(self) -> Float[Tensor, "batch head token sender"]:
        """The attention weights of all receivers."""
        return self.weights_of(self._all)

    @property
    def mask(self) -> Tensor | None:
        """What is added to the logits; None where every token sees every token."""
        return self.mask_of(self._all)

    @property
    def _all(self) -> slice:
        return slice(0, self.query.shape[2])

    def blocks(self) -> list[slice]:
        """Return which receivers' weights to compute at a time, so that memory is linear in the tokens."""
        return row_blocks(self.query, self.key)

    def shown(self, rows: slice) -> Tensor | None:
        """Return which senders some receivers may see, (…, row, sender); None where every token sees every token."""
        if self.shown_by_weights is not None:
            return self.shown_by_weights(rows)
        mask = self.mask_of(rows)
        return mask if mask is None or mask.dtype == torch.bool else mask > LOWEST_BIAS

    def sees_any(self) -> Tensor:
        """Return which receivers see a token, (input, head, row): padding ahead of a text may see none."""
        shown = self.shown(self._all)
        whole = torch.ones(self.query.shape[:3], dtype=torch.bool, device=self.query.device)
        return whole if shown is None or self.further is not None else whole & shown.any(dim=-1)

    def by_rows(self) -> Iterator[tuple[slice, Float[Tensor, "batch head row token"], Tensor | None]]:
        """Yield receivers, their attention weights, and which senders they may see, block by block."""
        for rows in self.blocks():
            yield rows, self.weights_of(rows), self.shown(rows)

    def of(self, number: int, tokens: int) -> AttentionCall:
        """Return what was given and what came of one prompt of a pass, without what stands behind its end.

        Args:
            number: Of the prompt in the pass.
            tokens: How many it has.
        """
        one = slice(number, number + 1)

        def cut(mask: Tensor | None) -> Tensor | None:
            if mask is None:
                return None
            return (mask[one] if mask.ndim > 3 and len(mask) > 1 else mask)[..., :tokens]

        return replace(
            self,
            query=self.query[one, :, :tokens],
            key=self.key[one, :, :tokens],
            value=self.value[one, :, :tokens],
            output=self.output[one, :tokens],
            weights_of=lambda rows: self.weights_of(rows)[one, :, :, :tokens],
            mask_of=lambda rows: cut(self.mask_of(rows)),
            shown_by_weights=lambda rows: cut(self.shown(rows)),
        )

    def without(self, further: int) -> AttentionCall:
        """Return the same with some of the last senders, which are no tokens, apart from the others.

        Args:
            further: How many; nothing changes for 0.
        """
        if not further:
            return self
        tokens = self.key.shape[2] - further

        def cut(mask: Tensor | None) -> Tensor | None:
            return None if mask is None else mask[..., :tokens]

        return replace(
            self,
            key=self.key[:, :, :tokens],
            value=self.value[:, :, :tokens],
            weights_of=lambda rows: self.weights_of(rows)[..., :tokens],
            mask_of=lambda rows: cut(self.mask_of(rows)),
            shown_by_weights=lambda rows: cut(self.shown(rows)),
            further=(self.key[:, :, tokens:], self.value[:, :, tokens:]),
        )

    def sharing(self, heads: int) -> AttentionCall:
        """Return the same with one key and value for all heads that have copies of them.

        Args:
            heads: How many keys and values there are; nothing changes where these are all there are. Where one of both
                stands there fewer times, it is repeated.
        """
        if self.key.shape[1] == self.value.shape[1] == heads:
            return self

        def of_heads(tensor: Tensor) -> Tensor:
            count = tensor.shape[1]
            return tensor.repeat_interleave(heads // count, dim=1) if count < heads else tensor[:, :: count // heads]

        return replace(self, key=of_heads(self.key), value=of_heads(self.value))

    def in_order(self, order: Sequence[int]) -> AttentionCall:
        """Return the same with its heads in another order, such as that in which a projection reads them.

        Args:
            order: The place of each among those that ran; nothing changes where it is empty.
        """
        if not order:
            return self
        heads, places = self.query.shape[1], torch.tensor(order, device=self.query.device)

        def reordered(tensor: Tensor | None, axis: int) -> Tensor | None:
            by_head = tensor is not None and tensor.ndim >= max(axis + 1, -axis) and tensor.shape[axis] == heads
            return tensor.index_select(axis, places) if tensor is not None and by_head else tensor

        def of_heads(tensor: Tensor) -> Tensor:
            shared = tensor.shape[1]
            return tensor if shared == 1 else tensor.repeat_interleave(heads // shared, dim=1).index_select(1, places)

        names = ("key", "value")
        return replace(
            self,
            query=of_heads(self.query),
            **{name: of_heads(getattr(self, name)) for name in names},
            output=self.output.index_select(2, places),
            weights_of=lambda rows: self.weights_of(rows).index_select(1, places),
            mask_of=lambda rows: reordered(self.mask_of(rows), -3),
            shown_by_weights=lambda rows: reordered(self.shown(rows), -3),
            sinks=reordered(self.sinks, 0),
            bias=reordered(self.bias, -3),
            further=None if self.further is None else (of_heads(self.further[0]), of_heads(self.further[1])),
            order=tuple(order),
        )

    def of_inputs(self, count: int) -> AttentionCall:
        """Return the same with an axis for heads, where the heads of all inputs stand one below the other (XGLM, MVP).

        Args:
            count: Of the inputs; nothing changes where there are as many rows.
        """
        rows, heads = self.query.shape[:2]
        if heads > 1 or rows == count or rows % count or not len(self.key) == len(self.value) == rows:
            return self
        shape = (count, rows // count)

        def split(tensor: Tensor | None) -> Tensor | None:
            whole = tensor is not None and tensor.ndim == 4 and len(tensor) == rows
            return tensor.squeeze(1).unflatten(0, shape) if tensor is not None and whole else tensor

        return replace(
            self,
            **{name: getattr(self, name).squeeze(1).unflatten(0, shape) for name in ("query", "key", "value")},
            output=self.output.squeeze(2).unflatten(0, shape).transpose(1, 2),
            weights_of=lambda some: self.weights_of(some).squeeze(1).unflatten(0, shape),
            mask_of=lambda some: split(self.mask_of(some)),
            shown_by_weights=lambda some: split(self.shown(some)),
        )

    def of_states(self, shape: Sequence[int]) -> AttentionCall:
        """Return the same with an axis for heads, by the shape of what was read, inputs or tokens first."""
        if len(shape) != 3:
            return self
        tokens = self.query.shape[2]
        return self.of_inputs(shape[0] if shape[1] == tokens else shape[1]) if tokens in shape[:2] else self

    def continued_by(self, other: AttentionCall) -> bool:
        """Tell whether another attention of the same module is of one further input of as many tokens.

        Towers for images of any size have all patches of all images side by side, and attend to one after the other.
        """
        names = ("query", "key", "value")
        alike = all(getattr(self, name).shape[1:] == getattr(other, name).shape[1:] for name in names)
        return other.module is self.module and alike and len(other.query) == 1 and self.mask is other.mask is None

    def beside(self, other: AttentionCall) -> AttentionCall:
        """Return both as one attention of all their inputs."""
        names = ("query", "key", "value", "output")
        both = {name: torch.cat((getattr(self, name), getattr(other, name))) for name in names}
        weights = torch.cat((self.weights, other.weights))
        return replace(self, **both, weights_of=lambda rows: weights[:, :, rows], shown_by_weights=None)

    def has_heads_like(self, other: AttentionCall) -> bool:
        """Tell whether both may be heads of one attention: of as many tokens and features, without sinks."""

        def shapes(call: AttentionCall) -> list[tuple[int, ...]]:
            several = (call.query, call.key, call.value)
            return [(tensor.shape[0], *tensor.shape[2:]) for tensor in several]

        def kind(call: AttentionCall) -> tuple[object, ...]:
            return call.soft_cap, call.window, call.sinks is None, call.bias is None, call.further is None

        plain = self.sinks is self.bias is self.further is None and self.scale != 0
        return plain and shapes(self) == shapes(other) and kind(self) == kind(other)

    def kept(self) -> AttentionCall:
        """Return the same with tensors of its own, of a short input."""
        copies = {name: getattr(self, name).clone() for name in ("query", "key", "value", "output")}
        weights, mask, receivers = self.weights, self.mask, self.query.shape[2]
        return replace(
            self,
            **copies,
            weights_of=lambda rows: weights[:, :, rows],
            mask_of=lambda rows: rows_of(mask, rows, receivers),
            shown_by_weights=None,
        )


def as_features(states: Tensor | None, batch: int, tokens: int) -> Tensor | None:
    """Return states in any of the usual layouts as (batch, token, feature); None if they are in none.

    >>> as_features(torch.zeros(6, 4), batch=2, tokens=3).shape
    torch.Size([2, 3, 4])
    >>> as_features(torch.zeros(2, 5, 3, 4), batch=2, tokens=3).shape
    torch.Size([2, 3, 20])
    >>> as_features(torch.zeros(3, 2, 4), batch=2, tokens=3).shape  # tokens first
    torch.Size([2, 3, 4])
    """
    if states is None or states.ndim < 2:
        return None
    if states.shape[:2] == (batch, tokens):
        return states.reshape(batch, tokens, -1)
    if states.ndim == 3 and states.shape[:2] == (tokens, batch):
        return states.transpose(0, 1)
    if states.ndim <= 3 and states.shape[0] == batch * tokens:
        return states.reshape(batch, tokens, -1)
    if states.ndim == 4 and (states.shape[0], states.shape[2]) == (batch, tokens):
        return states.transpose(1, 2).reshape(batch, tokens, -1)
    return None


def places_of(shape: Sequence[int], y: Tensor) -> tuple[int, int] | None:
    """Return inputs and tokens of an attention's queries (input, head, token, feature), if states are of as many."""
    return None if as_features(y, shape[0], shape[2]) is None else (shape[0], shape[2])


WATCHER: ContextVar[Callable[[AttentionCall], None] | None] = ContextVar("WATCHER", default=None)
"""What is given every attention that runs; None for nothing."""

LOG_FACTORS: ContextVar[Callable[[], Tensor] | None] = ContextVar("LOG_FACTORS", default=None)
"""Returns the logarithm of what multiplies all logits of each input; None for nothing."""

LOST: ContextVar[Callable[[str], None] | None] = ContextVar("LOST", default=None)
"""Receives, in words, how the logits of a softmax were changed in a way that is not followed; None for nothing."""

SEEN_ELSEWHERE: ContextVar[bool] = ContextVar("SEEN_ELSEWHERE", default=False)
"""Whether the functions that run compute an attention that is seen in another way."""


@contextmanager
def seen_elsewhere() -> Iterator[None]:
    """Leave out the functions inside the block, which compute an attention that is seen in another way."""
    token = SEEN_ELSEWHERE.set(True)
    try:
        yield
    finally:
        SEEN_ELSEWHERE.reset(token)


def watched() -> bool:
    """Whether attentions that run are given to anything, or have multiplied logits."""
    return WATCHER.get() is not None or LOG_FACTORS.get() is not None
