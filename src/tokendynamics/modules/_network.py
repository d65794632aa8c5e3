"""What the networks of this package have in common as transformers' `PreTrainedModel`s."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from torch import nn
from transformers import PreTrainedModel

from tokendynamics.modules._signed_matrix import SignedMatrix
from tokendynamics.numerics._errors import ArgumentValueError, expected


class Network(PreTrainedModel):
    """A network that starts as its constructors draw it, and whose modules know how to start anew."""

    base_model_prefix = "model"
    accepts_loss_kwargs = False
    """The loss is the mean over a batch: a Trainer divides it by the batches of an accumulation."""
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
