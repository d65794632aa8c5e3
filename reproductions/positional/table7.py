"""`positional` Table 7: signs of the eigenvalues of W_sym and A_sym, and near-zero ones of V, of real networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import dot_rows, footnote
from reproductions.given import name_of_model
from reproductions.record import Quantity, Record, Source, measured, timed
from tokendynamics import figures
from tokendynamics.pretrained import AttentionWeights, Checkpoint, load
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.spectra import inertia, product_eigenvalues, value_spectrum
from tokendynamics.spectra.regimes import same_signs_as_contraction

PRETRAINED = ("smollm2", "minilm")
REINITIALISED = "gpt2-xl"


@dataclass(frozen=True)
class Printed:
    """A row of the table, in %: mean and standard deviation over layers."""

    qk: tuple[float, float]
    contraction: tuple[float, float]
    near_zero: tuple[float, float] = (0.0, 0.0)


PRINTED: Mapping[str, Printed] = {
    "gpt2-xl": Printed((50.20, 3.76), (49.99, 0.06)),
    "distilgpt2": Printed((46.01, 4.36), (49.96, 0.16)),
    "llama-2-13b": Printed((52.35, 2.84), (50.00, 0.02)),
    "llama-2-13b-hf": Printed((52.35, 2.84), (50.00, 0.02)),
}
PRINTED_REINITIALISED = Printed((50.20, 2.85), (49.99, 0.06))

_DIGIT = 0.005
"""Half of the last printed digit."""
_HALF = 5.0
"""“Approximately 50 %”: the printed rows are up to 4 away."""
_SPREAD = (
    "W = Σ_h W_Q W_K^T, dim × dim, has nearly the same share in every layer; single heads, which have a row of their "
    "own, differ more"
)


_OF_HEADS = "d_k nonzero eigenvalues of W_h: Re λ > 0, standard deviation over heads and layers (%)"


@dataclass(frozen=True)
class Counted:
    """Shares of one network's eigenvalues, in %.

    Attributes:
        qk: Positive ones of W_sym, (layer,).
        contraction: Of A_sym; NaN where V is singular.
        near_zero: |λ| < 1e-3 of V.
        near_zero_relative: |λ| < 1e-3 of V's spectral radius.
        rank: Of V, as a share of dim.
        heads: Eigenvalues with positive real part of W_Q^T W_K of single heads, (layer, head): the nonzero ones of
            W_h = W_Q W_K^T, which is not symmetrised.
        heads_symmetric: Positive ones of the symmetric part of W_Q^T W_K.
    """

    qk: np.ndarray
    contraction: np.ndarray
    near_zero: np.ndarray
    near_zero_relative: np.ndarray
    rank: np.ndarray
    heads: np.ndarray
    heads_symmetric: np.ndarray


@timed
def reproduce(
    *,
    model: str | None = None,
    reinitialised: Sequence[str] = (REINITIALISED, "distilgpt2"),
    seeds: Sequence[int] = (0, 1),
    layers: int | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Count signs over layers, with the paper's V = W_V, norms not folded in.

    Args:
        model: A pretrained network; None for SmolLM2 and MiniLM.
        reinitialised: Families that are drawn anew.
        seeds: Of their weights; layers of all seeds are counted together.
        layers: The first layers of each network; None for all, as in the paper.
        progress: Of the layers.
    """
    shares_of: dict[str, Counted] = {}
    with reporting(progress) as report:
        for family in reinitialised:
            parts = [counted(load(f"random:{family}:{seed}"), layers, report) for seed in seeds]
            shares_of[f"{family}, re-initialised"] = joined(parts)
        for spec in PRETRAINED if model is None else (model,):
            shares_of[name_of_model(spec)] = counted(load(spec), layers, report)
    quantities: list[Quantity] = []
    for name, shares in shares_of.items():
        if name == f"{REINITIALISED}, re-initialised":
            quantities += beside_print(name, shares, PRINTED_REINITIALISED, len(seeds))
            quantities += spreads(name, shares, len(seeds))
        elif row := PRINTED.get(name.rsplit("/")[-1].lower()):
            quantities += beside_print(name, shares, row)
        else:
            quantities += beside_claims(name, shares)
    return Record(
        paper="positional",
        figure="Table 7",
        statement=said(quantities),
        quantities=tuple(quantities),
        invented=f"which networks (GPT-2 XL and LLaMA-2 13B with their trained weights are not among them unless "
        f"given), seeds {', '.join(map(str, seeds))} of the weights that are drawn, what counts as about 50 %, and the "
        "spread over single heads",
        seed=seeds[0],
        results={"found": shares_of},
    )


