"""A function of time such as 1/t is asked within the run only, also by checks and certificates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.attention.schedules.conversion import FromCallable
from tokendynamics.numerics.errors import ArgumentValueError

pytestmark = pytest.mark.usefixtures("unchecked")

EYE, X0, TIMES = np.eye(2), [[1.0, 0.2], [0.3, 1.0]], np.linspace(1.0, 10.0, 10)
PLACES = ("qk", "ov", "both", "causal", "a head", "declared", "positions")
SPACES = [td.Sphere(), td.Free()]

Function = Callable[[float], np.ndarray]


def attentions(function: Function) -> dict[str, td.Attention]:
    """Return attention with the function at every place where a matrix can stand."""
    return {
        "qk": td.Attention(function, EYE),
        "ov": td.Attention(EYE, function),
        "both": td.Attention(function, function),
        "causal": td.Attention(function, EYE, causal=True),
        "a head": td.Attention([function, EYE], [EYE, EYE]),
        "declared": td.Attention(FromCallable(function, "qk", jumps=[2.0]), [FromCallable(function, "ov")]),
        "positions": td.Attention(EYE, EYE, positions=td.RotaryPositions(function, EYE)),
    }


def one_over(t: float) -> np.ndarray:
    """Return the identity over t, between 1 and 10 only."""
    if not 1.0 <= t <= 10.0:
        raise AssertionError(t)
    return EYE / t


@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_a_check_asks_a_function_within_the_times_only(place: str, space: td.Space) -> None:
    flow = td.Flow(attentions(one_over)[place], space)
    assert len(td.check(flow, X0, TIMES)) == len(td.theorems.STATEMENTS) + len(td.theorems.ATLAS)
    run = td.simulate(flow, X0, TIMES)
    applying = [one.statement for one in td.check(flow, X0, TIMES) if one.applies]
    assert [one.statement for one in td.certify(run, applying)] == applying


@pytest.mark.parametrize("place", PLACES)
def test_a_check_of_a_function_without_times_is_refused_before_it_is_asked(place: str) -> None:
    flow = td.Flow(attentions(one_over)[place], td.Sphere())
    with pytest.raises(ArgumentValueError, match="times: expected the output times of the run, where a matrix is a fu"):
        td.check(flow, X0)


@pytest.mark.parametrize("place", PLACES)
def test_a_flow_is_printed_without_asking_its_functions(place: str) -> None:
    attention = attentions(one_over)[place]
    assert repr(td.Flow(attention, td.Sphere())).startswith("Flow(")
    assert repr(attention).startswith("Attention(")
    assert repr(attention.positions)


def test_of_a_function_that_was_not_asked_no_size_is_printed() -> None:
    both = attentions(one_over)["both"]
    assert repr(td.Flow(both, td.Sphere())).startswith("Flow(shape not known yet, full mask")
    assert repr(td.Flow(attentions(one_over)["qk"], td.Sphere())).startswith("Flow(1 head, dim 2, full mask")
