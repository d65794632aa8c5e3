"""Everything that a monitor has found, look by look: numbers, states, what changed; its files and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis.tracing.layer_states import SEVERITY, State
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.diagnosis.tracing.variables import BOUNDS, COMPONENTS, DESCRIPTIONS, LABELS
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.provenance.manifest import manifest
from tokendynamics.results.result import StoredResult
from tokendynamics.results.tables import nothing_saved, open_table
from tokendynamics.training.monitor.changes import (
    MEASURES,
    Change,
    Track,
    after_final_norm,
    deciding,
    has_intervals,
    possible_states,
)
from tokendynamics.training.monitor.looks import BEFORE_NORM, DIMS, FINAL_NORM, MEASURED, Look, Values
from tokendynamics.words import count, estimate, fixed, in_layers, percent, plural, sentence

EMBEDDING = "embedding"
"""Stands where a state would be, at layer 0."""

STORED: dict[str, tuple[str, ...]] = {
    **{name: ("step", *dims) for name, dims in DIMS.items()}, "status": ("step",), "text": ("prompt",)
}  # fmt: skip
"""What `looks_of` reads, with its axes; a network without a final norm has nothing after it, nor have older files."""

_LABELS: dict[str, list[str]] = {"component": list(COMPONENTS), "bound": list(BOUNDS)}
_OF_TEXTS = {"update_ratio": "; median over texts", "attention_sink_mass": "; mean over texts"}
_WORDS = DESCRIPTIONS | {
    "attention_sink_uniform": "what the token of attention_sink_mass would receive if each attended alike to all that "
    "it sees; mean over texts",
    "state": "the state after the layer, from the measures of this step alone",
    "state_held": "the state that changes are counted from: it stays while anything within the intervals makes it",
    "status": f"'{MEASURED}', or why there are no numbers",
}


def dataset_of(series: Series) -> xr.Dataset:
    """Return everything over ``step``, ``layer`` (0 … L) and further axes, by the names of `tokendynamics.trace`.

    Args:
        series: What was measured; measures after the final norm are left out of a network without one.
    """
    looks, names = series.looks, list(DIMS)
    normed = any(series.final_norm.states)
    if not normed:
        names = [name for name in names if not name.startswith(FINAL_NORM)]
    depth = max((len(look.values["share_common"]) for look in looks if look.values), default=0)
    variables: dict[str, Any] = {}
    for name in names:
        shape = tuple(depth if dim == "layer" else len(_LABELS[dim]) for dim in DIMS[name])
        rows = [look.values.get(name, np.full(shape, np.nan)) for look in looks]
        variables[name] = (("step", *DIMS[name]), np.array(rows, dtype=np.float64).reshape(len(rows), *shape))
    for name, place in (("state", "states"), ("state_held", "held")):
        by_look: list[list[str]] = getattr(series.layers, place)
        words = [[EMBEDDING, *(of_look or ["undetermined"] * (depth - 1))][:depth] for of_look in by_look]
        variables[name] = (("step", "layer"), np.array(words, dtype=str).reshape(len(looks), depth))
        if normed:
            after = [of_look[0] if of_look else "undetermined" for of_look in getattr(series.final_norm, place)]
            variables[f"{FINAL_NORM}{name}"] = ("step", np.array(after, dtype=str))
    variables["status"] = ("step", np.array([look.status for look in looks], dtype=str))
    called, text = (np.array([pair[place] for pair in series.texts], dtype=str) for place in (0, 1))
    coords = {"step": [look.step for look in looks], "layer": np.arange(depth), "prompt": called} | _LABELS
    table = xr.Dataset(variables, coords={**coords, "text": ("prompt", text)}, attrs=dict(series.facts))
    for name, variable in table.data_vars.items():
        measure = str(name).removesuffix("_interval")
        ends = f"ends of the {percent(CONFIDENCE)} interval over texts: " if measure != name else ""
        of_norm = "after the final norm: " if measure.startswith(FINAL_NORM) else ""
        words = _WORDS[measure.removeprefix(FINAL_NORM)] + _OF_TEXTS.get(str(name), "")
        variable.attrs["description"] = of_norm + ends + words
    return table


def looks_of(table: xr.Dataset) -> list[Look]:
    """Return the looks that a dataset is of.

    Args:
        table: From `dataset_of`.
    """
    looks = []
    for place, step in enumerate(table.step.values):
        status = str(table.status.values[place])
        names = [name for name in DIMS if name in table] if status == MEASURED else []
        values = {name: np.array(table[name].values[place]) for name in names}
        looks.append(Look(int(step), status, values))
    return looks


NOTHING = "nothing measured yet"
_TABLE = "monitor"
_WANTED = "what a monitor saved"


@dataclass(repr=False)
class Series(StoredResult):
    """The looks of a run in the order of their steps, and what they come to.

    Attributes:
        facts: What the numbers depend on, by name: the attributes of the dataset.
        texts: The name of each text, and what it is.
        looks: All so far.
        changes: What layers did, in the order of the steps; of one step the largest change of a measure first, and what
            the state after the final norm did last.
        packed: Each look as a text.
        layers: The states after the layers.
        final_norm: The state after the final norm, as that of one layer; empty without such a norm.
    """

    SUMMARY: ClassVar[str] = "monitor.json"
    WRITER: ClassVar[str] = "td.Monitor"

    facts: dict[str, Any] = field(default_factory=dict)
    texts: list[list[str]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    packed: list[str] = field(default_factory=list)
    layers: Track = field(default_factory=Track)
    final_norm: Track = field(default_factory=Track)

    def add(self, look: Look) -> list[Change]:
        """Add a look; return what layers, and the state after the final norm, have done since the last with numbers.

        Args:
            look: Of a later step than all others.
        """
        self.looks.append(look)
        self.packed.append(look.packed())
        of_norm = [replace(change, layers=()) for change in self.final_norm.add(after_final_norm(look))]
        changes = [*self.layers.add(look), *of_norm]
        self.changes += changes
        return changes

    @property
    def noun(self) -> str:
        """What one of the texts is called; "text" in results of earlier versions."""
        return str(self.facts.get("prompt_noun", "text"))

    @property
    def states(self) -> list[list[State]]:
        """The state after each layer 1 … L by the measures of each look alone; none where there are no numbers."""
        return self.layers.states

    @property
    def headline(self) -> str:
        """The network, how often it was measured, and its state at the last measurement."""
        model, often = self.facts.get("model", "a network"), plural(len(self.looks), "measurement")
        return f"{model}, {often}: {answer(self)}"

    @property
    def findings(self) -> list[str]:
        """The state at the last measurement, what changed, and measurements without numbers."""
        return findings(self)

    @property
    def status(self) -> str:
        """How the last look went: "measured", or why there are no numbers."""
        return self.looks[-1].status if self.looks else NOTHING

    @property
    def dataset(self) -> xr.Dataset:
        """Everything over ``step``, ``layer`` (0 … L) and further axes, by the names of `tokendynamics.trace`."""
        return dataset_of(self)

    def plain(self) -> dict[str, Any]:
        """Return plain values, of which `of_plain` makes the same again; what is measured later comes into them."""
        return {"facts": self.facts, "texts": self.texts, "looks": self.packed}

    @classmethod
    def of_plain(cls, values: Any) -> Series:
        """Return what `plain` returned.

        Args:
            values: It, or a copy.

        Raises:
            ArgumentValueError: Something else.
        """
        try:
            series = cls(dict(values["facts"]), [[str(name), str(text)] for name, text in values["texts"]])
            for text in values["looks"]:
                series.add(Look.unpacked(text))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ArgumentValueError("state", "that of a monitor", shown(str(error))) from error
        return series

    @property
    def tables(self) -> dict[str, xr.Dataset]:
        """The dataset."""
        return {_TABLE: self.dataset}

    @property
    def record(self) -> dict[str, Any]:
        """What is said of it, as plain values."""
        outcome = {"status": self.status, "changes": [change.text for change in self.changes]}
        return {**outcome, "texts": self.texts, "facts": self.facts}

    @property
    def manifest(self) -> dict[str, Any]:
        """How to measure it again, as of now."""
        threads = torch.get_num_threads()
        return manifest(self.command, self.parameters, seed=None, started=datetime.now(UTC), threads=threads)

    @classmethod
    def _stored(cls, folder: Path) -> Series:
        """Return the series that a folder holds; see `open`."""
        if not (folder / cls.SUMMARY).exists():
            raise nothing_saved(folder, _WANTED, cls.SUMMARY, {"diagnosis.json": "td.Diagnosis.open"})
        after_norm = {name: dims for name, dims in STORED.items() if name.startswith(FINAL_NORM)}
        needed = {name: dims for name, dims in STORED.items() if name not in after_norm}
        table = open_table(folder, _TABLE, needed, _WANTED, LABELS, optional=after_norm)
        try:
            texts = [list(map(str, pair)) for pair in zip(table.prompt.values, table.text.values, strict=True)]
            series = cls(dict(table.attrs), texts)
            for look in looks_of(table):
                series.add(look)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ArgumentValueError("folder", _WANTED, f"{folder} ({shown(str(error))})") from error
        return series

    @property
    def command(self) -> str:
        """The call that measures this again, as far as it can be written down."""
        return f"td.Monitor(texts, every={self.facts.get('every', 500)})"

    @property
    def parameters(self) -> dict[str, Any]:
        """What the call was given."""
        return {"every": self.facts.get("every"), "texts": [name for name, _ in self.texts]}


MOST_CHANGES = 8
"""Number of the largest changes that are shown first; the others are folded."""


def answer(series: Series) -> str:
    """Return the state after the last layer, and after the final norm, at the last measurement; or why it is unknown.

    Args:
        series: What was measured.
    """
    if not series.looks:
        return "Not measured"
    if not series.states[-1]:
        return sentence(series.status).rstrip(".")
    state, after = series.states[-1][-1], _after_norm(series, len(series.looks) - 1)
    return state.capitalize() + (f", {after} after the final norm" if after not in (None, state) else "")


def _after_norm(series: Series, place: int) -> State | None:
    """Return the state after the final norm at one look; None without a norm, or where it was not measured."""
    return next(iter(series.final_norm.states[place]), None)


def findings(series: Series) -> list[str]:
    """Return sentences on the last state, on changes, and on missing measurements.

    Args:
        series: What was measured.
    """
    numbered = [place for place, look in enumerate(series.looks) if look.values]
    ended: list[str] = []
    if numbered:
        ended = [_ended(series, numbered), *_where(series, numbered), *_norm_changes(series, numbered[-1])]
        ended.append(_changed(series, numbered))
    # At which steps measurements are missing, and why.
    sentences = []
    for status, run in groupby(series.looks, key=lambda look: look.status):
        if status != MEASURED:
            steps = [count(look.step) for look in run]
            at = f"At step {steps[0]}" if len(steps) == 1 else f"From step {steps[0]} to step {steps[-1]}"
            sentences.append(sentence(f"{at}: {status}"))
    return [*ended, *lines(series)[0], *sentences]


def lines(series: Series) -> tuple[list[str], list[str]]:
    """Return the logged changes of layers as sentences: the largest ones, and the others.

    Args:
        series: What was measured.

    Returns:
        Both in the order of their steps; of one step the largest change first.
    """
    order = sorted(range(len(series.changes)), key=lambda place: -series.changes[place].moved)
    largest = set(order[:MOST_CHANGES])
    texts = [f"Step {count(change.step)}:{change.text.partition(':')[2]}." for change in series.changes]
    first, others = ([text for place, text in enumerate(texts) if (place in largest) == kept] for kept in (True, False))
    return first, others


def _ended(series: Series, numbered: Sequence[int]) -> str:
    first, last = (series.looks[numbered[place]] for place in (0, -1))
    state, value = series.states[numbered[-1]][-1], float(last.values["consensus_relative"][-1])
    similarity, texts = "", plural(len(series.texts), series.noun)
    if np.isfinite(value):
        ends = last.values["consensus_relative_interval"][-1]
        similarity = f", with a within-{series.noun} similarity κ′ of {estimate(value, ends, CONFIDENCE, at_most=1.0)}"
        if first is not last:
            before = fixed(float(first.values["consensus_relative"][-1]))
            similarity += f", {before} at step {count(first.step)}"
    why = "" if has_intervals(last.values) else f", because a state needs three different {series.noun}s"
    word = state if has_intervals(last.values) else "undetermined"
    normed = _after_norm(series, numbered[-1])
    if normed is None:
        before = series.facts.get("sites") == BEFORE_NORM
        place = "the last layer, before the final norm," if before else "the last layer"
    else:
        place = "the last layer and after the final norm" if normed == state else "the last layer"
    return f"At step {count(last.step)} the state after {place} is {word}{why}{similarity} ({texts})."


def _norm_changes(series: Series, place: int) -> list[str]:
    """Say what the final norm turns the state into at one look, if into another one."""
    state, normed = series.states[place][-1], _after_norm(series, place)
    if normed is None or normed in (state, "undetermined"):
        return []
    before, after = series.looks[place].values, series.final_norm.looks[place].values
    name = deciding(state, normed)
    measure = f" ({MEASURES[name][0]} {_numbers_of(name, before, after)})" if name else ""
    if normed in possible_states(before, len(before["share_common"]) - 1) and state in possible_states(after, 1):
        return [f"After the final norm the state is {normed}{measure}, a difference within the confidence intervals."]
    return [f"The final norm changes the state to {normed}{measure}."]


def _numbers_of(name: str, before: Values, after: Values) -> str:
    """Return a measure before and after the final norm, with as many digits as it takes to see the change."""
    pairs = ((fixed(float(before[name][-1]), places), fixed(float(after[name][-1]), places)) for places in range(2, 7))
    written = list(pairs)
    return " → ".join(next((pair for pair in written if pair[0] != pair[1]), written[0]))


def _where(series: Series, numbered: Sequence[int]) -> list[str]:
    """Return which layers are in which state at the end, the most severe first."""
    states = series.states[numbered[-1]]
    if len(set(states)) == 1:
        return [f"All {len(states)} layers are in this state."] if len(states) > 1 else []
    layers = {word: [layer for layer, state in enumerate(states, start=1) if state == word] for word in set(states)}
    worst = sorted(layers, key=lambda word: (-SEVERITY[word], layers[word]))
    return [sentence("; ".join(f"{word} after {in_layers(layers[word])}" for word in worst))]


def _changed(series: Series, numbered: Sequence[int]) -> str:
    first, last = (count(series.looks[numbered[place]].step) for place in (0, -1))
    if len(numbered) == 1:
        return f"There is one measurement, at step {first}, so changes are unknown."
    over = f"in {plural(len(numbered), 'measurement')} from step {first} to step {last}"
    if not has_intervals(series.looks[numbered[-1]].values):
        return f"Changes {over} are not tested, because this needs three different {series.noun}s."
    if not series.changes:
        return f"No layer changed significantly {over}."
    many = len(series.changes)
    more = f" (the {MOST_CHANGES} largest first)" if many > MOST_CHANGES else ""
    return f"{plural(many, 'significant change')} {over}{more}:"
