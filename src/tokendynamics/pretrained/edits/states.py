"""The residual state of every token after each part of each block, from one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery._functions import noticing
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import showing
from tokendynamics.pretrained.discovery.layout import Layout, Residual
from tokendynamics.pretrained.edits._pass import OwnTokens, arguments_for, blocks_beside, check_by_token, check_ran
from tokendynamics.pretrained.edits.language_head import logits_of
from tokendynamics.pretrained.forward_arguments import other_rows
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import ids_checked, submodule, without_cache
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.packs import Pack
from tokendynamics.words import plural

FAR = 4
"""Receivers at least this many tokens away count: nearer ones attend to a token for what it says."""

_KINDS = 2
"""Different entries of a mask."""

FEWEST = 8
"""Receivers below which their mean is noise: with fewer, random networks give some token a third of it."""


@dataclass(frozen=True, eq=False)
class _Receivers:
    """What follows from a mask for some receivers.

    Attributes:
        far: From which of them a token receives.
        count: How many these are.
        alike: What they would give it in sum if each attended alike to all that it sees.
        seen: Whether any of them sees a token.
    """

    far: Bool[Tensor, "prompt row token"]
    count: Int[Tensor, "prompt token"]
    alike: Float[Tensor, "prompt token"]
    seen: Bool[Tensor, "prompt token"]


@dataclass
class ReceivedAttention:
    """Takes every attention of a pass, in the order of the layers, and keeps what each token receives.

    Attributes:
        lengths: Tokens of each prompt of the pass; None where all are as long as the pass.
        received: For each attention the mean over heads, and over the tokens at least `FAR` away that see it, of the
            weight that goes to a token, (prompt, token); NaN where fewer than `FEWEST` do.
        uniform: The same if each of them attended alike to all that it sees.
        seen: Whether any token sees a token, in any of these attentions; None before the first.
    """

    lengths: tuple[int, ...] | None
    received: list[Float[Tensor, "prompt token"]] = field(default_factory=list)
    uniform: list[Float[Tensor, "prompt token"]] = field(default_factory=list)
    seen: Bool[Tensor, "prompt token"] | None = None
    _there: Bool[Tensor, "prompt token"] | None = None
    _last: tuple[Tensor | None, _Receivers] | None = None
    _alike: tuple[_Receivers | None, Tensor, Tensor] | None = None

    def __call__(self, call: AttentionCall) -> None:
        """Measure one attention, some receivers at a time."""
        (prompts, _, receivers, _), senders = call.query.shape, call.key.shape[2]
        if receivers != senders:  # towards another sequence: nothing here receives it
            return
        if self._there is None or self._there.shape != (prompts, senders) or self._there.device != call.query.device:
            lengths = torch.tensor(self.lengths or (senders,) * prompts)
            self._there = (torch.arange(senders) < lengths[:, None]).to(call.query.device)
        sums: list[Tensor] = [torch.zeros((), device=call.query.device)] * 3
        receivers_of = None
        for rows, weights, shown in call.by_rows():
            mean = weights.float().mean(dim=1)
            receivers_of = self._receivers(shown, rows, self._there, mean.shape)
            if self.seen is None or self.seen.shape != receivers_of.seen.shape:
                self.seen = receivers_of.seen
            elif self.seen is not receivers_of.seen:  # most layers share their mask
                self.seen = self.seen | receivers_of.seen
            parts = (mean * receivers_of.far).sum(dim=-2), receivers_of.count, receivers_of.alike
            sums = [former + part for former, part in zip(sums, parts, strict=True)]
        total, count, alike = sums
        if self._alike is None or self._alike[0] is not receivers_of:
            count = torch.where(count >= FEWEST, count, torch.nan)
            self._alike = receivers_of, count, (alike / count).cpu()
        self.received.append((total / self._alike[1]).cpu())
        self.uniform.append(self._alike[2])

    def _receivers(
        self, shown: Tensor | None, rows: slice, there: Bool[Tensor, "prompt token"], shape: torch.Size
    ) -> _Receivers:
        if shape[-2] < shape[-1]:
            return _receivers(shown, rows, there, shape)
        # Most layers share their mask, and what follows from it: of a short prompt it is kept.
        if self._last is not None and self._last[1].far.shape == shape:
            known, receivers = self._last
            if shown is None or known is None:
                same = shown is known
            else:
                same = shown is known or (shown.shape == known.shape and torch.equal(shown, known))
            if same:
                return receivers
        self._last = shown, _receivers(shown, rows, there, shape)
        return self._last[1]

    def by_layer(self, attends: Sequence[bool]) -> Float[Tensor, "kind layer prompt token"] | None:
        """Return received and uniform weight of every layer; None where not every layer's attention shows once.

        Args:
            attends: For each layer, whether it has an attention; NaN stands in the others.
        """
        if len(self.received) != sum(attends) or len({received.shape for received in self.received}) != 1:
            return None
        shown = torch.stack([torch.stack(self.received), torch.stack(self.uniform)])
        of_layers = shown.new_full((2, len(attends), *shown.shape[2:]), torch.nan)
        of_layers[:, [layer for layer, attending in enumerate(attends) if attending]] = shown
        return of_layers


def _receivers(shown: Tensor | None, rows: slice, there: Bool[Tensor, "prompt token"], shape: torch.Size) -> _Receivers:
    place = torch.arange(shape[-1], device=there.device)
    seen = torch.ones(shape, dtype=torch.bool)
    if shown is not None:  # what each receiver may see, by any head
        shown = shown[None] if shown.ndim == 3 else shown
        seen = (shown.any(dim=1) if shown.ndim == 4 else shown)[..., : shape[-1]].expand(shape)
    seen = seen.to(there.device) & there[:, rows, None] & there.unsqueeze(-2)
    far = seen & ((place[rows, None] - place).abs() >= FAR)
    alike = seen.sum(dim=-1, keepdim=True).clamp(min=1).reciprocal()
    return _Receivers(far, far.sum(dim=-2), (alike * far).sum(dim=-2), seen.any(dim=-2))


@dataclass(frozen=True)
class SiteStates:
    """States of one prompt's tokens, in the network's dtype.

    Attributes:
        attention: Index l: the state of block l after its attention part (for post-norm blocks after the norm
            behind it). Index 0: NaN, since no attention stands before the first block; NaN also where a block has no
            attention, and where its sum was not found.
        feed_forward: Index 0: the input of the first block (embeddings with positions; after BERT's embedding
            norm). Index l: the output of block l, before the final norm, also for the last block.
        final_norm: The last state after the final norm; None if the architecture has none.
    """

    attention: Float[Tensor, "depth token dim"]
    feed_forward: Float[Tensor, "depth token dim"]
    final_norm: Float[Tensor, "token dim"] | None


@dataclass(frozen=True)
class PackStates:
    """States of the prompts of one pass; behind the end of a shorter one stands its first token again.

    Attributes:
        places: Which of the prompts that were asked for these are.
        lengths: Their tokens.
        attention: See `SiteStates`, also for the next two.
        feed_forward: Likewise.
        final_norm: Likewise.
        received: What attention each token receives, and what it would if each attended alike to all that it sees; see
            `ReceivedAttention`; NaN in layers without attention. None where not every layer's attention shows.
        logits: Of the language head at every place of the pass; None where it did not run, or gave none.
        hidden: Name of the argument that hides tokens from all others, and which those are; None without.
    """

    places: tuple[int, ...]
    lengths: tuple[int, ...]
    attention: Float[Tensor, "depth prompt token dim"]
    feed_forward: Float[Tensor, "depth prompt token dim"]
    final_norm: Float[Tensor, "prompt token dim"] | None
    received: Float[Tensor, "kind layer prompt token"] | None
    logits: Float[Tensor, "prompt place vocabulary"] | None = None
    hidden: tuple[str, Bool[Tensor, "prompt token"]] | None = None

    def without_padding(self) -> PackStates:
        """Return the states without hidden tokens, where those end their prompts; else as they are."""
        if self.hidden is None:
            return self
        counts = (~self.hidden[1]).sum(dim=-1)
        ends = self.hidden[1] == (torch.arange(self.hidden[1].shape[1]) >= counts[:, None])
        if not bool(ends.all() and counts.all()):
            return self
        lengths, sites = tuple(counts.tolist()), (self.attention, self.feed_forward, self.final_norm)
        most = max(lengths)
        attention, feed_forward, final = (None if site is None else site[..., :most, :].clone() for site in sites)
        for number, length in enumerate(lengths):
            for states in (attention, feed_forward, None if final is None else final[None]):
                if states is not None:
                    states[:, number, length:] = states[:, number, :1]
        received = None if self.received is None else self.received[..., :most]
        return replace(
            self,
            lengths=lengths,
            attention=attention,
            feed_forward=feed_forward,
            final_norm=final,
            received=received,
            hidden=None,
        )

    def of(self, number: int) -> SiteStates:
        """Return the states of one of them, by its number in the pass."""
        length = self.lengths[number]
        final = None if self.final_norm is None else self.final_norm[number, :length]
        return SiteStates(self.attention[:, number, :length], self.feed_forward[:, number, :length], final)


def collect_states(
    network: nn.Module,
    layout: Layout,
    pack: Pack,
    whole: nn.Module | None = None,
    vocabulary: int | None = None,
    hidden: bool = False,
) -> PackStates:
    """Run the network once and keep the state of every token at each site.

    The tensors that the blocks hand on are kept as they are and joined after the pass: copying them meanwhile would
    push the weights out of the cache.

    Args:
        network: Ready to run.
        layout: Where its states are.
        pack: What goes through it.
        whole: The network with its language head on, which runs instead; None without.
        vocabulary: Token ids of that head; None to keep no logits.
        hidden: Whether tokens at the end of a prompt stay that a mask hides from all others.
    """
    running = network if whole is None else whole

    def once(pack: Pack) -> PackStates:
        with StateWatch(network, layout) as watch, silenced(), without_cache(running), showing(running):
            return watch.run(running, pack, vocabulary)

    states = once(pack)
    tokens_alone = states if hidden else states.without_padding()
    if tokens_alone is states or tokens_alone.received is None:
        return tokens_alone
    # What is hidden attends to the tokens; which it is shows when the pass has ended.
    received = once(replace(pack, lengths=tokens_alone.lengths)).received
    return replace(tokens_alone, received=None if received is None else received[..., : max(tokens_alone.lengths)])


def run(network: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Run a network once, without gradients and without a cache for later tokens."""
    with silenced(), without_cache(network):
        _run(network, inputs)


