"""The page of the explorer: one file without any request, from presets, a file's flow or a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import singledispatch
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from markupsafe import Markup
from torch import nn

from tokendynamics._version import __version__
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.dynamics import Trajectory
from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.observables.summary import Observable, read_observables
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.loading import as_checkpoint
from tokendynamics.provenance.progress import Progress, silent, tracked
from tokendynamics.report._page import content_security_policy, resource, style, templates
from tokendynamics.report.explorer._flow import why_not_live
from tokendynamics.report.explorer._network import of_diagnosis, of_network
from tokendynamics.report.explorer._system import (
    BY_PYTHON,
    NO_NOISE,
    OF_LAYERS,
    check_tokens,
    live_system,
    of_trajectory,
    played_system,
    still_of,
)
from tokendynamics.specification import Simulation, run
from tokendynamics.specification.build import build
from tokendynamics.specification.file import SpecificationFile, parse

SCRIPTS = ("explorer-flow.js", "tokens.js", "explorer-save.js", "explorer-tour.js", "explorer.js")
"""Own JavaScript of the page, in the order in which it stands there."""

TERMS = ("beta", "spread", "rank", "clusters", "energy", "certificate", "margin")
"""Words of the glossary that stand on the page."""

_SENTENCES = {
    "one-cluster": "All tokens start in one half of the sphere, attend to each other, and meet in one point.",
    "metastability": "Tokens gather in two clusters before t = 20; only after t = 200 do these meet.",
    "leader": "Each token sees itself and those before it: all go to the first, which does not move.",
    "rotary": "With rotary positions these tokens grow; without them they shrink.",
    "repulsion": "Each token moves away from what it attends to: tokens spread over the sphere.",
}


def presets(report: Progress = silent) -> list[dict[str, Any]]:
    """Return the systems of a page without an argument."""
    folder = files("tokendynamics.report.explorer").joinpath("presets")
    systems: list[dict[str, Any]] = []
    for path in tracked(sorted(folder.iterdir(), key=lambda entry: entry.name), report, "computing the presets"):
        name = path.name.removesuffix(".toml").partition("-")[2]
        file = parse(path.read_text(encoding="utf-8"), path.name)
        setup = build(file)
        systems.append(
            live_system(
                setup.flow,
                setup.start,
                setup.times,
                name=name,
                title=str(file.tables.title),
                sentence=_SENTENCES[name],
                still=not systems,
            )
        )
    return systems


def tour() -> list[dict[str, Any]]:
    """Return the steps of the tour through the presets."""
    return _table("explorer/tour.toml")["steps"]


def glossary() -> dict[str, dict[str, str]]:
    """Return the words that pages and documents explain, by key: the term and one sentence."""
    return {one["key"]: one for one in _table("glossary.toml")["terms"]}


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files("tokendynamics.report").joinpath(name).read_text(encoding="utf-8"))


Added: TypeAlias = Mapping[str, Observable] | None
"""Observables of the user, by name."""

MEASURES = ("spread", "rank", "clusters", "energy")
"""What the page draws over time."""


@singledispatch
def systems_of(subject: Any, added: Added = None) -> list[dict[str, Any]]:
    """Return the systems of a page about one subject, with observables of the user where a run is played.

    Raises:
        ArgumentTypeError: Nothing that moves.
    """
    wanted = "a trajectory, a simulation or the file of one, a network or its diagnosis"
    raise ArgumentTypeError("result", wanted, shown(subject), "write its page with report(path)")


@systems_of.register
def _(subject: Trajectory, added: Added = None) -> list[dict[str, Any]]:
    return [of_trajectory(subject, "A run", added)]


@systems_of.register
def _(subject: Simulation, added: Added = None) -> list[dict[str, Any]]:
    return [of_trajectory(subject.trajectory, subject.file.tables.title or "A simulation", added)]


@systems_of.register
def _(subject: SpecificationFile, added: Added = None) -> list[dict[str, Any]]:
    setup, title = build(subject), subject.tables.title or subject.name
    start = setup.start.flatten(0, -3)[0] if setup.start.ndim > 2 else setup.start
    sentence = "The first system of several is shown." if setup.start.ndim > 2 else ""
    if "noise" in setup.options:
        why = NO_NOISE
    elif setup.options.get("engine") == "layers":
        why = OF_LAYERS
    else:
        why = why_not_live(setup.flow, start)
    if added and not why:
        return [
            played_system(run(subject).trajectory, BY_PYTHON, name="file", title=title, sentence=sentence, added=added)
        ]
    if not why:
        return [live_system(setup.flow, start, setup.times, name="file", title=title, sentence=sentence)]
    check_tokens(start.shape[-2])
    played = f"{why} The states that Python computed are played."
    return [played_system(run(subject).trajectory, played, name="file", title=title, sentence=sentence, added=added)]


@systems_of.register
def _(subject: Diagnosis, added: Added = None) -> list[dict[str, Any]]:
    _refuse_added(added)
    return [of_diagnosis(subject)]


def _refuse_added(added: Added = None) -> None:
    if added:
        wanted = "None where no run is played"
        raise ArgumentTypeError("observables", wanted, ", ".join(added), "trace(observables=) takes them for networks")


def explorer_page(subject: Any = None, texts: Any = None, given: Any = None, report: Progress = silent) -> str:
    """Return the page as HTML that needs nothing else: no request, no script to be read.

    Args:
        subject: See `systems_of`, or a network; None for the presets.
        texts: Of a network; see `of_network`.
        given: Observables of the user, by name.
        report: Told how many of the presets are computed.

    Raises:
        ArgumentTypeError: Nothing that moves, texts where there is no network, or observables where no run is played.
    """
    added = read_observables(given, taken=MEASURES)
    if isinstance(subject, str | Path | nn.Module | Checkpoint):
        _refuse_added(added)
        checkpoint = as_checkpoint(subject, "subject")
        systems, title = of_network(checkpoint, texts), checkpoint.name
    elif texts is not None:
        raise ArgumentTypeError("texts", "None where no network reads them", shown(texts))
    else:
        if subject is None:
            _refuse_added(added)
        with limited_threads(1):  # Thousands of small systems, on which threads would wait for each other.
            systems = presets(report) if subject is None else systems_of(subject, added)
        title = "How tokens move under attention" if subject is None else str(systems[0]["title"])
    script = "\n\n".join(map(resource, SCRIPTS))
    sheet = style("page.css", "explorer.css")
    # In a script element nothing but "</" could end the data.
    shown_systems = [{name: value for name, value in system.items() if name != "still"} for system in systems]
    carried = {"version": __version__, "systems": shown_systems, "tour": tour() if subject is None else []}
    data = json.dumps(carried, ensure_ascii=False, separators=(",", ":"))
    words = glossary()
    return (
        templates()
        .get_template("explorer.html.jinja")
        .render(
            title=title,
            systems=systems,
            still=still_of(systems[0]),
            glossary={key: words[key] for key in TERMS},
            measures=MEASURES,
            added=list(added),
            data=Markup(data.replace("<", "\\u003c")),  # noqa: S704
            script=Markup(script),  # noqa: S704
            style=Markup(sheet),  # noqa: S704
            policy=content_security_policy(script, sheet),
        )
    )
