"""Sees the attentions that a network computes by PyTorch's functions, without transformers' attention interface.

A product of queries and keys is followed through scaling, adding and reshaping to a softmax, and the weights from there
to their product with the values. What was added on the way (a mask, a bias by distance, a second product) is what the
logits are beyond the scaled product. Whatever else happens to logits ends the following: such an attention is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from tokendynamics.pretrained._torch_attention import CROSSING, FURTHER_SENDERS
from tokendynamics.pretrained.discovery._plain_attention import attend_multiplied, attention_weights, multiplied
from tokendynamics.pretrained.discovery.attention_call import AttentionCall, rows_of

LOWEST_BIAS = -1e3
"""What is added to the logit of a token that must not be seen is below this; so is no bias that leaves it a weight."""

_ROUNDINGS = 64.0
"""By how many roundings of the largest logit the logits may differ from the scaled product where nothing is added."""

WATCHER: ContextVar[Callable[[AttentionCall], None] | None] = ContextVar("WATCHER", default=None)
"""What is given every attention that runs; None for nothing."""

LOG_FACTORS: ContextVar[Callable[[], Tensor] | None] = ContextVar("LOG_FACTORS", default=None)
"""Returns the logarithm of what multiplies all logits of each input; None for nothing."""

LOST: ContextVar[Callable[[str], None] | None] = ContextVar("LOST", default=None)
"""Receives, in words, how the logits of a softmax were changed in a way that is not followed; None for nothing."""

_seen_elsewhere: ContextVar[bool] = ContextVar("_seen_elsewhere", default=False)


@contextmanager
def seen_elsewhere() -> Iterator[None]:
    """Leave out the functions inside the block, which compute an attention that is seen in another way."""
    token = _seen_elsewhere.set(True)
    try:
        yield
    finally:
        _seen_elsewhere.reset(token)


@dataclass(frozen=True, eq=False)
class _Logits:
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

    def with_sink(self, place: int, column: Tensor) -> _Logits:
        """Return the same with a further sender, whose logits are given."""
        zero = torch.zeros_like(self.key[..., :1, :])
        key = torch.cat((self.key, zero) if place else (zero, self.key), dim=-2)
        return replace(self, key=key, sink=place, column=column)

    def without_sink(self) -> _Logits:
        """Return the same for the tokens alone."""
        return replace(self, key=_beside(self.key.mT, self.sink).mT, sink=None, column=None)

    def times(self, factor: float) -> _Logits | None:
        """Return the same times a factor; None where capped logits would not stay capped ones."""
        if self.soft_cap is not None and factor <= 0:
            return None
        return replace(self, scale=self.scale * factor, soft_cap=self.soft_cap and self.soft_cap * factor)

    def scaled(self, rows: slice | None = None) -> Tensor:
        """Return the scaled products, softly capped, of some receivers or of all."""
        query = self.query if rows is None else self.query[..., rows, :]
        products = self.scale * (query @ self.key.mT)
        return products if self.soft_cap is None else self.soft_cap * torch.tanh(products / self.soft_cap)

    def reshaped(self, shape: torch.Size) -> _Logits | None:
        """Return the same for the tensor in another shape; None where receivers or senders are no axis any more."""
        query, key = self.query, self.key
        if len(shape) < 2 or shape[-1] != key.shape[-2]:
            return None
        if shape.numel() != query.shape[:-1].numel() * shape[-1]:  # expanded
            lead = shape[:-2]
            expanded = query.expand(*lead, *query.shape[-2:]), key.expand(*lead, *key.shape[-2:])
            return replace(self, query=expanded[0], key=expanded[1])
        lead, former = shape[:-2], key.shape[:-2]
        if lead.numel() == former.numel():
            key = key.reshape(*lead, *key.shape[-2:])
        elif lead[: len(former)] == former:  # heads that share keys stood one below the other
            key = key.reshape(*former, *(1 for _ in lead[len(former) :]), *key.shape[-2:])
            key = key.expand(*lead, *key.shape[-2:])
        else:
            return None
        return replace(self, query=query.reshape(*shape[:-1], -1), key=key)


@dataclass(frozen=True, eq=False)
class _Weights:
    """Of attention weights: what the softmax was given, and what is known of that."""

    logits: Tensor
    source: _Logits
    sinks: Tensor | None = None

    def of_tokens(self) -> _Weights | None:
        """Return the same where the weights of a sink have been left out; None where its logits are not of the heads.

        Logits of a row may be shifted together; the sink's are those that were given.
        """
        place, column = self.source.sink, self.source.column
        if place is None or column is None:
            return None
        present = self.logits[..., place : place + 1 or None]
        sinks = next((sinks for logits in (present, column) if (sinks := _by_head_alone(logits)) is not None), None)
        if sinks is None:
            return None
        shape = (1, -1, *(1,) * (present.ndim - 2)) if len(sinks) > 1 else (1,)
        shift = present - sinks.reshape(shape).to(present)
        given = _by_head_alone(column)
        named = given is not None and torch.equal(given.to(sinks).expand_as(sinks), sinks)
        logits = _beside(self.logits, place) - shift
        return _Weights(logits, self.source.without_sink(), given if named else sinks)


@dataclass(frozen=True, eq=False)
class _Exponentials:
    """Of exponentials of logits: the logits, and what is known of these."""

    logits: Tensor
    source: _Logits


class AttentionFunctions(TorchFunctionMode):
    """Gives every attention that runs in this thread inside the block to the watcher, and multiplies its logits."""

    def __init__(self) -> None:
        super().__init__()
        self._known: Any = WeakTensorKeyDictionary()
        self._lost: Any = WeakTensorKeyDictionary()
        self._running = ExitStack()

    def __enter__(self) -> AttentionFunctions:
        self._running.enter_context(_uncompiled())
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._running.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        name = getattr(func, "__name__", "")
        if _seen_elsewhere.get() or CROSSING.get():
            return func(*args, **named)
        handle = _HANDLED.get(name)
        if not self._known and not self._lost and handle not in _BEGINNING:  # nothing is followed
            return func(*args, **named)
        given = _flat((*args, *named.values())) if self._lost else ()
        lost = [self._lost[value] for value in given if isinstance(value, Tensor) and value in self._lost]
        output = self._followed(func, name, args, named) if handle is None else handle(self, func, name, args, named)
        if lost and handle is AttentionFunctions._softmax:
            _report(lost[0])
        elif lost and isinstance(output, Tensor) and handle not in _BEGINNING and (name != "linear" or output.ndim > 3):
            self._lost[output] = lost[0]
        return output

    def _followed(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Run a function that none of what is followed passes."""
        given = next((value for value in _flat(args) if self._of(value) is not None), None)
        known = self._of(given)
        output = func(*args, **named)
        if name in _OF_THE_SHAPE:
            return output
        if isinstance(output, Tensor):
            if given is not None and output.numel() >= given.numel():
                if not isinstance(known, _Weights):
                    self._lose(output, f"{name} acts on its logits")
                else:
                    _report(f"{name} {_ON_WEIGHTS}")
            self._known.pop(output, None)  # written into in a way that is not followed
        elif name == "topk" and isinstance(known, _Logits):
            self._lose(output[0], "topk chooses among its logits")
        return output

    def _lose(self, output: Tensor, words: str) -> None:
        """Note why an output is not followed as logits, to report it where a softmax reads it."""
        if LOST.get() is not None:
            self._lost[output] = words

    def _of(self, value: Any) -> _Logits | _Weights | _Exponentials | None:
        return self._known.get(value) if isinstance(value, Tensor) else None

    def _fused(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        del name
        factors, watch = LOG_FACTORS.get(), WATCHER.get()
        if func is not functional.scaled_dot_product_attention or (factors is None and watch is None):
            return func(*args, **named)
        given = _FusedArguments.of(*args, **named)
        with seen_elsewhere():
            if factors is None:
                output, weights = func(*args, **named), None
            else:
                output, weights = given.multiplied(factors())
            if watch is not None:
                watch(given.call(output, weights).without(FURTHER_SENDERS.get()))
        return output

    def _flexible(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        del name
        factors, watch = LOG_FACTORS.get(), WATCHER.get()
        with seen_elsewhere():
            result = func(*args, **named)
            flexible = None if factors is None and watch is None else _flexible_arguments(*args, **named)
            if flexible is None:
                return result
            given, soft_cap = flexible
            output, weights = result[0], None
            if factors is not None:
                output, weights = given.multiplied(factors())
            if watch is not None:
                watch(given.call(output, weights, soft_cap).without(FURTHER_SENDERS.get()))
        return (output, *result[1:])

    def _product(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        output = func(*args, **named)
        operands = _factors(name, args, named)
        if len(operands) != 2 or not isinstance(output, Tensor):
            return output
        first, second = operands
        weights = self._of(first)
        if isinstance(weights, _Weights) and weights.source.sink is not None:
            weights, first, second = _without_zero_value(weights, first, second)
        of_weights = isinstance(weights, _Weights)
        if weights is None and (mixed := self._of(second)) is not None:
            if isinstance(mixed, _Weights):
                _report(f"{name} {_ON_WEIGHTS}")
            else:
                self._lose(output, _MIXED)
        if name == "einsum":
            product = _einsum(args[0], first, second, of_weights=of_weights)
        else:
            product = _matmul(first, second, float(named.get("alpha", 1.0)))
        if product is None:
            return output
        if isinstance(weights, _Exponentials):
            _report("its exponentials are multiplied before they are divided by their sum")
        if isinstance(weights, _Weights):
            watch = WATCHER.get()
            call = product.attention(weights, output) if watch is not None else None
            if watch is not None and call is not None:
                with seen_elsewhere():
                    watch(call.without(FURTHER_SENDERS.get()))
        elif (logits := product.logits()) is not None:  # also of queries that a product has made
            self._known[output] = logits
        elif isinstance(weights, _Logits):
            self._lose(output, _MIXED)
        return output

    def _scaled(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        output = func(*args, **named)
        tensor, other = _operands(args, named)
        known = self._of(tensor)
        if known is None and "div" not in name:
            tensor, other = other, tensor
            known = self._of(tensor)
        if known is None or not isinstance(output, Tensor):
            return output
        if isinstance(known, _Exponentials):
            return self._divided(known, other, output)
        factor = _number(other)
        if isinstance(known, _Logits) and factor is not None:
            self._multiply(output, known, 1 / factor if factor and "div" in name else factor)
        elif "div" not in name and _is_mask(other):  # what it hides is hidden for good by what is added next
            self._keep(output, known)
        elif (
            isinstance(known, _Logits)
            and known.soft_cap is None
            and (by_head := _of_heads(other, known, output)) is not None
        ):
            query = known.query * (1 / by_head if "div" in name else by_head).to(known.query)
            self._keep(output, replace(known, query=query))
        else:
            if isinstance(known, _Logits):
                self._lose(output, "its logits are multiplied by factors that differ between tokens")
            else:
                _report(f"{name.strip('_')} {_ON_WEIGHTS}")
            self._known.pop(output, None)
        return output

    def _exponential(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow exponentials of logits, which are weights where the logits are those of a logarithm of a softmax."""
        tensor = args[0] if args else named.get("input")
        known = self._of(tensor)
        if not isinstance(known, _Logits) or not isinstance(tensor, Tensor):
            return self._followed(func, name, args, named)
        logits = tensor.detach().clone() if name.endswith("_") else tensor.detach()
        output = func(*args, **named)
        exponentials = _Exponentials(logits, known)
        sums = output.detach().sum(dim=-1, keepdim=True)
        if bool(((sums - 1).abs() <= _OF_SUMS).all()):
            return self._divided(exponentials, torch.ones_like(sums), output)
        self._known[output] = exponentials
        return output

    def _divided(self, known: _Exponentials, other: Any, output: Tensor) -> Tensor:
        """Follow exponentials that are divided by something of each row: by their sum, or by 1 more than that."""
        self._known.pop(output, None)
        if isinstance(other, Tensor) and other.ndim == output.ndim and other.shape[-1] == 1 < output.shape[-1]:
            weights = _softmax_of(known, output.detach())
            if weights is not None:
                return self._weights_or_multiplied(weights, output)
        elif _is_mask(other):
            hidden = other.expand_as(known.logits) == 0
            logits = known.logits.masked_fill(hidden, torch.finfo(known.logits.dtype).min)
            self._known[output] = replace(known, logits=logits)
            return output
        _report("its exponentials are not divided by their sum")
        return output

    def _weights_or_multiplied(self, weights: _Weights, output: Tensor) -> Tensor:
        """Follow weights that a network has made by itself, or put those of multiplied logits in their place."""
        factors = LOG_FACTORS.get()
        if factors is not None and weights.sinks is None:
            with seen_elsewhere():
                changed = _multiplied(weights.logits, weights.source, factors())
                output, weights = changed.softmax(dim=-1).to(output), replace(weights, logits=changed)
        self._known[output] = weights
        return output

    def _joined(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow logits beside which one further logit of each row is put, first or last: a sink."""
        known, place, column = self._with_column(name, args, named)
        if known is None:
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        if column is None:
            column = output.detach()[..., place : place + 1 or None]
        if output.shape[-1] != known.key.shape[-2] + 1 or _by_head_alone(column) is None:
            self._lose(output, f"{name} acts on its logits")
        else:
            self._known[output] = known.with_sink(place, column.detach())
        return output

    def _with_column(self, name: str, args: Any, named: dict[str, Any]) -> tuple[_Logits | None, int, Tensor | None]:
        """Return the logits to which a column is added, the place of that, and what it holds if a tensor is given."""
        if name == "pad":
            tensor, sides = args[0] if args else named.get("input"), args[1] if len(args) > 1 else named.get("pad")
            known = self._of(tensor)
            place = -1 if tuple(sides or ()) == (0, 1) else 0
            fits = place or tuple(sides or ()) == (1, 0)
            return (known if isinstance(known, _Logits) and known.sink is None and fits else None), place, None
        several = args[0] if args else named.get("tensors", ())
        axis = args[1] if len(args) > 1 else named.get("dim", named.get("axis", 0))
        if not isinstance(several, list | tuple) or len(several) != 2:
            return None, 0, None
        for tensor, other, place in ((several[0], several[1], -1), (several[1], several[0], 0)):
            known = self._of(tensor)
            last = axis in (-1, tensor.ndim - 1)
            if isinstance(known, _Logits) and known.sink is None and last and self._of(other) is None:
                return known, place, other
        return None, 0, None

    def _cut(self, output: Any, known: Any, place: int) -> None:
        """Follow weights from which those of a sink are left out."""
        tokens = known.of_tokens() if isinstance(known, _Weights) and known.source.sink == place else None
        if tokens is not None and output.shape[-1] == tokens.logits.shape[-1]:
            self._known[output] = tokens
        else:
            _report(f"a choice of entries {_ON_WEIGHTS}")

    def _added(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        first, second = _operands(args, named)
        known, factor = self._of(first), 1.0
        if not isinstance(known, _Logits):
            known, factor = self._of(second), float(named.get("alpha", 1.0)) * (-1.0 if "sub" in name else 1.0)
        if name == "__rsub__":
            factor = -factor
        output = func(*args, **named)
        if isinstance(known, _Logits) and isinstance(output, Tensor):
            self._multiply(output, known, factor)
        elif isinstance(self._of(first) or known, _Weights):
            _report(f"{name.strip('_')} {_ON_WEIGHTS}")
        return output

    def _multiply(self, output: Tensor, known: _Logits, factor: float) -> None:
        """Follow logits times a factor, beside what is added to them."""
        multiplied_logits = known.times(factor)
        if multiplied_logits is None:
            self._known.pop(output, None)
            self._lose(output, "its softly capped logits are multiplied by a factor that is not positive")
        else:
            self._keep(output, multiplied_logits)

    def _capped(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow the tanh of scaled products, a soft cap of 1; that of anything else ends the following."""
        tensor = args[0] if args else named.get("input")
        known = self._of(tensor)
        if not isinstance(known, _Logits) or known.soft_cap is not None or not isinstance(tensor, Tensor):
            return self._followed(func, name, args, named)
        products = known.scaled().reshape(tensor.shape)
        near = _ROUNDINGS * torch.finfo(tensor.dtype).eps * products.abs().amax().clamp_min(1.0)
        if bool(((tensor - products).abs() > near).any()):
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        self._keep(output, replace(known, soft_cap=1.0))
        return output

    def _hidden(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Entries take other values: of logits those of tokens that must not be seen, of weights those without any."""
        several = (*args, *named.values())
        known = next((known for value in several if (known := self._of(value)) is not None), None)
        output = func(*args, **named)
        if known is not None and isinstance(output, Tensor):
            bounds = [value for value in several if isinstance(value, Tensor | float | int) and self._of(value) is None]
            lowest = all(float(torch.as_tensor(bound).max()) < LOWEST_BIAS for bound in bounds if bound is not None)
            if name in ("masked_fill", "masked_fill_", "where") or (isinstance(known, _Logits) and lowest):
                self._keep(output, known)
            else:
                self._known.pop(output, None)
        return output

    def _same(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        del name
        output = func(*args, **named)
        known = self._of(args[0]) if args else None
        if known is not None and isinstance(output, Tensor):
            self._keep(output, known)
        return output

    def _sliced(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow a slice of all there is; any other choice of entries ends the following."""
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not all(part is Ellipsis or (isinstance(part, slice) and part.step in (None, 1)) for part in index):
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        known, shape = self._of(args[0]), args[0].shape
        if (
            isinstance(known, _Weights)
            and known.source.sink is not None
            and output.shape == (*shape[:-1], shape[-1] - 1)
        ):
            self._cut(output, known, 0 if index[-1].start == 1 else -1)
            return output
        if output.shape != shape:
            return self._followed(func, name, args, named)
        return self._same(lambda *given: output, name, args, named)

    def _narrowed(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow weights from which those of a sink are split off."""
        known = self._of(args[0]) if args else None
        if not isinstance(known, _Weights) or known.source.sink is None:
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        whole = known.logits.shape[-1]
        for piece in output if isinstance(output, tuple | list) else (output,):
            if piece.shape[-1] == whole - 1:
                self._cut(piece, known, 0 if piece.storage_offset() > args[0].storage_offset() else -1)
        return output

    def _softmax(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        del name
        tensor = args[0] if args else named.get("input")
        known, factors = self._of(tensor), LOG_FACTORS.get()
        axis = named.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(known, _Logits) or not isinstance(tensor, Tensor) or axis not in (-1, tensor.ndim - 1):
            return func(*args, **named)
        if factors is None:
            output = func(*args, **named)
            if output.shape == tensor.shape:
                # What runs next may write into the logits; the softmax itself does not.
                self._known[output] = _Weights(tensor.detach(), known)
            return output
        with seen_elsewhere():
            return self._multiplied_softmax(tensor, known, factors(), args, named)

    def _logarithm(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow the logarithm of a softmax over the senders: logits less something of each row."""
        tensor = args[0] if args else named.get("input")
        known, axis = self._of(tensor), named.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(known, _Logits) or not isinstance(tensor, Tensor) or axis not in (-1, tensor.ndim - 1):
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        self._keep(output, known)
        return output

    def _multiplied_softmax(
        self, logits: Tensor, known: _Logits, factors: Tensor, args: Any, named: dict[str, Any]
    ) -> Tensor:
        changed = _multiplied(logits, known, factors)
        wanted = named.get("dtype", args[2] if len(args) > 2 and isinstance(args[2], torch.dtype) else None)
        output = changed.softmax(dim=-1).to(wanted or logits.dtype)
        self._known[output] = _Weights(changed, known)
        return output

    def _keep(self, output: Tensor, known: _Logits | _Weights | _Exponentials) -> None:
        if not isinstance(known, _Logits):
            fits = output.ndim >= 2 and output.shape[-1] == known.logits.shape[-1]
            kept = known if fits and output.numel() == known.logits.numel() else None
        elif output.shape[:-1] == known.query.shape[:-1]:
            kept = known
        else:
            kept = known.reshaped(output.shape)
        if kept is None:
            self._known.pop(output, None)
        else:
            self._known[output] = kept


_Handle: TypeAlias = Callable[[AttentionFunctions, Any, str, Any, dict[str, Any]], Any]


_HANDLED: Mapping[str, _Handle] = {
    "scaled_dot_product_attention": AttentionFunctions._fused,
    "flex_attention": AttentionFunctions._flexible,
    "softmax": AttentionFunctions._softmax,
    "__getitem__": AttentionFunctions._sliced,
    **dict.fromkeys(("tanh", "tanh_"), AttentionFunctions._capped),
    **dict.fromkeys(("exp", "exp_"), AttentionFunctions._exponential),
    **dict.fromkeys(("cat", "concat", "concatenate", "pad"), AttentionFunctions._joined),
    **dict.fromkeys(("narrow", "split", "split_with_sizes"), AttentionFunctions._narrowed),
    "log_softmax": AttentionFunctions._logarithm,
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "baddbmm", "baddbmm_", "einsum"), AttentionFunctions._product),
    **dict.fromkeys(
        (
            *("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__", "div", "div_", "divide", "true_divide"),
            *("__truediv__", "__itruediv__"),
        ),
        AttentionFunctions._scaled,
    ),
    **dict.fromkeys(
        (
            *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "subtract", "__sub__", "__rsub__"),
            "__isub__",
        ),
        AttentionFunctions._added,
    ),
    **dict.fromkeys(
        ("masked_fill", "masked_fill_", "where", "max", "maximum", "clamp", "clamp_", "clamp_min", "clip"),
        AttentionFunctions._hidden,
    ),
    **dict.fromkeys(
        (
            *("to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone", "detach"),
            *("dropout", "dropout_", "view", "view_as", "reshape", "reshape_as", "unflatten", "flatten", "squeeze"),
            *("unsqueeze", "expand", "expand_as", "nan_to_num"),
        ),
        AttentionFunctions._same,
    ),
}
"""What is done about each function; any other one that writes into a tensor ends its following."""

_BEGINNING = (AttentionFunctions._product, AttentionFunctions._fused, AttentionFunctions._flexible)
"""What there is to do where nothing is followed yet."""


def _operands(args: Any, named: Mapping[str, Any]) -> tuple[Any, Any]:
    return args[0] if args else named.get("input"), args[1] if len(args) > 1 else named.get("other")


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 and value.dtype != torch.bool else None


def _of_heads(value: Any, logits: _Logits, output: Tensor) -> Tensor | None:
    """Return factors of the heads, or of the inputs, as what they multiply queries by; None for any other tensor."""
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[-2:] != (1, 1):
        return None
    follows = logits.soft_cap is None and output.shape[:-1] == logits.query.shape[:-1]
    return value.detach() if follows else None


_ON_WEIGHTS = "acts on the weights that its softmax gives"

_MIXED = "its logits are multiplied by a matrix, as where heads are mixed"


def _flat(values: Sequence[Any]) -> list[Any]:
    """Return values, and those of lists and tuples among them, as `torch.cat` takes them."""
    several = ([value] if not isinstance(value, list | tuple) else value for value in values)
    return [value for some in several for value in some]


def _report(words: str) -> None:
    """Report why logits were not followed to their softmax."""
    report = LOST.get()
    if report is not None:
        report(words)


_OF_THE_SHAPE = frozenset(
    (
        "full_like",
        "zeros_like",
        "ones_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "new_zeros",
        "new_ones",
        "new_full",
    )
)
"""What takes the shape of a tensor and none of its numbers."""

_OF_SUMS = 1e-5
"""By how much a sum of weights, or a weight, may miss what a softmax gives, in single precision."""


def _multiplied(logits: Tensor, known: _Logits, factors: Tensor) -> Tensor:
    """Return logits of which the scaled products are multiplied, by the logarithms of factors of each input."""
    scaled = known.scaled().double()
    added = logits.double() - scaled
    of_row = factors.repeat_interleave(logits.shape[0] // len(factors))  # heads may stand below each other
    return multiplied(scaled, added, added < LOWEST_BIAS, of_row)


def _beside(tensor: Tensor, place: int | None) -> Tensor:
    """Return a tensor (…, sender) without its first or its last sender."""
    return tensor if place is None else tensor[..., 1:] if place == 0 else tensor[..., :-1]


def _by_head_alone(column: Tensor) -> Tensor | None:
    """Return logits (input, head, receiver, 1) by head; None where they are others for other inputs or receivers."""
    if column.ndim < 2 or column.shape[-1] != 1:
        return None
    column = column.detach()
    if column.ndim == 4 and bool((column == column[:1, :, :1]).all()):
        return column[0, :, 0, 0]
    return column.flatten()[:1] if bool((column == column.flatten()[0]).all()) else None


def _softmax_of(known: _Exponentials, weights: Tensor) -> _Weights | None:
    """Return weights as the softmax of logits, or of logits beside a logit of 0; None where they are neither.

    The logit of 0 stands beside the logits themselves, or beside products to which a mask alone is added, since the
    largest may have been taken off before.
    """
    logits = known.logits
    if bool(((weights - logits.softmax(dim=-1)).abs() <= _OF_SUMS).all()):
        return _Weights(logits, known.source)
    scaled = known.source.scaled().reshape(logits.shape)
    masked = torch.where(
        logits - logits.amax(dim=-1, keepdim=True) < LOWEST_BIAS, logits.clamp(max=2 * LOWEST_BIAS), scaled
    )
    for candidate in (logits, masked):
        with_zero = torch.cat((candidate, torch.zeros_like(candidate[..., :1])), dim=-1)
        if bool(((weights - with_zero.softmax(dim=-1)[..., :-1]).abs() <= _OF_SUMS).all()):
            return _Weights(candidate, known.source, torch.zeros(1, dtype=weights.dtype, device=weights.device))
    return None


def _without_zero_value(weights: _Weights, first: Tensor, value: Tensor) -> tuple[_Weights, Tensor, Tensor]:
    """Return weights and values without a sink whose value is zero; all as they are where it is not."""
    tokens, place = weights.of_tokens(), weights.source.sink
    if tokens is None or value.shape[-2] != weights.logits.shape[-1] or bool((value[..., place, :] != 0).any()):
        return weights, first, value
    return tokens, _beside(first, place), _beside(value.mT, place).mT


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(((value == 0) | (value == 1)).all())


@dataclass(frozen=True, eq=False)
class _Product:
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

    def logits(self) -> _Logits | None:
        """Return what it is if its rows are queries and its columns keys."""
        if self.of_output != tuple(range(len(self.of_output))) or not self.first.is_floating_point():
            return None
        lead = np.broadcast_shapes(self.first.shape[:-2], self.second.shape[:-2])
        query, key = (tensor.expand(*lead, *tensor.shape[-2:]).detach() for tensor in (self.first, self.second))
        return _Logits(query, key, self.factor)

    def attention(self, weights: _Weights, output: Tensor) -> AttentionCall | None:
        """Return the attention whose weights it multiplies with values; None if these stand in another order."""
        logits, source = weights.logits, weights.source
        lead, width = logits.shape[:-2], self.second.shape[-2]
        if self.first.shape[-1] != logits.shape[-1] or self.first.numel() != logits.numel():
            return None
        value, summed = self.second.mT, output.permute(self.of_output)
        if summed.numel() != lead.numel() * logits.shape[-2] * width:
            return None
        if value.shape[:-2].numel() == lead.numel():
            value = value.reshape(*lead, *value.shape[-2:])
        elif value.ndim > 2 and lead[: value.ndim - 2] == value.shape[:-2]:
            value = value.reshape(*value.shape[:-2], *(1,) * (len(lead) - value.ndim + 2), *value.shape[-2:])
            value = value.expand(*lead, *value.shape[-2:])
        else:
            value = value.expand(*lead, *value.shape[-2:])
        first, summed = self.first.reshape(logits.shape), summed.reshape(*lead, -1, width)
        return _call(logits, source, first, value, summed, weights.sinks)


def _call(
    logits: Tensor, source: _Logits, weights: Tensor, value: Tensor, output: Tensor, sinks: Tensor | None
) -> AttentionCall:
    grouped = _in_groups(source.query, source.key)
    logits, weights, query, key, value, output = (
        _by_head(tensor.detach(), grouped) for tensor in (logits, weights, source.query, source.key, value, output)
    )

    def mask_of(rows: slice) -> Tensor | None:
        given, scaled = (
            logits[:, :, rows],
            _Logits(query.to(logits), key.to(logits), source.scale, source.soft_cap).scaled(rows),
        )
        added, hidden = given - scaled, (weights[:, :, rows] == 0) & (given - scaled < LOWEST_BIAS)
        if sinks is None:  # a softmax sees no shift
            highest = added.masked_fill(hidden, -torch.inf).amax(dim=-1, keepdim=True)
            added = added - torch.where(highest.isfinite(), highest, 0.0)
        added = added.masked_fill(hidden, 0.0)
        size = scaled.abs().amax().clamp_min(1.0)
        if not bool((added.abs() > _ROUNDINGS * torch.finfo(logits.dtype).eps * size).any()):
            added = torch.zeros_like(added)
        elif not bool(hidden.any()):
            return added
        return added.masked_fill(hidden, torch.finfo(logits.dtype).min) if bool(hidden.any() | added.any()) else None

    def shown(rows: slice) -> Tensor | None:
        given, zero = logits[:, :, rows], weights[:, :, rows] == 0
        if not bool(zero.any()):
            return None
        # No product of a query and a key is larger: what is far below it is hidden, whatever the product is.
        largest = abs(source.scale) * float(query.norm(dim=-1).max() * key.norm(dim=-1).max())
        hidden = zero & (given < LOWEST_BIAS - largest)
        if not torch.equal(hidden, zero) and bool((given[zero & ~hidden] < LOWEST_BIAS + largest).any()):
            mask = mask_of(rows)
            return None if mask is None else mask > torch.finfo(mask.dtype).min / 2
        return ~hidden

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


def _by_head(tensor: Tensor, grouped: bool = False) -> Tensor:
    """Return a tensor (…, head, token, feature) as (batch, head, token, feature); one without heads has one.

    Args:
        tensor: Of an attention.
        grouped: Whether heads have two axes, as those in groups that share a key; see `_in_groups`.
    """
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.flatten(0, -5).flatten(1, 2) if grouped and tensor.ndim > 4 else tensor.flatten(0, -4)


def _in_groups(query: Tensor, key: Tensor) -> bool:
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


def _factors(name: str, args: Any, named: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the tensors that a function multiplies."""
    if name == "einsum":
        several = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        return tuple(several) if isinstance(args[0], str) else ()
    first, labels = (1, ("batch1", "batch2")) if name.startswith("baddbmm") else (0, ("other", "mat2"))
    return (*args[first : first + 2], *(named[label] for label in labels if label in named))


def _matmul(left: Tensor, right: Tensor, factor: float) -> _Product | None:
    if min(left.ndim, right.ndim) < 3:  # a matrix is the weight of a linear map
        return None
    return _Product(left, right.mT, factor, tuple(range(max(left.ndim, right.ndim))))


def _einsum(equation: str, left: Tensor, right: Tensor, *, of_weights: bool) -> _Product | None:
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
    if not inner or not columns or not rows:
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
    return _Product(one, other, 1.0, tuple(out.index(axis) for axis in (*lead, row, column)))


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


@dataclass(frozen=True, eq=False)
class _FusedArguments:
    """What PyTorch's fused attention is given; see `torch.nn.functional.scaled_dot_product_attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

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
        grouped = _in_groups(query, key)
        mask = attn_mask
        if mask is not None and mask.ndim > 2 and not mask.ndim == query.ndim == 4:  # its last axes are the query's
            mask = mask.expand(*query.shape[:-2], *mask.shape[-2:])
            mask = mask if mask.ndim == 4 else _by_head(mask, grouped)
        by_head = (_by_head(query, grouped), _by_head(key, grouped), _by_head(value, grouped))
        return _FusedArguments(*by_head, mask, is_causal, factor)

    def shown(self, rows: slice) -> Tensor | None:
        """Return which senders some receivers may see; None where every token sees every token."""
        if not self.causal:
            mask = rows_of(self.mask, rows, self.query.shape[-2])
            return mask if mask is None or mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
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

    def multiplied(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and weights with multiplied logits."""
        everything = slice(0, self.query.shape[-2])
        named = {"scaling": self.scale}
        output, weights = attend_multiplied(self.query, self.key, self.value, self.mask_of(everything), factors, named)
        return output.transpose(1, 2), weights

    def call(self, output: Tensor, weights: Tensor | None, soft_cap: float | None = None) -> AttentionCall:
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
                    soft_cap=soft_cap,
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
            soft_cap=soft_cap,
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
) -> tuple[_FusedArguments, float | None] | None:
    """Return what PyTorch's flex_attention was given, and its soft cap; None where it changes logits in another way.

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
    size = _ROUNDINGS * torch.finfo(products.dtype).eps * max(1.0, float((products.abs() + term.abs()).max()))

    def near(wanted: Tensor) -> bool:
        return bool(((beside - wanted).abs() <= size).all())

    soft_cap = None if near(products) else cap
    if soft_cap is not None and not (cap > 0 and near(cap * torch.tanh(products / cap))):
        return None
    mask = term.masked_fill(~shown, torch.finfo(query.dtype).min)
    scaled = _FusedArguments(query, key, value, mask if bool(mask.any()) else None, causal=False, scale=float(scale))
    return scaled, soft_cap


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


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Let flex_attention, which compiles itself where it is called, run as it is inside the block, to be seen.

    PyTorch runs the same function on the same numbers. Several such blocks may be open at a time, in several threads.
    """
    choose = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    if choose is None or "torch.nn.attention.flex_attention" not in sys.modules:
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
