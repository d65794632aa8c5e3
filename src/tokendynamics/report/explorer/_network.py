"""The systems of a network: its tokens layer by layer, and the flow of one layer's circuits on shared directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.diagnosis import Diagnosis, flow_of
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.tracing.prompt_trace import find_sinks, tokens_to_remove
from tokendynamics.diagnosis.tracing.prompts import named_prompts
from tokendynamics.dynamics import Flow
from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.numerics.errors import why
from tokendynamics.numerics.printable import shortened_clauses, token_label
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.not_finite import check_states
from tokendynamics.report.explorer._flow import MOST_HEADS, MOST_TOKENS
from tokendynamics.report.explorer._system import live_system, measured, plane_of, rounded
from tokendynamics.spaces import Sphere
from tokendynamics.words import listing, number, plural

TEXTS = 3
"""Texts of a network that a page follows: the first ones."""
_LEAST = 1e-6
"""The part of a text's mean unit row beyond directions before it, below which it has no direction of its own."""

_PLAYED = "These are the states of a network, which Python computed."
_NO_THEOREM = "No theorem covers a whole network: norms and feed-forward parts move its tokens, too."
_TURNS = 12.0
"""How far the fastest token of the circuits' flow would go, in radians, at the speed that it starts with."""


@dataclass(frozen=True)
class TextStates:
    """The states of one text.

    Attributes:
        name: Its name.
        labels: Its tokens.
        attention: States after the attention of each layer, (layer, token, dim), float64; NaN in blocks of one part.
        layers: States after each layer, likewise; layer 0 is the embedding.
    """

    name: str
    labels: list[str]
    attention: Float64[Tensor, "layer token dim"]
    layers: Float64[Tensor, "layer token dim"]

    @property
    def massive(self) -> Bool[Tensor, "layer token"]:
        """Which tokens have a massive activation, layer by layer."""
        return find_sinks(torch.linalg.vector_norm(self.layers, dim=-1))

    def counted(self, layer: int) -> Bool[Tensor, " token"]:
        """Tell which tokens a direction after a layer is of."""
        return ~tokens_to_remove(self.massive)[layer]


def of_network(checkpoint: Checkpoint, texts: Any = None) -> list[dict[str, Any]]:
    """Return a system for each of the first texts, and one for the flow of circuits where there is one.

    Args:
        checkpoint: The network.
        texts: See `tokendynamics.trace`; None for some default texts.
    """
    prompts = named_prompts(default_texts() if texts is None else texts, checkpoint)
    followed = [_states_of(checkpoint, name, prompts[name]) for name in list(prompts)[:TEXTS]]
    systems = [_text_system(text, place, checkpoint.name) for place, text in enumerate(followed, start=1)]
    circuits = circuits_system(checkpoint, followed)
    if isinstance(circuits, str):
        systems[0]["sentence"] += f" The flow of its circuits is left out: {circuits}."
        return systems
    return [*systems, circuits]


def _states_of(checkpoint: Checkpoint, name: str, text: Any) -> TextStates:
    given = prepared(checkpoint, text, argument=name)
    (passed,) = checkpoint.states_in_packs([given.inputs])
    check_states(checkpoint, passed)
    sites = passed.of(0)
    labels = [token_label(str(label)) for label in given.labels(sites.feed_forward.shape[1])]
    return TextStates(name, labels, sites.attention.cpu().double(), sites.feed_forward.cpu().double())


