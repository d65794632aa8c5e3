"""A hand-built transformer by its name and options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tokendynamics.cli._signature import Option
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.words import listing

if TYPE_CHECKING:
    from tokendynamics.circuits import OneLayerTransformer, PairTask

SOLUTIONS = (
    "solution-1", "solution-1-uniform", "solution-1-indicators", "solution-1-printed", "solution-2",
    "solution-2-printed", "solution-3", "solution-3-printed", "linear", "softmax-1", "softmax-2", "softmax-3",
    "mixture",
)  # fmt: skip
"""The names of the catalogue, repeated here so that help needs no heavy import."""


@dataclass(frozen=True, kw_only=True)
class SolutionOptions:
    """Options of the hand-built transformers, named as the arguments of their constructors.

    Attributes:
        causal: Mask the attention; the outputs stay the same.
        form: Form of solution 1: rows, uniform, indicators, printed; of 2 and 3: exact, printed.
        K: Scale of solutions 2 and 3; too small a K is refused with the least one.
        sharpness: β of softmax-1 and softmax-3.  [default: 40]
        base: Base of the linear case.  [default: 10]
        attention_share: Share of q_true that a mixture computes in attention.  [default: 0.5]
    """

    causal: Annotated[bool | None, Option("--causal")] = None
    form: str | None = None
    K: Annotated[float | None, Option("-K")] = None
    sharpness: float | None = None
    base: float | None = None
    attention_share: Annotated[float | None, Option("--share")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were typed."""
        return {option: value for option, value in vars(self).items() if value is not None}

    def default_functional(self, name: str) -> str:
        """Return the default of q_true: the linear case computes digits of its base, softmax-2 only positive values."""
        if name != "linear":
            return "positive:0" if name == "softmax-2" else "random:0"
        return "digits" if self.base is None else f"digits:{self.base!r}"

    def build(self, name: str, task: PairTask) -> OneLayerTransformer:
        """Return the transformer of that name.

        Args:
            name: One of `SOLUTIONS`.
            task: The task that it computes.

        Raises:
            ArgumentValueError: An option that this solution does not have, or a value that the constructor refuses.
        """
        from tokendynamics.circuits.constructions.solutions import HAND_BUILT

        known = {solution: inspect.signature(HAND_BUILT[solution]).parameters for solution in SOLUTIONS}
        for option in self.given:
            if option not in known[name]:
                having = [solution for solution in SOLUTIONS if option in known[solution]]
                raise ArgumentValueError(f"{option}: is an option of {listing(having)} only, not of {name}")
        return HAND_BUILT[name](task, **self.given)
