"""What a file says about the theory beyond its flow and start: how the start was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokendynamics.dynamics import Trajectory
from tokendynamics.specification.build import Problem
from tokendynamics.specification.read import SpecificationFile
from tokendynamics.specification.tables import NormalStart, UniformStart
from tokendynamics.theorems import Certificate, Check, Hypothesis, certify, check
from tokendynamics.theorems.asymptotic_remark_4_2 import DRAWN


def checked(file: SpecificationFile, problem: Problem) -> list[Check]:
    """The checks of the file's flow and start, with the law of the start known instead of assumed."""
    uniform = isinstance(file.tables.start, UniformStart | NormalStart)
    law = getattr(file.tables.start, "law", None)
    came = "the start is given, not drawn" if law is None else f"the law of the start is {law!r}"
    known = Hypothesis(DRAWN, uniform, None, 0.0, came)
    return [_with(one, known) for one in check(problem.flow, problem.start, problem.times)]


def certified(trajectory: Trajectory, checks: Sequence[Check]) -> list[Certificate]:
    """The certificates of the statements that apply to some system by `checks`."""
    applying = {one.statement for one in checks if one.applies_to.any()}
    return [one for one in certify(trajectory) if one.statement in applying]


def _with(one: Check, known: Hypothesis) -> Check:
    """The check with a hypothesis that was assumed known to hold or not."""
    if all(each.name != known.name for each in one.hypotheses):
        return one
    applies_to = np.asarray(one.applies_to & bool(known.holds))
    return replace(
        one,
        applies=bool(applies_to.all()),
        applies_to=applies_to,
        hypotheses=tuple(known if each.name == known.name else each for each in one.hypotheses),
        reasons=one.reasons if known.holds else (*one.reasons, f"{known.name}: {known.text}"),
        prediction=one.prediction if applies_to.any() else None,
        assumed=tuple(text for text in one.assumed if not text.startswith(f"{known.name}: ")),
    )
