"""Blocks on other states than those of their own pass: given ones, what they gave themselves, another network's."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._torch_attention import turns_states
from tokendynamics.pretrained.discovery._calls import EndedError, Hooks
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.edits._fresh_weights import FreshBlocks
from tokendynamics.pretrained.edits._pass import OwnTokens, arguments_for, by_prompt, check_by_token, check_one_stream
from tokendynamics.pretrained.edits.scaled_states import ScaledBlocks, why_not_scaled
from tokendynamics.pretrained.edits.states import StateWatch, run
from tokendynamics.pretrained.edits.variant import Variant
from tokendynamics.pretrained.forward_arguments import other_rows
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, quietly, submodule
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.pretrained.packs import Pack, filled_up, filler_of


@dataclass(frozen=True)
class Passed:
    """What one pass through the blocks leaves.

    Attributes:
        states: After the last block, before the final norm.
        normed: After the final norm; the same without one.
    """

    states: Float[Tensor, "prompt token dim"]
    normed: Float[Tensor, "prompt token dim"]


class Stack(Hooks):
    """The blocks and the final norm, for a ``with`` block; masks and rotations are those of the network's own pass.

    Args:
        network: In memory; its modes and hooks are put back after.
        layout: Of it.
        pack: Inputs of as many tokens as the states will have.
        name: What a message calls it.

    Raises:
        CheckpointError: Its blocks hand on several streams of states.
    """

    def __init__(self, network: nn.Module, layout: Layout, pack: Pack, name: str) -> None:
        super().__init__()
        check_one_stream(layout, name)
        self._network, self._layout, self._name = network, layout, name
        self._arguments = arguments_for(network, pack.arguments)
        self._prompts = len(pack.places)
        self._given: Tensor | None = None
        self._seen: list[Tensor] = []
        self._embedding = False
        self._waiting = False

    def _prepare(self) -> None:
        self.enter_all(quietly(self._network), torch.no_grad())
        blocks, layers = self._layout.blocks, self._layout.layers
        self.before_block(submodule(self._network, blocks[0]), layers[0].sites, self._enter)
        self.after_block(submodule(self._network, blocks[-1]), layers[-1].sites, self._leave)
        if self._layout.final_norm is not None:
            self.after(submodule(self._network, self._layout.end), self._finish)

    def embedded(self) -> Float[Tensor, "prompt token dim"]:
        """Return what the first block reads of the inputs, and run no further.

        Raises:
            CheckpointError: The network does not run.
        """
        self._seen, self._embedding = [], True
        try:
            self._run(self._arguments)
        finally:
            self._embedding = False
        return self._by_prompt(self._seen[-1]).clone()

    def own_places(self) -> slice:
        """Return which places of the states are tokens of the inputs; the network runs once, as it is.

        Raises:
            CheckpointError: The network does not run.
        """
        with OwnTokens(self._network, self._layout) as tokens:
            self._run(self._arguments)
        return tokens.places(self._arguments)

    def embedded_again(self, states: Float[Tensor, "prompt token dim"]) -> Float[Tensor, "prompt token dim"]:
        """Return what the first block reads where these states stand for what the network looks up for its tokens.

        Raises:
            CheckpointError: The network does not accept embeddings.
        """
        known = inspect.signature(self._network.forward).parameters
        if "inputs_embeds" not in known or "input_ids" not in self._arguments:
            wanted = "a network that takes inputs_embeds, since a norm stands behind its positions"
            raise CheckpointError(self._name, wanted, "one that does not", "use positions='once'")
        rest = {name: value for name, value in self._arguments.items() if name != "input_ids"}
        former, self._arguments = self._arguments, rest | {"inputs_embeds": states}
        try:
            return self.embedded()
        finally:
            self._arguments = former

    def run(self, states: Float[Tensor, "prompt token dim"]) -> Passed:
        """Run the blocks and the final norm on states.

        Raises:
            CheckpointError: The network does not run.
        """
        self._seen, self._given, self._waiting = [], states, True
        try:
            self._run(self._arguments)
        finally:
            self._given = None
        ends = self._seen if self._layout.final_norm is not None else self._seen * 2
        before, after = (self._by_prompt(end) for end in ends)
        return Passed(before, after)

    def _run(self, arguments: dict[str, Any]) -> None:
        def refusal(words: str) -> CheckpointError:
            return CheckpointError(self._name, "a network whose blocks run on their own output", words)

        with refusing(refusal), suppress(EndedError), as_before(self._network):
            self._network(**copied(arguments))

    def _enter(self, state: Tensor) -> Tensor | None:
        if self._embedding:
            self._seen.append(state)
            raise EndedError
        if self._given is None or not self._waiting:
            return None
        self._waiting = False  # the first block may run again
        return self._given.reshape(state.shape).to(state)

    def _leave(self, states: Tensor) -> None:
        if self._given is not None:
            self._seen = [states]  # a block that runs several times shows each time; the last time is the end

    def _finish(self, states: Tensor) -> None:
        if len(self._seen) == 1:  # BLIP normalizes its pooled token by the same module after all tokens
            self._seen.append(states)

    def _by_prompt(self, state: Tensor) -> Tensor:
        states = by_prompt(state, self._prompts)
        check_by_token(states)
        return states


Weights: TypeAlias = Literal["fixed", "resample", "law"]
FeedBack: TypeAlias = Literal["after_norm", "before_norm"]
PositionsAdded: TypeAlias = Literal["once", "each", "never"]


_Kept = TypeVar("_Kept")

_SAMPLED = 64
"""Entries of each weight that tell one network from another where a run continues."""


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """How the blocks are repeated; every choice that the papers leave open.

    Attributes:
        weights: "fixed": the network's own at every pass; "resample": drawn anew for each; "law": what newly drawn
            ones give, from its law.
        feed_back: What goes into the next pass: the last state after the final norm or before it.
        positions: Whether the table of positions is added to the tokens once, again before each pass, or never.
            Rotations and biases of the logits act in every pass, or never.
        variant: What of the network is changed.
        pad_to: Tokens of every prompt, with zero embeddings behind its own; None for none.
        seed: Of weights that are drawn.
        std: Standard deviation of drawn matrices, with mean zero; None as transformers initialises each.
    """

    weights: Weights = "fixed"
    feed_back: FeedBack = "after_norm"
    positions: PositionsAdded = "once"
    variant: Variant = field(default_factory=Variant)
    pad_to: int | None = None
    seed: int = 0
    std: float | None = None


class _PackStates:
    """The prompts of one forward pass, and how far they have come.

    Attributes:
        pack: As it runs: filled up where zero embeddings stand behind the prompts.
        own_lengths: Tokens of each prompt.
        lengths: Those that count from the first pass on.
        start: How many tokens of the network's own stand in front.
        stack: Runs the blocks on them.
        states: As the next pass reads them.
        log_scale: Logarithm of what they are divided by.
        normed: After the last pass and the final norm.
        added: What positions add before each pass; None where they do not.
    """

    def __init__(self, ckpt: Checkpoint, pack: Pack, pad_to: int | None) -> None:
        tokens = 0 if pack.ids is None else int(pack.ids.shape[1])  # an image's are counted when it is embedded
        self.own_lengths = pack.lengths or (tokens,) * len(pack.places)
        self.pack = pack if pad_to is None else _padded(ckpt, pack, self.own_lengths, pad_to)
        self.lengths = self.own_lengths if pad_to is None else (pad_to,) * len(self.own_lengths)
        self.start = 0
        self.log_scale: Float64[Tensor, " prompt"] = torch.zeros(len(pack.places), dtype=torch.float64)
        self.normed: Tensor | None = None
        self.added: Tensor | None = None

    def embed(self, stack: Stack, padded: bool) -> None:
        """Read what the first block is given; zero behind the prompts' own tokens where they are filled up."""
        self.stack, self.states = stack, stack.embedded()
        if len(self.states) != len(self.pack.places):
            raise ArgumentValueError(other_rows(self.pack.arguments, len(self.pack.places), len(self.states)))
        if not self.own_lengths[0]:
            self.lengths = self.own_lengths = (self.states.shape[1],) * len(self.states)
        elif self.pack.ids is not None and self.states.shape[1] != int(self.pack.ids.shape[1]):
            # The network has tokens of its own beside those of the prompt.
            self.start = stack.own_places().start or 0
        if padded:
            for states, length in zip(self.states, self.own_lengths, strict=True):
                states[self.start + length :] = 0.0

    def counted(self, lengths: Sequence[int]) -> list[Float[Tensor, "token dim"]]:
        """Return the states of the first tokens of each prompt."""
        return [states[self.start :][:length] for states, length in zip(self.states, lengths, strict=True)]


