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
from torch.nn import functional

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery._functions import noticing
from tokendynamics.pretrained.discovery._joined_heads import JoinedHeads
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import showing
from tokendynamics.pretrained.discovery.layout import Layout, Residual
from tokendynamics.pretrained.edits._pass import (
    Marked,
    OwnTokens,
    arguments_for,
    blocks_beside,
    check_by_token,
    check_ran,
    marked_tokens,
)
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
        pairs: Which of them sees which token.
    """

    far: Bool[Tensor, "prompt row token"]
    count: Int[Tensor, "prompt token"]
    alike: Float[Tensor, "prompt token"]
    pairs: Bool[Tensor, "prompt row token"]


@dataclass(eq=False)
class _Seen:
    """Whether tokens that an argument marks are seen in any attention of a pass.

    Attributes:
        marked: The tokens.
        crossed: Whether a token that is not marked sees a marked one.
        at_all: Whether any token does.
        together: Whether a marked one sees another one.
        outward: Whether a marked one sees one that is not.
        past: Of each token that is not marked, whether it sees the last such one before it.
    """

    marked: Marked
    crossed: bool = False
    at_all: bool = False
    together: bool = False
    outward: bool = False
    past: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.bool))

    def add(self, pairs: Bool[Tensor, "prompt row token"], rows: slice) -> None:
        """Add what some receivers of an attention see; no more once a marked token is seen."""
        marks = self.marked.tokens.to(pairs.device)
        inside, receiving = marks[:, None], marks[:, rows, None]
        place = torch.arange(marks.shape[1], device=pairs.device)
        self.crossed = self.crossed or bool((pairs & inside & ~receiving).any())
        if self.crossed:
            return
        self.at_all |= bool((pairs & inside).any())
        self.together |= bool((pairs & inside & receiving & (place[rows, None] != place)).any())
        self.outward |= bool((pairs & ~inside & receiving).any())
        seen = torch.zeros_like(marks)
        seen[:, rows] = pairs.gather(2, self._before(marks)[:, rows, None].clamp(min=0))[..., 0]
        self.past = self.past | seen.cpu()

    @staticmethod
    def _before(marks: Bool[Tensor, "prompt token"]) -> Int[Tensor, "prompt token"]:
        """Return the place of the last token before each one that is not marked; −1 without."""
        places = torch.where(marks, -1, torch.arange(marks.shape[1], device=marks.device))
        return functional.pad(places[:, :-1], (1, 0), value=-1).cummax(dim=1).values

    def hides(self, *, further: bool) -> bool | None:
        """Return whether the argument hides what it marks, as far as the pass shows; None where it does not.

        A causal mask, one of documents and one of a prefix hide the end of a prompt as well: what tells them apart is
        one more marked token between others, which see each other past it.

        Args:
            further: Whether it is the pass in which one more token is marked.
        """
        marks = self.marked.tokens
        behind = ~marks & marks.roll(1, dims=1) & (self._before(marks) >= 0)
        if self.crossed or bool((behind & ~self.past).any()):
            return False
        if not self.at_all or not further:
            return None if self.at_all else True
        apart, (alike, named) = not self.together, (self.marked.alike, self.marked.named)
        shown = bool(behind.any()) if self.marked.between else bool((self.marked.further >= 0).any())
        return shown and ((apart and (alike or named)) or (alike and not self.outward))


@dataclass
class ReceivedAttention:
    """Takes every attention of a pass, in the order of the layers, and keeps what each token receives.

    Attributes:
        lengths: Tokens of each prompt of the pass; None where all are as long as the pass.
        marked: Which tokens arguments tell from others.
        kept: Takes a copy of each; None to keep none.
        received: For each attention the mean over heads, and over the tokens at least `FAR` away that see it, of the
            weight that goes to a token, (prompt, token); NaN where fewer than `FEWEST` do.
        uniform: The same if each of them attended alike to all that it sees.
        seen: Which marked tokens are seen, in any of these attentions; None before the first.
    """

    lengths: tuple[int, ...] | None
    marked: Sequence[Marked] = ()
    kept: list[AttentionCall] | None = None
    received: list[Float[Tensor, "prompt token"]] = field(default_factory=list)
    uniform: list[Float[Tensor, "prompt token"]] = field(default_factory=list)
    seen: list[_Seen] | None = None
    _there: Bool[Tensor, "prompt token"] | None = None
    _last: tuple[Tensor | None, _Receivers] | None = None
    _alike: tuple[_Receivers | None, Tensor, Tensor] | None = None

    def __call__(self, call: AttentionCall) -> None:
        """Measure one attention, some receivers at a time."""
        if self.kept is not None:
            call = call.kept()
            self.kept.append(call)
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
            if self.seen is None:
                self.seen = [_Seen(one) for several in self.marked for one in several.within(senders)]
            self.seen = [one for one in self.seen if one.marked.tokens.shape == (prompts, senders)]
            for one in self.seen:
                one.add(receivers_of.pairs, rows)
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
    return _Receivers(far, far.sum(dim=-2), (alike * far).sum(dim=-2), seen)


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
        hidden: Name of the argument that hides tokens from all others, and which those of the pass are; None without.
        before: Tokens of the network's own that stand before those of a prompt in the pass, and are left out here.
        undecided: What arguments mark and the pass alone does not show to be hidden.
        calls: Each attention, in the order of the layers; empty where they were not asked for, or not every layer's
            shows once and for the tokens of the states.
    """

    places: tuple[int, ...]
    lengths: tuple[int, ...]
    attention: Float[Tensor, "depth prompt token dim"]
    feed_forward: Float[Tensor, "depth prompt token dim"]
    final_norm: Float[Tensor, "prompt token dim"] | None
    received: Float[Tensor, "kind layer prompt token"] | None
    logits: Float[Tensor, "prompt place vocabulary"] | None = None
    hidden: tuple[str, Bool[Tensor, "prompt token"]] | None = None
    before: int = 0
    undecided: tuple[Marked, ...] = ()
    calls: tuple[AttentionCall, ...] = ()

    def without_padding(self) -> PackStates:
        """Return the states without hidden tokens, where those end their prompts; else as they are."""
        if self.hidden is None:
            return self
        counts = (~self.hidden[1]).sum(dim=-1)
        ends = self.hidden[1] == (torch.arange(self.hidden[1].shape[1]) >= counts[:, None])
        if not bool(ends.all() and counts.all()):
            return self
        lengths = tuple((counts - self.before).tolist())
        sites = (self.attention, self.feed_forward, self.final_norm)
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
            calls=(),
        )

    def calls_of(self, number: int) -> tuple[AttentionCall, ...]:
        """Return the attentions of one of them, by its number in the pass, as far as they were kept."""
        return tuple(call.of(number, self.lengths[number]) for call in self.calls)

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
    calls: bool = False,
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
        calls: Whether what each attention was given and gave is kept.
    """
    running = network if whole is None else whole

    def once(pack: Pack, marked: Sequence[Marked] | None = None, calls: bool = False) -> tuple[PackStates, list[_Seen]]:
        with StateWatch(network, layout) as watch, silenced(), without_cache(running), showing(running):
            return watch.run(running, pack, vocabulary, marked, calls), watch.seen

    states, _ = once(pack, calls=calls)
    for marked in states.undecided if states.hidden is None else ():
        _, further = once(replace(pack, arguments=marked.arguments), [marked.extended()])
        if any(seen.hides(further=True) for seen in further):
            states = replace(states, hidden=(marked.name, _with_rest(marked.tokens, pack.lengths, states.before)))
            break
    tokens_alone = states if hidden else states.without_padding()
    if tokens_alone is states or tokens_alone.received is None:
        return tokens_alone
    # What is hidden attends to the tokens; which it is shows when the pass has ended.
    received = once(replace(pack, lengths=tokens_alone.lengths))[0].received
    return replace(tokens_alone, received=None if received is None else received[..., : max(tokens_alone.lengths)])


def run(network: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Run a network once, without gradients and without a cache for later tokens."""
    with silenced(), without_cache(network):
        _run(network, inputs)


