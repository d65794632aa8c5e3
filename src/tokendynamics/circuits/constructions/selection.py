"""How a skip connection and a bias select one entry of a vector: the scale, the bias, and what to subtract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits.task import PairTask
from tokendynamics.circuits.transformer import OneLayerTransformer
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments

SelectionForm = Literal["exact", "printed"]

_PAPERS_K = 100.0
# A K that was written down with 15 digits may lie below the least one by that rounding; the bias absorbs it.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class Selection:
    """``K·ReLU(e + values/K + bias) + offset`` is the value where e is 1, and K·ReLU is 0 where e is 0.

    Attributes:
        K: Larger than the values.
        bias: Of every hidden unit that can be selected.
        offset: Added to the output.
    """

    K: float
    bias: float
    offset: float

    @property
    def shrink(self) -> float:
        """1/K, by which attention's output is multiplied."""
        return 1.0 / self.K

    @classmethod
    @typed_arguments
    def of(cls, values: Tensor, form: SelectionForm, K: float | None = None) -> Selection:
        """Return the constants that select one of `values`.

        "exact": ``c = max(0, −min values)``, bias ``−(1 − c/K)``, offset ``−c``, for ``K ≥ max(max values, 0) + c``;
        corrects `logical` (2.21), whose bias −1 (form "printed") turns every negative value into 0.

        Args:
            values: All that can occur, any shape.
            form: "exact" or "printed".
            K: None for a power of two above the least that works ("printed": 100 as in the paper where that is enough).
                The rounding error of the output is about 1e-16·K.

        Raises:
            ArgumentValueError: K is not positive and finite or too small (the least K is printed), values whose range
                overflows, or an unknown form.
        """
        if form not in ("exact", "printed"):
            raise ArgumentValueError(expected("form", "'exact' or 'printed'", repr(form)))
        lowered = max(0.0, -float(values.min())) if form == "exact" else 0.0
        least = max(float(values.max()), 0.0) + lowered
        chosen = _checked(K, least) if K is not None else _sufficient(least, form)
        if form == "printed":
            return cls(chosen, -1.0, 0.0)
        # The middle one is mathematically the largest. The others keep what must be silent at 0 when K is at its least.
        silence = max(0.0, 1.0 - lowered / chosen, float((values * (1.0 / chosen)).max()))
        # Not −c: this cancels to the last digit what the selected unit adds, so that Y_1 is 0 and not nearly 0.
        return cls(chosen, -silence, -max(0.0, 1.0 - silence) * chosen)


def selecting(
    task: PairTask, attention: Attention, selected: Selection, read: Tensor, name: str
) -> OneLayerTransformer:
    """Return the transformer whose hidden units are its features, ``Y = K·read·ReLU(X + ATT + bias) + offset``.

    Args:
        task: What it reads.
        attention: Its output must already be divided by K.
        selected: K, bias and offset.
        read: (width,), 1 on the features whose one-hot part selects.
        name: Of the transformer.
    """
    identity = torch.eye(task.width, dtype=torch.float64)
    bias = torch.full((task.width,), selected.bias, dtype=torch.float64)
    return OneLayerTransformer(attention, identity, bias, selected.K * read, task, offset=selected.offset, name=name)


def _sufficient(least: float, form: SelectionForm) -> float:
    if not math.isfinite(least) or least > 2.0**1022:
        advice = "scale q_true down"
        raise ArgumentValueError(expected("q_true", "a range of values below 2^1022", f"a range of {least:g}", advice))
    if form == "printed" and least < _PAPERS_K:
        return _PAPERS_K
    # Below 2^−1000 the reciprocal of K would overflow.
    return 2.0 ** (math.frexp(least)[1]) if least > 2.0**-1000 else 1.0


def _checked(K: float, least: float) -> float:
    chosen = as_number(K, "K")
    if not (math.isfinite(chosen) and chosen > 0.0 and math.isfinite(1.0 / chosen)):
        raise ArgumentValueError(expected("K", "a positive finite number with a finite reciprocal", K))
    if chosen < least * (1.0 - _ROUNDING):
        advice = "it must exceed every value that is to be kept silent"
        raise ArgumentValueError(expected("K", f"at least {least!r}", K, advice))
    return chosen
