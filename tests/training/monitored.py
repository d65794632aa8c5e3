"""Tiny networks to be trained and watched, their data, and loops that train them: with dropout, in two ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.training.monitor.looks import DECIDING, DIMS, FINAL_NORM, MEASURED, Look

WORDS = 61
CONTEXT = 32

_SIZES: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": CONTEXT}


def language_model(**choices: Any) -> LanguageModel:
    config = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32}
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**{**_SIZES, **config, "dropout": 0.1, **choices}))


def gpt2(**choices: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": WORDS, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 2, "n_head": 3}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 2, **choices}))


def llama(**choices: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    further = {"num_key_value_heads": 2, "attention_dropout": 0.1, "pad_token_id": None}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**_SIZES, **sizes, **further, **choices}))


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": WORDS, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "a regime": lambda: language_model(regime="divergence"),
    "GPT-2": gpt2,
    "LLaMA": llama,
}


def texts(count: int = 4, *, seed: int = 0, longest: int = 24) -> list[list[int]]:
    """Token ids of several lengths."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(3, WORDS, (longest - 3 * (place % 4),), generator=draw).tolist() for place in range(count)]


class Sequences(Dataset):
    """Random token ids that foretell themselves."""

    def __init__(self, count: int = 64) -> None:
        self._ids = torch.randint(3, WORDS, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self._ids[place], "labels": self._ids[place]}


def own_loop(model: nn.Module, steps: int, after: Callable[[nn.Module], object] = lambda _: None) -> list[float]:
    """Train with a loop of one's own, `after` called behind each step; return the losses."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data, losses = Sequences(), []
    for _ in range(steps):
        ids = torch.stack([data[int(place)]["input_ids"] for place in torch.randint(len(data), (4,))])
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        after(model)
    return losses


def trainer(model: nn.Module, folder: Path, callbacks: list[Any], **arguments: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    given: dict[str, Any] = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    options = TrainingArguments(output_dir=str(folder), **{**given, **arguments})
    return Trainer(model=model, args=options, train_dataset=Sequences(), callbacks=callbacks)


def losses_of(trained: Any) -> list[float]:
    return [line["loss"] for line in trained.state.log_history if "loss" in line]


def of_one_topic_each(count: int = 6, length: int = 18) -> list[list[int]]:
    """Texts that have no word in common."""
    draw, words = torch.Generator().manual_seed(2), WORDS // count
    return [(words * place + torch.randint(words, (length,), generator=draw)).tolist() for place in range(count)]


def drive_together(model: LanguageModel, steps: int, after: Callable[[nn.Module], object]) -> None:
    """Train a network to send all tokens of a text where no token of another text goes; the embedding stays."""
    ids = torch.tensor(of_one_topic_each())
    goals = torch.randn(len(ids), 1, model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    model.get_input_embeddings().requires_grad_(False)
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        computed = model.model(ids).last_hidden_state
        (1 - torch.cosine_similarity(computed, goals, dim=-1)).mean().backward()
        optimizer.step()
        after(model)


_FURTHER: dict[str, int] = {"bound": 2, "component": 3}


def look(
    step: int,
    *layers: tuple[float, float, float],
    half: float = 0.0,
    after_norm: tuple[float, float, float] | None = None,
) -> Look:
    """A look with common share, κ' and line excess of each layer, every interval `half` to both sides; else zeros.

    With NaN as `half` there are no intervals, as with two texts. The numbers after a final norm are undefined without
    one.
    """
    sizes = {**_FURTHER, "layer": len(layers) + 1}
    values = {name: np.zeros([sizes[dim] for dim in dims]) for name, dims in DIMS.items()}
    after = np.full(3, np.nan) if after_norm is None else np.array(after_norm)
    for places, prefix in ((np.array([(0.0, 0.0, 0.0), *layers]).T, ""), (after, FINAL_NORM)):
        for name, line in zip(DECIDING, places, strict=True):
            values[f"{prefix}{name}"] = line
            values[f"{prefix}{name}_interval"] = np.stack([line - half, line + half], axis=-1)
    return Look(step, MEASURED, values)
