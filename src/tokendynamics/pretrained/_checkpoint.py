"""A pretrained or untrained network, read lazily: facts first, weights layer by layer, the whole model last."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.numerics.arguments import as_count, as_flag, as_path, check_open
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained._attention_weights import AttentionWeights, LayerTensors, attention_weights, verified
from tokendynamics.pretrained._filling import Network, StreamedNetwork
from tokendynamics.pretrained._remedied_network import columns_of, with_columns
from tokendynamics.pretrained._stored_tensors import check_finite_weights
from tokendynamics.pretrained.architecture import architecture_of, as_layer, as_layers, norm_of_block
from tokendynamics.pretrained.discovery._blocks import ignores_later_tokens, random_ids
from tokendynamics.pretrained.discovery._discover import Discovery
from tokendynamics.pretrained.discovery._joined_heads import JoinedHeads
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import showing, watching
from tokendynamics.pretrained.discovery.layout import LOOKS_AHEAD, TOO_FEW_ROWS, AttentionLayout, Layout
from tokendynamics.pretrained.edits._fresh_weights import Drawing, FreshBlocks, laws_of, of_std
from tokendynamics.pretrained.edits._pass import InsideBlocks
from tokendynamics.pretrained.edits._varied_network import VariedNetwork, gates_in_weights
from tokendynamics.pretrained.edits.gates import GatedNetwork
from tokendynamics.pretrained.edits.language_head import (
    LanguageHead,
    no_head,
    scored_ids,
    scores_last_place,
    scoring_each_place,
    with_language_head,
)
from tokendynamics.pretrained.edits.states import PackStates, SiteStates, StateWatch, collect_states, run
from tokendynamics.pretrained.edits.variant import Variant, VariantLike
from tokendynamics.pretrained.encoding import Encoding, Origin, encoded, no_tokenizer
from tokendynamics.pretrained.feed_forward import (
    FeedForwardWeights,
    feed_forward_problem,
    feed_forward_weights,
    modules_needed,
)
from tokendynamics.pretrained.forward_arguments import argument_names, forward_arguments
from tokendynamics.pretrained.length_dependence import depends_on_length, length_class
from tokendynamics.pretrained.network import evaluating, persistent_buffers, weights_of_evaluation
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import Pack, Packing, fewest_packs, filler_of, packing_of, packs_of
from tokendynamics.provenance.whole import storage_errors


def write_checkpoint(network: Any, tokenizer: Any | None, folder: Path, name: str) -> None:
    """Write a network of transformers, and its tokenizer, as a checkpoint; whole, or nothing is there.

    Raises:
        ArgumentValueError: Something is there already.
        CheckpointError: A network that is not transformers' own.
        StorageError: The disk is full, or nothing can be written there.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or folder.samefile(".")):
        wanted = "a folder that is not there yet, or is empty and not the working directory"
        raise ArgumentValueError("folder", wanted, folder)
    if not hasattr(network, "save_pretrained"):
        raise CheckpointError(name, "a network that transformers can save", type(network).__name__)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made, silenced():
            place = Path(made) / folder.name
            with refusing(lambda words: CheckpointError(name, "a network that can be saved", words)):
                network.save_pretrained(place)
                if tokenizer is not None and hasattr(tokenizer, "save_pretrained"):
                    tokenizer.save_pretrained(place)
            place.replace(folder)


AnyCheckpoint = TypeVar("AnyCheckpoint", bound="Checkpoint")


