"""`positional` Remark 3.2: in how many random states a distance goes the wrong way if A is not symmetric."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from reproductions.studies.design import Design
from reproductions.studies.record import Cell, Table
from reproductions.studies.statistics import change, share
from tokendynamics import observables
from tokendynamics.specification.build import Setup
from tokendynamics.theorems.contraction import contraction_form

TITLE = "Do distances keep their direction if A is not symmetric?"
QUESTION = (
    "By theorem 3.1 of `positional` no distance ‖x_i − x_j‖_A falls where A ≻ 0 is symmetric. Remark 3.2 says so of "
    "every A_sym ≻ 0. In how many random states does one fall all the same (d/dt q_A(x_i − x_j) < 0), and how does "
    "that grow with the distance from symmetry? A_sym ≺ 0 is the same with all signs turned."
)
SPEC = "remark-3-2"
SPECS = (SPEC,)
ROUNDING = 1e-9
"""Of a state's largest rate: what is nearer to zero is zero."""


def measure(designs: Mapping[str, Design]) -> tuple[Table, ...]:
    """Count the states and pairs that go the wrong way, at each point of the design."""
    by_point: dict[tuple[Cell, ...], list[np.ndarray]] = {}
    for at, setup in designs[SPEC].built():
        by_point.setdefault(tuple(at.values()), []).append(wrong_pairs(setup))
    rows: list[tuple[Cell, ...]] = []
    for point, parts in by_point.items():
        wrong = np.concatenate(parts)
        rows.append((*point, len(wrong), share(np.asarray(wrong.any(axis=-1))), float(wrong.mean())))
    caption = (
        "W standard normal; A = S + skew · (B − S) with B standard normal and S = B_sym ≻ 0 (by rejection): skew = 1 "
        "is the normal law, 0 the symmetric case. Shares of states with Wilson intervals; pairs of a state are not "
        "independent and have none."
    )
    heads = ("dim", "tokens", "skew", "states", "states with a distance that falls", "pairs that fall")
    return (Table("wrong way", caption, heads, tuple(rows)),)


def wrong_pairs(setup: Setup) -> np.ndarray:
    """Return whether q_A(x_i − x_j) of each pair falls at the start, (system, pair)."""
    contraction = contraction_form(setup.flow).matrix
    rates = observables.pair_quadratic_form_rate(contraction, setup.start, setup.flow.velocity(setup.start))
    first, second = np.triu_indices(setup.start.shape[-2], k=1)
    pairs = torch.as_tensor(rates)[:, first, second]
    return (pairs < -ROUNDING * pairs.abs().amax(dim=-1, keepdim=True)).numpy()


def conclude(tables: Mapping[str, Table]) -> list[str]:
    """Say whether the claim is false, whether the theorem stands, and what goes with the distance from symmetry."""
    rows = tables["wrong way"].each()
    heading = "states with a distance that falls"
    skewed = [row for row in rows if row["skew"] > 0]
    symmetric = [row for row in rows if row["skew"] == 0]
    falling = [row[heading].of(row["states"]) for row in skewed]
    states = sum(row["states"] for row in skewed)
    false = f"The claim is false: in {sum(falling):,} of {states:,} states with A not symmetric a distance falls."
    sentences = [false if sum(falling) else f"None of {states:,} states contradicts the claim."]
    bent = sum(row[heading].of(row["states"]) for row in symmetric)
    count = sum(row["states"] for row in symmetric)
    stands = "as theorem 3.1 has it" if not bent else "and theorem 3.1 has none: look into it"
    sentences.append(f"Where A is symmetric a distance falls in {bent or 'none'} of {count:,} states, {stands}.")
    sentences += [
        _by_skew(point, skewed, heading) for point in dict.fromkeys((row["dim"], row["tokens"]) for row in skewed)
    ]
    return sentences


def _by_skew(point: tuple[int, int], rows: list[dict[str, Cell]], heading: str) -> str:
    at_point = [row for row in rows if (row["dim"], row["tokens"]) == point]
    least, most = at_point[0], at_point[-1]
    where = f"dim {point[0]}, {point[1]} tokens"
    numbers = f"{least[heading]} at skew {least['skew']:g}, {most[heading]} at skew {most['skew']:g}"
    match change(least[heading], most[heading]):  # type: ignore[arg-type]
        case "more":
            return f"{where}: more states go the wrong way the further A is from symmetry ({numbers})."
        case "fewer":
            return f"{where}: fewer states go the wrong way further from symmetry ({numbers})."
        case _:
            return f"{where}: no change with the distance from symmetry is seen ({numbers})."