def of_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the system of the text whose paths a diagnosis holds, in the two directions that it holds."""
    paths = diagnosis.paths.transpose("layer", "token", "axis")
    massive = np.asarray(paths["is_sink"].values.any(axis=0))
    labels = [token_label(str(text)) for text in paths["token_text"].values]
    # The paths are those of the first text.
    trace = diagnosis.trace.isel(prompt=0).sel(site="feed_forward", sinks="removed")
    pairs = zip(trace["mean_pair_cosine"].values, trace["effective_rank"].values, strict=True)
    measures = [{"spread": _finite(1 - cosine), "rank": _finite(rank), "clusters": None} for cosine, rank in pairs]
    share = float(paths.attrs.get("explained", np.nan))
    names = [f"two principal directions ({share:.0%})"] if np.isfinite(share) else []
    kept = np.flatnonzero(~massive)[:MOST_TOKENS]
    return _played(
        paths["position"].values[:, kept],
        [labels[place] for place in kept],
        measures,
        name="text-1",
        title=f"{diagnosis.model['name']}, one text",
        sentence=_sentence(labels, paths["norm"].values, massive, len(kept)),
        plane={"names": names, "vectors": []},
    )


def circuits_system(checkpoint: Checkpoint, texts: Sequence[TextStates]) -> dict[str, Any] | str:
    """Return the flow of one layer's circuits on three directions that tokens share, or why it is left out.

    The layer is the one whose attention writes most of the common direction after the last layer. Its circuits are
    restricted to the first three of `tokendynamics.shared_directions` after it: the common one, those of two texts.
    """
    if len(texts) < TEXTS:
        return f"three directions need {TEXTS} texts"
    layer, share = writing_layer(texts)
    if layer == 0:
        return "no attention writes a common direction"
    basis = shared_basis(texts, layer)
    if basis is None:
        return "the texts share fewer than three directions"
    before, counted = texts[0].layers[layer - 1], texts[0].counted(layer - 1)
    kept = torch.nonzero(counted)[: MOST_TOKENS // 2, 0]
    try:
        flow = flow_of(checkpoint, layers=layer, tokens=len(kept))
    except TokenDynamicsError as error:
        return shortened_clauses(why(error, checkpoint.name), 200)
    if flow.heads > MOST_HEADS:
        return f"it has {plural(flow.heads, 'head')}, and a browser follows at most {MOST_HEADS} live"
    restricted = restriction(flow, basis)
    start = restricted.geometry.project(before[kept] @ basis)
    speed = float(torch.linalg.vector_norm(restricted.velocity(start), dim=-1).max())
    end = float(f"{_TURNS / speed:.2g}") if speed > 0 else 1.0
    sentence = (
        f"The attention of layer {layer} alone, repeated, on three directions that tokens share. It writes more of the "
        f"common direction than any other attention ({number(share, 2)} of it). This is a flow, not the network."
    )
    title = f"{checkpoint.name}, circuits of layer {layer}"
    times = np.linspace(0.0, end, 301)
    system = live_system(restricted, start, times, name="circuits", title=title, sentence=sentence, still=False)
    names = ["common direction", *(f"direction of {text.name}" for text in texts[:2])]
    plane = {"names": names, "vectors": torch.eye(3).tolist()}
    return system | {"tokens": [texts[0].labels[int(place)] for place in kept], "plane": plane}


def writing_layer(texts: Sequence[TextStates]) -> tuple[int, float]:
    """Return the layer whose attention writes most of the last common direction, and the share.

    The direction is that after the last layer; the share is ``written`` of `tokendynamics.shared_directions`. Where no
    share is positive the layer is 0.
    """
    common = _means(texts, -1).mean(dim=0)
    common = common / torch.linalg.vector_norm(common)
    written, total = torch.zeros(len(texts[0].layers) - 1, dtype=torch.float64), 0.0
    for text in texts:
        counted = text.counted(-1)
        last = text.layers[-1, counted]
        # Of unit rows: what is added to a token counts relative to the norm that it ends with.
        along = common / torch.linalg.vector_norm(last, dim=-1, keepdim=True)
        added = text.attention[1:, counted] - text.layers[:-1, counted]
        written = written + (added * along).sum(dim=-1).mean(dim=-1)
        total += float((last * along).sum(dim=-1).mean())
    shares = (written / total).nan_to_num(nan=-torch.inf)
    share, place = shares.max(dim=0)
    return (int(place) + 1, float(share)) if float(share) > 0 else (0, 0.0)


def shared_basis(texts: Sequence[TextStates], layer: int) -> Float64[Tensor, "dim 3"] | None:
    """Return the common direction after a layer and those of the first two texts, made orthonormal in this order.

    None where they are fewer than three.
    """
    means = _means(texts, layer)
    vectors = torch.stack([means.mean(dim=0), *means[:2]])
    basis, sizes = torch.linalg.qr(vectors.mT)
    if min(basis.shape[-1], sizes.shape[0]) < 3 or float(sizes.diagonal().abs().min()) < _LEAST:
        return None
    return basis * sizes.diagonal().sign()


def _means(texts: Sequence[TextStates], layer: int) -> Float64[Tensor, "text dim"]:
    """Return the mean unit row of each text after a layer, without massive tokens."""
    units = [torch.nn.functional.normalize(text.layers[layer, text.counted(layer)], dim=-1) for text in texts]
    return torch.stack([rows.mean(dim=0) for rows in units])


def restriction(flow: Flow, basis: Tensor) -> Flow:
    """Return the flow on the sphere of a subspace: its circuits between the columns of an orthonormal (dim, k) basis.

    Where tokens stay in the subspace, velocities are those of the flow without what leaves it.
    """
    attention, positions = flow.attention, flow.attention.positions
    qk, ov = (basis.mT @ schedule.matrix_at(0.0).double() @ basis for schedule in (attention.qk, attention.ov))
    if isinstance(positions, RotaryPositions):
        sides = (basis.mT @ side.matrix_at(0.0).double() for side in (positions.query, positions.key))
        query, key = sides
        positions = RotaryPositions(query, key, scale=positions.scale, frequencies=positions.frequencies)
    return Flow(Attention(qk, ov, causal=attention.causal, normalization="plain", positions=positions), Sphere())


def _text_system(text: TextStates, place: int, network: str) -> dict[str, Any]:
    """Return the system of one text: unit rows of all layers in their three principal directions, without sinks."""
    massive = text.massive.any(dim=0)
    counted = text.layers[:, ~massive]
    units = torch.nn.functional.normalize(counted, dim=-1).numpy()
    plane = plane_of(units)
    centred = units - units.reshape(-1, units.shape[-1]).mean(axis=0)
    kept = np.flatnonzero((~massive).numpy())[:MOST_TOKENS]
    return _played(
        (centred @ np.array(plane["vectors"]).T)[:, : len(kept)],
        [text.labels[token] for token in kept],
        [measured(state) for state in counted],
        name=f"text-{place}",
        title=f"{network}, {text.name}",
        sentence=_sentence(
            text.labels, torch.linalg.vector_norm(text.layers, dim=-1).numpy(), massive.numpy(), len(kept)
        ),
        plane=plane | {"vectors": []},
    )


def _played(
    positions: np.ndarray, tokens: list[str], measures: list[dict[str, Any]], *, name: str, title: str, sentence: str,
    plane: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return a system whose times are layers."""
    return {
        "name": name,
        "title": title,
        "sentence": sentence,
        "why_not_live": _PLAYED,
        "why_no_statements": _NO_THEOREM,
        "flow": None,
        "space": "free",
        "clock": "layer",
        "extent": float(np.abs(positions).max()),
        "beta": 1.0,
        "times": list(range(len(positions))),
        "plane": plane,
        "frames": rounded(positions),
        "measures": measures,
        "tokens": tokens,
        "statements": None,
    }


def _sentence(labels: list[str], norms: np.ndarray, massive: np.ndarray, drawn: int) -> str:
    """Say what is drawn, and which tokens are not."""
    sentences = ["Directions of one text's tokens after each layer, centred; layer 0 is the embedding."]
    if massive.any():
        places = np.flatnonzero(massive)
        names = listing([f"“{labels[place]}”" for place in places[:3]] + ["others"] * (len(places) > 3))
        largest = number(float(norms[:, places].max()), 3)
        sentences.append(f"{plural(len(places), 'massive token')} ({names}) left out: norms up to {largest}.")
    left = len(labels) - int(massive.sum())
    if drawn < left:
        sentences.append(f"The first {drawn} of {left} tokens are drawn; measures are of all.")
    return " ".join(sentences)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
