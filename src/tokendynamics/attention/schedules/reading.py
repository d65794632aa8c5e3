"""What a user passes where circuits are expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from tokendynamics.attention.circuits import FactoredMatrix
from tokendynamics.attention.schedules.axes import mapped, with_head_axis
from tokendynamics.attention.schedules.constant import Constant
from tokendynamics.attention.schedules.from_callable import FromCallable
from tokendynamics.attention.schedules.per_head import side_by_side
from tokendynamics.attention.schedules.schedule import Schedule
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import ArgumentTypeError, expected

ScheduleLike: TypeAlias = ArrayLike | FactoredMatrix | Schedule | Callable[[float], Any] | Sequence[Any]


def as_schedule(value: ScheduleLike, argument: str) -> Schedule:
    """Read what a user passes where circuits are expected as a schedule; a list may hold one for each head.

    Raises:
        ArgumentTypeError: Not a matrix, a schedule or a callable; or integer or complex numbers.
        ArgumentValueError: Fewer than two axes, or numbers that are not finite.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, list | tuple) and any(_stands_for_itself(entry) for entry in value):
        return side_by_side([as_schedule(entry, f"{argument}[{i}]") for i, entry in enumerate(value)], argument)
    if isinstance(value, FactoredMatrix):
        return Constant(value if value.left.ndim > 2 else mapped(value, lambda tensor: tensor.unsqueeze(0)))
    if not isinstance(value, Tensor) and callable(value):
        return FromCallable(value, argument)
    if isinstance(value, int | float | str) or value is None:
        wanted = "a matrix, a schedule or a function of time"
        raise ArgumentTypeError(expected(argument, wanted, repr(value), "a multiple of the identity needs its matrix"))
    return Constant(with_head_axis(as_tensor(value, argument, ndim_at_least=2, axes="(…, dim, dim)")))


def _stands_for_itself(entry: Any) -> bool:
    """Tell whether an entry of a list is a head's circuits, not numbers."""
    return isinstance(entry, Schedule | FactoredMatrix) or (not isinstance(entry, Tensor) and callable(entry))
