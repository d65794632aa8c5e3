"""What a regime asks of a layer's matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokendynamics.modules.matrices import SIGNS, Half
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_text
from tokendynamics.numerics.signatures import typed_fields

Constraint = Literal["positive", "negative", "half", "free"]
_CONSTRAINTS = (*SIGNS, "free")


@typed_fields
@dataclass(frozen=True)
class Regime:
    """Signs of W_sym and A_sym, or of the real parts of V's eigenvalues.

    Attributes:
        w: ``"positive"``, ``"negative"`` or ``"half"`` of each; ``"free"``: a matrix of its own without signs, in the
            parametrisation of the others; None: the product of queries and keys as everywhere.
        a: Likewise for ``A = W (V^T)^{-1}``, by which V is tied to W; None: V is a matrix as everywhere.
        spectrum: ``"positive"`` or ``"negative"`` real parts of V's eigenvalues; only where `a` is None.
    """

    w: Constraint | None = None
    a: Constraint | None = None
    spectrum: Half | None = None

    def __post_init__(self) -> None:
        for name, constraint in (("w", self.w), ("a", self.a)):
            if constraint not in (None, *_CONSTRAINTS):
                raise ArgumentValueError(name, "None or one of " + ", ".join(_CONSTRAINTS), repr(constraint))
        if self.spectrum not in (None, "positive", "negative"):
            raise ArgumentValueError("spectrum", "'positive', 'negative' or None", repr(self.spectrum))
        if self.spectrum is not None and self.a is not None:
            raise ArgumentValueError("spectrum", "None where A is constrained: A and W give V", self.spectrum)

    @property
    def free_values(self) -> bool:
        """Whether V is a matrix as everywhere."""
        return self.a is None and self.spectrum is None

    @property
    def made_of_both(self) -> bool:
        """Whether V is built from a W and an A that are separate matrices."""
        return self.w is not None and self.a is not None


REGIMES: dict[str, Regime] = {
    "baseline": Regime(),
    "tied": Regime(w="free", a="free"),
    "w_only": Regime(w="positive"),
    "convergence": Regime(w="positive", a="negative"),
    "intermediate": Regime(w="positive", a="half"),
    "divergence": Regime(w="positive", a="positive"),
    "contracting": Regime(spectrum="negative"),
    "expanding": Regime(spectrum="positive"),
}
"""By name. ``tied`` and ``w_only`` are controls: the tie of V to W without signs, and the sign of W alone. The last two
place the spectrum of V, which decides the outcome where the sign of A_sym does not."""


def as_regime(regime: str | Regime) -> Regime:
    """Return the regime of that name, or the one that was given.

    Raises:
        ArgumentTypeError: Neither a name nor a regime.
        ArgumentValueError: An unknown name.

    >>> as_regime("divergence")
    Regime(w='positive', a='positive', spectrum=None)
    """
    if isinstance(regime, Regime):
        return regime
    if as_text(regime, "regime") not in REGIMES:
        raise ArgumentValueError("regime", "a Regime or one of " + ", ".join(REGIMES), repr(regime))
    return REGIMES[regime]
