"""Every statement that is known: what names one, which apply to a flow, and what held along a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention.schedules.conversion import has_function
from tokendynamics.dynamics import Flow, Noise, Trajectory
from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems._conditions import approximates_its_flow, flow_of_run
from tokendynamics.theorems._hypotheses import over_horizon
from tokendynamics.theorems._statement import Statement, has_noise
from tokendynamics.theorems.atlas import ATLAS
from tokendynamics.theorems.result import Certificate, Check
from tokendynamics.theorems.statements import STATEMENTS

KNOWN: tuple[Statement, ...] = (*STATEMENTS, *ATLAS)
"""Those of the three papers, then those of the atlas."""


_FEW = 6
"""Names in a message."""


def named(name: str | Statement, argument: str = "statements") -> Statement:
    """Return the statement of a name; a statement is returned as it is.

    Raises:
        ArgumentValueError: No statement has that name; the first of the known ones are printed.
    """
    if isinstance(name, Statement):
        return name
    statements = {statement.name: statement for statement in KNOWN}
    if name not in statements:
        first = ", ".join(list(statements)[:_FEW])
        advice = "tokendynamics.theorems.STATEMENTS and ATLAS hold them all"
        raise ArgumentValueError(
            argument, f"names among {first} and {len(statements) - _FEW} more", shown(name), advice
        )
    return statements[name]


@typed_arguments
def check(
    flow: Flow,
    x0: ArrayLike,
    times: ArrayLike | None = None,
    *,
    statements: Sequence[str | Statement] | None = None,
    noise: Noise | None = None,
) -> list[Check]:
    """Measure the hypotheses of every statement; nothing is integrated.

    Source: the table of statements of `asymptotic` (theorems 3.1 to 6.1, remarks 4.2 and 5.1), `positional`
    (theorems 3.1 to 3.6, C.1 to C.3, remarks 3.2 and 3.5) and the sources of `ATLAS`, each with its own measurements.

    Args:
        flow: What moves the tokens.
        x0: The start, shape (…, token, dim). Leading axes are systems: `.applies_to` has every one, `.applies` says
            whether that is all, and margins are those of the worst.
        times: Those of the run, whose first and last bound where functions of time are looked at; needed where a
            matrix is a callable. If None, schedules of other classes are looked at at some times from 0 to 138.
        statements: Names such as ``"asymptotic-3.1"``, or `Statement` objects: your own, or all of `STATEMENTS`. If
            None, all that are known: `STATEMENTS` of the three papers and `ATLAS`.
        noise: That of the run: with it only statements on noise apply. If None, a run without is meant, and what
            statements on noise suppose of it is assumed.

    Returns:
        One `Check` per statement, in the order given, or else of the sources: `.statement`, `.applies`, `.applies_to`,
        `.reasons` (one sentence per violated hypothesis, with the systems), `.prediction`, `.assumed` (what cannot be
        measured, such as the boundedness of a callable), `.hypotheses` with margins, `.erratum`, `.equations`.

    Raises:
        ArgumentTypeError, ArgumentValueError: A start that is no real array, holds NaN, or has another dim; times
            that do not increase, or none where a matrix is a callable; a name that is no statement; matrices whose
            sums or products are not finite.

    >>> import torch
    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.dynamics import Flow
    >>> from tokendynamics.spaces import Sphere
    >>> flow = Flow(Attention(torch.eye(2).double(), torch.eye(2).double(), causal=True), Sphere())
    >>> checks = check(flow, [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> [statement_check.statement for statement_check in checks if statement_check.applies][:3]
    ['asymptotic-remark-4.2', 'asymptotic-5.1', 'masking-4.1']
    """
    chosen = KNOWN if statements is None else [named(one) for one in statements]
    if times is not None:
        moments = read_times(times)
        flow = over_horizon(flow.beginning(moments[0]), np.array(moments))
    elif any(map(has_function, flow.attention.schedules)):
        wanted = "the output times of the run, where a matrix is a function of time"
        advice = "the function is asked between the first and the last of them"
        raise ArgumentValueError("times", wanted, "None", advice)
    start = as_start(flow, x0)
    try:
        return [statement.check(flow, start, noise) for statement in chosen]
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        matrices = "matrices whose sums and products are finite in float64, for the hypotheses to be measured"
        advice = "scale qk or ov towards 1"
        raise ArgumentValueError("flow", matrices, "some that are too large or too small", advice) from None


def as_start(flow: Flow, x0: ArrayLike) -> Tensor:
    """Return the start in float64, refused where it does not fit the flow or is no start of it."""
    start = flow.fitting(x0, "x0").detach().double()
    if start.numel() == 0:
        raise ArgumentValueError("x0", "at least one system", f"shape {tuple(start.shape)}")
    flow.geometry.check(start, "x0")
    return start


@typed_arguments
def certify(trajectory: Trajectory, statements: Sequence[str | Statement] | None = None) -> list[Certificate]:
    """Run the certificate of every statement that applies to the trajectory's flow and first state.

    A certificate says *holds* (nothing violated, limits down to the threshold), *fails* (a condition violated by
    more than the tolerance, with the first time of failure), or *undecided* (the run ended too early to see the
    limit, or was too loose), with the margin and the tolerance that decided. Tolerances follow those of the run;
    before "fails" is said the systems in question run again with a hundredth of them, and must fail again.

    Args:
        trajectory: A run of `simulate`. `.outcome` is the worst of the systems to which the statement applies, and
            `.outcomes` and `.margins` have every system.
        statements: Names such as ``"asymptotic-3.1"``, or `Statement` objects, to run at all systems, whether or not
            they apply. If None, all known ones that apply to some system, at those, that speak of such a run (of layers
            with another residual factor than 1 those of flows say nothing, of rescaled tokens those about x, of runs
            with noise all but those on noise), and can be decided: a probability (remark 4.2) takes 30 systems, unless
            it is 1.

    Returns:
        One `Certificate` per statement.

    Raises:
        ArgumentValueError: A name that is no statement (the known ones are printed), a trajectory from a file
            that could not keep its flow, one of rescaled tokens for a statement about x alone, or one with noise for a
            statement that does not speak of it.

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
        return [named(one).certify(trajectory) for one in statements]
    flow = flow_of_run(trajectory)
    start = as_start(flow, trajectory.tensor[..., 0, :, :])
    spoken_of = [one for one in KNOWN if one.of_layers or approximates_its_flow(trajectory)]
    readable = [one for one in spoken_of if one.rescaled or trajectory.frame == "tokens"]
    readable = [one for one in readable if (one.subject == "noise") == has_noise(trajectory)]
    checks = ((one, one.check(flow, start, trajectory.noise).applies_to) for one in readable)
    return [one.certify(trajectory, where) for one, where in checks if where.any() and one.decidable(trajectory)]
