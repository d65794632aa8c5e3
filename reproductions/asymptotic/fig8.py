"""`asymptotic` Figure 8: E after each pass for five prompts, padded to one length, with the same random weights."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from reproductions.asymptotic.repeated import (
    CHOICES,
    Curve,
    consensus_rows,
    decrease_rows,
    draw_energy,
    ends,
    in_short,
    random_network,
    run_curves,
)
from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.diagnosis.deepening.repeated_passes import COLLAPSED
from tokendynamics.pretrained.loading import untrained_twin
from tokendynamics.provenance.progress import Progress

STD = 0.02

PROMPTS = (
    "A few colleagues and I amused ourselves at a previous IEEE conference on Decision and Control (CDC) with having "
    "ChatGPT try to handle all sorts of things, including a failed attempt at having it find Lyapunov function.",
    "The instructions that we gave to ChatGPT were, ’’Write a presidential column for the Control Systems Magazine on "
    "the future of control,’’ and the resulting column is given verbatim here:",
    "Spearheaded by (CSS) Vice-President for Conference Activities Carolyn Beck and Prof. Philip E. Paré, we arrived "
    "at a temporary policy, for now, large-scale language models are not allowed as coauthors.",
    "Imagine the absurdity of having to agree that ‘‘By uploading this manuscript, I certify that the computations in "
    "this submission are made by hand and no calculator was used to perform any of the computations.’’",
    "I have no doubt that our warning message will seem as quaint and obsolete as this statement about calculators "
    "within a few years.",
)
"""Table 2."""


@timed
def reproduce(
    *,
    model: str = "smollm2",
    network: str = "random:gpt2-xl",
    passes: int = 30,
    seed: int = 8,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
) -> Record:
    """Measure E after each pass for each prompt, padded, and for the shortest without padding as well.

    Args:
        model: Whose tokenizer makes tokens of the prompts.
        network: The untrained one, all of whose matrices are drawn anew from N(0, 0.02²) and then kept.
        passes: 2000 in the paper; E is below 1e-8 by then.
        seed: Of the weights.
        folder: Where runs are kept and go on from.
        progress: Of the passes.
    """
    untrained, read = random_network(network, model)
    ckpt = untrained_twin(untrained, seed, STD)
    prompts = {f"prompt {number}": text for number, text in enumerate(PROMPTS, start=1)}
    lengths = {name: ckpt.encode(text).ids.shape[1] for name, text in prompts.items()}
    longest, shortest = max(lengths.values()), min(lengths, key=lambda name: lengths[name])
    padded = run_curves(ckpt, prompts, passes, pad_to=longest, folder=folder, progress=progress)
    alone = {f"{shortest}, not padded": prompts[shortest]}
    (plain,) = run_curves(ckpt, alone, passes, folder=folder, progress=progress)
    (counterpart,) = (curve for curve in padded if curve.name == shortest)
    rows = [row for curve in padded for row in consensus_rows(curve, "paper")]
    rows += [row for curve in padded for row in decrease_rows(curve, "reading")]
    rows += padding_rows(counterpart, plain)
    return Record(
        paper="asymptotic",
        figure="Figure 8",
        statement=f"Five prompts, padded to {longest} tokens, through the same weights in each pass: "
        f"{'; '.join(map(ends, padded))}. {padding(counterpart, plain)}",
        quantities=tuple(rows),
        invented=f"the weights: all matrices of {in_short(untrained)}, those of the embedding too, from N(0, {STD}²), "
        f"biases 0 and gains 1, drawn once with seed {seed}; padding by zero embeddings behind the prompt, which count "
        f"from the first pass on; {passes} passes instead of 2000; the texts read {read}; {CHOICES}",
        seed=seed,
        results={"curves": [*padded, plain]},
    )


def padding_rows(padded: Curve, plain: Curve) -> list[Quantity]:
    """Return what padding changes for a prompt; nothing is expected of it."""
    return [
        measured(f"{plain.name}: tokens, of {padded.tokens} when padded", float(plain.tokens)),
        measured(f"{plain.name}: first pass with E below {COLLAPSED:g}", plain.below),
        measured(f"{padded.name}: E after pass 1, padded over not padded", float(padded.energy[1] / plain.energy[1])),
        measured(f"{padded.name}: E after the last pass, padded over not padded", padded.energy[-1] / plain.energy[-1]),
    ]


def padding(padded: Curve, plain: Curve) -> str:
    """Say how many passes earlier or later a padded prompt collapses."""
    change = padded.below - plain.below
    if math.isnan(change):
        return f"{padded.name} does not get there both padded and as it is."
    if change == 0:
        return f"Padding {plain.tokens} tokens to {padded.tokens} does not change that number ({padded.name})."
    return f"Padding {plain.tokens} tokens to {padded.tokens} changes that number by {change:+.0f} ({padded.name})."


def draw(record: Record) -> Figure:
    """Draw E of the five prompts, and of the one with most padding without it."""
    figure, (panel,) = figures.panels(width=figures.DOUBLE, height=3.2)
    draw_energy(panel, record.results["curves"])
    return footnote(figure, record)
