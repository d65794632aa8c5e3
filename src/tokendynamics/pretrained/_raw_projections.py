"""Maps that a module computes with parameters of its own, which no module of theirs holds, as modules.

A product of states with such a parameter (`x @ self.W_q`, `torch.einsum("bnd,hdk->bhnk", x, self.W_Q)`, `F.linear`) and
a bias that is added to it are one affine map. `_parameter_products` finds which ones a module has, and calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.numerics import CheckpointError


@dataclass(frozen=True)
class Leaf:
    """A parameter or a buffer of the module, by its name in it."""

    name: str


@dataclass(frozen=True)
class Applied:
    """What a function makes of parameters and of plain values; `item` where it is one of several results."""

    function: Any
    args: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]
    item: int | None = None


Expression: TypeAlias = Leaf | Applied

Shape: TypeAlias = Callable[[Tensor], Tensor]

_EXPANDING = frozenset(("expand", "expand_as", "repeat", "tile", "broadcast_to"))
"""Functions of a parameter whose other arguments may be the number of inputs."""


def evaluated(value: Any, module: nn.Module) -> Any:
    """Return an expression, or a value with expressions in it, with the parameters as they are now."""
    if isinstance(value, Leaf):
        owner, _, leaf = value.name.rpartition(".")
        return getattr(module.get_submodule(owner), leaf)
    if isinstance(value, Applied):
        args, named = (evaluated(part, module) for part in (value.args, dict(value.named)))
        made = value.function(*args, **named)
        return made if value.item is None else made[value.item]
    if isinstance(value, tuple | list):
        several = [evaluated(entry, module) for entry in cast("Sequence[Any]", value)]
        return several if isinstance(value, list) else tuple(several)
    return {key: evaluated(entry, module) for key, entry in value.items()} if isinstance(value, dict) else value


def _form(value: Any) -> Any:
    """Return what two expressions for the same numbers have in common, whatever the number of inputs is."""
    if isinstance(value, Applied):
        name = getattr(value.function, "__name__", "")
        args = value.args[:1] if name in _EXPANDING else value.args
        return name, [_form(entry) for entry in args], [] if name in _EXPANDING else value.named, value.item
    return [_form(entry) for entry in value] if isinstance(value, tuple | list) else value


def parameters_in(value: Any) -> list[str]:
    """Return the names of the parameters in an expression, each once, in their order."""
    if isinstance(value, Leaf):
        return [value.name]
    inner = [*value.args, *(entry for _, entry in value.named)] if isinstance(value, Applied) else value
    several = (name for entry in inner for name in parameters_in(entry)) if isinstance(inner, tuple | list) else ()
    return list(dict.fromkeys(several))


class Axes(NamedTuple):
    """Which axes of a product's tensors are features, and which are other places.

    Attributes:
        read: Axes of what is read, places first, then the features that are summed over; the others are repeats.
        places: How many of them are places.
        held: Axes of the parameter, in the order of the features read, then of those given; the others are repeats.
        summed: How many of them are summed over.
        gave: Axes of what is given, places first, in the order of the places read.
    """

    read: tuple[int, ...]
    places: int
    held: tuple[int, ...]
    summed: int
    gave: tuple[int, ...]

    def states_read(self, x: Tensor) -> Tensor:
        """Return what is read as (place, …, feature)."""
        return _arranged(x, self.read).flatten(self.places)

    def as_read(self, states: Tensor, like: Tensor) -> Tensor:
        """Return states (place, …, feature) with the axes of what is read."""
        sizes = [like.shape[axis] for axis in self.read]
        parts = states.reshape(sizes)
        order = sorted(range(len(sizes)), key=self.read.__getitem__)
        parts = parts.permute(order)
        for axis in range(like.ndim):
            if axis not in self.read:
                parts = parts.unsqueeze(axis).expand(*parts.shape[:axis], like.shape[axis], *parts.shape[axis:])
        return parts

    def states_given(self, y: Tensor) -> Tensor:
        """Return what is given as (place, …, feature)."""
        return y.permute(self.gave).flatten(self.places)

    def as_given(self, states: Tensor, shape: Sequence[int]) -> Tensor:
        """Return states (place, …, feature) with the axes of what is given."""
        sizes = [shape[axis] for axis in self.gave]
        order = sorted(range(len(sizes)), key=self.gave.__getitem__)
        return states.reshape(sizes).permute(order)

    def matrix(self, parameter: Tensor) -> Tensor:
        """Return the matrix (in, out); a view of the parameter where its axes allow one."""
        sizes = [parameter.shape[axis] for axis in self.held]
        rows = torch.Size(sizes[: self.summed]).numel()
        return _arranged(parameter, self.held).reshape(rows, -1)


def _arranged(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Return a tensor with some axes in an order, at the first place along the others."""
    for axis in reversed(range(tensor.ndim)):
        if axis not in axes:
            tensor = tensor.select(axis, 0)
    left = sorted(axes)
    return tensor.permute([left.index(axis) for axis in axes])


