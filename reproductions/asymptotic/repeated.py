"""Repeated passes for section 7.5: prompts, networks, what E does from pass to pass, and how it is drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from reproductions.record import Quantity, Source, measured
from tokendynamics.diagnosis import passes
from tokendynamics.diagnosis.deepening.repeated_passes import COLLAPSED
from tokendynamics.figures.style import LINES, MUTED, paper_style
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.provenance.progress import Progress

CITY = (
    "Describe a futuristic city where humans and robots live together.\n"
    "Talk about what the city looks like and what daily life is like there."
)
"""The prompt of Figures 6 and 7."""

CHOICES = (
    "after its last pass's final norm a token goes into the next pass, positions are added once (or turn queries and "
    "keys in each pass), E counts every token and the first among them; float32"
)
"""What the paper leaves open, as `passes` has it by default."""

ON_AVERAGE = "the weights of each pass are another draw: E falls on average and not in each"


@dataclass(frozen=True)
class Curve:
    """E of (25) along a run.

    Attributes:
        name: Of the run, for quantities, sentences and the legend.
        energy: E before the first pass and after each, shape (1 + passes,).
        floor: E below which states differ by rounding alone.
        half_life: Of E in passes, with the ends of its 90 % interval.
        tokens: How many count.
    """

    name: str
    energy: np.ndarray
    floor: float
    half_life: tuple[float, float, float]
    tokens: int

    @property
    def below(self) -> float:
        """The first pass after which E is below 0.001; NaN if none is."""
        under = self.energy < COLLAPSED
        return float(under.argmax()) if under.any() else float("nan")

    @property
    def steps(self) -> np.ndarray:
        """What E gains in each pass that leaves it above rounding."""
        return np.diff(self.energy)[~(self.energy[1:] <= self.floor)]

    @property
    def rises(self) -> int:
        """In how many of these passes E rises."""
        return int((self.steps > 0).sum())


def run_curves(
    ckpt: Checkpoint,
    prompts: Mapping[str, str],
    count: int,
    *,
    folder: str | Path | None,
    progress: bool | Progress,
    **how: Any,
) -> list[Curve]:
    """Run prompts through a network again and again; the names of the curves are those of the prompts.

    Args:
        ckpt: The network.
        prompts: By name.
        count: Passes.
        folder: Where the run is kept and continues from; None to keep none.
        progress: Of the passes.
        **how: Further arguments of `tokendynamics.passes`.
    """
    store = None
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        identity = json.dumps([ckpt.name, ckpt.random_seed, prompts, how], sort_keys=True)
        store = Path(folder) / f"passes-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npz"
    table = passes(ckpt, dict(prompts), count, store=store, progress=_thinned(progress), **how)
    lengths = [how.get("pad_to") or ckpt.encode(text).ids.shape[1] for text in prompts.values()]
    halves = [(float(row[0]), float(row[1]), float(row[2])) for row in table["half_life"].values]
    return [
        Curve(name, energy, float(table.attrs["resolution"]), half, length)
        for name, energy, half, length in zip(prompts, table["consensus"].values, halves, lengths, strict=True)
    ]


def _thinned(progress: bool | Progress) -> bool | Progress:
    """Return a progress that hears of every hundredth pass and of the last."""
    if isinstance(progress, bool):
        return progress

    def told(done: float, total: float, what: str) -> None:
        if done % 100 == 0 or done == total:
            progress(done, total, what)

    return told


def random_network(network: str, model: str) -> tuple[Checkpoint, str]:
    """Return an untrained network that reads text as `model` does, and how that is, in words.

    Args:
        network: Such as "random:gpt2-xl".
        model: Whose tokenizer it gets; the text is read as bytes where that has none.
    """
    tokenizer = load(model).tokenizer
    words = "as bytes" if tokenizer is None else f"by the tokenizer of {model}"
    return load(network, tokenizer), words


def in_short(ckpt: Checkpoint) -> str:
    """Return a network's name and size."""
    return f"{ckpt.name} ({ckpt.architecture.layers} layers, dim {ckpt.architecture.dim})"


def consensus_rows(curve: Curve, source: Source, within: int | None = None) -> list[Quantity]:
    """Return whether a run ends in consensus, and how fast.

    Args:
        curve: The run.
        source: Who expects consensus.
        within: Passes within which E is expected below 0.001, a number chosen here; None if it is only measured.
    """
    label, under = f"{curve.name}: E after the last pass", f"{curve.name}: first pass with E below {COLLAPSED:g}"
    return [
        Quantity(label, 0.0, float(curve.energy[-1]), COLLAPSED, "≤", source),
        measured(under, curve.below) if within is None else Quantity(under, within, curve.below, 0.0, "≤", "reading"),
        *(
            measured(f"{curve.name}: half-life of E in passes{end}", value)
            for value, end in zip(curve.half_life, ("", ", 90 % interval from", ", 90 % interval to"), strict=True)
        ),
    ]


def decrease_rows(curve: Curve, source: Source, reason: str = "") -> list[Quantity]:
    """Return whether E falls in every pass, as far as rounding lets it.

    Args:
        curve: The run.
        source: Who expects it.
        reason: Why it does not, where it does not.
    """
    steps = curve.steps
    largest = float(steps.max()) if steps.size else float("nan")
    return [
        measured(f"{curve.name}: passes that leave E above rounding", float(steps.size)),
        measured(f"{curve.name}: share of these in which E rises", curve.rises / max(steps.size, 1)),
        Quantity(
            f"{curve.name}: largest rise of E in one of these",
            0.0,
            largest,
            0.0,
            "≤",
            source,
            reason if curve.rises else "",
        ),
    ]


def ends(curve: Curve) -> str:
    """Say whether E ends below 0.001, and after which pass it is first below."""
    if not curve.energy[-1] < COLLAPSED:
        return (
            f"{curve.name}: E is {curve.energy[-1]:.2g} after {len(curve.energy) - 1} passes, not below {COLLAPSED:g}"
        )
    return f"{curve.name}: E is below {COLLAPSED:g} after {curve.below:.0f} passes"


def decreases(curve: Curve) -> str:
    """Say whether E falls in every pass until it is rounding."""
    steps = curve.steps
    if not curve.rises:
        return f"{curve.name}: in each of {steps.size}"
    return f"{curve.name}: not in {curve.rises} of {steps.size}, with a largest rise of {steps.max():.2g}"


@paper_style()
def draw_energy(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw E after each pass, from the first on, on logarithmic axes, with what rounding leaves; at most six curves."""
    for curve, (colour, dash) in zip(curves, LINES, strict=False):
        energy = np.where(curve.energy[1:] > 0, curve.energy[1:], np.nan)  # of equal states it is 0 or just beside it
        axes.plot(np.arange(1, len(curve.energy)), energy, color=colour, ls=dash, label=curve.name)
    axes.axhline(curves[0].floor, color=MUTED, lw=0.6, ls=(0, (2, 2)), zorder=0.9, label="rounding")
    axes.set(xscale="log", yscale="log", xlabel="pass", ylabel="consensus E of (25)")
    axes.legend(loc="upper right")  # E begins large and ends small
