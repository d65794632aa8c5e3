"""Where the tokens of real prompts go: every observable after attention, feed-forward part and final norm."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from tokendynamics.diagnosis.network import notes_of
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE, Estimates, place_variables, share_variables
from tokendynamics.diagnosis.tracing.prompt_trace import (
    PERSISTENT_SHARE,
    SINK_RATIO,
    PromptTrace,
    measure_pack,
    slower_observables,
)
from tokendynamics.diagnosis.tracing.prompts import (
    NamedPrompts,
    checkpoint_for,
    in_words,
    named_prompts,
    noun_of,
    token_conditions,
    with_options,
)
from tokendynamics.diagnosis.tracing.variables import BOUNDS, COMPONENTS, SHARES, SINK_HANDLING, SITES, described
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.resources import check_fits, free_memory
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables.directions import are_many
from tokendynamics.observables.summary import Observable
from tokendynamics.pretrained import Architecture, Checkpoint
from tokendynamics.pretrained.discovery.attention_call import WHOLE_BYTES
from tokendynamics.pretrained.discovery.interface import WITH_REMEDY
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_states
from tokendynamics.provenance.progress import Progress, reporting, silent, tracked, tracked_if_many
from tokendynamics.words import percent

_ARRAYS_OF_PAIRS = 3
"""Arrays of (head, token, token) that an attention that is no part of transformers' interface has at the same time."""

_CALLS_SHARE = 0.125
"""Share of the free memory that kept attentions may take; without them the prompts run once more."""


@typed_arguments
def trace(
    ckpt: Model,
    texts: Any,
    *,
    sinks: str | Sequence[int] = "detect", sink_ratio: float = SINK_RATIO, truncate: bool = False,
    extra: Sequence[str] = (), cluster_angle: float = 0.5,
    observables: Mapping[str, Callable[[Tensor], float]] | None = None,
    packed: bool = True,
    chat: bool = False, window: int | None = None, special_tokens: bool = True,
    progress: bool | Progress = False,
) -> xr.Dataset:  # fmt: skip
    """Run real text through the real model and measure the tokens at every site of every layer (`asymptotic` 7).

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: One prompt, several in a list or an array, or several by name. A prompt is a text; token ids; an image
            (path, PIL image, array; a folder is several); real numbers (a series, a waveform, pixels) for a live
            network with one such argument; or arguments of the forward pass by name, for one input.
        sinks: What "removed" leaves out: "detect" (norm above `sink_ratio`, above 1, times the prompt's median after
            that layer; one in half of the layers is left out in all), or positions, such as ``(0,)``, or ``()``.
        sink_ratio: See `sinks`.
        truncate: Whether a prompt longer than the context is cut; otherwise it is refused.
        extra: Observables that cost more than the forward pass: "clusters", "hemisphere_margin".
        cluster_angle: For "clusters", the angle in radians within which two tokens belong together.
        observables: Custom functions by name, of the states (token, dim) of the tokens that count, float64.
        packed: Whether prompts may share a forward pass: faster, the same to rounding.
        chat: Whether prompts are conversations; see `tokendynamics.Texts`, which all functions take, for these three.
        window: Most tokens of a prompt: longer texts are cut into windows that overlap by half.
        special_tokens: Whether the tokenizer adds its special tokens.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with dims ``prompt``, ``layer`` (0 … L, 0 the input of the first block), ``site`` (the residual state
        after "attention", "feed_forward" or "final_norm"; at layer 0 only "feed_forward" exists, "final_norm" only at
        layer L), ``sinks`` ("kept", "removed"), ``component``, ``share``, ``token``, and ``bound`` of intervals. Each
        variable has an attribute ``description``; NaN means undefined. For every prompt: similarity, ranks, norms,
        update ratios, attention received. Over all prompts, of the tokens that count (`mathematics` 10): the ``shares``
        (also as ``share_common`` and so on), ``consensus_within`` (κ), ``consensus_relative`` (κ′), ``centred_cos2``
        and ``line_excess``, each with its 90 % interval under the name plus ``_interval``, which needs three prompts.

    Raises:
        ArgumentTypeError, ArgumentValueError: No prompt, an empty, too long or unreadable one; a wrong argument.
        MemoryLimitError: A prompt whose states, or whose attention where the network itself makes an array of all pairs
            of tokens, are larger than the memory; or prompts whose states together are.

    >>> from tokendynamics.pretrained import load
    >>> table = trace(load("random:gpt2-tiny"), "a short text")
    >>> table.sizes["layer"], float(table.mean_pair_cosine.sel(site="feed_forward", sinks="kept")[0, 0].round(1))
    (7, 0.0)
    """
    ckpt = checkpoint_for(ckpt, texts)
    _check_above(cluster_angle=(cluster_angle, 0.0))
    texts, slower = (
        with_options(texts, chat, window, special_tokens),
        slower_observables(extra, cluster_angle, observables),
    )
    with reporting(progress) as report:
        prompts = named_prompts(texts, ckpt, report)
        table, _, _ = traced(ckpt, prompts, report, (sinks, sink_ratio, truncate), slower, packed)
    return table.assign_attrs({"cluster_angle": cluster_angle} if "clusters" in extra else {})


