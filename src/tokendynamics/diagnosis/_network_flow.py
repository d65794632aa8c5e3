"""A network as a flow: its layers' circuits one after the other, and the statements a layer comes nearest to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.attention import Attention, FactoredMatrix, RotaryPositions, ov_circuit, qk_circuit
from tokendynamics.attention.schedules import Periodic
from tokendynamics.diagnosis.network import besides_the_form
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for
from tokendynamics.dynamics import Flow
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count, as_integer
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import AttentionWeights, Checkpoint
from tokendynamics.pretrained.architecture import as_layers
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.spaces import Free, Normalized, Space, Sphere
from tokendynamics.spaces.geometry import geometry_of
from tokendynamics.theorems import Hypothesis, Statement
from tokendynamics.theorems.registry import KNOWN, named
from tokendynamics.words import listing, plural


class LayerCircuits:
    """One layer's circuits as they act on the flow's tokens.

    Attributes:
        qk: Factors of all heads; of rank 0 where the logits come from rotary positions alone.
        ov: Factors of all heads.
        rotary: Queries, keys and frequencies of rotary positions; None without.

    Args:
        weights: Of the layer.
        on_sphere: Whether tokens are unit vectors where attention reads them.
        dtype: Of the circuits.
        with_radius: Whether what attention carries is added to tokens of their own length.
    """

    def __init__(
        self, weights: AttentionWeights, on_sphere: bool, dtype: torch.dtype, *, with_radius: bool = False
    ) -> None:
        read = _reader(weights, on_sphere)
        query, key = read(weights.query.double()), read(weights.key_per_head.double())
        scale, dim = weights.scale, query.shape[-2]
        if on_sphere:
            scale *= dim
        query = scale * query
        self.rotary = None if weights.rotary_frequencies is None else _rotary(query, key, weights, dtype)
        none = torch.zeros(*query.shape[:-1], 0, dtype=dtype, device=query.device)
        rotated = self.rotary is not None
        self.qk = qk_circuit(none, none) if rotated else qk_circuit(query.to(dtype), key.to(dtype))
        # √dim of the token that is read and 1/√dim of the token that is moved cancel on the sphere; what is added to a
        # token with a radius has the √dim of what is read.
        value = read(weights.value_per_head.double())
        value = dim**0.5 * value if with_radius else value
        self.ov = ov_circuit(value.to(dtype), weights.output.to(dtype))


def _reader(weights: AttentionWeights, on_sphere: bool) -> Callable[[Tensor], Tensor]:
    """Return what turns a factor that acts on normed tokens into one that acts on the flow's."""

    def read(factor: Float[Tensor, "head dim d_head"]) -> Float[Tensor, "head dim d_head"]:
        if not on_sphere or weights.norm_gain is None:
            return factor
        gained = weights.norm_gain.double()[:, None] * factor
        return gained - gained.mean(dim=-2, keepdim=True) if weights.norm_kind == "layer" else gained

    return read


