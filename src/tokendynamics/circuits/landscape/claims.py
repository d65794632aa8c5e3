"""Stationary points and basins of a landscape of `logical` section 3, and which claims of the paper hold there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from tokendynamics.circuits._task import category_law
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape.basins import Basins, Method, find_basins
from tokendynamics.circuits.landscape.categories_only import (
    CategoriesOnly,
    check_interaction,
    mean_predictor,
    no_output,
    zero_loss,
    zero_row_sums,
)
from tokendynamics.circuits.landscape.classification import Classification, classify
from tokendynamics.circuits.landscape.landscape import Landscape, StationaryPoint, checked_positions
from tokendynamics.circuits.landscape.positions_only import PositionsOnly, families, loss_at_infinity, towards_infinity
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions, Stall, stall
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square, as_tensor
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.progress import Progress
from tokendynamics.results import Result
from tokendynamics.words import listing, number, plural

Section: TypeAlias = Literal["3.1", "3.2", "3.3"]
Surveyed: TypeAlias = PositionsOnly | SoftmaxPositions | CategoriesOnly
Points: TypeAlias = tuple[tuple[StationaryPoint, Classification], ...]

STARTS: Mapping[Section, int] = {"3.1": 40, "3.2": 10, "3.3": 40}
"""Default number of random starts: with softmax every descent tends to infinite logits and takes seconds."""

_NAMES: Mapping[Section, str] = {
    "3.1": "Attention on positions, linear (3.1)",
    "3.2": "Attention on positions, softmax (3.2)",
    "3.3": "Attention on categories (3.3)",
}
_CATEGORIES = 5
_BYTES = 8
"""Bytes of an entry of the curvature."""
_DEPTHS = (2.0, 4.0, 6.0)
_ON_THE_WAY = -0.01
_LARGEST = 1e5
"""Largest entry of q_true: beyond it, curvatures at points of size 1 or less are rounding errors."""


@dataclass(frozen=True, repr=False)
class LandscapeSurvey(Result):
    """One landscape: its stationary points, where descent ends, and which claims of the paper hold.

    Attributes:
        section: The section of `logical`.
        landscape: With its law, positions and (3.3) q_true.
        answer: The result in a few words.
        claims: Which claims hold and which do not, the most important first.
        points: Members of the families, and their classification.
        stalls: How long descent stalls, where there is no finite stationary point.
        basins: Where random starts ended.
        marks: Reference losses by name; like every `loss`, summed over the tokens from the second on.

    >>> section_survey = survey("3.1", categories=2, positions=3, starts=2)
    >>> section_survey.section, len(section_survey.basins.runs)
    ('3.1', 2)
    """

    section: Section
    landscape: Surveyed
    answer: str
    claims: tuple[str, ...]
    basins: Basins
    points: Points = ()
    stalls: tuple[Stall, ...] = ()
    marks: Mapping[str, float] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """Name and answer."""
        return f"{self.name}: {self.answer}"

    @property
    def findings(self) -> tuple[str, ...]:
        """The claims."""
        return self.claims

    @property
    def name(self) -> str:
        """The name for headings."""
        return _NAMES[self.section]

    def per_token(self, loss: float) -> float:
        """Return a loss divided by the M − 1 tokens that it is summed over."""
        return loss / (self.landscape.positions - 1)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        landscape = self.landscape
        of_categories = isinstance(landscape, CategoriesOnly)
        return {
            "section": self.section,
            "landscape": self.name,
            "categories": len(landscape.law),
            "positions": landscape.positions,
            "law": landscape.law.tolist(),
            "q_true": landscape.q_true.tolist() if of_categories else None,
            "causal": landscape.causal if of_categories else None,
            "claims": list(self.claims),
            "points": [
                plain(
                    {name: getattr(point, name) for name in ("family", "text", "loss")}
                    | {"loss_per_token": point.loss_per_column, "attention": point.attention, "v": point.v}
                    | {"classification": kind}
                )
                for point, kind in self.points
            ],
            "stalls": [vars(one) | {"loss_per_token": self.per_token(one.loss)} for one in self.stalls],
            "basins": self.basins.as_json(),
            "marks": {
                name: {"loss": loss, "loss_per_token": self.per_token(loss)} for name, loss in self.marks.items()
            },
        }


@typed_arguments
def survey(
    section: Section,
    *,
    law: ArrayLike | str | None = None,
    categories: int | None = None,
    positions: int = 6,
    q_true: ArrayLike | None = None,
    causal: bool = False,
    starts: int | None = None,
    seed: int = 0,
    method: Method = "quasi-newton",
    budget: int = 600,
    progress: bool | Progress = False,
) -> LandscapeSurvey:
    """Return stationary points, basins and claims of the exact expected loss of a section of `logical`.

    Args:
        section: "3.1" (attention on positions, linear), "3.2" (with softmax) or "3.3" (attention on categories).
        law: Of the categories, see `category_law`.
        categories: N, at least 2; unless given that of law or q_true, else 5.
        positions: M, at least 2.
        q_true: Of 3.3, shape (N, N), [previous, current]; standard normal draws of seed 0 unless given.
        causal: Whether the attention of 3.3 is masked.
        starts: How many random starts; `STARTS` unless given.
        seed: Of the starts, and of the free parameters of the families of 3.1.
        method: See `find_basins`.
        budget: Steps of one run, at most.
        progress: See `find_basins`.

    Raises:
        ArgumentTypeError, ArgumentValueError: An unknown section, fewer than two categories or positions,
            a q_true or a mask outside 3.3, a q_true that is too large or without interaction, and what
            `find_basins` refuses.

    >>> section_survey = survey("3.1", categories=2, positions=3, starts=2)
    >>> [(point.family, kind.kind) for point, kind in section_survey.points][:2]
    [('A', 'global minimum'), ('B', 'strict saddle')]
    >>> section_survey.claims[0][:41]
    'The paper’s claim that besides the soluti'
    """
    if section not in get_args(Section):
        raise ArgumentValueError("section", "'3.1', '3.2' or '3.3'", repr(section))
    entries = checked_positions(positions) ** 2
    check_fits(_BYTES * entries**2, "positions", "the curvature is a matrix over all entries of q and v")
    if section == "3.3":
        landscape = _of_categories(q_true, law, categories, positions, causal)
    elif q_true is not None or causal:
        given, advice = "causal" if q_true is None else "q_true", "in 3.1 and 3.2 the target is the previous category"
        raise ArgumentValueError(given, "none outside of section 3.3", f"one for {section}", advice)
    else:
        landscape = (PositionsOnly if section == "3.1" else SoftmaxPositions)(_law(law, categories), positions)
    many = STARTS[section] if starts is None else starts
    basins = find_basins(landscape, many, seed=seed, method=method, budget=budget, progress=progress)
    if isinstance(landscape, PositionsOnly):
        return _linear(landscape, basins)
    return _softmax(landscape, basins) if isinstance(landscape, SoftmaxPositions) else _categories(landscape, basins)


def _of_categories(
    q_true: ArrayLike | None, law: ArrayLike | str | None, categories: int | None, positions: int, causal: bool
) -> CategoriesOnly:
    if q_true is None:
        functional = random_functional(len(_law(law, categories)), seed=0)
    else:
        functional = as_square(q_true, "q_true").double()
    size = functional.shape[-1]
    if categories not in (None, size):
        raise ArgumentValueError("categories", f"{size}, as q_true has", categories)
    _check_categories(size)
    largest = float(functional.abs().max())
    if largest > _LARGEST:
        advice = "divide all entries by a constant: the loss scales with its square"
        raise ArgumentValueError("q_true", f"numbers up to {_LARGEST:g} in size", f"{largest:g}", advice)
    landscape = CategoriesOnly(functional, law, positions, causal)
    check_interaction(landscape)
    return landscape


def _law(law: ArrayLike | str | None, categories: int | None) -> Tensor:
    if law is None or isinstance(law, str):
        given, size = law, _CATEGORIES if categories is None else categories
    else:
        given = as_tensor(law, "law", ndim_at_least=1, axes="(N,)")
        size = given.shape[-1] if categories is None else categories
    _check_categories(size)
    check_fits(_BYTES * size**4, "categories", "the curvature is a matrix over all entries of q and v")
    return category_law(given, size)


def _check_categories(categories: int) -> None:
    if isinstance(categories, bool) or not isinstance(categories, int):
        raise ArgumentTypeError("categories", "an integer", repr(categories))
    if categories < 2:
        raise ArgumentValueError("categories", "at least 2", categories, "a single category carries no information")


def _linear(landscape: PositionsOnly, basins: Basins) -> LandscapeSurvey:
    members = [*families(landscape, basins.seed), towards_infinity(landscape, _ON_THE_WAY)]
    points = _classified(landscape, members)
    limit = loss_at_infinity(landscape)
    total = limit * (landscape.positions - 1)
    second, kind = next(pair for pair in points if pair[0].family == "B")
    curvature = number(kind.lowest_curvature)
    others = [one for point, one in points if point.family not in ("A", "∞")]
    if all(one.kind == "strict saddle" for one in others):
        saddles = (
            "Every finite family but A is a strict saddle, so descent leaves it. "
            "Descent does not leave the path to infinity."
        )
    else:
        kinds = ", ".join(f"{point.family} {one.kind}" for point, one in points)
        saddles = f"Not every family but A is a strict saddle: {kinds}."
    trap = (
        "Descent can run to infinity, which the paper does not mention. There the loss tends to "
        f"T/M = {number(limit, 6)} per token, (M−1)·T/M = {number(total, 6)} in all."
    )
    defined = "T = 1 − Σ p² is the loss per token of always predicting the mean."
    if not basins.share("at infinity").count:
        on_infinity = f"{trap} None of the {plural(len(basins.runs), 'start')} did. {defined}"
    else:
        on_infinity = (
            f"{trap} {basins.share('at infinity').percent} of the starts run to infinity and "
            f"{basins.share('global minimum').percent} reach the global minimum. {defined}"
        )
    claims = (
        "The paper’s claim that besides the solutions (family A) the gradient vanishes at degenerate zeros only does "
        "not hold: family B (columns of q sum to zero) is stationary with the loss "
        f"{number(second.loss_per_column, 6)} per token. It is a {kind.kind}: the lowest curvature is {curvature}.",
        on_infinity,
        saddles,
    )
    answer = "A zero-loss family, saddles, and a trap at infinity"
    marks = {"limit at infinity, (M−1)·T/M": total}
    return LandscapeSurvey("3.1", landscape, answer, claims, basins, points, marks=marks)


def _softmax(landscape: SoftmaxPositions, basins: Basins) -> LandscapeSurvey:
    stalls = tuple(stall(landscape, depth) for depth in _DEPTHS)
    times = listing([number(record.time) for record in stalls])
    claims = (
        "No finite point is stationary: the gradient vanishes only at infinite logits, where the global optimum lies.",
        "The paper’s claim that descent does not get stuck holds only without a limit on time. From logits of −2, −4 "
        "and −6 for the previous token, "
        f"gradient flow leaves after the times {times}: about e² times later per unit of depth.",
        f"{basins.share('global minimum').percent} of the starts reach the global minimum within "
        f"{plural(basins.budget, 'step')}.",
    )
    return LandscapeSurvey("3.2", landscape, "No finite stationary point, but stalls", claims, basins, stalls=stalls)


def _categories(landscape: CategoriesOnly, basins: Basins) -> LandscapeSurvey:
    solved, shifted, mean = zero_loss(landscape), zero_loss(landscape, 2.0, 0.5), mean_predictor(landscape)
    rows = [] if landscape.causal else zero_row_sums(landscape)
    points = _classified(landscape, [solved, shifted, mean, no_output(landscape), *rows])
    claims = [f"{basins.share('global minimum').percent} of the starts reach the global minimum."]
    if rows:
        losses = listing([number(point.loss_per_column, 4) for point in rows])
        kinds = ", ".join(sorted({one.kind for point, one in points if point.family == "B"}))
        claims.insert(
            0,
            f"The paper’s list of stationary points is not complete: {len(rows)} with zero row sums of v were found "
            f"({kinds}), with losses {losses} per token. Equation (3.54) divides by that sum.",
        )
    elif landscape.causal:
        claims.append(
            "Points with zero row sums of v are not searched for under a causal mask, because its rows differ."
        )
    claims.append(
        "The zero-loss family with a(t) = −c/(1+c) q_tt of (3.71) is confirmed at c = 0.5: its loss is "
        f"{number(points[1][1].relative_loss, 2)} of the loss without output. The line before (3.71) has a wrong sign."
    )
    answer, marks = "A zero-loss family and saddles", {"mean predictor": mean.loss}
    return LandscapeSurvey("3.3", landscape, answer, tuple(claims), basins, points, marks=marks)


def _classified(landscape: Landscape, points: Sequence[StationaryPoint]) -> Points:
    return tuple((point, classify(landscape, point.attention, point.v)) for point in points)
