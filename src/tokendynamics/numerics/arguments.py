"""Turns what a user passes (tensor, array, nested lists) into a checked tensor, and results back again."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike, fsencode, fspath
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, TokenDynamicsError, shown
from tokendynamics.numerics.resources import check_fits


def first_index(marked: Tensor) -> tuple[int, ...]:
    """Return the index of the first True entry, in the order of storage.

    >>> import torch
    >>> first_index(torch.tensor([[False, False], [True, True]]))
    (1, 0)
    """
    return tuple(int(i) for i in marked.nonzero()[0])


def first_token(marked: Tensor, verb: str = "") -> str:
    """Return which token of which system is the first one marked in (…, token), in words; `verb` follows the token.

    >>> import torch
    >>> first_token(torch.tensor([False, True])), first_token(torch.tensor([[False, True]]))
    ('token 1', 'token 1 of system (0,)')
    """
    *system, token = first_index(marked)
    return f"token {token}{verb}" + (f" of system {tuple(system)}" if system else "")


def first_system(marked: Tensor, word: str = "system") -> str:
    """Return " in system …" for the first one marked in (…,); nothing where there is but one.

    >>> import torch
    >>> first_system(torch.tensor([False, True])), first_system(torch.tensor(True))
    (' in system (1,)', '')
    """
    return f" in {word} {first_index(marked)}" if marked.ndim else ""


@runtime_checkable
class Labelled(Protocol):
    """An array with labels, such as xarray's and pandas' objects."""

    def to_numpy(self) -> Any:
        """Return the numbers alone."""
        ...


ArrayLike: TypeAlias = Tensor | np.ndarray | Labelled | Sequence[Any] | float
"""A torch tensor, a numpy array, an xarray or pandas object, nested lists of numbers, or one number."""

_HALF = (torch.float16, torch.bfloat16)
_LONGEST_NAME, _LONGEST_PATH = 255, 4095
_DEEPEST = 64
"""NumPy's largest number of axes."""


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
        raise ArgumentValueError(argument, wanted, f"shape {tuple(tensor.shape)}")
    if finite:
        check_finite(tensor, argument)
    return tensor


def as_states(x: ArrayLike, argument: str = "x") -> Tensor:
    """Return token states as a tensor of shape (…, token, dim); see `as_tensor` for what is refused."""
    tensor = as_tensor(x, argument, ndim_at_least=2, axes="(…, token, dim)")
    if tensor.shape[-2] == 0 or tensor.shape[-1] == 0:
        shape = tuple(tensor.shape)
        raise ArgumentValueError(argument, "at least one token and one dimension", f"shape {shape}")
    return tensor


def as_square(matrix: ArrayLike, argument: str) -> Tensor:
    """Return a tensor of shape (…, dim, dim); see `as_tensor` for what is refused."""
    tensor = as_tensor(matrix, argument, ndim_at_least=2, axes="(…, dim, dim)")
    if tensor.shape[-1] != tensor.shape[-2] or tensor.numel() == 0:
        shape = tuple(tensor.shape)
        raise ArgumentValueError(argument, "square matrices (…, dim, dim)", f"shape {shape}")
    return tensor


def check_open(value: Any, argument: str) -> None:
    """Refuse an object that raises where it is asked for its class or for an attribute that it has not.

    Raises:
        ArgumentTypeError: Such an object, of which no question about its kind could be answered.
    """
    try:
        _ = value.__class__, getattr(value, "_no_attribute_", None)
    except Exception as error:
        came = f"a {type(value).__name__}, which raises {type(error).__name__}"
        raise ArgumentTypeError(argument, "an object whose class and attributes can be read", came) from error


