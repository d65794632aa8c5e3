"""The vision transformer: its configuration, patches and a class token, blocks, and the head that names the class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from tokendynamics.modules._arguments import check_shares, check_sizes
from tokendynamics.modules.network import (
    IGNORED,
    Block,
    RegimeNetwork,
    attention_of,
    check_further,
    check_layers,
    drawn_apart,
    mean_over_items,
    through_blocks,
)
from tokendynamics.modules.positions import LearnedPositions
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_positive
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments

_CLASSES = 1000
"""Of ImageNet."""


class VisionConfig(PreTrainedConfig):
    """Sizes and choices of a `VisionModel`; transformers keeps it in config.json. The defaults are DeiT-Tiny's.

    Args:
        image_size: Rows and columns of an image.
        channels: Its colours.
        patch_size: Rows and columns of a patch, a divisor of image_size.
        hidden_size: Features of a token (dim).
        num_hidden_layers: Blocks.
        num_attention_heads: Heads, a divisor of hidden_size.
        intermediate_size: Hidden units of the feed-forward part; 0 leaves the part out.
        num_labels: Classes; None is as many as `id2label` names, or else 1,000.
        id2label: Their names by number, as transformers has them.
        norms: Before each part ("pre", with one at the end), after each sum ("post"), or "none".
        layer_norm_eps: What the norms add to the variance.
        regime: A name in `REGIMES`.
        form: See `ConstrainedAttention`; likewise `symmetric`, `scope`, `output`, `skew`.
        value_start: Likewise, in the regimes that make V of W and A; the values of the others start as they do anyway.
        bias: Of queries, keys, values and a free output projection.
        drop_path: Chance that an update of the last block is left out for an image in training; it rises linearly from
            0 in the first.

    Raises:
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: An unknown choice, or sizes that do not fit.

    Source: `positional` D.4.2.

    >>> VisionConfig(image_size=32, patch_size=4).num_hidden_layers
    12
    """

    model_type = "tokendynamics-vision"
    attribute_map: ClassVar = {"num_channels": "channels"}

    @typed_arguments
    def __init__(
        self,
        image_size: int = 224,
        channels: int = 3,
        patch_size: int = 16,
        hidden_size: int = 192,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 3,
        intermediate_size: int = 768,
        num_labels: int | None = None,
        norms: str = "pre",
        layer_norm_eps: float = 1e-6,
        regime: str = "baseline",
        form: str = "congruence",
        symmetric: bool = False,
        scope: str = "sum",
        output: str = "free",
        skew: float | None = None,
        value_start: str = "identity",
        bias: bool = True,
        drop_path: float = 0.0,
        id2label: Mapping[int | str, str] | None = None,
        **further: Any,
    ) -> None:
        names = _class_names(num_labels, id2label)
        self.image_size, self.channels, self.patch_size = image_size, channels, patch_size
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.norms, self.layer_norm_eps = norms, layer_norm_eps
        self.regime, self.form, self.symmetric, self.scope = regime, form, symmetric, scope
        self.output, self.skew, self.value_start = output, skew, value_start
        self.bias, self.drop_path = bias, drop_path
        check_layers(self, ("image_size", "channels", "hidden_size", "num_hidden_layers"))
        check_shares(drop_path=drop_path)
        if patch_size < 1 or image_size % patch_size:
            raise ArgumentValueError("patch_size", f"a divisor of image_size = {image_size}", patch_size)
        as_positive(layer_norm_eps, "layer_norm_eps")
        numbers = {name: number for number, name in names.items()}
        super().__init__(**{**further, "id2label": names, "label2id": numbers})


def _class_names(num_labels: int | None, id2label: Mapping[int | str, str] | None) -> dict[int, str]:
    if id2label is None:
        classes = _CLASSES if num_labels is None else num_labels
        check_sizes(num_labels=classes)
        return {number: f"LABEL_{number}" for number in range(classes)}
    numbered = isinstance(id2label, Mapping) and sorted(map(str, id2label)) == sorted(map(str, range(len(id2label))))
    if not numbered:
        raise ArgumentValueError("id2label", "a name for every number from 0", shown(id2label))
    if num_labels not in (None, len(id2label)):
        raise ArgumentValueError("num_labels", f"the {len(id2label)} classes of id2label, or None", num_labels)
    return {int(number): name for number, name in id2label.items()}


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
            raise ArgumentValueError("pixel_values", wanted, tuple(pixel_values.shape))
        patches = self.convolution(pixel_values).flatten(2).mT
        first = self.class_token.expand(len(patches), 1, -1)
        return self.positions(torch.cat([first, patches], dim=1))


class _VisionNetwork(RegimeNetwork):
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


class Encoder(_VisionNetwork):
    """Embedding, blocks and the last norm: states of a vision transformer without its head."""

    @typed_arguments
    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.embedding = PatchEmbedding(config)
        last = max(config.num_hidden_layers - 1, 1)
        self.layers = nn.ModuleList(
            Block(
                drawn_apart(lambda: attention_of(config, causal=False, bias=config.bias)),
                config.hidden_size,
                config.intermediate_size,
                norms=config.norms,
                norm_eps=config.layer_norm_eps,
                drop_path=config.drop_path * number / last,
            )
            for number in range(config.num_hidden_layers)
        )
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
        return through_blocks(self.embedding(pixel_values), self.layers, self.norm, output_hidden_states)


class VisionModel(_VisionNetwork):
    """An `Encoder` with a head: logits of the classes, and their cross entropy in nats where labels are given.

    >>> config = VisionConfig(image_size=8, patch_size=4, hidden_size=12, num_hidden_layers=1, num_labels=3)
    >>> VisionModel(config)(torch.zeros(1, 3, 8, 8)).logits.shape
    torch.Size([1, 3])
    """

    @typed_arguments
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
        output = self.model(pixel_values, output_hidden_states, **further, return_dict=True)
        logits = self.head(output.last_hidden_state[:, 0])
        loss = None
        if labels is not None:
            total = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
            classes = labels.shape[1:].numel()  # 1, or the weights of one image
            items = num_items_in_batch if num_items_in_batch is None else num_items_in_batch / classes
            loss = mean_over_items(total, items, (labels != IGNORED).sum() / classes)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)


_NAMES = cast(dict[str, str], MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)  # pipelines read them
_NAMES[VisionConfig.model_type] = VisionModel.__name__
AutoConfig.register(VisionConfig.model_type, VisionConfig)
AutoModel.register(VisionConfig, Encoder)
AutoModelForImageClassification.register(VisionConfig, VisionModel)
