"""What became of the predictions along a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokendynamics.dynamics import Trajectory
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems.check import as_start
from tokendynamics.theorems.conditions import flow_of
from tokendynamics.theorems.horizon import over_horizon
from tokendynamics.theorems.registry import STATEMENTS
from tokendynamics.theorems.result import Certificate
from tokendynamics.theorems.statement import Statement


@typed_arguments
def certify(trajectory: Trajectory, statements: Sequence[str] | None = None) -> list[Certificate]:
    """Run the certificate of every statement that applies to the trajectory's flow and first state.

    A certificate says *holds* (nothing violated, limits down to the threshold), *fails* (a condition violated by
    more than the tolerance, with the first time of failure), or *undecided* (the run ended too early to see the
    limit, or was too loose), with the margin and the tolerance that decided. Tolerances follow those of the run;
    before "fails" is said the systems in question run again with a hundredth of them, and must fail again.

    Args:
        trajectory: A run of `simulate`. `.outcome` is the worst of the systems to which the statement applies, and
            `.outcomes` and `.margins` have every system.
        statements: Names such as ``"asymptotic-3.1"`` to run at all systems, whether or not they apply. If None, all
            that apply to some system, at those, and can be decided: a probability (remark 4.2) takes 30 systems,
            unless it is 1.

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
    if trajectory.flow is not None:
        trajectory = replace(trajectory, flow=over_horizon(trajectory.flow, trajectory.times))
    if statements is not None:
        return [_named(name).certify(trajectory) for name in statements]
    flow = flow_of(trajectory)
    start = as_start(flow, trajectory.tensor[..., 0, :, :])
    checks = ((one, one.check(flow, start).applies_to) for one in STATEMENTS)
    return [one.certify(trajectory, where) for one, where in checks if where.any() and one.decidable(trajectory)]


def _named(name: str) -> Statement:
    found = {statement.name: statement for statement in STATEMENTS}
    if name not in found:
        raise ArgumentValueError(expected("statements", f"names among {', '.join(found)}", repr(name)))
    return found[name]