def traced(
    ckpt: Checkpoint,
    prompts: Mapping[str, Any],
    report: Progress,
    counting: tuple[str | Sequence[int], float, bool],
    slower: dict[str, Observable] | None = None,
    packed: bool = True,
    calls: bool = False,
) -> tuple[xr.Dataset, list[Prepared], list[PromptTrace]]:
    """Return what `trace` does, and of each prompt what the network read and what its pass left, states among it.

    Args:
        ckpt: The network.
        prompts: By name.
        report: Called after each prompt.
        counting: Arguments `sinks`, `sink_ratio` and `truncate` of `trace`.
        slower: From `slower_observables`.
        packed: See `trace`.
        calls: Whether what each attention was given and gave is kept, where there is ample memory.
    """
    sinks, ratio, truncate = counting
    given = inputs_of(ckpt, prompts, truncate, report)
    calls = calls and calls_fit(ckpt, given)
    rows = _measured(ckpt, given, sinks, ratio, report, slower=slower, packed=packed, calls=calls)
    attrs = conventions_of_trace(ckpt, prompts, sinks, ratio) | {"passes": passes_in_words(ckpt, packed)}
    return trace_dataset(rows, prompts, attrs | token_conditions(ckpt.tokenizer, given)), given, rows


def shares_over_prompts(
    ckpt: Checkpoint, prompts: Mapping[str, Any], report: Progress, counting: tuple[str | Sequence[int], float, bool]
) -> xr.Dataset:
    """Return what `share_variables` says of the trace of a network, without what `trace` measures of each prompt.

    Args:
        ckpt: The network.
        prompts: By name.
        report: Called after each prompt.
        counting: See `traced`.
    """
    sinks, ratio, truncate = counting
    rows = _measured(ckpt, inputs_of(ckpt, prompts, truncate, report), sinks, ratio, report, cosines_only=True)
    coords = {"layer": np.arange(len(rows[0].token_count)), "site": list(SITES)}
    coords |= {"share": ("share", list(SHARES)), "bound": list(BOUNDS)}
    return described(xr.Dataset(share_variables(rows), coords, {"intervals": _intervals_over(noun_of(prompts))}))


def passes_in_words(ckpt: Checkpoint, packed: bool) -> str:
    """Return whether prompts share a forward pass, as an attribute of a trace."""
    if packed and not ckpt.streamed and ckpt.packing != "none":
        return "prompts may share a forward pass, which changes their states by rounding"
    return "each prompt has a forward pass of its own"


def inputs_of(
    ckpt: Checkpoint, prompts: Mapping[str, Any], truncate: bool, report: Progress = silent
) -> list[Prepared]:
    """Return every prompt as arguments of a forward pass; what is wrong is found before the work begins."""
    named = tracked_if_many(prompts.items(), report, "reading the prompts")
    given = [prepared(ckpt, item, truncate=truncate, argument=name) for name, item in named]
    check_trace_fits(ckpt, {name: len(prompt.tokens or ()) for name, prompt in zip(prompts, given, strict=True)})
    return given


def _measured(
    ckpt: Checkpoint,
    given: Sequence[Prepared],
    sinks: str | Sequence[int],
    ratio: float,
    report: Progress,
    *,
    slower: dict[str, Observable] | None = None,
    packed: bool = True,
    calls: bool = False,
    cosines_only: bool = False,
) -> list[PromptTrace]:
    """Return the measures of each prompt."""
    _check_above(sink_ratio=(ratio, 1.0))

    def in_order_of_passes() -> Iterator[tuple[int, PromptTrace]]:
        for states in ckpt.states_in_packs([prompt.inputs for prompt in given], packed=packed, calls=calls):
            check_states(ckpt, states)
            tokens = [given[place].labels(length) for place, length in zip(states.places, states.lengths, strict=True)]
            traces = measure_pack(states, tokens, sinks, ratio, slower or {}, cosines_only=cosines_only)
            yield from zip(states.places, traces, strict=True)

    measured = in_order_of_passes()
    by_place = dict(next(measured) for _ in tracked(given, report, "following the tokens"))
    return [by_place[place] for place in range(len(given))]


def _check_above(**bounds: tuple[float, float]) -> None:
    for argument, (value, least) in bounds.items():
        if not least < value < float("inf"):
            raise ArgumentValueError(argument, f"a number above {least:g}", value)


