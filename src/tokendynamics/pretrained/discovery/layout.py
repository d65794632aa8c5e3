"""The record of a network's layout: where each layer's circuits, states and conventions were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tokendynamics.pretrained.discovery._calls import BlockSites
from tokendynamics.pretrained.discovery._columns import Part, Storage
from tokendynamics.pretrained.discovery._maps import HeadFactor, Norm, Probed
from tokendynamics.pretrained.discovery._positional import PositionalPart
from tokendynamics.pretrained.discovery._rotation import Rotation
from tokendynamics.pretrained.discovery._trials import Mixing
from tokendynamics.pretrained.packs import Packing

ROUNDING = 1e-3
"""How much of the largest entry of a token two passes may differ by where sums are taken in another order."""

_OF_SUMS = ("attention_factor", "feed_forward_factor", "attention_skip", "feed_forward_skip")


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How a block's output comes from its input x.

    Attributes:
        kind: "added": y = x + a·attention + b·feed-forward; "norm after": each sum goes through a norm.
        attention: Module, within the block, whose output is the attention's part; in a block without attention that
            of what mixes tokens otherwise, None where nothing does.
        attention_factor: What multiplies it; None where that is learned, or each feature has a factor of its own, which
            is the same for all tokens (layer scales, gates by a condition).
        feed_forward: Likewise the feed-forward part; None for a block that is an attention alone.
        feed_forward_factor: Likewise.
        further: Further modules of the feed-forward part, each with its factor (Macaron's two halves, experts beside a
            part, an adapter behind it). A gate on that part acts on all of them.
        ahead: Which modules of the feed-forward part act before the attention: no state is then one after the attention
            alone.
        attention_skip: What multiplies the state before the attention in the sum with it (DeepNorm's alpha); None where
            that is learned.
        feed_forward_skip: Likewise the state after the attention in the sum with the feed-forward part.
        parallel: Whether both read the same state.
        attention_norm: Norm at the end of the attention's part, inside the branch or after the sum; None without.
        feed_forward_norm: Likewise.
        after_attention: Module at which the state after the attention shows, and which side of it; the module and
            "sum" where it has to be added up; None where it does not show.
        norm: What `attention_norm` is.
        by_token: Whether factors may depend on the token, such as those of a highway: they are then None or
            1, and what is kept of the state may be a norm of it.
    """

    kind: Literal["added", "norm after"]
    attention: str | None
    attention_factor: float | None
    feed_forward: str | None = None
    feed_forward_factor: float | None = 1.0
    further: tuple[tuple[str, float | None], ...] = ()
    ahead: tuple[str, ...] = ()
    attention_skip: float | None = 1.0
    feed_forward_skip: float | None = 1.0
    parallel: bool = False
    attention_norm: str | None = None
    feed_forward_norm: str | None = None
    after_attention: tuple[str, Literal["input", "output", "sum"]] | None
    norm: Norm | None = None
    by_token: bool = False

    @property
    def feed_forward_modules(self) -> tuple[str, ...]:
        """All modules of the feed-forward part."""
        return () if self.feed_forward is None else (*(name for name, _ in self.further), self.feed_forward)

    @property
    def plain(self) -> bool:
        """Whether the block hands on the state itself, neither multiplied nor normalized, beside its parts."""
        return self.kind == "added" and self.attention_skip == self.feed_forward_skip == 1.0

    @property
    def factors(self) -> dict[str, float | None]:
        """Every factor of the sums, by what it multiplies."""
        return {name: getattr(self, name) for name in _OF_SUMS} | dict(self.further)

    def with_fixed_factors(self, other: Residual | None) -> Residual:
        """Return the same with None for each factor that is another one in a second pass with other weights."""
        others = {} if other is None else other.factors

        def known(name: str, one: float | None) -> float | None:
            two = others.get(name)
            same = one is not None and two is not None and abs(one - two) <= ROUNDING * abs(one)
            return one if same or one == 1.0 else None

        factors: dict[str, Any] = {name: known(name, getattr(self, name)) for name in _OF_SUMS}
        further = tuple((name, known(name, factor)) for name, factor in self.further)
        return replace(self, further=further, **factors)


Positions: TypeAlias = Literal["rotary", "relative bias", "learned", "absolute", "in the blocks", "none"]
"""What tells a network the order of its tokens: rotations of queries and keys; a bias of the logits; a table added to
the embeddings, without or with a norm behind it; something inside the blocks; nothing but the mask."""

AfterOutput: TypeAlias = Literal["", "a factor", "a function"]
"""What acts on the output of an output projection."""

NO_ATTENTION = "it has no attention"

CROSSES = "its cross-attention reads another sequence and is not audited"

CROSSES_ALONE = "its attention is a cross-attention: its keys come from another sequence"

