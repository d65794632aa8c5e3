"""The study on metastability names the theorems that apply to the flow that it runs, and no others."""

from __future__ import annotations

import pytest

from reproductions.studies.metastability import QUESTION
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Sphere
from tokendynamics.theorems import check


@pytest.mark.long
@pytest.mark.parametrize("beta", [1.0, 4.0, 25.0])
def test_the_theorems_that_the_study_names_apply_to_its_flow(beta: float) -> None:
    flow = Flow(Attention([[beta, 0.0], [0.0, beta]], [[1.0, 0.0], [0.0, 1.0]], normalization="plain"), Sphere())
    by_name = {one.statement: one for one in check(flow, Sphere().sample(24, 2, (10,), seed=8))}
    assert by_name["asymptotic-3.2"].applies
    assert "theorem 3.2" in QUESTION
    assert not by_name["asymptotic-4.1"].applies_to.any()
    assert "theorem 4.1 does not speak of them" in QUESTION
