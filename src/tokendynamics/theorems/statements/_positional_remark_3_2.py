"""Remark 3.2 of `positional`, which is false: theorem 3.1 for an A that is not symmetric."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics import Flow
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import contraction_form, invertible, single_head_in_free_space, symmetric_part
from tokendynamics.theorems.result import Hypothesis, Prediction
from tokendynamics.theorems.statements._positional_3_1 import pair_rate_conditions

COUNTEREXAMPLE = {
    "A": [[-1.3, -0.9], [0.8, -0.4]],
    "qk": [[0.4, -0.9], [-1.6, -0.1]],
    "x0": [[-0.9, -1.1], [2.5, -0.8], [-0.7, -1.4]],
    "pair": (2, 1),
    "rate": -0.032270081353619355,
}
"""A_sym ≺ 0, ov = A^{−1} qk, and yet q_A(x_i − x_j) of the pair, counted from 0, falls at that rate: the distance
‖x_i − x_j‖_A grows at this state, where the remark has no distance grow."""


_ASYMMETRY = "the relative asymmetry of A = qk ov⁻¹ (of a symmetric A positional-3.1 speaks)"


@measured.given(measured.constant_circuits)
def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    form = contraction_form(flow)
    text = "where A = qk ov⁻¹ is not symmetric, distances may increase or decrease (a counterexample is stored)"
    false = measured.fact("the remark is false", False, text)
    if not bool(form.defined.any()):
        return (invertible(form), false)
    asymmetry = (form.matrix - form.matrix.mT).abs().amax(dim=(-2, -1)) / _size(form.matrix)
    values = torch.linalg.eigvalsh(symmetric_part(form.matrix))
    lowest = torch.maximum(values[..., 0], -values[..., -1]) / values.abs().amax(dim=-1).clamp_min(
        torch.finfo(values.dtype).tiny
    )
    return (
        invertible(form),
        measured.above("A not symmetric", asymmetry, form.rounding, _ASYMMETRY),
        measured.above(
            "A_sym definite", lowest, form.rounding, "the least modulus of its eigenvalues, relative to the largest,"
        ),
        false,
    )


def _size(matrix: Tensor) -> Tensor:
    return matrix.abs().amax(dim=(-2, -1)).clamp_min(torch.finfo(matrix.dtype).tiny)


STATEMENT = Statement(
    name="positional-remark-3.2",
    title="Distances for an A that is not symmetric",
    equations="Remark 3.2",
    erratum=(
        "The remark extends positional-3.1 to A_sym ≻ 0 or ≺ 0 without symmetry. The derivative had the wrong sign in "
        "half of 1500 random states; one is stored with the statement."
    ),
    structure=single_head_in_free_space,
    hypotheses=_hypotheses,
    predict=lambda flow, start: Prediction("nothing: the claim is false", limit="none"),
    conditions=pair_rate_conditions,
    standing="false",
)
