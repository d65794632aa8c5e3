"""Which statements apply to a flow and a start, and why the others do not."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tokendynamics.dynamics import Flow
from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems.horizon import over_horizon
from tokendynamics.theorems.registry import STATEMENTS
from tokendynamics.theorems.result import Check


@typed_arguments
def check(flow: Flow, x0: ArrayLike, times: ArrayLike | None = None) -> list[Check]:
    """Measure the hypotheses of every statement; nothing is integrated.

    Source: the table of statements of `asymptotic` (theorems 3.1 to 6.1, remarks 4.2 and 5.1) and `positional`
    (theorems 3.1 to 3.6, C.1 to C.3, remarks 3.2 and 3.5), each with its own measurements.

    Args:
        flow: What moves the tokens.
        x0: The start, shape (…, token, dim). Leading axes are systems: `.applies_to` has every one, `.applies` says
            whether that is all, and margins are those of the worst.
        times: Those of the run, whose first and last bound where functions of time are looked at; some times from 0
            to 138 if None.

    Returns:
        One `Check` per statement, in the order of the papers: `.statement`, `.applies`, `.applies_to`, `.reasons`
        (one sentence per violated hypothesis, with the systems), `.prediction`, `.assumed` (what cannot be measured,
        such as the boundedness of a callable), `.hypotheses` with margins, `.erratum`, `.equations`.

    Raises:
        ArgumentTypeError, ArgumentValueError: A start that is no real array, holds NaN, or has another dim; times
            that do not increase.

    >>> import torch
    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.dynamics import Flow
    >>> from tokendynamics.spaces import Sphere
    >>> flow = Flow(Attention(torch.eye(2).double(), torch.eye(2).double(), causal=True), Sphere())
    >>> [found.statement for found in check(flow, [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]) if found.applies]
    ['asymptotic-remark-4.2', 'asymptotic-5.1']
    """
    start = as_start(flow, x0)
    if times is not None:
        flow = over_horizon(flow, np.array(read_times(times)))
    return [statement.check(flow, start) for statement in STATEMENTS]


def as_start(flow: Flow, x0: ArrayLike) -> Tensor:
    """Return the start in float64, refused where it does not fit the flow or is no start of it."""
    if not isinstance(flow, Flow):
        raise ArgumentTypeError(expected("flow", "a Flow", type(flow).__name__))
    start = flow.fitting(x0, "x0").detach().double()
    if start.numel() == 0:
        raise ArgumentValueError(expected("x0", "at least one system", f"shape {tuple(start.shape)}"))
    flow.geometry.check(start, "x0")
    return start
