"""From a network to the theory: which statements its layers come nearest to, and what would have to be given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tokendynamics.attention import Attention, FactoredMatrix, RotaryPositions
from tokendynamics.diagnosis._network_flow import LayerCircuits, causal_of, plain_layers
from tokendynamics.dynamics import Flow
from tokendynamics.numerics.arguments import as_integer
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import AttentionWeights
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.spaces import Free, Normalized, Space, Sphere
from tokendynamics.theorems import Hypothesis, Statement
from tokendynamics.theorems.registry import KNOWN, named
from tokendynamics.words import listing, plural


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
    >>> (near,) = nearest_statements(load("random:distilgpt2:7"), "a short text", 3, statements=["asymptotic-5.1"])
    >>> near.relaxations, [one.name for one in near.violated]
    (('directions of tokens only',), ['ov is a multiple of the identity'])
    """
    checkpoint = as_checkpoint(checkpoint, "checkpoint")
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
