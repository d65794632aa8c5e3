"""Networks whose state is known because they were built to have it, with prompts to run through them.

    from diagnosis.built_networks import BUILT
    for built in BUILT:
        ckpt, prompts = built.checkpoint(), built.prompts()
        diagnosis = td.diagnose(ckpt, prompts)          # to be held beside built.end, built.worst, built.massive, …

Why each is what it is said to be stands with its recipe; `test_built_networks.py` sees it in the raw states, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagnosis import built_recipes as paint
from diagnosis.built_recipes import DELIMITER, FIRST, TRIGGER, WORDS
from diagnosis.built_transformer import VOCABULARY, Canvas, Frame, blank
from tokendynamics.pretrained import Checkpoint, load

PROMPTS = 12

S, T, C, R, A, P = "spread", "drawing together", "consensus", "rank collapse", "anisotropic", "one point"


@dataclass(frozen=True)
class Built:
    """A network and its true state.

    Attributes:
        name: Of the case.
        frame: Its architecture and seed.
        recipe: Sets its weights.
        end: The state after the last block, or those that are all right where the truth lies between.
        worst: The worst state on the way; None where it is the one at the end.
        population: Of the prompts, see `prompts_of`.
        massive: Whether tokens with an unusual norm are there. None where norms vary widely by the construction: under
            a causal mask the mean of n words is √n times shorter than the first word.
        sink: Whether a token of most prompts receives attention far above the uniform share. None where one does in a
            single prompt, or where a group that all attend to may be of a few tokens.
        damage: Layer (from 1) and part, where one alone makes the state.
        axes: Of a rank collapse: how many directions are left in a prompt.
        collapsed: Numbers of the prompts that collapse, where others do not.
    """

    name: str
    frame: Frame
    recipe: Callable[[Canvas], None]
    end: tuple[str, ...]
    worst: tuple[str, ...] | None = None
    population: str = "mixed"
    massive: bool | None = False
    sink: bool | None = False
    damage: tuple[int, str] | None = None
    axes: int = 1
    collapsed: tuple[int, ...] = ()

    def network(self) -> torch.nn.Module:
        canvas = blank(self.frame)
        self.recipe(canvas)
        return canvas.network

    def checkpoint(self) -> Checkpoint:
        if self.frame.family != "own":
            return load(self.network())
        return load(self.network(), inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})

    def ids(self) -> list[list[int]]:
        return prompts_of(self.population, self.frame.seed)

    def prompts(self) -> list[Any]:
        """Return prompts as `td.trace` takes them: an own network says by what name it reads ids."""
        ids = self.ids()
        return ids if self.frame.family != "own" else [{"idx": torch.tensor([token_id])} for token_id in ids]

    def states(self) -> list[list[np.ndarray]]:
        """Return the output of every block by its own forward hooks: [layer 0 … L][prompt] of shape (token, dim)."""
        network = self.network()
        blocks = next(module for name, module in network.named_modules() if isinstance(module, torch.nn.ModuleList))
        values = [_outputs(network, list(blocks), torch.tensor([token_id])) for token_id in self.ids()]
        return [list(layer) for layer in zip(*values, strict=True)]


def _outputs(network: Any, blocks: list[Any], ids: Tensor) -> list[np.ndarray]:
    seen: list[Tensor] = []
    hooks = [blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))]
    hooks += [block.register_forward_hook(lambda _, __, out: seen.append(_first(out))) for block in blocks]
    with torch.no_grad():
        network(ids)
    for hook in hooks:
        hook.remove()
    return [entry[0].double().numpy() for entry in seen]


def _first(out: Any) -> Tensor:
    return out if torch.is_tensor(out) else out[0]


def prompts_of(population: str, seed: int = 0) -> list[list[int]]:
    """Draw twelve prompts of ids.

    "mixed": 8 to 40 words; "even": 24 words each; "short": 2 to 6; "first": as "mixed" behind the same first token;
    "delimiters": that, and every seventh token a delimiter; "repetitive": each prompt from four words of its own;
    "topics": prompt p from words whose id is p modulo 12; "languages": even ids in six, odd ones in six;
    "template": the same eight words before 8 to 40 others; "trigger": as "mixed", prompt 5 with the trigger;
    "triggers": three of four with it.
    """
    draw = np.random.default_rng([seed, 17])
    values = []
    template = draw.integers(WORDS, VOCABULARY, 8).tolist()
    for place in range(PROMPTS):
        words = np.arange(WORDS, VOCABULARY)
        length = {"even": 24, "short": int(draw.integers(2, 7))}.get(population, int(draw.integers(8, 41)))
        if population == "repetitive":
            words = draw.choice(words, 4, replace=False)
        elif population in ("topics", "languages"):
            count = PROMPTS if population == "topics" else 2
            words = words[words % count == place % count]
        ids = draw.choice(words, length).tolist()
        if population in ("first", "delimiters"):
            ids[0] = FIRST
        if population == "delimiters":
            ids[7::7] = [DELIMITER] * len(ids[7::7])
        if (population == "trigger" and place == 5) or (population == "triggers" and place % 4 < 3):
            ids[0] = TRIGGER
        values.append(template + ids if population == "template" else ids)
    return values


def _case(
    name: str,
    recipe: Callable[..., None],
    end: str | tuple[str, ...],
    settings: dict[str, Any],
    frame: dict[str, Any],
    **rest: Any,
) -> Built:
    ends = (end,) if isinstance(end, str) else end
    return Built(name, Frame(**frame), partial(recipe, **settings), ends, **rest)


def _with_shift(recipe: Callable[[Canvas], None], shift: Callable[[Canvas], None], canvas: Canvas) -> None:
    """Both at once: what is common to all does not undo what a prompt's tokens share beyond it, nor makes it."""
    shift(canvas)
    recipe(canvas)


