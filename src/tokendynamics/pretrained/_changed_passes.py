"""What of a checkpoint's passes can be changed while a block lasts: parts, norms, positions, weights, their end."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_path
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._causality import ignores_later_tokens
from tokendynamics.pretrained._fresh_weights import Drawing, FreshBlocks, of_std
from tokendynamics.pretrained._initialization import laws_of
from tokendynamics.pretrained._language_head import with_language_head
from tokendynamics.pretrained._origin import Origin
from tokendynamics.pretrained._varied_network import VariedNetwork, existing_parts
from tokendynamics.pretrained.architecture import Architecture
from tokendynamics.pretrained.decoder import Decoder, no_head
from tokendynamics.pretrained.discovery._norms import Norm, norm_of
from tokendynamics.pretrained.discovery.layout import BlockLayout, Layout
from tokendynamics.pretrained.feed_forward import feed_forward_problem, feed_forward_weights
from tokendynamics.pretrained.gates import GatedNetwork
from tokendynamics.pretrained.network import Network
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import Pack
from tokendynamics.pretrained.variant import PARTS, Variant, VariantLike


@contextmanager
def gates_in_weights(network: nn.Module, layout: Layout, variant: Variant, dim: int, name: str) -> Iterator[None]:
    """Let weights have a variant's gates in them inside the block; they come back to the last bit.

    Args:
        network: In memory.
        layout: Of it.
        variant: Of gates alone.
        dim: Features of a state.
        name: What a message calls the network.

    Raises:
        ArgumentValueError: Norms or positions taken out, which no weight says; a part that there is not.
        CheckpointError: What writes a part was not found, or does so in several layers that have different gates.
    """
    if not (variant.norms and variant.final_norm and variant.positions):
        came, advice = variant.words, "removed norms and positions are not weights"
        raise ArgumentValueError(expected("variant", "gates on parts", came, advice))
    gates = variant.gates_of(existing_parts(layout, name), name)
    factors: dict[str, float] = {}
    with ExitStack() as stack:
        for number, (block, own) in enumerate(zip(layout.blocks, layout.layers, strict=True)):
            for part, gate in zip(PARTS, gates[number].tolist(), strict=True):
                known = factors.setdefault(f"{block} {part}", gate)
                if known != gate:
                    came = f"{block}, which is several layers of different gates"
                    raise CheckpointError(expected(name, "a block for each layer", came))
                if gate != 1 and layout.blocks.index(block) == number:
                    where = f"{name}: {part} of layer {number + 1}"
                    _scale(network.get_submodule(block), own, part, gate, dim, where, stack)
        yield


def _scale(
    block: nn.Module, layout: BlockLayout, part: str, gate: float, dim: int, where: str, stack: ExitStack
) -> None:
    """Scale what writes a part, until the stack is closed."""
    residual = layout.residual
    if residual is None:
        raise CheckpointError(expected(where, "a block whose parts are found", layout.problem))
    norm = residual.attention_norm if part == "attention" else residual.feed_forward_norm
    if residual.kind == "added" and norm is not None:
        module = block.get_submodule(norm)
        kind = _kind_of(module)
        _replace(module, "weight", lambda old: gate * old + (gate - 1 if kind.gain == "1 + weight" else 0), stack)
        _replace(module, "bias", lambda old: gate * old, stack)
        return
    module = block.get_submodule(_writer(block, layout, part, dim, where))
    for leaf in ("weight", "bias"):
        _replace(module, leaf, lambda old: gate * old, stack)


def _kind_of(module: nn.Module) -> Norm:
    """Return what a norm does, from what it does to random features."""
    weight = module.get_parameter("weight")
    x = torch.randn(3, 5, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        found = norm_of(module, x, module(x))
    if found is None:
        raise CheckpointError(expected(type(module).__name__, "an RMS norm or a LayerNorm", "another one"))
    return found


def _writer(block: nn.Module, layout: BlockLayout, part: str, dim: int, where: str) -> str:
    if part == "attention":
        if layout.attention is None:
            raise CheckpointError(expected(where, "an attention whose output projection is found", layout.problem))
        return layout.attention.output[0]
    why = feed_forward_problem(layout)
    weights = None if why else feed_forward_weights(block, layout, dim)
    writers = [name for name, role in weights.roles.items() if role == "writes"] if weights is not None else []
    if len(writers) != 1:
        came = why or f"{len(writers)} ({', '.join(writers) or 'experts, or another form'})"
        raise CheckpointError(expected(where, "one matrix that writes to the residual stream", came))
    return writers[0].removesuffix(".weight")


def _replace(module: nn.Module, leaf: str, change: Any, stack: ExitStack) -> None:
    parameter = getattr(module, leaf, None)
    if not isinstance(parameter, Tensor):
        return
    former = parameter.data

    def restore() -> None:
        parameter.data = former

    parameter.data = change(former)
    stack.callback(restore)


def write_checkpoint(network: Any, tokenizer: Any | None, folder: Path, name: str) -> None:
    """Write a network of transformers, and its tokenizer, as a checkpoint; whole, or nothing is there.

    Raises:
        ArgumentValueError: Something is there already.
        CheckpointError: A network that is not transformers' own.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentValueError(expected("folder", "a folder that is not there yet, or is empty", folder))
    if not hasattr(network, "save_pretrained"):
        raise CheckpointError(expected(name, "a network that transformers can save", type(network).__name__))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made, silenced():
        place = Path(made) / folder.name
        with refusing(lambda words: CheckpointError(expected(name, "a network that can be saved", words))):
            network.save_pretrained(place)
            if tokenizer is not None and hasattr(tokenizer, "save_pretrained"):
                tokenizer.save_pretrained(place)
        place.replace(folder)


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
