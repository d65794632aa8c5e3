"""Every statement that is checked, in the order of the papers."""

from __future__ import annotations

from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.statements import (
    _asymptotic_3_1,
    _asymptotic_3_2,
    _asymptotic_4_1,
    _asymptotic_5_1,
    _asymptotic_6_1,
    _asymptotic_remark_4_2,
    _asymptotic_remark_5_1,
    _positional_3_1,
    _positional_3_3,
    _positional_3_4,
    _positional_3_6,
    _positional_c_1,
    _positional_c_2,
    _positional_c_3,
    _positional_remark_3_2,
    _positional_remark_3_5,
)

__all__ = ["STATEMENTS"]

STATEMENTS: tuple[Statement, ...] = (
    _asymptotic_3_1.STATEMENT,
    _asymptotic_3_2.STATEMENT,
    _asymptotic_4_1.STATEMENT,
    _asymptotic_remark_4_2.STATEMENT,
    _asymptotic_5_1.STATEMENT,
    _asymptotic_remark_5_1.STATEMENT,
    _asymptotic_6_1.STATEMENT,
    _positional_3_1.STATEMENT,
    _positional_remark_3_2.STATEMENT,
    _positional_3_3.STATEMENT,
    _positional_3_4.STATEMENT,
    _positional_remark_3_5.STATEMENT,
    _positional_3_6.STATEMENT,
    _positional_c_1.STATEMENT,
    _positional_c_2.STATEMENT,
    _positional_c_3.STATEMENT,
)
"""The registry of `check` and `certify`."""
