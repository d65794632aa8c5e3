"""The directions that tokens share after each layer: one common to all texts, and one of each text beyond it.

Let m_p be the mean unit row of text p after a layer. The common direction is d = m/|m| with m the mean of the m_p; that
of a text is d_p, along m_p − (m_p·d) d: what the mean of its tokens has beyond d.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing.measure import calls_fit, inputs_of
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO, PromptTrace, find_sinks, tokens_left_out
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for, named_prompts, noun_of
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import why
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables.directions import lengths
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.edits.language_head import no_head
from tokendynamics.pretrained.edits.states import SiteStates
from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.pretrained.encoding import pieces_of
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_logits, check_states
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.words import plural

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
        calls: Its attentions, in the order of the layers; empty where they were not kept.
    """

    given: Prepared
    attention: Float[Tensor, "block token dim"]
    after: Float[Tensor, "layer token dim"]
    weights: Float64[Tensor, "layer token"]
    calls: tuple[AttentionCall, ...] = ()

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
    calls: bool = False,
) -> SharedDirections:
    """Run the texts and find the directions that their tokens share.

    Args:
        ckpt: The network.
        texts: See `tokendynamics.trace`; at least two that differ.
        report: Called after each text.
        sinks: See `tokendynamics.trace`, also for the next two.
        sink_ratio: Likewise.
        truncate: Likewise.
        calls: Whether what each attention was given and gave is kept, where there is ample memory.

    Raises:
        ArgumentTypeError, ArgumentValueError: Fewer than two different texts, or some that the network does not read.
    """
    prompts = named_prompts(texts, ckpt, report)
    given = inputs_of(ckpt, prompts, truncate, report)
    _check_different(given, noun_of(prompts))
    rows: dict[int, TextStates] = {}
    calls = calls and calls_fit(ckpt, given)
    for passed in ckpt.states_in_packs([prompt.inputs for prompt in given], calls=calls):
        check_states(ckpt, passed)
        for number, place in enumerate(passed.places):
            left = _left_by(passed.of(number), given[place], sinks, sink_ratio)
            rows[place] = replace(left, calls=passed.calls_of(number))
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
    first = {prompt.content: place for place, prompt in reversed(list(enumerate(given)))}
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
    different = len({prompt.content for prompt in given})
    if different < len(given) or len(given) < 2:
        wanted = f"at least two {noun}s, all different"
        raise ArgumentValueError("texts", wanted, f"{plural(len(given), noun)}, {different} of them different")


def _unit(x: Float64[Tensor, "... dim"]) -> Float64[Tensor, "... dim"]:
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(size > _RESOLUTION, x / size, torch.nan)


def _left_by(states: SiteStates, given: Prepared, sinks: str | Sequence[int], ratio: float) -> TextStates:
    attention, after = states.attention[1:].cpu(), states.feed_forward.cpu()
    sizes = lengths(after.double())
    counts = ~tokens_left_out(find_sinks(sizes, ratio), sinks)
    if bool((counts & (sizes == 0)).any()):
        raise ArgumentValueError("texts", "tokens whose states have a direction", "a state that is zero")
    return TextStates(given, attention, after, _weights(sizes, counts))


def _of_trace(row: PromptTrace, given: Prepared) -> TextStates:
    blocks, places = row.places.of("feed_forward"), row.places
    after = row.states[-2 if places.of("final_norm") else -1]
    every = len(places.of("attention")) == len(after) - 1
    attention = row.states[0] if every else places.after_attention(torch.cat(row.states))
    return TextStates(given, attention, after, _weights(row.sizes[blocks], row.counted[blocks]), row.calls)


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
        raise CheckpointError(ckpt.name, wanted, "; ".join(problems) or "none")
    return factors


Act: TypeAlias = Callable[[int, AttentionCall], None]
"""Takes the attention of a layer, counted from 1."""