def _run(network: nn.Module, inputs: Mapping[str, Any]) -> Any:
    with torch.no_grad(), as_before(network), ids_checked(network, inputs):
        return network(**arguments_for(network, inputs))


def _hidden(
    seen: Sequence[_Seen], lengths: Sequence[int] | None, before: int
) -> tuple[tuple[str, Tensor] | None, tuple[Marked, ...]]:
    """Return what a pass shows to be hidden and by which argument, None without, and what it leaves undecided.

    Of several arguments it is the one that marks the most tokens.
    """
    by_tokens = sorted(seen, key=lambda several: -int(several.marked.tokens.sum()))
    hiding = [several.hides(further=False) for several in by_tokens]
    marked = by_tokens[hiding.index(True)].marked if True in hiding else None
    hidden = None if marked is None else (marked.name, _with_rest(marked.tokens, lengths, before))
    return hidden, tuple(several.marked for several, hides in zip(by_tokens, hiding, strict=True) if hides is None)


def _with_rest(tokens: Bool[Tensor, "prompt token"], lengths: Sequence[int] | None, before: int) -> Tensor:
    """Return the tokens with what stands behind the ends of shorter prompts of a pass."""
    if lengths is None:
        return tokens
    return tokens | (torch.arange(tokens.shape[1]) >= torch.tensor(lengths)[:, None] + before)


