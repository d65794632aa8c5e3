"""Puts the parts of a diagnosis into the one page that a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokendynamics.diagnosis._result import Diagnosis
from tokendynamics.diagnosis._verdict import FigureName, LayerEffect
from tokendynamics.report.diagnosis._agreement import agreement_figures
from tokendynamics.report.diagnosis._components import components_figure
from tokendynamics.report.diagnosis._norms import norms_figure
from tokendynamics.report.diagnosis._token_paths import player, token_paths_figure
from tokendynamics.report.diagnosis._weights import regimes, summary, weights
from tokendynamics.report.kit._figure import Section
from tokendynamics.report.kit._page import render, write_page
from tokendynamics.report.kit._text import count, duration, moment, plural, written

_TITLES: dict[FigureName, str] = {
    "agreement": "Do the tokens draw together with depth?",
    "norms": "Do they grow?",
    "components": "Who does it?",
    "weights": "What do the weights say?",
    "paths": "Watch the tokens",
}
"""The sections, by the name that a finding links to."""

_EFFECTS: dict[LayerEffect, str] = {"contracts": "›‹", "neutral": "·", "expands": "‹›"}
# Not − and +: a contracting layer RAISES the mean pair cosine, and the figures print that with a plus.


def render_report(diagnosis: Diagnosis) -> str:
    """Return the whole report as one HTML page that needs nothing else.

    Every figure is an SVG with title and description and a table of its numbers; nothing is fetched, and all text
    that came from a user, a tokenizer or a checkpoint is escaped, with control characters made visible.

    Args:
        diagnosis: From `tokendynamics.diagnose`.

    Returns:
        HTML, to be stored as UTF-8.
    """
    model = str(diagnosis.model["name"])
    return render(
        "diagnosis.html.jinja",
        title=f"{model}: where do the tokens go with depth?",
        verdict_title="Verdict",
        sections=[Section(*entry) for entry in _TITLES.items()],
        conventions=diagnosis.conventions,
        manifest=diagnosis.manifest,
        files=diagnosis.files,
        scripts=("shared.js", "paths.js"),
        sheets=("page.css",),
        titles=_TITLES,
        model=model,
        facts=_facts(diagnosis),
        prompts=_prompts(diagnosis),
        verdict=diagnosis.verdict.sentences,
        layers=_layers(diagnosis),
        agreement=agreement_figures(diagnosis.trace),
        norms=norms_figure(diagnosis.trace),
        components=components_figure(diagnosis.trace),
        **_of_the_weights(diagnosis),
        paths=token_paths_figure(diagnosis.paths),
        player=player(diagnosis.paths),
        followed=_followed_prompt(diagnosis),
    )


def write_report(diagnosis: Diagnosis, path: str | Path, *, max_bytes: int | None = None) -> Path:
    """Write the report of `diagnosis` as one HTML file.

    It is made beside its place and then renamed: a failure or a kill leaves neither a half-written report nor a
    damaged older one.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
        path: The file to write; its folder is made if need be.
        max_bytes: Refuse to write a page larger than this; None for no limit.

    Returns:
        The path written.

    Raises:
        ArgumentValueError: `path` is a folder, or the page would be larger than `max_bytes`.
    """
    return write_page(render_report(diagnosis), path, max_bytes=max_bytes)


def _of_the_weights(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section about the weights; all None where there is no audit."""
    audit, dim = diagnosis.audit, int(diagnosis.model["dim"])
    if audit is None:
        return dict.fromkeys(("weights", "regimes", "summary"))
    return {"weights": weights(audit), "regimes": regimes(audit, dim), "summary": summary(audit, dim)}


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    model, manifest = diagnosis.model, diagnosis.manifest
    seed = model.get("random_seed")
    weights = "random" if seed is not None else "pretrained" if model.get("source") else "of a live network"
    form = "" if diagnosis.audit is None else str(diagnosis.audit.attrs.get("form", ""))
    facts = [
        ("Parameters", f"{count(model['parameters'])}, {weights}" + (f" (seed {seed})" if seed is not None else "")),
        ("Shape", _shape(model)),
        ("Architecture", _architecture(model)),
        ("Form", form if "normalized" in form else ""),
        ("Source", written(model.get("source"))),
        ("Measured", f"{moment(manifest.get('started'))}, in {duration(manifest.get('duration_seconds'))}"),
        ("With", written(manifest.get("versions"))),
    ]
    return [(name, text) for name, text in facts if text]


def _shape(model: Mapping[str, Any]) -> str:
    heads = f"{count(model['heads'])} heads"
    if model.get("kv_heads") not in (None, model["heads"]):
        heads += f" ({count(model['kv_heads'])} for keys and values)"
    # No head at all is said of an attention that could not be read.
    parts = (plural(model["layers"], "layer"), heads if model["heads"] else "", f"dim {count(model['dim'])}")
    return " × ".join(part for part in parts if part)


def _architecture(model: Mapping[str, Any]) -> str:
    parts = [model.get("model_type") or model.get("family")]
    parts += [
        f"{str(model[name]).replace('none', 'no')} {noun}"
        for name, noun in (("positions", "positions"), ("norm", "norm"))
        # Rotations and biases show only in an attention that could be read.
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
    """Name of the prompt whose tokens are drawn."""
    text = str(diagnosis.paths.attrs.get("prompt", ""))
    return next((name for name, prompt in _prompts(diagnosis) if prompt == text), "")


def _layers(diagnosis: Diagnosis) -> dict[str, Any]:
    effects = diagnosis.verdict.layers
    counts = Counter(effects)
    return {
        "badges": [(index, effect, _EFFECTS[effect]) for index, effect in enumerate(effects, start=1)],
        "legend": [(effect, glyph, counts[effect]) for effect, glyph in _EFFECTS.items()],
    }