def _topics(canvas: Canvas, recipe: Callable[[Canvas], None] | None = None, size: float = 1.0) -> None:
    """Texts of one topic each share half of every token before the first layer, with size 2 four fifths: states count
    from there."""
    paint.add_topics(canvas, PROMPTS, size)
    if recipe is not None:
        recipe(canvas)


COLLAPSES = [
    # V = I under uniform attention in every layer, with no mask: see `average`.
    _case("point", paint.average, C, {}, {"seed": 1}),
    _case("point, width 16", paint.average, C, {}, {"dim": 16, "heads": 1, "depth": 4, "seed": 2}),
    _case("point, width 96, depth 16", paint.average, C, {"gain": 1.0},
          {"dim": 96, "depth": 16, "heads": 4, "seed": 3}),
    _case("point, post-norm", paint.average, C, {}, {"post": True, "seed": 4}),
    _case("point, BERT", paint.average, C, {}, {"family": "bert", "dim": 48, "depth": 8, "seed": 5}),
    _case("point, exact zeros elsewhere", paint.average, C, {}, {"noise": 0.0, "rms": True, "seed": 6}),
    _case("point, short prompts", paint.average, C, {}, {"seed": 7}, population="short"),
    _case("point, behind a template", paint.average, (C, T), {}, {"seed": 8}, population="template"),
    # By one layer alone: its update is 40 √(d/n) long beside tokens of √d.
    _case("point by layer 1", paint.average, C, {"layers": [1], "gain": 40.0}, {"seed": 9}, damage=(1, "attention")),
    _case("point by layer 3 of BERT", paint.average, C, {"layers": [3], "gain": 40.0}, {"family": "bert", "seed": 10},
          damage=(3, "attention")),
    _case("point by the last layer", paint.average, C, {"layers": [8], "gain": 40.0},
          {"depth": 8, "dim": 32, "seed": 11}, damage=(8, "attention")),
    # Under a causal mask the points are first words, and the mean over depth goes there: many strong layers, post-norm
    # so that the start is forgotten.
    _case("causal point, post-norm", paint.average, C, {"gain": 3.0},
          {"causal": True, "post": True, "depth": 16, "seed": 12}),
    _case("point at the first word", paint.first_place, C, {}, {"causal": True, "seed": 13}, sink=True),
    _case("point at the first word, GPT-2", paint.first_place, C, {}, {"family": "gpt2", "seed": 14}, sink=True),
]  # fmt: skip

DRAWING_TOGETHER = [
    # The running mean of one causal layer: the first tokens stand apart, the later ones are nearly the same.
    _case("causal running mean", paint.average, T, {"layers": [2], "gain": 40.0}, {"causal": True, "seed": 15},
          massive=None, damage=(2, "attention")),
    _case("causal running mean, GPT-2", paint.average, T, {"layers": [3], "gain": 40.0},
          {"family": "gpt2", "dim": 96, "depth": 5, "seed": 16}, massive=None, damage=(3, "attention")),
    _case("causal running mean, LLaMA", paint.average, T, {"layers": [1], "gain": 40.0},
          {"family": "llama", "dim": 32, "seed": 17}, massive=None, damage=(1, "attention")),
    # A mean of √(d/n) once, as large as half of a token: nearer to each other, and far from a point.
    _case("a little nearer", paint.average, T, {"layers": [3], "gain": 3.0}, {"seed": 18}, damage=(3, "attention")),
]  # fmt: skip

