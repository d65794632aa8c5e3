"""Who attends to whom in a real network: what its own attention weights come to, pass by pass, without keeping them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.diagnosis.tracing.measure import attention_bytes
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for, named_prompts
from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_finite_state, check_states
from tokendynamics.provenance.progress import Progress, reporting, tracked, tracked_if_many

_MEASURES: Mapping[str, tuple[str, ...]] = {
    "received": ("token",),
    "entropy": (),
    "to_self": (),
    "to_previous": (),
    "to_first": (),
    "to_sink": (),
}


@typed_arguments
def attention_seen(
    ckpt: Model, texts: Any, *, patterns: bool = False, truncate: bool = False, progress: bool | Progress = False
) -> xr.Dataset:
    """Measure the attention weights w_ij (receiver i, sender j) of every layer and head on real input.

    Weights are measured as they are computed, by the network's own plain implementation, and let go of; only
    `patterns` keeps them. Long prompts are measured in blocks of receivers, so that memory is linear in the tokens.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: Prompts, as `tokendynamics.trace` takes them.
        patterns: Whether to keep the weights themselves, too: layers × heads × tokens² numbers for each prompt.
        truncate: Whether a prompt longer than the context is cut.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with dims ``prompt``, ``layer`` (counted from 1; NaN where a layer has no attention), ``head``,
        ``token``. (prompt, layer, head, token):
        ``received``, the mean of w_ij over the other tokens i that see token j (NaN where none does). (prompt, layer,
        head): ``entropy``, the mean over i of −Σ_j w_ij ln w_ij, in nats; ``to_self``, the mean of w_ii;
        ``to_previous`` and ``to_first``, the means of w_{i,i−1} and w_{i,0} over all tokens but the first (NaN for a
        single token); ``to_sink``, the mean of 1 − Σ_j w_ij, which a learned sink takes. (prompt, token):
        ``token_text``. With `patterns` ``pattern`` (prompt, layer, head, receiver, sender), NaN beyond shorter prompts.

    Raises:
        ArgumentTypeError, ArgumentValueError: Prompts that this network does not read.
        CheckpointError: Its attention does not show, the weights cannot be read, or its numbers are not finite: the
            layer and the number format are named.
        MemoryLimitError: Patterns larger than the memory; or, of a network that makes them for all pairs of tokens
            itself, the weights of one layer.

    >>> from tokendynamics.pretrained import load
    >>> table = attention_seen(load("random:gpt2-tiny"), "a short text")
    >>> table.received.dims, float(table.to_sink.max()) < 1e-6
    (('prompt', 'layer', 'head', 'token'), True)
    """
    ckpt = checkpoint_for(ckpt, texts)
    # The weights seen in a layer may not be those between its tokens.
    for number in ckpt.layout.attending:
        layer = ckpt.layout.layers[number - 1]
        if not layer.shows:
            wanted = "a network whose attention between the tokens shows in every layer"
            raise CheckpointError(ckpt.name, wanted, f"layer {number}: {layer.problem}")
    with reporting(progress) as report:
        prompts = named_prompts(texts, ckpt, report)
        named = tracked_if_many(prompts.items(), report, "reading the prompts")
        given = {name: prepared(ckpt, item, truncate=truncate, argument=name) for name, item in named}
        _check_fit(ckpt, {name: len(prompt.tokens or ()) for name, prompt in given.items()}, patterns)
        rows = [
            _of_prompt(ckpt, prompt, patterns) for prompt in tracked(given.values(), report, "watching the attention")
        ]
    return _as_dataset(ckpt, rows, list(prompts))


def _check_fit(ckpt: Checkpoint, tokens: Mapping[str, int], patterns: bool) -> None:
    """Refuse prompts whose weights, or the patterns of all of them, are larger than the memory."""
    longest = max(tokens, key=lambda name: tokens[name])
    check_fits(attention_bytes(ckpt, tokens[longest], watched=True), longest, "shorten the prompt")
    if patterns:
        of_pair = 8 * ckpt.architecture.layers * ckpt.architecture.heads
        needed = sum(of_pair * count**2 for count in tokens.values())
        together = 0 if len(tokens) == 1 else len(tokens) * of_pair * tokens[longest] ** 2
        what = f"the patterns of {longest if len(tokens) == 1 else f'{len(tokens)} prompts'}"
        check_fits(needed + together, what, "leave patterns=False, or pass fewer or shorter prompts")


def _of_prompt(ckpt: Checkpoint, given: Prepared, patterns: bool, tokens: int | None = None) -> dict[str, Any]:
    """Return the measures of one prompt, or of its first `tokens` alone: a mask hides the others."""
    facts = ckpt.architecture
    measures: list[dict[str, np.ndarray]] = []
    not_finite: list[int] = []
    whole: list[np.ndarray] = []  # the patterns of all layers, made once the number of tokens is known
    attending = ckpt.layout.attending

    def watch(call: AttentionCall) -> None:
        call = call if tokens is None else call.of(0, tokens)
        if len(measures) < len(attending):
            _check_whole(ckpt, attending[len(measures)], call)
        shape = (call.query.shape[1], call.query.shape[2], call.key.shape[2])
        sums = _Sums(*shape)
        if patterns and (not whole or whole[0].shape[1] < shape[0]):
            larger = np.full((facts.layers, *shape), np.nan)
            if whole and whole[0].shape[2:] == shape[1:]:  # a layer before had fewer heads
                larger[:, : whole[0].shape[1]] = whole[0]
            whole[:] = [larger]
        fits = bool(whole) and whole[0].shape[2:] == shape[1:] and len(measures) < len(attending)
        layer = attending[len(measures)] - 1 if fits else None
        finite = True
        for rows, weights, shown in call.by_rows():
            some = weights[0].double().cpu()
            finite &= bool(some.isfinite().all())
            sums.add(rows.start, some, _seen(some, shown))
            if layer is not None:
                whole[0][layer, : shape[0], rows] = some.numpy()
        if not finite:
            not_finite.append(len(measures) + 1)
        measures.append(sums.measures())

    ckpt.watch_attention(given.inputs, watch)
    if not_finite:
        for states in ckpt.states_in_packs([given.inputs]):  # names the first layer whose states are not finite
            check_states(ckpt, states)
        check_finite_state(ckpt, torch.tensor(torch.nan), f"layer {not_finite[0]}", "attention weights")
    if len(measures) != len(attending):
        came = f"{len(measures)} attentions in {len(attending)} layers"
        raise CheckpointError(ckpt.name, "a network whose attention shows, once a layer", came)
    if tokens is None and (shown := _tokens_shown(ckpt, given)) is not None:
        return _of_prompt(ckpt, given, patterns, shown)
    labels = given.labels(measures[0]["received"].shape[-1])
    counts = {of_layer["received"].shape[-1] for of_layer in measures}
    if len(counts) > 1:
        came = f"{', '.join(map(str, sorted(counts)))} tokens in different layers"
        raise CheckpointError(ckpt.name, "an attention over the same tokens in every layer", came)
    measured = {
        name: _by_layer([of_layer[name] for of_layer in measures], attending, facts.layers) for name in measures[0]
    }
    return measured | {"tokens": labels} | ({"pattern": whole[0]} if whole else {})


def _tokens_shown(ckpt: Checkpoint, given: Prepared) -> int | None:
    """Return how many tokens stand before those that a mask hides behind the end of a prompt; None where it hides none.

    What is hidden attends as well.
    """
    if len(given.inputs) == 1 and not ckpt.layout.mask_by_ids:
        return None
    (states,) = ckpt.states_in_packs([given.inputs], hidden=True)
    check_states(ckpt, states.without_padding())
    return None if states.hidden is None else int((~states.hidden[1]).sum())


def _check_whole(ckpt: Checkpoint, layer: int, call: AttentionCall) -> None:
    """Refuse an attention over groups of the tokens (chunks of a long text), which stand beside inputs or heads."""
    attention, (inputs, heads, tokens, _) = ckpt.layout.layers[layer - 1].attention, call.query.shape
    if inputs > 1 or (attention is not None and heads != attention.heads):
        wanted, came = "an attention over all tokens of a prompt", f"groups of {tokens} tokens in layer {layer}"
        raise CheckpointError(ckpt.name, wanted, came, "pass shorter prompts, or one channel at a time")


def _by_layer(values: list[np.ndarray], attending: list[int], layers: int) -> np.ndarray:
    """Stack values by head of the layers with an attention; NaN in the others, and for heads that a layer has not."""
    heads = max(len(by_head) for by_head in values)
    whole = np.full((layers, heads, *values[0].shape[1:]), np.nan)
    for layer, by_head in zip(attending, values, strict=True):
        whole[layer - 1, : len(by_head)] = by_head
    return whole


def _seen(weights: Float[Tensor, "head row sender"], shown: Tensor | None) -> Bool[Tensor, "row sender"]:
    """Return which senders some receivers may see."""
    if shown is None:
        return torch.ones(weights.shape[-2:], dtype=torch.bool)
    return shown.reshape(-1, *shown.shape[-2:])[0].expand(weights.shape[-2:]).cpu()


def measures(
    weights: Float[Tensor, "head receiver sender"], seen: Tensor | None = None
) -> dict[str, Float[np.ndarray, "*shape"]]:
    """Return the measures of one layer's weights; see `attention_seen`.

    Args:
        weights: Rows sum to 1, or to less where a sink takes the rest.
        seen: Which senders each receiver may see, (receiver, sender); None for all.

    >>> import torch
    >>> summary = measures(torch.tensor([[[1.0, 0.0], [0.25, 0.75]]], dtype=torch.float64))
    >>> summary["received"].tolist(), summary["to_self"].tolist(), summary["to_first"].tolist()
    ([[0.25, 0.0]], [0.875], [0.25])
    """
    heads, receivers, senders = weights.shape
    sums = _Sums(heads, receivers, senders)
    sums.add(0, weights, torch.ones(receivers, senders, dtype=torch.bool) if seen is None else seen)
    return sums.measures()


class _Sums:
    """Sums over the receivers of one layer's weights, added some rows at a time."""

    def __init__(self, heads: int, receivers: int, senders: int) -> None:
        self._receivers = receivers
        self._received = torch.zeros(heads, senders, dtype=torch.float64)
        self._count = torch.zeros(senders, dtype=torch.float64)
        self._sums = {name: torch.zeros(heads, dtype=torch.float64) for name in _MEASURES if name != "received"}

    def add(self, first: int, weights: Float[Tensor, "head row sender"], seen: Bool[Tensor, "row sender"]) -> None:
        """Add the weights of some receivers, of which the first has this number, and what they may see."""
        rows, senders = weights.shape[-2:]
        others = seen & (torch.arange(first, first + rows)[:, None] != torch.arange(senders))
        later = 1 if first == 0 else 0  # in these rows the first token that has one before it
        of_rows = {
            "entropy": torch.special.entr(weights).sum(dim=-1),
            "to_self": weights.diagonal(offset=first, dim1=-2, dim2=-1),
            "to_previous": weights[:, later:].diagonal(offset=first + later - 1, dim1=-2, dim2=-1),
            "to_first": weights[:, later:, 0],
            "to_sink": 1.0 - weights.sum(dim=-1),
        }
        self._received += (weights * others).sum(dim=-2)
        self._count += others.sum(dim=0)
        for name, values in of_rows.items():
            self._sums[name] += values.sum(dim=-1)

    def measures(self) -> dict[str, Float[np.ndarray, "*shape"]]:
        """Return the means."""
        after_first = self._receivers - 1 or torch.nan
        rows = {"to_previous": after_first, "to_first": after_first}
        received = self._received / torch.where(self._count > 0, self._count, torch.nan)
        means = {name: values / rows.get(name, self._receivers) for name, values in self._sums.items()}
        return {name: values.numpy() for name, values in ({"received": received} | means).items()}