def _rotary(query: Tensor, key: Tensor, weights: AttentionWeights, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and frequencies with the pairs (f, f + d_head/2) made neighbours."""
    half = query.shape[-1] // 2
    order = torch.arange(2 * half, device=query.device).view(2, half).T.reshape(-1)
    frequencies = torch.zeros(half, dtype=torch.float64)
    given = weights.rotary_frequencies
    if given is not None:
        frequencies[: len(given)] = given.double().cpu()
    return query[..., order].to(dtype), key[..., order].to(dtype), frequencies


@typed_arguments
def flow_of(
    checkpoint: Model,
    layers: int | Iterable[int] | None = None,
    *,
    space: Space | None = None,
    dtype: torch.dtype = torch.float64,
    tokens: int | None = None,
) -> Flow:
    """Return the attention of a network as a flow in which each layer lasts one unit of time.

    The QK and OV circuits are piecewise constant and periodic: the first of `layers` holds on [0, 1), the next on
    [1, 2), and after the last one the first comes again (`asymptotic` section 7.5). Feed-forward parts and biases are
    left out.

    On the sphere (default) tokens are unit vectors, and attention reads what the network's norm makes of them:
    √dim · y, times the norm's gain, less the mean for LayerNorm. With a state x of norm √dim the velocity before its
    tangent part is the network's attention output divided by √dim. In free space no norm is applied, as in
    `positional` (2), and ``flow.step(x, k)`` is x plus the attention of layer k + 1, of all layers, on x itself. With
    ``Normalized("pre")`` tokens are the residual stream of a network that normalizes before attention, and a step adds
    the attention on the norm of x: exact but for epsilon and biases, and of LayerNorm where features have mean 0.

    Args:
        checkpoint: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        layers: Which layers, counted from 1, in this order; one, several, or None for all.
        space: `Sphere()` (the default), `Free()`, or `Normalized("pre")`.
        dtype: Precision of the circuits.
        tokens: How many the flow is for. Windows of attention are left out: a flow of more tokens than a window is wide
            is not the network's, and such a layer is refused. None asks nothing.

    Returns:
        A flow with the network's causal or full mask, its rotary positions where it has them, and plain softmax
        weights. Learned position tables belong to the embeddings it starts from.

    Raises:
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: No such layer, none, one that is no softmax of a bilinear form, another space or dtype.

    >>> from tokendynamics.pretrained import load
    >>> flow = flow_of(load("random:gpt2-tiny:7"), layers=[1, 6])
    >>> flow.heads, flow.dim, flow.attention.causal
    (12, 48, True)

    The embeddings of a prompt are where its flow starts: ``ckpt.states(ckpt.encode(text).ids).feed_forward[0]``.
    """
    checkpoint = as_checkpoint(checkpoint, "checkpoint")
    space = Sphere() if space is None else space
    with_radius = _has_radius(space)
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentValueError("dtype", "torch.float32 or torch.float64", shown(dtype))
    count = None if tokens is None else as_count(tokens, "tokens")
    chosen = plain_layers(checkpoint, layers if layers is None or isinstance(layers, Iterable) else [layers], count)
    every = zip(chosen, checkpoint.iter_attention(chosen), strict=True)
    parts = [_circuits(weights, space.constrained, dtype, layer, with_radius) for layer, weights in every]
    period = float(len(parts))
    ov = Periodic(_stacked([part.ov for part in parts]), period)
    qk = Periodic(_stacked([part.qk for part in parts]), period)
    causal, positions = causal_of(checkpoint, chosen[0]), _positions(parts, period)
    return Flow(Attention(qk, ov, causal=causal, normalization="plain", positions=positions), space)


def _has_radius(space: Space) -> bool:
    """Tell whether tokens have a radius, and refuse spaces that no network's circuits are known for."""
    geometry = geometry_of(space) if isinstance(space, Space) else None
    with_radius = geometry is not None and geometry.norm == "pre"
    if geometry is None or not (with_radius or geometry.closed_form) or geometry.metric is not None:
        raise ArgumentValueError("space", "Sphere(), Free() or Normalized('pre')", repr(space))
    return with_radius


def _circuits(
    weights: AttentionWeights, on_sphere: bool, dtype: torch.dtype, layer: int, with_radius: bool
) -> LayerCircuits:
    if with_radius and weights.norm_gain is None:
        wanted = "Sphere() or Free() for a network without a norm before attention"
        raise ArgumentValueError("space", wanted, f"Normalized('pre') at layer {layer}")
    return LayerCircuits(weights, on_sphere or with_radius, dtype, with_radius=with_radius)


def causal_of(checkpoint: Checkpoint, layer: int) -> bool:
    """Return whether tokens of one layer, counted from 1, see only themselves and earlier ones."""
    return checkpoint.layout.layers[layer - 1].causal


def plain_layers(checkpoint: Checkpoint, several: Iterable[int] | None, tokens: int | None = None) -> list[int]:
    """Return the chosen layers; those that are no softmax of a bilinear form, or turn differently, are refused.

    A flow has no place for what they do besides.
    """
    layers = as_layers(several, checkpoint.architecture.layers)
    if checkpoint.layout.streams > 1:
        wanted = "layers whose attention adds to the states that it reads"
        raise ArgumentValueError("layers", wanted, f"{checkpoint.layout.streams} streams of states")
    kinds = [checkpoint.layout.layers[layer - 1].attention for layer in layers]
    if len({None if kind is None or kind.rotation is None else kind.rotation.frequencies for kind in kinds}) > 1:
        wanted = "layers that turn queries and keys alike, as one flow does"
        raise ArgumentValueError("layers", wanted, "several rotations", "take the layers of one kind")
    if len({kind.causal for kind in kinds if kind is not None}) > 1:
        wanted = "layers with one mask, as one flow has"
        raise ArgumentValueError("layers", wanted, "causal and full masks", "take the layers of one kind")
    for layer in layers:
        attention = checkpoint.layout.layers[layer - 1].attention
        if attention is None:
            continue  # reading it says why
        came = besides_the_form(attention)
        if attention.rotation is not None and attention.rotation.frequencies is None:
            came.append("rotations by place in an image")
        if tokens is not None and attention.window is not None and attention.window < tokens:
            came.append(f"windows of {plural(attention.window, 'token')}, where there are {tokens}")
        if came:
            wanted = "layers whose attention is a softmax of a bilinear form"
            raise ArgumentValueError("layers", wanted, f"layer {layer} with {', '.join(came)}")
    return layers


def _positions(parts: Sequence[LayerCircuits], period: float) -> RotaryPositions | None:
    rotary = [part.rotary for part in parts if part.rotary is not None]
    if not rotary:
        return None
    query, key = (Periodic(torch.stack([part[side] for part in rotary]), period) for side in (0, 1))
    return RotaryPositions(query, key, frequencies=rotary[0][2])


def _stacked(circuits: Sequence[FactoredMatrix]) -> FactoredMatrix:
    return FactoredMatrix(
        torch.stack([circuit.left for circuit in circuits]), torch.stack([circuit.right for circuit in circuits])
    )


@dataclass(frozen=True)
class NearStatement:
    """How near a layer of a network comes to the hypotheses of a statement.

    Attributes:
        statement: The name of the statement.
        title: What it is about.
        layer: The layer, counted from 1.
        head: The head, counted from 1, that comes nearest; None where all heads were taken together.
        always: What a flow of one layer leaves out of any network.
        relaxations: What was given up of the network beside that, so that the statement speaks of the rest.
        violated: The hypotheses that the layer's circuits and tokens then violate, each with its margin and text.
        satisfied: How many hypotheses they meet.
        prediction: What the statement says of the relaxed layer; empty where a hypothesis is violated.
        standing: "theorem" or "conjecture".
    """

    always: ClassVar[tuple[str, ...]] = ("all layers but this one, which is repeated", "feed-forward parts", "biases")

    statement: str
    title: str
    layer: int
    head: int | None
    relaxations: tuple[str, ...]
    violated: tuple[Hypothesis, ...] = field(repr=False)
    satisfied: int
    prediction: str
    standing: str

    def __str__(self) -> str:
        """Return one line."""
        of_head = "" if self.head is None else f", head {self.head} alone"
        given_up = f" with {listing(self.relaxations)}" if self.relaxations else ""
        where = f"{self.statement} (layer {self.layer}{of_head}){given_up}"
        if not self.violated:
            return f"{where}: applies: {self.prediction}"
        missed = "; ".join(f"{one.name} ({one.text})" for one in self.violated)
        return f"{where}: {plural(self.satisfied, 'hypothesis', 'hypotheses')} met, violated: {missed}"


_SpaceName = Literal["pre", "sphere", "free"]
_SPACES: dict[_SpaceName, Space] = {"pre": Normalized("pre"), "sphere": Sphere(), "free": Free()}


@dataclass(frozen=True)
class _Relaxed:
    """A kind of flow that a layer is made into.

    Attributes:
        space: "pre": the network's own norm before attention; "sphere": tokens of one length; "free": no norm.
        alone: Whether each head is taken by itself.
        other_mask: Whether the mask is exchanged.
        placed: Whether positions are kept.
        weights: Of the flow.
    """

    space: _SpaceName
    alone: bool
    other_mask: bool
    placed: bool
    weights: Literal["softmax", "exponential"]

    def words(self, weights: AttentionWeights, causal: bool) -> tuple[str, ...]:
        """Say what is given up, in the order of the attributes."""
        normed = weights.norm_gain is not None
        given_up = {
            "directions of tokens only": self.space == "sphere",
            "no norm before attention": self.space == "free" and normed,
            "each token seen by all": self.other_mask and causal,
            "later tokens unseen": self.other_mask and not causal,
            "no positions": weights.rotary_frequencies is not None and not self.placed,
            "a softmax without its denominator": self.weights == "exponential",
        }
        return tuple(word for word, there in given_up.items() if there)


@typed_arguments
def nearest_statements(
    checkpoint: Model,
    text: Any,
    layer: int | None = None,
    *,
    statements: Sequence[str | Statement] | None = None,
    truncate: bool = False,
    progress: bool | Progress = False,
) -> list[NearStatement]:
    """Hold a layer of a network against the hypotheses of every statement on flows, the nearest first.

    The theory speaks of simpler systems than a network. Of each statement this takes the fewest relaxations
    under which it speaks of the layer at all (one head alone, another mask, no positions, the directions of tokens
    only or no norm, a softmax without its denominator; always: the layer repeated for ever, without feed-forward part
    and biases), and measures the other hypotheses on the layer's circuits and on the tokens of a text where they enter
    it. Where heads are taken alone, that of the fewest violated hypotheses is kept. Statements are in the order of how
    many hypotheses are violated, then of how much was given up.

    Args:
        checkpoint: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        text: The prompt; see `tokendynamics.trace`.
        layer: Counted from 1; None for the middle one.
        statements: Names, or `Statement` objects; see `tokendynamics.check`. If None, all but those on noise.
        truncate: See `tokendynamics.trace`.
        progress: True for a progress bar, or a function; see `tokendynamics.trace`. Spectra of matrices of all features
            take a minute for twelve heads of 768.

    Returns:
        One `NearStatement` for each statement that speaks of some relaxation of the layer. Those known to be false are
        left out, as are those on layers rather than flows and on graphs.

    Raises:
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: A name that is no statement; no such layer, or one that is no softmax of a bilinear form; a
            prompt that is empty or too long.

    >>> from tokendynamics.pretrained import load
    >>> (near,) = nearest_statements(load("random:gpt2-tiny:7"), "a short text", 3, statements=["asymptotic-5.1"])
    >>> near.relaxations, [one.name for one in near.violated]
    (('directions of tokens only',), ['ov is a multiple of the identity'])
    """
    checkpoint = checkpoint_for(checkpoint, text, "checkpoint")
    depth = checkpoint.architecture.layers
    layer = (depth + 1) // 2 if layer is None else as_integer(layer, "layer", at_least=1, at_most=depth)
    given = prepared(checkpoint, text, truncate=truncate, argument="prompt")
    start = checkpoint.states(given.inputs).feed_forward[layer - 1].cpu().double()
    plain_layers(checkpoint, [layer], len(start))
    (weights,) = checkpoint.iter_attention([layer])
    flows = _Flows(weights, causal_of(checkpoint, layer))
    about_networks = [one for one in KNOWN if one.subject != "noise"]
    chosen = about_networks if statements is None else [named(one) for one in statements]
    asked = [one for one in chosen if one.of_flows and one.standing != "false" and not one.beyond]
    with reporting(progress) as report:
        what = f"layer {layer} against {plural(len(asked), 'statement')}"
        near = [_nearest(statement, flows, start, layer) for statement in tracked(asked, report, what)]
    return sorted(
        filter(None, near), key=lambda one: (len(one.violated), len(one.relaxations) + (one.head is not None))
    )


class _Flows:
    """The flows that one layer is made into.

    Attributes:
        kinds: The kinds of flow, those that give up least first.
    """

    def __init__(self, weights: AttentionWeights, causal: bool) -> None:
        self.weights, self._causal = weights, causal
        self._circuits = {
            (space, placed): LayerCircuits(
                weights if placed else replace(weights, rotary_frequencies=None),
                space != "free",
                torch.float64,
                with_radius=space == "pre",
            )
            for space, placed in product(_SPACES, (True, False))
        }
        spaces: list[_SpaceName] = [space for space in _SPACES if space != "pre" or weights.norm_gain is not None]
        choices: tuple[Literal["softmax", "exponential"], ...] = ("softmax", "exponential")
        rotated = weights.rotary_frequencies is not None
        kinds = [
            _Relaxed(*kind)
            for kind in product(spaces, (False, True), (False, True), (True, False) if rotated else (True,), choices)
        ]
        self.kinds = sorted(kinds, key=lambda kind: len(self.given_up(kind)) + kind.alone)

    def given_up(self, kind: _Relaxed) -> tuple[str, ...]:
        """Say what is given up of the layer for a kind of flow, beside its other heads."""
        return kind.words(self.weights, self._causal)

    def of(self, kind: _Relaxed, head: int | None = None) -> Flow:
        """Return the layer as a flow of a kind, of one of its heads (from 0) or of all."""
        circuits = self._circuits[kind.space, kind.placed]
        heads = slice(None) if head is None else slice(head, head + 1)
        qk, ov = (FactoredMatrix(one.left[heads], one.right[heads]) for one in (circuits.qk, circuits.ov))
        positions = None
        if circuits.rotary is not None:
            query, key, frequencies = circuits.rotary
            positions = RotaryPositions(query[heads], key[heads], frequencies=frequencies)
        attention = Attention(
            qk,
            ov,
            causal=self._causal != kind.other_mask,
            normalization="plain",
            positions=positions,
            weights=kind.weights,
        )
        return Flow(attention, _SPACES[kind.space])


def _nearest(statement: Statement, flows: _Flows, start: Tensor, layer: int) -> NearStatement | None:
    """Return how near the layer comes to a statement on flows; None where the statement speaks of no relaxation."""
    kind = next((one for one in flows.kinds if statement.concerns(flows.of(one, 0 if one.alone else None))), None)
    if kind is None:
        return None
    states = torch.nn.functional.normalize(start, dim=-1) if kind.space == "sphere" else start
    heads = range(len(flows.weights.query)) if kind.alone else [None]
    checks = [(statement.check(flows.of(kind, head), states), head) for head in heads]
    check, head = min(checks, key=lambda pair: len(pair[0].reasons))
    return NearStatement(
        statement=statement.name,
        title=statement.title,
        layer=layer,
        head=None if head is None else head + 1,
        relaxations=flows.given_up(kind),
        violated=tuple(one for one in check.hypotheses if one.holds is False),
        satisfied=sum(one.holds is True for one in check.hypotheses),
        prediction="" if check.prediction is None else check.prediction.text,
        standing=statement.standing,
    )