RANK_COLLAPSES = [
    _case("line", paint.project, R, {"directions": 1}, {"depth": 12, "seed": 20}),
    _case("line, LLaMA", paint.project, R, {"directions": 1}, {"family": "llama", "depth": 12, "seed": 21}),
    _case("line, width 16", paint.project, R, {"directions": 1}, {"dim": 16, "heads": 1, "depth": 10, "seed": 22}),
    _case("line, BERT", paint.project, R, {"directions": 1}, {"family": "bert", "depth": 12, "seed": 23}),
    _case("line, post-norm, causal", paint.project, R, {"directions": 1},
          {"post": True, "causal": True, "depth": 12, "seed": 24}),
    _case("line by one feed-forward part", paint.line_by_feed_forward, R, {"layer": 3}, {"seed": 25}, massive=None,
          damage=(3, "feed_forward")),
    _case("line by one feed-forward part, LLaMA", paint.line_by_feed_forward, R, {"layer": 2},
          {"family": "llama", "depth": 4, "seed": 26}, massive=None, damage=(2, "feed_forward")),
    _case("line of each prompt", paint.two_sides, R, {}, {"seed": 27}, sink=None),
    _case("two points per prompt", paint.cluster, R, {"count": 2}, {"seed": 28}, axes=2, damage=(1, "attention")),
    _case("three points per prompt", paint.cluster, R, {"count": 3, "layer": 4}, {"dim": 96, "seed": 29}, axes=3,
          damage=(4, "attention")),
    _case("plane", paint.project, R, {"directions": 2}, {"depth": 12, "seed": 30}, axes=2),
    _case("three directions", paint.project, R, {"directions": 3}, {"depth": 16, "dim": 96, "seed": 31}, axes=3),
]  # fmt: skip

UNDONE = [
    _case("collapse undone", paint.collapse_undone, (S, T),
          {"together": 2, "apart": 5, "gain": 40.0, "regain": 200.0}, {"seed": 32}, worst=(C,)),
    _case("collapse half undone", paint.collapse_undone, T,
          {"together": 2, "apart": 6, "gain": 40.0, "regain": 110.0},
          {"dim": 96, "depth": 8, "rms": True, "seed": 33}, worst=(C,)),
    _case("one prompt of twelve", paint.collapse_where_triggered, (S, T), {}, {"dim": 96, "seed": 34},
          population="trigger", sink=None, collapsed=(5,)),
]  # fmt: skip

ANISOTROPIES = [
    _case("bias of every feed-forward part", paint.shift_by_feed_forward, A, {}, {"seed": 35}),
    _case("bias of every feed-forward part, GPT-2", paint.shift_by_feed_forward, A, {}, {"family": "gpt2", "seed": 36}),
    _case("bias of every feed-forward part, width 16", paint.shift_by_feed_forward, A, {},
          {"dim": 16, "heads": 1, "seed": 37}),
    _case("bias of every attention", paint.shift_by_attention, A, {}, {"family": "llama", "depth": 4, "seed": 38}),
    _case("bias of every attention, post-norm", paint.shift_by_attention, P, {}, {"post": True, "seed": 39}),
    _case("one vector in every word", paint.shift_words, A, {}, {"seed": 40}),
    _case("one vector in every word, short prompts", paint.shift_words, A, {}, {"dim": 32, "seed": 41},
          population="short"),
    _case("one point for all prompts", paint.one_point_for_all, P, {}, {"depth": 12, "seed": 42}),
    _case("speaking sink", paint.speaking_sink, P, {}, {"causal": True, "seed": 43}, population="first", sink=True,
          damage=(6, "attention")),
]  # fmt: skip


