"""Sees the attentions that a network computes by PyTorch's functions, without transformers' attention interface.

A product of queries and keys is followed through scaling, adding and reshaping to a softmax, and the weights from there
to their product with the values. What was added on the way (a mask, a bias by position, a second product) is what the
logits are beyond the scaled product. Whatever else happens to logits ends the following: such an attention is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from tokendynamics.pretrained._torch_attention import CROSSING, FURTHER_SENDERS
from tokendynamics.pretrained.discovery._followed_tensors import (
    OF_SUMS,
    ROUNDINGS,
    Exponentials,
    Logits,
    Weights,
    logits_of_heads,
    without_zero_value,
)
from tokendynamics.pretrained.discovery._fused_attention import FUSED, uncompiled
from tokendynamics.pretrained.discovery._products import (
    einsum_product,
    exchanged,
    factors_of,
    matmul_product,
    of_pairs,
    rows_last,
)
from tokendynamics.pretrained.discovery.attention_call import (
    LOG_FACTORS,
    LOST,
    LOWEST_BIAS,
    SEEN_ELSEWHERE,
    WATCHER,
    AttentionCall,
    seen_elsewhere,
)


class _OfTensors(WeakTensorKeyDictionary):
    """Values by tensors that are not kept alive; asked of most tensors that it lacks, which their ids tell sooner."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = set[int]()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ids.add(id(key))
        super().__setitem__(key, value)

    def __contains__(self, key: object) -> bool:
        return id(key) in self._ids and super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key, default) if id(key) in self._ids else default

    def pop(self, key: Any, *default: Any) -> Any:
        return super().pop(key, *default) if id(key) in self._ids else default[0]