def _run(network: nn.Module, inputs: Mapping[str, Any]) -> Any:
    with torch.no_grad(), as_before(network), ids_checked(network, inputs):
        return network(**arguments_for(network, inputs))


def _hidden(
    pack: Pack, seen: Bool[Tensor, "prompt token"] | None, *, by_ids: bool
) -> tuple[str, Bool[Tensor, "prompt token"]] | None:
    """Return the argument that says of each token whether any other sees it, and which tokens none does.

    Args:
        pack: What went through the network.
        seen: Which of its tokens any token sees; None where that does not show.
        by_ids: Whether the network's own mask depends on token ids, one of which may stand for padding.
    """
    if seen is None or bool(seen.all()):
        return None
    hidden, ids = ~seen.cpu(), pack.ids
    if by_ids and ids is not None and ids.shape == hidden.shape:
        lengths = torch.tensor(pack.lengths or (ids.shape[1],) * len(ids))
        filled_up = torch.arange(ids.shape[1]) >= lengths[:, None]
        flags = ids.cpu().masked_fill(filled_up, -1)
        kinds = flags[hidden & ~filled_up].unique()
        if len(kinds) == 1 and torch.equal(flags == kinds, hidden & ~filled_up):
            name = next(name for name, value in pack.arguments.items() if value is ids)
            return f"the network's mask by {name}", hidden | filled_up
    # Behind its end, by how many tokens it has.
    counts = (~hidden).sum(dim=1)
    ends = torch.equal(hidden, torch.arange(hidden.shape[1]) >= counts[:, None])
    for name, value in pack.arguments.items() if pack.lengths is None else ():
        if ends and isinstance(value, Tensor) and torch.equal(value.detach().cpu().flatten().long(), counts):
            return name, hidden
        if isinstance(value, Tensor) and value.numel() == hidden.numel():
            flags, kinds = value.cpu().reshape(hidden.shape), value.cpu().unique()
            if len(kinds) == _KINDS and any(torch.equal(flags == kind, hidden) for kind in kinds):
                return name, hidden
    return None


