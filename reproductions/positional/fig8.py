"""`positional` Figures 4 and 8: tokens through the layers, and groups of similar direction in the last ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote, grouped_paths
from reproductions.given import name_of_model, real_text, sequences_of
from reproductions.positional.sampled import SAID, mean_of
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.diagnosis import token_clusters, token_paths
from tokendynamics.numerics.arguments import generator
from tokendynamics.observables import direction_clusters
from tokendynamics.observables.direction_clustering import CLEAR
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.provenance.progress import Progress, reporting, tracked

PRETRAINED = ("smollm2", "minilm")
VARIANTS: Mapping[str, str] = {
    "no-ffn": "without feed-forward parts",
    "full": "full",
    "no-norm": "without norms",
    "attention-only": "without both",
}
"""The first two are the panels of the figures; Figure 3(c) draws the last one of another network."""

CLAIMED = ("no-ffn", "full")

MOSTLY = 0.9
"""Share of the tokens in one group from which there are groups by a few tokens that stand apart; it is said then."""


@dataclass(frozen=True)
class Grouped:
    """Groups of the tokens of some texts at the embedding, the first column, and in the last layers of one network.

    Attributes:
        count: How many groups, (text, layer); 0 where states are not finite.
        silhouette: Of the best division, (text, layer); NaN where states are not finite.
        chance: Mean silhouette of `rotated` directions, likewise.
        beaten: Share of those whose silhouette is smaller, likewise.
        largest: Share of the tokens in the largest group of the last layer, (text,).
    """

    count: np.ndarray
    silhouette: np.ndarray
    chance: np.ndarray
    beaten: np.ndarray
    largest: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether the states of all texts are, in all of these layers."""
        return bool((self.count > 0).all())

    @property
    def above(self) -> np.ndarray:
        """By how much each text's silhouettes are above those of chance, (text, 2): embedding, mean of last layers."""
        above = self.silhouette - self.chance
        return np.stack([above[:, 0], above[:, 1:].mean(axis=1)], axis=1)


@timed
def reproduce(
    *,
    model: str | None = None,
    text: str | None = None,
    texts: int = 10,
    tokens: int = 40,
    draws: int = 40,
    seed: int = 8,
    dtype: str = "float64",
    progress: bool | Progress = False,
) -> Record:
    """Group the tokens of several texts by direction in the last three layers, under four variants of a network.

    How clear groups are is compared with what the same division finds in directions that have the same mean and
    covariance and no groups.

    Args:
        model: A pretrained network; None for SmolLM2 and MiniLM.
        text: A text file that the texts are drawn from; None for CPython's pages of help.
        texts: How many.
        tokens: Of each.
        draws: Sets of directions without groups, for each text and layer.
        seed: Of the texts; that of the directions is the next one.
        dtype: Number format of the forward passes; without norms states may be too large for float32.
        progress: Of the texts.
    """
    source = real_text(text)
    by_network: dict[str, dict[str, Grouped]] = {}
    paths: dict[str, dict[str, xr.Dataset | None]] = {}
    with reporting(progress) as report:
        for spec in PRETRAINED if model is None else (model,):
            ckpt, name = load(spec, dtype=dtype), name_of_model(spec)
            ids = sequences_of(ckpt, source, tokens, texts, seed)
            variants = {variant: ckpt.under(variant) for variant in VARIANTS}
            counted = tracked(list(variants), report, f"variants of {name}")
            by_network[name] = {variant: groups(variants[variant], ids, draws, seed + 1) for variant in counted}
            paths[name] = {variant: drawn_paths(variants[variant], ids[0]) for variant in variants}
    quantities = [
        quantity
        for name, of_network in by_network.items()
        for variant, grouped in of_network.items()
        for quantity in compared(f"{name}, {VARIANTS[variant]}", grouped, claimed=variant in CLAIMED)
    ]
    return Record(
        paper="positional",
        figure="Figure 8",
        statement=said(by_network),
        quantities=tuple(quantities),
        invented=f"the networks, {texts} texts of {tokens} tokens from the {source.words} (seed {seed}), how groups "
        "are found (average linkage on 1 − cos, two to eight groups of the largest silhouette) and what chance is "
        f"({draws} rotations of each text's directions among each other, seed {seed + 1}); massive tokens are left out",
        seed=seed,
        results={"found": by_network, "paths": paths},
    )


