"""Limits on the result of a diagnosis: options for automatic checks, and the exit code if a limit is not met."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._terminal import line
from tokendynamics.numerics.printable import shortened

if TYPE_CHECKING:
    import xarray as xr

    from tokendynamics.diagnosis import Verdict

NOT_MET = 3
"""Exit code if a limit is not met; the results are written all the same."""

STATES = ("spread", "drawing together", "consensus", "rank collapse", "anisotropic", "undetermined")
"""The states of a verdict, repeated here because verdicts are imported only when a command runs."""


class States(click.ParamType):
    """States of a verdict, separated by commas; a hyphen may stand for a space.

    >>> States().convert("rank-collapse, consensus", None, None)
    ('rank collapse', 'consensus')
    """

    name = "states"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names."""
        parts = value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))
        names = tuple(part.replace("-", " ") for part in parts)
        wrong = next((part for part in names if part not in STATES), None)
        if wrong is not None:
            came = shortened(repr(wrong), 100)
            known = ", ".join(state.replace(" ", "-") for state in STATES)
            self.fail(f"expected states among {known}, separated by commas, got {came}", param, ctx)
        return names


class Similarity(click.ParamType):
    """A finite number up to 1, the largest similarity.

    >>> Similarity().convert("0.5", None, None)
    0.5
    """

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not -math.inf < number <= 1.0:
            self.fail(f"{number:g} is not a number up to 1.", param, ctx)
        return number


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --fail-on, --max-similarity and --quiet to a command."""
    for option in (
        click.option(
            "--quiet", is_flag=True, help="Print no progress, notes or results, only limits that are not met."
        ),
        click.option(
            "--max-similarity",
            type=Similarity(),
            metavar="X",
            help=f"Exit with code {NOT_MET} if the within-text similarity κ′ after the last layer is above X.",
        ),
        click.option(
            "--fail-on",
            type=States(),
            metavar="STATE[,STATE]",
            help=f"Exit with code {NOT_MET} if the state after the last layer is one of these, such as rank-collapse.",
        ),
    ):
        command = option(command)
    return command


def code_for(
    judged: Sequence[tuple[str, Verdict, xr.Dataset]], fail_on: Sequence[str] | None, max_similarity: float | None
) -> int:
    """Return the exit code of a command, after one line on standard error if a limit is not met.

    Args:
        judged: Name, verdict and trace of each network that must meet the limits.
        fail_on: States that are not allowed after the last layer; None for no such limit.
        max_similarity: Bound of κ′ after the last layer, which an undefined κ′ does not meet; None for no bound.
    """
    reasons = []
    for name, verdict, trace in judged:
        kappa = float(trace.consensus_relative.sel(site="feed_forward")[-1])
        if verdict.state in (fail_on or ()):
            reasons.append(f"{name} ends in “{verdict.state}” (--fail-on)")
        if max_similarity is not None and math.isnan(kappa):
            reasons.append(
                f"{name}: κ′ is undefined, so it cannot be compared with {max_similarity:g} (--max-similarity)"
            )
        elif max_similarity is not None and kappa > max_similarity:
            reasons.append(f"{name}: κ′ {kappa:.3g} is above {max_similarity:g} (--max-similarity)")
    if reasons:
        line(f"limit not met: {'; '.join(reasons)}")
    return NOT_MET if reasons else 0