def counted(ckpt: Checkpoint, layers: int | None, progress: Progress) -> Counted:
    """Count the signs of a network, one layer in memory at a time; what `tokendynamics.audit` counts, and no more.

    Args:
        ckpt: From `load`.
        layers: The first layers; None for all.
        progress: Of the layers.

    Raises:
        ArgumentValueError: A W_V that is not square.
    """
    chosen = range(1, min(layers or ckpt.architecture.layers, ckpt.architecture.layers) + 1)
    rows = [of_layer(ckpt.attention(layer)) for layer in tracked(list(chosen), progress, f"layers of {ckpt.name}")]
    return Counted(*(np.array([row[field.name] for row in rows]) for field in fields(Counted)))


def of_layer(weights: AttentionWeights) -> dict[str, float | list[float]]:
    """Return the shares of one layer, in %, by the names of `Counted`."""
    parts = (weights.query, weights.key[weights.groups], weights.value[weights.groups])
    query, key, value = (part.movedim(0, 1).flatten(1).double() for part in parts)
    qk = query @ key.mT
    spectrum = value_spectrum(value)
    contraction = math.nan
    if spectrum.invertible:
        contraction = inertia(same_signs_as_contraction(qk, value, spectrum.condition)).positive
    counts = {
        "qk": inertia(qk).positive,
        "contraction": contraction,
        "near_zero": spectrum.near_zero,
        "near_zero_relative": spectrum.near_zero_relative,
        "rank": spectrum.rank,
    }
    heads, symmetric = of_heads(weights)
    shares = {name: 100 * float(count) / len(qk) for name, count in counts.items()}
    return {**shares, "heads": heads, "heads_symmetric": symmetric}


def of_heads(weights: AttentionWeights) -> tuple[list[float], list[float]]:
    """Return of each head's W_Q^T W_K the share of eigenvalues with positive real part, and so symmetrised, in %."""
    plain, symmetric = [], []
    for query, group in zip(weights.query.double(), weights.groups.tolist(), strict=True):
        key = weights.key[group].double()
        small = query.mT @ key
        plain.append(_positive(product_eigenvalues(query, key).real))
        symmetric.append(_positive(torch.linalg.eigvalsh((small + small.mT) / 2)))
    return plain, symmetric


def _positive(values: torch.Tensor) -> float:
    return 100 * float((values > 0).double().mean())


def joined(parts: Sequence[Counted]) -> Counted:
    """Return the layers of several networks as those of one."""
    return Counted(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Counted)))


def beside_print(name: str, shares: Counted, row: Printed, networks: int = 1) -> list[Quantity]:
    """Compare means and standard deviations over layers with a printed row.

    Of n layers with standard deviation s the mean is known to s/√n and s itself to s/√(2(n − 1)): two of these, and
    half of the last digit, is how far ours may be off.

    Args:
        name: Of the network.
        shares: Its own.
        row: The printed one, of one network.
        networks: How many like it were counted together.
    """
    rows = []
    columns = (("W_sym: positive", shares.qk, row.qk), ("A_sym: positive", shares.contraction, row.contraction))
    for column, values, (mean, deviation) in columns:
        count = len(values) // networks
        off_mean, off_spread = 2 * deviation / math.sqrt(count), _off(deviation, count)
        rows.append(Quantity(f"{name}, {column}, mean over layers (%)", mean, float(values.mean()), off_mean + _DIGIT))
        spread = float(values.std())
        reason = _SPREAD if column.startswith("W") and spread < deviation - off_spread - _DIGIT else ""
        words = f"{name}, {column}, standard deviation over layers (%)"
        rows.append(Quantity(words, deviation, spread, off_spread + _DIGIT, reason=reason))
    return rows + _near_zero(name, shares, "paper", "")


def _off(deviation: float, count: int) -> float:
    """Return two standard errors of a standard deviation."""
    return 2 * deviation / math.sqrt(2 * max(count - 1, 1))


