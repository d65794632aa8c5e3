"""Tiny untrained checkpoints on disk, with every parameter (biases and norm gains too) away from its default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tokendynamics.pretrained.other_libraries import silenced

_LLAMA = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
_GPT2 = {"vocab_size": 101, "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 64}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
_BERT = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2-inverse-layer-scale": ("gpt2", _GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "llama": ("llama", _LLAMA),
    "llama-biases": ("llama", _LLAMA | {"attention_bias": True}),
    "llama3-rope": ("llama", _LLAMA | {"rope_parameters": _LLAMA3_ROPE}),
    "llama-yarn": ("llama", _LLAMA | {"rope_parameters": _YARN_ROPE}),
    "mistral-wide-heads": ("mistral", _LLAMA | {"head_dim": 10, "sliding_window": None}),
    "qwen2": ("qwen2", _LLAMA),
    "multi-query": ("llama", _LLAMA | {"num_key_value_heads": 1}),
    "bert": ("bert", _BERT),
    "bert-decoder": ("bert", _BERT | {"is_decoder": True}),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", list(TINY))


class Maker:
    """Builds and saves tiny checkpoints below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def config(self, kind: str, **changes: Any) -> Any:
        from transformers import AutoConfig

        model_type, settings = TINY[kind]
        return AutoConfig.for_model(model_type, **settings | changes)

    def network(self, kind: str, *, headless: bool = True) -> Any:
        """The base model, or one with an output head."""
        from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

        config = self.config(kind)
        head = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
        with silenced(), torch.random.fork_rng():
            torch.manual_seed(3)
            network = (AutoModel if headless else head).from_config(config).eval()
            for name, parameter in network.named_parameters():
                gain = "norm" in name.lower() or "ln_" in name
                parameter.data.normal_(1.0 if gain and name.endswith("weight") else 0.0, 0.3)
        return network

    def folder(self, kind: str, *, headless: bool = True, **saving: Any) -> Path:
        """Save one as safetensors."""
        path = self.root / f"{kind}-{headless}-{len(saving)}"
        with silenced():
            self.network(kind, headless=headless).save_pretrained(path, **saving)
        return path


@pytest.fixture
def tiny(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


SENTENCE = (
    "The museum opened its new wing on a rainy Tuesday, and by noon the line of visitors stretched "
    "around the corner of the square."
)


@pytest.fixture
def sentence() -> str:
    return SENTENCE


@pytest.fixture
def prompt_ids() -> torch.Tensor:
    return torch.randint(3, 101, (1, 21), generator=torch.Generator().manual_seed(5))
