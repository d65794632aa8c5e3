"""The page of a diagnosis: verdict, sections, conventions; and its figure in a notebook."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.network import norms_there
from tokendynamics.diagnosis.result import levers_in_words
from tokendynamics.diagnosis.tracing.layer_states import State, states_within
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.palette import chart_config
from tokendynamics.figures.parts import Stack
from tokendynamics.figures.svg import WIDE, Drawing, words_chart
from tokendynamics.report._page import page_of, piece, render
from tokendynamics.report.diagnosis import _sections
from tokendynamics.report.diagnosis._shares import AXIS, QUESTION, shares_figure
from tokendynamics.report.diagnosis._tokens import player, prompts_of
from tokendynamics.results import Refused
from tokendynamics.words import count, duration, in_layers, listing, moment, plural, written

_GLYPHS: dict[State, str] = {
    "spread": "⁘", "drawing together": "›‹", "consensus": "●", "rank collapse": "│", "anisotropic": "↗",
    "one point": "◉",
    "undetermined": "?",
}  # fmt: skip


@page_of.register(Diagnosis)
def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return the report as one self-contained HTML page.

    Every figure is an SVG with title, description and a table of its numbers. Nothing is fetched, and all text from a
    user, a tokenizer or a checkpoint is escaped, with control characters made visible.

    Args:
        diagnosis: From `tokendynamics.diagnose`.

    Returns:
        HTML, to be stored as UTF-8.
    """
    model, sections = str(diagnosis.model["name"]), _sections(diagnosis)
    # Earlier versions stored no advice.
    lines, noun = diagnosis.verdict.lines, noun_in(diagnosis.trace)
    further = {"Levers": diagnosis.levers, "Deeper": diagnosis.deeper}
    named = [
        replace(convention, name=f"{name}: {convention.name}")
        for name, result in further.items()
        if result is not None and not isinstance(result, Refused)
        for convention in result.conventions
    ]
    return render(
        "diagnosis.html.jinja",
        title=f"Diagnosis of {model}",
        verdict_title="Verdict",
        sections=sections,
        conventions=(*diagnosis.conventions, *named),
        manifest=diagnosis.manifest,
        files=diagnosis.files,
        scripts=("tokens.js", "paths.js"),
        about=piece("about.html.jinja", entries=_facts(diagnosis), prompts=prompts_of(diagnosis.trace), noun=noun),
        titles={section.ident: section.title for section in sections},
        model=model,
        shape=f"{_shape(diagnosis.model)}, on {plural(diagnosis.trace.sizes['prompt'], noun)}",
        verdict=diagnosis.verdict,
        lines=[*lines, *(() if lines[-1][0] == "What to do" else (("What to do", levers_in_words(diagnosis)),))],
        layers=_layers(diagnosis),
        player=player(diagnosis.paths),
    )


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    model, manifest = diagnosis.model, diagnosis.manifest
    seed = model.get("random_seed")
    weights = "random" if seed is not None else "pretrained" if model.get("source") else "of a live network"
    form = "" if isinstance(diagnosis.audit, Refused) else str(diagnosis.audit.attrs.get("form", ""))
    facts = [
        ("Parameters", f"{count(model['parameters'])}, {weights}" + (f" (seed {seed})" if seed is not None else "")),
        ("Shape", _shape(model)),
        ("Architecture", _architecture(model, norms_there(diagnosis.trace))),
        ("Form", form if "normalized" in form else ""),
        ("Source", written(model.get("source"))),
        ("Measured", f"{moment(manifest.get('started'))}, in {duration(manifest.get('duration_seconds'))}"),
        ("With", written(manifest.get("versions"))),
    ]
    return [(name, text) for name, text in facts if text]


def _shape(model: Mapping[str, Any]) -> str:
    heads = plural(model["heads"], "head")
    if model.get("kv_heads") not in (None, model["heads"]):
        heads += f" ({count(model['kv_heads'])} for keys and values)"
    # An attention that could not be read is recorded with no heads.
    parts = (plural(model["layers"], "layer"), heads if model["heads"] else "", f"dim {count(model['dim'])}")
    return " × ".join(part for part in parts if part)


def _architecture(model: Mapping[str, Any], normed: bool) -> str:
    parts = [model.get("model_type") or model.get("family")]
    # The kind of norm is recorded even for a network without one.
    model = model if normed else {**model, "norm": "none"}
    parts += [
        f"{str(model[name]).replace('none', 'no')} {noun}"
        for name, noun in (("positions", "positions"), ("norm", "norm"))
        # Rotary positions and biases are known only for an attention that could be read.
        if model.get(name) and (model["heads"] or model[name] != "none")
    ]
    return ", ".join(str(part) for part in parts if part)


def _layers(diagnosis: Diagnosis) -> dict[str, Any]:
    verdict, trace = diagnosis.verdict, diagnosis.trace
    states = np.array(verdict.layers)
    where: dict[State, np.ndarray] = {state: np.flatnonzero(states == state) + 1 for state in _GLYPHS}
    legend: dict[State, str] = {state: in_layers(layers) for state, layers in where.items() if len(layers)}
    badges = [
        (str(index), state, _GLYPHS[state], _also(trace, state, index, "feed_forward"))
        for index, state in enumerate(verdict.layers, start=1)
    ]
    if verdict.final_norm is not None:
        final = verdict.final_norm
        badges.append(("norm", final, _GLYPHS[final], _also(trace, final, len(states), "final_norm")))
        legend[final] = f"{legend[final]}, and the final norm" if final in legend else "the final norm"
    return {"badges": badges, "legend": [(state, _GLYPHS[state], place) for state, place in legend.items()]}


def _also(trace: xr.Dataset, state: State, layer: int, site: str) -> str:
    """Return the other states within the confidence intervals, in words; empty where there are none."""
    others = [other for other in states_within(trace, layer, site) if other != state]
    return f"within the confidence intervals also {listing(others, 'or')}" if others else ""


def notebook_html(diagnosis: Diagnosis) -> str:
    """Return the verdict's sentences and the shares as self-contained HTML; all foreign text is escaped.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    # Two figures in one notebook must not share the ids of their parts.
    content = f"{diagnosis.model['name']}{diagnosis.verdict}{diagnosis.trace.shares.values.tobytes().hex()}"
    digest = hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()
    figure = shares_figure(diagnosis.trace, f"shares-{digest[:8]}")
    whole = piece(
        "notebook.html.jinja",
        model=str(diagnosis.model["name"]),
        verdict=diagnosis.verdict,
        svg=figure.notebook_svg(),
        caption=figure.caption,
    )
    return str(whole)


def shares_chart(diagnosis: Diagnosis) -> Drawing:
    """Return the shares of a token's direction over depth as an Altair chart; without shares, a chart of the reason.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    figure = shares_figure(diagnosis.trace)
    if isinstance(figure.drawn, Stack):
        chart = replace(figure.drawn, legend=True).chart(WIDE * 0.75)
    else:
        chart = words_chart([AXIS, *wrap(figure.caption, 71, break_on_hyphens=False)])
    return chart.properties(title=QUESTION, config=chart_config() | {"background": "#fefefd"})