class RepeatedStack(Hooks):
    """The states of prompts as they go through the blocks, for a ``with`` block; everything in the prompts' order.

    Attributes:
        not_scaled: Why states are not divided by their scale, in words; empty where they are.

    Args:
        ckpt: From `load`.
        packs: The prompts, by the forward passes that they share.
        how: See `PassOptions`.

    Raises:
        ArgumentValueError: Weights drawn by law for prompts that do not share a pass: each would have its own.
    """

    def __init__(self, ckpt: Checkpoint, packs: Sequence[Pack], how: PassOptions) -> None:
        super().__init__()
        if how.weights == "law" and len(packs) > 1:
            wanted = "'fixed' or 'resample' for prompts that do not share a forward pass"
            advice = "the law of the weights is drawn for one pass; pass prompts of one length, or one by one"
            raise ArgumentValueError("weights", wanted, "'law'", advice)
        self._ckpt, self._how = ckpt, how
        self._packs = [_PackStates(ckpt, pack, how.pad_to) for pack in packs]
        self._fresh: FreshBlocks | None = None
        self._scaled: ScaledBlocks | None = None
        self._number = 0

    def _prepare(self) -> None:
        how, ckpt, network = self._how, self._ckpt, None
        if how.weights != "fixed":
            self._fresh = self.enter_context(ckpt.fresh(how.weights, how.seed, how.std))
            network = self._fresh.network
        variant = replace(how.variant, positions=False) if how.positions == "never" else how.variant
        if how.positions == "each" and ckpt.layout.positions == "learned":
            for part in self._packs:  # the embedding with positions less the one without
                tables = [self._embedded(part.pack, network, positions) for positions in (True, False)]
                part.added = tables[0] - tables[1]
        self._varied = self.enter_context(ckpt.varied(variant, network))
        self.not_scaled = why_not_scaled(ckpt.layout, variant)
        if not self.not_scaled:
            self._scaled = self.enter_context(ScaledBlocks(self._varied.network, ckpt.layout))
        for part in self._packs:
            stack = Stack(self._varied.network, ckpt.layout, part.pack, ckpt.name)
            part.embed(self.enter_context(stack), how.pad_to is not None)

    def _embedded(self, pack: Pack, network: nn.Module | None, positions: bool) -> Tensor:
        with (
            self._ckpt.varied(Variant(positions=positions), network) as varied,
            Stack(varied.network, self._ckpt.layout, pack, self._ckpt.name) as stack,
        ):
            return stack.embedded()

    @property
    def drawn_whole(self) -> tuple[str, ...]:
        """Parameters that are drawn as they are although the others are not."""
        return () if self._fresh is None else self._fresh.drawn_whole

    @property
    def own_lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return self._in_order([part.own_lengths for part in self._packs])

    @property
    def states(self) -> Float[Tensor, "prompt token dim"]:
        """The states after the passes so far, as the next one reads them; behind the shorter ones zeros."""
        return self._side_by_side([part.states for part in self._packs])

    @property
    def normed(self) -> Float[Tensor, "prompt token dim"] | None:
        """The states after the last pass and the final norm; None before the first pass."""
        by_pack = [part.normed for part in self._packs]
        return self._side_by_side([of_pack for of_pack in by_pack if of_pack is not None]) if self._number else None

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the passes."""
        return self._packs[0].states.dtype

    @property
    def log_scale(self) -> Float64[Tensor, " prompt"]:
        """Logarithm of what the states of each prompt are divided by."""
        return torch.stack(self._in_order([part.log_scale.unbind() for part in self._packs]))

    def fingerprint(self) -> str:
        """Return a digest of the tokens as they are embedded and of some entries of every weight."""
        digest = hashlib.sha256()
        for part in self._packs:
            digest.update(_bytes_of(part.states))
        for parameter in self._varied.network.parameters():
            if not parameter.is_meta:
                digest.update(_bytes_of(parameter.detach().flatten()[:: max(1, parameter.numel() // _SAMPLED)]))
        return digest.hexdigest()

    def restore(
        self, states: Float[Tensor, "prompt token dim"], log_scale: Float64[Tensor, " prompt"], number: int
    ) -> None:
        """Go on from where another run of the same kind stood after a number of passes."""
        self._number = number
        for part in self._packs:
            places, tokens = list(part.pack.places), part.states.shape[1]
            part.states = states[places, :tokens].to(part.states)
            part.log_scale = log_scale[places]

    def prompts(self) -> list[Float[Tensor, "token dim"]]:
        """Return the states of the tokens that count; before the first pass those of the prompts' own tokens."""
        return self._in_order(
            [part.counted(part.lengths if self._number else part.own_lengths) for part in self._packs]
        )

    def advance(self) -> None:
        """Run the blocks once more.

        Raises:
            CheckpointError: The network does not run on its own output.
        """
        self._number += 1
        normed = self._how.feed_back == "after_norm"
        without_scale = (
            normed and self._ckpt.layout.final_norm and self._how.variant.final_norm
        )  # the norm takes it off
        for part in self._packs:
            if self._fresh is not None:
                self._fresh.begin(self._number)  # of the same numbers for every pack
            if self._scaled is not None:
                self._scaled.log_scale = part.log_scale
            again = self._how.positions == "each" and self._number > 1
            passed = part.stack.run(self._with_positions(part) if again else part.states)
            part.normed = passed.normed
            part.states = passed.normed if normed else passed.states
            if self._scaled is not None:
                scale = self._scaled.log_scale
                part.log_scale = torch.zeros_like(scale) if without_scale else scale

    def _with_positions(self, pack: _PackStates) -> Tensor:
        if pack.added is not None:
            return pack.states + pack.added * torch.exp(-pack.log_scale).to(pack.states).reshape(-1, 1, 1)
        if self._ckpt.layout.positions == "absolute":
            return pack.stack.embedded_again(pack.states)
        return pack.states  # rotations and biases act in every pass anyway

    def _in_order(self, by_pack: Sequence[Sequence[_Kept]]) -> list[_Kept]:
        """Return what there is of each prompt, given by packs, in the order of the prompts."""
        by_place = {
            place: kept
            for part, of_pack in zip(self._packs, by_pack, strict=True)
            for place, kept in zip(part.pack.places, of_pack, strict=True)
        }
        return [by_place[place] for place in sorted(by_place)]

    def _side_by_side(self, by_pack: Sequence[Float[Tensor, "_ _ dim"]]) -> Float[Tensor, "prompt token dim"]:
        if len(by_pack) == 1:
            return by_pack[0]
        return torch.nn.utils.rnn.pad_sequence(
            self._in_order([of_pack.unbind() for of_pack in by_pack]), batch_first=True
        )


