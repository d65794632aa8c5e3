"""What `asymptotic` 7.5 sees, on a network of GPT-2's size and on SmolLM2."""

from __future__ import annotations

import numpy as np
import pytest

import tokendynamics as td

TEXT = (
    "Describe a futuristic city where humans and robots live together. Talk about what the city looks like and what "
    "daily life is like there."
)
BOUND = 1e-3


@pytest.mark.slow
def test_tokens_of_a_random_network_collapse_and_positions_at_every_pass_hold_them_up() -> None:
    """28 tokens of random GPT-2 with fixed weights: with feed-forward parts and without, against the other choices."""
    ckpt = td.load("random:gpt2")
    ids = ckpt.encode(TEXT).ids[0, :28]
    whole = td.passes(ckpt, ids, 100, until=BOUND)
    bare = td.passes(ckpt, ids, 100, until=BOUND, variant="no-ffn")
    for entry in (whole, bare):
        assert entry.status.values.tolist() == ["E below the bound"]
        assert entry.sizes["pass"] <= 101
    assert bare.sizes["pass"] < whole.sizes["pass"]
    item = td.passes(ckpt, ids, 100, positions="each").consensus.values[0]
    assert item[60:].min() > 10 * BOUND
    assert item[-20:].std() < 0.1 * item[-20:].mean()
    before = td.passes(ckpt, ids, whole.sizes["pass"] - 1, feed_back="before_norm").consensus.values[0]
    assert before[-1] > 20 * BOUND


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_collapses_within_ten_passes_and_repeats_itself() -> None:
    ckpt = td.load("smollm2")
    pass_table = td.passes(ckpt, TEXT, 10)
    energy = pass_table.consensus.values[0]
    assert energy[:10].min() < BOUND
    assert energy[-1] < BOUND
    assert np.all(np.diff(energy[2:]) < 0)
    text = td.decode(ckpt, TEXT, (1, 10))
    assert float(text.distinct_1[0]) > 0.5
    assert float(text.distinct_1[1]) < 0.2


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_made_deeper_side_by_side() -> None:
    """By attention alone its states grow to 1e34 in a pass, which is divided out; else they overflow."""
    deepening = td.deeper(td.load("smollm2"), {"one": TEXT, "other": "It is late."}, 10, decoded=(1, 10))
    status = dict(zip(deepening.variants, deepening["status"].values[:, 0], strict=True))
    assert {name for name, word in status.items() if word == "not finite"} == {"no-norm"}
    for name in ("full", "no-ffn", "attention-only"):
        assert float(deepening["median_consensus"].sel(variant=name)[-1]) < BOUND
        assert float(deepening["distinct_1"].sel(variant=name)[-1]) < 0.2
    assert "full: The median of E falls from" in deepening.sentences[1]
    assert "The decoded text becomes repetitive" in deepening.sentences[1]
    assert "No text can be decoded." in deepening.sentences[3]


@pytest.mark.slow
def test_log_norm_of_smollm2_without_norms_grows_linearly_for_hundreds_of_layers() -> None:
    ckpt = td.load("random:smollm2-135m")
    pass_table = td.passes(ckpt, TEXT[:40], 20, variant="attention-only", feed_back="before_norm")
    norms = pass_table.log_norm.values[0]
    assert np.isfinite(norms).all()
    rise = np.diff(norms)
    assert rise[5:].min() > 0.5 * rise[5:].mean() > 0
