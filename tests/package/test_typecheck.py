"""What functions of the package get and give is checked while the tests run: without this nobody would see it end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tokendynamics.spaces.retraction import inner
from typecheck import CALLS, checked


def summed(x: Float[Tensor, "token feature"], y: Float[Tensor, " feature"]) -> Float[Tensor, " token"]:
    return (x + y).sum(0 if len(x) == 4 else 1)


def test_a_shape_a_type_and_a_result_that_are_not_those_written_are_refused() -> None:
    careful = checked(summed)
    assert careful(torch.ones(2, 3), torch.ones(3)).tolist() == [6, 6]
    for x, y in ((torch.ones(3), torch.ones(3)), (torch.ones(2, 3), torch.ones(1)), (torch.ones(2, 3), 1.0)):
        with pytest.raises(TypeCheckError, match="parameters of"):
            careful(x, y)
    with pytest.raises(TypeCheckError, match="return value of"):
        careful(torch.ones(4, 3), torch.ones(3))


def test_later_calls_are_not_checked() -> None:
    careful = checked(summed)
    for _ in range(CALLS):
        careful(torch.ones(2, 3), torch.ones(3))
    assert careful(torch.ones(2, 3), torch.ones(1)).tolist() == [6, 6]


def test_fields_of_a_dataclass_are_checked() -> None:
    @checked
    @dataclass
    class Point:
        place: Float[Tensor, " feature"]

    assert Point(torch.ones(2)).place.sum() == 2
    with pytest.raises(TypeCheckError):
        Point(torch.ones(2, 2))


def test_the_package_is_under_the_checks() -> None:
    assert inner.__code__.co_filename.endswith("typecheck.py")
    assert inner.__wrapped__.__code__.co_filename.endswith("retraction.py")
