"""Claims about a mean over texts, of which some were drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reproductions.record import Quantity, Relation, Verdict

SAID = {"yes": "so", "no": "not so", "cannot tell": "not decided by these texts"}


def mean_of(
    name: str, values: np.ndarray, bound: float, relation: Relation, *, tolerance: float = 0.0, reason: str = ""
) -> Quantity:
    """Hold the mean over texts against a bound; within two standard errors of it these texts cannot tell.

    Args:
        name: What it is.
        values: One for each text; a NaN among them is no mean.
        bound: "≥" or "≤" which it is claimed to be.
        relation: Which of them.
        tolerance: How far beyond it may be.
        reason: Why it does not come out, if it does not.

    >>> mean_of("rise", np.array([0.1, -0.1, 0.2]), 0.0, "≥").verdict
    'cannot tell'
    """
    mean = float(values.mean())
    error = 2 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    limit = bound - tolerance if relation == "≥" else bound + tolerance
    unsettled = ""
    if math.isfinite(mean) and not abs(mean - limit) > error:
        unsettled = f"{mean:.3g} ± {error:.2g} over {len(values)} text{'s' * (len(values) != 1)}"
    quantity = Quantity(name, bound, mean, tolerance, relation, "reading", unsettled=unsettled)
    return Quantity(name, bound, mean, tolerance, relation, "reading", reason) if quantity.verdict == "no" else quantity


def together(rows: Sequence[Quantity]) -> Verdict:
    """Return one verdict for several quantities: no if any is, yes if all are."""
    verdicts = {row.verdict for row in rows}
    return "no" if "no" in verdicts else "cannot tell" if "cannot tell" in verdicts else "yes"
