"""Untrained networks by name, tensors drawn one at a time: the same values whatever is asked for, in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained.edits._fresh_weights import InitialLaw, initial_laws

_LLAMA_2 = {"vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2-medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "distilgpt2": ("gpt2", {"n_layer": 6}),
    # Nobody's network, for a first try: initial maps of this width act as those of distilgpt2 do.
    "gpt2-tiny": ("gpt2", {"n_layer": 6, "n_embd": 48, "initializer_range": 0.08}),
    "llama-2-7b": ("llama", _LLAMA_2),
    "llama-2-13b": (
        "llama",
        _LLAMA_2
        | {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40}
        | {"num_attention_heads": 40, "num_key_value_heads": 40},
    ),
    "smollm2-135m": (
        "llama",
        {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
        | {"initializer_range": 1 / 24, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
        | {"tie_word_embeddings": True},
    ),
    "mistral-7b": ("mistral", {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}),
    "qwen2-0.5b": (
        "qwen2",
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
        | {"tie_word_embeddings": True},
    ),
    "bert-base": ("bert", {}),
    "bert-large": (
        "bert",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    ),
    "minilm": ("bert", {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}),
}
"""name → (model type, what differs from the defaults of its configuration class)."""


def family_config(name: str) -> Any:
    """Return the transformers configuration of a family in `FAMILIES`."""
    from transformers import AutoConfig

    model_type, changes = FAMILIES[name]
    return AutoConfig.for_model(model_type, **changes)


class DrawnTensors:
    """Initial weights of an architecture, each from its own generator seeded by (seed, name).

    Attributes:
        shapes: Shape of every tensor by its name in the base model.
        tables: None: the network computes them.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], laws: Mapping[str, InitialLaw], seed: int) -> None:
        self.shapes = shapes
        self.tables: tuple[str, ...] = ()
        self._laws = laws
        self._seed = seed

    def read(self, name: str) -> Tensor:
        """Draw one tensor, float32.

        Raises:
            CheckpointError: transformers leaves it as its class makes it, which is not known without making it.
            MemoryLimitError: More than there is memory for.
        """
        law, shape = self._laws.get(name), self.shapes[name]
        if law is None:
            advice = "pass the network itself, initialised"
            raise CheckpointError(name, "a tensor that transformers initialises", "one it does not", advice)
        if law.std == 0.0 and law.width == 0.0:
            return torch.full(shape, law.constant)
        check_fits(4 * prod(shape), f"tensor {name}")
        name_key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, name_key])))
        if law.width:
            values = np.float32(law.width) * (2 * generator.random(shape, dtype=np.float32) - 1)
        else:
            values = generator.standard_normal(shape, dtype=np.float32)
            while law.cut < np.inf and (beyond := np.abs(values) > law.cut).any():
                values[beyond] = generator.standard_normal(int(beyond.sum()), dtype=np.float32)
            values *= np.float32(law.std)
        tensor = torch.from_numpy(values)
        if law.constant:
            tensor += law.constant
        if law.zero_row is not None:
            tensor[law.zero_row] = 0.0
        return tensor

    def read_beside(self, larger: nn.Module, name: str) -> None:
        """Return None: nothing is drawn but the base model."""

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Draw one tensor, and return some of its rows."""
        return self.read(name)[list(rows)]


class ConstructedTensors(DrawnTensors):
    """Initial weights of a network that starts as its constructors draw it (`starts_as_constructed` of its class)."""

    def __init__(self, whole: Any, prefix: str, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
        super().__init__(shapes, {}, seed)
        check_fits(4 * sum(map(prod, shapes.values())), "untrained weights")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            constructed = type(whole)(whole.config)
        self._values = constructed.get_submodule(prefix).state_dict()

    def read(self, name: str) -> Tensor:
        """Return one tensor, float32."""
        return self._values[name].float()


def untrained_tensors(whole: Any, prefix: str, shapes: Mapping[str, tuple[int, ...]], seed: int) -> DrawnTensors:
    """Return the weights with which a network starts.

    Args:
        whole: On torch's meta device.
        prefix: Name of the half of it that is needed; empty for the whole.
        shapes: Of that half's tensors, by name.
        seed: Of the draw.
    """
    if getattr(whole, "starts_as_constructed", False):
        return ConstructedTensors(whole, prefix, shapes, seed)
    return DrawnTensors(shapes, initial_laws(whole, prefix), seed)
