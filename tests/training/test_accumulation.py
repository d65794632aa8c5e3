"""A step is the same whether its batch is in one piece or in several, whatever share of their labels is in the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PrinterCallback, Trainer, TrainingArguments

from tokendynamics.modules._regimes import REGIMES
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.vision import VisionConfig, VisionModel

SIZES: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12
}  # fmt: skip
Items = list[dict[str, torch.Tensor]]


def texts() -> Items:
    """Eight texts of 12 tokens, of which 1 to 11 are in the loss; the label of the first token never is."""
    generator, items = torch.Generator().manual_seed(5), []
    for kept in (1, 11, 3, 7, 2, 10, 1, 5):
        ids = torch.randint(0, 30, (12,), generator=generator)
        labels = ids.clone()
        labels[1 + kept :] = -100
        items.append({"input_ids": ids, "labels": labels})
    return items


def images(labels: str) -> Items:
    generator = torch.Generator().manual_seed(6)
    pictures, classes = torch.rand(8, 3, 4, 4, generator=generator), torch.arange(8) % 3
    if labels == "some":
        classes[[1, 2, 3, 6]] = -100
    if labels == "weights":
        classes = torch.rand(8, 3, generator=generator).softmax(-1)
    return [{"pixel_values": picture, "labels": label} for picture, label in zip(pictures, classes, strict=True)]


def decoder(**given: Any) -> Callable[[], LanguageModel]:
    return lambda: LanguageModel(LanguageModelConfig(vocab_size=30, max_position_embeddings=16, **SIZES, **given))


def vision() -> VisionModel:
    return VisionModel(VisionConfig(image_size=4, patch_size=2, num_labels=3, **SIZES))


NETWORKS: dict[str, tuple[Callable[[], PreTrainedModel], Callable[[], Items]]] = {
    **{f"decoder, {regime}": (decoder(regime=regime), texts) for regime in REGIMES},
    "decoder, adaptive softmax": (decoder(cutoffs=[5, 20]), texts),
    "decoder, tied embedding": (decoder(tie_word_embeddings=True), texts),
    "vision, classes": (vision, lambda: images("all")),
    "vision, some classes": (vision, lambda: images("some")),
    "vision, weights of classes": (vision, lambda: images("weights")),
}


def trained(
    make: Callable[[], PreTrainedModel], items: Items, batch: int, folder: Path, accumulation: int | None = None
) -> dict[str, torch.Tensor]:
    """Return the weights after two steps of four items."""
    torch.manual_seed(0)
    model = make()
    arguments = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=batch, report_to=[], use_cpu=True,
        gradient_accumulation_steps=accumulation or 4 // batch, optim="sgd", learning_rate=0.1, max_grad_norm=0,
        lr_scheduler_type="constant", train_sampling_strategy="sequential", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    dataset: Any = items
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


_LOSS_OF_ANOTHER = {f"decoder, {regime}" for regime in REGIMES if regime not in ("baseline", "divergence")}
"""Their loss is that of the two regimes that stay; each is two more runs of a trainer."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in _LOSS_OF_ANOTHER else ()) for name in NETWORKS]
)
def test_several_batches_of_a_step_are_one_large_batch(name: str, tmp_path: Path) -> None:
    make, items = NETWORKS[name]
    whole, parts = (trained(make, items(), batch, tmp_path) for batch in (4, 1))
    torch.manual_seed(0)
    started = {entry: parameter.detach() for entry, parameter in make().named_parameters()}
    assert largest_difference(whole, parts) < 2e-6
    assert largest_difference(whole, started) > 1e-4  # the steps are a hundred times what rounding makes


def test_the_same_holds_of_llama(tmp_path: Path) -> None:
    """The yardstick: if this fails, transformers' own rule has changed."""
    config = LlamaConfig(vocab_size=30, max_position_embeddings=16, **SIZES)
    whole, parts = (trained(lambda: LlamaForCausalLM(config), texts(), batch, tmp_path) for batch in (4, 1))
    assert largest_difference(whole, parts) < 2e-6


@pytest.mark.parametrize("cutoffs", [None, [5, 20]])
def test_the_number_of_items_divides_the_sum_of_the_losses(cutoffs: list[int] | None) -> None:
    torch.manual_seed(0)
    model = decoder(cutoffs=cutoffs)().double()
    ids, labels = (torch.stack([item[name] for item in texts()]) for name in ("input_ids", "labels"))
    with torch.no_grad():
        log_p = model(ids).logits[:, :-1].log_softmax(-1)
        total = functional.nll_loss(log_p.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        torch.testing.assert_close(model(ids, labels=labels).loss, total / 40)
        for items in (7, torch.tensor(7)):
            torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=items).loss, total / 7)
    nothing = torch.full_like(labels, -100)
    loss = model(ids, labels=nothing, num_items_in_batch=7).loss  # a batch without labels adds nothing
    loss.backward()
    assert loss.item() == 0.0
    assert all(not bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)


def test_weights_of_classes_count_once_an_image() -> None:
    torch.manual_seed(0)
    model: nn.Module = vision().double()
    batch = images("weights")
    pixels, labels = (torch.stack([item[name] for item in batch]).double() for name in ("pixel_values", "labels"))
    with torch.no_grad():
        logits = model(pixels).logits
        total = -(labels * logits.log_softmax(-1)).sum()
        # A Trainer counts the entries of the labels: 3 for each of 16 images.
        computed = model(pixels, labels=labels, num_items_in_batch=torch.tensor(48)).loss
        torch.testing.assert_close(computed.double(), total / 16, rtol=1e-6, atol=0)
        torch.testing.assert_close(model(pixels, labels=labels).loss.double(), total / 8, rtol=1e-6, atol=0)
