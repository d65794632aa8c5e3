"""Every observable of one prompt at every site, from one forward pass; numbers only, no states are kept.

Finds the tokens that hold most of the norm: attention sinks, and other massive activations.

Attention to a token that carries nothing is a way for a head to do nothing; networks grow such a token to a norm
hundreds of times the others', and every measure that weighs tokens by norm then sees that token alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.diagnosis.tracing.variables import COMPONENTS, DESCRIPTIONS, SITES
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_integer, first_index
from tokendynamics.numerics.errors import shown
from tokendynamics.observables import clusters, hemisphere
from tokendynamics.observables.summary import Gram, Observable, gram_of, read_observables, summarize_gram
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.edits.states import PackStates

SINK_RATIO = 4.0
"""A token is a sink where its norm exceeds this many times the (lower) median of its prompt's tokens there."""

PERSISTENT_SHARE = 0.5
"""A token that is a sink in at least this share of the layers is left out at EVERY layer, so that curves over depth
compare the same tokens; one that is a sink in fewer layers is left out only in those."""


def find_sinks(token_norms: Float[Tensor, "*layer token"], ratio: float = SINK_RATIO) -> Bool[Tensor, "*layer token"]:
    """Tell where a token's norm exceeds `ratio` times the median norm of the tokens of its prompt.

    Raises:
        ArgumentValueError: A ratio that is not above 1.

    >>> import torch
    >>> find_sinks(torch.tensor([900.0, 3.0, 2.0, 2.5])).tolist()
    [True, False, False, False]
    """
    if not 1 < ratio < float("inf"):
        raise ArgumentValueError("sink_ratio", "a number above 1", ratio)
    return token_norms > ratio * token_norms.median(dim=-1, keepdim=True).values


def tokens_to_remove(sinks: Bool[Tensor, "layer token"]) -> Bool[Tensor, "layer token"]:
    """Return the tokens left out at each layer: its own sinks, and at every layer the persistent ones.

    >>> import torch
    >>> tokens_to_remove(torch.tensor([[False, False], [True, False], [True, True]])).tolist()
    [[True, False], [True, False], [True, True]]
    """
    persistent = sinks.double().mean(dim=0) >= PERSISTENT_SHARE
    return sinks | persistent


@dataclass(frozen=True)
class PromptTrace:
    """What one forward pass leaves.

    Attributes:
        observables: Each of shape (layer, site, sinks).
        per_layer: Each of shape (layer,).
        component_change: Shape (layer, component).
        token_count: Shape (layer, sinks).
        tokens: Their text.
        unit_sums: Sums of the unit rows of the tokens that count under "removed", shape (layer, site, dim).
        update_ratio: Median over the tokens that count of |update|/|residual before it|, shape (layer, component).
        states: The states themselves, in parts of shape (some sites, token, dim): what other prompts' mean directions
            are compared with.
        sizes: Their norms, shape (state, token).
        cosines: Their cosines, shape (state, token, token), where they take less room than the states and have digits
            to spare for the states' own format; None elsewhere.
        counted: The tokens that count under "removed", shape (state, token).
        places: Layer and site of each state.
        received: See `PackStates`, shape (kind, layer, token).
        calls: Likewise.
    """

    observables: dict[str, np.ndarray]
    per_layer: dict[str, np.ndarray]
    component_change: np.ndarray
    token_count: np.ndarray
    tokens: list[str]
    unit_sums: np.ndarray
    update_ratio: np.ndarray
    states: tuple[Float[Tensor, "_ token dim"], ...]
    sizes: Float[Tensor, "state token"]
    cosines: Float[Tensor, "state token token"] | None
    counted: Bool[Tensor, "state token"]
    places: Sites
    received: Float[Tensor, "kind layer token"] | None
    calls: tuple[AttentionCall, ...] = ()


