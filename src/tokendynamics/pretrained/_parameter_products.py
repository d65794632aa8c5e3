"""Follows parameters of a module through functions to their products with states, and calls these as modules.

Which products there are is found in one pass, see `learning`. A module that runs `WithRawProjections` then calls each
of them as a `RawProjection`, with its hooks, on states with the features last. Without hooks it runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained._raw_projections import (
    Applied,
    Axes,
    Expression,
    Followed,
    Leaf,
    Product,
    RawProjection,
    Shape,
    evaluated,
    followed,
    parameters_in,
)


@dataclass(frozen=True, eq=False)
class _Given:
    """What is known of a tensor that is what a projection gave, in another shape."""

    projection: RawProjection
    product: Product
    y: Tensor
    steps: tuple[Shape, ...] = ()

    def shaped(self, y: Tensor) -> Tensor:
        """Return what the product gave in the shape of the tensor."""
        for step in self.steps:
            y = step(y)
        return y


_LEARNING: ContextVar[bool] = ContextVar("_LEARNING", default=False)

_RECORDING: ContextVar[bool] = ContextVar("_RECORDING", default=False)
"""Whether projections may be absent from a pass although there are hooks on them."""


@contextmanager
def learning() -> Iterator[None]:
    """Let passes of this thread inside the block find the projections of the modules that are followed."""
    token = _LEARNING.set(True)
    try:
        yield
    finally:
        _LEARNING.reset(token)


@contextmanager
def recording() -> Iterator[None]:
    """Let passes of this thread inside the block run without some of the projections on which hooks are."""
    token = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(token)


class WithRawProjections:
    """What a module runs in the place of its own forward pass, so that its projections are called."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.former = module, module.forward

    def __call__(self, *positional: Any, **named: Any) -> Any:
        known, learns = followed(self.module), _LEARNING.get()
        projections = () if known is None else known.projections.values()
        if known is None or not (learns or any(map(_has_hooks, projections))):
            return self.former(*positional, **named)
        mode = _Following(self.module, known, learns)
        with mode:
            output = self.former(*positional, **named)
        mode.check()
        return output


def _has_hooks(projection: RawProjection) -> bool:
    return bool(projection._forward_hooks or projection._forward_pre_hooks)


