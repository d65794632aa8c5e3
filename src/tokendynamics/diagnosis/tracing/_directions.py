"""The directions that tokens share after each layer: one common to all texts, and one of each text beyond it.

Let m_p be the mean unit row of text p after a layer. The common direction is d = m/|m| with m the mean of the m_p; that
of a text is d_p, along m_p − (m_p·d) d: what the mean of its tokens has beyond d.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing.measure import inputs_of
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO, PromptTrace, find_sinks, tokens_left_out
from tokendynamics.diagnosis.tracing.prompts import named_prompts, noun_of
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.observables.directions import lengths
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.edits.states import SiteStates
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.not_finite import check_states
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress

_RESOLUTION = 1e-6
"""Length of a mean of unit rows below which its direction is rounding."""


@dataclass(frozen=True)
class TextStates:
    """What one text leaves.

    Attributes:
        given: The text as the network reads it.
        attention: States after the attention of each block, NaN where unknown.
        after: States after each block; index 0 is the input of the first one.
        weights: 1/(n |x|) for each of the n tokens that count, 0 for others: their weighted sum of states is the mean
            unit row.
    """

    given: Prepared
    attention: Float[Tensor, "block token dim"]
    after: Float[Tensor, "layer token dim"]
    weights: Float64[Tensor, "layer token"]

    @property
    def units(self) -> Float64[Tensor, "layer token dim"]:
        """Unit rows of the tokens that count, zeros for others."""
        counts = (self.weights > 0).sum(dim=-1).clamp(min=1)
        return self.after.double() * (self.weights * counts.unsqueeze(-1)).unsqueeze(-1)


@dataclass(frozen=True)
class SharedDirections:
    """The texts and what their tokens share.

    Attributes:
        names: Of the texts.
        noun: What a text is called.
        texts: What each leaves.
        common: The direction common to all texts; NaN where the mean over all tokens is zero.
        of_text: Of each text beyond it; NaN where nothing is left.
        means: The mean unit row of each text.
    """

    names: list[str]
    noun: str
    texts: list[TextStates]
    common: Float64[Tensor, "layer dim"]
    of_text: Float64[Tensor, "text layer dim"]
    means: Float64[Tensor, "text layer dim"]

    def of(self, text: int) -> Float64[Tensor, "2 layer dim"]:
        """Return the common direction and that of one text."""
        return torch.stack([self.common, self.of_text[text]])


def directions_of(
    ckpt: Checkpoint,
    texts: Any,
    report: Progress,
    *,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
) -> SharedDirections:
    """Run the texts and find the directions that their tokens share.

    Args:
        ckpt: The network.
        texts: See `tokendynamics.trace`; at least two that differ.
        report: Called after each text.
        sinks: See `tokendynamics.trace`, also for the next two.
        sink_ratio: Likewise.
        truncate: Likewise.

    Raises:
        ArgumentTypeError, ArgumentValueError: Fewer than two different texts, or some that the network does not read.
    """
    prompts = named_prompts(texts, ckpt)
    given = inputs_of(ckpt, prompts, truncate)
    _check_different(given, noun_of(prompts))
    rows: dict[int, TextStates] = {}
    for passed in ckpt.states_in_packs([prompt.inputs for prompt in given]):
        check_states(ckpt, passed)
        for number, place in enumerate(passed.places):
            rows[place] = _left_by(passed.of(number), given[place], sinks, sink_ratio)
        report(len(rows), len(given), "following the tokens")
    return _shared_by(prompts, [rows[place] for place in range(len(given))])


def directions_of_traces(
    prompts: Mapping[str, Any], given: Sequence[Prepared], traces: Sequence[PromptTrace]
) -> SharedDirections:
    """Find the directions that the tokens of traced texts share; of a text and its copies one counts.

    Args:
        prompts: By name.
        given: As the network reads them.
        traces: What the pass of each left.

    Raises:
        ArgumentValueError: Fewer than two different texts.
    """
    first = {_key(prompt): place for place, prompt in reversed(list(enumerate(given)))}
    places = sorted(first.values())
    _check_different([given[place] for place in places], noun_of(prompts))
    names = list(prompts)
    return _shared_by(
        {names[place]: prompts[names[place]] for place in places},
        [_of_trace(traces[place], given[place]) for place in places],
    )


def _shared_by(prompts: Mapping[str, Any], texts: list[TextStates]) -> SharedDirections:
    means = torch.stack([torch.einsum("lt,ltd->ld", text.weights, text.after.double()) for text in texts])
    common = _unit(means.mean(dim=0))
    beyond = means - torch.linalg.vecdot(means, common).unsqueeze(-1) * common
    return SharedDirections(list(prompts), noun_of(prompts), texts, common, _unit(beyond), means)


def _check_different(given: Sequence[Prepared], noun: str) -> None:
    different = len({_key(prompt) for prompt in given})
    if different < len(given) or len(given) < 2:
        wanted = f"at least two {noun}s, all different"
        raise ArgumentValueError(expected("texts", wanted, f"{len(given)}, of which {different} differ"))


def _key(given: Prepared) -> tuple[object, ...]:
    return tuple((name, value.shape, value.cpu().numpy().tobytes()) for name, value in sorted(given.inputs.items()))


def _unit(x: Float64[Tensor, "... dim"]) -> Float64[Tensor, "... dim"]:
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(size > _RESOLUTION, x / size, torch.nan)


def _left_by(states: SiteStates, given: Prepared, sinks: str | Sequence[int], ratio: float) -> TextStates:
    attention, after = states.attention[1:].cpu(), states.feed_forward.cpu()
    sizes = lengths(after.double())
    counts = ~tokens_left_out(find_sinks(sizes, ratio), sinks)
    if bool((counts & (sizes == 0)).any()):
        raise ArgumentValueError(expected("texts", "tokens whose states have a direction", "a state that is zero"))
    return TextStates(given, attention, after, _weights(sizes, counts))


def _of_trace(row: PromptTrace, given: Prepared) -> TextStates:
    blocks, places = row.places.of("feed_forward"), row.places
    after = row.states[-2 if places.of("final_norm") else -1]
    every = len(places.of("attention")) == len(after) - 1
    attention = row.states[0] if every else places.after_attention(torch.cat(row.states))
    return TextStates(given, attention, after, _weights(row.sizes[blocks], row.counted[blocks]))


def _weights(
    sizes: Float64[Tensor, "layer token"], counts: Bool[Tensor, "layer token"]
) -> Float64[Tensor, "layer token"]:
    return torch.where(counts, 1 / (sizes * counts.sum(dim=-1, keepdim=True)), 0.0)


def output_factors(ckpt: Checkpoint) -> dict[int, Float64[Tensor, "head d_value dim"]]:
    """Return the output factor of each layer, counted from 1, that was read and whose heads have no gate or norm.

    Raises:
        CheckpointError: No layer has one.
    """
    factors = {}
    for layer in ckpt.layout.attending:
        attention = ckpt.layout.layers[layer - 1].attention
        if attention is not None and (attention.after_heads or attention.after_output):
            continue
        try:
            factors[layer] = ckpt.attention(layer).output.double().cpu()
        except AttentionFactorsError:
            continue
    if not factors:
        problems = sorted({layer.problem for layer in ckpt.layout.layers if layer.problem})
        attentions = [layer.attention for layer in ckpt.layout.layers if layer.attention is not None]
        acting = sorted({words for attention in attentions for words in attention.after_heads})
        problems += [f"{words} acts on what its heads give" for words in acting]
        after = sorted({attention.after_output for attention in attentions} - {""})
        problems += [f"{words} acts on what its output projection gives" for words in after]
        wanted = "a network with an attention whose heads are known"
        raise CheckpointError(expected(ckpt.name, wanted, "; ".join(problems) or "none"))
    return factors


Act: TypeAlias = Callable[[int, AttentionCall], None]
"""Takes the attention of a layer, counted from 1."""


def watch_texts(ckpt: Checkpoint, texts: Sequence[TextStates], acts: Sequence[Sequence[Act]], report: Progress) -> None:
    """Run the texts again and give each attention of a text to all of its acts, with the number of its layer.

    Args:
        ckpt: The network.
        texts: What they left.
        acts: For each text.
        report: Called after each pass.

    Raises:
        CheckpointError: The attention does not show once a layer, or for other tokens than the states have.
    """
    attending, done = ckpt.layout.attending, 0
    for pack in ckpt.packs([text.given.inputs for text in texts]):
        lengths = [texts[place].after.shape[1] for place in pack.places]
        shape, calls = (len(lengths), max(lengths)), 0

        def watch(call: AttentionCall, pack: Pack = pack, lengths: list[int] = lengths, shape: Any = shape) -> None:
            nonlocal calls
            calls += 1
            tokens = {(len(tensor), tensor.shape[2]) for tensor in (call.query, call.key)}
            if calls > len(attending) or tokens != {shape}:
                calls += len(attending)
                return
            for number, (place, length) in enumerate(zip(pack.places, lengths, strict=True)):
                for act in acts[place]:
                    act(attending[calls - 1], call.of(number, length))

        ckpt.watch_pack(pack, watch)
        if calls != len(attending):
            wanted = "a network whose attention shows, once a layer and for all of its tokens"
            raise CheckpointError(expected(ckpt.name, wanted, "another one"))
        done += len(lengths)
        report(done, len(texts), "watching the attention")


def as_names(shared: SharedDirections) -> np.ndarray:
    """Return the names of the directions: "common", then those of the texts."""
    return np.array(["common", *shared.names])
