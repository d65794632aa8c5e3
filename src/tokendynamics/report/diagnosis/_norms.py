"""Whether the norms of the tokens grow, with the massive ones apart."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.curves import Curve, Curves
from tokendynamics.figures.figure import Figure, Section, Table, columns_table
from tokendynamics.figures.palette import BLUE, INK, ORANGE
from tokendynamics.report.diagnosis._states import Step, by_prompt, over_prompts, step_columns, steps_of
from tokendynamics.words import number, percent, plural

_IDENT, _QUESTION = "norms-chart", "Do the token norms grow?"


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: median and quartiles of the norms over depth, and the largest massive one."""
    return Section("norms", _QUESTION, figures=(_norms_figure(diagnosis.trace),))


def _norms_figure(trace: xr.Dataset) -> Figure:
    steps, layers = steps_of(trace), [int(layer) for layer in trace.layer.values]
    low, median, high = (
        over_prompts(by_prompt(trace, f"norm_{name}", "removed", steps)).values
        for name in ("lower_quartile", "median", "upper_quartile")
    )
    largest, share, count = (
        over_prompts(trace[f"massive_{name}"].transpose("layer", "prompt").values).values
        for name in ("norm", "share", "count")
    )
    massive = np.isfinite(largest)
    if not (np.isfinite(median).any() or massive.any()):
        return Figure(_IDENT, _QUESTION, "Not plotted because no token has a known norm.")

    def text(place: int, step: Step) -> str:
        quartiles = f"quartiles {number(low[place])} and {number(high[place])}"
        words = f"{step.name}: median norm {number(median[place])}, {quartiles}"
        at = layers.index(step.layer)
        return words + (f"\nlargest massive token: {number(largest[at])}" if _ends(step) and massive[at] else "")

    x = [step.x for step in steps]
    last = [value if step.site == "final_norm" else np.nan for step, value in zip(steps, median, strict=True)]
    return Figure(
        _IDENT,
        _QUESTION,
        _caption(trace, steps, largest, share),
        Curves(
            [
                Curve("median over tokens", x, median, BLUE, low, high, "quartiles over tokens"),
                Curve("after the final norm", x, last, INK, width=0, mark="diamond"),
                Curve("", layers, largest, ORANGE, dash=(1.5, 2.5), width=1.6),
                Curve("largest massive token of the layer", layers, largest, ORANGE, width=0, mark="triangle"),
            ],
            "Norm of a token (log scale)", last=max(layers), log=True, columns=step_columns(steps, text),
        ),
        _table(
            steps, layers, {"Lower quartile": low, "Median": median, "Upper quartile": high}, largest, share, count,
            noun_in(trace),
        ),
        title=f"{_QUESTION} Norm of the tokens over depth, on a log axis",
        description=_description(trace, steps, median, int(massive.sum())),
    )  # fmt: skip


def _ends(step: Step) -> bool:
    """Whether the state is the output of its layer, at which massive tokens are counted."""
    return step.site == "feed_forward"


def _caption(trace: xr.Dataset, steps: list[Step], largest: np.ndarray, share: np.ndarray) -> str:
    prompts = trace.sizes["prompt"]
    over = "" if prompts == 1 else f" Means over {prompts} {noun_in(trace)}s."
    both = any(step.layer and step.part == "feed_forward" for step in steps)
    parts = "after attention and after the feed-forward part" if both else "after the attention"
    text = f"Euclidean norms {parts} of each layer, without massive tokens.{over}"
    if not np.isfinite(largest).any():
        return f"{text} No token is massive: no norm stands out."
    top = int(np.nanargmax(largest))
    known = np.isfinite(share[top])
    total = f"; massive tokens have {percent(float(share[top]))} of the total norm there" if known else ""
    return (
        f"{text} Massive tokens are drawn separately: the largest norm is {number(float(largest[top]))}, after layer "
        f"{int(trace.layer.values[top])}{total}."
    )


def _description(trace: xr.Dataset, steps: list[Step], median: np.ndarray, massive: int) -> str:
    known = np.flatnonzero(np.isfinite(median))
    if not known.size:
        return f"Norms are undefined because every token of these {noun_in(trace)}s is massive."
    first, last = (f"{number(float(median[place]))} at {steps[place].name}" for place in known[[0, -1]])
    tokens = f"There are massive tokens in {plural(massive, 'layer')}." if massive else "No token is massive."
    prompts = plural(trace.sizes["prompt"], noun_in(trace))
    return f"Median norm, {prompts}: {first}, {last}. {tokens} The table below holds every value."


def _table(
    steps: list[Step], layers: list[int], norms: dict[str, np.ndarray], largest: np.ndarray, share: np.ndarray,
    count: np.ndarray, noun: str,
) -> Table:  # fmt: skip
    at = [layers.index(step.layer) if _ends(step) else None for step in steps]
    none = ["no token" if np.isnan(norm) else None for norm in largest]
    columns = {
        "Massive tokens": count.tolist(),
        "Largest": [text or norm for text, norm in zip(none, largest.tolist(), strict=True)],
        "Share (%)": [text or part for text, part in zip(none, (100 * share).tolist(), strict=True)],
    }
    return columns_table(
        f"Norms of the tokens, massive ones removed; means over {noun}s",
        [
            ("Layer", [step.layer for step in steps]),
            ("After", [step.after for step in steps]),
            *norms.items(),
            *((name, ["" if place is None else values[place] for place in at]) for name, values in columns.items()),
        ],
    )
