"""What a check and a certificate are: hypotheses with margins, predictions, outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tokendynamics.words import number

_NAMED = 5
_SYMBOLS = {
    r"\bx_[ij]\b": "x_i is token i",
    r"\by_[ij]\b": "y_i is token i on the sphere or ellipsoid",
    r"\bz_[ij]\b": "z_i is the rescaled token i, exp(−λt) x_i",
    r"\bu_[ij]\b": "u_i is the direction of token i",
    r"w_ij": "w_ij is the attention weight of token i on token j",
    r"ℓ": "ℓ is the number of tokens",
    r"β": "β is the factor in qk = β I",
    r"ω": "ω is the factor of the weights, 1 or 1/√dim",
    r"ω c": "c is the factor in ov = c I",
    r"\bA (not )?symmetric|\bA negative definite|A_sym": "A = qk ov⁻¹",
    r"_sym": "the index sym means the symmetric part",
    r"′": "a prime is a derivative in time",
}
"""What the symbols in the texts of statements mean, by a pattern that finds them."""


def symbols_in(texts: Iterable[str]) -> str:
    """Say what each symbol in the texts means; empty without any.

    >>> symbols_in(["the least x_i·x_j does not fall", "at most 2ℓ"])
    'x_i is token i; ℓ is the number of tokens.'
    >>> symbols_in(["all tokens meet"])
    ''
    """
    joined = "\n".join(texts)
    meanings = [meaning for pattern, meaning in _SYMBOLS.items() if re.search(pattern, joined)]
    return "; ".join(meanings) + "." if meanings else ""


def counted(where: np.ndarray) -> str:
    """Say how many systems, and which, where there are several: ``"1 of 50 systems: 17"``.

    >>> counted(np.array([False, True, True])), counted(np.array([True, False, False]))
    ('2 of 3 systems, not 0', '1 of 3 systems: 0')
    >>> counted(np.ones(7, dtype=bool)), counted(np.asarray(True))
    ('all 7 systems', '')
    """
    marked = np.asarray(where)
    if marked.size <= 1:
        return ""
    if marked.all():
        return f"all {marked.size} systems"
    # Whichever are fewer are named: those that are counted, or those that are not.
    few, word = (marked, ": ") if 2 * marked.sum() <= marked.size else (~marked, ", not ")
    indices = np.argwhere(few)[:_NAMED].tolist()
    names = [str(index[0]) if marked.ndim == 1 else str(tuple(index)) for index in indices]
    more = ", …" if few.sum() > _NAMED else ""
    return f"{int(marked.sum())} of {marked.size} systems" + (word + ", ".join(names) + more if names else "")


Outcome = Literal["holds", "fails", "undecided"]
Standing = Literal["theorem", "conjecture", "false"]
Subject = Literal["flow", "layers", "flow and layers", "noise"]


@dataclass(frozen=True)
class Hypothesis:
    """One hypothesis of a statement, measured on a flow and a start.

    Attributes:
        name: A few words, such as ``"ov is the identity"``.
        holds: True or False as measured (over all systems of a batch), or None where it cannot be measured and is
            assumed: the boundedness of a callable, say.
        margin: How far the measured quantity is on the right side, at the worst system: at least 0 where the
            hypothesis holds, below 0 where not, the tolerance already taken off. None for facts without a size
            (a mask) and for what is assumed.
        tolerance: What rounding was allowed, in the units of the margin; 0.0 where nothing was measured.
        text: One sentence with the measured number.
        at: Whether it holds at each system, (…,), where systems differ in that; None where all are alike.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    >>> check = {check.statement: check for check in td.check(flow, [[1.0, 0.0], [0.6, 0.8]])}["asymptotic-4.1"]
    >>> check.hypotheses[0].name, check.hypotheses[0].holds
    ('tokens on an ellipsoid', True)
    """

    name: str
    holds: bool | None
    margin: float | None
    tolerance: float
    text: str
    at: np.ndarray | None = None

    @property
    def anywhere(self) -> bool:
        """Whether it is violated at fewer than all systems: what presupposes it can be asked of the others."""
        return self.holds is not False or self.at is not None

    def satisfied(self, systems: tuple[int, ...]) -> np.ndarray:
        """Tell whether it is not violated, for each system."""
        return np.broadcast_to(self.holds is not False if self.at is None else self.at, systems)


@dataclass(frozen=True)
class Prediction:
    """What a statement says will happen.

    Attributes:
        text: One sentence.
        limit: The limit set in words, such as ``"consensus at token 1"``.
        rate: The exponential rate (per unit of time) at which distances to the limit shrink in the end, where it
            is known; at the slowest system of a batch. None otherwise.
        bound: Of one system, the terms (c, k) of each head in a rate Σ c·exp(−k) at which distances shrink at least
            from the start on; each k is proportional to the head's qk. Empty where no such rate is proved.
        pattern: The text with ``{rate}`` where it has that rate, so that it can be said of another; empty without one.

    >>> print(Prediction("all tokens meet", limit="one point", rate=2.0))
    all tokens meet
    """

    text: str
    limit: str
    rate: float | None = None
    bound: tuple[tuple[float, float], ...] = ()
    pattern: str = ""

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class Check:
    """Whether one statement applies to a flow and a start, and what it then predicts.

    Attributes:
        statement: Its name, such as ``"asymptotic-4.1"``.
        applies: Whether no hypothesis is violated at any system: False also where the statement applies to some.
        applies_to: Whether no hypothesis is violated at each system, shape (…,) of the leading axes of the start.
        hypotheses: Every hypothesis that was looked at. What presupposes a violated one is left out: circuits and
            start of a flow in another space or with another mask, the eigenvector of an eigenvalue that is not simple.
        reasons: One sentence per hypothesis violated at some system, with which; empty where the statement applies.
        prediction: For the systems to which the statement applies; None where there are none.
        assumed: One sentence per hypothesis that was not measured.
        erratum: What the paper prints wrongly and what is meant here; empty where nothing is known.
        equations: The numbers of the equations in the paper.
        structure: Whether the flow is of the kind that the statement is about: its space, mask, weights, heads and
            positions. Where it is not, nothing else was looked at.
        standing: "theorem", "conjecture" or "false"; see `Statement`.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    >>> check = {check.statement: check for check in td.check(flow, [[1.0, 0.0], [0.6, 0.8]])}["asymptotic-4.1"]
    >>> check.applies, check.prediction.limit
    (True, 'consensus in the half space of the start')
    """

    statement: str
    applies: bool
    applies_to: np.ndarray = field(repr=False)
    hypotheses: tuple[Hypothesis, ...] = field(repr=False)
    reasons: tuple[str, ...] = field(repr=False)
    prediction: Prediction | None
    assumed: tuple[str, ...] = field(repr=False)
    erratum: str = field(repr=False)
    equations: str = field(repr=False)
    structure: bool = field(repr=False)
    standing: Standing = "theorem"

    def __str__(self) -> str:
        """Return one line: the statement, where it applies, what was assumed, and its prediction or why not."""
        why = "; ".join(self.reasons)
        if not self.applies_to.any():
            return f"{self.statement}: does not apply: {why}"
        share = "" if self.applies else f" to {counted(self.applies_to)}"
        assumed = f" if {'; '.join(self.assumed)}" if self.assumed else ""
        rest = "" if self.applies else f"; not to the others: {why}"
        return f"{self.statement}: applies{share}{assumed}: {self.prediction}{rest}"


@dataclass(frozen=True)
class Condition:
    """One part of a certificate, decided for every system of a trajectory.

    Attributes:
        text: What is required, such as ``"the diameter tends to 0"``.
        outcome: ``"holds"``, ``"fails"`` or ``"undecided"`` per system, shape (…,) without the axes of time,
            token and dim.
        margin: Tolerance minus violation (or threshold minus value reached), shape (…,): at least 0 where it holds.
        tolerance: The violation that counts as rounding, or the threshold below which a limit counts as reached.
        first_failure: The first saved time at which it fails, NaN where it does not, shape (…,).
        pointwise: Whether it is measured at each saved state for itself, such as an identity between vector fields, so
            that the integrator's error does not enter.
        reason: Why a violation is, or is not, said to be a failure; empty where none was seen.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    >>> run = td.simulate(flow, [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0, 30.0])
    >>> certificate = {certificate.statement: certificate for certificate in td.certify(run)}["asymptotic-4.1"]
    >>> [str(condition.outcome) for condition in certificate.conditions]
    ['holds', 'holds', 'holds']
    """

    text: str
    outcome: np.ndarray
    margin: np.ndarray
    tolerance: float
    first_failure: np.ndarray
    pointwise: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Certificate:
    """What became of a statement's prediction along a trajectory.

    The numbers are those of the condition and the system that decide: the first that fails, else one that is
    undecided, else the one that holds most narrowly.

    Attributes:
        statement: Its name.
        outcome: ``"holds"``: every condition is met, limits down to the threshold. ``"fails"``: a condition is
            violated by more than the tolerance, and a tighter run shows it as well. ``"undecided"``: the run ended
            before a limit was near, or it was too loose for what it shows.
        margin: Tolerance minus violation, or threshold minus the value reached; at least 0 where it holds.
        tolerance: The tolerance or threshold of the deciding condition.
        first_failure: The first saved time at which a condition fails, over all systems; None where none does.
        text: One sentence with the numbers.
        outcomes: The outcome per system, shape (…,); ``"does not apply"`` where the statement was not asked for and
            its hypotheses are violated. `outcome` is the worst of the others.
        margins: The margin of the deciding condition per system, shape (…,); infinite where it does not apply.
        conditions: Every part.
        standing: "theorem", "conjecture" or "false"; see `Statement`.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    >>> run = td.simulate(flow, [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0, 30.0])
    >>> certificate = {certificate.statement: certificate for certificate in td.certify(run)}["asymptotic-4.1"]
    >>> certificate.outcome, certificate.outcomes.shape
    ('holds', ())
    """

    statement: str
    outcome: Outcome
    margin: float
    tolerance: float
    first_failure: float | None
    text: str
    outcomes: np.ndarray = field(repr=False)
    margins: np.ndarray = field(repr=False)
    conditions: tuple[Condition, ...] = field(repr=False)
    standing: Standing = "theorem"

    def __str__(self) -> str:
        """Return one line: the statement, the outcome with its margin, and what was found."""
        numbers = f"margin {number(self.margin)}, tolerance {number(self.tolerance)}"
        return f"{self.statement}: {self.outcome} ({numbers}): {self.text}"