ALL_CROSS = "each of its attentions compares two sequences"
"""How a problem begins where queries and keys of every attention of a block come from different tensors."""

TOO_FEW_ROWS = "too few to find what positions do"
"""Of the rows of tokens that all inputs share, so that none can share a pass with another one."""

NOT_SIDE_BY_SIDE = "no module reads the heads' outputs alone, unchanged and one head after the other"

LOOKS_AHEAD = "with some token ids it reads later tokens"

SHARES_KEYS = "its keys are those of an attention before it"
"""How a problem begins where a block takes over the keys of another one."""

NOT_SHOWN = (
    "no softmax of products of queries and keys was seen in it; it may have no attention, one without a softmax, or "
    "one that runs as one function"
)

NOT_READ = "its attention is not read: only a factor of each head, a term, a mask or a soft cap may act on its logits"
"""How a problem begins where products of queries and keys are followed to something else."""

IN_ONE_PIECE = "runs in one piece"
"""In a problem where an attention of PyTorch could not be taken apart."""

_FACTORS = ("query", "key", "value")

OTHER_PLACES = "its queries and keys are not one for each token, in the order of the tokens"
"""How a problem begins where the weights of an attention are not between the tokens, such as with learned keys."""

HEADS_FIRST = "each of its heads stands with all inputs behind the last one"
"""A problem where the weights that show as those of one input would be those of several."""

OTHER_AXIS = "its attention runs over"
"""How a problem begins where the tokens of an attention are not those of the states."""