def measure_pack(
    states: PackStates,
    tokens: Sequence[list[str]],
    sinks: str | Sequence[int],
    ratio: float,
    slower: dict[str, Observable],
    left_out: Sequence[Bool[Tensor, "layer _"]] | None = None,
    cosines_only: bool = False,
) -> list[PromptTrace]:
    """Measure the states of one forward pass, all of its prompts at once.

    Args:
        states: From `Checkpoint.states_in_packs`.
        tokens: The text of each prompt's tokens.
        sinks: See `tokendynamics.trace`, also for the next.
        ratio: Likewise.
        slower: From `slower_observables`.
        left_out: The tokens of each prompt that "removed" leaves out; None for those that `sinks` finds.
        cosines_only: See `summarize_gram`.

    Raises:
        ArgumentValueError: Sinks that do not exist, or that leave no token; a state that is zero or not finite.
    """
    parts, places = _shown(states)
    gram = gram_of(*(part.flatten(0, 1) for part in parts))
    prompts, longest = states.feed_forward.shape[1:3]
    sizes = gram.size.reshape(-1, prompts, longest)
    token_masks = [
        _tokens_that_count(sizes[:, number, :length], places, sinks, ratio, chosen)
        for number, (length, chosen) in enumerate(zip(states.lengths, left_out or [None] * prompts, strict=True))
    ]
    keep = _masks(sizes.shape, states.lengths, [removed[places.layers] for _, removed in token_masks])
    _refuse_zeros(keep[0] & (sizes == 0), keep[0], places, states.places)
    mask = keep.flatten(1, 2)
    values = _observables(gram, mask, slower, cosines_only)
    sums = gram.sums_of_directions(mask[1])
    traces = []
    for number, (length, (sinks_found, removed)) in enumerate(zip(states.lengths, token_masks, strict=True)):
        pair_cosines = None if gram.cosines is None else gram.cosines[number::prompts, :length, :length]
        alone = Gram(tuple(part[:, number, :length] for part in parts), sizes[:, number, :length], pair_cosines)
        attention, after = (part[:, number, :length].cpu() for part in (states.attention[1:], states.feed_forward))
        traces.append(
            PromptTrace(
                observables={name: places.grid(numbers[..., number::prompts].mT) for name, numbers in values.items()},
                per_layer=_sink_numbers(sinks_found, alone.size[places.of("feed_forward")]),
                component_change=_component_change(_mean_pair_cosine(alone, ~removed.any(dim=0)), places),
                token_count=np.stack((np.full(len(removed), length), (~removed).sum(dim=-1).numpy()), axis=-1),
                tokens=tokens[number],
                unit_sums=places.grid(sums[number::prompts]),
                update_ratio=update_ratios(attention, after, alone.size, ~removed, places),
                states=alone.parts,
                sizes=alone.size,
                cosines=pair_cosines if pair_cosines is not None and _worth_keeping(pair_cosines, parts[0]) else None,
                counted=keep[1, :, number, :length],
                places=places,
                received=None if states.received is None else states.received[:, :, number, :length],
                calls=states.calls_of(number),
            )
        )
    return traces


def _shown(states: PackStates) -> tuple[list[Float[Tensor, "_ prompt token dim"]], Sites]:
    """Return the states that are defined, on the CPU, and where they stand."""
    attention, final = states.attention[1:].cpu(), states.final_norm
    blocks = defined(attention)
    # What stays a view of the pass is not copied.
    attention = attention if len(blocks) == len(attention) else attention[blocks]
    parts = [attention, states.feed_forward.cpu(), *([] if final is None else [final[None].cpu()])]
    places = sites_of(len(states.feed_forward), with_final_norm=final is not None, blocks=blocks)
    return [part for part in parts if len(part)], places


def defined(attention: Float[Tensor, "block ..."]) -> list[int]:
    """Return the blocks, from 0, whose states after the attention are defined; the others have none, or none was read.

    >>> import torch
    >>> defined(torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]]))
    [0]
    """
    return (~attention.isnan().flatten(1).all(dim=1)).nonzero()[:, 0].tolist()