def groups(ckpt: Checkpoint, texts: Int[Tensor, "text token"], draws: int, seed: int) -> Grouped:
    """Group each text's tokens at the embedding and in the last layers, and directions without groups beside them."""
    rows: list[list[tuple[float, float, float, float]]] = []
    largest: list[float] = []
    for ids in texts:
        clusters, states = token_clusters(ckpt, ids), ckpt.states(ids).feed_forward.double()
        if not bool(torch.isfinite(states).all()):
            rows.append([(0.0, np.nan, np.nan, np.nan)] * (1 + clusters.sizes["layer"]))
            largest.append(np.nan)
            continue
        members = clusters["member"].isel(layer=-1).values
        kept = members >= 0
        largest.append(float(np.bincount(members[kept]).max() / kept.sum()))
        start = direction_clusters(states[0, torch.from_numpy(kept)])
        of_text = [beside_chance(states[0], kept, start.count, start.silhouette, draws, seed)]
        for layer in clusters["layer"].values:
            there = clusters.sel(layer=layer)
            numbers = float(there["count"]), float(there["silhouette"])
            of_text.append(beside_chance(states[layer], there["member"].values >= 0, *numbers, draws, seed))
        rows.append(of_text)
    count, silhouette, chance, beaten = np.moveaxis(np.array(rows), -1, 0)
    return Grouped(count, silhouette, chance, beaten, np.array(largest))


def beside_chance(
    states: Float64[Tensor, "token dim"], kept: np.ndarray, count: float, silhouette: float, draws: int, seed: int
) -> tuple[float, float, float, float]:
    """Return what `Grouped` holds of one text and layer."""
    units = torch.nn.functional.normalize(states[torch.from_numpy(kept)], dim=-1)
    chance = silhouettes_by_chance(units, draws, seed)
    return count, silhouette, float(chance.mean()), float((chance < silhouette).mean())


def rotated(rows: Float64[Tensor, "token dim"], draws: int, seed: int) -> Float64[Tensor, "draw token axis"]:
    """Mix rows among each other by random rotations that keep their mean, in coordinates of the span of the rows.

    With μ the mean, Q orthogonal and Q 1 = 1, the rows of μ + Q(X − μ) have the mean and the covariance of those of X
    exactly, and each is a random mixture of all: nearly normal, so that no groups are left but by chance (rotation
    tests: Ø. Langsrud, Statistics and Computing 15, 2005).

    Args:
        rows: X.
        draws: How many rotations.
        seed: Of them.

    >>> given = torch.eye(4, dtype=torch.float64)[:, :3]
    >>> drawn = rotated(given, 1, 0)[0]
    >>> round(float(drawn.mean(dim=0).norm() / given.mean(dim=0).norm()), 12)
    1.0
    """
    random = generator(seed)
    coordinates = torch.linalg.qr(rows.mT).R.mT  # the same Gram matrix in as many axes as there are tokens, at most
    mean = coordinates.mean(dim=0)
    count = len(rows)
    # Orthonormal bases of what is orthogonal to (1, …, 1): one fixed, one drawn for each rotation.
    drawn = torch.randn(draws, count, count - 1, dtype=torch.float64, generator=random)
    to = torch.linalg.qr(drawn - drawn.mean(dim=-2, keepdim=True)).Q
    ones = torch.ones(count, 1, dtype=torch.float64)
    base = torch.linalg.qr(torch.cat([ones, torch.eye(count, dtype=torch.float64)[:, 1:]], dim=1)).Q[:, 1:]
    return mean + to @ (base.mT @ (coordinates - mean))


def silhouettes_by_chance(rows: Float64[Tensor, "token dim"], draws: int, seed: int) -> np.ndarray:
    """Return the silhouette of the best division of each of the `rotated` sets of directions."""
    return np.array([direction_clusters(directions).silhouette for directions in rotated(rows, draws, seed)])


def drawn_paths(ckpt: Checkpoint, ids: Int[Tensor, " token"]) -> xr.Dataset | None:
    """Return a text's tokens in two principal dimensions with their groups in the last layer; None if they overflow."""
    if not bool(torch.isfinite(ckpt.states(ids).feed_forward).all()):
        return None
    clusters = token_clusters(ckpt, ids)
    return token_paths(ckpt, ids).assign(member=clusters["member"].isel(layer=-1, drop=True))


