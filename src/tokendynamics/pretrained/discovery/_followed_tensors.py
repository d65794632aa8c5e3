"""What is known of a tensor on the way from a product of queries and keys to attention weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._plain_attention import multiplied
from tokendynamics.pretrained.discovery.attention_call import LOWEST_BIAS

ROUNDINGS = 64.0
"""By how many roundings of the largest logit the logits may differ from the scaled product where nothing is added."""


@dataclass(frozen=True, eq=False)
class Logits:
    """Of a tensor (…, receiver, sender) that is a factor times a product, softly capped or not, plus something.

    Attributes:
        query: (…, receiver, feature).
        key: (…, sender, feature), with the same axes in front.
        scale: The factor.
        soft_cap: c where the scaled product s became c·tanh(s/c); None without.
        sink: Place of a sender without a key of its own, 0 or -1, whose key is zero here; None without.
        column: The logits that were put there.
    """

    query: Tensor
    key: Tensor
    scale: float
    soft_cap: float | None = None
    sink: int | None = None
    column: Tensor | None = None

    def with_sink(self, place: int, column: Tensor) -> Logits:
        """Return the same with a further sender, whose logits are given."""
        zero = torch.zeros_like(self.key[..., :1, :])
        key = torch.cat((self.key, zero) if place else (zero, self.key), dim=-2)
        return replace(self, key=key, sink=place, column=column)

    def without_sink(self) -> Logits:
        """Return the same for the tokens alone."""
        return replace(self, key=without_sender(self.key.mT, self.sink).mT, sink=None, column=None)

    def times(self, factor: float) -> Logits | None:
        """Return the same times a factor; None where capped logits would not stay capped ones."""
        if self.soft_cap is not None and factor <= 0:
            return None
        return replace(self, scale=self.scale * factor, soft_cap=self.soft_cap and self.soft_cap * factor)

    def scaled(self, rows: slice | None = None) -> Tensor:
        """Return the scaled products, softly capped, of some receivers or of all."""
        query = self.query if rows is None else self.query[..., rows, :]
        products = self.scale * (query @ self.key.mT)
        return products if self.soft_cap is None else self.soft_cap * torch.tanh(products / self.soft_cap)

    def multiplied(self, tensor: Tensor, factors: Tensor) -> Tensor:
        """Return the tensor with the scaled products multiplied, by the logarithms of factors of each input."""
        scaled = self.scaled().double()
        added = tensor.double() - scaled
        of_row = factors.repeat_interleave(tensor.shape[0] // len(factors))  # heads may stand below each other
        return multiplied(scaled, added, added < LOWEST_BIAS, of_row)

    def reshaped(self, shape: torch.Size) -> Logits | None:
        """Return the same for the tensor in another shape; None where receivers or senders are no axis any more."""
        query, key = self.query, self.key
        if len(shape) < 2 or shape[-1] != key.shape[-2]:
            return None
        if shape.numel() != query.shape[:-1].numel() * shape[-1]:  # expanded
            lead = shape[:-2]
            expanded = query.expand(*lead, *query.shape[-2:]), key.expand(*lead, *key.shape[-2:])
            return replace(self, query=expanded[0], key=expanded[1])
        key = with_lead(key, shape[:-2])
        return None if key is None else replace(self, query=query.reshape(*shape[:-1], -1), key=key)


@dataclass(frozen=True, eq=False)
class Weights:
    """Of attention weights: what the softmax was given, and what is known of that."""

    logits: Tensor
    source: Logits
    sinks: Tensor | None = None

    def of_tokens(self) -> Weights | None:
        """Return the same where the weights of a sink have been left out; None where its logits are not of the heads.

        Logits of a row may be shifted together; the sink's are those that were given.
        """
        place, column = self.source.sink, self.source.column
        if place is None or column is None:
            return None
        present = self.logits[..., place : place + 1 or None]
        sinks = next((sinks for logits in (present, column) if (sinks := logits_of_heads(logits)) is not None), None)
        if sinks is None:
            return None
        shape = (1, -1, *(1,) * (present.ndim - 2)) if len(sinks) > 1 else (1,)
        shift = present - sinks.reshape(shape).to(present)
        given = logits_of_heads(column)
        named = given is not None and torch.equal(given.to(sinks).expand_as(sinks), sinks)
        logits = without_sender(self.logits, place) - shift
        return Weights(logits, self.source.without_sink(), given if named else sinks)


@dataclass(frozen=True, eq=False)
class Exponentials:
    """Of exponentials of logits: the logits, and what is known of these."""

    logits: Tensor
    source: Logits

    def softmax(self, weights: Tensor) -> Weights | None:
        """Return weights as the softmax of logits, or of logits beside a logit of 0; None where they are neither.

        The logit of 0 stands beside the logits themselves, or beside products to which a mask alone is added, since the
        largest may have been taken off before.
        """
        logits = self.logits
        if bool(((weights - logits.softmax(dim=-1)).abs() <= OF_SUMS).all()):
            return Weights(logits, self.source)
        scaled = self.source.scaled().reshape(logits.shape)
        masked = torch.where(
            logits - logits.amax(dim=-1, keepdim=True) < LOWEST_BIAS, logits.clamp(max=2 * LOWEST_BIAS), scaled
        )
        for candidate in (logits, masked):
            with_zero = torch.cat((candidate, torch.zeros_like(candidate[..., :1])), dim=-1)
            if bool(((weights - with_zero.softmax(dim=-1)[..., :-1]).abs() <= OF_SUMS).all()):
                return Weights(candidate, self.source, torch.zeros(1, dtype=weights.dtype, device=weights.device))
        return None


OF_SUMS = 1e-5
"""By how much a sum of weights, or a weight, may miss what a softmax gives, in single precision."""


def with_lead(tensor: Tensor, lead: torch.Size) -> Tensor | None:
    """Return keys or values (…, token, feature) with other axes in front; None where theirs are not the first of these.

    Heads that share keys or values stand along the last axes: theirs are repeated there.
    """
    former, last = tensor.shape[:-2], tensor.shape[-2:]
    if lead.numel() == former.numel():
        return tensor.reshape(*lead, *last)
    if lead[: len(former)] != former:
        return None
    return tensor.reshape(*former, *(1 for _ in lead[len(former) :]), *last).expand(*lead, *last)


def without_sender(tensor: Tensor, place: int | None) -> Tensor:
    """Return a tensor (…, sender) without its first or its last sender."""
    return tensor if place is None else tensor[..., 1:] if place == 0 else tensor[..., :-1]


def logits_of_heads(column: Tensor) -> Tensor | None:
    """Return logits (input, head, receiver, 1) by head; None where they are others for other inputs or receivers."""
    if column.ndim < 2 or column.shape[-1] != 1:
        return None
    column = column.detach()
    if column.ndim == 4 and bool((column == column[:1, :, :1]).all()):
        return column[0, :, 0, 0]
    return column.flatten()[:1] if bool((column == column.flatten()[0]).all()) else None


def without_zero_value(weights: Weights, first: Tensor, value: Tensor) -> tuple[Weights, Tensor, Tensor]:
    """Return weights and values without a sink whose value is zero; all as they are where it is not."""
    tokens, place = weights.of_tokens(), weights.source.sink
    if tokens is None or value.shape[-2] != weights.logits.shape[-1] or bool((value[..., place, :] != 0).any()):
        return weights, first, value
    return tokens, without_sender(first, place), without_sender(value.mT, place).mT
