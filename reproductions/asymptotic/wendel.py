"""`asymptotic` Remark 4.2: the probability that uniform tokens share a hemisphere, printed with one term too few."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, marks, without_legend
from reproductions.record import Quantity, Record, timed
from tokendynamics import figures, observables
from tokendynamics.spaces import Sphere

CASES = ((3, 3), (5, 3), (8, 3), (10, 3), (5, 4), (8, 4), (10, 4), (10, 6))
"""(tokens ℓ, dim n + 1)."""

_REASON = "the printed sum ends at n − 1; Wendel's ends at n"

_TOO_FEW = "the formulas differ by {gap:.3g}, less than the tolerance {tolerance:.3g} of {draws} draws"


@timed
def reproduce(*, draws: int = 600, seed: int = 42) -> Record:
    """Measure the share of `draws` uniform draws with a common open hemisphere, beside both formulas.

    The tolerance is four standard deviations of that share. Where it is not below the difference of the two formulas
    these draws cannot tell which is right.
    """
    quantities, rows = [], []
    for index, (tokens, dim) in enumerate(CASES):
        start = Sphere().sample(tokens, dim, (draws,), seed=seed + index)
        share = float((observables.hemisphere(start).margin > 0).double().mean())
        corrected = observables.wendel_probability(tokens, dim)
        printed = observables.wendel_probability(tokens, dim, formula="printed")
        tolerance = 4 * math.sqrt(corrected * (1 - corrected) / draws)
        gap = corrected - printed
        unsettled = _TOO_FEW.format(draws=draws, gap=gap, tolerance=tolerance) if tolerance >= gap else ""
        name = f"{tokens} tokens in dim {dim}"
        quantities += [
            Quantity(f"{name}, sum to n", corrected, share, tolerance, source="theory", unsettled=unsettled),
            Quantity(
                f"{name}, sum to n − 1 as printed", printed, share, tolerance, reason=_REASON, unsettled=unsettled
            ),
        ]
        rows.append((tokens, dim, share, corrected, printed))
    return Record(
        paper="asymptotic",
        figure="Remark 4.2",
        statement="P(all tokens in one open hemisphere) = 2^(1−ℓ) Σ C(ℓ−1, μ) over μ = 0 … n, and is 1 for ℓ ≤ n + 1.",
        quantities=tuple(quantities),
        invented=f"{draws} uniform draws for each case (seeds {seed} to {seed + len(CASES) - 1})",
        seed=seed,
        results={"draws": draws, "rows": rows},
    )


def draw(record: Record) -> Figure:
    """Draw both formulas and the shares, for every number of tokens."""
    dims = sorted({dim for _, dim, *_ in record.results["rows"]})
    titles = [f"dim {dim}" for dim in dims]
    figure, panels = figures.panels(len(dims), width=figures.DOUBLE, height=2.4, titles=titles)
    counts = np.arange(1.0, 13.0)
    for panel, dim in zip(panels, dims, strict=True):
        formulas = [
            [observables.wendel_probability(int(count), dim, formula=formula) for count in counts]
            for formula in ("corrected", "printed")
        ]
        figures.over_time(
            counts,
            formulas,
            "probability",
            names=["to n", "to n − 1 (printed)"],
            time_label="tokens",
            axes=panel,
        )
        shares = [(tokens, share) for tokens, of_dim, share, *_ in record.results["rows"] if of_dim == dim]
        label = f"share of {record.results['draws']} draws"
        marks(panel, [tokens for tokens, _ in shares], [share for _, share in shares], label)
        panel.set_ylim(bottom=0)
        if dim != dims[-1]:
            without_legend(panel)
    return footnote(figure, record)