def _changed_tokens(given: Tensor, read: Tensor) -> int:
    """Return how many tokens of one state differ from those of another one of its shape by more than roundings."""
    same = read.data_ptr() == given.data_ptr() and read.stride() == given.stride()
    if same or read.shape != given.shape or read.device != given.device or read.dtype != given.dtype:
        return 0
    if torch.equal(read, given):
        return 0
    near = torch.finfo(given.dtype).eps ** 0.5 * float(given.abs().nan_to_num().max())
    return int(((read - given).abs() > near).any(dim=-1).sum())


def _joined(states: list[Tensor]) -> Tensor:
    """Join all in one tensor, on the device of the first; the list is emptied, since each state is in memory twice."""
    joined = torch.stack([state.detach().to(states[0].device) for state in states])
    states.clear()
    return joined


class StateWatch(Hooks):
    """Hooks on the blocks and sites of a network; a block that runs several times is hooked once.

    Several may watch one network, each its own pass in its own thread.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__()
        self._network, self._layout = network, layout
        self.attention: list[Tensor] = []
        self.feed_forward: list[Tensor] = []
        self.final: list[Tensor] = []
        self._ran: list[str] = []
        self._changed: tuple[int, int] | None = None
        self._inside = False
        self._x: Tensor | None = None
        self._thread = 0

    def _prepare(self) -> None:
        layout, network = self._layout, self._network
        for name, layer in dict(zip(layout.blocks, layout.layers, strict=True)).items():
            block = submodule(network, name)
            self.before_block(block, layer.sites, self._here(partial(self._enter, name)))
            if layer.residual is not None and layer.attends:
                self._site(block, layer.residual, layer.sites.in_place)
            self.after_block(block, layer.sites, self._here(self._leave))
        for name, module in blocks_beside(network, layout).items():
            self.before(module, self._here(partial(self._note, name)))
        if layout.final_norm is not None:
            self.after(submodule(network, layout.end), self._here(self._finish))

    def watch_here(self) -> None:
        """Keep the states of what the present thread runs."""
        self._thread = get_ident()

    def run(self, network: nn.Module, pack: Pack, vocabulary: int | None = None) -> PackStates:
        """Run the network once in the present thread, and return the states that this pass goes through.

        Args:
            network: The one that is watched, or the one around it with a language head.
            pack: What goes through it.
            vocabulary: Token ids of that head, whose logits are kept; None to keep none.
        """
        self.watch_here()
        attention_seen = ReceivedAttention(pack.lengths)

        def seen(call: AttentionCall) -> None:
            if self._inside or not self._layout.outside:
                attention_seen(call.of_inputs(len(pack.places)))

        with noticing(seen), OwnTokens(self._network, self._layout) as tokens:
            output = _run(network, pack.arguments)
        check_ran(self._ran, self._layout, type(network).__name__)
        places = tokens.places(pack.arguments)
        check_by_token(self.feed_forward[0])
        self._check_handed_on(pack)
        attention = _joined([torch.full_like(self.feed_forward[0], torch.nan), *self.attention])[:, :, places]
        whole = _joined(self.feed_forward)
        feed_forward, tokens_of_pass = whole[:, :, places], whole.shape[1:3]
        final = self.final[0] if self.final else None
        if final is not None:  # the network may leave its own tokens out before the norm
            final = final[:, places if final.shape[1] == whole.shape[2] else slice(None)].clone()
        prompts, longest = feed_forward.shape[1:3]
        if prompts != len(pack.places):
            raise ArgumentValueError(other_rows(pack.arguments, len(pack.places), prompts))
        for number, length in enumerate(pack.lengths or ()):
            for states in (attention, feed_forward, *(() if final is None else (final[None],))):
                states[:, number, length:] = states[:, number, :1]
        lengths = pack.lengths or (longest,) * len(pack.places)
        received = attention_seen.by_layer([layer.attends for layer in self._layout.layers])
        unseen = any(layer.attends and not layer.shows for layer in self._layout.layers)
        if received is not None and received.shape[-2:] != tokens_of_pass:
            received = None  # of groups of the tokens, as of a long text
        if unseen or (places != slice(None) and pack.lengths is None):
            received = None  # it is of other axes than tokens, or what the network put around the prompt attends too
        logits = None if vocabulary is None or pack.ids is None else logits_of(output, pack.ids, vocabulary)
        read = [layer.attention for layer in self._layout.layers if layer.attention is not None]
        hidden = _hidden(pack, attention_seen.seen, by_ids=any(attention.mask_by_ids for attention in read))
        return PackStates(pack.places, lengths, attention, feed_forward, final, received, logits, hidden)

    def _check_handed_on(self, pack: Pack) -> None:
        """Refuse a pass in which a block read other states than the one before it gave, unlike where it was found."""
        if self._changed is None:
            return
        layer, count = self._changed
        wanted = f"an input for which layer {layer} reads the states that layer {layer - 1} gives"
        came = f"one for which the network changes {plural(count, 'token')} in between, as a mask of padding does"
        raise ArgumentValueError(next(iter(pack.arguments), "ids"), wanted, came, "pass the tokens of the prompt alone")

    def _here(self, keep: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Return what keeps the states of this thread's pass as (prompt, token, dim)."""

        def act(states: Tensor) -> None:
            if get_ident() != self._thread:
                return
            if states.ndim < 3:  # some blocks work on the tokens of all prompts in one row
                if self._x is not None and states.numel() != self._x.numel():
                    return  # one token alone, such as a pooled one
                states = states[None] if self._x is None else states.reshape(*self._x.shape[:-1], -1)
            keep(states)

        return act

    def _note(self, name: str, x: Tensor) -> None:
        del x
        self._ran.append(name)

    def _enter(self, name: str, x: Tensor) -> None:
        self._x = x
        self._inside = True
        self._ran.append(name)
        layer = len(self.feed_forward)
        if not layer:
            self.feed_forward.append(x)
        elif self._changed is None and layer <= len(self._layout.layers) and not self._layout.layers[layer - 1].joins:
            changed = _changed_tokens(self.feed_forward[-1], x)
            self._changed = (layer, changed) if changed else None

    def _finish(self, states: Tensor) -> None:
        if not self.final:  # BLIP normalizes its pooled token by the same module after it
            self.final.append(states)

    def _leave(self, y: Tensor) -> None:
        self.feed_forward.append(y)
        self._inside = False
        self.final.clear()
        if len(self.attention) < len(self.feed_forward) - 1:
            self.attention.append(torch.full_like(y, torch.nan))

    def _site(self, block: nn.Module, residual: Residual, in_place: bool) -> None:
        if residual.after_attention is None:
            return
        name, side = residual.after_attention
        module, known = block.get_submodule(name), residual.attention_factor
        if side == "sum" and known is None:
            return  # what is added is not seen
        factor = 1.0 if known is None else known

        def keep(state: Tensor) -> None:
            if len(self.attention) < len(self.feed_forward):
                self.attention.append(state.clone() if in_place else state)

        def add(part: Tensor) -> None:
            if self._x is not None:
                # Of a network on several devices the input may still be on that of the block before.
                keep(self._x.to(part.device) + (part if factor == 1.0 else factor * part))

        if side == "input":
            self.before(module, self._here(keep))
        else:
            self.after(module, self._here(keep if side == "output" else add))
