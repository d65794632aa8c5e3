"""How consensus κ and the loss answer to a gate on each part of each layer, to first order, from one pass and two back.

κ depends on all prompts at once, a forward pass on one. With m_p the mean unit row of prompt p and c_p the mean product
of different tokens of it, κ is a function of these alone, so that

    ∂κ/∂α = Σ_p ⟨∂κ/∂m_p, ∂m_p/∂α⟩ + ∂κ/∂c_p ∂c_p/∂α

and every pass is differentiated by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from tokendynamics.diagnosis.tracing.layer_states import CONSENSUS
from tokendynamics.diagnosis.tracing.prompt_trace import find_sinks, tokens_left_out
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.resources import free_memory
from tokendynamics.observables import relative_kappa
from tokendynamics.observables.directions import unit_rows
from tokendynamics.observables.share_decomposition import gram_of_means, resolution_of, shares_of_sums
from tokendynamics.pretrained.edits.gates import GatedPass, Gates
from tokendynamics.pretrained.network import at_least_single
from tokendynamics.pretrained.not_finite import check_gated_pass
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress, tracked

LOWEST, HIGHEST = 0.05, 0.95
"""κ at the end is differentiated between these; nearer to 0 there is nothing to lower there, and nearer to 1 it is
flat: whatever one gate does is lost in what the others do."""

_RISE = 0.5
"""Share of the rise of κ from which one layer makes most of it."""

_FLAT = 0.1
"""Share of the rise of κ in a layer below which the derivatives by its gates do not show what raises it."""

_GRAPH = 24
"""States per token that a layer keeps for its backward pass: MiniLM 10, SmolLM2 14, GPT-2 20."""

_SCORES = 2**20
"""How many scores are turned into losses at once, so that what this takes stays in the cache."""

_GRAPHS_SHARE = 0.25
"""Share of the free memory that the kept passes may take; the others are run again."""


@dataclass(frozen=True)
class Sensitivities:
    """What gates do to first order.

    Attributes:
        kappa: ∂κ/∂α at the layer κ is read at, by the gates on each part, or on each head; NaN where a layer has no
            such gate.
        loss: ∂loss/∂α in nats for each token; NaN without a loss.
        consensus: κ of the input of the first block and after each.
        where: The layer at which κ is read, from 1 on.
    """

    kappa: Float64[np.ndarray, "layer gate"]
    loss: Float64[np.ndarray, "layer gate"]
    consensus: Float64[np.ndarray, " depth"]
    where: int

    @property
    def rising_layer(self) -> int | None:
        """The layer, from 1 on, in which κ rises most up to where it is read, rises that later layers undo left out.

        None where it rises in none.
        """
        rises = np.diff(lasting(self.consensus[: self.where + 1]))
        return int(rises.argmax()) + 1 if rises.size and rises.max() > 0 else None

    def parts_to_try(self, parts: int, count: int) -> list[tuple[int, int]]:
        """Return layers, from 1 on, and parts that may lower κ most when they are turned down.

        They are those of the largest derivative, and the parts of the layer in which κ rises most: what a part writes
        far beyond the states has no derivative, since a little less of it changes no direction.

        Args:
            parts: Number of parts, whose gates come first.
            count: How many at most; the one of the largest derivative is always among them.
        """
        kappa = self.kappa[:, :parts]
        order = np.argsort(-np.nan_to_num(kappa, nan=-np.inf), axis=None, kind="stable")[:count].tolist()
        places = [(place // parts + 1, place % parts) for place in order]
        chosen = [(layer, part) for layer, part in places if kappa[layer - 1, part] > 0]
        layer = self.rising_layer
        rising = (
            [] if layer is None else [(layer, part) for part in range(parts) if not np.isnan(kappa[layer - 1, part])]
        )
        required = list(dict.fromkeys([*chosen[:1], *rising]))[:count]
        others = [place for place in chosen if place not in required][: count - len(required)]
        kept = [place for place in chosen if place in required or place in others]
        return [*kept, *(place for place in required if place not in kept)]

    @property
    def flat_layer(self) -> int | None:
        """The layer, from 1 on, that makes at least half of κ although the derivatives by its gates are near 0.

        None where derivatives show what raises κ, or no layer makes so much of it.
        """
        layer = self.rising_layer
        if layer is None:
            return None
        rise = float(self.consensus[layer] - self.consensus[layer - 1])
        whole = float(self.consensus[self.where] - self.consensus[0])
        seen = float(np.nansum(np.abs(self.kappa[layer - 1])))
        return layer if rise >= max(_RISE * whole, LOWEST) and seen < _FLAT * rise else None


def lasting(consensus: Float64[np.ndarray, " depth"]) -> Float64[np.ndarray, " depth"]:
    """Return what of κ at each depth is left at every later depth: its lowest value from there on.

    Args:
        consensus: κ of the input of the first block and after each, up to where it is read; NaN does not count.

    >>> lasting(np.array([0.0, 0.9, 0.1, np.nan, 0.3])).tolist()
    [0.0, 0.1, 0.1, 0.3, 0.3]
    """
    values = np.asarray(consensus, dtype=float)
    lowest = np.minimum.accumulate(np.where(np.isnan(values), np.inf, values)[::-1])[::-1]
    return np.where(np.isfinite(lowest), lowest, 0.0)


@dataclass(frozen=True)
class _Sweep:
    """One pass: which tokens count, what its prompts leave at each depth, and its graph where it is kept."""

    pack: Pack
    counts: Bool[Tensor, "depth prompt token"]
    means: Float64[Tensor, "prompt depth dim"]
    within: Float64[Tensor, "prompt depth"]
    loss_gradient: Tensor | None
    states: tuple[Tensor, ...] | None


def sensitivities(
    gated: Gates,
    packs: Sequence[Pack],
    ratio: float,
    report: Progress,
    where: int | None = None,
    sinks: str | Sequence[int] = "detect",
) -> Sensitivities:
    """Differentiate κ and the loss by every gate.

    Args:
        gated: The network with its gates, on parts or on heads.
        packs: What goes through it; at least two prompts in all.
        ratio: See `tokendynamics.trace`, `sink_ratio`.
        report: Told how far the work is.
        where: The layer to read κ at; None for the end, or where κ is flat there the worst layer.
        sinks: See `tokendynamics.trace`.

    Raises:
        ArgumentValueError: A state that is zero, or no consensus at any layer.
        CheckpointError: The network does not run, has no derivatives, or gives a state that is not finite.
    """
    try:
        return _differentiated(gated, packs, ratio, report, where, sinks)
    except _WrittenIntoError:
        with _copies_kept(gated):
            return _differentiated(gated, packs, ratio, report, where, sinks)


def _copies_kept(gated: Gates) -> AbstractContextManager[object]:
    """Let the backward pass use copies of what the network gives, into which it may then write; weights are not copied.

    PyTorch's `allow_mutation_on_saved_tensors` copies on writing, but takes a tensor for an earlier one at its address.
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in gated.parameters()}

    def copied(tensor: Tensor) -> Tensor:
        return tensor if tensor.untyped_storage().data_ptr() in weights else tensor.detach().clone()

    return torch.autograd.graph.saved_tensors_hooks(copied, lambda tensor: tensor)