class Checkpoint:
    """One network; made by `load`.

    Attributes:
        name: What to call it.
        source: File or folder of its weights, None for an untrained family and for a live network.
        architecture: Its facts.
        layout: Where its circuits and states are, as found by running it.
        config: Its transformers configuration; None for a live network without one.
        dtype: Number format of `model`.
        device: Where `model` (but for a `device_map`) and the results of `attention` live.
        random_seed: Seed of untrained weights, None for stored ones.
        notes: How its files were read, where they do not say so themselves: clauses for a record.
        fused_otherwise: Layers, counted from 1, whose states PyTorch's fused path would not give.
        variant: Under which its passes run; see `under`.

    >>> from tokendynamics.pretrained import load
    >>> checkpoint = load("random:gpt2-tiny:7")
    >>> checkpoint.random_seed, checkpoint.architecture.parameters
    (7, 2631216)
    """

    def __init__(self, origin: Origin, network: Network, discovery: Discovery) -> None:
        self.name = origin.name
        self.source = origin.source
        self.random_seed = origin.random_seed
        self.notes = origin.notes
        self.config = network.config
        self.dtype = network.dtype
        self.device = network.device
        self.layout = discovery.layout
        self.architecture = architecture_of(
            network.config, discovery.layout, discovery.dim, network.parameters, network.main_input
        )
        self._origin = origin
        self._network = network
        self._seen = discovery.seen
        self._verified: dict[int, AttentionLayout] = {}
        self._packing: list[Packing] | None = None
        self.variant = Variant()
        self.fused_otherwise: Sequence[int] = ()

    def __repr__(self) -> str:
        facts = self.architecture
        return f"Checkpoint({self.name!r}, {facts.model_type}, {facts.layers} layers, dim {facts.dim})"

    def attention(self, layer: int) -> AttentionWeights:
        """Read the attention tensors of one layer, counted from 1, and nothing else.

        The layer's own attention is run on a short random input first: its factors must give the same back. Values
        keep their stored dtype, half precision becomes float32.

        Raises:
            ArgumentValueError: There is no such layer.
            AttentionFactorsError: The layer's factors are not known, or do not give its attention back.
            CheckpointError: A tensor cannot be read, or holds a NaN or an infinity.
        """
        index = as_layer(layer, self.architecture.layers) - 1
        layout, seen = self.layout.layers[index], self._seen[index]
        where = f"{self.name}: layer {index + 1}"
        if not layout.attends:
            attending = ", ".join(map(str, self.layout.attending))
            message = expected(where, "a layer with an attention", "one without", f"these have one: {attending}")
            raise AttentionFactorsError(message, f"layer {index + 1} has no attention")
        if layout.attention is None or seen is None:
            advice = "only the audit needs its factors; the trace needs the states alone"
            message = expected(where, "an attention whose factors are found", f"none ({layout.problem})", advice)
            raise AttentionFactorsError(message, f"layer {index + 1}: {layout.problem}")
        block = self._network.block(self.layout.blocks[index], (layout.attention.module, *layout.attention.modules))
        for name, parameter in block.named_parameters() if self._network.live else ():
            if not parameter.is_meta:
                check_finite_weights(parameter.detach(), f"{where}: {name}")
        tensors = LayerTensors(block, layout.attention)
        with weights_of_evaluation(block):
            if index not in self._verified or self._network.live:
                self._verified[index] = verified(tensors, seen, self.name, index + 1)
            norm = norm_of_block(self.layout, layout)
            weights = attention_weights(LayerTensors(block, self._verified[index]), norm.kind, norm.eps)
        columns = columns_of(block.get_submodule(layout.attention.module))
        return weights if columns is None else with_columns(weights, columns, where)

    def verified_layout(self) -> Layout:
        """Return the layout in which each layer whose attention was read has its own factor of the logits.

        `layout` was found with random weights, and so was a learned factor. Layers are read by `attention`.

        >>> from tokendynamics.pretrained import load
        >>> ckpt = load("random:gpt2-tiny")
        >>> ckpt.verified_layout() == ckpt.layout
        True
        """
        layers = [
            replace(layer, attention=self._verified[index]) if index in self._verified else layer
            for index, layer in enumerate(self.layout.layers)
        ]
        return replace(self.layout, layers=tuple(layers))

    def iter_attention(self, layers: Iterable[int] | None = None) -> Iterator[AttentionWeights]:
        """Read the attention of several layers, one at a time; by default of all that have one. See `attention`."""
        for layer in as_layers(layers, self.architecture.layers, default=self.layout.attending):
            yield self.attention(layer)

    def feed_forward(self, layer: int) -> FeedForwardWeights | str:
        """Read the matrices of one layer's feed-forward part, counted from 1; or return why there are none, in words.

        Raises:
            ArgumentValueError: There is no such layer.
            CheckpointError: A tensor cannot be read, or holds a NaN or an infinity.
        """
        index = as_layer(layer, self.architecture.layers) - 1
        layout, name = self.layout.layers[index], self.layout.blocks[index]
        if why := feed_forward_problem(layout):
            return why
        block = self._network.block(name, ())
        with weights_of_evaluation(block):
            block = self._network.block(name, modules_needed(block, layout))
            return feed_forward_weights(block, layout, self.architecture.dim) or "its weights are not in memory"

    def block_tensors(self, layer: int) -> dict[str, Tensor]:
        """Read every stored tensor of one block, counted from 1, by its name: parameters and persistent buffers.

        Those whose values are not in memory are left out.

        Raises:
            ArgumentValueError: There is no such layer.
            CheckpointError: A tensor cannot be read, or holds a NaN or an infinity.
        """
        name = self.layout.blocks[as_layer(layer, self.architecture.layers) - 1]
        inside = [inner for inner, _ in self._network.block(name, ()).named_modules() if inner]
        block = self._network.block(name, inside)
        tensors = {**dict(block.named_parameters()), **persistent_buffers(block)}
        return {inner: tensor.detach() for inner, tensor in tensors.items() if not tensor.is_meta}

    @property
    def tokenizer(self) -> Any | None:
        """The checkpoint's own tokenizer, None if it has none that can be read: `encode` says why."""
        tokenizer = self._origin.tokenizer_or_error
        return None if isinstance(tokenizer, CheckpointError) else tokenizer

    @property
    def image_processor(self) -> Any | None:
        """What makes pixels of images, None without one."""
        return self._origin.image_processor

    @property
    def tokenization(self) -> str:
        """How `encode` makes ids: ``"own"`` tokenizer, or ``"bytes (no tokenizer)"``."""
        return "bytes (no tokenizer)" if self.tokenizer is None else "own"

    @typed_arguments
    def encode(self, text: str, *, truncate: bool = False, argument: str = "prompt") -> Encoding:
        """Turn a prompt into token ids, with the special tokens that the tokenizer adds by itself.

        An untrained network without a tokenizer reads the UTF-8 bytes modulo its vocabulary (`tokenization`
        says so): its tokens carry no meaning anyway.

        Args:
            text: The prompt.
            truncate: Keep the beginning of a prompt that is longer than the context, instead of refusing it.
            argument: What an error calls the prompt.

        Raises:
            ArgumentTypeError: The network reads no text.
            ArgumentValueError: An empty prompt, or one longer than the context.
            CheckpointError: A trained network without a tokenizer, or a tokenizer that cannot be read.
        """
        facts = self.architecture
        tokenizer = self._origin.tokenizer
        if facts.vocabulary is None and (self.ids_name is None or tokenizer is None):
            raise ArgumentTypeError(self._reads_no_text(argument))
        if tokenizer is None and self.random_seed is None:
            raise CheckpointError(no_tokenizer(self.name))
        return encoded(text, tokenizer, facts.vocabulary or 1, facts.context, truncate=truncate, argument=argument)

    def _reads_no_text(self, argument: str) -> str:
        if self.ids_name is not None:
            advice = "pass a tokenizer as in td.load(network, tokenizer, inputs=…), or arguments by name in a mapping"
            return expected(argument, "token ids, since no tokenizer of the network is known", "a text", advice)
        pictures = self._network.main_input == "pixel_values"
        advice = "pass a picture, or a folder of them, as a Path" if pictures else "pass them by name in a mapping"
        wanted = f"{self._network.main_input or 'the arguments of the forward pass'}, no text"
        return expected(argument, wanted, "a text", advice)

    def states(self, ids: Int[Tensor, "*batch token"] | Mapping[str, Any]) -> SiteStates:
        """Run one prompt through the network and keep every token's state after each part of each block.

        Args:
            ids: Token ids, (1, token) or (token,); or the arguments of the network's forward pass by name, for one
                input (``{"pixel_values": …}``).

        Raises:
            ArgumentTypeError: Ids that are no whole numbers.
            ArgumentValueError: Not one prompt, an id outside the vocabulary, or more tokens than the context.
            CheckpointError: The weights cannot be read, or the configuration describes a network that does not run.
        """
        (states,) = self.states_in_packs([ids], hidden=True)
        return states.of(0)

    def states_in_packs(
        self,
        several: Sequence[Tensor | Mapping[str, Any]],
        *,
        packed: bool = True,
        logits: bool = False,
        hidden: bool = False,
        calls: bool = False,
    ) -> Iterator[PackStates]:
        """Yield the states of several prompts, pass by pass.

        Prompts share a pass where `packing` says that they may, which leaves their states the same to rounding; each
        says which prompts it is of. Of a network that is streamed every prompt has its own, and all go together, so
        that weights are read once.

        Args:
            several: Each as `states` takes it.
            packed: Whether they may share one.
            logits: Whether the language head runs as well: those of a causal network in memory that has one are kept.
            hidden: Whether tokens stay that a mask hides from all others, where they end their prompt, as padding does.
            calls: Whether what each attention was given and gave is kept, of a network in memory.

        Raises:
            ArgumentTypeError, ArgumentValueError, CheckpointError: See `states`.
        """
        logits, hidden = as_flag(logits, "logits"), as_flag(hidden, "hidden")
        packs = self.packs(several, packed=packed)
        if self.streamed:
            yield from self._streamed_states(packs)
            return
        network = self.model
        scoring = self._scoring if logits and self.causal else None
        vocabulary = self._scored if logits and self.causal else None
        whole = network if scoring is None else scoring
        with evaluating(whole):
            for pack in packs:
                with refusing(self._not_run), self.as_varied():
                    states = collect_states(network, self.layout, pack, whole, vocabulary, hidden, calls)
                yield states

    def packs(self, several: Sequence[Tensor | Mapping[str, Any]], *, packed: bool = True) -> list[Pack]:
        """Sort several prompts into forward passes; see `states_in_packs`."""
        packed, arguments = as_flag(packed, "packed"), self._all_arguments(several)
        if self.streamed:
            return packs_of(arguments, "none", 0, self.device)
        together = self.packing if packed and len(arguments) > 1 else "none"
        return packs_of(arguments, together, filler_of(self), self.device, self._class_of)

    def one_pack(self, several: Sequence[Tensor | Mapping[str, Any]]) -> Pack:
        """Put several prompts into one forward pass, however large it is.

        Raises:
            ArgumentTypeError, ArgumentValueError: See `states`; or prompts that cannot share a pass.
        """
        packs = self.fewest_packs(several)
        if len(packs) != 1:
            advice = "pass them one by one, or prompts of one length"
            wanted, came = "prompts that can share a forward pass", f"{self.name}, which takes {self.packing}"
            raise ArgumentValueError("texts", wanted, came, advice)
        return packs[0]

    def fewest_packs(self, several: Sequence[Tensor | Mapping[str, Any]], tokens: int | None = None) -> list[Pack]:
        """Put several prompts into as few forward passes as can be, however large each is.

        Args:
            several: Each as `states` takes it.
            tokens: To how many each prompt will be filled up; None to leave them as they are.

        Raises:
            ArgumentTypeError, ArgumentValueError: See `states`.
        """
        arguments = self._all_arguments(several)
        filled = 0 if tokens is None else as_count(tokens, "tokens")

        def class_of(length: int) -> Hashable:
            return self._class_of(max(length, filled))

        together = self.packing if len(arguments) > 1 else "none"
        return fewest_packs(arguments, together, filler_of(self), class_of)

    @property
    def packing(self) -> Packing:
        """Which inputs may share a forward pass; tried again on a live network, which may have changed.

        In half precision none may: company would show in the third digit.
        """
        if self._packing is None:
            return self._packing_now()
        if not self._packing:
            self._packing.append(self._packing_now())
        return self._packing[0]

    @contextmanager
    def packing_kept(self) -> Iterator[None]:
        """Try once which inputs may share a pass, for a block in which the network does not change."""
        former = self._packing
        self._packing = former or []
        try:
            yield
        finally:
            self._packing = former

    def _packing_now(self) -> Packing:
        in_one_row = any(TOO_FEW_ROWS in layer.problem for layer in self.layout.layers)
        if in_one_row or self.dtype not in (torch.float32, torch.float64):
            return "none"
        if self._network.inputs is None:
            return self.layout.packing or "none"
        with refusing(self._not_run), evaluating(self.model), silenced():
            return packing_of(self.model, self._network.inputs, causal=self.layout.causal)

    def _class_of(self, tokens: int) -> Hashable:
        return length_class(self.config, tokens)

    def _streamed_states(self, packs: list[Pack]) -> list[PackStates]:
        streaming = self._streaming
        with refusing(self._not_run), ExitStack() as stack:
            stack.enter_context(showing(streaming.network))
            watches = [stack.enter_context(StateWatch(streaming.network, self.layout)) for _ in packs]
            works = [partial(watch.run, pack=pack) for watch, pack in zip(watches, packs, strict=True)]
            if depends_on_length(self.config):  # what one pass sets in the network the next would read
                return [states for work in works for states in streaming.run([work])]
            return streaming.run(works)

    @cached_property
    def _streaming(self) -> StreamedNetwork:
        empty, weights = self._network.stored
        return StreamedNetwork(empty, self.layout.blocks, weights, self.dtype, self.device)

    @cached_property
    def ids_name(self) -> str | None:
        """Name of the argument of the forward pass that takes token ids; None where none is known to."""
        if self.architecture.vocabulary is not None:
            return "input_ids"
        if self._network.main_input is not None or self._network.inputs is None:
            return None
        (name, value), *others = self._network.inputs(1).items()
        return name if not others and isinstance(value, Tensor) and not value.is_floating_point() else None

    @cached_property
    def example(self) -> dict[str, Tensor]:
        """Arguments of a forward pass for two random inputs that have an axis of inputs; empty of a stored network."""
        if self._network.inputs is None:
            return {}
        arguments = self._network.inputs(2)
        return {
            name: value for name, value in arguments.items() if isinstance(value, Tensor) and value.shape[:1] == (2,)
        }

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """Names of the arguments of the forward pass."""
        network = self._network.block("", ())  # the whole of it, without the weights of a stored one
        return argument_names(network, self._network.main_input)

    def watch_attention(
        self, ids: Int[Tensor, "*batch token"] | Mapping[str, Any], watch: Callable[[AttentionCall], None]
    ) -> None:
        """Run one prompt through the network and give each of its attentions to `watch`, in the order of the layers.

        Args:
            ids: See `states`.
            watch: Called with what each attention was given and gave, which `AttentionCall.kept` copies: what runs next
                may overwrite it.

        Raises:
            ArgumentTypeError, ArgumentValueError, CheckpointError: See `states`.
        """
        self.watch_pack(Pack((0,), self._arguments(ids)), watch)

    def watch_pack(self, pack: Pack, watch: Callable[[AttentionCall], None]) -> None:
        """Run the prompts of one pass through the network and give each of its attentions to `watch`.

        Args:
            pack: From `packs`.
            watch: See `watch_attention`; of one prompt `AttentionCall.of` has what was given and what came.
        """

        def work(network: nn.Module) -> None:
            give = JoinedHeads(watch, self.layout.runs)
            with InsideBlocks(network, self.layout) as inside:

                def seen(call: AttentionCall) -> None:
                    if inside.now:
                        give(call.of_inputs(len(pack.places)))

                with watching(network, seen):
                    run(network, pack.arguments)

        if self.streamed:
            with refusing(self._not_run):
                self._streaming.run([work])
            return
        network = self.model
        with refusing(self._not_run), evaluating(network), self.as_varied():
            work(network)

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
        return self.model if self.with_head is None else self.with_head

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
        vocabulary, whole = (self._scored, self._scoring) if self.causal else (None, None)
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
        >>> checkpoint = load("random:gpt2-tiny:0")
        >>> with checkpoint.varied({"feed_forward": 0, "layer 2 attention": 0.5}) as varied:
        ...     varied.variant.words
        'feed_forward × 0, layer 2 attention × 0.5'
        """
        if network is None:
            self._check_in_memory()
            network = self.model
        return VariedNetwork(network, self.layout, Variant.of(variant), self.name, self.architecture.dim)

    def under(self: AnyCheckpoint, variant: VariantLike) -> AnyCheckpoint:
        """Return the same checkpoint with every pass under a variant: one more model to trace or to compare.

        Its weights (`attention`, `feed_forward`, `td.audit`) are the network's own.

        Args:
            variant: See `Variant.of`; it takes the place of this checkpoint's own.

        Raises:
            ArgumentTypeError, ArgumentValueError, CheckpointError: See `varied`.

        >>> from tokendynamics.pretrained import load
        >>> load("random:gpt2-tiny:7").under({"layer 3 attention": 0}).name
        'random:gpt2-tiny:7, layer 3 attention × 0'
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

    def decoder(self, pack: Pack) -> LanguageHead:
        """Return what reads states as the network's language head reads its last ones, for a ``with`` block.

        Args:
            pack: Token ids of as many tokens as the states will have.

        Raises:
            CheckpointError: It is streamed, or has no language head.
        """
        self._check_in_memory()
        whole, vocabulary = self._scoring, self._scored
        if whole is None or vocabulary is None:
            raise CheckpointError(no_head(self.name))
        return LanguageHead(whole, self.model, self.layout, pack, vocabulary, self.name)

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
            laws = of_std(laws, {name: tuple(parameter.shape) for name, parameter in shell.named_parameters()}, std)
        return FreshBlocks(shell, self.layout.blocks, laws, how, seed, self.name)

    @cached_property
    def causal(self) -> bool:
        """Whether no state depends on a later token: read from the attention, or measured where that is not read."""
        if self.layout.causal:
            return True
        layers, vocabulary = self.layout.layers, self.architecture.vocabulary
        if any(
            LOOKS_AHEAD in layer.problem if layer.attention is None else layer.attention.mask_by_ids for layer in layers
        ):
            return False
        if all(layer.attention is not None for layer in layers):
            return False
        device = next(self.model.parameters()).device
        given: Mapping[str, Any] = {} if vocabulary is None else {"input_ids": random_ids(vocabulary).to(device)}
        if vocabulary is None and self._network.inputs is not None:
            given = self._network.inputs(1)
        return ignores_later_tokens(self.model, given, self.layout.last, self.name)

    @cached_property
    def with_head(self) -> nn.Module | None:
        """The network with its language head on; a live one itself, None where a stored one has no head."""
        if self._network.live:
            return self.model
        return with_language_head(self.model, self._network.stored[1].read_beside)

    @cached_property
    def _scored(self) -> int | None:
        """Token ids that its language head scores: the vocabulary, or what a live network was seen to score."""
        if self.architecture.vocabulary is not None or self._network.inputs is None:
            return self.architecture.vocabulary
        with refusing(self._not_run):
            # What torch.compile makes has a length, which it hands on to a network that may have none: no `or`.
            whole = self.model if self._scoring is None else self._scoring
            return scored_ids(whole, self._network.inputs(2))

    @cached_property
    def _scoring(self) -> nn.Module | None:
        """The network with its language head, which scores each place also where by itself it scores the last alone."""
        if self.architecture.vocabulary is None and self._network.inputs is not None and self._follows_itself:
            with refusing(self._not_run):
                each_place = scoring_each_place(self.model, self.layout.end, self._network.inputs(2))
            if each_place is not None:
                return each_place
        return self.with_head

    @property
    def _follows_itself(self) -> bool:
        """Whether no state depends on a later token, and the states are those of the tokens of its input."""
        return self.causal and self.layout.first_token is None and self.layout.streams == 1

    @cached_property
    def scores_last_place(self) -> bool:
        """Whether a live network scores token ids after the last token alone, as nanoGPT does without targets."""
        if self._network.inputs is None or self._scored is not None:
            return False
        with refusing(self._not_run):
            return scores_last_place(self.model, self._network.inputs(2))

    def _check_in_memory(self) -> None:
        if self.streamed:
            advice = "load it where it fits, or with device_map"
            came = "one whose blocks are read while they run"
            raise CheckpointError(self.name, "a network in memory as a whole", came, advice)

    def _not_run(self, words: str) -> CheckpointError:
        return CheckpointError(self.name, "a network that runs", words)

    def _all_arguments(self, several: Any) -> list[dict[str, Any]]:
        check_open(several, "several")
        if not isinstance(several, Sequence) or isinstance(several, str | bytes):
            raise ArgumentTypeError("several", "a list of prompts", shown(several))
        return [self._arguments(given) for given in several]

    def _arguments(self, ids: Any) -> dict[str, Any]:
        return forward_arguments(ids, self.architecture, self._network.main_input, self.ids_name, self._network.grid)
