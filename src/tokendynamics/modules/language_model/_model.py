"""The decoder: its configuration, blocks, table of tokens, and the heads that predict the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from tokendynamics.modules._arguments import check_shares
from tokendynamics.modules._constrained_attention import ConstrainedAttention
from tokendynamics.modules.matrices import at_least_float32
from tokendynamics.modules.network import (
    IGNORED,
    Block,
    RegimeNetwork,
    attention_of,
    check_further,
    check_layers,
    check_mask,
    check_positions,
    drawn_apart,
    mean_over_items,
    through_blocks,
)
from tokendynamics.modules.positions import (
    DecoupledRotary,
    Kind,
    LearnedPositions,
    NegativeDiagonal,
    Rotary,
    SinusoidalPositions,
)
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import whole_numbers
from tokendynamics.numerics.errors import shown
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
            raise ArgumentValueError("rotary_width", f"None for positions = {positions!r}", width)
        return
    widest = of_head if positions == "rotary" else width
    chosen = widest if width is None else width
    if chosen is not None and (chosen < 2 or chosen % 2 or (widest is not None and chosen > widest)):
        most = f" to {of_head}, the width of a head" if positions == "rotary" else ""
        advice = f"None means {chosen}" if width is None else ""
        raise ArgumentValueError("rotary_width", f"an even number from 2{most}", width, advice)


def _checked_cutoffs(cutoffs: Sequence[int], vocab_size: int) -> list[int]:
    if not isinstance(cutoffs, list | tuple):
        raise ArgumentTypeError("cutoffs", "a list of whole numbers, or None", shown(cutoffs))
    numbers = whole_numbers(cutoffs, "cutoffs")
    ends = [0, *numbers, vocab_size]
    if not numbers or any(before >= after for before, after in pairwise(ends)):
        wanted = f"rising numbers of words between 0 and vocab_size = {vocab_size}, or None"
        raise ArgumentValueError("cutoffs", wanted, numbers, "with few words None is enough: one softmax over all")
    return numbers


class AdaptiveSoftmax(nn.Module):
    """A softmax over the frequent words and the clusters of the others, and one over the words of each cluster.

    Words are numbered by falling frequency, and cluster i has those from ``cutoffs[i]`` to the next cutoff:
    ``p(word) = p(cluster | state) p(word | cluster, state)``. Training asks for the words of a cluster only where one
    of them is the next. Every word has a row of full width in `weight`, which an embedding may share.

    Args:
        dim: Features of a state.
        words: Of the vocabulary.
        cutoffs: Where clusters begin, rising, between 1 and words − 1.

    Source: `positional` D.3, whose network (Transformer-XL) has this head without narrower clusters.

    >>> head = AdaptiveSoftmax(4, 10, [3, 6])
    >>> log_p = head(torch.ones(2, 4)).detach()
    >>> torch.allclose(log_p.exp().sum(-1), torch.ones(2))
    True
    >>> torch.allclose(head.nats(torch.ones(2, 4), torch.tensor([1, 7])).detach(), -log_p[[0, 1], [1, 7]])
    True
    """

    def __init__(self, dim: int, words: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        self.ranges = list(zip(cutoffs, [*cutoffs[1:], words], strict=True))
        self.weight = nn.Parameter(torch.empty(words, dim))
        self.bias = nn.Parameter(torch.empty(words))
        self.clusters = nn.Linear(dim, len(cutoffs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows as nn.Linear starts; no word and no cluster is preferred."""
        spread = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -spread, spread)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.clusters.bias)

    def forward(self, x: Tensor, words: Tensor | None = None) -> Tensor:
        """Return the log-probabilities of all words, (…, word), for states (…, dim); with `words`, see `nats`."""
        if words is not None:
            return self._nats(x, words)
        first = self._first(x)
        frequent = self.ranges[0][0]
        inner = [
            self._within(x, start, end) + first[..., frequent + cluster, None]
            for cluster, (start, end) in enumerate(self.ranges)
        ]
        return torch.cat([first[..., :frequent], *inner], dim=-1)

    def nats(self, x: Tensor, words: Tensor) -> Tensor:
        """Return −log p of one word for each state, (token,), for states (token, dim)."""
        return self(x, words)  # called, so that hooks and masks of the head hold here too

    def _nats(self, x: Tensor, words: Tensor) -> Tensor:
        frequent, place = self.ranges[0][0], words.clone()
        within = []
        for cluster, (start, end) in enumerate(self.ranges):
            rows = ((words >= start) & (words < end)).nonzero()[:, 0]
            place[rows] = frequent + cluster
            if len(rows):
                within.append((rows, self._within(x[rows], start, end).gather(-1, words[rows, None] - start)[:, 0]))
        nats = -self._first(x).gather(-1, place[:, None])[:, 0]
        for rows, log_p in within:
            nats = nats.index_add(0, rows, -log_p)
        return nats

    def _first(self, x: Tensor) -> Tensor:
        frequent = self.ranges[0][0]
        words = functional.linear(x, self.weight[:frequent], self.bias[:frequent])
        return at_least_float32(torch.cat([words, self.clusters(x)], -1)).log_softmax(-1)

    def _within(self, x: Tensor, start: int, end: int) -> Tensor:
        return at_least_float32(functional.linear(x, self.weight[start:end], self.bias[start:end])).log_softmax(-1)


