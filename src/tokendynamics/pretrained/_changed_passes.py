"""What of a checkpoint's passes can be changed while a block lasts: parts, norms, positions, weights, their end."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch import nn

from tokendynamics.numerics._arguments import as_path
from tokendynamics.numerics._errors import CheckpointError, expected
from tokendynamics.pretrained._architecture import Architecture
from tokendynamics.pretrained._causality import ignores_later_tokens
from tokendynamics.pretrained._decoder import Decoder, no_head
from tokendynamics.pretrained._fresh_weights import Drawing, FreshBlocks, of_std
from tokendynamics.pretrained._gates import GatedNetwork
from tokendynamics.pretrained._initialization import laws_of
from tokendynamics.pretrained._language_head import with_language_head
from tokendynamics.pretrained._network import Network
from tokendynamics.pretrained._origin import Origin
from tokendynamics.pretrained._packs import Pack
from tokendynamics.pretrained._saved_variant import gates_in_weights, write_checkpoint
from tokendynamics.pretrained._variant import Variant, VariantLike
from tokendynamics.pretrained._varied_network import VariedNetwork
from tokendynamics.pretrained.discovery._layout import Layout

AnyCheckpoint = TypeVar("AnyCheckpoint", bound="ChangedPasses")


class ChangedPasses:
    """The part of a checkpoint that changes its passes; everything is as it was after each ``with`` block.

    Attributes:
        name: What to call it.
        architecture: Its facts.
        layout: Where its parts are.
        variant: Under which its passes run; see `under`.
    """

    name: str
    architecture: Architecture
    layout: Layout
    variant: Variant
    _network: Network
    _origin: Origin

    @property
    def model(self) -> nn.Module:
        """The network, ready to run: of a stored one the base model without an output head, in eval mode.

        Raises:
            CheckpointError: A tensor cannot be read, or holds a NaN or an infinity.
        """
        return self._network.model

    @property
    def whole(self) -> nn.Module:
        """The network with its language head where there is one; see `model`."""
        self._check_in_memory()
        return self.with_head or self.model

    @property
    def streamed(self) -> bool:
        """Whether a forward pass reads each block just before it runs."""
        return self._network.streamed

    def gated(self) -> GatedNetwork:
        """Return the network with a gate on every part of every layer, for a ``with`` block.

        Its passes give logits where no token sees a later one and its language head is there.

        Raises:
            CheckpointError: It is streamed, or the parts of a block were not found.
        """
        self._check_in_memory()
        vocabulary, whole = (self.architecture.vocabulary, self.with_head) if self.causal else (None, None)
        return GatedNetwork(self.model, self.layout, self.name, vocabulary, whole, self.as_varied())

    def varied(self, variant: VariantLike, network: nn.Module | None = None) -> VariedNetwork:
        """Return the network under a variant, for a ``with`` block: every pass inside it is one of the variant.

        After the block the network is as it was to the last bit, also where the block ends in an exception. States and
        attention of this checkpoint (`states`, `watch_attention`, `td.trace`) are those of the variant meanwhile;
        weights (`attention`, `td.audit`) are not.

        Args:
            variant: See `Variant.of`.
            network: Another one of the same layout, which is changed instead.

        Raises:
            ArgumentTypeError, ArgumentValueError: No variant, or a part that there is not.
            CheckpointError: It is streamed, or its layout does not say how the variant is made.

        >>> from tokendynamics.pretrained import load
        >>> checkpoint = load("random:distilgpt2:0")
        >>> with checkpoint.varied({"feed_forward": 0, "layer 2 attention": 0.5}) as varied:
        ...     varied.variant.words
        'feed_forward × 0, layer 2 attention × 0.5'
        """
        if network is None:
            self._check_in_memory()
            network = self.model
        return VariedNetwork(network, self.layout, Variant.of(variant), self.name)

    def under(self: AnyCheckpoint, variant: VariantLike) -> AnyCheckpoint:
        """Return the same checkpoint with every pass under a variant: one more model to trace or to compare.

        Its weights (`attention`, `feed_forward`, `td.audit`) are the network's own.

        Args:
            variant: See `Variant.of`; it takes the place of this checkpoint's own.

        Raises:
            ArgumentTypeError, ArgumentValueError, CheckpointError: See `varied`.

        >>> from tokendynamics.pretrained import load
        >>> load("random:distilgpt2:7").under({"layer 3 attention": 0}).name
        'random:distilgpt2:7, layer 3 attention × 0'
        """
        other = copy.copy(self)
        other.variant = Variant.of(variant)
        with self.varied(other.variant):
            other.name = f"{self._origin.name}, {other.variant.words}"
        return other

    def save(self, folder: str | Path) -> Path:
        """Write the network as an ordinary checkpoint that `from_pretrained` loads, its variant's gates in the weights.

        A gate is on what writes its part to the residual stream: the output projection, or the norm behind it. What is
        written is the network with its language head where there is one, and its tokenizer.

        Args:
            folder: Made; it must not be there yet, or be empty.

        Returns:
            The folder.

        Raises:
            ArgumentValueError: A variant without norms or positions, which no weight says; something in the way.
            CheckpointError: What writes a part was not found, or the network is not transformers' own.
        """
        self._check_in_memory()
        place, dim = as_path(folder, "folder"), self.architecture.dim
        whole = self.whole
        with gates_in_weights(self.model, self.layout, self.variant, dim, self.name):
            write_checkpoint(whole, self._origin.tokenizer, place, self.name)
        return place

    def as_varied(self) -> AbstractContextManager[object]:
        """Return what puts this checkpoint's own variant in force, for a ``with`` block."""
        return nullcontext() if self.variant == Variant() else self.varied(self.variant)

    def decoder(self, pack: Pack) -> Decoder:
        """Return what reads states as the network's language head reads its last ones, for a ``with`` block.

        Args:
            pack: Token ids of as many tokens as the states will have.

        Raises:
            CheckpointError: It is streamed, or has no language head.
        """
        self._check_in_memory()
        whole, vocabulary = self.with_head, self.architecture.vocabulary
        if whole is None or vocabulary is None:
            raise CheckpointError(no_head(self.name))
        return Decoder(whole, self.model, self.layout, pack, vocabulary, self.name)

    def fresh(self, how: Drawing, seed: int, std: float | None = None) -> FreshBlocks:
        """Return the network with blocks whose weights are drawn anew for every pass, as transformers initialises them.

        What stands outside the blocks (embeddings, the final norm) is the checkpoint's own.

        Args:
            how: "resample" draws every matrix, "law" what it gives.
            seed: Of all draws.
            std: Of every matrix of the blocks, with mean zero; None as transformers initialises them.

        Raises:
            CheckpointError: A network of the user's own, whose initial law is not known; with "law" a weight that is
                used more than once in a pass.
        """
        shell = self._network.shell(self.layout.blocks)
        laws = laws_of(shell, self.name)
        if std is not None:
            laws = of_std(laws, {name: tuple(each.shape) for name, each in shell.named_parameters()}, std)
        return FreshBlocks(shell, self.layout.blocks, laws, how, seed, self.name)

    def _check_in_memory(self) -> None:
        if self.streamed:
            advice = "load it where it fits, or with device_map"
            came = "one whose blocks are read while they run"
            raise CheckpointError(expected(self.name, "a network in memory as a whole", came, advice))

    @cached_property
    def causal(self) -> bool:
        """Whether no state depends on a later token: read from the attention, or measured where that is not read."""
        if self.layout.causal or self.architecture.vocabulary is None:
            return self.layout.causal
        if all(layer.attention is not None for layer in self.layout.layers):
            return False
        return ignores_later_tokens(self.model, self.architecture.vocabulary, self.layout.blocks[-1], self.name)

    @cached_property
    def with_head(self) -> nn.Module | None:
        """The network with its language head on; a live one itself, None where a stored one has no head."""
        if self._network.live:
            return self.model
        return with_language_head(self.model, self._network.stored[1].read_beside)
