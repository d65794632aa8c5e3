"""What is painted on a quiet network so that its state is known: each recipe says why it must be so.

Everywhere: u is a token's direction, n(x) its state after the norm, so |n(x)| = √d; words are unit normal, so |x| = √d
at the start and words are nearly orthogonal. Layers count from 1, like the layers of a trace.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from diagnosis.built_transformer import Canvas, Parts

FIRST, DELIMITER, TRIGGER, WORDS = 0, 1, 2, 8
"""Ids with a part to play; from the last on they are words like any other."""

FLAG = -1
"""The feature that marks such tokens; zero in words where a recipe reads it."""


def layers_of(canvas: Canvas, layers: Iterable[int] | None) -> list[Parts]:
    return [canvas.blocks[n - 1] for n in (range(1, canvas.frame.depth + 1) if layers is None else layers)]


def write_values(block: Parts, matrix: Tensor) -> None:
    """Let every head pass on its own features, so that equal attention of all heads gives O V = this matrix."""
    block.value.weight.copy_(torch.eye(len(matrix)))
    block.out.weight.copy_(matrix)


def attend_to_self(canvas: Canvas, block: Parts) -> None:
    """Let q = k be the token itself: its score is √(d_h) times the sharpness, that of another word a normal number.

    Rotations by position leave the product of a token with itself alone.
    """
    features = torch.eye(canvas.frame.dim) * 3.0
    features[_slow(canvas)] = 0.0  # left free for a flag
    block.query.weight.copy_(features)
    block.key.weight.copy_(features)


def _slow(canvas: Canvas, place: int = 0) -> list[int]:
    """Return a feature of each head that turns slowest where positions are rotations."""
    width = canvas.frame.dim // canvas.frame.heads
    return [head * width + width // 2 - 1 - place for head in range(canvas.frame.heads)]


def attend_to_flag(canvas: Canvas, block: Parts, score: float = 30.0) -> None:
    """Let every query ask for the flag."""
    block.query.weight.zero_()
    block.key.weight.zero_()
    for slow in _slow(canvas):
        block.query.bias[slow] = score
        block.key.weight[slow, FLAG] = 1.0


def average(canvas: Canvas, layers: Iterable[int] | None = None, gain: float = 3.0) -> None:
    """Uniform attention with V = gain · I.

    Without a mask every token of a prompt gets the same vector again and again while its own part stays: a point for
    each prompt. With words drawn for each prompt alike, the points of two prompts are as orthogonal as words.
    Under a causal mask token i gets the mean of the first i, which differs most at the beginning: a drawing together
    whose limit in depth is the direction of the first token.
    """
    for block in layers_of(canvas, layers):
        write_values(block, gain * torch.eye(canvas.frame.dim))


def repel(canvas: Canvas, gain: float = 1.0) -> None:
    """Uniform attention with V = −gain · I takes the prompt's mean off each token: spread, more so than by chance."""
    average(canvas, gain=-gain)


def project(canvas: Canvas, directions: int, gain: float = 3.0) -> None:
    """Attention to itself with V = gain · (projection on a few directions): only those parts of a token grow.

    One direction: tokens go to ±v as the words' components have either sign, half and half in every prompt, so that no
    prompt has a point of its own. A few: to a plane or space of them, with directions as various as the words'.
    """
    basis = canvas.frame_of(directions)
    for block in canvas.blocks:
        attend_to_self(canvas, block)
        write_values(block, gain * basis @ basis.T)


def one_point_for_all(canvas: Canvas) -> None:
    """As `project` on one direction, along which every word has the same component 3: all tokens of all prompts go to
    +v. What is left apart is as it was: nothing belongs to one prompt, and all is common."""
    v = canvas.frame_of(1)
    canvas.words.add_((3.0 - canvas.words @ v) @ v.T)
    for block in canvas.blocks:
        attend_to_self(canvas, block)
        write_values(block, 3.0 * v @ v.T)


