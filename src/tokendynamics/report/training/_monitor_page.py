"""The page of a monitored training: which state layers are in, what changed, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import PART_NAMES
from tokendynamics.diagnosis.tracing.layer_states import ANISOTROPIC, CONSENSUS, SPREAD
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.diagnosis.tracing.variables import BOUNDS
from tokendynamics.diagnosis.tracing.words import ATTENTION_SINK
from tokendynamics.figures.axes import Column
from tokendynamics.figures.curves import Curve, Rule, evenly, styled, thinned
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells
from tokendynamics.figures.maps import LayerMap, Sign
from tokendynamics.figures.palette import COMMON, GRID, INK, NEGATIVE, OWN, PAPER, POSITIONS
from tokendynamics.figures.svg import Key
from tokendynamics.provenance.manifest import versions
from tokendynamics.report._page import conventions, page_of, piece, render
from tokendynamics.report.diagnosis._page import _GLYPHS
from tokendynamics.report.training._lines import over_steps
from tokendynamics.training.monitor.changes import LARGE, ROOM
from tokendynamics.training.monitor.looks import FINAL_NORM, MEASURED
from tokendynamics.training.monitor.series import Series, answer, findings, lines
from tokendynamics.words import count, number, percent, plural, ranges, written

MOST_LOOKS = 60
"""Most columns of a map: more could not be distinguished."""

MISSING = "not measured"

_COLOURS = {
    "spread": PAPER,
    "drawing together": POSITIONS[1],
    "consensus": POSITIONS[4],
    "rank collapse": NEGATIVE,
    "anisotropic": COMMON,
    "one point": INK,
    "undetermined": OWN,
}
_SIGNS: dict[str, str] = {**_GLYPHS}
_PALE = (PAPER, OWN, COMMON, POSITIONS[1])
"""Fills on which a sign is dark."""


@dataclass(frozen=True)
class Scale:
    """The classes of a map's numbers: the first is what lies below the lowest bound, the last from the highest on."""

    bounds: tuple[float, ...]

    @property
    def keys(self) -> list[Key]:
        """The legend."""
        inner = [f"to {number(high)}" for high in self.bounds[1:]]
        names = [f"below {number(self.bounds[0])}", *inner, f"from {number(self.bounds[-1])}"]
        return [Key(name, "box", colour) for name, colour in zip(names, self._colours, strict=True)]

    @property
    def _colours(self) -> tuple[str, ...]:
        return (PAPER, *POSITIONS[-len(self.bounds) :])

    def colour(self, value: float) -> str:
        """Return the colour of a number, that of an empty cell without one."""
        return GRID if np.isnan(value) else self._colours[int(np.searchsorted(self.bounds, value, side="right"))]


def numbers_map(ident: str, question: str, label: str, values: xr.DataArray, scale: Scale, caption: str) -> Figure:
    """Draw one measure.

    Args:
        ident: For links.
        question: What the figure answers.
        label: The measure's name.
        values: Of the looks that are drawn (see `drawn`), over step and layer.
        scale: Its classes.
        caption: What it measures.
    """
    grid = values.transpose("step", "layer")
    keys = [*scale.keys, *([Key("undefined", "box", GRID)] if bool(grid.isnull().any()) else [])]
    rows = [cells([int(step), *map(float, line)]) for step, line in zip(grid.step.values, grid.values, strict=True)]
    return Figure(
        ident,
        question,
        f"{caption} One column per measurement, one row per layer, the last layer on top.",
        _map(grid, scale.colour, keys),
        Table(f"{label} at each step, after each layer", _heads(grid), tuple(rows)),
        description=f"{label}: {_extremes(grid)} The table below holds every cell.",
        label=label,
    )


