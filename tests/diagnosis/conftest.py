"""Small checkpoints with known weights, written the way real ones are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tokendynamics.pretrained import Checkpoint, load

TINY = {
    "gpt2": {
        "model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 300,
    },
    "llama": {
        "model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_size": 16, "intermediate_size": 32, "vocab_size": 300, "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "bert": {
        "model_type": "bert", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8,
        "intermediate_size": 16, "vocab_size": 300, "max_position_embeddings": 64,
    },
    "bloom": {"model_type": "bloom", "n_layer": 3, "n_head": 2, "hidden_size": 8, "vocab_size": 300},
}  # fmt: skip


@pytest.fixture(autouse=True)
def layouts_found_once(known_layouts: None) -> None:
    """What is found in networks is tested in `tests/pretrained`."""


def write_config(folder: Path, family: str, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY[family] | changes))
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Checkpoint]:
    """A random checkpoint of a family; every call draws the same weights for the same seed."""

    def make(family: str, seed: int = 0, **changes: object) -> Checkpoint:
        return load(f"random:{write_config(tmp_path / family, family, **changes)}:{seed}")

    return make


@pytest.fixture
def one_layer(tmp_path: Path) -> Callable[[torch.Tensor, torch.Tensor], Checkpoint]:
    """A GPT-2 of one layer and one head whose attention is W = x W_Q W_K^T x and V = W_V, saved as safetensors."""

    def make(W: torch.Tensor, V: torch.Tensor) -> Checkpoint:
        from safetensors.torch import save_file
        from transformers import AutoConfig, AutoModel

        dim = len(W)
        folder = write_config(tmp_path / "one-layer", "gpt2", n_layer=1, n_head=1, n_embd=dim)
        model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        fused = torch.cat([torch.eye(dim), W.T.float(), V.float()], dim=1)
        weights["h.0.attn.c_attn.weight"] = fused.contiguous()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return load(folder)

    return make