def _masks(
    shape: tuple[int, ...], lengths: Sequence[int], removed: Sequence[Bool[Tensor, "state _"]]
) -> Bool[Tensor, "sinks state prompt token"]:
    """Return the tokens that count with sinks kept and removed; those behind a prompt's own count in neither."""
    keep = torch.zeros(2, *shape, dtype=torch.bool)
    for number, (length, gone) in enumerate(zip(lengths, removed, strict=True)):
        keep[0, :, number, :length] = True
        keep[1, :, number, :length] = ~gone
    return keep


def _worth_keeping(cosines: Float[Tensor, "state token token"], states: Float[Tensor, "... dim"]) -> bool:
    smaller = cosines.itemsize * cosines.shape[-1] <= states.itemsize * states.shape[-1]
    return smaller and states.dtype != cosines.dtype


def _tokens_that_count(
    sizes: Float[Tensor, "state token"],
    places: Sites,
    sinks: str | Sequence[int],
    ratio: float,
    left_out: Bool[Tensor, "layer token"] | None,
) -> tuple[Bool[Tensor, "layer token"], Bool[Tensor, "layer token"]]:
    """Return the sinks of a prompt at each layer, and the tokens that are left out there, if others did not choose."""
    massive = find_sinks(sizes[places.of("feed_forward")], ratio)
    return massive, tokens_left_out(massive, sinks) if left_out is None else left_out


def slower_observables(
    extra: Sequence[str], cluster_angle: float, custom: Mapping[str, Observable] | None = None
) -> dict[str, Observable]:
    """Return the observables that are computed state by state, by name.

    Raises:
        ArgumentValueError: An unknown name, or one's own observable under a name that is taken.
        ArgumentTypeError: One's own is no function.

    >>> import torch
    >>> slower_observables(["clusters"], 0.1)["clusters"](torch.eye(3))
    3.0
    """
    known: dict[str, Observable] = {
        "clusters": lambda x: float(clusters(x, cluster_angle)),
        "hemisphere_margin": lambda x: float(hemisphere(x).margin),
    }
    unknown = [name for name in extra if name not in known]
    if unknown:
        raise ArgumentValueError("extra", f"among {', '.join(known)}", ", ".join(map(repr, unknown)))
    variables = {*known, *DESCRIPTIONS, *_COORDINATES}
    return {name: known[name] for name in extra} | read_observables(
        custom, variables | {f"{name}_interval" for name in variables}
    )


_COORDINATES = (
    "prompt",
    "text",
    "layer",
    "site",
    "sinks",
    "component",
    "share",
    "bound",
    "token",
    "distance",
    "cosine",
    "",
)


def _observables(
    gram: Gram, mask: Bool[Tensor, "mask state token"], slower: Mapping[str, Observable], cosines_only: bool
) -> dict[str, Tensor]:
    values = summarize_gram(gram, mask, cosines_only=cosines_only)
    return values | {name: _one_by_one(gram, mask, measure) for name, measure in slower.items()}


def _one_by_one(gram: Gram, keep: Bool[Tensor, "mask state token"], observable: Observable) -> Tensor:
    states = [state.double() for part in gram.parts for state in part]
    return torch.tensor(
        [[observable(state[kept]) for state, kept in zip(states, mask, strict=True)] for mask in keep],
        dtype=torch.float64,
    )


def _refuse_zeros(
    zero: Bool[Tensor, "state prompt token"], counted: Tensor, places: Sites, prompts: Sequence[int]
) -> None:
    """Refuse tokens without a direction, (state, prompt, token), of those that count.

    Raises:
        ArgumentValueError: It says where, and what to do where all are zero before the first layer.
    """
    first = torch.tensor(places.layers) == 0
    if bool((zero == counted)[first].all()):  # such as a decoder's queries, to which positions are added in its layers
        wanted, advice = (
            "states with a direction",
            "put the first layer outside of the list of the others: their states",
        )
        came = "zeros for every token before the first layer"
        raise ArgumentValueError("states", wanted, came, f"{advice} are then measured from its output on")
    refuse_zero_states(zero, places, prompts)


