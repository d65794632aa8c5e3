"""A network made deeper: its blocks run again and again on what they gave."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._fresh_weights import FreshBlocks
from tokendynamics.pretrained._packs import Pack
from tokendynamics.pretrained._scaled_blocks import ScaledBlocks, why_not_scaled
from tokendynamics.pretrained._stack import Stack
from tokendynamics.pretrained._variant import Variant
from tokendynamics.pretrained.discovery._packing import filled_up, filler_of

Weights: TypeAlias = Literal["fixed", "resample", "law"]
FeedBack: TypeAlias = Literal["after_norm", "before_norm"]
PositionsAdded: TypeAlias = Literal["once", "each", "never"]


_SAMPLED = 64
"""Entries of each weight that tell one network from another where a run goes on."""


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


class RepeatedStack(ExitStack):
    """The states of one forward pass's prompts as they go through the blocks, for a ``with`` block.

    Attributes:
        own_lengths: Tokens of each prompt.
        lengths: Those that count from the first pass on: with zero embeddings behind.
        normed: The states after the last pass and the final norm, from the first pass on.
        not_scaled: Why states are not divided by their scale, in words; empty where they are.

    Args:
        ckpt: From `load`.
        pack: Its prompts.
        how: See `PassOptions`.
    """

    def __init__(self, ckpt: Checkpoint, pack: Pack, how: PassOptions) -> None:
        super().__init__()
        self._ckpt, self._how = ckpt, how
        ids = pack.arguments.get("input_ids")
        tokens = 0 if ids is None else int(ids.shape[1])  # an image's are counted when it is embedded
        self.own_lengths = pack.lengths or (tokens,) * len(pack.places)
        self._pack = pack if how.pad_to is None else _padded(ckpt, pack, self.own_lengths, how.pad_to)
        self.lengths = self.own_lengths if how.pad_to is None else (how.pad_to,) * len(self.own_lengths)
        self._fresh: FreshBlocks | None = None
        self._scaled: ScaledBlocks | None = None
        self._number = 0
        self._start = 0
        self.normed: Tensor | None = None

    def __enter__(self) -> RepeatedStack:
        super().__enter__()
        try:
            how, ckpt = self._how, self._ckpt
            network = None
            if how.weights != "fixed":
                self._fresh = self.enter_context(ckpt.fresh(how.weights, how.seed, how.std))
                network = self._fresh.network
            variant = replace(how.variant, positions=False) if how.positions == "never" else how.variant
            table = None
            if how.positions == "each" and ckpt.layout.positions == "learned":
                table = self._table(network)
            self._varied = self.enter_context(ckpt.varied(variant, network))
            self.not_scaled = why_not_scaled(ckpt.layout, variant)
            if not self.not_scaled:
                self._scaled = self.enter_context(ScaledBlocks(self._varied.network, ckpt.layout, len(self.lengths)))
            self._stack = self.enter_context(Stack(self._varied.network, ckpt.layout, self._pack, ckpt.name))
            self._added = table
            self._states = self._stack.embedded()
            if not self.own_lengths[0]:
                self.lengths = self.own_lengths = (self._states.shape[1],) * len(self._states)
            elif self._states.shape[1] != int(self._pack.arguments["input_ids"].shape[1]):
                # The network has tokens of its own beside those of the prompt.
                self._start = self._stack.own_places().start or 0
            if how.pad_to is not None:
                for states, own in zip(self._states, self.own_lengths, strict=True):
                    states[self._start + own :] = 0.0
        except BaseException:
            self.close()
            raise
        return self

    @property
    def drawn_whole(self) -> tuple[str, ...]:
        """Parameters that are drawn as they are although the others are not."""
        return () if self._fresh is None else self._fresh.drawn_whole

    @property
    def states(self) -> Float[Tensor, "prompt token dim"]:
        """The states after the passes so far, as the next one reads them."""
        return self._states

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the passes."""
        return self._states.dtype

    @property
    def log_scale(self) -> Float64[Tensor, " prompt"]:
        """Logarithm of what the states of each prompt are divided by."""
        return torch.zeros(len(self.lengths), dtype=torch.float64) if self._scaled is None else self._scaled.log_scale

    def fingerprint(self) -> str:
        """Return a digest of the tokens as they are embedded and of some entries of every weight."""
        digest = hashlib.sha256(_bytes_of(self._states))
        for parameter in self._varied.network.parameters():
            if not parameter.is_meta:
                digest.update(_bytes_of(parameter.detach().flatten()[:: max(1, parameter.numel() // _SAMPLED)]))
        return digest.hexdigest()

    def restore(
        self, states: Float[Tensor, "prompt token dim"], log_scale: Float64[Tensor, " prompt"], number: int
    ) -> None:
        """Go on from where another run of the same kind stood after so many passes."""
        self._states, self._number = states.to(self._states), number
        if self._scaled is not None:
            self._scaled.log_scale = log_scale

    def prompts(self) -> list[Float[Tensor, "token dim"]]:
        """Return the states of the tokens that count; before the first pass those of the prompts' own tokens."""
        lengths = self.lengths if self._number else self.own_lengths
        return [states[self._start :][:length] for states, length in zip(self._states, lengths, strict=True)]

    def advance(self) -> None:
        """Run the blocks once more.

        Raises:
            CheckpointError: The network does not run on its own output.
        """
        self._number += 1
        if self._fresh is not None:
            self._fresh.begin(self._number)
        states = self._states
        if self._how.positions == "each" and self._number > 1:
            states = self._with_positions(states)
        passed = self._stack.run(states)
        self.normed = passed.normed
        normed = self._how.feed_back == "after_norm"
        self._states = passed.normed if normed else passed.states
        if self._scaled is not None and normed and self._ckpt.layout.final_norm and self._how.variant.final_norm:
            self._scaled.log_scale = torch.zeros_like(self._scaled.log_scale)  # the norm took it away

    def _with_positions(self, states: Tensor) -> Tensor:
        if self._added is not None:
            return states + self._added * torch.exp(-self.log_scale).to(states).reshape(-1, 1, 1)
        if self._ckpt.layout.positions == "absolute":
            return self._stack.embedded_again(states)
        return states  # rotations and biases act in every pass anyway

    def _table(self, network: torch.nn.Module | None) -> Tensor:
        """Return what positions add to the tokens: the embedding with them less the one without."""
        found = []
        for positions in (True, False):
            with (
                self._ckpt.varied(Variant(positions=positions), network) as varied,
                Stack(varied.network, self._ckpt.layout, self._pack, self._ckpt.name) as stack,
            ):
                found.append(stack.embedded())
        return found[0] - found[1]


def _bytes_of(values: Tensor) -> bytes:
    return values.cpu().contiguous().float().numpy().tobytes()


def _padded(ckpt: Checkpoint, pack: Pack, lengths: Sequence[int], tokens: int) -> Pack:
    """Return a pass of so many tokens for each prompt; which ones are behind the prompts' own does not matter."""
    ids = pack.arguments.get("input_ids")
    if ids is None:
        raise ArgumentValueError(expected("pad_to", "None for what is no text", tokens))
    most = ckpt.architecture.context
    if tokens < max(lengths) or (most is not None and tokens > most):
        wanted = f"from {max(lengths)} (the longest prompt) to {'any number of' if most is None else most} tokens"
        raise ArgumentValueError(expected("pad_to", wanted, tokens))
    rows = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    longest = torch.zeros(tokens, dtype=ids.dtype)
    filled = filled_up([*rows, longest], filler_of(ckpt))["input_ids"][:-1]
    return Pack(pack.places, {"input_ids": filled})