MASSIVE_AND_SINKS = [
    _case("massive first token", paint.massive_words, S, {}, {"causal": True, "seed": 44}, population="first",
          massive=True),
    _case("massive first token by a feed-forward part, LLaMA", paint.massive_by_feed_forward, S, {},
          {"family": "llama", "seed": 45}, population="first", massive=True),
    _case("massive in between, GPT-2", paint.massive_by_feed_forward, S, {"until": 6},
          {"family": "gpt2", "depth": 8, "seed": 46}, population="first", massive=True),
    _case("several massive tokens", paint.massive_words, S, {"ids": (FIRST, DELIMITER)}, {"seed": 47},
          population="delimiters", massive=True),
    _case("sink without a norm", paint.sink_on_first, S, {}, {"causal": True, "seed": 48}, population="first",
          sink=True),
    _case("sink without a norm, LLaMA", paint.sink_on_first, S, {}, {"family": "llama", "depth": 8, "seed": 49},
          population="first", sink=True),
    _case("sinks on delimiters", paint.sink_on_first, S, {"ids": (FIRST, DELIMITER)}, {"seed": 50},
          population="delimiters", sink=True),
    _case("massive sink", partial(_with_shift, paint.sink_on_first, paint.massive_words), S, {},
          {"causal": True, "seed": 51}, population="first", massive=True, sink=True),
    _case("massive sink, LLaMA", partial(_with_shift, paint.sink_on_first, paint.massive_by_feed_forward), S, {},
          {"family": "llama", "seed": 52}, population="first", massive=True, sink=True),
    _case("point beside a massive token",
          partial(_with_shift, paint.average, partial(paint.massive_words, factor=2000.0)), C, {},
          {"depth": 10, "rms": True, "seed": 53}, population="first", massive=True),
]  # fmt: skip

HEALTHY = [
    # All weights small: what goes in comes out.
    _case("nothing", paint.repel, S, {"gain": 0.0}, {"seed": 54}),
    _case("nothing, exact zeros", paint.repel, S, {"gain": 0.0}, {"noise": 0.0, "seed": 55}),
    _case("nothing, BERT", paint.repel, S, {"gain": 0.0}, {"family": "bert", "dim": 32, "seed": 56}),
    _case("nothing, width 16, short prompts", paint.repel, S, {"gain": 0.0}, {"dim": 16, "heads": 1, "seed": 57},
          population="short"),
    _case("nothing, texts of one topic", _topics, S, {}, {"seed": 58}, population="topics"),
    _case("nothing, few words", paint.repel, S, {"gain": 0.0}, {"seed": 59}, population="repetitive"),
    _case("nothing, behind a template", paint.repel, S, {"gain": 0.0}, {"seed": 60}, population="template"),
    _case("repulsion", paint.repel, S, {}, {"seed": 61}),
    _case("repulsion, post-norm", paint.repel, S, {"gain": 0.3}, {"post": True, "dim": 96, "seed": 62}),
    _case("repulsion, short prompts", paint.repel, S, {"gain": 0.3}, {"seed": 63}, population="short"),
    # Normal weights of 0.02 make updates of a fiftieth of a token in each layer.
    _case("random 0.02", paint.random_weights, S, {"scale": 0.02}, {"seed": 64}),
    _case("random 0.02, GPT-2", paint.random_weights, S, {"scale": 0.02}, {"family": "gpt2", "seed": 65}),
    _case("random 0.02, LLaMA", paint.random_weights, S, {"scale": 0.02}, {"family": "llama", "seed": 66}),
    _case("random 0.02, post-norm", paint.random_weights, S, {"scale": 0.02}, {"post": True, "seed": 67}),
]  # fmt: skip

