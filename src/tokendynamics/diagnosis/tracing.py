"""Where the tokens of real prompts go: every observable after attention, feed-forward part and final norm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from tokendynamics.diagnosis._known_tokens import token_conditions
from tokendynamics.diagnosis._layout_notes import notes_of
from tokendynamics.diagnosis._noun import noun_of
from tokendynamics.diagnosis.prompt_shares import BOUNDS, CONFIDENCE, SHARES, Estimates, share_variables
from tokendynamics.diagnosis.prompt_trace import (
    COMPONENTS,
    PERSISTENT_SHARE,
    SINK_HANDLING,
    SINK_RATIO,
    SITES,
    Observable,
    PromptTrace,
    measure_pack,
    slower_observables,
)
from tokendynamics.diagnosis.trace_memory import check_trace_fits
from tokendynamics.diagnosis.trace_variables import described
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Architecture, Checkpoint
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.forward_arguments import are_token_ids
from tokendynamics.pretrained.inputs import Prepared, images_in, prepared
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.pretrained.not_finite import check_states
from tokendynamics.provenance.progress import Progress, reporting, tracked


@typed_arguments
def trace(
    ckpt: Model,
    texts: Any,
    *,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    extra: Sequence[str] = (),
    cluster_angle: float = 0.5,
    observables: Mapping[str, Callable[[Tensor], float]] | None = None,
    packed: bool = True,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Run real text through the real model and measure the tokens at every site of every layer (`asymptotic` 7).

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: One prompt, several, or several by name. A prompt is a text; token ids; an image (path, PIL image, array;
            a folder is several); or arguments of the forward pass by name, for one input.
        sinks: What "removed" leaves out: "detect" (norm above `sink_ratio`, above 1, times the prompt's median after
            that layer; one in half of the layers is left out in all), or positions, such as ``(0,)``, or ``()``.
        sink_ratio: See `sinks`.
        truncate: Whether a prompt longer than the context is cut; otherwise it is refused.
        extra: Observables that cost more than the forward pass: "clusters", "hemisphere_margin".
        cluster_angle: For "clusters", the angle in radians within which two tokens belong together.
        observables: Custom functions by name, of the states (token, dim) of the tokens that count, float64.
        packed: Whether prompts may share a forward pass: faster, the same to rounding.
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
    >>> table = trace(load("random:distilgpt2"), "a short text")
    >>> table.sizes["layer"], float(table.mean_pair_cosine.sel(site="feed_forward", sinks="kept")[0, 0].round(1))
    (7, 0.0)
    """
    ckpt = as_checkpoint(ckpt)
    _check_above(sink_ratio=(sink_ratio, 1.0), cluster_angle=(cluster_angle, 0.0))
    prompts, slower = named_prompts(texts, ckpt), slower_observables(extra, cluster_angle, observables)
    with reporting(progress) as report:
        given = _inputs_of(ckpt, prompts, truncate)
        found = _measured(ckpt, given, sinks, sink_ratio, slower, packed)
        rows = dict(next(found) for _ in tracked(prompts, report, "following the tokens"))
    attrs = conventions_of_trace(ckpt, prompts, sinks, sink_ratio) | {"passes": _passes_in_words(ckpt, packed)}
    attrs |= token_conditions(ckpt.tokenizer, given)
    attrs |= {"cluster_angle": cluster_angle} if "clusters" in extra else {}
    return _as_dataset([rows[place] for place in range(len(rows))], prompts, attrs)


def _passes_in_words(ckpt: Checkpoint, packed: bool) -> str:
    if packed and not ckpt.streamed and ckpt.packing != "none":
        return "prompts may share a forward pass, which changes their states by rounding"
    return "each prompt has a forward pass of its own"


def _inputs_of(ckpt: Checkpoint, prompts: Mapping[str, Any], truncate: bool) -> list[Prepared]:
    """Return every prompt as arguments of a forward pass; what is wrong is found before the work begins."""
    given = [prepared(ckpt, item, truncate=truncate, argument=name) for name, item in prompts.items()]
    check_trace_fits(ckpt, {name: len(each.tokens or ()) for name, each in zip(prompts, given, strict=True)})
    return given


def _measured(
    ckpt: Checkpoint,
    given: Sequence[Prepared],
    sinks: str | Sequence[int],
    ratio: float,
    slower: dict[str, Observable],
    packed: bool,
) -> Iterator[tuple[int, PromptTrace]]:
    """Yield the measures of each prompt with its number, in the order of the passes."""
    for states in ckpt.states_in_packs([each.inputs for each in given], packed=packed):
        check_states(ckpt, states)
        tokens = [given[place].labels(length) for place, length in zip(states.places, states.lengths, strict=True)]
        yield from zip(states.places, measure_pack(states, tokens, sinks, ratio, slower), strict=True)


def in_words(item: Any) -> str:
    """Return what a prompt is, for people."""
    if isinstance(item, str | Path):
        return item if isinstance(item, str) else item.name
    return "arguments by name" if isinstance(item, Mapping) else f"a {type(item).__name__}"


def _check_above(**bounds: tuple[float, float]) -> None:
    for argument, (value, least) in bounds.items():
        if not least < value < float("inf"):
            raise ArgumentValueError(expected(argument, f"a number above {least:g}", value))