def refuse_zero_states(zero: Bool[Tensor, "state prompt token"], places: Sites, prompts: Sequence[int]) -> None:
    """Raise for the first state, in the order of the layers, in which a token is marked as zero.

    Args:
        zero: Which tokens are zero.
        places: Layer and site of each state.
        prompts: Which of the prompts that were asked for these are, from 0.

    Raises:
        ArgumentValueError: The token, its prompt (from 1) and the layer are printed.
    """
    for layer, site, state in sorted(zip(places.layers, places.sites, zero, strict=True), key=lambda one: one[:2]):
        if bool(state.any()):
            prompt, token = first_index(state)
            part = ("the attention of ", "", "the final norm after ")[site]
            where = f"after {part}layer {layer}" if layer else "before the first layer"
            came = f"a zero vector at token {token} of prompt {prompts[prompt] + 1}, {where}"
            raise ArgumentValueError("states", "tokens with a direction", came, "leave that token out of the prompt")


@dataclass(frozen=True)
class Sites:
    """Layer and site of each state of a forward pass."""

    layers: list[int]
    sites: list[int]

    def of(self, site: str) -> list[int]:
        """Return which states are at a site, in the order of the layers."""
        return [place for place, number in enumerate(self.sites) if SITES[number] == site]

    def after_attention(self, values: Float[Tensor, "state ..."]) -> Float[Tensor, "block ..."]:
        """Return values after the attention of each block, NaN where that is not defined."""
        places = self.of("attention")
        by_block = values.new_full((max(self.layers), *values.shape[1:]), torch.nan)
        by_block[[self.layers[place] - 1 for place in places]] = values[places]
        return by_block

    def grid(self, values: Tensor) -> np.ndarray:
        """Lay out (state, …) as (layer, site, …), NaN where a site does not exist."""
        grid = np.full((max(self.layers) + 1, len(SITES), *values.shape[1:]), np.nan)
        grid[self.layers, self.sites] = values.numpy()
        return grid


def sites_of(depth: int, *, with_final_norm: bool, blocks: Sequence[int] | None = None) -> Sites:
    """Return the sites of a pass; `blocks` are those, from 0, with a state after the attention, None for all."""
    attending = [block + 1 for block in (range(depth - 1) if blocks is None else blocks)]
    layers = [*attending, *range(depth), *([depth - 1] if with_final_norm else [])]
    return Sites(layers, [0] * len(attending) + [1] * depth + [2] * with_final_norm)


def tokens_left_out(massive: Bool[Tensor, "layer token"], sinks: str | Sequence[int]) -> Bool[Tensor, "layer token"]:
    """Return the tokens that "removed" leaves out at each layer, given the sinks found there.

    Args:
        massive: Sinks by their norm.
        sinks: "detect", or positions to leave out everywhere.

    Raises:
        ArgumentTypeError: Neither of the two.
        ArgumentValueError: Positions that do not exist, or that leave no token.
    """
    if isinstance(sinks, str):
        if sinks != "detect":
            raise ArgumentValueError("sinks", "'detect' or a sequence of positions", repr(sinks))
        return tokens_to_remove(massive)
    if not isinstance(sinks, Sequence) or isinstance(sinks, bytes):
        raise ArgumentTypeError("sinks", "'detect' or a sequence of positions", shown(sinks))
    sinks = [as_integer(position, f"sinks[{place}]") for place, position in enumerate(sinks)]
    removed = torch.zeros_like(massive)
    tokens = massive.shape[-1]
    wrong = [position for position in sinks if not 0 <= position < tokens]
    if wrong:
        raise ArgumentValueError("sinks", f"positions from 0 to {tokens - 1}", wrong)
    if len(set(sinks)) == tokens:
        raise ArgumentValueError("sinks", f"at least one of {tokens} tokens to be left", list(sinks))
    removed[:, list(sinks)] = True
    return removed


