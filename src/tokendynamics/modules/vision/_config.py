"""What a vision transformer in a chosen regime is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from transformers import PreTrainedConfig

from tokendynamics.modules._arguments import check_shares, check_spreads
from tokendynamics.modules._constrained_attention import Form, Output, Scope, Start
from tokendynamics.modules._network import check_choices, check_heads, check_sizes
from tokendynamics.modules._regimes import REGIMES
from tokendynamics.modules.block import NORMS
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_positive
from tokendynamics.numerics.errors import expected, shown
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
        names = _names(num_labels, id2label)
        self.image_size, self.channels, self.patch_size = image_size, channels, patch_size
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.norms, self.layer_norm_eps = norms, layer_norm_eps
        self.regime, self.form, self.symmetric, self.scope = regime, form, symmetric, scope
        self.output, self.skew, self.value_start = output, skew, value_start
        self.bias, self.drop_path = bias, drop_path
        _check(self)
        numbers = {name: number for number, name in names.items()}
        super().__init__(**{**further, "id2label": names, "label2id": numbers})


def _names(num_labels: int | None, id2label: Mapping[int | str, str] | None) -> dict[int, str]:
    if id2label is None:
        classes = _CLASSES if num_labels is None else num_labels
        check_sizes(num_labels=classes)
        return {number: f"LABEL_{number}" for number in range(classes)}
    numbered = isinstance(id2label, Mapping) and sorted(map(str, id2label)) == sorted(map(str, range(len(id2label))))
    if not numbered:
        raise ArgumentValueError(expected("id2label", "a name for every number from 0", shown(id2label)))
    if num_labels not in (None, len(id2label)):
        wanted = f"the {len(id2label)} classes of id2label, or None"
        raise ArgumentValueError(expected("num_labels", wanted, num_labels))
    return {int(number): name for number, name in id2label.items()}


def _check(config: VisionConfig) -> None:
    check_choices(
        norms=(config.norms, NORMS),
        regime=(config.regime, REGIMES),
        form=(config.form, get_args(Form)),
        scope=(config.scope, get_args(Scope)),
        output=(config.output, get_args(Output)),
        value_start=(config.value_start, get_args(Start)),
    )
    sizes = ("image_size", "channels", "hidden_size", "num_hidden_layers")
    check_sizes(**{name: getattr(config, name) for name in sizes})
    check_heads(config.hidden_size, config.num_attention_heads)
    check_shares(drop_path=config.drop_path)
    check_spreads(skew=config.skew)
    if config.patch_size < 1 or config.image_size % config.patch_size:
        wanted = f"a divisor of image_size = {config.image_size}"
        raise ArgumentValueError(expected("patch_size", wanted, config.patch_size))
    if config.intermediate_size < 0:
        raise ArgumentValueError(expected("intermediate_size", "an integer from 0", config.intermediate_size))
    as_positive(config.layer_norm_eps, "layer_norm_eps")