def _as_dataset(
    rows: list[PromptTrace],
    prompts: Mapping[str, Any],
    attrs: Mapping[str, str | float],
    estimates: Estimates | None = None,
) -> xr.Dataset:
    grid = ("prompt", "layer", "site", "sinks")
    variables: dict[str, Any] = {
        name: (grid, np.stack([row.observables[name] for row in rows])) for name in rows[0].observables
    }
    for name in rows[0].per_layer:
        variables[name] = (("prompt", "layer"), np.stack([row.per_layer[name] for row in rows]))
    variables["component_change"] = (
        ("prompt", "layer", "component"),
        np.stack([row.component_change for row in rows]),
    )
    variables["token_count"] = (("prompt", "layer", "sinks"), np.stack([row.token_count for row in rows]))
    longest = max(len(row.tokens) for row in rows)
    padded = [row.tokens + [""] * (longest - len(row.tokens)) for row in rows]
    variables["token_text"] = (("prompt", "token"), np.array(padded))
    variables["update_ratio"] = (("prompt", "layer", "component"), np.stack([row.update_ratio for row in rows]))
    variables |= share_variables(rows, estimates)
    for kind, name in enumerate(("attention_received", "attention_uniform")):
        variables[name] = (("prompt", "layer", "token"), _received(rows, kind, longest))
    coords = {
        "prompt": list(prompts),
        "text": ("prompt", [in_words(item) for item in prompts.values()]),
        "layer": np.arange(len(rows[0].token_count)),
        "site": list(SITES),
        "sinks": list(SINK_HANDLING),
        "component": list(COMPONENTS),
        "share": ("share", list(SHARES)),
        "bound": list(BOUNDS),
    }
    table = xr.Dataset(variables, coords=coords, attrs=attrs)
    moved = np.abs(table.component_change).sum("layer", skipna=False)
    for name in SHARES:
        for end in ("", "_interval"):
            table[f"share_{name}{end}"] = table[f"shares{end}"].sel(share=name, drop=True)
    received = table.attention_received
    table["attention_sink_mass"] = received.max("token")
    table["attention_sink_position"] = received.fillna(-1).argmax("token").where(received.notnull().any("token"), -1)
    table["component_share"] = moved / moved.sum("component", skipna=False).where(lambda total: total > 0)
    return described(table)


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
            f"norm above {ratio:g} x the median after that layer; in at least {PERSISTENT_SHARE:.0%} "
            "of the layers: left out in all of them"
        )
    else:
        handling = f"positions {list(sinks)} left out at every layer"
    any_text, noun = any(isinstance(item, str) for item in prompts.values()), noun_of(prompts)
    untokenized = "none: every prompt is an image" if noun == "image" else "none: no prompt is a text"
    return {
        "model": ckpt.name,
        "layout": json.dumps(ckpt.layout.plain()),
        "prompt_noun": noun,
        "tokenization": ckpt.tokenization if any_text else untokenized,
        "sinks": handling,
        "consensus": "E = 1 - mean |cos| over all tokens with the reference among them (asymptotic (25), from i = 1)",
        "reference_token": "consensus_first: first token that counts; consensus_last: last token that counts",
        "effective_rank": "exp of the entropy of the squared singular values",
        "sites": _sites_in_words(ckpt.architecture, ckpt.layout),
        "component_change": "mean pair cosine over the tokens that are a sink at no layer",
        "intervals": f"{CONFIDENCE:.0%}, jackknife-t over prompts",
        "precision": f"forward pass in {str(ckpt.dtype).removeprefix('torch.')}, observables in float64",
        **notes_of(ckpt),
    }


def _sites_in_words(facts: Architecture, layout: Layout) -> str:
    having = [layer.residual is None or layer.residual.feed_forward is not None for layer in layout.layers]
    parts = "after the attention of each block"
    if any(having):
        parts = "after the attention and after the feed-forward part of each block"
        parts += "" if all(having) and all(layer.attends for layer in layout.layers) else " that has one"
    if facts.norm_placement == "post":
        return f"{parts}, {'each ' if any(having) else ''}with the norm behind it"
    words = f"the residual state {parts}"
    return words + ("; the final norm apart, behind the last of them" if facts.has_final_norm else "")


class NamedPrompts(dict[str, Any]):
    """Prompts by name, as `named_prompts` returns them and takes them again."""


def named_prompts(texts: Any, ckpt: Checkpoint | None = None) -> NamedPrompts:
    """Return several prompts by name; see `prepared` for the kinds.

    Args:
        texts: See `trace`.
        ckpt: What reads them, which tells the arguments of one forward pass from prompts by name; None before there is
            one: then a tensor with two axes in a mapping makes it arguments.

    Raises:
        ArgumentTypeError, ArgumentValueError: None, or names that are no texts.
    """
    if isinstance(texts, NamedPrompts):
        return texts
    if isinstance(texts, Mapping) and not _are_arguments(texts, ckpt):
        named = dict(texts)
    elif isinstance(texts, Path) and texts.is_dir():
        named = {path.name: path for path in images_in(texts)}
    elif isinstance(texts, list | tuple) and not are_token_ids(texts):
        named = {f"prompt {number}": text for number, text in enumerate(texts, start=1)}
    elif texts is None or isinstance(texts, bytes | int | float):
        raise ArgumentTypeError(expected("texts", "a text, several, or several by name", type(texts).__name__))
    else:
        named = {"prompt 1": texts}
    if not named:
        raise ArgumentValueError(expected("texts", "at least one prompt", "none"))
    for name in named:
        if not isinstance(name, str):
            raise ArgumentTypeError(expected("texts", "texts as the names of prompts", shown(name)))
    return NamedPrompts(named)


def _are_arguments(texts: Mapping[Any, Any], ckpt: Checkpoint | None) -> bool:
    if not any(isinstance(each, Tensor | np.ndarray) and each.ndim > 1 for each in texts.values()):
        return False
    return ckpt is None or set(texts) <= ckpt.argument_names
