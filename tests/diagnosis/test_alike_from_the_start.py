"""Networks whose tokens are alike before the first layer: what the embedding gives is not called the layers' doing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.built_transformer import Canvas, Frame, blank
from tokendynamics.diagnosis.verdict import Verdict

TOPICS, DEPTH = 12, 3


def quiet(seed: int = 30) -> Canvas:
    return blank(Frame("llama", dim=64, heads=4, depth=DEPTH, seed=seed))


def with_topics(size: float) -> Canvas:
    """Give words whose ids are equal modulo 12 a direction of their own."""
    canvas = quiet()
    directions = torch.linalg.qr(torch.randn(64, TOPICS, generator=canvas.draw))[0].T
    for number, word in enumerate(canvas.words):
        word.add_(size * directions[number % TOPICS])
    return canvas


def texts_of_one_topic(count: int = TOPICS) -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [(draw.integers(1, 16, int(draw.integers(10, 25))) * TOPICS + topic).tolist() for topic in range(count)]


def mixed_texts(count: int = 8) -> list[list[int]]:
    draw = np.random.default_rng(2)
    return [draw.integers(8, 200, int(draw.integers(10, 25))).tolist() for _ in range(count)]


def judged(canvas: Canvas, texts: list[list[int]]) -> Verdict:
    ckpt = td.load(canvas.network)
    return td.diagnose(ckpt, texts, levers=False, heads=False, directions=False, baseline=None).verdict


@pytest.mark.long
@pytest.mark.parametrize(("size", "alike"), [(16.0, True), (4.0, False)])
def test_texts_that_are_alike_at_the_embedding_are_not_only_called_spread(size: float, alike: bool) -> None:
    canvas, texts = with_topics(size), texts_of_one_topic()
    verdict = judged(canvas, texts)
    units = [torch.nn.functional.normalize(canvas.words[text], dim=-1) for text in texts]
    within = [(float((unit @ unit.T).sum()) - len(unit)) / (len(unit) * (len(unit) - 1)) for unit in units]
    what = verdict.lines[0][1]
    assert verdict.state == "spread"
    assert (np.mean(within) > 0.6) == alike
    assert ("The tokens of each text are already alike at the embedding (0." in what) == alike


@pytest.mark.long
def test_a_text_that_is_one_word_does_not_converge() -> None:
    """One word repeated points one way at any depth; the network does not make it converge."""
    verdict = judged(quiet(), [*mixed_texts(), [9] * 12])
    assert not any("converge" in finding.text for finding in verdict.details)


@pytest.mark.long
@pytest.mark.parametrize("common", [16.0, 0.0])
def test_a_common_direction_of_the_embedding_is_said_to_be_there(common: float) -> None:
    canvas = quiet()
    canvas.words.mul_(0.5).add_(common * canvas.direction())
    if not common:  # the other way round: a layer writes it
        canvas.blocks[1].down.bias.copy_(60 * canvas.direction())
    verdict = judged(canvas, mixed_texts())
    assert verdict.state == "anisotropic"
    why = verdict.lines[1][1]
    assert ("At the embedding it is 0.9" in why) == bool(common)
    assert ("The feed-forward part of layer 2 contributes +0.9" in why) == (not common)


def test_words_with_one_embedding_are_one_point_and_their_texts_no_copies() -> None:
    canvas = quiet()
    canvas.words.copy_(canvas.words[:1].clone().expand_as(canvas.words))
    texts = [list(range(8, 20)), list(range(20, 32)), list(range(30, 45)), list(range(50, 70))]
    verdict = judged(canvas, texts)
    assert verdict.state == "one point"
    assert "No measurable share of a direction is a token's own" in verdict.lines[0][1]
    sure = verdict.details[0].text
    assert "“prompt 2” enters the network exactly as another does and does not count" in sure
    assert "too few" not in sure
    assert "because a measure is undefined" in sure


@pytest.mark.long
def test_copies_are_called_copies() -> None:
    texts = mixed_texts()
    assert "“prompt 9” repeats another and does not count" in judged(quiet(), [*texts, texts[0]]).details[0].text


@pytest.mark.long
def test_texts_of_one_token_have_no_worst_layer() -> None:
    assert judged(quiet(), [[9], [20], [33], [50]]).headline == "undetermined after every layer"