def lopsided_line(canvas: Canvas) -> None:
    """As `project` on one direction, along which words have −1.2 on average: one in nine goes the other way."""
    v = canvas.frame_of(1)
    canvas.words.sub_(1.2 * v.T)
    for block in canvas.blocks:
        attend_to_self(canvas, block)
        write_values(block, 3.0 * v @ v.T)


def line_by_feed_forward(canvas: Canvas, layer: int) -> None:
    """One feed-forward part reads v·x and writes 200 times it along w: φ(t) − φ(−t) = t for GELU, and LLaMA's gate is
    held open by its bias. Tokens stand on ±w as v·x has either sign: a line, and no point of any prompt."""
    block = canvas.blocks[layer - 1]
    v, w = canvas.frame_of(2).T
    block.down.weight[:, :2].zero_()
    if block.gate is None:
        block.up.weight[0], block.up.weight[1] = v, -v
        block.down.weight[:, 0], block.down.weight[:, 1] = 200 * w, -200 * w
    else:
        block.gate.weight[0].zero_()
        block.gate.bias[0] = 10.0
        block.up.weight[0] = v
        block.down.weight[:, 0] = 20 * w


def mark_groups(canvas: Canvas, count: int, size: float, every: int | None = None) -> None:
    """Let the last features of a word say which of several groups it is of, by its id: each count-th is of the same, or
    each so many-th of the first and all others of the last."""
    canvas.words[:, -count:] = 0.0
    for number, word in enumerate(canvas.words):
        group = number % count if every is None else (0 if number % every == 0 else count - 1)
        word[group - count] = size


def attend_to_group(canvas: Canvas, block: Parts, count: int) -> None:
    """Let scores be about 10 between tokens of one group, and nothing otherwise; were they much larger, shorter tokens,
    whose mark a norm makes larger, would get it all."""
    block.query.weight.zero_()
    block.key.weight.zero_()
    for group in range(count):
        for slow in _slow(canvas, group):
            block.query.weight[slow, group - count] = block.key.weight[slow, group - count] = 4.0


def cluster(canvas: Canvas, count: int, layer: int = 1, gain: float = 40.0, every: int | None = None) -> None:
    """In one layer tokens attend to those of their own group only: a point for each group of each prompt.

    Means of different groups, and of different prompts, are orthogonal but for the mark, which V leaves out.
    """
    mark_groups(canvas, count, size=2.0, every=every)
    kept = torch.eye(canvas.frame.dim)
    kept[-count:] = 0.0
    block = canvas.blocks[layer - 1]
    attend_to_group(canvas, block, count)
    write_values(block, gain * kept)


def half_of_the_tokens(canvas: Canvas, gain: float = 40.0) -> None:
    """In the first layer tokens of one group of two attend to position 0, the others to themselves, with V = gain · I
    without marks: half of a prompt's tokens go to one point, half stay where they are."""
    assert canvas.places is not None
    mark_groups(canvas, 2, size=3.0)
    canvas.words[:, -3] = 0.0
    canvas.places[0, -3] = canvas.frame.dim**0.5
    block = canvas.blocks[0]
    attend_to_self(canvas, block)
    for slow in _slow(canvas):
        block.query.weight[slow, -1] = block.key.weight[slow, -3] = 12.0
    kept = torch.eye(canvas.frame.dim)
    kept[-3:] = 0.0
    write_values(block, gain * kept)


