"""The vision transformer: patches and a class token, blocks, and the head that names the class."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from tokendynamics.modules._constrained_attention import ConstrainedAttention, Form, Output, Scope, Start
from tokendynamics.modules._network import IGNORED, Network, check_further, mean_over_items
from tokendynamics.modules._regimes import REGIMES
from tokendynamics.modules.block import Block, drawn_apart
from tokendynamics.modules.positions import LearnedPositions
from tokendynamics.modules.vision._config import VisionConfig
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

_SPREAD = 0.02
"""Standard deviation of matrices, positions and class token at the start."""


class PatchEmbedding(nn.Module):
    """Tokens of an image: one of the class, then its patches row by row, each with a learnt vector of its place."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.shape = (config.channels, config.image_size, config.image_size)
        dim, size = config.hidden_size, config.patch_size
        self.convolution = nn.Conv2d(config.channels, dim, kernel_size=size, stride=size)
        self.class_token = nn.Parameter(torch.empty(dim))
        self.positions = LearnedPositions(1 + (config.image_size // size) ** 2, dim, std=_SPREAD)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class token anew."""
        nn.init.normal_(self.class_token, 0.0, _SPREAD)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return states (batch, token, dim) of images (batch, channel, row, column)."""
        if pixel_values.ndim != 4 or tuple(pixel_values.shape[1:]) != self.shape:
            wanted = f"shape (batch, {', '.join(map(str, self.shape))})"
            raise ArgumentValueError(expected("pixel_values", wanted, tuple(pixel_values.shape)))
        patches = self.convolution(pixel_values).flatten(2).mT
        first = self.class_token.expand(len(patches), 1, -1)
        return self.positions(torch.cat([first, patches], dim=1))


def _blocks(config: VisionConfig) -> nn.ModuleList:
    last = max(config.num_hidden_layers - 1, 1)
    return nn.ModuleList(
        Block(
            drawn_apart(lambda: _attention(config)),
            config.hidden_size,
            config.intermediate_size,
            norms=config.norms,
            norm_eps=config.layer_norm_eps,
            drop_path=config.drop_path * number / last,
        )
        for number in range(config.num_hidden_layers)
    )


def _attention(config: VisionConfig) -> ConstrainedAttention:
    start = config.value_start if REGIMES[config.regime].made_of_both else "identity"
    return ConstrainedAttention(
        config.hidden_size,
        config.num_attention_heads,
        config.regime,
        form=cast(Form, config.form),
        symmetric=config.symmetric,
        causal=False,
        scope=cast(Scope, config.scope),
        output=cast(Output, config.output),
        bias=config.bias,
        skew=config.skew,
        value_start=cast(Start, start),
    )


class _Pretrained(Network):
    config_class = VisionConfig
    main_input_name = "pixel_values"

    def _init_weights(self, module: nn.Module) -> None:
        """Start a module anew, as DeiT does: matrices normal, biases zero, the convolution as PyTorch has it."""
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=_SPREAD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            super()._init_weights(module)


class Encoder(_Pretrained):
    """Embedding, blocks and the last norm: states of a vision transformer without its head."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.embedding = PatchEmbedding(config)
        self.layers = _blocks(config)
        for layer in cast("list[Block]", self.layers):
            if layer.feed_forward is not None:
                layer.feed_forward.apply(self._init_weights)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if config.norms == "pre" else None
        self._started()

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool | None = None, **further: Any
    ) -> BaseModelOutput:
        """Return the states of every token, (batch, token, dim): the class token is the first.

        Args:
            pixel_values: (batch, channel, row, column).
            output_hidden_states: Whether to return the states after every layer, the last ones after the last norm.
            further: None, False, or without effect.

        Raises:
            ArgumentValueError: Images of another size, or a further argument that would change the results.
        """
        check_further(further)
        x = self.embedding(pixel_values)
        states = [x]
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        if self.norm is not None:
            x = states[-1] = self.norm(x)
        kept = tuple(states) if output_hidden_states else None
        return BaseModelOutput(last_hidden_state=x, hidden_states=kept)


class VisionModel(_Pretrained):
    """An `Encoder` with a head: logits of the classes, and their cross entropy in nats where labels are given.

    >>> config = VisionConfig(image_size=8, patch_size=4, hidden_size=12, num_hidden_layers=1, num_labels=3)
    >>> VisionModel(config)(torch.zeros(1, 3, 8, 8)).logits.shape
    torch.Size([1, 3])
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.model = Encoder(config)
        self.head = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self._init_weights(self.head)
        self._started()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **further: Any,
    ) -> ImageClassifierOutput:
        """Return logits (batch, class) that the class token gives, and the mean loss.

        Args:
            pixel_values: See `Encoder.forward`.
            labels: (batch,), classes; or (batch, class), the weight of every class.
            output_hidden_states: See `Encoder.forward`.
            num_items_in_batch: Divides the sum of the losses in place of the number of labels here (−100 is left out);
                entries of the labels of all batches of an accumulation, as a Trainer counts them.
            further: See `Encoder.forward`.
        """
        found = self.model(pixel_values, output_hidden_states, **further, return_dict=True)
        logits = self.head(found.last_hidden_state[:, 0])
        loss = None
        if labels is not None:
            total = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
            classes = labels.shape[1:].numel()  # 1, or the weights of one image
            items = num_items_in_batch if num_items_in_batch is None else num_items_in_batch / classes
            loss = mean_over_items(total, items, (labels != IGNORED).sum() / classes)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)


_names = cast(dict[str, str], MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)  # pipelines read them
_names[VisionConfig.model_type] = VisionModel.__name__
AutoConfig.register(VisionConfig.model_type, VisionConfig)
AutoModel.register(VisionConfig, Encoder)
AutoModelForImageClassification.register(VisionConfig, VisionModel)