def trace_dataset(
    rows: list[PromptTrace],
    prompts: Mapping[str, Any],
    attrs: Mapping[str, str | float],
    estimates: Estimates | None = None,
) -> xr.Dataset:
    """Return the dataset of a trace.

    Args:
        rows: What each prompt left.
        prompts: By name.
        attrs: From `conventions_of_trace`.
        estimates: See `share_variables`.
    """
    grid = ("prompt", "layer", "site", "sinks")
    variables: dict[str, Any] = {
        name: (grid, np.stack([row.observables[name] for row in rows])) for name in rows[0].observables
    }
    for name in rows[0].per_layer:
        variables[name] = (("prompt", "layer"), np.stack([row.per_layer[name] for row in rows]))
    variables["component_change"] = (("prompt", "layer", "component"), np.stack([row.component_change for row in rows]))
    variables["token_count"] = (("prompt", "layer", "sinks"), np.stack([row.token_count for row in rows]))
    longest = max(len(row.tokens) for row in rows)
    padded = [row.tokens + [""] * (longest - len(row.tokens)) for row in rows]
    variables["token_text"] = (("prompt", "token"), np.array(padded))
    variables["update_ratio"] = (("prompt", "layer", "component"), np.stack([row.update_ratio for row in rows]))
    variables |= share_variables(rows, estimates)
    different = [row for row, first in zip(rows, variables["repeats"][1], strict=True) if first < 0]
    variables |= place_variables(different)
    for kind, name in enumerate(("attention_received", "attention_uniform")):
        variables[name] = (("prompt", "layer", "token"), _received(rows, kind, longest))
    variables["attention_accessible"] = ("prompt", np.array([row.received is not None for row in rows]))
    coords = {
        "prompt": list(prompts),
        "text": ("prompt", [in_words(item) for item in prompts.values()]),
        "layer": np.arange(len(rows[0].token_count)),
        "site": list(SITES),
        "sinks": list(SINK_HANDLING),
        "component": list(COMPONENTS),
        "distance": variables.pop("distance"),
        "cosine": variables.pop("cosine"),
        "share": ("share", list(SHARES)),
        "bound": list(BOUNDS),
    }
    if "window" in attrs and isinstance(prompts, NamedPrompts):
        coords["document"] = ("prompt", prompts.documents)
    table = xr.Dataset(variables, coords=coords, attrs=attrs)
    return described(table.assign(_derived(table)))


