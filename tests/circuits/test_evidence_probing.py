"""Probes and intervals: what a linear readout finds, and how sure the numbers are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import LayerNorm, OneLayerTransformer
from tokendynamics.circuits.constructions import mixture, solution_1, solution_2, solution_3
from tokendynamics.circuits.evidence._trial import EvidenceTrial
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument
from tokendynamics.circuits.evidence.measurement import probing
from tokendynamics.circuits.functionals import random_functional


def probed(model: OneLayerTransformer, task: PairTask, samples: int = 400) -> Instrument:
    return probing(EvidenceTrial.drawn(model, task, samples, seed=1, resamples=50, confidence=0.95))


@pytest.mark.parametrize("law", ["uniform", "zipf"])
def test_what_attention_decides_is_decodable_and_what_it_only_copies_is_not(law: str) -> None:
    task = PairTask(random_functional(5, seed=1), 7, law)
    for model in (solution_2(task), solution_2(task, causal=True), mixture(task, 0.2)):
        assert probed(model, task).estimate == pytest.approx(1.0, abs=1e-5)
    for model in (solution_1(task), solution_1(task, "indicators"), solution_3(task)):
        result = probed(model, task)
        assert result.estimate == pytest.approx(0.0, abs=0.03)
        assert result.reading == "feed-forward"


def copying(task: PairTask, mixing: Tensor) -> OneLayerTransformer:
    """Solution 1 that copies through a matrix and normalizes its categories."""
    built = solution_1(task)
    ov = built.ov.clone()
    category = built.block("category")
    ov[0, category, category] = mixing
    attention = built.attention.with_schedules(built.attention.qk, ov[0], None)
    count = task.categories
    norm = LayerNorm(torch.ones(count).double(), torch.zeros(count).double(), features=category)
    return replace(built, attention=attention, norm=norm)


def best_share(features: np.ndarray, task: PairTask) -> float:
    """R² of the interaction from features (previous, current, feature), all pairs equally likely, by least squares."""
    count = task.categories
    one_hots = np.concatenate([np.repeat(np.eye(count), count, axis=0), np.tile(np.eye(count), (count, 1))], axis=1)
    seen = np.concatenate([one_hots, features.reshape(count**2, -1)], axis=1)
    wanted = task.q_true.numpy().flatten()
    error = wanted - seen @ np.linalg.lstsq(seen, wanted, rcond=None)[0]
    return 1.0 - float((error**2).mean()) / task.interaction_variance


def test_the_norm_alone_makes_a_part_decodable() -> None:
    count = 4
    task = PairTask(random_functional(count, seed=3), positions=3)
    mixing = 0.5 * random_functional(count, seed=103)
    result = probed(copying(task, mixing), task, samples=4000)
    # Attention with weight 2 on the previous token writes 2·mixing·e_a; the stream adds e_b.
    stream = (2.0 * mixing.mT[:, None, :] + torch.eye(count).double()[None, :, :]).numpy()
    centred = stream - stream.mean(-1, keepdims=True)
    normalized = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    before, after = best_share(stream, task), best_share(normalized, task)
    assert before == pytest.approx(0.0, abs=1e-12)
    assert after > 0.5
    assert result.named("before the norm").value == pytest.approx(before, abs=0.01)
    assert result.named("after the norm").value == pytest.approx(after, abs=0.02)
    assert result.reading == "feed-forward"  # the attention itself holds none of it


def test_an_interval_that_straddles_the_threshold_settles_nothing() -> None:
    assert Estimate("share", 0.2, 0.15, 0.25).above(0.1) is True
    assert Estimate("share", 0.2, 0.05, 0.35).above(0.1) is None
    assert Estimate("share", 0.0, 0.0, 0.0).above(0.1) is False
    assert Estimate("share", -0.001, -0.002, 0.0).written(0.95) == "0.00 (95 % CI 0.00–0.00)"
    assert Estimate("share", None).written(0.95) == "undefined"