class _Following(TorchFunctionMode):
    """Follows parameters through functions to products, and calls the projections that these are."""

    def __init__(self, module: nn.Module, known: Followed, learns: bool) -> None:
        super().__init__()
        self._module, self._projections, self._learns = module, known.projections, learns
        # Tensors are kept, so that no other one has their id.
        self._known: dict[int, tuple[Tensor, Expression | _Given]] = {}
        for name in known.names:
            tensor = evaluated(Leaf(name), module)
            self._known[id(tensor)] = tensor, Leaf(name)
        self._called = set[str]()

    def check(self) -> None:
        """Refuse a pass in which a projection with hooks did not run.

        Raises:
            CheckpointError: It names it.
        """
        for name, projection in self._projections.items():
            if not self._learns and not _RECORDING.get() and name not in self._called and _has_hooks(projection):
                came = f"one in which its parameter {name} does something else than where it was found"
                raise CheckpointError(
                    type(self._module).__name__, "a pass like that in which its layout was found", came
                )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named: dict[str, Any] = kwargs or {}
        tensors = _tensors((args, named))
        marks = [self._of(tensor) for tensor in tensors]
        expressions = [mark for mark in marks if isinstance(mark, Leaf | Applied)]
        given = next((mark for mark in marks if isinstance(mark, _Given)), None)
        name = getattr(func, "__name__", "")
        if not tensors or not (expressions or given):
            return func(*args, **named)
        if name in _IN_PLACE or (name.endswith("_") and not name.startswith("__")) or named.get("out") is not None:
            return self._written(func, name, tensors, marks, args, named)
        if len(expressions) == len(tensors):
            return self._applied(func, args, named)
        if expressions and name in _ADDED and given is not None and len(tensors) == 2 and "alpha" not in named:
            return self._added(name, func(*args, **named), tensors, marks)
        if expressions:
            product = self._product(func, name, args, named)
            if product is not None:
                return self._projected(product, func(*args, **named))
        elif given is not None and len(tensors) == 1 and name in _SHAPING:
            return self._shaped(func, args, named, tensors[0], given)
        return func(*args, **named)

    def _of(self, tensor: Tensor) -> Expression | _Given | None:
        known = self._known.get(id(tensor))
        return None if known is None else known[1]

    def _shaped(self, func: Any, args: Any, named: dict[str, Any], tensor: Tensor, given: _Given) -> Any:
        """Follow what a projection gave, or pieces of it, through a change of shape."""
        output = func(*args, **named)
        template = tuple(_PLACE if entry is tensor else entry for entry in args)
        several = output if isinstance(output, tuple | list) else [output]
        for place, made in enumerate(cast("Sequence[Any]", several)):
            if isinstance(made, Tensor) and made.is_floating_point():
                step = _Shaped(func, template, named, place if several is output else None)
                self._known[id(made)] = made, replace(given, steps=(*given.steps, step))
        return output

    def _applied(self, func: Any, args: Any, named: dict[str, Any]) -> Any:
        """Follow parameters through a function of them alone."""
        output = func(*args, **named)
        several = output if isinstance(output, tuple | list) else [output]
        for place, made in enumerate(cast("Sequence[Any]", several)):
            if isinstance(made, Tensor) and made.is_floating_point():
                item = place if several is output else None
                keywords = tuple((key, self._expression(value)) for key, value in named.items())
                self._known[id(made)] = made, Applied(func, self._expression(args), keywords, item)
        return output

    def _expression(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._of(value)
        if isinstance(value, tuple | list):
            several = [self._expression(entry) for entry in cast("Sequence[Any]", value)]
            return several if isinstance(value, list) else tuple(several)
        return value

    def _written(
        self, func: Any, name: str, tensors: Sequence[Tensor], marks: Sequence[Any], args: Any, named: dict[str, Any]
    ) -> Any:
        """Add a bias in place; anything else that is written into a tensor ends its following."""
        target, given = tensors[0], marks[0]
        self._known.pop(id(target), None)
        if (
            name in _ADDED
            and isinstance(given, _Given)
            and len(tensors) == 2
            and isinstance(marks[1], Leaf | Applied)
            and "alpha" not in named
        ):
            y = given.product.run(given.product.x)
            given = _Given(given.projection, given.product, y, given.steps)
            output = func(*args, **named)
            changed = self._added(name, output, tensors, [given, marks[1]])
            return output if changed is output else output.copy_(changed)
        return func(*args, **named)

    def _product(self, func: Any, name: str, args: Any, named: dict[str, Any]) -> Product | None:
        """Return the product of states with an expression that a function is; None for any other function."""
        operands = _operands(name, args, named)
        if operands is None:
            return None
        (first, second), axes_of, bias = operands
        marks = [self._of(tensor) for tensor in (first, second)]
        places = [place for place, mark in enumerate(marks) if isinstance(mark, Leaf | Applied)]
        added = None if bias is None else self._of(bias)
        if len(places) != 1 or (bias is not None and not isinstance(added, Leaf | Applied)):
            return None
        (place,) = places
        x, held = (second, first) if place == 0 else (first, second)
        labels = axes_of()
        if labels is None:
            return None
        axes = _axes(*((labels[1], labels[0]) if place == 0 else labels[:2]), labels[2], x, held)
        if axes is None:
            return None

        def run(states: Tensor) -> Tensor:
            return func(
                *_replaced(args, x, states), **{key: _replaced(value, x, states) for key, value in named.items()}
            )

        return Product(x, cast("Expression", marks[place]), axes, run, cast("Any", added))

    def _projected(self, product: Product, y: Tensor) -> Tensor:
        projection = next((one for one in self._projections.values() if one.is_of(product)), None)
        if projection is None and self._learns:
            projection = self._learned(product, y)
        if projection is None:
            return y
        known = _Given(projection, product, y)
        pending = projection.is_biased and product.added is None
        if not pending and not self._learns and _has_hooks(projection):
            y = self._called_as_module(known, y, product.run, None)
        self._known[id(y)] = y, known
        return y

    def _learned(self, product: Product, y: Tensor) -> RawProjection | None:
        projection = RawProjection(self._module, self._new_name(product), product.held, product.axes)
        if product.added is not None:
            value = evaluated(product.added, self._module)
            if not projection.add(product.added, value, _feature_places(product.axes, y)):
                return None
        self._projections[projection.name] = projection
        return projection

    def _new_name(self, product: Product) -> str:
        base = parameters_in(product.held)[0]
        alike = sum(name.split("#")[0] == base for name in self._projections)
        return f"{base}#{alike + 1}" if alike else base

    def _learn_bias(self, given: _Given, bias: Expression, value: Tensor, output: Tensor, sign: float) -> None:
        """Find that a vector is added to all or some of the outputs of a projection."""
        product = given.product
        places = given.shaped(_feature_places(product.axes, given.y))
        if output.shape != places.shape:
            return
        rows = _rows_of(given)
        places = places if rows is None else torch.searchsorted(rows, places)
        alike = [one for one in self._projections.values() if one.is_of(product, rows)]
        if any(one.adds(bias, sign) for one in alike):
            return
        made = (self._module, self._new_name(product), product.held, product.axes, rows)
        projection = next((one for one in alike if not one.is_biased), None) or RawProjection(*made)
        if projection.add(bias, value, places, sign):
            self._projections[projection.name] = projection

    def _added(self, name: str, output: Tensor, tensors: Sequence[Tensor], marks: Sequence[Any]) -> Tensor:
        """Call a projection whose bias is added to what its product gave."""
        given = next(mark for mark in marks if isinstance(mark, _Given))
        bias = next(mark for mark in marks if not isinstance(mark, _Given))
        negative = "sub" in name
        if negative and isinstance(marks[1], _Given):  # b − y
            return output
        if self._learns:
            self._learn_bias(given, bias, tensors[marks.index(bias)], output, -1.0 if negative else 1.0)
            return output
        alike = [one for one in self._projections.values() if _has_hooks(one) and one.is_biased]
        rows = _rows_of(given) if any(one.rows is not None for one in alike) else None
        for projection in alike:
            same = projection.is_of(given.product, rows) and projection.adds(bias, -1.0 if negative else 1.0)
            if same and given.product.added is None:
                other = _Given(projection, given.product, given.y, given.steps)
                return self._called_as_module(other, output, given.product.run, projection.bias)
        return output

    def _called_as_module(self, given: _Given, output: Tensor, run: Shape, bias: Tensor | None) -> Tensor:
        """Call a projection, and return its output as it stands in the pass.

        Args:
            given: What its product gave.
            output: What it gives if no hook changes anything.
            run: Makes the product of other states.
            bias: What is added to that; None for nothing.
        """
        product, projection, rows = given.product, given.projection, given.projection.rows
        x = product.axes.states_read(product.x)
        whole = product.axes.states_given(given.y)

        def finished(states: Tensor) -> Tensor:
            states = states if rows is None else states[..., rows.to(states.device)]
            return states if bias is None else states + bias.to(states)

        y = finished(whole)

        def forward(states: Tensor) -> Tensor:
            return (
                y if states is x else finished(product.axes.states_given(run(product.axes.as_read(states, product.x))))
            )

        self._called.add(projection.name)
        made = projection(x, forward)
        if made is y:
            return output
        if rows is not None:
            made = whole.index_copy(-1, rows.to(made.device), made)
        return given.shaped(product.axes.as_given(made, given.y.shape))


_PLACE = object()
"""Stands for the tensor that a function changes the shape of."""


class _Shaped:
    """A function that changes the shape of a tensor, to be applied to another one."""

    def __init__(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], item: int | None) -> None:
        self.function, self.args, self.named, self.item = function, args, named, item

    def __call__(self, tensor: Tensor) -> Tensor:
        made = self.function(*(tensor if entry is _PLACE else entry for entry in self.args), **self.named)
        return made if self.item is None else made[self.item]