def _derived(table: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return what is computed of the other variables; a dataset aligns all that it holds with whatever is put in."""
    changes, received = np.abs(table.component_change).sum("layer", skipna=False), table.attention_received
    shares = {
        f"share_{name}{end}": table[f"shares{end}"].sel(share=name, drop=True)
        for name in SHARES
        for end in ("", "_interval")
    }
    return shares | {
        "attention_sink_mass": received.max("token"),
        "attention_sink_position": received.fillna(-1).argmax("token").where(received.notnull().any("token"), -1),
        "component_share": changes / changes.sum("component", skipna=False).where(lambda total: total > 0),
    }


def _received(rows: list[PromptTrace], kind: int, longest: int) -> np.ndarray:
    values = np.full((len(rows), len(rows[0].token_count), longest), np.nan)
    for place, row in enumerate(rows):
        if row.received is not None:
            values[place, 1:, : len(row.tokens)] = row.received[kind].numpy()
    return values


def conventions_of_trace(
    ckpt: Checkpoint, prompts: Mapping[str, Any], sinks: str | Sequence[int], ratio: float
) -> dict[str, str | float]:
    """Return how a trace was made, as the attributes of its dataset."""
    if isinstance(sinks, str):
        handling = (
            f"norm above {ratio:g} × the median after that layer; in at least {percent(PERSISTENT_SHARE)} "
            "of the layers: left out in all of them"
        )
    else:
        handling = f"positions {list(sinks)} left out at every layer"
    any_text, noun = any(isinstance(item, str | Prepared) for item in prompts.values()), noun_of(prompts)
    untokenized = "none: every prompt is an image" if noun == "image" else "none: no input is a text"
    return {
        "model": ckpt.name,
        "layout": json.dumps(ckpt.layout.plain()),
        "prompt_noun": noun,
        "tokenization": ckpt.tokenization if any_text else untokenized,
        "sinks": handling,
        "consensus": "E = 1 − mean |cos| over all tokens with the reference among them (asymptotic (25), from i = 1)",
        "reference_token": "consensus_first: first token that counts; consensus_last: last token that counts",
        "effective_rank": "exp of the entropy of the squared singular values",
        "sites": _sites_in_words(ckpt.architecture, ckpt.layout),
        "component_change": "mean pair cosine over the tokens that are a sink at no layer",
        "intervals": _intervals_over(noun),
        "precision": f"forward pass in {str(ckpt.dtype).removeprefix('torch.')}, observables in float64",
        **(prompts.conventions(ckpt.tokenizer) if isinstance(prompts, NamedPrompts) else {}),
        **notes_of(ckpt),
    }


def _intervals_over(noun: str) -> str:
    return f"{percent(CONFIDENCE)}, jackknife-t over {noun}s"


def _sites_in_words(facts: Architecture, layout: Layout) -> str:
    having = [layer.residual is None or layer.residual.feed_forward is not None for layer in layout.layers]
    parts = "after the attention of each block"
    if all(layer.residual is not None and layer.residual.ahead for layer in layout.layers):
        parts = "after each block"
    elif any(having):
        parts = "after the attention and after the feed-forward part of each block"
        parts += "" if all(having) and all(layer.attends for layer in layout.layers) else " that has one"
    if facts.norm_placement == "post":
        return f"{parts}, {'each ' if ' and ' in parts else ''}with the norm behind it"
    words = f"the residual state {parts}"
    return words + ("; the final norm apart, behind the last of them" if facts.has_final_norm else "")


def check_trace_fits(ckpt: Checkpoint, tokens: Mapping[str, int]) -> None:
    """Refuse prompts whose trace needs more memory than is free.

    Args:
        ckpt: What they go through.
        tokens: Of each prompt, by name.

    Raises:
        MemoryLimitError: One prompt, or the states of all, which are kept until all are compared, are too large.
    """
    states = {name: state_bytes(ckpt, count) for name, count in tokens.items()}
    needed = {name: states[name] + attention_bytes(ckpt, count) for name, count in tokens.items()}
    largest = max(needed, key=lambda name: needed[name])
    check_fits(needed[largest], largest, "shorten the prompt")
    together = sum(states.values()) + needed[largest] - states[largest]
    reason = "they pass each block together" if ckpt.streamed else "the states of all are kept"
    check_fits(together, "texts", f"{reason}: trace them in several calls")


def state_bytes(ckpt: Checkpoint, tokens: int) -> int:
    """Return the bytes of a prompt's states as passed on, and of the cosines that are kept, in float64."""
    facts = ckpt.architecture
    cosines = 0 if are_many(tokens, facts.dim) else 8 * tokens
    return (2 * facts.layers + 1) * tokens * (facts.dim * ckpt.dtype.itemsize + cosines)


def calls_fit(ckpt: Checkpoint, given: Sequence[Prepared]) -> bool:
    """Tell whether there is ample memory to keep every attention of prompts; not where their tokens are not counted."""
    facts, size = ckpt.architecture, max(4, ckpt.dtype.itemsize)
    counts = [math.inf if prompt.tokens is None else len(prompt.tokens) for prompt in given]
    needed = facts.layers * size * sum(count * (4 * facts.dim + facts.heads * count) for count in counts)
    return needed <= _CALLS_SHARE * free_memory()


def attention_bytes(ckpt: Checkpoint, tokens: int, *, watched: bool = False) -> int:
    """Return the bytes of the attention of one layer, at least.

    They are a block of weights where the attention is PyTorch's or uses transformers' interface, and with PyTorch's
    a mask or a bias that the network makes for all pairs of tokens; elsewhere weights of all pairs for every head.

    Args:
        ckpt: What runs.
        tokens: Of the prompt.
        watched: Whether the attention is computed by its plain implementation, as `Checkpoint.watch_attention` does.
    """
    implementation = getattr(ckpt.config, "_attn_implementation", None)
    fused = implementation in ("sdpa", WITH_REMEDY["sdpa"]) and not watched
    attending = ckpt.layout.layers
    in_configuration = getattr(ckpt.config, "num_attention_heads", 0)
    heads = ckpt.architecture.heads or (in_configuration if isinstance(in_configuration, int) else 0)
    weights = heads * tokens**2 * max(4, ckpt.dtype.itemsize)  # 0 where neither layout nor configuration says it
    read = [layer.attention for layer in attending if layer.attention is not None]
    unseen = not fused and any(layer.attends and not layer.shows for layer in attending)
    if unseen or any(attention.explicit for attention in read):
        return _ARRAYS_OF_PAIRS * weights
    if any(attention.relative_bias or attention.token_bias for attention in read):
        return 2 * weights
    windows = fused and any(attention.window is not None and attention.window < tokens for attention in read)
    # PyTorch takes a boolean mask to the format of the weights.
    mask = tokens**2 * (1 + ckpt.dtype.itemsize) if windows else 0
    return min(weights, WHOLE_BYTES) + mask
