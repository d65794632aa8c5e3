"""Every statement that is checked, in the order of the papers."""

from __future__ import annotations

from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.statements import (
    _asymptotic_3_1,
    _asymptotic_3_2,
    _asymptotic_4_1,
    _asymptotic_5_1,
    _asymptotic_6_1,
    _asymptotic_remark_5_1,
    _positional_3_1,
    _positional_3_3,
    _positional_3_4,
    _positional_3_6,
    _positional_remark_3_2,
)
from tokendynamics.theorems.statements import asymptotic_remark_4_2 as _asymptotic_remark_4_2
from tokendynamics.theorems.statements import positional_remark_3_5 as _positional_remark_3_5

__all__ = ["STATEMENTS"]

_IN_ORDER = (
    _asymptotic_3_1, _asymptotic_3_2, _asymptotic_4_1, _asymptotic_remark_4_2, _asymptotic_5_1,
    _asymptotic_remark_5_1, _asymptotic_6_1, _positional_3_1, _positional_remark_3_2, _positional_3_3,
    _positional_3_4, _positional_remark_3_5, _positional_3_6,
)  # fmt: skip

STATEMENTS: tuple[Statement, ...] = (
    *(module.STATEMENT for module in _IN_ORDER),
    _positional_3_4.WITH_ABSOLUTE_POSITIONS,
    _positional_3_6.WITH_ABSOLUTE_POSITIONS,
    _positional_3_6.WITH_ROTARY_POSITIONS,
)
"""The registry of `check` and `certify`."""


def __dir__() -> list[str]:
    return __all__