def beside_claims(name: str, shares: Counted) -> list[Quantity]:
    """Hold a network of which nothing is printed against what is said of all: about 50 %, and V invertible."""
    rows = []
    rank = float(shares.rank.mean())
    grouped = f"grouped keys, as many as values: W_sym has rank {2 * rank:.4g} % of dim at most" if rank < 50 else ""
    for column, values in (("W_sym", shares.qk), ("A_sym", shares.contraction)):
        defined = values[np.isfinite(values)]
        words = f"{name}, {column}: positive, mean over layers (%)"
        if not defined.size:
            rows.append(measured(f"{name}, layers in which A is defined", 0.0))
            continue
        about_half = Quantity(words, 50.0, float(defined.mean()), _HALF, source="reading")
        rows.append(about_half if about_half.ok else replace(about_half, reason=grouped))
        rows.append(measured(words.replace("mean", "standard deviation"), float(defined.std())))
    reason = "" if rank > 100 - _DIGIT else f"W_V has rank {rank:.4g} % of dim, so that A is undefined"
    rows.append(measured(f"{name}, single heads, {_OF_HEADS}", float(shares.heads.std())))
    return rows + _near_zero(name, shares, "reading", reason)


def _near_zero(name: str, shares: Counted, source: Source, reason: str) -> list[Quantity]:
    words, near = f"{name}, V: |λ| below 1e-3", float(shares.near_zero.mean())
    return [
        Quantity(f"{words}, mean over layers (%)", 0.0, near, _DIGIT, source=source, reason=reason),
        measured(f"{words} ρ, mean over layers (%)", float(shares.near_zero_relative.mean())),
    ]


def spreads(name: str, shares: Counted, networks: int) -> list[Quantity]:
    """Look for what has the printed spread: eigenvalues of single heads, as they are and of the symmetric part."""
    printed = PRINTED_REINITIALISED.qk[1]
    count, spread, mean = shares.heads.size, float(shares.heads.std()), float(shares.heads.mean())
    tolerance = _off(printed, count // networks) + _DIGIT
    words, error = f"{name}, single heads", 3 * spread / math.sqrt(count)
    return [
        Quantity(f"{words}, {_OF_HEADS}", printed, spread, tolerance, source="reading"),
        Quantity(f"{words}, Re λ > 0, mean (%)", 50.0, mean, error, source="theory"),
        measured(
            f"{words}, symmetric part of W_Q^T W_K: λ > 0, standard deviation over heads and layers (%)",
            float(shares.heads_symmetric.std()),
        ),
    ]


def said(quantities: Sequence[Quantity]) -> str:
    """Put into words what the table says of these networks, of rows that are there."""
    by_name = {quantity.name: quantity for quantity in quantities}
    name = f"{REINITIALISED}, re-initialised"
    means = [quantity for quantity in quantities if "mean over layers" in quantity.name and "_sym" in quantity.name]
    near = "as printed or about 50 %" if all(quantity.ok for quantity in means) else "not all about 50 %"
    words = f"Positive eigenvalues of W_sym and A_sym are {near} in the networks that were counted"
    zeros = [row.name.split(", V:")[0] for row in quantities if "1e-3, mean" in row.name and row.verdict == "no"]
    words += f"; V has eigenvalues near zero in {', '.join(zeros)}." if zeros else "; none of V's is near zero."
    over_layers = by_name.get(f"{name}, W_sym: positive, standard deviation over layers (%)")
    of_heads = next(
        (quantity for key, quantity in by_name.items() if key == f"{name}, single heads, {_OF_HEADS}"), None
    )
    if over_layers is None or of_heads is None:
        return words
    comes = "comes out" if over_layers.ok else "does not come out"
    as_large = "is as large as" if of_heads.ok else "is not as large as"
    return (
        f"{words} The printed ± {over_layers.expected:.2f} of re-initialised GPT-2 XL {comes} over layers "
        f"(± {over_layers.ours:.2f}); it {as_large} the spread over single heads of their d_k nonzero eigenvalues "
        f"without symmetrising (± {of_heads.ours:.2f}), of which the paper does not speak."
    )


def draw(record: Record) -> Figure:
    """Draw the share of every layer, and of every head of the networks."""
    shares_of: Mapping[str, Counted] = record.results["found"]
    titles = ["W_sym and A_sym of layers", "W_h of single heads"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=1.2 + 0.42 * len(shares_of), titles=titles)
    rows = {}
    for name, shares in shares_of.items():
        rows[f"{name}: W"] = shares.qk.tolist()
        if np.isfinite(shares.contraction).any():
            rows[f"{name}: A"] = shares.contraction[np.isfinite(shares.contraction)].tolist()
    dot_rows(left, rows, "positive eigenvalues (%)", scale="linear")
    heads = {name: shares.heads.flatten().tolist() for name, shares in shares_of.items()}
    dot_rows(right, heads, r"eigenvalues with Re $\lambda$ > 0 (%)", scale="linear")
    return footnote(figure, record, f"{record.statement} Circles: layers, heads; bars: medians.")