@dataclass(frozen=True, eq=False)
class Product:
    """A product of states with an expression of parameters.

    Attributes:
        x: What is read.
        held: The expression.
        axes: Of both, and of what is given.
        run: Makes the product for another tensor in the place of x.
        added: A bias that the function itself adds; None without one.
    """

    x: Tensor
    held: Expression
    axes: Axes
    run: Shape
    added: Expression | None = None


class RawProjection(nn.Module):
    """An affine map that a module computes with parameters of its own, called as a module.

    Attributes:
        name: What it is called within the module: as its first parameter, with a number where that has several.
        rows: Which outputs of the product these are; None for all.

    Args:
        module: Whose it is.
        name: See there.
        held: Gives the matrix.
        axes: Of the product with it.
        rows: See there.
    """

    def __init__(self, module: nn.Module, name: str, held: Expression, axes: Axes, rows: Tensor | None = None) -> None:
        super().__init__()
        self.name = name
        self._owner = ref(module)
        self._held, self._axes, self.rows = held, axes, rows
        self._added: Expression | None = None
        self._places: Tensor | None = None
        self._sign = 1.0

    def of(self, module: nn.Module) -> RawProjection:
        """Return the same of a copy of the module."""
        other = RawProjection(module, self.name, self._held, self._axes, self.rows)
        other._added, other._places, other._sign = self._added, self._places, self._sign
        return other

    def is_of(self, product: Product, rows: Tensor | None = None) -> bool:
        """Whether a product is with the same matrix, in the same way, and of its outputs these are taken."""
        same_rows = rows is self.rows if rows is None or self.rows is None else torch.equal(rows, self.rows)
        alike = (self._axes.held, self._axes.summed) == (product.axes.held, product.axes.summed)
        return same_rows and alike and _form(self._held) == _form(product.held)

    def add(self, bias: Expression, value: Tensor, places: Tensor, sign: float = 1.0) -> bool:
        """Let a vector be added to what is given; false where it is another one for other places.

        Args:
            bias: It.
            value: As it is now; it fits the shape of the places.
            places: Which feature of what is given stands where.
            sign: Its factor.
        """
        entries = torch.arange(value.numel(), device=places.device).view(value.shape).expand(places.shape)
        chosen = entries.new_zeros(int(places.max()) + 1)
        chosen[places.flatten()] = entries.flatten()
        if not torch.equal(chosen[places], entries):
            return False
        self._added, self._places, self._sign = bias, chosen, sign
        return True

    def adds(self, bias: Expression, sign: float) -> bool:
        """Whether this vector with this factor is added to what is given."""
        return self._sign == sign and _form(self._added) == _form(bias)

    @property
    def _module(self) -> nn.Module:
        module = self._owner()
        if module is None:
            raise CheckpointError(self.name, "a network that is still in memory", "one that is not")
        return module

    @property
    def is_biased(self) -> bool:
        """Whether a vector is added."""
        return self._added is not None

    @property
    def parameters_read(self) -> list[str]:
        """The names of its parameters within the module."""
        return list(dict.fromkeys([*parameters_in(self._held), *parameters_in(self._added)]))

    @property
    def weight(self) -> Tensor:
        """The weight (out, in) as it is now; a view where the parameter is only seen in another shape."""
        weight = self._axes.matrix(evaluated(self._held, self._module)).mT
        return weight if self.rows is None else weight[self.rows.to(weight.device)]

    @property
    def bias(self) -> Tensor | None:
        """The bias as it is now; None without."""
        if self._added is None or self._places is None:
            return None
        values = evaluated(self._added, self._module).flatten()
        return self._sign * values[self._places.to(values.device)]

    def scale(self, factors: Tensor | float, stack: ExitStack, where: str, *, bias: bool = True) -> None:
        """Multiply what it reads by factors, in its parameters, until a stack is closed.

        Args:
            factors: One for each feature, or one for all.
            stack: Puts the values back.
            where: What a message calls it.
            bias: Whether the bias is multiplied as well, by the factor of all.

        Raises:
            CheckpointError: It is computed from its parameters, or another projection has one of them, too.
        """
        module = self._module
        others = {name for one in raw_projections(module) if one is not self for name in one.parameters_read}
        for expression in (self._held, self._added if bias else None):
            if expression is None:
                continue
            names = parameters_in(expression)
            parameter = evaluated(Leaf(names[0]), module)
            stack.callback(setattr, parameter, "data", parameter.data)
            parameter.data = parameter.data.clone()
            values = self.weight if expression is self._held else evaluated(expression, module)
            in_place = values.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
            if len(names) > 1 or not in_place or set(names) & others:
                came = f"what is computed from {' and '.join(names)}, or shares it with another projection"
                raise CheckpointError(where, "an output projection that is a parameter", came)
            with torch.no_grad():
                values.mul_(factors.to(values) if isinstance(factors, Tensor) else factors)

    def forward(self, x: Tensor, run: Shape | None = None) -> Tensor:
        """Return x (…, in) projected, by the module's own function where it is given."""
        return functional.linear(x, self.weight, self.bias) if run is None else run(x)


