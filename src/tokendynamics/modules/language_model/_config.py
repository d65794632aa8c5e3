"""What a decoder in a chosen regime is built from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import PreTrainedConfig

from tokendynamics.modules._arguments import check_shares
from tokendynamics.modules._network import check_layers
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import whole_numbers
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_arguments

POSITIONS = ("learned", "sinusoidal", "rotary", "decoupled", "none")
REMEDIES = ("none", "identity", "diagonal")


class LanguageModelConfig(PreTrainedConfig):
    """Sizes and choices of a `LanguageModel`; transformers keeps it in config.json.

    Args:
        vocab_size: Words; 256 for bytes.
        hidden_size: Features of a token (dim).
        num_hidden_layers: Blocks.
        num_attention_heads: Heads, a divisor of hidden_size.
        intermediate_size: Hidden units of the feed-forward part; 0 leaves the part out.
        max_position_embeddings: The longest sequence.
        positions: ``"learned"``, ``"sinusoidal"``, ``"rotary"``, ``"decoupled"`` (`positional` (7)) or ``"none"``.
        rotary_width: Columns that are turned, even; None is the width of a head for "rotary" and 16 for "decoupled".
        remedy: ``"none"``, ``"identity"`` (+ λI) or ``"diagonal"`` (+ λA).
        norms: Before each part ("pre", with one at the end), after each sum ("post"), or "none".
        regime: A name in `REGIMES`.
        form: See `ConstrainedAttention`; likewise `symmetric`, `scope`, `output`, `skew`.
        value_start: Likewise, in the regimes that make V of W and A; the values of the others start as they do anyway.
        dropout: Of what each part adds to the residual stream.
        cutoffs: Words, numbered by falling frequency, at which the clusters of an `AdaptiveSoftmax` begin; None for the
            plain one.
        tie_word_embeddings: Whether the embedding's table is the output's as well.

    Raises:
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: An unknown choice, or sizes that do not fit.

    >>> LanguageModelConfig(hidden_size=32, regime="divergence").num_attention_heads
    4
    """

    model_type = "tokendynamics-decoder"

    @typed_arguments
    def __init__(
        self,
        vocab_size: int = 256,
        hidden_size: int = 64,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 4,
        intermediate_size: int = 256,
        max_position_embeddings: int = 256,
        positions: str = "sinusoidal",
        rotary_width: int | None = None,
        remedy: str = "none",
        norms: str = "pre",
        regime: str = "baseline",
        form: str = "congruence",
        symmetric: bool = False,
        scope: str = "sum",
        output: str = "free",
        skew: float | None = None,
        value_start: str = "identity",
        dropout: float = 0.0,
        cutoffs: Sequence[int] | None = None,
        tie_word_embeddings: bool = False,
        **further: Any,
    ) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.intermediate_size, self.max_position_embeddings = intermediate_size, max_position_embeddings
        self.positions, self.rotary_width, self.remedy, self.norms = positions, rotary_width, remedy, norms
        self.regime, self.form, self.symmetric, self.scope = regime, form, symmetric, scope
        self.output, self.skew, self.value_start, self.dropout = output, skew, value_start, dropout
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
        check_layers(self, sizes, positions=(positions, POSITIONS), remedy=(remedy, REMEDIES))
        _check_rotation(positions, rotary_width, hidden_size // num_attention_heads)
        check_shares(dropout=dropout)
        self.cutoffs = None if cutoffs is None else _checked_cutoffs(cutoffs, vocab_size)
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(**further)


def _check_rotation(positions: str, width: int | None, of_head: int) -> None:
    if positions not in ("rotary", "decoupled"):
        if width is not None:
            raise ArgumentValueError(expected("rotary_width", f"None for positions = {positions!r}", width))
        return
    widest = of_head if positions == "rotary" else width
    chosen = widest if width is None else width
    if chosen is not None and (chosen < 2 or chosen % 2 or (widest is not None and chosen > widest)):
        most = f" to {of_head}, the width of a head" if positions == "rotary" else ""
        advice = f"None means {chosen}" if width is None else ""
        raise ArgumentValueError(expected("rotary_width", f"an even number from 2{most}", width, advice))


def _checked_cutoffs(cutoffs: Sequence[int], vocab_size: int) -> list[int]:
    if not isinstance(cutoffs, list | tuple):
        raise ArgumentTypeError(expected("cutoffs", "a list of whole numbers, or None", shown(cutoffs)))
    numbers = whole_numbers(cutoffs, "cutoffs")
    ends = [0, *numbers, vocab_size]
    if not numbers or any(before >= after for before, after in pairwise(ends)):
        wanted = f"rising numbers of words between 0 and vocab_size = {vocab_size}, or None"
        raise ArgumentValueError(expected("cutoffs", wanted, numbers))
    return numbers