_HIDING = (NOT_SHOWN, NOT_READ, CROSSES_ALONE, ALL_CROSS, SHARES_KEYS, IN_ONE_PIECE, OTHER_AXIS)
"""Words in a problem of an attention whose weights between the tokens do not show."""


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """Where the factors of one attention are; names of modules are within its block.

    Attributes:
        module: The attention module.
        heads: Query heads.
        kv_heads: Key and value heads.
        d_head: Width of queries and keys.
        d_value: Width of values.
        query: Columns of all heads' queries, side by side.
        key: Likewise the keys'.
        value: Likewise the values'.
        output: The output projection, which reads the heads side by side, and how its weight is stored; without one the
            module that gives the heads themselves, and "heads".
        scale: Factor of the logits.
        causal: Whether a token sees only itself and earlier tokens.
        rotation: What positions do to queries and keys; None for nothing.
        relative_bias: Whether a bias by position is added to the logits.
        soft_cap: c of c·tanh(s/c); None without.
        sinks: Parameter with a learned logit for each head; None without.
        window: Width of a sliding window; None without. It is a mask, no part of the factors.
        other_mask: Whether a mask hides other pairs of tokens than later ones, a window and padding: bands, prefixes,
            the token itself, or pairs that depend on the tokens.
        mask_by_ids: Whether the mask was seen to depend on token ids, as of a separator or of padding.
        scaled_for: How many tokens there were where the factor of the logits was found, if it depends on that number;
            otherwise None, as where it is not known to.
        norm: The norm whose output the attention reads, and what it is; None if it reads the state itself.
        error: Largest relative difference of the attention recomputed from these facts, where they were found.
        token_bias: Whether something is added to the logits that depends on the tokens, such as products of queries or
            keys with vectors of positions.
        explicit: Whether the network itself holds the weights of all pairs of tokens while it runs.
        further_senders: How many keys and values come from no token (`add_bias_kv` and `add_zero_attn` of
            `nn.MultiheadAttention`). They are no part of the factors.
        gate: The module whose outputs, through a sigmoid, multiply the heads' outputs before the output projection;
            None without. It depends on the token and is no part of the factors.
        output_norm: The norm of the heads' outputs before the output projection, and what it is; None without. Its gain
            and bias are part of the output factor, the size by which it divides each token is not.
        head_factor: The parameter that multiplies the heads' outputs before the output projection, such as one for each
            head; None without. It is part of the output factor.
        changed: Whether it reads neither the state nor a recognized norm of it, but a function of them, such as a norm
            with a scale and a shift that depend on a condition (DiT).
        after_output: What acts on the output of its output projection before the block adds that up, but for a norm: a
            factor that is learned, of each feature (layer scales) or negative, or a function (an adapter of several
            layers); empty for nothing. It is no part of the factors.
        constant_after: Whether a vector that is no bias of the output projection is added there, such as a parameter of
            the attention. It is no part of the factors.
    """

    module: str
    heads: int
    kv_heads: int
    d_head: int
    d_value: int
    query: tuple[Part, ...]
    key: tuple[Part, ...]
    value: tuple[Part, ...]
    output: tuple[str, Storage]
    scale: float
    causal: bool
    rotation: Rotation | None
    relative_bias: bool
    soft_cap: float | None
    sinks: str | None
    window: int | None
    norm: tuple[str, Norm] | None
    error: float
    token_bias: bool = False
    explicit: bool = False
    further_senders: int = 0
    gate: str | None = None
    output_norm: tuple[str, Norm] | None = None
    head_factor: HeadFactor | None = None
    changed: bool = False
    after_output: AfterOutput = ""
    constant_after: bool = False
    other_mask: bool = False
    mask_by_ids: bool = False
    scaled_for: int | None = None

    @property
    def normed(self) -> tuple[str, ...]:
        """Which of query, key and value are normalized on the way from the attention's input."""
        return tuple(name for name in _FACTORS if any(isinstance(does, Norm) for _, does in _maps(getattr(self, name))))

    @property
    def begins_with_norm(self) -> bool:
        """Whether the norm is inside of the attention module, which then reads the state itself."""
        return self.norm is not None and (not self.module or self.norm[0].startswith(f"{self.module}."))

    @property
    def probed(self) -> dict[str, int]:
        """Names of its maps that are read by what they do, and how many features each reads."""
        maps: list[tuple[str, Storage | Norm]] = [self.output]
        maps += [does for name in _FACTORS for does in _maps(getattr(self, name))]
        return {name: does.width for name, does in maps if isinstance(does, Probed)}

    @property
    def after_heads(self) -> tuple[str, ...]:
        """What acts on the heads' outputs before their projection, with a factor that depends on the token."""
        acting = {"a gate": self.gate, "a norm": self.output_norm}
        return tuple(words for words, module in acting.items() if module is not None)

    @property
    def _projections(self) -> tuple[str, ...]:
        return () if self.output[1] == "heads" else (self.output[0],)

    @property
    def modules_of_products(self) -> dict[str, tuple[str, ...]]:
        """The projections of the QK and of the OV product, within the block; a fused one is of both."""
        return {"qk": (*_modules(self.query), *_modules(self.key)), "ov": (*_modules(self.value), *self._projections)}

    @property
    def modules(self) -> tuple[str, ...]:
        """Every module whose tensors the factors need, within the block."""
        read = [name for parts in (self.query, self.key, self.value) for name in _modules(parts, functions=True)]
        read += self._projections
        norms = [norm[0] for norm in (self.output_norm, self.norm) if norm is not None]
        owners = [] if self.head_factor is None else [self.head_factor.parameter.rpartition(".")[0]]
        return tuple(dict.fromkeys([*read, *norms, *owners]))


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """One block.

    Attributes:
        attention: Its attention; None where it could not be read, or it has none.
        residual: How it adds its parts; None where that was not found.
        norms: Its norms of the residual stream, by the names of their modules within the block.
        problem: Why something is None; empty otherwise.
        attends: Whether it has an attention, read or not. False for a block without one between blocks that have one;
            in a network in which no attention was seen, True: it may have one that does not show.
        mixing: Where the attention shows and was not read, or a block has none among blocks with one, which other
            tokens act on a token; otherwise as if all did.
        sites: Where the states before and after it show.
        joins: Whether it reads other states than the block before it gave, such as a sum with those of an earlier one.
        runs: Of how many attentions its own is: more than one where its heads run one after the other.
        order: The places among the heads that run of those that its output projection reads; empty for the same order.
    """

    attention: AttentionLayout | None
    residual: Residual | None
    norms: tuple[str, ...]
    problem: str = ""
    attends: bool = True
    mixing: Mixing = "all tokens"
    sites: BlockSites = field(default_factory=BlockSites)
    joins: bool = False
    runs: int = 1
    order: tuple[int, ...] = ()

    @property
    def causal(self) -> bool:
        """Whether no later token is known to act on a token."""
        return self.mixing != "all tokens" if self.attention is None else self.attention.causal

    @property
    def shows(self) -> bool:
        """Whether it has an attention whose weights between the tokens can be watched."""
        if OTHER_PLACES in self.problem or HEADS_FIRST in self.problem:
            return False
        hidden = any(words in self.problem for words in _HIDING)
        return self.attends and (self.attention is not None or not hidden)

    @property
    def parts(self) -> tuple[str | None, str | None]:
        """The modules whose outputs are its attention part and its feed-forward part; None for what it has not."""
        if self.residual is None:
            return None, None
        return self.residual.attention if self.attends else None, self.residual.feed_forward

    @property
    def modules_of_parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modules whose outputs a gate on each part multiplies: a feed-forward part may be of several."""
        attention = self.parts[0]
        several = () if self.residual is None else self.residual.feed_forward_modules
        return () if attention is None else (attention,), several


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a network's circuits and states are, found by running it.

    Attributes:
        blocks: Names of its blocks in the order in which they run; one that runs again stands there again.
        layers: The layout of each of them.
        final_norm: The norm after the last block, and what it is; None without.
        positions: What tells the network the order of its tokens.
        positional: The modules and tensors that do; empty where there are none, or they were not found.
        packing: Which inputs may share a forward pass; None for a live network, which may change: it is tried when
            several run.
        found_on: "the network itself" or "a small copy".
        decoder_alone: Whether it is a decoder whose cross-attention did not run, since nothing of an encoder was there.
        streams: How many tensors of states each block hands on to the next; of several (a reversible network), the
            states are those that the network calls its hidden states.
        varies: Whether two passes over the same input gave different states: chance acts in them, or a memory.
        outside: The modules of attentions that ran outside of the blocks, such as those of a decoder behind them.
        first_token: Place of the first token of an input among the states of a live network that puts tokens of its own
            beside them; None where it puts none, where they could not be distinguished, and of a stored network.
    """

    blocks: tuple[str, ...]
    layers: tuple[BlockLayout, ...]
    final_norm: tuple[str, Norm] | None
    positions: Positions
    positional: tuple[PositionalPart, ...]
    packing: Packing | None
    found_on: str
    decoder_alone: bool = False
    streams: int = 1
    varies: bool = False
    outside: tuple[str, ...] = ()
    first_token: int | None = None

    @property
    def mask_by_ids(self) -> bool:
        """Whether the mask of a layer was seen to depend on token ids."""
        return any(layer.attention is not None and layer.attention.mask_by_ids for layer in self.layers)

    @property
    def causal(self) -> bool:
        """Whether in every layer no later token is known to act on a token."""
        return all(layer.causal for layer in self.layers)

    @property
    def runs(self) -> list[tuple[int, tuple[int, ...]]]:
        """Of how many attentions the one of each layer with an attention is, and the order of its heads."""
        return [(layer.runs, layer.order) for layer in self.layers if layer.attends]

    @property
    def end(self) -> str:
        """The module that gives the last states: the final norm, or the last block without one."""
        return self.last if self.final_norm is None else self.final_norm[0]

    @property
    def last(self) -> str:
        """The module that ends the last block."""
        return ".".join(filter(None, (self.blocks[-1], self.layers[-1].sites.leave[0])))

    @property
    def attending(self) -> list[int]:
        """Numbers of the layers with an attention, counted from 1; all of a network in which none was seen."""
        return [number for number, layer in enumerate(self.layers, 1) if layer.attends]

    def with_blocks(self, blocks: tuple[str, ...], kinds: tuple[int, ...]) -> Layout:
        """Return the layout of a larger network, whose blocks are of the kinds of these ones."""
        return replace(self, blocks=blocks, layers=tuple(self.layers[kind] for kind in kinds))

    def plain(self) -> dict[str, Any]:
        """Return the record as plain values; each kind of layer stands there once, with the layers that have it.

        Columns and rows stand as ranges: "0:64,128:192" are 0 to 63 and 128 to 191.
        """
        kinds = list(dict.fromkeys(self.layers))
        return {
            "blocks": list(self.blocks),
            "final_norm": None if self.final_norm is None else [self.final_norm[0], asdict(self.final_norm[1])],
            "positions": self.positions,
            "positional": [asdict(part) for part in self.positional],
            "packing": self.packing,
            "found_on": self.found_on,
            "decoder_alone": self.decoder_alone,
            "streams": self.streams,
            "varies": self.varies,
            "outside": list(self.outside),
            "first_token": self.first_token,
            "kinds": [_short(asdict(kind)) | {"shows": kind.shows} for kind in kinds],
            "layers": [kinds.index(layer) for layer in self.layers],
        }


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        if len(value) > 2 and all(isinstance(entry, int) for entry in value):
            return as_ranges(value)
        if len(value) > 2 and all(isinstance(entry, float) for entry in value) and len(set(value)) == 1:
            return value[0]
        return [_short(entry) for entry in value]
    return value


def as_ranges(numbers: Sequence[int]) -> str:
    """Return whole numbers as ranges, ends left out.

    >>> as_ranges([0, 1, 2, 7, 4, 5])
    '0:3,7:8,4:6'
    """
    starts = [0, *(place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1] + 1)]
    ends = [*starts[1:], len(numbers)]
    return ",".join(f"{numbers[start]}:{numbers[end - 1] + 1}" for start, end in zip(starts, ends, strict=True))


def _maps(parts: tuple[Part, ...] | None) -> list[tuple[str, Storage | Norm]]:
    maps: list[tuple[str, Storage | Norm]] = []
    for part in parts or ():
        maps += [(part.module, part.does), *_maps(part.reads)]
    return maps


def _modules(parts: tuple[Part, ...] | None, *, functions: bool = False) -> list[str]:
    """Return the modules of parts, and those in which functions are, which other parts may be in as well."""
    names: list[str] = []
    for part in parts or ():
        names += _modules(part.reads, functions=functions)
        if functions or not (isinstance(part.does, Norm) and part.does.by_function):
            names.append(part.module)
    return names
