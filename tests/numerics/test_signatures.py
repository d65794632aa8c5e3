"""Plain arguments of public functions are refused by their annotated kind, and by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.signatures import typed_arguments, typed_fields


@typed_arguments
def _taking(
    count: int = 1,
    size: float = 1.0,
    flag: bool = False,
    word: Literal["a", "b"] = "a",
    path: str | Path = "x",
    shape: tuple[int, ...] = (),
    names: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    none: float | None = None,
    tensor: torch.Tensor = torch.ones(1),  # noqa: B008
    free: Any = None,
) -> tuple[Any, ...]:
    return count, size, flag, word, path, shape, names, sizes, none, free


@typed_fields
@dataclass(frozen=True)
class _Record:
    size: float


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("count", 2.0),
        ("count", True),
        ("count", "3"),
        ("count", None),
        ("size", "3"),
        ("size", True),
        ("size", [1.0]),
        ("size", 1j),
        ("size", np.ma.masked),
        ("flag", 1),
        ("flag", "no"),
        ("word", ["a"]),
        ("path", b"x"),
        ("path", 3),
        ("shape", 3),
        ("shape", (1, 2.0)),
        ("sizes", [("a", 1)]),
        ("sizes", {"a": 1.0}),
        ("sizes", {1: 1}),
        ("names", "abc"),
        ("names", ["a", 3]),
        ("names", {"a": 1}),
        ("none", "3"),
        ("tensor", [1.0]),
        ("tensor", torch.ones(1, device="meta")),
        ("tensor", torch.ones(1, dtype=torch.int64)),
    ],
)
def test_another_kind_is_a_type_error_that_names_the_argument(argument: str, value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"^{argument}(\[\d\]|\['a'\])?: expected "):
        _taking(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [("count", 10**400), ("size", 10**400), ("path", "a\0b"), ("path", "x" * 300), ("path", "\ud800")],
)
def test_what_no_number_or_path_can_be_is_a_value_error(argument: str, value: Any) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{argument}: expected ") as caught:
        _taking(**{argument: value})
    assert len(str(caught.value)) < 500


def test_right_kinds_arrive_as_they_came() -> None:
    assert _taking(
        np.int16(2), np.float32(0.5), np.bool_(True), "b", Path("y"), [1, 2], ["n"], {"a": 1}, 3, free=b"q"
    ) == (
        *(2, 0.5, True, "b", Path("y"), (1, 2), ["n"], {"a": 1}, 3),
        b"q",
    )
    assert _taking(none=None)[8] is None
    assert _taking(size=torch.tensor(0.25))[1] == 0.25


def test_missing_and_unknown_arguments_keep_pythons_own_words() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        _taking(other=1)  # type: ignore[call-arg]
    doubled = typed_arguments(lambda size, times=2: size * times)
    for args, kwargs, words in (
        ((), {}, "missing 1 required positional argument: 'size'"),
        ((1,), {"size": 1}, "multiple values for argument 'size'"),
        ((1, 2, 3), {}, "takes from 1 to 2 positional arguments but 3 were given"),
        ((1,), {"other": 1}, "unexpected keyword argument 'other'"),
    ):
        with pytest.raises(TypeError, match=words):
            doubled(*args, **kwargs)
    assert (doubled(3), doubled(3, 4), doubled(times=5, size=3)) == (6, 12, 15)


def test_fields_of_a_dataclass_are_checked_too() -> None:
    assert _Record(1).size == 1
    with pytest.raises(ArgumentTypeError, match="size: expected a real number"):
        _Record("1")  # type: ignore[arg-type]