def states_map(question: str, states: xr.DataArray) -> Figure:
    """Draw the state of every layer at every look, with a sign where one begins.

    Args:
        question: What the figure answers.
        states: Of the looks that are drawn, over step and layer.
    """
    grid = states.transpose("step", "layer")
    occurring = [word for word in (*_COLOURS, MISSING) if bool((grid == word).any())]
    keys = [Key(f"{_SIGNS.get(word, '')}  {word}".strip(), "box", _colour(word)) for word in occurring]
    rows = [(*cells([int(step)]), *map(Cell, line)) for step, line in zip(grid.step.values, grid.values, strict=True)]
    # A state that continues after looks without numbers gets no new sign.
    signs, edges = [], _edges(grid.step.values)
    for layer in grid.layer.values.tolist():
        former = ""
        for left, word in zip(edges[:-1].tolist(), grid.sel(layer=layer).values.tolist(), strict=True):
            if word in _COLOURS and word != former:
                former, ink = word, INK if _COLOURS[word] in _PALE else PAPER
                signs.append(Sign(left, layer, _SIGNS[word], ink))
    return Figure(
        "states-map",
        question,
        "State after each layer, one column per measurement; a sign marks where a state begins. The list of "
        "changes has only those whose confidence intervals exclude the former state, and large changes of a measure.",
        _map(grid, _colour, keys, signs),
        Table("State at each step, after each layer", _heads(grid), tuple(rows)),
        description=f"{_ends(grid)} The table below holds every cell.",
    )


def drawn(table: xr.Dataset) -> xr.Dataset:
    """Return the looks that maps show, evenly by number, the first and the last among them; in all others the same.

    Args:
        table: The dataset of a monitor.
    """
    return table.isel(step=evenly(table.sizes["step"], MOST_LOOKS))


def _colour(word: str) -> str:
    return _COLOURS.get(word, GRID)


def _heads(grid: xr.DataArray) -> tuple[str, ...]:
    return ("Step", *(f"Layer {layer}" for layer in grid.layer.values))


def _edges(steps: np.ndarray) -> np.ndarray:
    """Return where columns end: half-way to the next look, and at the first and the last one themselves."""
    places = steps.astype(np.float64)
    if len(places) == 1:
        return places + np.array([-0.5, 0.5])
    return np.concatenate([places[:1], (places[1:] + places[:-1]) / 2, places[-1:]])


def _map(grid: xr.DataArray, colour: Callable[[Any], str], keys: Sequence[Key], signs: Sequence[Sign] = ()) -> LayerMap:
    colours = [[colour(value) for value in line] for line in grid.values.tolist()]
    return LayerMap(_edges(grid.step.values).tolist(), grid.layer.values.tolist(), colours, keys, signs, _columns(grid))


def _columns(grid: xr.DataArray) -> list[Column]:
    edges = _edges(grid.step.values).tolist()
    return [
        (left, right, f"step {int(step)}: {_in_words(grid.sel(step=step))}")
        for step, left, right in zip(grid.step.values, edges[:-1], edges[1:], strict=True)
    ]


def _in_words(line: xr.DataArray) -> str:
    """Return what a column shows: its extremes, or which layers are in which state."""
    if line.dtype.kind == "f":
        return _extremes(line)
    where = {word: np.flatnonzero(line.values == word) for word in (*_COLOURS, MISSING)}
    layers = line.layer.values
    return "; ".join(f"{word} in layers {ranges(layers[places])}" for word, places in where.items() if len(places))


def _extremes(values: xr.DataArray) -> str:
    """Return the lowest and the highest number of a map or a column, and where they are."""
    numbers, ends = values.values, []
    if not np.isfinite(numbers).any():
        return "undefined everywhere."
    for word, place in (("lowest", np.nanargmin(numbers)), ("highest", np.nanargmax(numbers))):
        *step, layer = np.unravel_index(place, numbers.shape)
        at = f"after layer {values.layer.values[layer]}" + "".join(f" at step {values.step.values[n]}" for n in step)
        ends.append(f"{word} {number(float(numbers.flat[place]))} {at}")
    return " and ".join(ends) + "."