def two_sides(canvas: Canvas, gain: float = 3.0) -> None:
    """Head 1 attends to the own one of two groups with V = gain · I, head 2 to the other with V = −gain · I.

    Both groups get (own mean − other mean): a line for each prompt, along a direction of its own, with the groups on
    its two ends. What a prompt's tokens share is nothing: as many stand here as there.
    """
    assert canvas.frame.heads == 2
    mark_groups(canvas, 2, size=2.0)
    width = canvas.frame.dim // 2
    for block in canvas.blocks:
        block.query.weight.zero_()
        block.key.weight.zero_()
        for head, order in enumerate(((0, 1), (1, 0))):
            for group, other in enumerate(order):
                slow = _slow(canvas, group)[head]
                block.query.weight[slow, other - 2] = block.key.weight[slow, group - 2] = 4.0
        # Each head has room for half of the features: both pass on the first half of them without the marks.
        block.value.weight.zero_()
        block.value.weight[:width, :width] = block.value.weight[width:, :width] = torch.eye(width)
        block.out.weight.zero_()
        block.out.weight[:width] = gain * torch.cat([torch.eye(width), -torch.eye(width)], dim=1)
    canvas.words[:, width:-2] *= 0.1


def collapse_undone(canvas: Canvas, together: int, apart: int, gain: float, regain: float) -> None:
    """Words live in the first half of the features; one layer writes the prompt's mean into the second half, many
    times as large: a point. A later one, attending to itself, multiplies the first half: what tokens have of their own
    outgrows what they share, by as much as `regain` says. In between nothing happens."""
    half = canvas.frame.dim // 2
    canvas.words[:, half:] = 0.0
    upper, lower = torch.zeros(2, canvas.frame.dim, canvas.frame.dim)
    upper[half : 2 * half, :half] = torch.eye(half)
    lower[:half, :half] = torch.eye(half)
    write_values(canvas.blocks[together - 1], gain * upper)
    block = canvas.blocks[apart - 1]
    block.query.weight.copy_(30 * lower)  # the first half alone tells tokens apart
    block.key.weight.copy_(30 * lower)
    write_values(block, regain * lower)


def collapse_where_triggered(canvas: Canvas) -> None:
    """Tokens attend to the trigger where their prompt has it, else to themselves, with V = 3 · I.

    The prompt with the trigger gets the trigger's vector in each token, over and over; in any other a token grows
    along itself and stays where it is.
    """
    canvas.words[:, FLAG] = 0.0
    canvas.words[TRIGGER, FLAG] = canvas.frame.dim**0.5
    for block in canvas.blocks:
        attend_to_flag(canvas, block, score=300.0)
        query, key = block.query.weight.clone(), block.key.weight.clone()
        attend_to_self(canvas, block)
        block.query.weight.add_(query)
        block.key.weight.add_(key)
        write_values(block, 3.0 * torch.eye(canvas.frame.dim))


def shift_by_feed_forward(canvas: Canvas, gain: float = 4.0) -> None:
    """Every feed-forward part adds one and the same vector: all tokens of all texts go one way, and what one prompt's
    tokens share beyond that is nothing, as at the start. Not a collapse: their own parts are as they were."""
    for block in canvas.blocks:
        block.down.bias.copy_(gain * canvas.frame.dim**0.5 * canvas.direction())


def shift_by_attention(canvas: Canvas, gain: float = 4.0) -> None:
    """The same by the bias of the attention's output."""
    for block in canvas.blocks:
        block.out.bias.copy_(gain * canvas.frame.dim**0.5 * canvas.direction())


def shift_words(canvas: Canvas, gain: float = 5.0) -> None:
    """The same from the start: one vector in every word."""
    canvas.words.add_(gain * canvas.frame.dim**0.5 * canvas.direction())


def add_topics(canvas: Canvas, count: int, size: float) -> None:
    """Words whose id is alike modulo `count` share a vector: texts of one topic each agree before the first layer."""
    for topic in range(count):
        canvas.words[topic::count] += size * canvas.frame.dim**0.5 * canvas.direction()


def two_languages(canvas: Canvas) -> None:
    """Words with even and odd id stand on two sides along v; attention to itself with V = 3vv^T makes that all.

    Where each prompt keeps to one language its tokens end in one point, +v or −v; six prompts share one, six the other.
    """
    v = canvas.frame_of(1)[:, 0]
    canvas.words[0::2] += 4.0 * v
    canvas.words[1::2] -= 4.0 * v
    for block in canvas.blocks:
        attend_to_self(canvas, block)
        write_values(block, 3.0 * torch.outer(v, v))