FURTHER = [
    # Random networks with large weights: the mean over a prompt is added again and again; behind it a random map that
    # is the same for all prompts. Without a norm after each sum the first words stay visible, with it they are lost.
    _case("random 0.2", paint.random_weights, T, {"scale": 0.2}, {"seed": 68}),
    _case("random 0.2, GPT-2", paint.random_weights, T, {"scale": 0.2}, {"family": "gpt2", "seed": 69}),
    _case("random 0.5", paint.random_weights, T, {"scale": 0.5}, {"seed": 70}),
    _case("random 0.2, post-norm", paint.random_weights, C, {"scale": 0.2}, {"post": True, "depth": 12, "seed": 71}),
    _case("random 0.2, BERT", paint.random_weights, C, {"scale": 0.2}, {"family": "bert", "depth": 12, "seed": 72}),
    # Two things at once: each is what it is without the other.
    _case("point beside a common vector", partial(_with_shift, partial(paint.average, gain=30.0), paint.shift_words),
          C, {}, {"seed": 73}),
    _case("point, texts of one topic", partial(_topics, recipe=paint.average), C, {}, {"seed": 74},
          population="topics"),
    _case("topics taken off", partial(_topics, recipe=paint.repel), S, {}, {"seed": 75}, population="topics"),
    _case("line, few words", paint.project, R, {"directions": 1}, {"depth": 12, "seed": 76}, population="repetitive"),
    _case("line, texts of one topic", partial(_topics, recipe=partial(paint.project, directions=1)), R, {},
          {"depth": 12, "seed": 78}, population="topics"),
    _case("line, texts of one narrow topic", partial(_topics, recipe=partial(paint.project, directions=1), size=2.0),
          R, {}, {"depth": 12, "seed": 5}, population="topics"),
    _case("lopsided line", paint.lopsided_line, R, {}, {"depth": 12, "seed": 79}),
    _case("four directions", paint.project, R, {"directions": 4}, {"depth": 16, "dim": 96, "seed": 80}, axes=4),
    _case("eight directions", paint.project, (S, T, R), {"directions": 8}, {"depth": 16, "dim": 96, "seed": 81},
          axes=8),
    # How few is few? Eight directions of 96 may be called either way, and so may four points for each prompt.
    _case("four points per prompt", paint.cluster, (R, T), {"count": 4}, {"dim": 96, "seed": 82}, axes=4,
          damage=(1, "attention")),
    # Three quarters of the tokens in one point, one quarter in another: no point of the prompt in any case.
    _case("two points per prompt, uneven", paint.cluster, (R, T), {"count": 2, "every": 4}, {"seed": 9}, axes=2,
          population="even", damage=(1, "attention")),
    # The points of nine prompts are one and the same, the trigger's.
    _case("nine prompts of twelve", paint.collapse_where_triggered, (T, C), {}, {"dim": 96, "seed": 34},
          population="triggers", sink=True, collapsed=(0, 1, 2, 4, 5, 6, 8, 9, 10)),
    # Half of the tokens in one point, half where they were.
    _case("half of the tokens", paint.half_of_the_tokens, T, {}, {"dim": 96, "seed": 83}, sink=True,
          damage=(1, "attention")),
    # Under a causal mask the groups have running means, which differ at the beginning.
    _case("two points, GPT-2", paint.cluster, (T, R), {"count": 2},
          {"family": "gpt2", "dim": 96, "depth": 4, "seed": 84}, axes=2, damage=(1, "attention")),
    # In depth causal means go to the first token. Where that is the same for all prompts, so is where they go.
    _case("causal mean behind one first token", paint.average, P, {"gain": 3.0},
          {"causal": True, "post": True, "depth": 16, "seed": 85}, population="first"),
    _case("causal running mean, short prompts", paint.average, T, {"layers": [2], "gain": 40.0},
          {"causal": True, "seed": 86}, population="short", damage=(2, "attention")),
    # Means of means: on the way from a running mean to a point.
    _case("two causal means", paint.average, (T, C), {"layers": [2, 3], "gain": 40.0}, {"causal": True, "seed": 87},
          massive=None),
    _case("causal means, gain 1", paint.average, (T, C), {"gain": 1.0}, {"causal": True, "depth": 12, "seed": 88}),
    _case("causal means, gain 3", paint.average, (T, C), {"gain": 3.0}, {"causal": True, "depth": 16, "seed": 89}),
    # Between those above: the mask keeps some words apart, smaller weights leave more of them.
    _case("random 0.2, post-norm, causal", paint.random_weights, (C, T), {"scale": 0.2},
          {"post": True, "causal": True, "depth": 8, "seed": 90}),
    _case("random 0.5, post-norm, width 16", paint.random_weights, P, {"scale": 0.5},
          {"post": True, "dim": 16, "heads": 1, "depth": 8, "seed": 91}),
    _case("random 0.1, LLaMA", paint.random_weights, (S, T), {"scale": 0.1},
          {"family": "llama", "depth": 12, "seed": 92}),
    _case("two languages", paint.two_languages, (C, R), {}, {"depth": 12, "seed": 77}, population="languages"),
]  # fmt: skip

BUILT = [
    *COLLAPSES, *DRAWING_TOGETHER, *RANK_COLLAPSES, *UNDONE, *ANISOTROPIES, *MASSIVE_AND_SINKS, *HEALTHY, *FURTHER,
]  # fmt: skip