def _bytes_of(values: Tensor) -> bytes:
    return values.cpu().contiguous().float().numpy().tobytes()


def _padded(ckpt: Checkpoint, pack: Pack, lengths: Sequence[int], tokens: int) -> Pack:
    """Return a pass of one length for each prompt; the tokens behind the prompts' own do not matter."""
    ids = pack.ids
    if ids is None:
        raise ArgumentValueError("pad_to", "None for what is no text", tokens)
    most = ckpt.architecture.context
    if tokens < max(lengths) or (most is not None and tokens > most):
        wanted = f"from {max(lengths)} (the longest prompt) to {'any number of' if most is None else most} tokens"
        raise ArgumentValueError("pad_to", wanted, tokens)
    rows = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    longest = torch.zeros(tokens, dtype=ids.dtype)
    filled = filled_up([*rows, longest], filler_of(ckpt))["input_ids"][:-1]
    return Pack(pack.places, {ckpt.ids_name or "input_ids": filled})


def states_on_inputs_of(
    first: Checkpoint, other: Checkpoint, pack: Pack
) -> tuple[Float[Tensor, "layer prompt token dim"], Float[Tensor, "layer prompt token dim"]] | None:
    """Run the first network, and each block of the other one on what the same block of the first one is given.

    Args:
        first: The network that runs.
        other: Of the same depth and width; its blocks take the arguments that the first one's take.
        pack: What goes through the first one.

    Returns:
        The states after the attention of each block of `other` and after the block, index 0 for block 1; tokens that
        the first network adds by itself are left out, the padding of shorter prompts is not. None where its blocks
        cannot be run so: another number format, device or depth, a network whose blocks are read while they run, or
        blocks that take other arguments.
    """
    if first.streamed or other.streamed or first.architecture.layers != other.architecture.layers:
        return None
    if (first.dtype, first.device) != (other.dtype, other.device):
        return None
    blocks = [
        (submodule(first.model, one), submodule(other.model, two))
        for one, two in dict(zip(first.layout.blocks, other.layout.blocks, strict=True)).items()
    ]
    if any(set(one.modules()) & set(two.modules()) for one, two in blocks):
        return None  # two variants of one network in memory: its modules cannot be both at once
    if turns_states(first.model) != turns_states(other.model):
        return None

    def lent_to(block: nn.Module) -> Any:
        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            del module
            block(*positional, **named)

        return hook

    try:
        with Hooks() as hooks, refusing(lambda words: CheckpointError("models", "blocks that run", words)):
            watch = hooks.enter_context(StateWatch(other.model, other.layout))
            watch.watch_here()
            networks = quietly(first.model), quietly(other.model)
            hooks.enter_all(*networks, first.as_varied(), other.as_varied(), torch.no_grad())
            for block, lent in blocks:
                hooks.callback(block.register_forward_pre_hook(lent_to(lent), with_kwargs=True).remove)
            tokens = hooks.enter_context(OwnTokens(first.model, first.layout))
            run(first.model, pack.arguments)
            places = tokens.places(pack.arguments)
            return torch.stack(watch.attention)[:, :, places], torch.stack(watch.feed_forward[1:])[:, :, places]
    except CheckpointError:
        return None
