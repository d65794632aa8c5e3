"""A consensus that later layers undo: what is said of its layers, of the end, and of levers, by hand edits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis import built_recipes as paint
from diagnosis.built_networks import BUILT, WORDS, prompts_of
from diagnosis.built_transformer import VOCABULARY, Frame, blank
from diagnosis.text_halves import measuring
from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.diagnosis.gating._result import Halves, LeverWords
from tokendynamics.diagnosis.gating.trials import Costs, EffectEstimate, Trial

PROMPTS = [{"idx": torch.tensor([token_ids])} for token_ids in prompts_of("mixed", 33)]


def undone(*, again: bool) -> Any:
    """Layer 2 writes the mean of a prompt, layer 4 what tokens have of their own, many times as large.

    Again: layer 7 then writes the mean of that, so that the tokens end in consensus by another part.
    """
    canvas = blank(Frame(dim=96, depth=8, rms=True, seed=33))
    paint.collapse_undone(canvas, together=2, apart=4, gain=40.0, regain=20000.0 if again else 110.0)
    if again:
        lower = torch.zeros(96, 96)
        lower[:48, :48] = torch.eye(48)
        paint.write_values(canvas.blocks[6], 20000.0 * lower)
    return canvas.network


def diagnosed(network: Any, prompts: Any = None) -> Diagnosis:
    ckpt = td.load(network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})
    return td.diagnose(ckpt, PROMPTS if prompts is None else prompts, baseline=None, directions=False)


def kappas(network: Any, prompts: Any = None) -> np.ndarray:
    ckpt = td.load(network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})
    return td.trace(ckpt, PROMPTS if prompts is None else prompts).consensus_within.sel(site="feed_forward").values


def silenced(network: Any, layer: int) -> Any:
    edited = copy.deepcopy(network)
    edited.blocks[layer - 1].out.weight.zero_()
    edited.blocks[layer - 1].out.bias.zero_()
    return edited


@pytest.mark.long
def test_the_effect_on_an_undone_consensus_is_stated() -> None:
    network = undone(again=False)
    diagnosis = diagnosed(network)
    assert (diagnosis.verdict.state, diagnosis.verdict.worst.state) == ("drawing together", "consensus")
    worst, levers = diagnosis.verdict.worst.layer, diagnosis.levers
    assert isinstance(levers, Levers)
    assert levers.changes == {"layer 2 attention": 0.0}
    before, after = (kappas(edited, measuring(PROMPTS))[worst] for edited in (network, silenced(network, 2)))
    wanted = f"Without that part, similarity after layer {worst}, where the tokens are in consensus, is "
    wanted += f"{after:.2f} instead of {before:.2f}.".replace("-0.00", "0.00").replace("-", "−")
    assert levers.text.endswith(wanted)
    assert dict(diagnosis.verdict.lines)["What to do"].endswith(wanted)
    assert "falls to" not in dict(diagnosis.verdict.lines)["Why"]


@pytest.mark.long
def test_of_two_rises_the_lever_is_that_of_the_one_that_lasts() -> None:
    network = undone(again=True)
    diagnosis = diagnosed(network)
    assert (diagnosis.verdict.state, diagnosis.verdict.worst.layers) == ("consensus", (2, 3))
    levers, why = diagnosis.levers, dict(diagnosis.verdict.lines)["Why"]
    assert isinstance(levers, Levers)
    assert levers.changes == {"layer 7 attention": 0.0}
    assert kappas(silenced(network, 7))[-1] < 0.02 < 0.05 < kappas(silenced(network, 2))[-1]
    assert "The attention of layer 2 contributes +0.99 of the total +0.99." in why
    assert (
        "Similarity falls to 0.00 after layer 6 and rises to 0.88 after the last. The attention of layer 7 cont" in why
    )
    assert "where the tokens are in consensus" not in levers.text


@pytest.mark.long
def test_a_consensus_that_lasts_is_not_said_to_be_undone() -> None:
    built = next(case for case in BUILT if case.name == "point by layer 1")
    diagnosis = diagnosed(built.network(), built.prompts())
    lines = dict(diagnosis.verdict.lines)
    assert "falls to" not in lines["Why"]
    assert "instead of" not in lines["What to do"]


@pytest.mark.parametrize("after", [0.0, -0.004])
def test_no_fall_is_more_than_all(after: float) -> None:
    kappa = EffectEstimate(0.8, 0.7, 0.9)
    unknown = EffectEstimate(np.nan, np.nan, np.nan)
    trial = Trial(1, 0, 0.0, EffectEstimate(after - 0.8, -0.9, -0.7), unknown)
    costs = Costs(
        td.load(undone(again=False), inputs=lambda count: {"idx": torch.randint(8, 200, (count, 9))}), None, 0.02
    )
    words = LeverWords(2, kappa, kappa, [trial], Halves(["b"], ["a"], "text"), normed=True, layers=(1,), costs=costs)
    assert "falls by 100 %." in words.advice("one part does it", trial)