def _ends(grid: xr.DataArray) -> str:
    steps = grid.step.values
    return " ".join(f"At step {int(steps[place])}: {_in_words(grid.isel(step=place))}." for place in (0, -1))


_QUESTION = "where do its tokens go during training?"


@page_of.register(Series)
def monitor_page(series: Series) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        series: What a monitor measured; nothing is measured here.
    """
    model, more = str(series.facts.get("model", "A network")), lines(series)[1]
    entries = [(name, written(series.facts[fact])) for fact, name in _MEASURED.items() if fact in series.facts]
    steps = int(series.facts.get("every", 0))
    every = f", one every {f'{count(steps)} steps' if steps > 1 else 'step'}" if steps else ""
    facts = series.facts
    parts = [f"{written(facts[name])} {name}" for name in ("layers", "heads") if facts.get(name)]
    parts += [f"dim {written(facts['dim'])}"] if "dim" in facts else []
    texts = f"on {plural(len(series.texts), series.noun)}" if series.texts else ""
    return render(
        "training.html.jinja",
        title=f"{model}: {_QUESTION}",
        sections=_sections(series.dataset, series.noun) if any(look.values for look in series.looks) else [],
        conventions=conventions(
            *("measurements", "texts", "state", "changes", "step"),
            room=ROOM,
            large=LARGE,
            noun=series.noun,
            Noun=series.noun.capitalize(),
        ),
        manifest={
            "command": series.command,
            "parameters": series.parameters,
            "versions": versions("torch", "transformers"),
        },
        about=piece("about.html.jinja", entries=entries, prompts=series.texts, noun=series.noun),
        kind="monitored training",
        name=model,
        question=_QUESTION,
        shape=", ".join(filter(None, [" × ".join(parts), texts])),
        facts=[("Measurements", f"{count(len(series.looks))}{every}")],
        answer=answer(series),
        findings=findings(series),
        details=more,
    )


_MEASURED = {
    "parameters": "Parameters",
    "tokenization": "Tokenization",
    "lengths": "Lengths",
    "precision": "Precision",
    "sites": "Where",
    "sinks": "Tokens left out",
    "intervals": "Intervals",
}


def _sections(table: xr.Dataset, noun: str) -> list[Section]:
    maps = drawn(table)
    shown, of = maps.sizes["step"], table.sizes["step"]
    notes = () if shown == of else (f"{count(shown)} of {count(of)} measurements are shown; the dataset has all.",)
    states = maps.state.where(maps.status == MEASURED, MISSING).isel(layer=slice(1, None))
    return [
        Section("states", "Which state is each layer in?", figures=(states_map(_STATE, states),), notes=notes),
        Section("together", _TOGETHER, figures=_ends_of(table, noun), variants=_maps(maps, noun), notes=notes),
        Section("updates", "How large is each update?", figures=(_updates(table, noun),)),
        Section("sinks", "Is there an attention sink?", figures=(_sinks(table, noun),)),
    ]


_STATE = "Which state is each layer in?"
_TOGETHER = "What do the tokens share?"


def _maps(maps: xr.Dataset, noun: str) -> tuple[Figure, ...]:
    return (
        numbers_map(
            "consensus-map", f"How much do the tokens of one {noun} share, layer by layer?", "κ′",
            maps.consensus_relative,
            Scale((SPREAD, 0.2, 0.4, CONSENSUS)),
            f"κ′: within-{noun} similarity without the direction common to all {noun}s (0: as at the embedding, 1: one "
            f"point per {noun}). Below {SPREAD:g} a layer is spread; from {CONSENSUS:g} it is in consensus.",
        ),
        numbers_map(
            "cos2-map", "Do they lie in few directions, layer by layer?", "Centred cos²", maps.centred_cos2,
            Scale((0.1, 0.2, 0.4, 0.6, 0.8)),
            f"Centred cos² over pairs of tokens of one {noun} shows a collapse to a line or to few directions, which "
            "κ′ does not.",
        ),
        numbers_map(
            "common-map", f"How much do all {noun}s share, layer by layer?", "Common share", maps.share_common,
            Scale((0.2, 0.4, 0.6, ANISOTROPIC)),
            f"The share of a token's direction that tokens of different {noun}s have in common. From {ANISOTROPIC:g}, "
            "if κ′ is small, a layer is anisotropic.",
        ),
    )  # fmt: skip


def _ends_of(table: xr.Dataset, noun: str) -> tuple[Figure, ...]:
    """Draw the two measures that decide most states, at the end of the network."""
    return (
        _end(
            table, noun, "consensus_relative", f"Do the tokens of one {noun} draw together?", "κ′",
            f"Within-{noun} similarity κ′",
            (Rule(SPREAD, f"spread below {SPREAD:g}"), Rule(CONSENSUS, f"consensus from {CONSENSUS:g}")),
        ),
        _end(
            table, noun, "share_common", f"Do the tokens of all {noun}s point one way?", "Common share",
            f"Share of a token's direction that tokens of different {noun}s have in common",
            (Rule(ANISOTROPIC, f"anisotropic from {ANISOTROPIC:g}"),),
        ),
    )  # fmt: skip


def _end(
    table: xr.Dataset, noun: str, measure: str, question: str, axis: str, caption: str, rules: tuple[Rule, ...]
) -> Figure:  # fmt: skip
    def ends(name: str) -> Iterator[np.ndarray]:
        return (table[f"{name}_interval"].isel(layer=-1, missing_dims="ignore").sel(bound=end).values for end in BOUNDS)

    curves = [
        _line("after the last layer", 0, table, table[measure].isel(layer=-1).values, *ends(measure)),
        _line("highest of any layer", 1, table, table[measure].isel(layer=slice(1, None)).max("layer").values),
    ]
    after = f"{FINAL_NORM}{measure}"
    if after in table:
        curves.append(_line("after the final norm", 2, table, table[after].values, *ends(after)))
    where = "after the last layer and after the final norm" if after in table else "after the last layer"
    intervals = f"{percent(CONFIDENCE)} confidence intervals over {noun}s"
    return over_steps(
        f"{measure.replace('_', '-')}-over-steps", question, axis,
        f"{caption}: {where}, with {intervals}; and the highest after any layer.", curves, rules=rules,
    )  # fmt: skip


def _updates(table: xr.Dataset, noun: str) -> Figure:
    lines = []
    for place, (part, name) in enumerate(PART_NAMES.items()):
        ratio = table.update_ratio.sel(component=part)
        ends = (ratio.min("layer").values, ratio.max("layer").values)
        lines.append(_line(name, place, table, ratio.median("layer").values, *ends))
    return over_steps(
        "updates-over-steps",
        "How large is each update?",
        "|update| / |residual stream|",
        f"Norm of a part's update relative to the residual stream it is added to: median over tokens and {noun}s. "
        "Line: median over layers; band: lowest to highest layer.",
        lines,
        log=True,
        ends=("lowest layer", "highest layer"),
    )


def _sinks(table: xr.Dataset, noun: str) -> Figure:
    mass, uniform = table.attention_sink_mass, table.attention_sink_uniform
    lines = [
        _line("highest layer", 0, table, mass.max("layer").values),
        _line("median of the layers", 1, table, mass.median("layer").values),
        _line("under uniform attention, at most", 2, table, uniform.max("layer").values),
    ]
    return over_steps(
        "sinks-over-steps",
        "Is there an attention sink?",
        "Weight received by one token",
        f"Mean attention weight received by the most attended token of each {noun}, over heads and later tokens at "
        f"least four positions away; mean over {noun}s.",
        lines,
        rules=(Rule(ATTENTION_SINK, f"attention sink from {ATTENTION_SINK:g}"),),
    )


def _line(
    name: str, place: int, table: xr.Dataset, values: np.ndarray, low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> Curve:  # fmt: skip
    return thinned(styled(name, place, table.step.values, values, low, high))
