"""Turns what a user passes (tensor, array, nested lists) into a checked tensor, and results back again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected

ArrayLike: TypeAlias = Tensor | np.ndarray | Sequence[Any] | float
"""A torch tensor, a numpy array, nested lists of numbers, or one number."""


def as_tensor(
    value: ArrayLike, argument: str, *, ndim_at_least: int = 0, axes: str = "", finite: bool = True
) -> Tensor:
    """Return `value` as a real floating tensor, without a copy where none is needed.

    Floating tensors and arrays keep their dtype; nested lists become float64 (integers in a list are meant as
    reals). Half precision is computed in float32.

    Args:
        value: What the user passed.
        argument: The argument's name, for the message.
        ndim_at_least: The smallest number of axes that makes sense.
        axes: The axes in words, for the message, such as ``"(…, token, dim)"``.
        finite: Whether NaN and infinity are refused.

    Raises:
        ArgumentTypeError: An integer, boolean or complex tensor or array, or something that is no array.
        ArgumentValueError: Too few axes, or a NaN or infinity (the index of the first one is printed).

    >>> as_tensor([[1, 2]], "x").dtype
    torch.float64
    """
    tensor = _to_floating(value, argument)
    if tensor.ndim < ndim_at_least:
        wanted = f"at least {ndim_at_least} axes {axes}".rstrip()
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(tensor.shape)}"))
    if finite:
        check_finite(tensor, argument)
    return tensor


def as_states(x: ArrayLike, argument: str = "x") -> Tensor:
    """Return token states as a tensor of shape (…, token, dim); see `as_tensor` for what is refused."""
    tensor = as_tensor(x, argument, ndim_at_least=2, axes="(…, token, dim)")
    if tensor.shape[-2] == 0 or tensor.shape[-1] == 0:
        shape = tuple(tensor.shape)
        raise ArgumentValueError(expected(argument, "at least one token and one dimension", f"shape {shape}"))
    return tensor


def as_square(matrix: ArrayLike, argument: str) -> Tensor:
    """Return a tensor of shape (…, dim, dim); see `as_tensor` for what is refused."""
    tensor = as_tensor(matrix, argument, ndim_at_least=2, axes="(…, dim, dim)")
    if tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] == 0:
        shape = tuple(tensor.shape)
        raise ArgumentValueError(expected(argument, "square matrices (…, dim, dim)", f"shape {shape}"))
    return tensor


def as_count(value: Any, argument: str, at_least: int = 1) -> int:
    """Return `value` as a whole number of at least `at_least`.

    Raises:
        ArgumentTypeError: No integer (True and 2.0 are none).
        ArgumentValueError: Too small.

    >>> as_count(3, "steps")
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(expected(argument, f"an integer of at least {at_least}", repr(value)))
    if value < at_least:
        raise ArgumentValueError(expected(argument, f"at least {at_least}", value))
    return int(value)


def as_number(value: Any, argument: str) -> float:
    """Return `value` as one real number, which may be NaN or infinite: the caller says what range it needs.

    Raises:
        ArgumentTypeError: No real number.

    >>> as_number(2, "K")
    2.0
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentTypeError(expected(argument, "a real number", repr(value))) from error


def check_finite(tensor: Tensor, argument: str) -> None:
    """Raise `ArgumentValueError` with the index of the first NaN or infinity in `tensor`, if there is one."""
    # One NaN or infinity makes the sum one too: a finite sum clears every entry in a single pass.
    if bool(torch.isfinite(tensor.sum())):
        return
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    index = tuple(int(i) for i in torch.nonzero(~finite)[0])
    came = f"{float(tensor[index])} at index {index}"
    raise ArgumentValueError(expected(argument, "finite numbers", came, "remove or mask that entry first"))


def like(result: Tensor, original: ArrayLike) -> Any:
    """Return `result` in the type of `original`: tensor, array, or nested lists (a float for a scalar).

    >>> like(torch.tensor([1.0, 2.0]), [0.0])
    [1.0, 2.0]
    """
    if isinstance(original, Tensor):
        return result
    if isinstance(original, np.ndarray):
        return result.detach().cpu().numpy()
    return result.tolist()


def _to_floating(value: ArrayLike, argument: str) -> Tensor:
    if isinstance(value, Tensor | np.ndarray):
        kind = value.dtype
        tensor = value if isinstance(value, Tensor) else _from_numpy(value, argument)
        if not tensor.is_floating_point():
            advice = "convert it on purpose, for example with .double() or .astype(float)"
            raise ArgumentTypeError(expected(argument, "real floating-point numbers", f"dtype {kind}", advice))
    else:
        try:
            tensor = torch.as_tensor(np.asarray(value, dtype=np.float64))
        except (TypeError, ValueError, RuntimeError) as error:
            wanted = "a tensor, an array or nested lists of equal length"
            raise ArgumentTypeError(expected(argument, wanted, f"{type(value).__name__} ({error})")) from error
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _from_numpy(array: np.ndarray, argument: str) -> Tensor:
    # PyTorch takes neither foreign byte orders nor negative strides, and warns of arrays that cannot be written to.
    plain = array.dtype.isnative and array.flags.writeable and min(array.strides, default=1) >= 0
    if array.dtype.kind == "f" and not plain:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        return torch.as_tensor(array)
    except TypeError as error:
        raise ArgumentTypeError(expected(argument, "real floating-point numbers", f"dtype {array.dtype}")) from error