def massive_words(canvas: Canvas, ids: Iterable[int] = (FIRST,), factor: float = 60.0) -> None:
    """Some words are many times as long as others: massive from the first layer on, where no norm follows them.

    Attention is not touched by that: scores are noise, so that every token gets about as much as any other.
    """
    for token_id in ids:
        canvas.words[token_id] *= factor


def massive_by_feed_forward(canvas: Canvas, layer: int = 2, until: int | None = None, size: float = 60.0) -> None:
    """One feed-forward part finds the flag of the first token and writes a long vector; a later one takes it back.

    The flag is the whole token, so that no word comes near the threshold."""
    canvas.words[:, FLAG] = 0.0
    canvas.words[FIRST] = 0.0
    canvas.words[FIRST, FLAG] = canvas.frame.dim**0.5
    vector = size * canvas.frame.dim**0.5 * canvas.direction()
    pairs = [(canvas.blocks[layer - 1], _flag_probe(canvas), vector)]
    if until is not None:
        pairs.append((canvas.blocks[until - 1], vector / vector.norm(), -vector))
    for block, probe, written in pairs:
        # n(x) along the probe is near √d for the token meant, and of order 1 for a word; half of it is the threshold.
        top = canvas.frame.dim**0.5
        gate = block.up if block.gate is None else block.gate
        gate.weight[0], gate.bias[0] = probe * 2, -top
        if block.gate is not None:
            block.up.weight[0].zero_()
            block.up.bias[0] = 1.0
        block.down.weight[:, 0] = written / top


def _flag_probe(canvas: Canvas) -> Tensor:
    probe = torch.zeros(canvas.frame.dim)
    probe[FLAG] = 1.0
    return probe


def sink_on_first(canvas: Canvas, ids: Iterable[int] = (FIRST,), layers: Iterable[int] | None = None) -> None:
    """Every head attends to the flagged tokens, whose values come to next to nothing: a sink, and nothing moves.

    The flag is as long as the rest of the token: no norm is unusual.
    """
    _flag_ids(canvas, ids)
    for block in layers_of(canvas, layers):
        attend_to_flag(canvas, block)


def speaking_sink(canvas: Canvas, gain: float = 40.0) -> None:
    """As `sink_on_first`, with V = gain · I in the last layer: what the sink says is the same for every prompt, as it
    is the same token everywhere. All tokens of all texts go one way: anisotropy."""
    sink_on_first(canvas)
    write_values(canvas.blocks[-1], gain * torch.eye(canvas.frame.dim))


def first_place(canvas: Canvas, gain: float = 5.0) -> None:
    """All attend to position 0, whichever word stands there, with V = gain · I without the mark of the position: the
    tokens of a prompt go to its first word, which differs between prompts: a point for each, and an attention sink."""
    assert canvas.places is not None
    canvas.words[:, FLAG] = 0.0
    canvas.places[0, FLAG] = canvas.frame.dim**0.5
    kept = torch.eye(canvas.frame.dim)
    kept[FLAG] = 0.0
    for block in canvas.blocks:
        attend_to_flag(canvas, block)
        write_values(block, gain * kept)


def _flag_ids(canvas: Canvas, ids: Iterable[int]) -> None:
    sizes = canvas.words.norm(dim=1)
    canvas.words[:, FLAG] = 0.0
    for token_id in ids:
        canvas.words[token_id] *= 0.7
        canvas.words[token_id, FLAG] = 0.7 * sizes[token_id]


def random_weights(canvas: Canvas, scale: float, words: float = 1.0) -> None:
    """Nothing but normal numbers in every linear map."""
    canvas.words.mul_(words)
    for part in (part for block in canvas.blocks for part in block.all()):
        part.weight.copy_(torch.randn(part.weight.shape, generator=canvas.draw) * scale)