def as_integer(value: Any, argument: str, at_least: int | None = None, at_most: int | None = None) -> int:
    """Return `value` as a whole number within its bounds.

    Raises:
        ArgumentTypeError: No integer (True and 2.0 are none).
        ArgumentValueError: Outside the bounds.

    >>> as_integer(-3, "layer", at_least=-4, at_most=3)
    -3
    >>> as_integer(2, "layer", at_least=1, at_most=1)
    Traceback (most recent call last):
    tokendynamics.numerics.errors.ArgumentValueError: layer: expected 1, the only value possible here, got 2
    """
    check_open(value, argument)
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ArgumentTypeError(argument, f"an integer{_bounds(at_least, at_most)}", shown(value))
    number = int(value)
    if (at_least is not None and number < at_least) or (at_most is not None and number > at_most):
        raise ArgumentValueError(argument, _bounds(at_least, at_most).removeprefix(" of "), shown(number))
    return number


def as_count(value: Any, argument: str, at_least: int = 1) -> int:
    """Return `value` as a whole number of at least `at_least`; see `as_integer`.

    >>> as_count(3, "steps")
    3
    """
    return as_integer(value, argument, at_least)


def as_number(value: Any, argument: str) -> float:
    """Return `value` as one real number, which may be NaN or infinite: the caller says what range it needs.

    Raises:
        ArgumentTypeError: No real number (a text, True, None and an array with axes are none).

    >>> as_number(2, "K")
    2.0
    """
    check_open(value, argument)
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        value = as_tensor(value, argument, finite=False).item() if _is_float(value) else value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ArgumentTypeError(argument, "a real number", shown(value))
    try:
        return float(value)
    except OverflowError as error:
        raise ArgumentValueError(argument, "a number that float64 holds", shown(value)) from error


def as_finite(value: Any, argument: str) -> float:
    """Return `value` as one real number that is neither NaN nor infinite; see `as_number`."""
    number = as_number(value, argument)
    if not math.isfinite(number):
        raise ArgumentValueError(argument, "a finite number", number)
    return number


def as_positive(value: Any, argument: str) -> float:
    """Return `value` as one positive finite number; see `as_number`."""
    number = as_number(value, argument)
    if not (number > 0 and math.isfinite(number)):
        raise ArgumentValueError(argument, "a positive finite number", number)
    return number


def as_not_negative(value: Any, argument: str) -> float:
    """Return `value` as one finite number of at least 0; see `as_number`."""
    number = as_number(value, argument)
    if not (number >= 0 and math.isfinite(number)):
        raise ArgumentValueError(argument, "a finite number of at least 0", number)
    return number


def as_flag(value: Any, argument: str) -> bool:
    """Return `value` as True or False; a number or a text is neither, since ``"no"`` would mean yes.

    Raises:
        ArgumentTypeError: Anything else.
    """
    check_open(value, argument)
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(argument, "True or False", shown(value))
    return bool(value)


