"""`asymptotic` Table 3: what a trained network says after more and more passes, and how repetitive that is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise

import xarray as xr
from matplotlib.figure import Figure

from reproductions.asymptotic.repeated import in_short
from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.diagnosis import decode
from tokendynamics.observables import repetition
from tokendynamics.pretrained import load
from tokendynamics.provenance.progress import Progress

PROMPT = (
    "After endless years lost in the shadows of Shakespeare’s sonnets and the melancholic musings of Pessoa, I have "
    "glimpsed enlightenment’s elusive light.\nNow, on the precipice of my final hour, as the weight of mortality "
    "presses upon me, I must reveal to you the one truth that transcends all others—the meaning of life is..."
)

REPETITIVE = 0.2
"""Different tokens over all tokens below which a text counts here as repetitive; the prompt itself has 0.8."""

_MEASURES = {"distinct_1": "different tokens over all", "entropy": "entropy of the tokens (nats)"}
_SHOWN = 105


@timed
def reproduce(
    *,
    model: str = "smollm2",
    passes: Sequence[int] = (1, 5, 10, 100, 1000),
    between: Sequence[int] = (2, 3, 4, 6, 8, 20, 50, 200, 500),
    generated: Sequence[int] = (1, 5),
    new_tokens: int = 12,
    progress: bool | Progress = False,
) -> Record:
    """Read what a network says after a number of passes at every position, and what it writes by itself after a few.

    Args:
        model: The trained network, as `load` takes it; GPT-2 XL in the paper.
        passes: Those of the paper's table.
        between: Further ones, for the drawing.
        generated: After how many passes for each token it writes by itself.
        new_tokens: How many it writes.
        progress: Of the passes.

    Raises:
        CheckpointError: A network that is not on this machine, or without a language head.
    """
    ckpt = load(model)
    prompt = ckpt.encode(PROMPT).ids[0].tolist()
    curve = decode(ckpt, PROMPT, sorted({*passes, *between}), progress=progress)
    table = curve.sel({"pass": list(passes)})
    alone = decode(ckpt, PROMPT, generated, how="generate", new_tokens=new_tokens, progress=progress)
    texts = {"prompt": PROMPT} | {f"after {_count(k)}": t for k, t in _decoded(table).items()}
    texts |= {f"written alone, {_count(k)} for each token": t for k, t in _decoded(alone).items()}
    of_prompt = repetition(prompt)
    rows = [measured(f"the prompt: {_MEASURES[name]}", getattr(of_prompt, name)) for name in _MEASURES]
    rows += repetition_rows(table)
    rows += [
        measured(f"written alone, {_count(k)} for each token: {_MEASURES['distinct_1']}", value)
        for k, value in zip(alone["pass"].values.tolist(), alone["distinct_1"].values.tolist(), strict=True)
    ]
    return Record(
        paper="asymptotic",
        figure="Table 3",
        statement=f"What {in_short(ckpt)} says next at each of {len(prompt)} positions: {repetitiveness(table)}",
        quantities=tuple(rows),
        invented=f"the network: {model} (GPT-2 XL in the paper); the likeliest token at every position, side by side, "
        "as the paper's rows look; what it writes alone, each token after some passes, is not in the paper; a token "
        "goes into the next pass after the final norm",
        seed=None,
        results={"curve": curve},
        texts=texts,
    )


def repetition_rows(table: xr.Dataset) -> list[Quantity]:
    """Return how repetitive the text of each number of passes is, and whether that ever falls.

    Args:
        table: From `decode`, in rising order of passes.
    """
    counts = table["pass"].values.tolist()
    rows = []
    for name, words in _MEASURES.items():
        values = table[name].values.tolist()
        rows += [measured(f"after {_count(k)}: {words}", value) for k, value in zip(counts, values, strict=True)]
        largest = max((after - before for before, after in pairwise(values)), default=float("nan"))
        rows.append(Quantity(f"{words}: largest rise from one row to the next", 0.0, largest, 0.0, "≤", "reading"))
    if 10 in counts:
        distinct = float(table["distinct_1"].sel({"pass": 10}))
        rows.append(
            Quantity(f"after 10 passes: {_MEASURES['distinct_1']}, at most", REPETITIVE, distinct, 0.0, "≤", "reading")
        )
    return rows


def repetitiveness(table: xr.Dataset) -> str:
    """Say how many tokens differ after each number of passes, and whether there are ever more again."""
    counts = table["pass"].values.tolist()
    shares = dict(zip(counts, table["distinct_1"].values.tolist(), strict=True))
    listed = ", ".join(f"{100 * share:.0f} %" for share in shares.values())
    sentence = f"after {_listed(counts)} passes {listed} of the tokens are different. "
    worse = [f"from {before} to {after}" for before, after in pairwise(counts) if shares[after] > shares[before]]
    if worse:
        return f"{sentence}That share rises {' and '.join(worse)} passes."
    return f"{sentence}That share never rises from one to the next."


def _decoded(table: xr.Dataset) -> dict[int, str]:
    return {int(k): str(text) for k, text in zip(table["pass"].values, table["decoded"].values, strict=True)}


def _count(passes: int) -> str:
    return f"{passes} pass" if passes == 1 else f"{passes} passes"


def _listed(counts: Sequence[int]) -> str:
    *most, last = map(str, counts)
    return f"{', '.join(most)} and {last}" if most else last


def draw(record: Record) -> Figure:
    """Draw both measures over the passes, with the words below."""
    figure, panels = figures.panels(2, width=figures.DOUBLE, height=4.6)
    curve: xr.Dataset = record.results["curve"]
    for panel, (name, words) in zip(panels, _MEASURES.items(), strict=True):
        figures.over_time(curve["pass"].values, curve[name].values, words, log="times", time_label="passes", axes=panel)
        panel.set_ylim(bottom=0)
    lines = [f"{name}: {textwrap.shorten(text, _SHOWN, placeholder=' …')}" for name, text in record.texts.items()]
    # A pair of dollar signs would be set as a formula.
    return footnote(figure, record, *(line.replace("$", r"\$") for line in lines), "")
