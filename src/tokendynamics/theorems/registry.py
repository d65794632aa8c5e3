"""Every statement that is checked, in the order of the papers."""

from __future__ import annotations

from tokendynamics.theorems import (
    asymptotic_3_1,
    asymptotic_3_2,
    asymptotic_4_1,
    asymptotic_5_1,
    asymptotic_6_1,
    asymptotic_remark_4_2,
    asymptotic_remark_5_1,
    positional_3_1,
    positional_3_3,
    positional_3_4,
    positional_3_6,
    positional_c_1,
    positional_c_2,
    positional_c_3,
    positional_remark_3_2,
    positional_remark_3_5,
)
from tokendynamics.theorems.statement import Statement

STATEMENTS: tuple[Statement, ...] = (
    asymptotic_3_1.STATEMENT,
    asymptotic_3_2.STATEMENT,
    asymptotic_4_1.STATEMENT,
    asymptotic_remark_4_2.STATEMENT,
    asymptotic_5_1.STATEMENT,
    asymptotic_remark_5_1.STATEMENT,
    asymptotic_6_1.STATEMENT,
    positional_3_1.STATEMENT,
    positional_remark_3_2.STATEMENT,
    positional_3_3.STATEMENT,
    positional_3_4.STATEMENT,
    positional_remark_3_5.STATEMENT,
    positional_3_6.STATEMENT,
    positional_c_1.STATEMENT,
    positional_c_2.STATEMENT,
    positional_c_3.STATEMENT,
)
"""The registry of `check` and `certify`."""
