"""What became of the predictions along a trajectory."""

from __future__ import annotations

from collections.abc import Sequence

from tokendynamics.dynamics import Trajectory
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems.check import as_start
from tokendynamics.theorems.conditions import flow_of
from tokendynamics.theorems.registry import STATEMENTS
from tokendynamics.theorems.result import Certificate
from tokendynamics.theorems.statement import Statement


@typed_arguments
def certify(trajectory: Trajectory, statements: Sequence[str] | None = None) -> list[Certificate]:
    """Run the certificate of every statement that applies to the trajectory's flow and first state.

    A certificate says *holds* (nothing violated, limits down to the threshold), *fails* (a condition violated by
    more than the tolerance, with the first time of failure), or *undecided* (nothing violated, but the run ended
    too early to see the limit), with the margin and the tolerance that decided.

    Args:
        trajectory: A run of `simulate`; a batch of systems is judged by its worst one, and
            `.outcomes` and `.margins` have every system.
        statements: Names such as ``"asymptotic-3.1"`` to run whether or not they apply. If None, all that apply
            and can be decided: a probability (remark 4.2) takes 30 systems, unless it is 1.

    Returns:
        One `Certificate` per statement.

    Raises:
        ArgumentValueError: A name that is no statement (the known ones are printed), or a trajectory from a file
            that could not keep its flow.

    >>> import numpy as np, torch
    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.dynamics import Flow, simulate
    >>> from tokendynamics.spaces import Sphere
    >>> flow = Flow(Attention(torch.eye(2).double(), torch.eye(2).double()), Sphere())
    >>> run = simulate(flow, [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], np.linspace(0.0, 30.0, 31))
    >>> certificate, = certify(run, statements=["asymptotic-4.1"])
    >>> certificate.outcome, certificate.margin > 0
    ('holds', True)
    """
    chosen = STATEMENTS if statements is None else tuple(_named(name) for name in statements)
    if statements is None:
        flow = flow_of(trajectory)
        start = as_start(flow, trajectory.tensor[..., 0, :, :])
        chosen = tuple(one for one in chosen if one.check(flow, start).applies and one.decidable(trajectory))
    return [statement.certify(trajectory) for statement in chosen]


def _named(name: str) -> Statement:
    found = {statement.name: statement for statement in STATEMENTS}
    if name not in found:
        raise ArgumentValueError(expected("statements", f"names among {', '.join(found)}", repr(name)))
    return found[name]