def compared(words: str, grouped: Grouped, *, claimed: bool) -> list[Quantity]:
    """Return what was found in the last layers, and whether it is clearer than chance and than at the embedding.

    Args:
        words: Network and variant.
        grouped: Of it.
        claimed: Whether the paper draws this variant; the others are only measured.
    """
    if not grouped.finite:
        share = float((grouped.count == 0).any(axis=1).mean())
        return [measured(f"{words}: share of texts whose states are not finite", share)]
    rows = answers(words, grouped)
    last, share = grouped.count[:, -1], largest_share(grouped)
    largest = measured(f"{words}: share of tokens in the largest, where groups are clear", share)
    return [
        *(rows if claimed else [measured(row.name, row.ours) for row in rows]),
        measured(f"{words}: silhouette in the last layer", float(grouped.silhouette[:, -1].mean())),
        measured(f"{words}: share of chance's silhouettes below it", float(grouped.beaten[:, -1].mean())),
        measured(f"{words}: share of texts with silhouette ≥ {CLEAR:g} there, clear groups", float((last > 1).mean())),
        measured(f"{words}: groups there, mean (1 where none are clear)", float(last.mean())),
        *([] if math.isnan(share) else [largest]),
    ]


def answers(words: str, grouped: Grouped) -> tuple[Quantity, Quantity]:
    """Return whether groups of the last layers are clearer than chance, and further above it than at the embedding.

    Texts repeat tokens, whose embeddings are the same: some groups are there from the start.
    """
    start, end = grouped.above.T
    return (
        mean_of(f"{words}: silhouette above chance in the last layers", end, 0.0, "≥"),
        mean_of(f"{words}: that less the same at the embedding", end - start, 0.0, "≥"),
    )


def largest_share(grouped: Grouped) -> float:
    """Return the mean share of tokens in the largest group over the texts with clear groups; NaN if there are none."""
    clear = grouped.largest[grouped.count[:, -1] > 1]
    return float(clear.mean()) if len(clear) else math.nan


def said(by_network: Mapping[str, Mapping[str, Grouped]]) -> str:
    """Say where groups in the last layers are clearer than chance makes them, and how clear they are."""
    parts = []
    for name, of_network in by_network.items():
        sentences = []
        for variant, grouped in of_network.items():
            if not grouped.finite:
                sentences.append(f"{VARIANTS[variant]}: states are not finite")
                continue
            chance, start = (SAID[row.verdict] for row in answers("", grouped))
            clear = f"{int((grouped.count[:, -1] > 1).sum())} of {len(grouped.count)} texts"
            share = largest_share(grouped)
            mostly = f" (the largest with {share:.0%} of the tokens)" if share >= MOSTLY else ""
            sentences.append(f"{VARIANTS[variant]}: {chance} / {start}, clear groups in {clear}{mostly}")
        parts.append(f"{name} {'; '.join(sentences)}")
    return (
        "Groups of tokens of similar direction in the last layers are clearer than chance / further above it than at "
        f"the embedding: {'. '.join(parts)}."
    )


def draw(record: Record) -> Figure:
    """Draw the tokens of the first text through the layers, coloured by their groups in the last one."""
    paths: Mapping[str, Mapping[str, xr.Dataset | None]] = record.results["paths"]
    titles = [f"{name}: {words}" for name in paths for words in VARIANTS.values()]
    figure, panels = figures.panels(2, 2 * len(paths), width=figures.DOUBLE, height=2.6 * 2 * len(paths), titles=titles)
    every: Sequence[xr.Dataset | None] = [path for of_network in paths.values() for path in of_network.values()]
    for panel, path in zip(panels, every, strict=True):
        draw_paths(panel, path)
    return footnote(
        figure,
        record,
        f"{record.statement} Drawn: the first text, its tokens' directions through the layers in the plane in which "
        f"they vary most, from the middle of the network on; circles are the last layer.",
    )


def draw_paths(panel: Axes, paths: xr.Dataset | None) -> None:
    """Draw what `drawn_paths` returned, from the middle of the network on."""
    if paths is None:
        panel.text(0.5, 0.5, "states are not finite", transform=panel.transAxes, ha="center", fontsize=7)
        panel.set_axis_off()
        return
    later = paths.isel(layer=slice(paths.sizes["layer"] // 2, None))
    grouped_paths(panel, later["position"].values, paths["member"].values)
