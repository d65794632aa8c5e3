"""Sees the attentions that PyTorch computes by one function: the fused one and flex_attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tokendynamics.pretrained._torch_attention import FURTHER_SENDERS
from tokendynamics.pretrained.discovery._followed_tensors import ROUNDINGS
from tokendynamics.pretrained.discovery._plain_attention import attend_multiplied, attention_weights
from tokendynamics.pretrained.discovery._products import by_head, in_groups
from tokendynamics.pretrained.discovery.attention_call import (
    LOG_FACTORS,
    LOWEST_BIAS,
    WATCHER,
    AttentionCall,
    rows_of,
    seen_elsewhere,
    watched,
)


@dataclass(frozen=True, eq=False)
class _FusedArguments:
    """What PyTorch's fused attention is given; see `torch.nn.functional.scaled_dot_product_attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    soft_cap: float | None = None

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> _FusedArguments:
        """Return the arguments by name; each tensor as (batch, head, token, feature)."""
        del dropout_p, enable_gqa
        factor = float(query.shape[-1] ** -0.5 if scale is None else scale)
        grouped = in_groups(query, key)
        mask = attn_mask
        if mask is not None and mask.ndim > 2 and not mask.ndim == query.ndim == 4:  # its last axes are the query's
            mask = mask.expand(*query.shape[:-2], *mask.shape[-2:])
            mask = mask if mask.ndim == 4 else by_head(mask, grouped)
        return _FusedArguments(
            by_head(query, grouped), by_head(key, grouped), by_head(value, grouped), mask, is_causal, factor
        )

    def shown(self, rows: slice) -> Tensor | None:
        """Return which senders some receivers may see; None where every token sees every token."""
        if not self.causal:
            mask = rows_of(self.mask, rows, self.query.shape[-2])
            return mask if mask is None or mask.dtype == torch.bool else mask > LOWEST_BIAS
        senders = self.key.shape[-2]
        places = torch.arange(max(rows.stop, senders), device=self.query.device)
        return places[:senders] <= places[rows, None]

    def mask_of(self, rows: slice) -> Tensor | None:
        """Return what is added to the logits of some receivers; None for nothing."""
        mask = self.shown(rows) if self.causal else rows_of(self.mask, rows, self.query.shape[-2])
        if mask is not None and mask.dtype == torch.bool:
            like = torch.zeros_like(mask, dtype=self.query.dtype)
            mask = like.masked_fill(~mask, torch.finfo(self.query.dtype).min)
        return mask

    def seen(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the output, with multiplied logits where factors are set, and give the attention to the watcher."""
        factors, watch = LOG_FACTORS.get(), WATCHER.get()
        output, weights = (compute(), None) if factors is None else self._multiplied(factors())
        if watch is not None:
            watch(self._call(output, weights).without(FURTHER_SENDERS.get()))
        return output

    def _multiplied(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and weights with multiplied logits."""
        everything = slice(0, self.query.shape[-2])
        named = {"scaling": self.scale}
        output, weights = attend_multiplied(self.query, self.key, self.value, self.mask_of(everything), factors, named)
        return output.transpose(1, 2), weights

    def _call(self, output: Tensor, weights: Tensor | None) -> AttentionCall:
        """Return the attention that gave an output; its weights are computed where they were not."""

        def weights_of(rows: slice) -> Tensor:
            if weights is not None:
                return weights[:, :, rows].detach()
            with torch.no_grad(), seen_elsewhere():
                return attention_weights(
                    self.query[:, :, rows].detach(),
                    self.key.detach(),
                    mask=self.mask_of(rows),
                    scale=self.scale,
                    soft_cap=self.soft_cap,
                )

        return AttentionCall(
            module=None,
            query=self.query.detach(),
            key=self.key.detach(),
            value=self.value.detach(),
            output=output.detach().reshape(*self.query.shape[:3], -1).transpose(1, 2),
            weights_of=weights_of,
            mask_of=self.mask_of,
            scale=self.scale,
            soft_cap=self.soft_cap,
            shown_by_weights=self.shown,
        )


_LARGE_LOGIT = 1e4
"""At a logit of this size a soft cap is flat."""


def _flexible_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Any = None,
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> _FusedArguments | None:
    """Return what PyTorch's flex_attention was given; None where it changes logits in another way.

    A term of the logits is what they are where the products are 0. Beside it they must be the products, or c·tanh of
    the products over c.
    """
    del kernel_options
    query, key, value = query.detach(), key.detach(), value.detach()
    senders = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    products = scale * (query @ senders.mT)
    places = [torch.arange(count, device=query.device) for count in products.shape]

    def of_places(function: Callable[..., Tensor], *scores: Tensor) -> Tensor:
        for axis in (3, 2, 1, 0):
            function = torch.vmap(function, (*(0 for _ in scores), *(0 if at == axis else None for at in range(4))))
        return function(*scores, *places)

    def changed(scores: Tensor) -> Tensor:
        return of_places(lambda score, *at: score_mod(score, *at, *score_buffers), scores)

    shown = of_places(lambda *at: block_mask[-1](*at, *mask_buffers))
    term, logits, largest = (changed(scores) for scores in (0 * products, products, 0 * products + _LARGE_LOGIT))
    shown = shown & (term > LOWEST_BIAS)
    term, beside, flat = (torch.where(shown, given, 0.0) for given in (term, logits - term, largest - term))
    products = products.masked_fill(~shown, 0.0)
    cap = float(flat.max())
    size = ROUNDINGS * torch.finfo(products.dtype).eps * max(1.0, float((products.abs() + term.abs()).max()))

    def near(wanted: Tensor) -> bool:
        return bool(((beside - wanted).abs() <= size).all())

    soft_cap = None if near(products) else cap
    if soft_cap is not None and not (cap > 0 and near(cap * torch.tanh(products / cap))):
        return None
    mask = term.masked_fill(~shown, torch.finfo(query.dtype).min)
    return _FusedArguments(query, key, value, mask if bool(mask.any()) else None, False, float(scale), soft_cap)


def _attend(func: Any, args: Any, named: dict[str, Any]) -> Any:
    """Run PyTorch's fused attention where it is seen."""
    if func is not functional.scaled_dot_product_attention or not watched():
        return func(*args, **named)
    given = _FusedArguments.of(*args, **named)
    with seen_elsewhere():
        return given.seen(lambda: func(*args, **named))


def _attend_flexibly(func: Any, args: Any, named: dict[str, Any]) -> Any:
    """Run PyTorch's flex_attention where it is seen."""
    with seen_elsewhere():
        result = func(*args, **named)
        given = _flexible_arguments(*args, **named) if watched() else None
        return result if given is None else (given.seen(lambda: result[0]), *result[1:])


FUSED: Mapping[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "scaled_dot_product_attention": _attend,
    "flex_attention": _attend_flexibly,
}
"""Runs a function of PyTorch that is a whole attention, by its name."""


@dataclass
class _Stance:
    """How PyTorch runs what is compiled.

    Attributes:
        users: How many open blocks need it to run as it is.
        former: Puts back how it ran before.
    """

    users: int = 0
    former: ExitStack = field(default_factory=ExitStack)


_stance, _choosing = _Stance(), Lock()

_COMPILING = {"torch._dynamo", "torch.nn.attention.flex_attention"}
"""Without one of these modules nothing is compiled."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let what `torch.compile` compiles, as flex_attention does itself where it is called, run as it is in the block.

    Hooks then see every module, and no pass with other hooks is compiled anew. Several such blocks may be open at a
    time, in several threads.
    """
    choose = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    if choose is None or _COMPILING.isdisjoint(sys.modules):
        yield
        return
    with _choosing:
        if not _stance.users:
            _stance.former.enter_context(choose("force_eager"))
        _stance.users += 1
    try:
        yield
    finally:
        with _choosing:
            _stance.users -= 1
            if not _stance.users:
                _stance.former.close()