def _change(given: Tensor, read: Tensor) -> tuple[int, bool] | None:
    """Return how many tokens of one state differ from those of another one of its shape by more than roundings.

    And whether these are zeros, as a mask of padding leaves them. None where no token differs.
    """
    same = read.data_ptr() == given.data_ptr() and read.stride() == given.stride()
    if same or read.shape != given.shape or read.device != given.device or read.dtype != given.dtype:
        return None
    if torch.equal(read, given):
        return None
    near = torch.finfo(given.dtype).eps ** 0.5 * float(given.abs().nan_to_num().max())
    changed = ((read - given).abs() > near).any(dim=-1)
    return (int(changed.sum()), not bool(read[changed].any())) if bool(changed.any()) else None


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
        self._changed: tuple[str, int, bool] | None = None
        self._inside = False
        self._x: Tensor | None = None
        self._thread = 0
        self.seen: list[_Seen] = []

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
            self.before(submodule(network, layout.end), self._here(self._end))
            self.after(submodule(network, layout.end), self._here(self._finish))

    def watch_here(self) -> None:
        """Keep the states of what the present thread runs."""
        self._thread = get_ident()

    def run(
        self,
        network: nn.Module,
        pack: Pack,
        vocabulary: int | None = None,
        marked: Sequence[Marked] | None = None,
        calls: bool = False,
    ) -> PackStates:
        """Run the network once in the present thread, and return the states that this pass goes through.

        Args:
            network: The one that is watched, or the one around it with a language head.
            pack: What goes through it.
            vocabulary: Token ids of that head, whose logits are kept; None to keep none.
            marked: Tokens of which to note who sees them; None for those that the arguments mark.
            calls: Whether to keep each attention.
        """
        self.watch_here()
        if marked is None:
            marked = marked_tokens(pack, by_ids=self._layout.mask_by_ids)
        attention_seen = ReceivedAttention(pack.lengths, marked, [] if calls else None)
        give = JoinedHeads(attention_seen, self._layout.runs)

        def seen(call: AttentionCall) -> None:
            if self._inside or not self._layout.outside:
                give(call.of_inputs(len(pack.places)))

        with noticing(seen), OwnTokens(self._network, self._layout) as tokens:
            output = _run(network, pack.arguments)
        check_ran(self._ran, self._layout, type(network).__name__)
        places = tokens.places(pack.arguments)
        check_by_token(self.feed_forward[0])
        if self._layout.final_norm is None and tokens.output is not None:
            self._compare("the network's output has", tokens.output, zeros=True)
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
        received, kept = self._attention_of(attention_seen, tokens_of_pass, around=places != slice(None))
        logits = None if vocabulary is None or pack.ids is None else logits_of(output, pack.ids, vocabulary)
        self.seen, before = attention_seen.seen or [], places.start or 0
        hidden, undecided = _hidden(self.seen, pack.lengths, before)
        return PackStates(
            pack.places, lengths, attention, feed_forward, final, received, logits, hidden, before, undecided, kept
        )

    def _attention_of(
        self, seen: ReceivedAttention, shape: Sequence[int], *, around: bool
    ) -> tuple[Tensor | None, tuple[AttentionCall, ...]]:
        """Return what each token of a pass receives, None where that is not known, and the attentions that were kept.

        Args:
            seen: The attentions of the pass.
            shape: Its prompts and tokens.
            around: Whether the network puts tokens of its own around those of a prompt.
        """
        layers = self._layout.layers
        if any(layer.attends and not layer.shows for layer in layers):
            return None, ()  # it is of other axes than tokens
        received, calls = seen.by_layer([layer.attends for layer in layers]), tuple(seen.kept or ())
        if received is not None and (received.shape[-2:] != shape or (around and seen.lengths is None)):
            received = None  # of groups of the tokens, as of a long text, or what is around the prompt attends too
        of_tokens = all(call.query.shape[2] == call.key.shape[2] == shape[1] for call in calls)
        return received, calls if of_tokens and len(calls) == len(self._layout.attending) and not around else ()

    def _check_handed_on(self, pack: Pack) -> None:
        """Refuse a pass that changes states behind a layer, unlike where it was found."""
        if self._changed is None:
            return
        reader, count, zeros = self._changed
        wanted = f"an input for which {reader} gives"
        came, advice = f"one for which the network changes {plural(count, 'token')} in between", "pass another input"
        if zeros:
            came, advice = f"{came}, as a mask of padding does", "pass the tokens of the prompt alone"
        raise ArgumentValueError(next(iter(pack.arguments), "ids"), wanted, came, advice)

    def _compare(self, reader: str, read: Tensor, *, zeros: bool = False) -> None:
        """Note where other states are read than the last layer that ran gave, or `zeros` alone."""
        change = None if self._changed is not None else _change(self.feed_forward[-1], read)
        if change is not None and (change[1] or not zeros):
            self._changed = (f"{reader} the states that layer {len(self.feed_forward) - 1}", *change)

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
        elif layer <= len(self._layout.layers) and not self._layout.layers[layer - 1].joins:
            self._compare(f"layer {layer} reads", x)

    def _end(self, x: Tensor) -> None:
        if not self.final and len(self.feed_forward) > len(self._layout.layers):
            self._compare("the final norm reads", x)

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
        module, known = submodule(block, name), residual.attention_factor
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