class SharedEmbedding(nn.Embedding):
    """A table whose rows are multiplied by √dim as they are read: as a head it then gives logits of size 1.

    Args:
        words: Of the vocabulary.
        dim: Features of a token.

    >>> table = SharedEmbedding(3, 4)
    >>> torch.equal(table(torch.tensor([2]))[0], 2 * table.weight[2])
    True
    """

    def __init__(self, words: int, dim: int) -> None:
        super().__init__(words, dim)

    def reset_parameters(self) -> None:
        """Draw the rows with entries of standard deviation 1/√dim."""
        nn.init.normal_(self.weight, 0.0, 1 / math.sqrt(self.embedding_dim))

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding of token ids, (…, dim)."""
        return super().forward(input) * math.sqrt(self.embedding_dim)


_DECOUPLED_WIDTH = 16


def _attention(config: LanguageModelConfig) -> ConstrainedAttention:
    dim, heads = config.hidden_size, config.num_attention_heads
    terms: list[nn.Module] = []
    if config.positions == "rotary":
        terms.append(Rotary(config.rotary_width or dim // heads))
    if config.positions == "decoupled":
        terms.append(DecoupledRotary(dim, heads, config.rotary_width or _DECOUPLED_WIDTH))
    if config.remedy != "none":
        terms.append(NegativeDiagonal(dim, heads, cast(Kind, config.remedy)))
    return attention_of(config, terms=terms)


class _LanguageNetwork(RegimeNetwork):
    config_class = LanguageModelConfig


class Decoder(_LanguageNetwork):
    """Embedding, positions, blocks and the last norm: states of a causal transformer without its head."""

    @typed_arguments
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        dim = config.hidden_size
        table = SharedEmbedding if config.tie_word_embeddings else nn.Embedding
        self.embed_tokens = table(config.vocab_size, dim)
        self.positions: nn.Module | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_position_embeddings, dim)
        elif config.positions == "sinusoidal":
            self.positions = SinusoidalPositions()
        wide = config.intermediate_size
        self.layers = nn.ModuleList(
            Block(drawn_apart(lambda: _attention(config)), dim, wide, norms=config.norms, dropout=config.dropout)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(dim) if config.norms == "pre" else None
        self._started()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        position_ids: Tensor | None = None,
        **further: Any,
    ) -> BaseModelOutput:
        """Return the states of every token, (batch, token, dim).

        Args:
            input_ids: (batch, token).
            inputs_embeds: (batch, token, dim), in place of `input_ids`.
            attention_mask: (batch, token), zeros for padding on the right: no token before it sees it.
            output_hidden_states: Whether to return the states after every layer, the last ones after the last norm.
            position_ids: 0, 1, 2, … in every row, (batch, token); those of padding may be any.
            further: None, False, or without effect: ``use_cache``, ``token_type_ids`` and the like.

        Raises:
            ArgumentValueError: No input or both, a sequence that is too long, padding that is not on the right, other
                positions, or a further argument that would change the results.
        """
        check_further(further)
        if (input_ids is None) == (inputs_embeds is None):
            raise ArgumentValueError("input_ids", "either input_ids or inputs_embeds", "both or neither")
        x = cast(Tensor, self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds)
        longest = self.config.max_position_embeddings
        if x.shape[1] > longest:
            raise ArgumentValueError("input_ids", f"{longest} tokens at most", x.shape[1])
        check_mask(attention_mask, x.shape[:2])
        check_positions(position_ids, attention_mask, x.shape[1])
        x = x if self.positions is None else self.positions(x)
        return through_blocks(x, self.layers, self.norm, output_hidden_states)


class LanguageModel(_LanguageNetwork, GenerationMixin):
    """A `Decoder` with a head: logits of the next token, and their cross entropy in nats where labels are given.

    With `cutoffs` in its configuration the head is an `AdaptiveSoftmax`: its logits are log-probabilities, and with
    labels there is the loss alone, so that nothing of size (batch, token, word) is made. `generate` keeps no keys and
    values: it runs the whole sequence for each new token.

    >>> import torch
    >>> model = LanguageModel(LanguageModelConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2))
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 256])
    """

    _tied_weights_keys: ClassVar = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "lm_head.weight": "model.embed_tokens.weight"
    }

    @typed_arguments
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # a Trainer then counts labels[:, 1:], those that are in the loss
        self.model = Decoder(config)
        if config.cutoffs is None:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        else:
            self.lm_head = AdaptiveSoftmax(config.hidden_size, config.vocab_size, config.cutoffs)
        self.generation_config.use_cache = False
        self._started()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _name_for_trainers(cls)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        position_ids: Tensor | None = None,
        **further: Any,
    ) -> CausalLMOutput:
        """Return logits (batch, token, word), and the mean loss of labels[:, 1:] (−100 is left out).

        Args:
            input_ids: See `Decoder.forward`, as for the other arguments.
            attention_mask: Likewise.
            labels: (batch, token), as input_ids: they are shifted here.
            inputs_embeds: Likewise.
            output_hidden_states: Likewise.
            logits_to_keep: How many tokens at the end have logits; 0 for all. Without labels only.
            num_items_in_batch: Divides the sum of the losses in place of the number of labels here; the labels of all
                batches of an accumulation, so that their losses add up to the mean over all.
            position_ids: Likewise.
            further: Likewise.
        """
        further |= {"position_ids": position_ids, "return_dict": True}
        output = self.model(input_ids, attention_mask, inputs_embeds, output_hidden_states, **further)
        states = output.last_hidden_state
        if labels is None:
            logits, loss = self.lm_head(states[:, -logits_to_keep:]), None
        else:
            logits, loss = self._fitted(states, labels[:, 1:].flatten(), num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)

    def _fitted(self, states: Tensor, wanted: Tensor, num_items: Tensor | int | None) -> tuple[Tensor | None, Tensor]:
        """Return logits, where they are made, and the loss of the words after each but the last token."""
        if isinstance(self.lm_head, AdaptiveSoftmax):
            kept = wanted != IGNORED
            nats = self.lm_head.nats(states[:, :-1].flatten(0, 1)[kept], wanted[kept])
            return None, mean_over_items(nats.sum(), num_items, len(nats))
        logits = self.lm_head(states)
        before = at_least_float32(logits[:, :-1].flatten(0, 1))
        total = functional.cross_entropy(before, wanted, ignore_index=IGNORED, reduction="sum")
        return logits, mean_over_items(total, num_items, (wanted != IGNORED).sum())

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, logits_to_keep: int = 1, **_: Any
    ) -> dict[str, Any]:
        """Return the arguments of the next pass: the whole sequence, since nothing is kept of the last one.

        Raises:
            ArgumentValueError: Padding, behind which nothing could follow.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ArgumentValueError("attention_mask", "prompts of one length, or one at a time", "padding")
        return {"input_ids": input_ids, "logits_to_keep": logits_to_keep}

    def _validate_generated_length(
        self, generation_config: Any, input_ids_length: int, has_default_max_length: bool
    ) -> None:
        """Refuse what would end in a sequence that is too long, before the first token is made."""
        room = self.config.max_position_embeddings + 1 - input_ids_length  # the last one is never read
        asked = generation_config.max_length - input_ids_length
        if asked > room:
            wanted = f"{room} at most after {input_ids_length} tokens, by max_position_embeddings"
            raise ArgumentValueError("max_new_tokens", wanted, asked)
        cast(Any, super())._validate_generated_length(generation_config, input_ids_length, has_default_max_length)

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head


def _name_for_trainers(kind: type[LanguageModel]) -> None:
    """Write a class to the names of causal language models, to which ``AutoModelForCausalLM.register`` does not write.

    A Trainer that smooths labels shifts them for these names alone; pipelines read them as well.
    """
    of_type = "" if kind is LanguageModel else f" {kind.__qualname__}"
    names = cast(dict[str, str], MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names[LanguageModelConfig.model_type + of_type] = kind.__name__


_name_for_trainers(LanguageModel)
AutoConfig.register(LanguageModelConfig.model_type, LanguageModelConfig)
AutoModel.register(LanguageModelConfig, Decoder)
AutoModelForCausalLM.register(LanguageModelConfig, LanguageModel)