def _rows_of(given: _Given) -> Tensor | None:
    """Return which outputs of a projection stand in a tensor; None for all."""
    features = _feature_places(given.product.axes, given.y)
    rows = given.shaped(features).unique()
    return None if len(rows) == int(features.max()) + 1 else rows


_IN_PLACE = frozenset(("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__", "__set__"))

_ADDED = frozenset(("add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__isub__", "sub_", "subtract"))

_SHAPING = frozenset(
    (
        *("view", "reshape", "unflatten", "flatten", "transpose", "permute", "movedim", "swapaxes", "contiguous"),
        *("unbind", "chunk", "split", "split_with_sizes", "__getitem__", "select", "narrow", "tensor_split"),
        *("squeeze", "unsqueeze", "__get__", "view_as", "reshape_as", "moveaxis", "swapdims", "t"),
    )
)
"""Functions that put the numbers of a tensor, or pieces of it, into another shape."""


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested arguments, in their order."""
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for entry in cast("Any", inner) for tensor in _tensors(entry)]


def _replaced(value: Any, former: Tensor, other: Tensor) -> Any:
    """Return arguments with another tensor in the place of one."""
    if isinstance(value, tuple | list):
        several = [_replaced(entry, former, other) for entry in cast("Sequence[Any]", value)]
        return several if isinstance(value, list) else tuple(several)
    return other if value is former else value


def _feature_places(axes: Axes, y: Tensor) -> Tensor:
    """Return which feature stands where in what a product gives."""
    features = axes.states_given(y)
    numbers = torch.arange(features.shape[-1], device=y.device).expand(features.shape)
    return axes.as_given(numbers, y.shape)


_Labels: TypeAlias = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]


def _operands(
    name: str, args: Any, named: dict[str, Any]
) -> tuple[tuple[Tensor, Tensor], Callable[[], _Labels | None], Tensor | None] | None:
    """Return the two tensors of a product, what names their axes and those of the output, and what is added to it."""
    bias: Any = None
    if name == "einsum":
        several = args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
        first, second = several if len(several) == 2 else (None, None)
    elif name in ("addmm", "baddbmm"):
        bias, first, second = args if len(args) == 3 else (None, None, None)
        first = first if set(named) <= {"beta", "alpha"} and set(named.values()) <= {1} else None
    elif name in ("linear", "matmul", "__matmul__", "mm", "bmm", "tensordot"):
        keys = (
            ("input", "weight", "bias")
            if name == "linear"
            else ("a", "b", "")
            if name == "tensordot"
            else ("input", "other", "")
        )
        given = [args[place] if place < len(args) else named.get(key) for place, key in enumerate(keys)]
        first, second, bias = given if name == "linear" else (*given[:2], None)
    else:
        return None
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    one, other = first, second

    def labels() -> _Labels | None:
        if name == "einsum":
            return _einsum_labels(args[0], one, other)
        if name == "linear":
            places = list(range(one.ndim - 1))
            return ([*places, "in"], ["out", "in"], [*places, "out"]) if other.ndim == 2 else None
        if name == "tensordot":
            return _tensordot_labels(one, other, args[2] if len(args) > 2 else named.get("dims", 2))
        if min(one.ndim, other.ndim) < 2:
            return None
        # Axes in front are counted from the right.
        before = [[-place for place in range(tensor.ndim, 2, -1)] for tensor in (one, other)]
        longest = max(before, key=len)
        return [*before[0], "row", "sum"], [*before[1], "sum", "column"], [*longest, "row", "column"]

    return (first, second), labels, bias


def _tensordot_labels(one: Tensor, other: Tensor, dims: Any) -> _Labels | None:
    if isinstance(dims, int):
        dims = list(range(one.ndim - dims, one.ndim)), list(range(dims))
    if not isinstance(dims, tuple | list) or len(dims) != 2:
        return None
    pairs = [[entry] if isinstance(entry, int) else list(entry) for entry in dims]
    first: list[Any] = [("first", axis) for axis in range(one.ndim)]
    second: list[Any] = [("second", axis) for axis in range(other.ndim)]
    for number, (axis, another) in enumerate(zip(*pairs, strict=True)):
        first[axis] = second[another] = number
    return first, second, [label for label in (*first, *second) if not isinstance(label, int)]


def _einsum_labels(equation: Any, one: Tensor, other: Tensor) -> _Labels | None:
    if not isinstance(equation, str):
        return None
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2:
        return None

    def named(term: str, count: int) -> list[str]:
        before, dots, after = term.partition("...")
        missing = count - len(before) - len(after)
        return [*before, *(str(number) for number in reversed(range(missing if dots else 0))), *after]

    first, second = named(terms[0], one.ndim), named(terms[1], other.ndim)
    known = set(first) | set(second)
    return first, second, named(right, sum(label in known for label in right) + len([k for k in known if k.isdigit()]))


def _axes(read: Sequence[Any], held: Sequence[Any], gave: Sequence[Any], x: Tensor, parameter: Tensor) -> Axes | None:
    """Return the axes of a product; None where it is no map of the features of each place by itself."""
    if any(len(set(labels)) != len(labels) for labels in (read, held, gave)):
        return None
    shared = [label for label in read if label in held and label in gave]
    repeated = [label for label in shared if _repeats(parameter, held.index(label))]
    repeats = [label for label in shared if label not in repeated and _repeats(x, read.index(label))]
    if len(repeated) + len(repeats) < len(shared):
        return None
    summed = [label for label in read if label in held and label not in gave]
    places = [label for label in read if label not in summed and label not in repeats]
    features = [label for label in gave if label in held and label not in repeated]
    if not summed or not features or not places or not set(places) <= set(gave):
        return None
    if set(held) != {*summed, *features, *repeated} or set(gave) != {*places, *features}:
        return None
    return Axes(
        tuple(read.index(label) for label in (*places, *summed)),
        len(places),
        tuple(held.index(label) for label in (*summed, *features)),
        len(summed),
        tuple(gave.index(label) for label in (*places, *features)),
    )


def _repeats(tensor: Tensor, axis: int) -> bool:
    return tensor.shape[axis] == 1 or tensor.stride(axis) == 0