def watch_texts(ckpt: Checkpoint, texts: Sequence[TextStates], acts: Sequence[Sequence[Act]], report: Progress) -> None:
    """Give each attention of a text to all of its acts, with the number of its layer; what was not kept runs again.

    Args:
        ckpt: The network.
        texts: What they left.
        acts: For each text.
        report: Called after each pass.

    Raises:
        CheckpointError: The attention does not show once a layer, or for other tokens than the states have.
    """
    attending, done = ckpt.layout.attending, 0
    if all(text.calls for text in texts):
        for text, acts_of_text in zip(texts, acts, strict=True):
            for layer, call in zip(attending, text.calls, strict=True):
                for act in acts_of_text:
                    act(layer, call)
        return
    for pack in ckpt.packs([text.given.inputs for text in texts]):
        lengths = [texts[place].after.shape[1] for place in pack.places]
        # As long as its states, or as what it was given: padding that a mask hides has no states.
        given = [value.shape[:2] for value in pack.arguments.values() if isinstance(value, Tensor) and value.ndim > 1]
        shapes, calls = {(len(lengths), max(lengths)), *(tuple(shape) for shape in given if shape[1] > max(lengths))}, 0

        def watch(call: AttentionCall, pack: Pack = pack, lengths: list[int] = lengths, shapes: Any = shapes) -> None:
            nonlocal calls
            calls += 1
            tokens = {(len(tensor), tensor.shape[2]) for tensor in (call.query, call.key)}
            if calls > len(attending) or len(tokens) > 1 or not tokens <= shapes:
                calls += len(attending)
                return
            for number, (place, length) in enumerate(zip(pack.places, lengths, strict=True)):
                for act in acts[place]:
                    act(attending[calls - 1], call.of(number, length))

        ckpt.watch_pack(pack, watch)
        if calls != len(attending):
            wanted = "a network whose attention shows, once a layer and for all of its tokens"
            raise CheckpointError(ckpt.name, wanted, "another one")
        done += len(lengths)
        report(done, len(texts), "watching the attention")


def as_names(shared: SharedDirections) -> np.ndarray:
    """Return the names of the directions: "common", then those of the texts."""
    return np.array(["common", *shared.names])


_DESCRIPTIONS = {
    "vector": "unit vector: the mean unit row of all texts, or of one text beyond the common direction",
    "similarity": "mean product of the components of different tokens along the direction: tokens of different texts "
    "for the common one, of one text for its own",
    "carried": "similarity over the whole that is shared: of share_common, or of what the tokens of the text share "
    "beyond the common direction; above 1 where what they share along other directions is negative",
    "written": "signed share of the mean component along the direction that a part of a layer adds; source 0 is the "
    "embedding; adds up to 1 over source and component",
    "written_by_head": "the part of it that each head adds; NaN where heads are not known or a norm follows them",
    "written_besides_heads": "what the attention adds besides its heads, mostly the bias of the output projection",
    "token_id": "vocabulary entries that final norm and language head read from the direction, the likeliest first; "
    "-1 where none were read",
    "token_text": "the same as text",
}


WORDS = 5
"""Vocabulary entries of each direction."""