def _as_dataset(ckpt: Checkpoint, rows: list[dict[str, Any]], names: list[str]) -> xr.Dataset:
    longest = max(len(row["tokens"]) for row in rows)
    variables: dict[str, Any] = {
        name: (("prompt", "layer", "head", *dims), _stacked(rows, name, (longest,) * len(dims)))
        for name, dims in _MEASURES.items()
    }
    if "pattern" in rows[0]:
        dims = ("prompt", "layer", "head", "receiver", "sender")
        variables["pattern"] = (dims, _stacked(rows, "pattern", (longest, longest)))
    texts = [row["tokens"] + [""] * (longest - len(row["tokens"])) for row in rows]
    variables["token_text"] = (("prompt", "token"), np.array(texts))
    layers, heads = rows[0]["entropy"].shape
    coords = {"prompt": names, "layer": np.arange(1, layers + 1), "head": np.arange(heads)}
    attrs = {
        "model": ckpt.name,
        "layout": json.dumps(ckpt.layout.plain()),
        "received": "mean over the other tokens that see it",
        "entropy": "nats",
        "implementation": "the network's own plain attention",
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _stacked(rows: list[dict[str, Any]], name: str, sizes: tuple[int, ...]) -> np.ndarray:
    """Stack the prompts' arrays, NaN beyond the tokens of a shorter one."""
    if len(rows) == 1:
        return rows[0][name][None]
    whole = np.full((len(rows), *rows[0][name].shape[:2], *sizes), np.nan)
    for place, row in enumerate(rows):
        values = row[name]
        whole[(place, *(slice(size) for size in values.shape))] = values
    return whole