def _differentiated(
    gated: Gates, packs: Sequence[Pack], ratio: float, report: Progress, where: int | None, sinks: str | Sequence[int]
) -> Sensitivities:
    gates = torch.ones(gated.exists.shape, dtype=torch.float64, requires_grad=True)
    prompts = sum(len(pack.places) for pack in packs)
    room = _GRAPHS_SHARE * free_memory()
    sweeps = []
    with torch.inference_mode(False), torch.enable_grad():
        for pack in tracked(packs, report, "following gradients"):
            sweeps.append(_sweep(gated, pack, gates, (ratio, sinks), prompts, room))
            room -= 0 if sweeps[-1].states is None else _bytes_of(sweeps[-1].states)
        dtype = gated.dtype
        means, within = (torch.cat([getattr(sweep, name) for sweep in sweeps]) for name in ("means", "within"))
        consensus = kappa_of(means, within, dtype)
        where = reading_layer(consensus) if where is None else where
        kappa_gradient = _kappa_gradient(gated, gates, sweeps, where, means[:, where], within[:, where])
    losses = [sweep.loss_gradient for sweep in sweeps if sweep.loss_gradient is not None]
    loss = torch.stack(losses).sum(dim=0) if len(losses) == len(sweeps) else torch.full_like(kappa_gradient, torch.nan)
    kappa, loss = (torch.where(gated.exists, gradient, torch.nan).numpy() for gradient in (kappa_gradient, loss))
    return Sensitivities(kappa, loss, consensus.numpy(), where)


