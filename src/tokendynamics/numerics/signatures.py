"""Checks the plain arguments of a public function by its annotations: numbers, truth values, names, our own types.

Ranges and arrays stay with the function, which knows what they mean; that ``"no"`` is no truth value and 0.5 no index
is the same everywhere, so it is said once, here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, SupportsIndex, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from tokendynamics.numerics.arguments import as_flag, as_integer, as_number, as_path, as_tensor, as_text, check_open
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, shown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Reader = Callable[[Any, str], Any]

_LARGEST = 2**63 - 1


def typed_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make the function refuse by name each argument that is not of its annotated kind.

    ``int`` takes integers of 64 bits (True and 2.0 are none), ``float`` real numbers (neither a text nor True),
    ``bool`` True and False, ``str`` and a ``Literal`` texts, a class its instances, a tensor what `as_tensor` takes;
    with ``| None`` also None. Everything else reaches the function as it came, and what a number or word may be, too.

    Raises:
        ArgumentTypeError: Another kind; the message names the argument.
        ArgumentValueError: An integer beyond 64 bits, or a number beyond float64.

    >>> @typed_arguments
    ... def repeated(word: str, times: int) -> str:
    ...     return word * times
    >>> repeated("a", True)
    Traceback (most recent call last):
    ...
    tokendynamics.numerics.errors.ArgumentTypeError: times: expected an integer, got True
    """
    signature = inspect.signature(function)
    by_name: Callable[..., R] = function
    named = _names_of(signature)
    readers: dict[str, Reader] = {}
    pending = True

    @wraps(function)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal pending
        if pending:  # on first use: a module's own classes may stand below the function
            readers.update(_readers(function, signature))
            pending = False
        # `bind` takes longer than all the checks.
        if (arguments := named(args, kwargs)) is not None:
            for name, value in arguments.items():
                check_open(value, name)
            for name in readers:
                if name in arguments:
                    arguments[name] = readers[name](arguments[name], name)
            return by_name(**arguments)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's own words for an argument that is missing or unknown
        for name, value in bound.arguments.items():
            check_open(value, name)
            if name in readers:
                bound.arguments[name] = readers[name](value, name)
        return function(*bound.args, **bound.kwargs)

    return refusing


def _names_of(signature: inspect.Signature) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any] | None]:
    """Return what gives the arguments of a call by name; None where one is missing, unknown or given twice."""
    parameters = signature.parameters.values()
    plain = all(parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) for parameter in parameters)
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    known = frozenset(signature.parameters)
    required = frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty)

    def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        arguments = {**dict(zip(positional, args, strict=False)), **kwargs}
        complete = len(arguments) == len(args) + len(kwargs) and required <= arguments.keys() <= known
        return arguments if plain and complete else None

    return named


def typed_fields(record: type[T]) -> type[T]:
    """Check the fields of a dataclass as `typed_arguments` checks arguments; for above ``@dataclass``."""
    setattr(record, "__init__", typed_arguments(record.__init__))  # noqa: B010
    return record


def _readers(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Reader]:
    readers: dict[str, Reader] = {}
    for name, parameter in signature.parameters.items():
        reader = _reader(_evaluated(parameter.annotation, function))
        if reader is not None and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            readers[name] = reader
    return readers


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"argument": annotation})
    try:
        return get_type_hints(holder, globalns=getattr(inspect.unwrap(function), "__globals__", {}))["argument"]
    except NameError:
        return Any  # imported for type checkers only


def _reader(annotation: Any) -> Reader | None:
    if get_origin(annotation) in (Union, UnionType):
        return _union_reader(get_args(annotation))
    if get_origin(annotation) is Literal:
        return as_text  # which words there are the function says itself
    if get_origin(annotation) is tuple:
        return _tuple_reader(get_args(annotation))
    if get_origin(annotation) is Sequence:
        return _sequence_reader(*get_args(annotation))
    if get_origin(annotation) is Mapping:
        return _mapping_reader(*get_args(annotation))
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if not inspect.isclass(annotation) or annotation in (Any, object, inspect.Parameter.empty):
        return None
    if issubclass(annotation, Tensor) or getattr(annotation, "array_type", None) is Tensor:
        return _tensor
    if getattr(annotation, "_is_protocol", False) and not getattr(annotation, "_is_runtime_protocol", False):
        return None
    return _instance((annotation,))


