"""Arguments of transformers' Trainer and of a forward pass mean for these networks what they mean for others."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments
from transformers.models.auto import modeling_auto

from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.language_model._model import Decoder
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.numerics import ArgumentValueError

WORDS, TOKENS = 20, 10
SIZES: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8
}  # fmt: skip


class Derived(LanguageModel):
    """A user's class, whose name transformers does not know either."""


def decoder(kind: type[LanguageModel] = LanguageModel, **choices: Any) -> LanguageModel:
    torch.manual_seed(0)
    return kind(LanguageModelConfig(vocab_size=WORDS, max_position_embeddings=TOKENS, **SIZES, **choices))


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=TOKENS, **SIZES))


def vision() -> VisionModel:
    torch.manual_seed(0)
    return VisionModel(VisionConfig(image_size=4, patch_size=2, num_labels=3, **SIZES))


def texts(count: int = 6) -> list[dict[str, Tensor]]:
    """Texts of which different shares of the labels are in the loss."""
    generator, items = torch.Generator().manual_seed(1), []
    for number in range(count):
        ids = torch.randint(WORDS, (TOKENS,), generator=generator)
        labels = ids.clone()
        labels[: 1 + number] = -100
        items.append({"input_ids": ids, "labels": labels})
    return items


def images() -> list[dict[str, Tensor]]:
    pictures = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, 1, 2, -100, 1, 0])
    return [{"pixel_values": picture, "labels": label} for picture, label in zip(pictures, labels, strict=True)]