@typed_arguments
def shared_directions(
    ckpt: Model,
    texts: Any,
    *,
    words: int = WORDS,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Find the directions that tokens share after each layer, and what writes them (`mathematics` 11, Directions).

    With m_p the mean unit row of text p, the common direction is that of the mean of the m_p, and the direction of a
    text that of m_p beyond the common one. A state is the embedding plus what every part added to it, so the mean
    component of the tokens along a direction is a sum over parts, and over the heads of an attention.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: At least two different prompts, as `tokendynamics.trace` takes them.
        words: Number of vocabulary entries for each direction.
        sinks: Which tokens are excluded; see `tokendynamics.trace`, also for the next two.
        sink_ratio: Likewise.
        truncate: Likewise.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with dims ``direction`` ("common", then the names of the texts), ``layer`` (0 … L), float64: ``vector``
        (…, feature), ``similarity`` and ``carried`` (what the direction carries of what is shared), ``written``
        (…, source, component): signed shares by layer and part that add up to 1; ``written_by_head`` (…, source, head)
        and ``written_besides_heads`` (…, source), which add up to the attention's. With a language head ``token_id``
        and ``token_text`` (…, rank). NaN where a direction is undefined.

    Raises:
        ArgumentTypeError, ArgumentValueError: Fewer than two different texts, or some that this network does not read.

    >>> table = shared_directions("random:gpt2-tiny", ["one fish", "two red birds", "it rains again"])
    >>> round(float(table.written.sel(direction="common", layer=6).sum()), 6)
    1.0
    """
    ckpt = checkpoint_for(ckpt, texts)
    as_count(words, "words")
    with reporting(progress) as report:
        counting: dict[str, Any] = {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}
        shared = directions_of(ckpt, texts, report, **counting, calls=True)
        heads, unknown = _heads(ckpt, shared, report)
    return directions_table(ckpt, shared, heads, unknown, words).assign_attrs(sinks=str(sinks))


def directions_table(
    ckpt: Checkpoint,
    shared: SharedDirections,
    heads: Float64[Tensor, "text 2 layer source head"] | None,
    unknown: str,
    words: int,
    read: slice = slice(None),
) -> xr.Dataset:
    """Return the dataset of `shared_directions`.

    Args:
        ckpt: The network.
        shared: From `directions_of`.
        heads: What each head adds along the directions of each text; None where that is not known.
        unknown: Why not.
        words: Number of vocabulary entries for each direction.
        read: The layers whose directions are read.
    """
    variables: dict[str, Any] = {
        "vector": (("direction", "layer", "feature"), torch.cat([shared.common[None], shared.of_text]).numpy()),
        **_similarities(shared),
        **_writers(shared, heads),
    }
    reading, unread = _reading(ckpt, shared, words, read)
    depth = len(shared.common)
    coords = {"direction": as_names(shared), "layer": np.arange(depth), "source": np.arange(depth)}
    attrs = {"model": ckpt.name, "no_heads": unknown, "no_reading": unread, "prompt_noun": shared.noun}
    table = xr.Dataset(variables | reading, coords=coords | {"component": list(PARTS)}, attrs=attrs)
    for name in table.data_vars:
        table[name].attrs["description"] = _DESCRIPTIONS[str(name)]
    return table


def _writers(shared: SharedDirections, heads: Float64[Tensor, "text 2 layer source head"] | None) -> dict[str, Any]:
    """Return the variables about what writes the directions."""
    totals = torch.stack([torch.einsum("kld,ld->kl", shared.of(p), mean) for p, mean in enumerate(shared.means)])
    written = _shares(torch.stack([_written(shared.of(p), text) for p, text in enumerate(shared.texts)]), totals)
    dims = ("direction", "layer", "source")
    variables: dict[str, Any] = {"written": ((*dims, "component"), written)}
    if heads is not None:
        by_head = _shares(heads, totals)
        rest = written[..., PARTS.index("attention")] - np.nansum(by_head, axis=-1)
        rest[np.isnan(by_head).all(axis=-1)] = np.nan
        variables |= {"written_by_head": ((*dims, "head"), by_head), "written_besides_heads": (dims, rest)}
    return variables


def _written(
    directions: Float64[Tensor, "2 layer dim"], text: TextStates
) -> Float64[Tensor, "2 layer source component"]:
    """Return what each part adds to the mean component along the directions after each layer."""
    after = text.after.double()
    before = torch.cat([torch.zeros_like(after[:1]), after[:-1]])
    middle = before.clone()
    middle[1:] = torch.where(text.attention.isnan(), before[1:], text.attention)  # without one the block is one part
    added = torch.stack([middle - before, after - middle], dim=1)  # (source, component, token, dim)
    along = torch.einsum("sctd,kld->klsct", added, directions)
    weighted = torch.einsum("klsct,lt->klsc", along, text.weights)
    return torch.where(_before(len(after))[..., None], weighted, 0.0)


def _before(depth: int) -> Tensor:
    """Return, for each layer, which sources have written by then."""
    return torch.arange(depth) <= torch.arange(depth)[:, None]


def _heads(ckpt: Checkpoint, shared: SharedDirections, report: Progress) -> tuple[Tensor | None, str]:
    """Return what each head adds, (text, 2, layer, source, head); or None, and why."""
    try:
        factors = writing_factors(ckpt, output_factors(ckpt))
        added, acts = zip(
            *(heads_of(text, shared.of(place), factors) for place, text in enumerate(shared.texts)), strict=True
        )
        watch_texts(ckpt, shared.texts, [[act] for act in acts], report)
    except CheckpointError as error:
        return None, why(error, ckpt.name)
    return torch.stack(added), ""


def writing_factors(ckpt: Checkpoint, known: dict[int, Tensor]) -> dict[int, Tensor]:
    """Return the output factors of the layers whose heads write to the residual stream itself, times their gain.

    Args:
        ckpt: The network.
        known: From `output_factors`.

    Raises:
        CheckpointError: In every layer a norm or such a factor follows the heads, or the state is multiplied.
    """
    factors: dict[int, Tensor] = {}
    for number, layer in enumerate(ckpt.layout.layers, start=1):
        residual = layer.residual
        adds = residual is not None and residual.plain and not residual.attention_norm
        if number in known and residual is not None and adds and residual.attention_factor is not None:
            factors[number] = known[number] * residual.attention_factor
    if not factors:
        raise CheckpointError(
            "a norm, or a factor that is learned, of each feature or of the state, follows the heads in every layer"
        )
    return factors


def heads_of(
    text: TextStates, directions: Float64[Tensor, "2 layer dim"], factors: dict[int, Tensor]
) -> tuple[Float64[Tensor, "2 layer source head"], Act]:
    """Return what each head adds to the mean component along the directions after each layer, and what measures it.

    Args:
        text: What it left.
        directions: The common one and its own.
        factors: From `writing_factors`; NaN for other layers.
    """
    depth, count = len(text.after), max(len(factor) for factor in factors.values())
    added = torch.full((2, depth, depth, count), torch.nan, dtype=torch.float64)

    def act(layer: int, call: AttentionCall) -> None:
        if layer in factors:
            outputs = torch.einsum("thv,lt->lhv", call.output[0].double().cpu(), text.weights)
            added_by_head = torch.einsum("lhv,hvd->lhd", outputs, factors[layer])
            heads = torch.einsum("lhd,kld->klh", added_by_head, directions)
            added[:, :, layer, : heads.shape[-1]] = torch.where(_before(depth)[:, layer, None], heads, 0.0)

    return added, act


def _shares(added: Float64[Tensor, "text 2 layer ..."], totals: Float64[Tensor, "text 2 layer"]) -> np.ndarray:
    """Return the shares of what is added along the common direction, a mean over texts, and along that of each text."""
    numbers = torch.cat([added[:, 0].mean(dim=0, keepdim=True), added[:, 1]])
    whole = torch.cat([totals[:, 0].mean(dim=0, keepdim=True), totals[:, 1]])
    return (numbers / whole.reshape(*whole.shape, *(1,) * (numbers.ndim - 2))).numpy()


def _similarities(shared: SharedDirections) -> dict[str, Any]:
    """Return the mean product along each direction over pairs of tokens, and its part of all that is shared."""
    along = torch.linalg.vecdot(shared.means, shared.common)
    values, wholes = [_over_texts(along.unsqueeze(-1))], [_over_texts(shared.means)]
    for place, text in enumerate(shared.texts):
        units, counts = text.units, (text.weights > 0).sum(dim=-1)
        beyond = units - torch.linalg.vecdot(units, shared.common[:, None]).unsqueeze(-1) * shared.common[:, None]
        along = torch.linalg.vecdot(units, shared.of_text[place][:, None])
        values.append(_over_tokens(along.unsqueeze(-1), counts))
        wholes.append(_over_tokens(beyond, counts))
    similarity, whole = torch.stack(values), torch.stack(wholes)
    dims = ("direction", "layer")
    carried = torch.where(whole > 0, similarity / whole, torch.nan)
    return {"similarity": (dims, similarity.numpy()), "carried": (dims, carried.numpy())}


def _over_texts(x: Float64[Tensor, "text layer dim"]) -> Float64[Tensor, " layer"]:
    """Return the mean product over pairs of different texts."""
    pairs = len(x) * (len(x) - 1)
    return (x.sum(dim=0).square().sum(dim=-1) - x.square().sum(dim=(0, -1))) / pairs


def _over_tokens(x: Float64[Tensor, "layer token dim"], counts: Tensor) -> Float64[Tensor, " layer"]:
    """Return the mean product over pairs of different tokens; zeros do not count."""
    pairs = torch.where(counts > 1, counts * (counts - 1), torch.nan)
    return (x.sum(dim=1).square().sum(dim=-1) - x.square().sum(dim=(1, 2))) / pairs


def _reading(ckpt: Checkpoint, shared: SharedDirections, words: int, read: slice) -> tuple[dict[str, Any], str]:
    """Return the vocabulary entries of each direction, read at the median norm of the states; or why there are none."""
    norms = torch.cat([1 / (text.weights * (text.weights > 0).sum(dim=-1, keepdim=True)) for text in shared.texts], 1)
    sizes = torch.stack([layer[layer.isfinite()].median() for layer in norms])
    states = torch.cat([shared.common[None], shared.of_text]) * sizes[:, None]
    flat = states[:, read].nan_to_num().flatten(0, 1)
    try:
        pack = ckpt.one_pack([shared.texts[0].given.inputs])
        with ckpt.as_varied(), ckpt.decoder(pack) as decoder:
            count, ids = shared.texts[0].after.shape[1], []
            for some in flat.split(count):
                filled = torch.cat([some, some[-1:].expand(count - len(some), -1)])
                logits = decoder.logits(decoder.normed(filled[None].to(next(ckpt.model.parameters()))))[0]
                check_logits(ckpt, logits, "the language head on shared directions")
                ids.append(logits[: len(some)].float().topk(min(words, logits.shape[-1])).indices.cpu())
    except CheckpointError as error:
        return {}, "the network has no language head" if str(error) == no_head(ckpt.name) else why(error, ckpt.name)
    shown = torch.cat(ids)
    token_ids = torch.full((*states.shape[:2], shown.shape[-1]), -1)
    token_ids[:, read] = shown.unflatten(0, (len(states), -1))
    token_ids[states.isnan().any(dim=-1)] = -1
    rows, tokenizer = token_ids.flatten(0, 1).tolist(), ckpt.tokenizer
    pieces = [pieces_of(row, tokenizer) if min(row) >= 0 else [""] * len(row) for row in rows]
    dims = ("direction", "layer", "rank")
    return {"token_id": (dims, token_ids.numpy()), "token_text": (dims, np.array(pieces).reshape(token_ids.shape))}, ""
