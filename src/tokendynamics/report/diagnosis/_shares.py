"""The shares of a token's direction stacked over depth, and the measures that decide the states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.tracing.layer_states import CONSENSUS, SPREAD
from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.lines import (
    Column,
    Curve,
    Mark,
    Part,
    Rule,
    curve_keys,
    curves_chart,
    stacked_chart,
)
from tokendynamics.figures.palette import BLUE, COMMON, OF_PROMPT, ORANGE, OWN
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw, draw_for_screens
from tokendynamics.report.diagnosis._depth import Step, steps
from tokendynamics.words import number, plural

QUESTION = "How is a token's direction composed?"
SECOND_QUESTION = "Do the tokens of a prompt converge?"
AXIS = "Share of a token's direction"
HEIGHT = 300

_COLOURS = {"common": COMMON, "prompt": OF_PROMPT, "own": OWN}
_NAMES = {"common": "common to all prompts", "prompt": "shared within its prompt", "own": "its own"}
_KEYS = [Key(_NAMES[name], "box", colour) for name, colour in _COLOURS.items()]
_MEASURES = {"consensus_relative": "κ′", "centred_cos2": "centred cos²"}

_RULES = (
    Rule(SPREAD, f"spread below {SPREAD:g}", "right", below=True),
    Rule(CONSENSUS, f"consensus from {CONSENSUS:g}"),
)


@dataclass(frozen=True)
class Estimates:
    """A quantity with its interval at each step; NaN where undefined."""

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


def estimates(trace: xr.Dataset, variable: str, where: list[Step], **chosen: str) -> Estimates:
    """Return a variable of the trace that is one number for all prompts, with its interval, at each step.

    Args:
        trace: From `tokendynamics.trace`.
        variable: Its name.
        where: From `steps`.
        chosen: Further coordinates, such as ``share="common"``.
    """
    layers = xr.DataArray([step.layer for step in where], dims="step")
    sites = xr.DataArray([step.site for step in where], dims="step")
    at = {"layer": layers, "site": sites, **chosen}
    bounds = trace[f"{variable}_interval"].sel(at).transpose("step", "bound")
    values = np.atleast_1d(trace[variable].sel(at).values)
    return Estimates(values, *(bounds.sel(bound=end).values for end in ("low", "high")))


def shares_figure(trace: xr.Dataset) -> Figure:
    """Draw the three shares as areas that add up to 1: the picture of the whole page.

    Args:
        trace: From `tokendynamics.trace`.
    """
    where, found = _shares_of(trace)
    if not _any_defined(found):
        return nothing("shares-chart", QUESTION, unshared(trace))
    return Figure(
        ident="shares-chart",
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: _stacked(where, found, width),
            ident="shares-chart",
            title=f"{QUESTION} Three shares over depth that add up to 1",
            description=_description(where, found, trace.sizes["prompt"]),
            keys=_KEYS,
        ),
        caption=_caption(found, trace.sizes["prompt"]),
        table=_table("Shares of a token's direction", where, {_NAMES[name]: each for name, each in found.items()}),
    )


def shares_sketch(trace: xr.Dataset, ident: str) -> Figure:
    """Draw the shares once, small, without table and without text for the pointer: for a notebook.

    Args:
        trace: From `tokendynamics.trace`.
        ident: Prefix of every id inside.
    """
    where, found = _shares_of(trace)
    if not _any_defined(found):
        return nothing(ident, QUESTION, unshared(trace))
    svg = draw(
        _stacked(where, found, WIDE),
        ident=ident,
        title=QUESTION,
        description=_description(where, found, trace.sizes["prompt"]),
        keys=_KEYS,
        screen="notebook",
    )
    return Figure(ident, QUESTION, svg, _caption(found, trace.sizes["prompt"]), None)


def shares_drawing(trace: xr.Dataset, width: float = WIDE) -> Drawing | None:
    """Return the shares as a chart that names its parts itself; None where there are none.

    Args:
        trace: From `tokendynamics.trace`.
        width: Of its plotting area.
    """
    where, found = _shares_of(trace)
    return _stacked(where, found, width, legend=True) if _any_defined(found) else None


def _shares_of(trace: xr.Dataset) -> tuple[list[Step], dict[str, Estimates]]:
    where = steps(trace)
    return where, {str(name): estimates(trace, "shares", where, share=str(name)) for name in trace.share.values}


def consensus_figure(trace: xr.Dataset) -> Figure:
    """Draw κ′ and centred cos² with their intervals, and the thresholds of the states.

    Args:
        trace: From `tokendynamics.trace`.
    """
    where = steps(trace)
    found = {name: estimates(trace, name, where) for name in _MEASURES}
    if not _any_defined(found):
        return nothing("shares-consensus", SECOND_QUESTION, unshared(trace))
    curves = consensus_curves(where, found)
    last = max(step.layer for step in where)
    return Figure(
        ident="shares-consensus",
        question=SECOND_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves,
                last=last,
                title="κ′ and centred cos²",
                width=width,
                domain=(0.0, 1.0),
                rules=_RULES,
                columns=_columns(where, {_MEASURES[name]: each for name, each in found.items()}),
            ),
            ident="shares-consensus",
            title=f"{SECOND_QUESTION} κ′ and centred cos² over depth",
            description=_described(where, found),
            keys=curve_keys(curves),
        ),
        caption="Within-prompt similarity κ′: what the tokens of one prompt share beyond what all prompts share, "
        "relative to the embedding. 0 is the embedding's value, 1 is one point per prompt. Centred cos² also detects a "
        "collapse to a line or to few directions, where it is far above κ′²."
        f"{_interval(found, trace.sizes['prompt'])}",
        table=_table("κ′ and centred cos²", where, {_MEASURES[name]: each for name, each in found.items()}),
    )


def consensus_curves(where: list[Step], found: dict[str, Estimates], of: str = "") -> list[Curve]:
    """Return the curves of one network; `of` names it, where there are several on one axis.

    Args:
        where: From `steps`.
        found: Estimates of "consensus_relative" and "centred_cos2".
        of: Added to the names of the curves.
    """
    looks: dict[str, tuple[str, tuple[float, ...], Mark]] = {
        "centred_cos2": (ORANGE, (5, 3), ""), "consensus_relative": (BLUE, (), "disc")
    }  # fmt: skip
    x, known = [step.x for step in where], f"90 % CI of {_MEASURES['consensus_relative']}"
    return [
        Curve(
            f"{_MEASURES[name]}{of}", x, _plain(found[name].values), colour, _plain(found[name].low),
            _plain(found[name].high), known if name == "consensus_relative" else "", dash, 2.2, mark,
        )
        for name, (colour, dash, mark) in looks.items()
    ]  # fmt: skip


def unshared(trace: xr.Dataset) -> str:
    """Return why there are no shares.

    Args:
        trace: From `tokendynamics.trace`.
    """
    if trace.sizes["prompt"] == 1:
        return (
            "Not plotted because one prompt cannot show which similarity is its own and which all prompts share. "
            "Shares need at least two prompts, their intervals three."
        )
    return "Not plotted because every prompt has fewer than two tokens that count, so there are no pairs."


def _any_defined(found: dict[str, Estimates]) -> bool:
    return any(np.isfinite(each.values).any() for each in found.values())


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _stacked(where: list[Step], found: dict[str, Estimates], width: float, *, legend: bool = False) -> Drawing:
    parts = [Part(_NAMES[name], _plain(found[name].values), colour) for name, colour in _COLOURS.items()]
    return stacked_chart(
        [step.x for step in where],
        parts,
        last=max(step.layer for step in where),
        title=AXIS,
        width=width,
        height=HEIGHT,
        columns=_columns(where, {_NAMES[name]: each for name, each in found.items()}),
        legend=legend,
    )


def _columns(where: list[Step], found: dict[str, Estimates]) -> list[Column]:
    columns = []
    for place, step in enumerate(where):
        lines = [f"{name}: {_known(each, place)}" for name, each in found.items()]
        columns.append((step.x - 0.25, step.x + 0.25, "\n".join([step.name, *lines])))
    return columns


def _known(each: Estimates, place: int) -> str:
    text = number(float(each.values[place]))
    if np.isfinite(each.low[place]):
        text += f" (90 % CI {number(float(each.low[place]))} to {number(float(each.high[place]))})"
    return text


def _description(where: list[Step], found: dict[str, Estimates], prompts: int) -> str:
    def at(place: int) -> str:
        parts = ", ".join(f"{_NAMES[name]} {number(float(each.values[place]))}" for name, each in found.items())
        return f"{where[place].name}: {parts}."

    over = plural(prompts, "prompt")
    return f"Shares of a token's direction over {over}. {at(0)} {at(-1)} The table holds every value."


def _described(where: list[Step], found: dict[str, Estimates]) -> str:
    texts = [
        f"{_MEASURES[name]}: {number(float(each.values[0]))} at the embedding, {number(float(each.values[-1]))} at "
        f"{where[-1].name}."
        for name, each in found.items()
    ]
    return " ".join([*texts, "The table holds every value."])


def _caption(found: dict[str, Estimates], prompts: int) -> str:
    text = (
        "Three shares that add up to 1: common to tokens of different prompts, shared beyond that by tokens of one "
        "prompt, and shared with no other token. Massive tokens are excluded."
    )
    if any((each.values < 0).any() for each in found.values()):
        text += " A share is an estimate and may be below 0; it is then not drawn, and the table gives the number."
    if any(np.isfinite(each.low).any() for each in found.values()):
        return f"{text} Over {plural(prompts, 'prompt')}; the table gives 90 % confidence intervals."
    return f"{text} Over {plural(prompts, 'prompt')}, too few for a confidence interval."


def _interval(found: dict[str, Estimates], prompts: int) -> str:
    if any(np.isfinite(each.low).any() for each in found.values()):
        return " Bands: 90 % confidence intervals over prompts."
    return f" There are no bands because {plural(prompts, 'prompt')} are too few for a confidence interval."


def _table(caption: str, where: list[Step], found: dict[str, Estimates]) -> Table:
    columns = ["Layer", "After"]
    for name in found:
        columns += [name[0].upper() + name[1:], "from", "to"]
    rows = []
    for place, step in enumerate(where):
        row: list[Given] = [step.layer, step.after]
        for each in found.values():
            row += [float(values[place]) for values in (each.values, each.low, each.high)]
        rows.append(cells(row))
    return Table(f"{caption}, each with its 90 % confidence interval", tuple(columns), tuple(rows))