def batch_of(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def trainer_of(model: nn.Module, folder: Path, items: Any = None, **arguments: Any) -> Trainer:
    given: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    given |= {"optim": "sgd", "learning_rate": 0.1, "per_device_train_batch_size": 2, "max_steps": 2} | arguments
    settings = TrainingArguments(str(folder), **given)
    trainer = Trainer(model=model, args=settings, train_dataset=items, eval_dataset=items)
    trainer.remove_callback(PrinterCallback)
    return trainer


class FixedLogits(nn.Module):
    """A head that gives the same logits whatever it reads, with as many rows as it reads."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, states: Tensor) -> Tensor:
        return self.rows[: states.shape[0]] + 0 * states.sum()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "derived", "adapted"])
def test_smoothed_labels_are_shifted_as_those_of_a_llama(kind: str, accumulation: int, tmp_path: Path) -> None:
    rows = torch.randn(3, TOKENS, WORDS, generator=torch.Generator().manual_seed(3))
    models = [llama(), decoder(Derived if kind == "derived" else LanguageModel, regime="divergence")]
    for model in models:
        model.lm_head = FixedLogits(rows.clone())
    if kind == "adapted":
        wrap = {"r": 2, "target_modules": r".*(q_proj|query)", "modules_to_save": ["lm_head"]}
        models = [peft.get_peft_model(model, peft.LoraConfig(**wrap)) for model in models]
    batch, steps = batch_of(texts(3)), {"gradient_accumulation_steps": accumulation}
    losses, gradients = [], []
    for model in models:
        trainer = trainer_of(model, tmp_path, label_smoothing_factor=0.1, **steps)
        items = (batch["labels"][:, 1:] != -100).sum() * accumulation
        loss = trainer.compute_loss(model, dict(batch), num_items_in_batch=items)
        loss.backward()
        losses.append(loss.item())
        gradients.append(
            next(
                parameter.grad
                for parameter in model.parameters()
                if parameter.grad is not None and parameter.grad.any()
            )
        )
    wanted = functional.cross_entropy(rows[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), label_smoothing=0.1)
    assert losses[1] == pytest.approx(float(wanted) / accumulation, rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("cutoffs", [None, [5, 12]])
def test_trainings_with_smoothed_labels_are_those_of_the_formula(cutoffs: list[int] | None, tmp_path: Path) -> None:
    """Also where a step has two batches of unequal numbers of labels."""
    items = texts(4)
    model = decoder(cutoffs=cutoffs)
    twin = copy.deepcopy(model)
    trainer_of(
        model, tmp_path, items, label_smoothing_factor=0.2, gradient_accumulation_steps=2, max_steps=1,
        max_grad_norm=0, train_sampling_strategy="sequential",
    ).train()  # fmt: skip
    batch = batch_of(items)
    logits = twin.train()(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(), label_smoothing=0.2).backward()
    with torch.no_grad():
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one, other if other.grad is None else other - 0.1 * other.grad)


def test_smoothed_labels_of_images_are_not_shifted(tmp_path: Path) -> None:
    model, batch = vision(), batch_of(images())
    trainer = trainer_of(model, tmp_path, label_smoothing_factor=0.1)
    loss = trainer.compute_loss(model, dict(batch), num_items_in_batch=torch.tensor(5))
    wanted = functional.cross_entropy(model(batch["pixel_values"]).logits, batch["labels"], label_smoothing=0.1)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.slow
def test_tables_of_transformers_name_the_networks() -> None:
    assert "LanguageModel" in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    assert "VisionModel" in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.values()
    for mapping in (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING):
        assert LlamaForCausalLM in mapping.values() or VisionModel in mapping.values()


def test_evaluations_weigh_batches_as_those_of_a_llama(tmp_path: Path) -> None:
    items, computed = texts(5), []
    rows = torch.randn(2, TOKENS, WORDS, generator=torch.Generator().manual_seed(4))
    for model in (llama(), decoder()):
        model.lm_head = FixedLogits(rows.clone())
        trainer = trainer_of(model, tmp_path, items, per_device_eval_batch_size=2)
        predicted = trainer.predict(items)
        assert predicted.predictions.shape == (5, TOKENS, WORDS)
        computed.append([trainer.evaluate()["eval_loss"], predicted.metrics["test_loss"]])
    assert computed[0] == pytest.approx(computed[1], rel=1e-6)


def test_tokens_and_entries_that_were_read_are_counted(tmp_path: Path) -> None:
    for model, items, read in ((decoder(), texts(), 4 * TOKENS), (vision(), images(), 4 * 3 * 4 * 4)):
        trainer = trainer_of(model, tmp_path, items, include_num_input_tokens_seen="all")
        trainer.train()
        assert trainer.state.num_input_tokens_seen == read


def test_noise_of_the_embedding_is_added_in_training_alone(tmp_path: Path) -> None:
    for tied in (False, True):
        model = decoder(tie_word_embeddings=tied)
        before, ids = model.eval()(texts()[0]["input_ids"][None]).logits, texts()[0]["input_ids"][None]
        trainer_of(model, tmp_path, texts(), neftune_noise_alpha=5.0, learning_rate=0.0).train()
        torch.testing.assert_close(model.eval()(ids).logits, before)
        assert not model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize("make", [decoder, vision])
def test_what_is_not_offered_is_refused(make: Any, tmp_path: Path) -> None:
    items: Any = images() if make is vision else texts()
    with pytest.raises(ValueError, match=r"does not support (gradient|activation) checkpointing"):
        trainer_of(make(), tmp_path, items, gradient_checkpointing=True).train()


def test_tuples_are_those_of_a_llama() -> None:
    batch = batch_of(texts(2))
    for model in (llama(), decoder(), decoder(cutoffs=[5, 12])):
        loss, *rest = model(**batch, return_dict=False, use_cache=False)
        assert type(loss) is Tensor
        assert loss.shape == ()
        adaptive = getattr(model.config, "cutoffs", None) is not None
        assert [entry.shape for entry in rest] == ([] if adaptive else [(2, TOKENS, WORDS)])
        (logits,) = model(batch["input_ids"], return_dict=False, use_cache=False)
        assert logits.shape == (2, TOKENS, WORDS)
        if isinstance(model, LanguageModel):
            model.config.return_dict = False
            assert type(model(batch["input_ids"])) is tuple
            assert type(model(batch["input_ids"], return_dict=True)) is not tuple
    assert type(decoder().model(batch["input_ids"], return_dict=False)) is tuple
    pictures = batch_of(images())
    assert [entry.shape for entry in vision()(**pictures, return_dict=False)] == [(), (6, 3)]


def row(*numbers: int) -> Tensor:
    return torch.tensor([numbers])


IDS = row(1, 2, 3, 4, 5, 6)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "packed positions": ({"position_ids": row(0, 1, 2, 0, 1, 2)}, "position_ids: expected 0, 1, 2, …"),
    "shifted positions": ({"position_ids": row(1, 2, 3, 4, 5, 6)}, "position_ids: expected 0, 1, 2, …"),
    "labels that are shifted": ({"shift_labels": IDS}, "shift_labels: expected no such argument"),
    "another label to ignore": ({"labels": IDS, "ignore_index": 0}, "ignore_index: expected no such argument"),
    "lengths of packed texts": ({"cu_seq_lens_q": row(0, 3, 6)[0]}, "cu_seq_lens_q: expected no such argument"),
    "weights of attention": ({"output_attentions": True}, "output_attentions: expected no such argument"),
    "kept keys": ({"past_key_values": ()}, "past_key_values: expected no such argument"),
    "a mask of pairs": ({"attention_mask": torch.ones(1, 1, 6, 6)}, "attention_mask: expected shape"),
    "a mask of another length": ({"attention_mask": torch.ones(1, 5)}, "attention_mask: expected shape"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("make", [decoder, lambda: Decoder(decoder().config)], ids=["model", "without its head"])
def test_arguments_that_would_change_the_numbers_are_refused(make: Any, case: str) -> None:
    given, message = REFUSED[case]
    model = make()
    if isinstance(model, Decoder) and "labels" in given:
        pytest.skip("it has no loss")
    with pytest.raises(ArgumentValueError, match=message):
        model(IDS, **given)


def test_images_with_arguments_that_would_change_the_numbers_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="bool_masked_pos: expected no such argument"):
        vision()(batch_of(images())["pixel_values"], bool_masked_pos=torch.ones(6, 4))


def test_arguments_that_change_nothing_are_taken() -> None:
    model = decoder()
    expected = model(IDS).logits
    padded = {"attention_mask": row(1, 1, 1, 1, 0, 0), "position_ids": row(0, 1, 2, 3, 1, 1)}
    for given in (
        {"position_ids": row(0, 1, 2, 3, 4, 5), "use_cache": True, "output_attentions": False},
        {"token_type_ids": torch.zeros_like(IDS), "past_key_values": None, "skip_logits": True},
        {"position_ids": row(0, 1, 2, 3, 4, 5)[0]},
        padded,
    ):
        torch.testing.assert_close(model(IDS, **given).logits, expected)


def test_packed_texts_in_a_training_are_refused(tmp_path: Path) -> None:
    positions = torch.arange(TOKENS) % 5
    items = [item | {"position_ids": positions} for item in texts()]
    with pytest.raises(ArgumentValueError, match="position_ids"):
        trainer_of(decoder(), tmp_path, items).train()


@pytest.mark.slow
def test_compiled_trainings_are_the_same(tmp_path: Path, unchecked: None) -> None:
    values = []
    for compiled in (False, True):
        model = decoder(regime="divergence")
        model(IDS)
        further = {"torch_compile": True, "torch_compile_backend": "aot_eager"} if compiled else {}
        values.append(trainer_of(model, tmp_path, texts(), **further).train().training_loss)
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert math.isfinite(values[0])
