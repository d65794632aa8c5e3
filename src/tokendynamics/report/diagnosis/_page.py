"""The page of a diagnosis: verdict, sections, conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.network import norms_there
from tokendynamics.diagnosis.result import levers_in_words
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.verdict import FigureName
from tokendynamics.figures.figure import Section
from tokendynamics.report._page import piece, render
from tokendynamics.report._registry import page_of
from tokendynamics.report.diagnosis._agreement import agreement_figures
from tokendynamics.report.diagnosis._attention import attention_figure
from tokendynamics.report.diagnosis._components import components_figures
from tokendynamics.report.diagnosis._deeper import deeper_parts
from tokendynamics.report.diagnosis._levers import levers_parts
from tokendynamics.report.diagnosis._norms import norms_figure
from tokendynamics.report.diagnosis._shares import consensus_figure, shares_figure
from tokendynamics.report.diagnosis._token_paths import Player, player, token_paths_figure
from tokendynamics.report.diagnosis._updates import updates_figure
from tokendynamics.report.diagnosis._weights import regimes, summary, weights
from tokendynamics.results import Refused
from tokendynamics.words import Convention, count, duration, in_layers, moment, plural, written

_TITLES: dict[FigureName, str] = {
    "shares": "What do the tokens share?",
    "components": "Which parts cause it?",
    "levers": "What can you try?",
    "deeper": "What happens in a deeper network?",
    "updates": "How large are the updates?",
    "norms": "Do the token norms grow?",
    "attention": "Which tokens receive the attention?",
    "agreement": "What do other measures show?",
    "weights": "What do the weights show?",
    "paths": "Watch the tokens",
}
"""The sections in order, by the name that a finding links to; those not requested are omitted."""

_GLYPHS: dict[State, str] = {
    "spread": "⁘", "drawing together": "›‹", "consensus": "●", "rank collapse": "│", "anisotropic": "↗",
    "undetermined": "?",
}  # fmt: skip

_OF_REGIMES = (
    "W is the sum of W_Q W_Kᵀ over heads and A = W (Vᵀ)⁻¹. A exists only if V is invertible; otherwise the table shows "
    "“undefined” with the rank of V. Signs are those of the symmetric parts. The conjecture is about attention alone, "
    "as a free flow without the other parts of a layer. Layers with equal entries share one line with the range of "
    "their numbers; the CSV file lists every layer."
)
_UNAUDITED = (
    "The weights were not audited; the verdict gives the reason. All other results on this page need only token states."
)


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
    model, moving = str(diagnosis.model["name"]), player(diagnosis.paths)
    return render(
        "diagnosis.html.jinja",
        title=f"Diagnosis of {model}",
        verdict_title="Verdict",
        sections=_sections(diagnosis, moving),
        conventions=_conventions(diagnosis),
        manifest=diagnosis.manifest,
        files=diagnosis.files,
        scripts=("shared.js", "paths.js"),
        sheets=("page.css",),
        about=piece("about.html.jinja", entries=_facts(diagnosis), prompts=_prompts(diagnosis)),
        titles=_TITLES,
        model=model,
        shape=f"{_shape(diagnosis.model)}, on {plural(diagnosis.trace.sizes['prompt'], 'prompt')}",
        verdict=diagnosis.verdict,
        lines=_lines(diagnosis),
        layers=_layers(diagnosis),
        player=moving,
    )


def _sections(diagnosis: Diagnosis, moving: Player) -> list[Section]:
    trace = diagnosis.trace
    own = piece("player.html.jinja", player=moving, followed=_followed_prompt(diagnosis))
    parts: dict[FigureName, dict[str, Any]] = {
        "shares": {"figures": (shares_figure(trace), consensus_figure(trace))},
        "components": {"variants": tuple(sorted(components_figures(trace), key=lambda figure: not figure.svg))},
        "levers": levers_parts(diagnosis),
        "updates": {"figures": (updates_figure(trace),)},
        "norms": {"figures": (norms_figure(trace),)},
        "attention": {"figures": (attention_figure(trace),)},
        "agreement": {"variants": tuple(agreement_figures(trace))},
        "weights": _of_the_weights(diagnosis),
        "paths": {"own": own, "figures": (token_paths_figure(diagnosis.paths),)},
    }
    if diagnosis.deeper is not None:
        parts["deeper"] = deeper_parts(diagnosis)
    return [Section(name, title, **parts[name]) for name, title in _TITLES.items() if name in parts]


def _of_the_weights(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section about the weights; one sentence where there is no audit."""
    audit, dim = diagnosis.audit, int(diagnosis.model["dim"])
    if isinstance(audit, Refused):
        return {"sentences": (_UNAUDITED,)}
    return {
        "sentences": (summary(audit, dim),),
        "tables": (regimes(audit, dim),),
        "figures": tuple(weights(audit)),
        "notes": (_OF_REGIMES,),
    }


def _conventions(diagnosis: Diagnosis) -> tuple[Convention, ...]:
    further = {"Levers": diagnosis.levers, "Deeper": diagnosis.deeper}
    named = [
        replace(convention, name=f"{name}: {convention.name}")
        for name, result in further.items()
        if result is not None and not isinstance(result, Refused)
        for convention in result.conventions
    ]
    return (*diagnosis.conventions, *named)


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


def _prompts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    trace = diagnosis.trace
    names = [str(name) for name in trace["prompt"].values]
    texts = (
        [str(text) for text in trace["text"].values] if "text" in trace.coords or "text" in trace else [""] * len(names)
    )
    return list(zip(names, texts, strict=True))


def _followed_prompt(diagnosis: Diagnosis) -> str:
    """Return the name of the prompt whose tokens are drawn."""
    text = str(diagnosis.paths.attrs.get("prompt", ""))
    return next((name for name, prompt in _prompts(diagnosis) if prompt == text), "")


def _lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return what, why and what to do, for the first screen."""
    what, *further = (finding.text for finding in diagnosis.verdict.sentences)
    why = [("Why", further[0])] if len(further) > 1 else []
    return [
        ("What", what),
        *why,
        ("What to do", levers_in_words(diagnosis)),
        *(("How sure", text) for text in further[-1:]),
    ]


def _layers(diagnosis: Diagnosis) -> dict[str, Any]:
    states = np.array(diagnosis.verdict.layers)
    where = {state: np.flatnonzero(states == state) + 1 for state in _GLYPHS}
    return {
        "badges": [(index, state, _GLYPHS[state]) for index, state in enumerate(diagnosis.verdict.layers, start=1)],
        "legend": [(state, glyph, in_layers(where[state])) for state, glyph in _GLYPHS.items() if len(where[state])],
    }