class AttentionFunctions(TorchFunctionMode):
    """Gives every attention that runs in this thread inside the block to the watcher, and multiplies its logits."""

    def __init__(self) -> None:
        super().__init__()
        self._known: Any = _OfTensors()
        self._lost: Any = _OfTensors()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        name = getattr(func, "__name__", "")
        if SEEN_ELSEWHERE.get() or CROSSING.get():
            return func(*args, **named)
        if (attend := FUSED.get(name)) is not None:
            return attend(func, args, named)
        handle = _HANDLED.get(name)
        begins = handle is AttentionFunctions._product
        if not begins and not self._known.data and not self._lost.data:  # nothing is followed; their lengths take time
            return func(*args, **named)
        given = _flat((*args, *named.values())) if self._lost.data else ()
        lost = [self._lost[value] for value in given if isinstance(value, Tensor) and value in self._lost]
        output = self._followed(func, name, args, named) if handle is None else handle(self, func, name, args, named)
        if lost and handle is AttentionFunctions._softmax:
            _report(lost[0])
        elif lost and not begins and isinstance(output, Tensor) and (name != "linear" or output.ndim > 3):
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
                if not isinstance(known, Weights):
                    self._lose(output, f"{name} acts on its logits")
                else:
                    _report(f"{name} {_ON_WEIGHTS}")
            self._known.pop(output, None)  # written into in a way that is not followed
        elif name == "topk" and isinstance(known, Weights):
            _report(f"{name} {_ON_WEIGHTS}")
        elif name == "topk" and isinstance(known, Logits):
            self._lose(output[0], "topk chooses among its logits")
        return output

    def _lose(self, output: Tensor, words: str) -> None:
        """Note why an output is not followed as logits, to report it where a softmax reads it."""
        if LOST.get() is not None:
            self._lost[output] = words

    def _of(self, value: Any) -> Logits | Weights | Exponentials | None:
        return self._known.get(value) if isinstance(value, Tensor) else None

    def _product(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        output = func(*args, **named)
        operands = factors_of(name, args, named)
        if len(operands) != 2 or not isinstance(output, Tensor):
            if len(operands) > 2 and isinstance(output, Tensor):
                if any(isinstance(self._of(operand), Weights) for operand in operands):
                    _report(f"{name} of {len(operands)} tensors {_ON_WEIGHTS}")
                else:
                    self._lose(output, f"its logits are one product of {len(operands)} tensors")
            return output
        first, second = operands
        equation = args[0] if name == "einsum" else ""
        weights, other = self._of(first), self._of(second)
        if equation and not isinstance(weights, Weights) and (isinstance(other, Weights) or rows_last(equation)):
            equation, first, second, weights = exchanged(equation), second, first, other
        if isinstance(weights, Weights) and weights.source.sink is not None:
            weights, first, second = without_zero_value(weights, first, second)
        of_weights = isinstance(weights, Weights)
        if weights is None and (mixed := self._of(second)) is not None:
            if isinstance(mixed, Weights):
                _report(f"{name} {_ON_WEIGHTS}")
            else:
                self._lose(output, _MIXED)
        if name == "einsum":
            product = einsum_product(equation, first, second, of_weights=of_weights)
        else:
            product = matmul_product(first, second, float(named.get("alpha", 1.0)))
        if product is None:
            if of_weights:
                _report(f"{name} {_ON_WEIGHTS}")
            elif name == "einsum" and of_pairs(args[0]):
                self._lose(output, "its logits do not end in the axes of queries and keys")
            return output
        if isinstance(weights, Exponentials):
            _report("its exponentials are multiplied before they are divided by their sum")
        if isinstance(weights, Weights):
            watch = WATCHER.get()
            call = product.attention(weights, output) if watch is not None else None
            if watch is not None and call is not None:
                with seen_elsewhere():
                    watch(call.without(FURTHER_SENDERS.get()))
        elif (logits := product.logits()) is not None:  # also of queries that a product has made
            self._known[output] = logits
        elif isinstance(weights, Logits):
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
        if isinstance(known, Exponentials):
            return self._divided(known, other, output)
        factor = _number(other)
        if isinstance(known, Logits) and factor is not None:
            self._multiply(output, known, 1 / factor if factor and "div" in name else factor)
        elif "div" not in name and _is_mask(other):  # what it hides is hidden for good by what is added next
            self._keep(output, known)
        elif isinstance(known, Logits) and (by_head := _of_heads(other, known, output)) is not None:
            query = known.query * (1 / by_head if "div" in name else by_head).to(known.query)
            self._keep(output, replace(known, query=query))
        else:
            if isinstance(known, Logits):
                self._lose(output, "its logits are multiplied by factors that differ between tokens")
            else:
                _report(f"{name.strip('_')} {_ON_WEIGHTS}")
            self._known.pop(output, None)
        return output

    def _exponential(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow exponentials of logits, which are weights where the logits are those of a logarithm of a softmax."""
        tensor = args[0] if args else named.get("input")
        known = self._of(tensor)
        if not isinstance(known, Logits) or not isinstance(tensor, Tensor):
            return self._followed(func, name, args, named)
        logits = tensor.detach().clone() if name.endswith("_") else tensor.detach()
        output = func(*args, **named)
        exponentials = Exponentials(logits, known)
        sums = output.detach().sum(dim=-1, keepdim=True)
        if bool(((sums - 1).abs() <= OF_SUMS).all()):
            return self._divided(exponentials, torch.ones_like(sums), output)
        self._known[output] = exponentials
        return output

    def _divided(self, known: Exponentials, other: Any, output: Tensor) -> Tensor:
        """Follow exponentials that are divided by something of each row: by their sum, or by 1 more than that."""
        self._known.pop(output, None)
        if isinstance(other, Tensor) and other.ndim == output.ndim and other.shape[-1] == 1 < output.shape[-1]:
            weights = known.softmax(output.detach())
            if weights is not None:
                return self._weights_or_multiplied(weights, output)
        elif _is_mask(other):
            hidden = other.expand_as(known.logits) == 0
            logits = known.logits.masked_fill(hidden, torch.finfo(known.logits.dtype).min)
            self._known[output] = replace(known, logits=logits)
            return output
        _report("its exponentials are not divided by their sum")
        return output

    def _weights_or_multiplied(self, weights: Weights, output: Tensor) -> Tensor:
        """Follow weights that a network has made by itself, or put those of multiplied logits in their place."""
        factors = LOG_FACTORS.get()
        if factors is not None and weights.sinks is None:
            with seen_elsewhere():
                changed = weights.source.multiplied(weights.logits, factors())
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
        if output.shape[-1] != known.key.shape[-2] + 1 or logits_of_heads(column) is None:
            self._lose(output, f"{name} acts on its logits")
        else:
            self._known[output] = known.with_sink(place, column.detach())
        return output

    def _with_column(self, name: str, args: Any, named: dict[str, Any]) -> tuple[Logits | None, int, Tensor | None]:
        """Return the logits to which a column is added, the place of that, and what it holds if a tensor is given."""
        if name == "pad":
            tensor, sides = args[0] if args else named.get("input"), args[1] if len(args) > 1 else named.get("pad")
            known = self._of(tensor)
            place = -1 if tuple(sides or ()) == (0, 1) else 0
            fits = place or tuple(sides or ()) == (1, 0)
            return (known if isinstance(known, Logits) and known.sink is None and fits else None), place, None
        several = args[0] if args else named.get("tensors", ())
        axis = args[1] if len(args) > 1 else named.get("dim", named.get("axis", 0))
        if not isinstance(several, list | tuple) or len(several) != 2:
            return None, 0, None
        for tensor, other, place in ((several[0], several[1], -1), (several[1], several[0], 0)):
            known = self._of(tensor)
            last = axis in (-1, tensor.ndim - 1)
            if isinstance(known, Logits) and known.sink is None and last and self._of(other) is None:
                return known, place, other
        return None, 0, None

    def _cut(self, output: Any, known: Any, place: int) -> None:
        """Follow weights from which those of a sink are left out."""
        tokens = known.of_tokens() if isinstance(known, Weights) and known.source.sink == place else None
        if tokens is not None and output.shape[-1] == tokens.logits.shape[-1]:
            self._known[output] = tokens
        else:
            _report(f"a choice of entries {_ON_WEIGHTS}")

    def _added(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        first, second = _operands(args, named)
        known, factor = self._of(first), 1.0
        if not isinstance(known, Logits):
            known, factor = self._of(second), float(named.get("alpha", 1.0)) * (-1.0 if "sub" in name else 1.0)
        if name == "__rsub__":
            factor = -factor
        output = func(*args, **named)
        if isinstance(known, Logits) and isinstance(output, Tensor):
            self._multiply(output, known, factor)
        elif isinstance(self._of(first) or known, Weights):
            _report(f"{name.strip('_')} {_ON_WEIGHTS}")
        return output

    def _multiply(self, output: Tensor, known: Logits, factor: float) -> None:
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
        if not isinstance(known, Logits) or known.soft_cap is not None or not isinstance(tensor, Tensor):
            return self._followed(func, name, args, named)
        products = known.scaled().reshape(tensor.shape)
        near = ROUNDINGS * torch.finfo(tensor.dtype).eps * products.abs().amax().clamp_min(1.0)
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
            if name in ("masked_fill", "masked_fill_", "where") or (isinstance(known, Logits) and lowest):
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
            isinstance(known, Weights)
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
        if not isinstance(known, Weights) or known.source.sink is None:
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        whole = known.logits.shape[-1]
        for piece in output if isinstance(output, tuple | list) else (output,):
            if piece.shape[-1] == whole - 1:
                self._cut(piece, known, 0 if piece.storage_offset() > args[0].storage_offset() else -1)
        return output

    def _softmax(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        del name
        taken, factors = self._over_senders(args, named), LOG_FACTORS.get()
        if taken is None:
            return func(*args, **named)
        tensor, known = taken
        if factors is None:
            output = func(*args, **named)
            if output.shape == tensor.shape:
                # What runs next may write into the logits; the softmax itself does not.
                self._known[output] = Weights(tensor.detach(), known)
                _report(NOT_FOLLOWED)
            return output
        with seen_elsewhere():
            logits = known.multiplied(tensor, factors())
            wanted = named.get("dtype", args[2] if len(args) > 2 and isinstance(args[2], torch.dtype) else None)
            output = logits.softmax(dim=-1).to(wanted or tensor.dtype)
            self._known[output] = Weights(logits, known)
        return output

    def _logarithm(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Any:
        """Follow the logarithm of a softmax over the senders: logits less something of each row."""
        taken = self._over_senders(args, named)
        if taken is None:
            return self._followed(func, name, args, named)
        output = func(*args, **named)
        self._keep(output, taken[1])
        return output

    def _over_senders(self, args: Any, named: dict[str, Any]) -> tuple[Tensor, Logits] | None:
        """Return the tensor that a softmax takes over its last axis, and what is known of it; None of anything else."""
        tensor = args[0] if args else named.get("input")
        known, axis = self._of(tensor), named.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(known, Logits) or not isinstance(tensor, Tensor) or axis not in (-1, tensor.ndim - 1):
            return None
        return tensor, known

    def _keep(self, output: Tensor, known: Logits | Weights | Exponentials) -> None:
        if not isinstance(known, Logits):
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


def _operands(args: Any, named: Mapping[str, Any]) -> tuple[Any, Any]:
    return args[0] if args else named.get("input"), args[1] if len(args) > 1 else named.get("other")


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 and value.dtype != torch.bool else None


def _of_heads(value: Any, logits: Logits, output: Tensor) -> Tensor | None:
    """Return factors of the heads, or of the inputs, as what they multiply queries by; None for any other tensor."""
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[-2:] != (1, 1):
        return None
    follows = logits.soft_cap is None and output.shape[:-1] == logits.query.shape[:-1]
    return value.detach() if follows else None


NOT_FOLLOWED = "the weights that its softmax gives are not followed to a product with values"
"""Of every softmax of logits, until such a product is seen: the reason where there is no other."""


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
        *("full_like", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"),
        *("new_zeros", "new_ones", "new_full"),
    )
)
"""What takes the shape of a tensor and none of its numbers."""


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(((value == 0) | (value == 1)).all())


@contextmanager
def noticing(watch: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Give to `watch` what runs in this thread inside the block: attentions by functions, and those that are shown."""
    token = WATCHER.set(watch)
    try:
        with uncompiled(), AttentionFunctions():
            yield
    finally:
        WATCHER.reset(token)