def reading_layer(consensus: Float64[Tensor, " depth"]) -> int:
    """Return the layer at which κ is read: the last, or where κ is flat there the one of the largest κ'.

    Raises:
        ArgumentValueError: κ is nowhere defined.

    >>> reading_layer(torch.tensor([0.0, 0.9, 0.3]).double()), reading_layer(torch.tensor([0.0, 0.9, 0.01]).double())
    (2, 1)
    """
    if LOWEST <= float(consensus[-1]) <= HIGHEST:
        return len(consensus) - 1
    relative = relative_kappa(consensus, consensus[:1].expand_as(consensus))[1:]
    if bool(relative.isnan().all()):
        wanted = "tokens that point in more than one direction"
        raise ArgumentValueError("texts", wanted, "one direction of all tokens at every layer, or no κ")
    return 1 + int(torch.where(relative.isnan(), -torch.inf, relative).argmax())


def layer_of_heads(consensus: Float64[np.ndarray, " depth"], where: int) -> int:
    """Return the layer at which κ is read for heads: a consensus on the way that later layers undo, else `where`.

    Args:
        consensus: κ of the input of the first block and after each.
        where: The layer at which κ is read for parts.

    >>> layer_of_heads(np.array([0.0, 0.9, 0.3]), 2), layer_of_heads(np.array([0.0, 0.5, 0.3]), 2)
    (1, 2)
    """
    known = torch.as_tensor(consensus)
    relative = relative_kappa(known, known[:1].expand_as(known)).nan_to_num(nan=-torch.inf)
    highest = 1 + int(relative[1:].argmax())
    return highest if float(relative[highest]) >= CONSENSUS > float(relative[where]) else where


def kappa_of(
    means: Float64[Tensor, "prompt ... dim"], within: Float64[Tensor, "prompt ..."], dtype: torch.dtype
) -> Float64[Tensor, "*site"]:
    """Return κ from what `sums_of` leaves of each prompt; differentiable.

    Args:
        means: Mean unit rows.
        within: Mean products of different tokens.
        dtype: Of the network, whose rounding is the resolution.
    """
    return shares_of_sums(within, gram_of_means(means), resolution_of(dtype)).kappa


def tokens_that_count(
    states: Sequence[Float[Tensor, "prompt token dim"]],
    lengths: Sequence[int],
    ratio: float,
    sinks: str | Sequence[int] = "detect",
) -> Bool[Tensor, "depth prompt token"]:
    """Return the tokens that count at each depth: those of a prompt without what `trace` leaves out.

    Raises:
        ArgumentTypeError, ArgumentValueError: Sinks that `trace` refuses.
    """
    sizes = torch.stack([torch.linalg.vector_norm(state.detach().double(), dim=-1).cpu() for state in states])
    counts = torch.zeros(sizes.shape, dtype=torch.bool)
    for number, length in enumerate(lengths):
        counts[:, number, :length] = ~tokens_left_out(find_sinks(sizes[:, number, :length], ratio), sinks)
    return counts


def sums_of(
    state: Float[Tensor, "prompt token dim"], counts: Bool[Tensor, "prompt token"]
) -> tuple[Float64[Tensor, "prompt dim"], Float64[Tensor, " prompt"]]:
    """Return the mean unit row of each prompt, and the mean product of different tokens (NaN where one counts).

    >>> means, within = sums_of(torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]), torch.ones(1, 2, dtype=torch.bool))
    >>> means.tolist(), within.tolist()
    ([[0.5, 0.5]], [0.0])
    """
    there = counts.to(state.device).unsqueeze(-1)
    # Behind the end of a shorter prompt a network may have zeros.
    directions = unit_rows(state.double().masked_fill(~there, 1.0), "states") * there
    total, count = directions.sum(dim=-2).cpu(), counts.sum(dim=-1)
    pairs = count * (count - 1)
    within = (total.square().sum(dim=-1) - count) / pairs.clamp_min(1)
    return total / count.unsqueeze(-1), torch.where(pairs > 0, within, torch.nan)


