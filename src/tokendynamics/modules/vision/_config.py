"""What a vision transformer in a chosen regime is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from transformers import PreTrainedConfig

from tokendynamics.modules._block import NORMS
from tokendynamics.modules._constrained_attention import Form, Output, Scope, Start
from tokendynamics.modules._network import check_choices, check_heads, check_sizes
from tokendynamics.modules._regimes import REGIMES
from tokendynamics.numerics._errors import ArgumentValueError, expected

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
        form: See `ConstrainedAttention`; likewise `symmetric`, `scope`, `output`, `skew`, `value_start`.
        bias: Of queries, keys, values and a free output projection.
        drop_path: Chance that an update of the last block is left out for an image in training; it rises linearly from
            0 in the first.

    Raises:
        ArgumentValueError: An unknown choice, or sizes that do not fit.

    Source: `positional` D.4.2.
    """

    model_type = "tokendynamics-vision"
    attribute_map: ClassVar = {"num_channels": "channels"}

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
        named = _CLASSES if id2label is None else len(id2label)
        classes = named if num_labels is None else num_labels
        if id2label is not None and classes != named:
            raise ArgumentValueError(expected("num_labels", f"the {named} classes of id2label, or None", num_labels))
        check_choices(
            norms=(norms, NORMS),
            regime=(regime, REGIMES),
            form=(form, get_args(Form)),
            scope=(scope, get_args(Scope)),
            output=(output, get_args(Output)),
            value_start=(value_start, get_args(Start)),
        )
        check_sizes(
            image_size=image_size,
            channels=channels,
            hidden_size=hidden_size,
            num_hidden_layers=num_hidden_layers,
            num_labels=classes,
        )
        check_heads(hidden_size, num_attention_heads)
        if patch_size < 1 or image_size % patch_size:
            raise ArgumentValueError(expected("patch_size", f"a divisor of image_size = {image_size}", patch_size))
        if intermediate_size < 0:
            raise ArgumentValueError(expected("intermediate_size", "an integer from 0", intermediate_size))
        self.image_size, self.channels, self.patch_size = image_size, channels, patch_size
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.norms, self.layer_norm_eps = norms, layer_norm_eps
        self.regime, self.form, self.symmetric, self.scope = regime, form, symmetric, scope
        self.output, self.skew, self.value_start = output, skew, value_start
        self.bias, self.drop_path = bias, drop_path
        super().__init__(**further)
        if id2label is None:
            self.num_labels = classes
        else:
            self.id2label = {int(number): name for number, name in id2label.items()}
            self.label2id = {name: number for number, name in self.id2label.items()}
