"""A pretrained or untrained network, read lazily: facts first, weights layer by layer, the whole model last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, CheckpointError, expected
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.pretrained._architecture import Architecture, as_layer, as_layers
from tokendynamics.pretrained._encoding import Encoding, encode, encode_bytes, load_tokenizer
from tokendynamics.pretrained._network import at_least_single, empty_network, fill
from tokendynamics.pretrained._other_libraries import refusing
from tokendynamics.pretrained._states import SiteStates, collect_states
from tokendynamics.pretrained._weights import AttentionWeights, Shapes, Weights
from tokendynamics.pretrained.adapters._adapter import Adapter


class Checkpoint:
    """One network; made by `load`.

    Attributes:
        name: What to call it.
        source: File or folder of its weights, None for an untrained family.
        architecture: Its facts.
        config: Its transformers configuration.
        dtype: Number format of `model`.
        device: Where `model` and the results of `attention` live.
        random_seed: Seed of untrained weights, None for stored ones.

    >>> from tokendynamics.pretrained import load
    >>> checkpoint = load("random:distilgpt2:7")
    >>> checkpoint.random_seed, checkpoint.architecture.parameters
    (7, 81912576)
    """

    def __init__(
        self,
        *,
        name: str,
        source: Path | None,
        folder: Path | None,
        config: Any,
        adapter: Adapter,
        facts: dict[str, Any],
        shapes: Shapes,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        random_seed: int | None,
    ) -> None:
        self.name = name
        self.source = source
        self.config = config
        self.dtype = dtype
        self.device = device
        self.random_seed = random_seed
        self.architecture = Architecture(
            family=adapter.family,
            model_type=config.model_type,
            parameters=sum(prod(shape) for shape in shapes.values()),
            **facts,
        )
        self._folder = folder
        self._adapter = adapter
        self._weights = weights

    def __repr__(self) -> str:
        facts = self.architecture
        return f"Checkpoint({self.name!r}, {facts.model_type}, {facts.layers} layers, dim {facts.dim})"

    def attention(self, layer: int) -> AttentionWeights:
        """Read the attention tensors of one layer, counted from 1, and nothing else.

        Values keep their stored dtype, half precision becomes float32.

        Raises:
            ArgumentValueError: There is no such layer.
            CheckpointError: A tensor cannot be read, or holds a NaN or an infinity.
        """
        index = as_layer(layer, self.architecture.layers) - 1
        names = self._adapter.tensors(self.config)
        tensors = {role: self._read(name.format(layer=index)) for role, name in names.items()}
        facts = vars(self.architecture)
        frequencies, rotary_scaling = self._rotary
        return AttentionWeights(
            **self._adapter.split(tensors, facts),
            groups=torch.arange(facts["heads"], device=self.device) // (facts["heads"] // facts["kv_heads"]),
            scale=float(self._adapter.scale(self.config, index)),
            norm_eps=float(self._adapter.norm_eps(self.config)),
            norm_kind=self.architecture.norm,
            rotary_frequencies=frequencies,
            rotary_scaling=rotary_scaling,
        )

    def iter_attention(self, layers: Iterable[int] | None = None) -> Iterator[AttentionWeights]:
        """Read the attention of several layers (all by default), one at a time; see `attention`."""
        for layer in as_layers(layers, self.architecture.layers):
            yield self.attention(layer)

    @cached_property
    def model(self) -> nn.Module:
        """The transformers base model (no output head), ready to run: eval mode, no gradients.

        Raises:
            CheckpointError: A tensor cannot be read, or holds a NaN or an infinity.
        """
        empty = empty_network(self.config, self._adapter, self.dtype)
        return fill(empty, self._weights.read, self.dtype, self.device)

    @cached_property
    def tokenizer(self) -> Any | None:
        """The checkpoint's own tokenizer, None if it has none."""
        return None if self._folder is None else load_tokenizer(self._folder)

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
            ArgumentValueError: An empty prompt, or one longer than the context.
            CheckpointError: A trained network without a tokenizer.
        """
        facts = self.architecture
        if self.tokenizer is not None:
            return encode(text, self.tokenizer, facts.context, truncate=truncate, argument=argument)
        if self.random_seed is None:
            advice = "add tokenizer.json to the folder, or pass token ids to states()"
            raise CheckpointError(expected(self.name, "a tokenizer beside the trained weights", "none", advice))
        return encode_bytes(text, facts.vocabulary, facts.context, truncate=truncate, argument=argument)

    def states(self, ids: Int[Tensor, "*batch token"]) -> SiteStates:
        """Run one prompt through the network and keep every token's state after each part of each block.

        Args:
            ids: Token ids, (1, token) or (token,).

        Raises:
            ArgumentTypeError: Ids that are no whole numbers.
            ArgumentValueError: Not one prompt, an id outside the vocabulary, or more tokens than the context.
            CheckpointError: The weights cannot be read, or the configuration describes a network that does not run.
        """
        checked, network = self._checked(ids), self.model
        with refusing(lambda words: CheckpointError(expected(self.name, "a network that runs", words))):
            return collect_states(network, self._adapter.sites, checked)

    def _checked(self, ids: Tensor) -> Tensor:
        if not isinstance(ids, Tensor):
            advice = "encode(text).ids are those of a text"
            raise ArgumentTypeError(expected("ids", "a tensor of token ids", type(ids).__name__, advice))
        ids = ids[None] if ids.ndim == 1 else ids
        facts = self.architecture
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.is_meta or ids.is_sparse:
            raise ArgumentTypeError(expected("ids", "whole numbers", f"dtype {ids.dtype}", "use encode()"))
        if ids.ndim != 2 or ids.shape[0] != 1 or not 0 < ids.shape[1] <= facts.context:
            wanted = f"one prompt, shape (1, token) with 1 to {facts.context} tokens (the model's context)"
            raise ArgumentValueError(expected("ids", wanted, f"shape {tuple(ids.shape)}", "shorten the prompt"))
        if int(ids.min()) < 0 or int(ids.max()) >= facts.vocabulary:
            came = f"ids from {int(ids.min())} to {int(ids.max())}"
            raise ArgumentValueError(expected("ids", f"ids from 0 to {facts.vocabulary - 1}", came))
        return ids.long()

    def _read(self, name: str) -> Tensor:
        return at_least_single(self._weights.read(name)).to(self.device)

    @cached_property
    def _rotary(self) -> tuple[Tensor | None, float]:
        if self._adapter.rotary is None:
            return None, 1.0
        frequencies, scaling = self._adapter.rotary(self.config)
        return frequencies.to(self.device), scaling
