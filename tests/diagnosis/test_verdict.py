"""The verdict says what the numbers say, and its numbers are the datasets'."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

from tokendynamics.diagnosis import audit, diagnose, judge, trace
from tokendynamics.diagnosis._verdict import layer_effects, mean_over_prompts
from tokendynamics.pretrained import Checkpoint, load

TEXTS = {"one": "a cat sat on the mat", "two": "0123456789"}


@pytest.fixture
def measured(tiny: Callable[..., Checkpoint]) -> tuple[xr.Dataset, xr.Dataset]:
    ckpt = tiny("gpt2")
    return audit(ckpt), trace(ckpt, TEXTS)


def with_cosine(table: xr.Dataset, first: float, last: float) -> xr.Dataset:
    """The trace with a mean pair cosine that goes evenly from `first` to `last`."""
    ramp = xr.DataArray(np.linspace(first, last, table.sizes["layer"]), dims="layer")
    even = xr.where(table.mean_pair_cosine.notnull(), ramp, np.nan).transpose(*table.mean_pair_cosine.dims)
    return table.assign(mean_pair_cosine=even)


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (0.995, 0.999, "The tokens point in one direction from the start"),
        (0.1, 0.995, "The tokens collapse to one direction"),
        (0.1, 0.6, "The tokens do draw together, slowly, and do not collapse"),
        (0.6, 0.1, "The tokens spread apart"),
        (0.3, 0.35, "The tokens neither draw together nor spread apart by much"),
    ],
)
def test_the_first_sentence_follows_the_cosine(
    measured: tuple[xr.Dataset, xr.Dataset], first: float, last: float, words: str
) -> None:
    weights, table = measured
    finding = judge(weights, with_cosine(table, first, last)).sentences[0]
    assert finding.text.startswith(words)
    assert finding.values["first"] == pytest.approx(first, abs=1e-12)
    assert finding.values["last"] == pytest.approx(last, abs=1e-12)
    assert f"{first:.2f} at the embedding, {last:.2f} after the last layer" in finding.text


def test_what_is_common_to_all_prompts_is_named_as_such(measured: tuple[xr.Dataset, xr.Dataset]) -> None:
    weights, table = measured
    finding = judge(weights, table).sentences[0]
    common = float(table.anisotropy.sel(site="feed_forward")[-1])
    assert finding.values["between_prompts"] == common
    assert f"between tokens of different prompts it is {common:.2f}" in finding.text
    alone = judge(weights, table.isel(prompt=[0]).assign(anisotropy=table.anisotropy * np.nan)).sentences[0]
    assert "one prompt alone cannot tell" in alone.text


def test_layers_are_badged_by_the_sum_of_their_two_parts(measured: tuple[xr.Dataset, xr.Dataset]) -> None:
    _, table = measured
    change = np.zeros((2, 4, 3))
    change[:, 1], change[:, 2], change[:, 3] = (0.03, -0.01, 0.0), (-0.02, -0.01, 0.0), (0.01, -0.007, 0.9)
    table = table.assign(component_change=(table.component_change.dims, change))
    assert layer_effects(mean_over_prompts(table)) == ("contracts", "expands", "neutral")


def test_growth_that_the_weights_do_not_expect_is_called_a_disagreement(
    measured: tuple[xr.Dataset, xr.Dataset],
) -> None:
    weights, table = measured
    words = {1.0: "diverges for most starts", -1.0: "does not diverge"}
    texts = {
        sign: str(judge(weights.assign(regime_by_spectrum=("layer", [word] * 3)), table))
        for sign, word in words.items()
    }
    norm = table.norm_median.sel(sinks="removed", site="feed_forward").mean("prompt")
    agreeing = 1.0 if float(norm[-1]) > float(norm[0]) else -1.0
    assert "Prediction and observation agree" in texts[agreeing]
    assert "Prediction and observation disagree" in texts[-agreeing]


def test_a_model_whose_regimes_exist_has_them_counted(measured: tuple[xr.Dataset, xr.Dataset]) -> None:
    weights, table = measured
    text = str(judge(weights, table))
    assert "put the 3 layers in these regimes: " in text
    assert "no theorem of collapse applies" in text
    assert "No token is a sink" in text


def test_one_token_leaves_the_question_undefined(tiny: Callable[..., Checkpoint]) -> None:
    found = diagnose(tiny("bert"), "x")
    assert "is undefined" in found.verdict.sentences[0].text
    assert "nan" not in str(found.verdict).lower()
    assert found.verdict.layers == ("neutral", "neutral")


@pytest.mark.pretrained
def test_smollm2_is_told_that_its_raw_rank_sees_only_the_sink() -> None:
    ckpt = load("smollm2")
    text = (
        "The museum opened its new wing on a rainy Tuesday, and by noon the line of visitors stretched around "
        "the corner of the square."
    )
    verdict = judge(audit(ckpt), trace(ckpt, text))
    together, sinks, _, weights, agreement, _ = verdict.sentences
    assert together.text.startswith("The tokens do draw together, slowly, and do not collapse (most of the rise, ")
    assert "is made in layers 1, 2)" in together.text
    assert (sinks.values["position"], sinks.values["token"]) == (0, "The")
    assert sinks.values["norm"] == pytest.approx(2.26e4, rel=0.02)
    assert sinks.values["layers"] == [*range(3, 10), *range(12, 31)]
    assert sinks.values["layers_with_several"] == list(range(3, 10))
    assert sinks.values["raw_effective_rank"] == pytest.approx(1.01, abs=0.005)
    assert "says “collapsed” where it sees only the sink" in sinks.text
    assert "A is undefined (rank 192/576) in all 30 layers" in weights.text
    assert agreement.text.startswith("Prediction and observation agree on size")
    assert len(verdict.layers) == 30
