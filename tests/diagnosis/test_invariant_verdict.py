"""No number of a trace and no word of a verdict depends on which weights of a network are stored."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosis.function_preserving import CHANGES, FAMILIES, network_of
from tokendynamics.diagnosis import Diagnosis, diagnose
from tokendynamics.diagnosis.verdict import Verdict

LAYERS = 5
CASES = [(change, family) for change, (_, families) in CHANGES.items() for family in families]
QUICK = [(change, families[number % len(families)]) for number, (change, (_, families)) in enumerate(CHANGES.items())]
"""Each change in one family, and each family with some; of the audit every pair is seen in test_invariance.py."""


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(8)
    return [generator.integers(5, 60, size=size).tolist() for size in (9, 14, 16, 20, 24)]


@cache
def original(family: str) -> tuple[Any, Diagnosis]:
    network = network_of(family, layers=LAYERS)
    return network, diagnose(network, prompts(), levers=False, heads=False)


def assert_the_same(family: str, changes: list[str], seed: int) -> None:
    network, plain_diagnosis = original(family)
    for place, change in enumerate(changes):
        network = CHANGES[change][0](network, seed + place)
    changed_diagnosis = diagnose(network, prompts(), levers=False, heads=False)
    # LLaMA's norm takes its mean square in float32, and a turn changes how that rounds.
    rounding = 1e-4 if "residual stream rotated" in changes else 1e-7
    for name, values in plain_diagnosis.trace.items():
        if values.dtype.kind == "f":
            # What stands behind the final norm has its gain, which may as well stand in the head: it is in no sentence.
            here = {"site": ["attention", "feed_forward"], "component": ["attention", "feed_forward"]}
            here = {axis: labels for axis, labels in here.items() if axis in values.dims}
            if name == "component_share":  # of all changes, the final norm's among them
                continue
            scale = np.nanmax(np.abs(values.values), initial=1.0)
            np.testing.assert_allclose(
                changed_diagnosis.trace[name].sel(here),
                values.sel(here),
                rtol=0,
                atol=rounding * scale,
                err_msg=str(name),
            )
    one, other = plain_diagnosis.verdict, changed_diagnosis.verdict
    assert (one.state, one.worst, one.layers) == (other.state, other.worst, other.layers)
    assert [sentence.text for sentence in one.sentences] == [sentence.text for sentence in other.sentences]
    assert without_heads(one) == without_heads(other)


def without_heads(verdict: Verdict) -> list[str]:
    """The details; which number a head has is no property of the function."""
    return [re.sub(r"layer \d+ head \d+", "a head", detail.text) for detail in verdict.details]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("change", "family"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_no_word_depends_on_which_weights_are_stored(change: str, family: str) -> None:
    assert_the_same(family, [change], seed=1)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.data(), st.sampled_from(FAMILIES), st.integers(0, 1000))
def test_nor_after_several_changes(data: Any, family: str, seed: int) -> None:
    possible = [change for change, of in CASES if of == family]
    assert_the_same(family, data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=3)), seed)


@pytest.mark.slow
def test_what_changes_the_function_changes_numbers() -> None:
    """The check can fail: the attention of one layer doubled."""
    network, plain_diagnosis = original("llama")
    import copy

    changed = copy.deepcopy(network)
    changed.model.layers[2].self_attn.o_proj.weight.data *= 2
    changed_diagnosis = diagnose(changed, prompts(), levers=False, heads=False)
    assert float(np.abs(changed_diagnosis.trace.consensus_within - plain_diagnosis.trace.consensus_within).max()) > 1e-3
