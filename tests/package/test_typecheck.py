"""What functions of the package get and give is checked while the tests run: without this nobody would see it end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.arguments import as_count
from typecheck import CALLS, checked


def careful_sum() -> Callable[..., Any]:
    @checked
    def summed(x: Float[Tensor, "token feature"], y: Float[Tensor, " feature"]) -> Float[Tensor, " token"]:
        return (x + y).sum(0 if len(x) == 4 else 1)

    return summed


def test_a_shape_a_type_and_a_result_that_are_not_those_written_are_refused() -> None:
    careful = careful_sum()
    assert careful(torch.ones(2, 3), torch.ones(3)).tolist() == [6, 6]
    for x, y in ((torch.ones(3), torch.ones(3)), (torch.ones(2, 3), torch.ones(1)), (torch.ones(2, 3), 1.0)):
        with pytest.raises(TypeCheckError, match="parameters of"):
            careful(x, y)
    with pytest.raises(TypeCheckError, match="return value of"):
        careful(torch.ones(4, 3), torch.ones(3))


def test_a_call_that_the_function_refuses_itself_is_refused_in_its_words() -> None:
    @checked
    def rooted(x: int) -> float:
        return as_count(x, "x") ** 0.5

    @checked
    def around(x: Any) -> float:
        return rooted(x)

    for function in (rooted, around):
        with pytest.raises(ArgumentTypeError, match="x: expected"):
            function("four")
        with pytest.raises(TypeCheckError):  # an integer of NumPy is none of Python's, and is taken for one
            function(np.int64(4))


def test_later_calls_are_not_checked() -> None:
    careful = careful_sum()
    written = signature(careful)
    for _ in range(CALLS):
        assert careful.__code__.co_filename != __file__
        careful(torch.ones(2, 3), torch.ones(3))
    assert careful.__code__.co_filename == __file__
    assert careful(torch.ones(2, 3), torch.ones(1)).tolist() == [6, 6]
    assert signature(careful) == written


def test_defaults_and_names_are_those_of_the_function() -> None:
    @checked
    def scaled(x: float, by: float = 2.0, *, shift: float = 1.0) -> float:
        return by * x + shift

    for _ in range(CALLS + 1):
        assert (scaled(3.0), scaled(3.0, 3.0), scaled(x=3.0, shift=0.0)) == (7.0, 10.0, 6.0)
    with pytest.raises(TypeError):
        scaled(3.0, 3.0, 1.0)


def test_fields_of_a_dataclass_are_checked() -> None:
    @checked
    @dataclass
    class Point:
        place: Float[Tensor, " feature"]

    assert Point(torch.ones(2)).place.sum() == 2
    with pytest.raises(TypeCheckError):
        Point(torch.ones(2, 2))


def test_the_package_is_under_the_checks() -> None:
    spec = find_spec("tokendynamics.spaces.retraction")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)  # anew: of the one that is there, first calls may be over
    assert not module.inner.__code__.co_filename.endswith("retraction.py")
    assert module.inner.__wrapped__.__code__.co_filename.endswith("retraction.py")
    with pytest.raises(TypeCheckError):
        module.inner(1.0, 1.0, 1.0)
