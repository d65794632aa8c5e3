"""What the networks of this package have in common as transformers' `PreTrainedModel`s."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from tokendynamics.modules._signed_matrix import SignedMatrix
from tokendynamics.numerics._errors import ArgumentValueError, expected

IGNORED = -100
"""The label of what is in no loss."""


class Network(PreTrainedModel):
    """A network that starts as its constructors draw it, and whose modules know how to start anew."""

    base_model_prefix = "model"
    accepts_loss_kwargs = True
    """A Trainer passes `num_items_in_batch`, the labels of all batches of one step, and does not divide the loss."""
    _no_split_modules: ClassVar = ["Block"]  # pyright: ignore[reportIncompatibleVariableOverride]

    def _init_weights(self, module: nn.Module) -> None:
        """Start a module anew; inner ones come first, so that an attention has the last word on its own."""
        if isinstance(module, SignedMatrix):
            module.reset_signs()
        else:
            getattr(module, "reset_parameters", lambda: None)()

    def _started(self) -> None:
        """Keep what the constructors have drawn: of a seed, regimes differ in their attention alone."""
        if not any(parameter.is_meta for parameter in self.parameters()):
            for module in self.modules():
                vars(module)["_is_hf_initialized"] = True
        self.post_init()


def mean_over_items(total: Tensor, num_items: Tensor | float | None, here: Tensor | int) -> Tensor:
    """Return the sum of the losses of a batch as its part of the mean over all batches of one step.

    Args:
        total: Sum of the losses.
        num_items: Labels of all batches of the step; None where this batch is all of it.
        here: Labels of this batch.
    """
    if num_items is None:
        num_items = here
    return total / (num_items.to(total.device) if isinstance(num_items, Tensor) else num_items)


def check_choices(**chosen: tuple[str, Collection[str]]) -> None:
    """Refuse a value of a configuration that is not one of the known ones, for each ``name=(value, known)``."""
    for name, (value, known) in chosen.items():
        if value not in known:
            raise ArgumentValueError(expected(name, "one of " + ", ".join(known), repr(value)))


def check_sizes(**sizes: int) -> None:
    """Refuse a size of a configuration below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentValueError(expected(name, "an integer from 1", size))


def check_heads(hidden_size: int, num_attention_heads: int) -> None:
    """Refuse a number of heads that does not divide the features of a token."""
    if num_attention_heads < 1 or hidden_size % num_attention_heads:
        wanted = f"a divisor of hidden_size = {hidden_size}"
        raise ArgumentValueError(expected("num_attention_heads", wanted, num_attention_heads))