@dataclass
class Followed:
    """What is known of one module: the names of parameters that may be projections, and those that are."""

    names: tuple[str, ...]
    projections: dict[str, RawProjection] = field(default_factory=dict[str, RawProjection])


_followed: WeakKeyDictionary[nn.Module, Followed] = WeakKeyDictionary()


def followed(module: nn.Module) -> Followed | None:
    """Return what is known of a module; None where nothing is followed."""
    return _followed.get(module) if _followed else None


def raw_projections(module: nn.Module) -> list[RawProjection]:
    """Return the maps that a module computes with parameters of its own; empty where none were learned."""
    known = followed(module)
    return [] if known is None else list(known.projections.values())


def raw_projection(network: nn.Module, name: str) -> RawProjection | None:
    """Return one of them by its name within a network; None where it is the name of something else."""
    parts = name.split(".") if _followed else []
    owners = (
        network.get_submodule(".".join(parts[:count]))
        for count in range(len(parts))
        if _is_module(network, parts[:count])
    )
    several = ((followed(owner), ".".join(parts[count:])) for count, owner in enumerate(owners))
    return next((known.projections[rest] for known, rest in several if known and rest in known.projections), None)


def _is_module(network: nn.Module, parts: Sequence[str]) -> bool:
    for part in parts:
        inner = network._modules.get(part)
        if inner is None:
            return False
        network = inner
    return True


def follow(module: nn.Module, names: Collection[str]) -> None:
    """Follow what a module does with some of its parameters and buffers, by name; nothing is known of it yet."""
    _followed[module] = Followed(tuple(names))


def follow_like(network: nn.Module, other: nn.Module | None = None) -> None:
    """Let the modules of a network have the projections of those of another one, by name; none without another one."""
    for module in network.modules() if _followed else ():
        _followed.pop(module, None)
    for name, module in other.named_modules() if _followed and other is not None else ():
        if (known := _followed.get(module)) is not None:
            copied = network.get_submodule(name)
            of_copy = {label: projection.of(copied) for label, projection in known.projections.items()}
            _followed[copied] = Followed(known.names, of_copy)