def as_choice(value: Any, argument: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of the texts `choices`.

    Raises:
        ArgumentTypeError: No text.
        ArgumentValueError: Another text.
    """
    known = tuple(choices)
    wanted = " or ".join((", ".join(map(repr, known[:-1])), repr(known[-1])) if known[1:] else map(repr, known))
    check_open(value, argument)
    if not isinstance(value, str):
        raise ArgumentTypeError(argument, wanted, shown(value))
    if value not in known:
        raise ArgumentValueError(argument, wanted, shown(value))
    return value


def as_text(value: Any, argument: str) -> str:
    """Return `value` if it is a text.

    Raises:
        ArgumentTypeError: Anything else.
    """
    check_open(value, argument)
    if not isinstance(value, str):
        raise ArgumentTypeError(argument, "a text", shown(value))
    return value


def as_path(value: Any, argument: str) -> Path:
    """Return `value` as the path of a file or folder that may or may not exist.

    Raises:
        ArgumentTypeError: Neither a text nor a path.
        ArgumentValueError: A name that no file can have: none, a null byte, or longer than the system takes.

    >>> as_path("a/b.zarr", "path").name
    'b.zarr'
    """
    check_open(value, argument)
    if not isinstance(value, str | PathLike) or not isinstance(fspath(value), str):
        raise ArgumentTypeError(argument, "a path", shown(value))
    if not fspath(value):  # `Path` would take it for the working directory
        raise ArgumentValueError(argument, "a path", "an empty text", "'.' is the working directory")
    path = Path(value)
    try:
        too_long = max(map(len, map(fsencode, path.parts)), default=0) > _LONGEST_NAME
    except UnicodeEncodeError as error:
        raise ArgumentValueError(argument, "a path that can be written", shown(str(value))) from error
    if too_long or len(fsencode(path)) > _LONGEST_PATH or "\0" in str(path):
        wanted = f"a path without null bytes, of names of at most {_LONGEST_NAME} bytes"
        raise ArgumentValueError(argument, wanted, shown(str(value)))
    return path


def as_device(value: Any, argument: str) -> torch.device:
    """Return `value` as a device that this machine has and that holds numbers.

    Raises:
        ArgumentTypeError: Neither a text nor a device.
        ArgumentValueError: No such device, or "meta", where tensors have a shape only.

    >>> as_device("cpu", "device")
    device(type='cpu')
    """
    if not isinstance(value, str | torch.device):
        raise ArgumentTypeError(argument, "a device such as 'cpu' or 'cuda:0'", shown(value))
    wanted = "a device of this machine that holds numbers, such as 'cpu' or 'cuda:0'"
    try:
        device = torch.device(value)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:  # the last of "hpu" and the like
        raise ArgumentValueError(argument, wanted, shown(str(value))) from error
    if device.type == "meta":
        raise ArgumentValueError(argument, wanted, "'meta'")
    return device


def _is_float(value: Tensor | np.ndarray) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"


def _bounds(at_least: int | None, at_most: int | None) -> str:
    if at_most is None:
        return "" if at_least is None else f" of at least {at_least}"
    if at_least == at_most:
        return f" of {at_least}, the only value possible here"
    return f" of at most {at_most}" if at_least is None else f" of {at_least} to {at_most}"


def check_finite(tensor: Tensor, argument: str) -> None:
    """Raise `ArgumentValueError` with the index of the first NaN or infinity in `tensor`, if there is one."""
    # One NaN or infinity makes the sum one too: a finite sum clears every entry in a single pass.
    if cmath.isfinite(tensor.detach().sum().item()):
        return
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    index = first_index(~finite)
    came = f"{tensor[index].item()} at index {index}"
    raise ArgumentValueError(argument, "finite numbers", came, "remove or mask that entry first")


def like(result: Tensor, original: ArrayLike) -> Any:
    """Return `result` in the type of `original`: tensor, array, or nested lists (a float for a scalar).

    Labels do not fit what a function makes of states: for an xarray or pandas object the result is an array.

    >>> like(torch.tensor([1.0, 2.0]), [0.0])
    [1.0, 2.0]
    """
    if isinstance(original, Tensor):
        return result
    if isinstance(without_labels(original), np.ndarray):
        return result.detach().cpu().numpy()
    return result.tolist()


def without_labels(value: Any) -> Any:
    """Return the array of an xarray or pandas object, with its dtype; anything else as it is."""
    # Not `isinstance(value, Labelled)`, which asks the object itself, whose attributes may raise anything.
    if isinstance(value, Tensor | np.ndarray | list | tuple | float) or not hasattr(type(value), "to_numpy"):
        return value
    array = value.to_numpy()
    return array if isinstance(array, np.ndarray) and array.dtype.kind != "O" else value


_ARRAYS = "a tensor, an array or nested lists of equal length"
_BYTES = (bytes, bytearray, memoryview)


def _to_floating(value: ArrayLike, argument: str) -> Tensor:
    try:
        return _converted(value, argument)
    except TokenDynamicsError:
        raise
    except Exception as error:  # whatever an object's attributes, or its own way to become an array, raise
        reason = " ".join(str(error).split())
        raise ArgumentTypeError(argument, _ARRAYS, f"{type(value).__name__} ({shown(reason)[1:-1]})") from error


def _converted(value: Any, argument: str) -> Tensor:
    _refuse_transposed(value, argument)
    value = without_labels(value)
    if isinstance(value, Tensor):
        tensor = plain_tensor(value, argument)
    elif isinstance(value, np.ndarray):
        tensor = _from_numpy(value, argument)
    else:
        return _from_lists(value, argument)
    if not tensor.is_floating_point():
        advice = "convert it on purpose, for example with .double() or .astype(float)"
        raise ArgumentTypeError(argument, "real floating-point numbers", f"dtype {value.dtype}", advice)
    return tensor.float() if tensor.dtype in _HALF else tensor


def plain_tensor(tensor: Tensor, argument: str) -> Tensor:
    """Return a strided tensor that holds numbers, in a dtype that is computed with."""
    if tensor.is_meta:
        advice = "a tensor on the device 'meta' has a shape only"
        raise ArgumentTypeError(argument, "a tensor that holds numbers", "device meta", advice)
    if tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        came = "a quantized one" if tensor.is_quantized else "a nested one" if tensor.is_nested else f"{tensor.layout}"
        advice = "convert it on purpose, with .dequantize(), .to_padded_tensor(…) or .to_dense()"
        raise ArgumentTypeError(argument, "a dense tensor", came, advice)
    if tensor.is_floating_point() and tensor.dtype not in (torch.float64, torch.float32, *_HALF):
        raise ArgumentTypeError(argument, "float64, float32 or half precision", f"dtype {tensor.dtype}")
    if 0 in tensor.stride():  # a view that repeats few numbers may be larger than the memory
        check_fits(tensor.numel() * tensor.element_size(), argument)
    return tensor


def _from_numpy(array: np.ndarray, argument: str) -> Tensor:
    refuse_masked(array, argument)
    if array.dtype.kind not in "fiub" or array.dtype == np.longdouble:
        advice = "longdouble is not supported" if array.dtype.kind == "f" else ""
        raise ArgumentTypeError(argument, "real floating-point numbers", f"dtype {shown_dtype(array)}", advice)
    if 0 in array.strides:
        check_fits(array.nbytes, argument)
    # PyTorch takes neither foreign byte orders nor negative strides, and warns of arrays that cannot be written to.
    plain = array.dtype.isnative and array.flags.writeable and min(array.strides, default=1) >= 0
    return torch.as_tensor(np.asarray(array) if plain else native(array))


def native(value: Any) -> Any:
    """Return a copy of an array that PyTorch takes, writable and in the byte order of this machine; others as they are.

    Its axes run forwards.
    """
    is_array = isinstance(value, np.ndarray)
    return value.astype(value.dtype.newbyteorder("="), order="C", copy=True) if is_array else value


def whole_numbers(values: Iterable[Any], argument: str) -> list[int]:
    """Return the values as a list of integers.

    Raises:
        ArgumentTypeError: No sequence, a masked one, a mapping or a text, or an entry that is no integer (True is not).

    >>> whole_numbers((3, 1), "layers")
    [3, 1]
    """
    check_open(values, argument)
    if isinstance(values, (str, *_BYTES, Mapping, np.ma.MaskedArray)) or not isinstance(values, Iterable):
        raise ArgumentTypeError(argument, "a sequence of whole numbers", shown(values))
    try:
        entries = list(values)
    except TypeError as error:  # of an array without axes
        raise ArgumentTypeError(argument, "a sequence of whole numbers", shown(values)) from error
    return [as_integer(value, f"{argument}[{place}]") for place, value in enumerate(entries)]


def shown_dtype(array: np.ndarray) -> str:
    """Name the dtype of an array in few words, also where it is a table of many fields."""
    return f"table of {len(array.dtype.names)} fields" if array.dtype.names else str(array.dtype)


def refuse_masked(value: Any, argument: str) -> None:
    """Raise for a `numpy.ma` array, or lists that hold one: PyTorch would take what lies under the mask for numbers.

    Raises:
        ArgumentTypeError: There is a masked array, or a list nested deeper than any array.
    """
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        if any(isinstance(entry, np.ma.MaskedArray) for entry in level):
            advice = "replace the masked entries, with .filled(…), or leave those tokens out"
            raise ArgumentTypeError(argument, "numbers without a mask", "a masked array", advice)
        level = [entry for part in level if isinstance(part, list | tuple) for entry in part]
        if not level:
            return
    raise ArgumentTypeError(argument, f"lists nested at most {_DEEPEST} deep", "deeper ones")


def _refuse_transposed(value: Any, argument: str) -> None:
    """Raise for an array of xarray whose names say that its last axes are not those of tokens and features."""
    dims = getattr(value, "dims", ())
    if isinstance(dims, tuple) and {"token", "feature"} <= {*dims} and dims[-2:] != ("token", "feature"):
        advice = 'transpose it with .transpose(..., "token", "feature")'
        raise ArgumentValueError(argument, "the last axes to be token and feature", shown(dims), advice)


def _from_lists(value: Any, argument: str) -> Tensor:
    """Nested lists, or what offers itself as an array (a table of pandas, an array of xarray)."""
    refuse_masked(value, argument)
    if isinstance(value, _BYTES):  # NumPy would take letters for numbers
        raise ArgumentTypeError(argument, _ARRAYS + " of real numbers", type(value).__name__)
    array = np.asarray(value)
    if array.dtype.kind == "O":
        reals = all(isinstance(entry, Real) and not isinstance(entry, bool | np.bool_) for entry in array.flat)
        array = array.astype(np.float64) if reals else array
    # An empty list is float64 already; words, dates, truth values and objects are no numbers, also where NumPy would
    # read some.
    if array.dtype.kind not in "fiu":
        came = f"{type(value).__name__} of {shown(value) if array.ndim == 0 else shown_dtype(array)}"
        raise ArgumentTypeError(argument, _ARRAYS + " of real numbers", came)
    return torch.as_tensor(array.astype(np.float64))


def generator(seed: int) -> torch.Generator:
    """Return a generator of its own on the CPU, so that no draw depends on what was drawn before.

    >>> torch.rand(1, generator=generator(0)) == torch.rand(1, generator=generator(0))
    tensor([True])
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentTypeError("seed", "an integer", repr(seed))
    if not -(2**63) <= seed < 2**63:
        raise ArgumentValueError("seed", "an integer of 64 bits", seed)
    return torch.Generator().manual_seed(seed)


NEAR_ZERO = 1e-3
"""|λ| below which `positional` (Table 7) calls an eigenvalue of the value map near zero. Absolute: it depends on
the scale of the weights, so a count relative to the spectral radius stands beside it everywhere."""


def rounding_threshold(scale: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return ``size · eps(dtype) · scale``: what rounding alone can make of an exact zero.

    Args:
        scale: The largest singular value, or an upper bound of it.
        size: The larger side of the matrix.
        dtype: The precision the matrix CAME in (a float32 product keeps float32 noise after a cast).
    """
    return size * torch.finfo(dtype).eps * scale


def check_positive_definite(matrix: Tensor, argument: str, precision: torch.dtype) -> None:
    """Refuse matrices (…, dim, dim) that are not symmetric up to the rounding of `precision`, or not positive definite.

    Raises:
        ArgumentValueError: The asymmetry, or the lowest eigenvalue, is printed.

    >>> check_positive_definite(torch.eye(2), "metric", torch.float32)
    """
    wanted = "a symmetric positive definite matrix"
    defect = (matrix - matrix.mT).abs().amax(dim=(-2, -1))
    uneven = defect > rounding_threshold(matrix.abs().amax(dim=(-2, -1)), matrix.shape[-1], precision)
    if bool(uneven.any()):
        came = f"an asymmetry of {float(defect[uneven][0]):.3g}{first_system(uneven)}"
        raise ArgumentValueError(argument, wanted, came, "pass (M + M^T)/2 if the asymmetry is noise")
    symmetric = matrix / 2 + matrix.mT / 2  # the sum itself may overflow
    bad = torch.linalg.cholesky_ex(symmetric).info != 0
    if bool(bad.any()):
        lowest = torch.linalg.eigvalsh(symmetric[bad]).amin(dim=-1)[0]
        raise ArgumentValueError(argument, wanted, f"lowest eigenvalue {float(lowest):.6g}{first_system(bad)}")
