"""Which of two networks is closer to collapse, and by which heads: derivatives by weights edited by hand, and words."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis.test_heads import WIDTH, ids_of, kappa_of, network_of, projection_of
from report.reading import page_of
from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing.effects import HeadEffects, heads_finding

PROMPTS = dict(zip("abcdefgh", ids_of(8), strict=True))


def louder(network: Any, layer: int, head: int, factor: float) -> Any:
    edited = copy.deepcopy(network)
    weight, axis = projection_of("llama", edited, layer)
    with torch.no_grad():
        weight.narrow(axis, head * WIDTH, WIDTH).mul_(factor)
    return edited


@pytest.fixture(scope="module")
def result() -> tuple[Any, Any, Comparison]:
    base = network_of("llama")
    tuned = louder(base, 3, 1, 5.0)
    return base, tuned, td.compare(base, tuned, texts=PROMPTS, sinks=(), names=["base", "tuned"], weights=False)


@pytest.mark.long
def test_effects_are_derivatives_by_the_columns_of_a_head(result: tuple[Any, Any, Comparison]) -> None:
    base, tuned, comparison = result
    assert comparison.heads is not None
    for name, network in (("base", base), ("tuned", tuned)):
        for layer, head in ((1, 0), (3, 1), (4, 2)):
            kappas = [
                kappa_of(louder(network, layer, head, scale), list(PROMPTS.values()), 4) for scale in (1.001, 0.999)
            ]
            effect = float(comparison.heads.consensus_sensitivity.sel(model=name, layer=layer, head=head))
            assert effect == pytest.approx((kappas[0] - kappas[1]) / 2e-3, rel=5e-3, abs=1e-6)


@pytest.mark.long
def test_they_are_on_the_page_and_in_what_is_saved(result: tuple[Any, Any, Comparison], tmp_path: Any) -> None:
    comparison = result[2]
    assert "collapse than base" in str(comparison)
    assert "Which heads make tokens more alike?" in page_of(comparison)
    comparison.save(tmp_path / "out")
    opened = Comparison.open(tmp_path / "out")
    assert opened.heads is not None
    xr.testing.assert_identical(opened.heads, comparison.heads)


@pytest.mark.slow
def test_nothing_is_measured_where_similarity_does_not_differ_significantly(
    result: tuple[Any, Any, Comparison],
) -> None:
    base, tuned, _ = result
    same = td.compare(base, louder(base, 3, 1, 1.0 + 1e-9), texts=PROMPTS, weights=False)
    assert same.heads is None
    assert "collapse" not in str(same)
    for left_out in (
        td.compare(base, tuned, texts=PROMPTS, weights=False, heads=False),
        td.compare(base, tuned, texts={name: PROMPTS[name] for name in "ab"}, weights=False),  # no interval
    ):
        assert left_out.heads is None
        assert "collapse than" not in str(left_out)


def effects_of(*models: list[list[float]], unknown: str = "") -> HeadEffects:
    values = np.array(models)
    coords = {"layer": np.arange(1, values.shape[1] + 1), "head": np.arange(values.shape[2])}
    table = xr.Dataset({"consensus_sensitivity": (("model", "layer", "head"), values)}, coords=coords)
    return HeadEffects(None if unknown else table, (unknown,))


BASE = [[0.01, 0.02], [0.0, 0.03]]


@pytest.mark.parametrize(
    ("other", "gap", "words"),
    [
        (
            [[0.01, 0.12], [0.05, 0.03]], 0.2,
            "b is closer to collapse than a. To first order, the effect on κ rises most for layer 1 head 1 (+0.100) "
            "and layer 2 head 0 (+0.050). Over all heads it changes by +0.150.",
        ),
        (
            [[0.01, 0.12], [0.02, 0.03]], 0.2,  # the second one is below a quarter of the first
            "b is closer to collapse than a. To first order, the effect on κ rises most for layer 1 head 1 (+0.100). "
            "Over all heads it changes by +0.120.",
        ),
        (
            [[0.01, -0.08], [0.1, 0.03]], -0.2,
            "b is further from collapse than a. First-order effects of heads do not explain this: they change by 0.000 "
            "in sum.",
        ),
        (
            [[0.01, -0.08], [0.05, 0.03]], -0.2,
            "b is further from collapse than a. To first order, the effect on κ falls most for layer 1 head 1 (−0.100)."
            " Over all heads it changes by −0.050.",
        ),
        (
            [[0.01, -0.08], [0.05, 0.03]], 0.2,
            "b is closer to collapse than a. First-order effects of heads do not explain this: they change by −0.050 "
            "in sum.",
        ),
    ],
)  # fmt: skip
def test_heads_are_named_only_if_all_together_change_the_same_way(
    other: list[list[float]], gap: float, words: str
) -> None:
    finding = heads_finding(("a", "b"), effects_of(BASE, other), 0, gap)
    assert finding is not None
    assert finding.text == words


def test_no_significant_difference_says_nothing_and_unknown_heads_say_why() -> None:
    assert heads_finding(("a", "b"), effects_of(BASE, BASE), 0, float("nan")) is None
    finding = heads_finding(("a", "b"), effects_of(BASE, BASE, unknown="their heads differ (2 and 4)"), 0, 0.1)
    assert finding is not None
    assert finding.text == (
        "b is closer to collapse than a. Which heads cause this is unknown because their heads differ (2 and 4)."
    )