def _union_reader(parts: tuple[Any, ...]) -> Reader | None:
    others = tuple(part for part in parts if part is not NoneType)
    if float in others:
        others = tuple(part for part in others if part is not int)
    if set(others) == {str, Path}:
        reader = as_path
    elif len(others) == 1:
        reader = _reader(others[0])
    elif all(inspect.isclass(part) and part not in _NUMBERS and not issubclass(part, Tensor) for part in others):
        reader = _instance(others)
    else:
        reader = None
    if reader is None or len(others) == len(parts) or NoneType not in parts:
        return reader
    return lambda value, argument: None if value is None else reader(value, argument)


def _tuple_reader(parts: tuple[Any, ...]) -> Reader | None:
    """Of ``tuple[int, ...]`` and of tuples of a fixed length; a list may stand for one."""
    repeated = parts[1:] == (Ellipsis,)
    readers = [_reader(part) for part in (parts[:1] if repeated else parts)]
    wanted = "a tuple" if repeated else f"a tuple of {len(parts)}"

    def read(value: Any, argument: str) -> Any:
        if not isinstance(value, tuple | list):
            raise ArgumentTypeError(argument, wanted, shown(value))
        if not repeated and len(value) != len(readers):
            raise ArgumentValueError(argument, wanted, f"{len(value)} entries")
        chosen = readers * len(value) if repeated else readers
        return tuple(
            entry if reader is None else reader(entry, f"{argument}[{i}]")
            for i, (entry, reader) in enumerate(zip(value, chosen, strict=True))
        )

    return read


def _sequence_reader(part: Any) -> Reader | None:
    """Of ``Sequence[str]``, ``Sequence[str | Kind]`` and ``Sequence[Any]``; a text is one text, not letters."""
    if part not in (str, Any) and get_origin(part) is not UnionType:
        return None
    read_entry = as_text if part is str else _reader(part)

    def read(value: Any, argument: str) -> Any:
        rows = part is Any and isinstance(value, Tensor | np.ndarray) and value.ndim > 0
        if isinstance(value, str | bytes) or not (rows or isinstance(value, Sequence)):
            raise ArgumentTypeError(argument, "a list", shown(value))
        if read_entry is not None:
            for i, entry in enumerate(value):
                read_entry(entry, f"{argument}[{i}]")
        return value

    return read


def _mapping_reader(key: Any, part: Any) -> Reader | None:
    """Of ``Mapping[str, float]`` and ``Mapping[str, int]``."""
    reader = _reader(part)
    if key is not str or reader is None:
        return None

    def read(value: Any, argument: str) -> Any:
        if not isinstance(value, Mapping):
            raise ArgumentTypeError(argument, "a dict", shown(value))
        for name in value:
            if not isinstance(name, str):
                raise ArgumentTypeError(argument, "texts as keys", shown(name))
        return {name: reader(entry, f"{argument}[{shown(name)}]") for name, entry in value.items()}

    return read


def _instance(classes: tuple[type, ...]) -> Reader:
    names = " or ".join(cls.__name__ for cls in classes)
    article = "an" if names[0] in "AEIO" else "a"

    def read(value: Any, argument: str) -> Any:
        if not isinstance(value, classes):
            # What an array holds does not say why it is not one of these.
            came = type(value).__name__ if hasattr(type(value), "shape") else shown(value)
            raise ArgumentTypeError(argument, f"{article} {names}", came)
        return value

    return read


def _integer(value: Any, argument: str) -> int:
    number = as_integer(value, argument)
    if abs(number) > _LARGEST:
        raise ArgumentValueError(argument, "an integer of 64 bits", shown(number))
    return number


def _number(value: Any, argument: str) -> float:
    number = as_number(value, argument)
    # PyTorch takes no integer beyond 64 bits for a number.
    return value if type(value) is int and abs(value) <= _LARGEST else number


def _tensor(value: Any, argument: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(argument, "a torch tensor", shown(value))
    as_tensor(value, argument)
    return value


_NUMBERS = (bool, int, float, SupportsIndex)

_PLAIN: dict[Any, Reader] = {bool: as_flag, int: _integer, SupportsIndex: _integer, float: _number, str: as_text}