def next_token_losses(
    logits: Float[Tensor, "prompt token vocabulary"], ids: Int[Tensor, "prompt token"], lengths: Sequence[int]
) -> Float64[Tensor, " prompt"]:
    """Return the mean cross-entropy of the next token in each prompt, in nats; differentiable.

    >>> next_token_losses(torch.zeros(1, 3, 7), torch.tensor([[1, 2, 3]]), [3]).exp().round(decimals=4).tolist()
    [7.0]
    """
    next_ids, rows = ids[:, 1:].to(logits.device), max(1, _SCORES // logits.shape[-1])
    flat = [
        cross_entropy(at_least_single(scores), wanted, reduction="none")
        for of_prompt, ids_of_prompt in zip(logits[:, :-1], next_ids, strict=True)
        for scores, wanted in zip(of_prompt.split(rows), ids_of_prompt.split(rows), strict=True)
    ]
    losses = torch.cat(flat).unflatten(0, next_ids.shape).double().cpu()
    predicted = torch.tensor(lengths).unsqueeze(-1) - 1
    there = torch.arange(losses.shape[-1]) < predicted
    return losses.where(there, 0).sum(dim=-1) / predicted.squeeze(-1)


def losses_of(
    logits: Float[Tensor, "prompt token vocabulary"] | None, pack: Pack, lengths: Sequence[int]
) -> Float64[Tensor, " prompt"] | None:
    """Return the losses of the prompts of a pass, of these many tokens; None where it gave no logits."""
    return None if logits is None or pack.ids is None else next_token_losses(logits, pack.ids, lengths)


def lengths_of(passed: GatedPass, pack: Pack) -> tuple[int, ...]:
    """Return the tokens of each prompt of a pass."""
    return pack.lengths or (passed.states[0].shape[1],) * len(pack.places)


def _sweep(
    gated: Gates, pack: Pack, gates: Tensor, counting: tuple[float, str | Sequence[int]], prompts: int, room: float
) -> _Sweep:
    """Run one pass, and differentiate its part of the loss, a mean over all prompts."""
    passed = gated.run(pack, gates)
    check_gated_pass(gated, passed)
    keep = _bytes_of(passed.states) <= room
    losses, gradient = losses_of(passed.logits, pack, lengths_of(passed, pack)), None
    if losses is not None:
        gradient = _gradient(gated, losses.sum() / prompts, gates, keep=keep)
    counts = tokens_that_count(passed.states, lengths_of(passed, pack), *counting)
    sums = [sums_of(state.detach(), kept) for state, kept in zip(passed.states, counts, strict=True)]
    means, within = (torch.stack(by_layer, dim=1) for by_layer in zip(*sums, strict=True))
    return _Sweep(pack, counts, means, within, gradient, passed.states if keep else None)


class _WrittenIntoError(Exception):
    """The network writes into what its backward pass needs, such as ``x += f(norm(x))``."""


def _gradient(gated: Gates, value: Tensor, gates: Tensor, *, keep: bool) -> Tensor:
    """Differentiate by the gates; a network may contain operations without a derivative."""
    wanted = "a network that has derivatives"
    if not value.requires_grad:
        came = "one whose forward pass runs without gradients (torch.no_grad, torch.inference_mode, detach)"
        raise CheckpointError(gated.name, wanted, came)
    with refusing(lambda words: CheckpointError(gated.name, wanted, words)):
        try:
            (gradient,) = torch.autograd.grad(value, gates, retain_graph=keep)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            pass
        else:
            return gradient
    raise _WrittenIntoError


def _kappa_gradient(
    gated: Gates, gates: Tensor, sweeps: list[_Sweep], where: int, means: Tensor, within: Tensor
) -> Float64[Tensor, "layer gate"]:
    means, within = means.clone().requires_grad_(), within.clone().requires_grad_()
    by_mean, by_within = torch.autograd.grad(kappa_of(means, within, gated.dtype), (means, within))
    total = torch.zeros_like(gates, requires_grad=False)
    start = 0
    for sweep in sweeps:
        end = start + len(sweep.pack.places)
        states = gated.run(sweep.pack, gates).states if sweep.states is None else sweep.states
        own_mean, own_within = sums_of(states[where], sweep.counts[where])
        # A prompt of one token has no c_p, and its derivative is 0.
        linear = (by_mean[start:end] * own_mean).sum() + (by_within[start:end] * own_within).nansum()
        total += _gradient(gated, linear, gates, keep=False)
        start = end
    return total


def _bytes_of(states: Sequence[Tensor]) -> int:
    return _GRAPH * sum(state.numel() * state.element_size() for state in states)