def _sink_numbers(
    massive: Bool[Tensor, "layer token"], token_norms: Float[Tensor, "layer token"]
) -> dict[str, np.ndarray]:
    largest = torch.where(massive, token_norms, -torch.inf).max(dim=-1)
    any_sink = massive.any(dim=-1)
    share = torch.where(massive, token_norms, 0.0).sum(dim=-1) / token_norms.sum(dim=-1)
    return {
        "massive_count": massive.sum(dim=-1).numpy(),
        "massive_norm": torch.where(any_sink, largest.values, torch.nan).numpy(),
        "massive_share": share.numpy(),
        "massive_position": torch.where(any_sink, largest.indices, -1).numpy(),
    }


def _component_change(means: Float[Tensor, " state"], places: Sites) -> np.ndarray:
    """Measure the change of the mean pair cosine by each part, (layer, component); rows of layer 0 are zero."""
    change = np.zeros((max(places.layers) + 1, len(COMPONENTS)))
    if bool(means.isnan().all()):
        return np.full_like(change, np.nan)
    attention = places.after_attention(means).numpy()
    feed_forward, final = (means.numpy()[places.of(site)] for site in SITES[1:])
    change[1:, 0] = attention - feed_forward[:-1]
    change[1:, 1] = feed_forward[1:] - attention
    change[-1, 2] = sum(final - feed_forward[-1])
    return change


def update_ratios(
    attention: Float[Tensor, "block token dim"],
    feed_forward: Float[Tensor, "layer token dim"],
    sizes: Float[Tensor, "state token"],
    counted: Bool[Tensor, "layer token"],
    places: Sites,
) -> np.ndarray:
    """Measure how far each part moves a token of the states' own size, (layer, component); NaN for what is no part."""
    before, after = feed_forward[:-1], feed_forward[1:]
    sizes_before = sizes[places.of("feed_forward")][:-1], places.after_attention(sizes)
    ratios = np.full((len(feed_forward), len(COMPONENTS)), np.nan)
    for number, (start, end) in enumerate(((before, attention), (attention, after))):
        ratio = torch.where(counted[1:], _sizes(end - start) / sizes_before[number], torch.nan)
        ratios[1:, number] = ratio.nanmedian(dim=-1).values.numpy()
    return ratios


_SQUARES_FROM, _SQUARES_TO = 1e-15, 1e18
"""Norms whose squares, and those of their parts, float32 holds with all its digits."""


def _sizes(states: Float[Tensor, "layer token dim"]) -> Float[Tensor, "layer token"]:
    """Return norms; in the states' own format, which is faster, where their squares are surely in its range."""
    norms = torch.linalg.vector_norm(states if states.itemsize > 2 else states.float(), dim=-1).double()
    safe = bool(((norms > _SQUARES_FROM) & (norms < _SQUARES_TO)).all())
    return norms if safe else torch.linalg.vector_norm(states, dim=-1, dtype=torch.float64)


def _mean_pair_cosine(gram: Gram, counted: Bool[Tensor, " token"]) -> Float[Tensor, " state"]:
    """Return the mean cosine over pairs of the tokens that count; NaN of fewer than two."""
    count = int(counted.sum())
    if count < 2:
        return torch.full_like(gram.size[:, 0], torch.nan)
    if gram.cosines is not None:
        total = gram.cosines[:, counted][..., counted].sum(dim=(-2, -1))
    else:
        total = gram.sums_of_directions(counted.expand_as(gram.size)).square().sum(dim=-1)
    return (total - count) / (count * (count - 1))
