"""What each of the three landscapes holds, and which claims about it survive."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tokendynamics.circuits.landscape.basins import Basins, basins
from tokendynamics.circuits.landscape.categories_families import mean_predictor, nothing, zero_loss
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.categories_zero_rows import zero_row_sums
from tokendynamics.circuits.landscape.classification import Classification
from tokendynamics.circuits.landscape.classify import classify
from tokendynamics.circuits.landscape.landscape import Landscape
from tokendynamics.circuits.landscape.positions_families import families, loss_at_infinity, towards_infinity
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions
from tokendynamics.circuits.landscape.softmax_stall import Stall, stall
from tokendynamics.circuits.landscape.stationary_point import StationaryPoint
from tokendynamics.report.survey import LandscapeSurvey

_DEPTHS = (2.0, 4.0, 6.0)
_ON_THE_WAY = -0.01

_NAMES: dict[type, str] = {
    PositionsOnly: "Attention on positions, linear (3.1)",
    SoftmaxPositions: "Attention on positions, softmax (3.2)",
    CategoriesOnly: "Attention on categories (3.3)",
}

Points = tuple[tuple[StationaryPoint, Classification], ...]


def survey_positions(law: Tensor, positions: int, **search: Any) -> LandscapeSurvey:
    """Attention on positions only, linear (`logical` 3.1)."""
    landscape = PositionsOnly(law, positions)
    points = _classified(landscape, [*families(landscape, search["seed"]), towards_infinity(landscape, _ON_THE_WAY)])
    found = basins(landscape, **search)
    total = loss_at_infinity(landscape) * (positions - 1)
    second = next(pair for pair in points if pair[0].family == "B")
    claims = (
        "“Only degenerate zeros” does not hold: family B (columns of q sum to zero) is stationary with the loss "
        f"{second[0].loss_per_column:.6g} per token. It is a {second[1].kind}: the lowest curvature is "
        f"{second[1].lowest_curvature:.3g}.".replace("is -", "is −"),
        _on_infinity(found, total),
        _on_saddles(points),
    )
    remarks = (
        "Six families; the free parameters of each member are drawn. The last row is no stationary point: it is on the "
        "way to one at infinity.",
    )
    marks = {"on the way to infinity, T/M": total}
    answer = "A zero-loss family, saddles, and a trap at infinity"
    return _survey(landscape, positions, answer, claims, remarks, points, (), found, marks, positions_attend=True)


def _on_infinity(found: Basins, total: float) -> str:
    trap = f"descent can run to infinity, where the loss tends to T/M per token, {total:.6g} in all"
    if not found.share("at infinity").count:
        return f"The paper does not mention that {trap}; none of these {len(found.runs)} starts did."
    return (
        f"The paper does not mention that {trap}: {_said(found, 'at infinity')} of the starts do; "
        f"{_said(found, 'global minimum')} reach the global minimum."
    )


def _on_saddles(points: Points) -> str:
    others = [one for point, one in points if point.family not in ("A", "∞")]
    if all(one.kind == "strict saddle" for one in others):
        return (
            "Every finite family but A is a strict saddle, so descent leaves it; the way to infinity it does not leave."
        )
    kinds = ", ".join(f"{point.family} {one.kind}" for point, one in points)
    return f"Not every family but A was found to be a strict saddle: {kinds}."


def survey_softmax(law: Tensor, positions: int, **search: Any) -> LandscapeSurvey:
    """Attention on positions only, softmax (`logical` 3.2)."""
    landscape = SoftmaxPositions(law, positions)
    stalls = tuple(stall(landscape, depth) for depth in _DEPTHS)
    found = basins(landscape, **search)
    times = ", ".join(f"{one.time:.3g}" for one in stalls)
    claims = (
        "No finite point is stationary: the gradient vanishes at infinite logits only, where the global optimum lies.",
        f"“Can not get stuck” holds for infinite patience only: from logits of −2, −4 and −6 for the previous token "
        f"gradient flow needs the times {times} to leave, about e² times as long per unit of depth.",
        f"{_said(found, 'global minimum')} of the starts come to the global minimum within {found.budget} steps.",
    )
    remarks = (
        "The closed simplex has them at infinite logits: v = p 1ᵀ with no weight on the previous token. The table "
        "says how long gradient flow waits near one.",
    )
    return _survey(
        landscape, positions, "No finite stationary point, but stalls", claims, remarks, (), stalls, found, {},
        positions_attend=True,
    )  # fmt: skip


def survey_categories(functional: Any, law: Any, positions: int, causal: bool, **search: Any) -> LandscapeSurvey:
    """Attention on categories only (`logical` 3.3)."""
    landscape = CategoriesOnly(functional, law, positions, causal)
    rows = [] if causal or positions < 3 else zero_row_sums(landscape)
    wanted = [
        zero_loss(landscape),
        zero_loss(landscape, 2.0, 0.5),
        mean_predictor(landscape),
        nothing(landscape),
        *rows,
    ]
    points = _classified(landscape, wanted)
    found = basins(landscape, **search)
    saddles = [(point, one) for point, one in points if point.family == "B"]
    claims = [f"{_said(found, 'global minimum')} of the starts reach the global minimum."]
    if saddles:
        losses = ", ".join(f"{point.loss_per_column:.4g}" for point, _ in saddles)
        kinds = ", ".join(sorted({one.kind for _, one in saddles}))
        claims.insert(
            0,
            f"The paper’s list of such points is not complete: {len(saddles)} with zero row sums of v were found, "
            f"with losses {losses} per token ({kinds}); (3.54) divides by that sum.",
        )
    elif causal:
        claims.append("Points with zero row sums of v are not looked for under a causal mask: its rows differ.")
    shifted = points[1][1]
    claims.append(
        f"The zero-loss family with a(t) = −c/(1+c) q_tt, as (3.71) has it, is confirmed at c = 0.5: its loss is "
        f"{shifted.loss:.2g}. The line printed before (3.71) has the other sign."
    )
    remarks = ("Members of each family; the letters are ours.",)
    marks = {"mean predictor": points[2][0].loss}
    return _survey(
        landscape, positions, "A zero-loss family and saddles", tuple(claims), remarks, points, (), found, marks,
        positions_attend=False,
    )  # fmt: skip


def summary_of(survey: LandscapeSurvey) -> dict[str, Any]:
    """The survey as plain values."""
    return {
        "landscape": survey.name,
        "claims": list(survey.claims),
        "points": [
            {
                "family": point.family,
                "text": point.text,
                "loss": point.loss,
                "loss_per_token": point.loss_per_column,
                "q": point.q.tolist(),
                "v": point.v.tolist(),
                "classification": found.as_json(),
            }
            for point, found in survey.points
        ],
        "stalls": [vars(one) for one in survey.stalls],
        "basins": survey.basins.as_json(),
        "marks": survey.marks,
    }


def _classified(landscape: Landscape, points: list[StationaryPoint]) -> Points:
    return tuple((point, classify(landscape, point.q, point.v)) for point in points)


def _said(found: Basins, kind: str) -> str:
    share = found.share(kind)
    return f"{share.fraction:.0%} [{share.low:.0%}, {share.high:.0%}]"


def _survey(
    landscape: Landscape,
    positions: int,
    answer: str,
    claims: tuple[str, ...],
    remarks: tuple[str, ...],
    points: Points,
    stalls: tuple[Stall, ...],
    found: Basins,
    marks: dict[str, float],
    *,
    positions_attend: bool,
) -> LandscapeSurvey:
    law = ", ".join(f"{float(p):.3g}" for p in landscape.law)
    facts = (
        ("Task", f"{len(landscape.law)} categories with probabilities {law}; {positions} positions"),
        ("Descent", f"{len(found.runs)} starts, {found.method}, at most {found.budget} steps, seed {found.seed}"),
    )
    return LandscapeSurvey(
        _NAMES[type(landscape)], answer, claims, remarks, facts, points, stalls, found, marks, positions_attend
    )
