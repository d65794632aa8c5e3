"""Limits on the result of a diagnosis: options for automatic checks, and the exit code if a limit is not met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

import click

from tokendynamics.cli._signature import Option
from tokendynamics.cli._terminal import line
from tokendynamics.cli._values import Number
from tokendynamics.numerics.printable import shortened
from tokendynamics.words import number

if TYPE_CHECKING:
    import xarray as xr

    from tokendynamics.diagnosis import Verdict

NOT_MET = 3
"""Exit code if a limit is not met; the results are written all the same."""


class States(click.ParamType):
    """States of a verdict, separated by commas; a hyphen may stand for a space.

    >>> States().convert("rank-collapse, consensus", None, None)
    ('rank collapse', 'consensus')
    """

    name = "states"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names."""
        # Slow to import, and only needed with the option.
        from tokendynamics.diagnosis.tracing.layer_states import State

        states = get_args(State)
        parts = value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))
        names = tuple(part.replace("-", " ") for part in parts)
        wrong = next((part for part in names if part not in states), None)
        if wrong is not None:
            came = shortened(repr(wrong), 100)
            known = ", ".join(state.replace(" ", "-") for state in states)
            self.fail(f"expected states among {known}, separated by commas, got {came}", param, ctx)
        return names


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the states after the last layer must meet.

    Attributes:
        fail_on: Exit with code 3 if the state after the last layer or the final norm is one of these, as rank-collapse.
        max_similarity: Exit with code 3 if the within-text similarity κ′ after the last layer is above X.
        quiet: Print no progress, notes or results, only limits that are not met.
    """

    fail_on: Annotated[Any, Option(type=States(), metavar="STATE[,STATE]")] = None
    max_similarity: Annotated[float | None, Option(type=Number(up_to=1.0), metavar="X")] = None
    quiet: bool = False

    def code_for(self, judged: Sequence[tuple[str, Verdict, xr.Dataset]]) -> int:
        """Return the exit code of a command, after one line on standard error if a limit is not met.

        Args:
            judged: Name, verdict and trace of each network that must meet the limits; an undefined κ′ meets none.
        """
        reasons = []
        for name, verdict, trace in judged:
            kappa, most = float(trace.consensus_relative.sel(site="feed_forward")[-1]), self.max_similarity
            if verdict.state in (self.fail_on or ()):
                reasons.append(f"{name} ends in “{verdict.state}” (--fail-on)")
            elif verdict.final_norm in (self.fail_on or ()):
                reasons.append(f"{name} is in “{verdict.final_norm}” after the final norm (--fail-on)")
            if most is not None and math.isnan(kappa):
                reasons.append(
                    f"{name}: κ′ is undefined, so it cannot be compared with {number(most)} (--max-similarity)"
                )
            elif most is not None and kappa > most:
                reasons.append(f"{name}: κ′ {number(kappa)} is above {number(most)} (--max-similarity)")
        if reasons:
            line(f"limit not met: {'; '.join(reasons)}")
        return NOT_MET if reasons else 0
