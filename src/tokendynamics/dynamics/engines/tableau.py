"""Runge–Kutta methods as data: a new method is a new table."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Row = tuple[Fraction, ...]


@dataclass(frozen=True)
class Tableau:
    """An explicit method with an embedded error estimate and a continuous extension.

    Attributes:
        name: As in `simulate(method=…)`.
        order: Of the solution that is propagated.
        nodes: c.
        stages: Rows of a, the first (empty) for the first stage. The last row is the solution itself where the
            method is first-same-as-last.
        weights: b.
        error: b − b̂ over all stages; empty for methods of fixed step only.
        dense: For each stage the coefficients of θ, θ², … in ``y(θ) = y_0 + h Σ_s k_s Σ_p dense[s][p] θ^(p+1)``.
        same_last: Whether the last stage is the first of the next step.
    """

    name: str
    order: int
    nodes: Row
    stages: tuple[Row, ...]
    weights: Row
    error: Row
    dense: tuple[Row, ...]
    same_last: bool


def _row(*numbers: str) -> Row:
    return tuple(Fraction(number) for number in numbers)


DOPRI5 = Tableau(
    # Dormand and Prince (1980), the method of MATLAB's ode45; the extension of order 4 is Shampine's (1986).
    name="dopri5",
    order=5,
    nodes=_row("0", "1/5", "3/10", "4/5", "8/9", "1", "1"),
    stages=(
        (),
        _row("1/5"),
        _row("3/40", "9/40"),
        _row("44/45", "-56/15", "32/9"),
        _row("19372/6561", "-25360/2187", "64448/6561", "-212/729"),
        _row("9017/3168", "-355/33", "46732/5247", "49/176", "-5103/18656"),
        _row("35/384", "0", "500/1113", "125/192", "-2187/6784", "11/84"),
    ),
    weights=_row("35/384", "0", "500/1113", "125/192", "-2187/6784", "11/84", "0"),
    error=_row("71/57600", "0", "-71/16695", "71/1920", "-17253/339200", "22/525", "-1/40"),
    dense=(
        _row("1", "-8048581381/2820520608", "8663915743/2820520608", "-12715105075/11282082432"),
        _row("0", "0", "0", "0"),
        _row("0", "131558114200/32700410799", "-68118460800/10900136933", "87487479700/32700410799"),
        _row("0", "-1754552775/470086768", "14199869525/1410260304", "-10690763975/1880347072"),
        _row("0", "127303824393/49829197408", "-318862633887/49829197408", "701980252875/199316789632"),
        _row("0", "-282668133/205662961", "2019193451/616988883", "-1453857185/822651844"),
        _row("0", "40617522/29380423", "-110615467/29380423", "69997945/29380423"),
    ),
    same_last=True,
)

BOSH3 = Tableau(
    # Bogacki and Shampine (1989): for fields with kinks, where high order buys nothing.
    name="bosh3",
    order=3,
    nodes=_row("0", "1/2", "3/4", "1"),
    stages=((), _row("1/2"), _row("0", "3/4"), _row("2/9", "1/3", "4/9")),
    weights=_row("2/9", "1/3", "4/9", "0"),
    error=_row("-5/72", "1/12", "1/9", "-1/8"),
    dense=(_row("1", "-4/3", "5/9"), _row("0", "1", "-2/3"), _row("0", "4/3", "-8/9"), _row("0", "-1", "1")),
    same_last=True,
)

RK4 = Tableau(
    # The classical method of fourth order, fixed steps only.
    name="rk4",
    order=4,
    nodes=_row("0", "1/2", "1/2", "1"),
    stages=((), _row("1/2"), _row("0", "1/2"), _row("0", "0", "1")),
    weights=_row("1/6", "1/3", "1/3", "1/6"),
    error=(),
    dense=(),
    same_last=False,
)

EULER = Tableau(
    # Explicit Euler, fixed steps only: the loop of the theorists' scripts, to compare with.
    name="euler",
    order=1,
    nodes=_row("0"),
    stages=((),),
    weights=_row("1"),
    error=(),
    dense=(),
    same_last=False,
)

TABLEAUS = {tableau.name: tableau for tableau in (DOPRI5, BOSH3, RK4, EULER)}
