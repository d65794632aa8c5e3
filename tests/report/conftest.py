"""A synthetic diagnosis: 30 layers × 9 heads, grouped queries, sinks, and text that tries to break the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from report.chromium import emulate, started
from report.planted_study import full_study, planted_record
from report.reading import page_of, plain_spaces
from tokendynamics.diagnosis.deepening.result import Deeper
from tokendynamics.diagnosis.gating._result import Levers
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.verdict import Verdict, Worst
from tokendynamics.figures import drawing, svg
from tokendynamics.training import Record
from tokendynamics.words import Convention, Finding

HOSTILE = "<script>alert(1)</script></style>\"'&amp;\x00\x1b[31m\u202eevil\u2066 مرحبا 👩‍👩‍👧 \ufeff"
SITES = ("attention", "feed_forward", "final_norm")
MEASURES = (
    "consensus_first",
    "consensus_first_signed",
    "consensus_last",
    "mean_pair_cosine",
    "effective_rank",
    "effective_rank_unit_rows",
    "rank_one_distance",
    "norm_median",
    "norm_lower_quartile",
    "norm_upper_quartile",
    "distance_mean",
)


def synthetic(
    *,
    layers: int = 30,
    heads: int = 9,
    prompts: int = 5,
    tokens: int = 12,
    final_norm: bool = True,
    grouped: bool = True,
    pairs: bool = True,
    audited: list[int] | None = None,
    attention: bool = True,
) -> Diagnosis:
    """A diagnosis of a model that does not exist, seeded; `pairs` False stands for one-token prompts."""
    rng = np.random.default_rng(0)
    trace = _trace(rng, layers, prompts, final_norm, pairs)
    trace = trace.merge(_shares(rng, layers, prompts, final_norm, pairs))
    trace = trace.merge(_parts(rng, layers, prompts, tokens, attention))
    return Diagnosis(
        model={
            "name": f"model {HOSTILE}",
            "family": "llama",
            "model_type": "llama",
            "layers": layers,
            "heads": heads,
            "kv_heads": 3 if grouped else heads,
            "dim": 576,
            "d_head": 64,
            "parameters": 134515008,
            "positions": "rotary",
            "norm": "rms",
            "source": None,
            "random_seed": None,
        },
        audit=_audit(rng, audited or list(range(1, layers + 1)), heads, grouped),
        trace=trace,
        paths=_paths(rng, layers, tokens, pairs),
        verdict=_verdict(layers),
        conventions=(Convention("Value map", f"V is W_V {HOSTILE}", "the regime would change"),),
        manifest={
            "command": f"tokendynamics diagnose x --prompt '{HOSTILE}'",
            "parameters": {"value": "V", "layers": list(range(1, layers + 1)), "note": HOSTILE},
            "versions": {"tokendynamics": "0.1.0", "torch": "2.13.0"},
            "hardware": {"cores": 2, "accelerator": None},
            "seed": None,
            "started": "2026-11-21T23:35:52+00:00",
            "duration_seconds": 12.345,
        },
        files=("trace.zarr", "a folder/su?mmary.json"),
        levers=_levers(rng, layers),
        deeper=_deeper(trace.prompt.values.tolist(), pairs),
    )


def _levers(rng: np.random.Generator, layers: int) -> Levers:
    """Two candidates, of which one lowers κ and the other has no significant effect."""
    grid = ("layer", "component")
    variables = {
        "consensus_sensitivity": (grid, rng.normal(0, 0.1, (layers, 2))),
        "loss_sensitivity": (grid, rng.normal(-0.2, 0.1, (layers, 2))),
        "candidate_layer": ("candidate", [2, 1]),
        "candidate_part": ("candidate", ["feed_forward", "attention"]),
        "alpha": ("candidate", [0.5, 0.0]),
        "kappa_change": ("candidate", [-0.1234, 0.01]),
        "kappa_interval": (("candidate", "bound"), [[-0.2, -0.05], [-0.4, 0.42]]),
        "loss_change": ("candidate", [0.0625, np.nan]),
        "loss_interval": (("candidate", "bound"), [[0.01, 0.115], [np.nan, np.nan]]),
        "verified": ("candidate", [True, False]),
        "measured_on": ("measuring", ["one", "two", "three"]),
    }
    coords = {"layer": np.arange(1, layers + 1), "component": ["attention", "feed_forward"], "bound": ["low", "high"]}
    text = f"No change is needed to avoid consensus. Measured on {HOSTILE}."
    made = Convention("gate", f"α {HOSTILE}", "other parts could stand out")
    return Levers(xr.Dataset(variables, coords=coords), 0.3, layers, "nothing needs doing", text, (made,))


def _deeper(prompts: list[str], pairs: bool) -> Deeper:
    """Two variants over 150 passes: E halves every 4 of them in one; the other ends after pass 20."""
    steps, by_prompt, by_variant = np.arange(151), ("variant", "prompt", "pass"), ("variant", "pass")
    fall = np.stack([0.5 ** (steps / 4), np.where(steps <= 20, 0.9 * 0.99**steps, np.nan)])
    entry = fall[:, None] * np.linspace(0.5, 1.5, len(prompts))[:, None]
    share = fall if pairs and len(prompts) > 1 else np.full_like(fall, np.nan)
    estimates, both = ("variant", "estimate"), ("variant", "decoded_pass")
    variables: dict[str, Any] = {
        "consensus": (by_prompt, entry if pairs else np.zeros_like(entry)),
        "log_norm": (by_prompt, np.where(np.isnan(entry), np.nan, 0.0)),
        "consensus_within": (by_variant, 1 - share),
        "share_common": (by_variant, 0 * share),
        "share_own": (by_variant, 0.5 * share),
        "median_consensus": (by_variant, np.median(entry, axis=1) if pairs else np.zeros_like(fall)),
        "median_half_life": (estimates, [[4.0, 4.0, 4.0], [68.97, 60.0, np.inf]]),
        "median_collapse_pass": (estimates, [[40.0] * 3, [697.0, 600.0, np.inf]]),
        "fit_first": ("variant", [4, 1]),
        "fit_last": ("variant", [132, 20]),
        "status": (("variant", "prompt"), [[word] * len(prompts) for word in ("all passes done", "not finite")]),
        "decoded": (both, [[f"one two {HOSTILE}", "one\none"], ["  ", ""]]),
        "distinct_1": (both, [[0.9, 0.2], [0.5, np.nan]]),
    }
    coords = {
        "variant": ["full", "attention-only"], "prompt": prompts, "pass": steps, "decoded_pass": [1, 100],
        "estimate": ["value", "low", "high"],
    }  # fmt: skip
    table = xr.Dataset(variables, coords=coords, attrs={"resolution": 1e-10, "asked_for": 150})
    made = Convention("weights", f"their own {HOSTILE}", "others fall at another pace")
    return Deeper(table, (f"full: E falls {HOSTILE}.", "attention-only: not seen."), (made,), {"no-ffn": HOSTILE})


def _trace(rng: np.random.Generator, layers: int, prompts: int, final_norm: bool, pairs: bool) -> xr.Dataset:
    exists = np.ones((layers + 1, 3), dtype=bool)
    exists[0, 0] = False
    exists[:, 2] = False
    exists[layers, 2] = final_norm
    grid = ("prompt", "layer", "site", "sinks")
    variables: dict[str, Any] = {}
    for name in MEASURES:
        values = rng.uniform(0.05, 0.95, (prompts, layers + 1, 3, 2))
        if name.startswith("effective_rank"):
            values = 1 + 11 * values
        if name.startswith("norm"):
            values = {"norm_lower_quartile": 80.0, "norm_median": 100.0, "norm_upper_quartile": 130.0}[name] + values
        elif not pairs:
            values = np.full_like(values, np.nan)
        values[:, ~exists] = np.nan
        variables[name] = (grid, values)
    sink = rng.uniform(2e4, 2.3e4, (prompts, layers + 1))
    sink[:, :3] = np.nan
    change = np.where(exists[:, list(range(3))], rng.normal(0, 0.05, (prompts, layers + 1, 3)), 0.0)
    change[:, 0] = 0.0
    variables |= {
        "massive_norm": (("prompt", "layer"), sink if pairs else np.full_like(sink, np.nan)),
        "massive_share": (("prompt", "layer"), np.where(np.isnan(sink) | (not pairs), 0.0, 0.9)),
        "massive_count": (("prompt", "layer"), (~np.isnan(sink) & pairs).astype(int)),
        "component_change": (("prompt", "layer", "component"), change if pairs else np.full_like(change, np.nan)),
    }
    names = [f"prompt {i} {HOSTILE if i == 1 else ''}" for i in range(prompts)]
    coords = {
        "prompt": names,
        "text": ("prompt", [f"text {i} {HOSTILE}" for i in range(prompts)]),
        "layer": np.arange(layers + 1),
        "site": list(SITES),
        "sinks": ["kept", "removed"],
        "component": list(SITES),
    }
    return xr.Dataset(variables, coords=coords, attrs={"sinks": "norm above 4 x the median"})


def _verdict(layers: int) -> Verdict:
    names = ("shares", "components", "updates", "norms", "attention", "agreement", "weights", "paths")
    details = [Finding(f"Finding about {name}: 0.0{i} and {HOSTILE}.", name) for i, name in enumerate(names)]
    sentences = [Finding(f"Sentence {i} with {0.25 * i:.2f} and {HOSTILE}.", "shares") for i in range(3)]
    cycle: tuple[State, ...] = ("spread", "spread", "drawing together", "consensus", "rank collapse", "anisotropic")
    states = tuple(cycle[i % 6] for i in range(layers))
    return Verdict(states[-1], Worst(states[-1], layers), states, tuple(sentences), tuple(details))


def _shares(rng: np.random.Generator, layers: int, prompts: int, final_norm: bool, pairs: bool) -> xr.Dataset:
    """Shares that add up to 1, one of them below 0; without pairs, or of one prompt, there are none."""
    common, prompt = rng.uniform(0, 0.4, (layers + 1, 3)), rng.uniform(0, 0.4, (layers + 1, 3))
    prompt[0] = -0.03
    kappa = prompt / (1 - common)
    kappa[0, 0] = kappa[0, 1]
    change = np.full((layers + 1, 3), np.nan)
    change[1:, 0] = kappa[1:, 0] - kappa[:-1, 1]
    change[1:, 1] = kappa[1:, 1] - kappa[1:, 0]
    change[-1, 2] = kappa[-1, 2] - kappa[-1, 1] if final_norm else np.nan
    exists = np.ones((layers + 1, 3), dtype=bool)
    exists[0, [0, 2]] = exists[1:-1, 2] = False
    exists[-1, 2] = final_norm
    exists &= pairs and prompts > 1
    site, part = ("layer", "site"), ("layer", "component")
    shares = np.stack([common, prompt, 1 - common - prompt], axis=-1)
    values: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        "shares": ((*site, "share"), np.where(exists[..., None], shares, np.nan)),
        "consensus_within": (site, np.where(exists, kappa, np.nan)),
        "consensus_relative": (site, np.where(exists, kappa - kappa[0, 1], np.nan)),
        "centred_cos2": (site, np.where(exists, rng.uniform(0.03, 0.3, exists.shape), np.nan)),
        "line_excess": (site, np.where(exists, rng.uniform(0, 0.1, exists.shape), np.nan)),
        "kappa_change": (part, np.where(exists.any(), change, np.nan)),
        "kappa_change_sum": (("component",), np.where(exists.any(), np.nansum(change, axis=0), np.nan)),
    }
    known = 0.05 if prompts > 2 else np.nan
    ends = {
        f"{name}_interval": ((*dims, "bound"), np.stack([value - known, value + known], axis=-1))
        for name, (dims, value) in values.items()
    }
    return xr.Dataset({**values, **ends}, coords={"share": ["common", "prompt", "own"], "bound": ["low", "high"]})


def _parts(rng: np.random.Generator, layers: int, prompts: int, tokens: int, attention: bool) -> xr.Dataset:
    """Updates, and the attention that tokens receive: the first is a sink from layer 2 on, massive from 3."""
    ratio = rng.uniform(0.2, 0.5, (prompts, layers + 1, 3))
    ratio[:, 0] = ratio[:, :, 2] = np.nan
    received = rng.uniform(0.0, 0.1, (prompts, layers + 1, tokens))
    received[:, 2:, 0] = 0.6
    received[:, 0] = np.nan
    uniform = np.where(np.isnan(received), np.nan, 1 / tokens)
    position = np.full((prompts, layers + 1), -1)
    position[:, 3:] = 0
    nothing = np.nan if not attention else 1.0
    per_token = ("prompt", "layer", "token")
    texts = np.array([["[CLS]", HOSTILE, *(f"word{i}" for i in range(tokens))][:tokens]] * prompts)
    return xr.Dataset(
        {
            "update_ratio": (("prompt", "layer", "component"), ratio),
            "attention_received": (per_token, received * nothing),
            "attention_accessible": ("prompt", np.full(prompts, attention)),
            "token_count": (("prompt", "layer", "sinks"), np.full((prompts, layers + 1, 2), tokens)),
            "attention_uniform": (per_token, uniform * nothing),
            "massive_position": (("prompt", "layer"), position),
            "token_text": (("prompt", "token"), texts),
        }
    )


def _audit(rng: np.random.Generator, layers: list[int], heads: int, grouped: bool) -> xr.Dataset:
    count = len(layers)
    per_head = ("layer", "head")
    a = np.full((count, 3), np.nan) if grouped else np.tile([290.0, 286.0, 0.0], (count, 1))
    regime = "undefined" if grouped else "mixed"
    reason = "undefined (rank 192/576): the value map is singular" if grouped else "mixed: no theorem applies"
    return xr.Dataset(
        {
            "W_inertia": (("layer", "sign"), np.tile([300, 276, 0], (count, 1))),
            "A_inertia": (("layer", "sign"), a),
            "A_defined": ("layer", np.full(count, not grouped)),
            "V_rank": ("layer", np.full(count, 192 if grouped else 576)),
            "V_near_zero": ("layer", np.full(count, 384 if grouped else 1)),
            "V_near_zero_relative": ("layer", np.full(count, 384 if grouped else 2)),
            "V_condition": ("layer", np.full(count, np.inf) if grouped else rng.uniform(1e3, 1e9, count)),
            "V_max_real": ("layer", rng.uniform(-1, 5, count)),
            "qk_inertia": (("layer", "head", "sign"), np.tile([64, 64, 448], (count, heads, 1))),
            "ov_inertia": (("layer", "head", "sign"), np.tile([64, 64, 448], (count, heads, 1))),
            "qk_balance": (per_head, rng.uniform(-1, 1, (count, heads))),
            "ov_balance": (per_head, rng.uniform(-1, 1, (count, heads))),
            "qk_balance_at_offset": (("layer", "head", "offset"), rng.uniform(-1, 1, (count, heads, 3))),
            "regime": ("layer", [regime] * count),
            "regime_reason": ("layer", [reason] * count),
            "regime_by_spectrum": ("layer", ["diverges for most starts: some Re λ(V) > 0 (largest 3)"] * count),
        },
        coords={
            "layer": layers,
            "head": np.arange(heads),
            "sign": ["positive", "negative", "zero"],
            "offset": [0, 1, 16],
        },
        attrs={"value_map": "V"},
    )


def _paths(rng: np.random.Generator, layers: int, tokens: int, pairs: bool) -> xr.Dataset:
    position = rng.normal(0, 0.3, (layers + 1, tokens, 2))
    sink = np.zeros((layers + 1, tokens), dtype=bool)
    if pairs:
        sink[3:, 0] = True
        sink[3:9, 4] = True
    position[sink] = np.nan
    norm = np.where(sink, 22600.0, rng.uniform(50, 200, (layers + 1, tokens)))
    texts = [HOSTILE, " museum", "\n", "  ", *(f" word{i}" for i in range(tokens))][:tokens]
    return xr.Dataset(
        {
            "position": (("layer", "token", "axis"), position),
            "norm": (("layer", "token"), norm),
            "is_sink": (("layer", "token"), sink),
        },
        coords={"layer": np.arange(layers + 1), "token_text": ("token", texts)},
        attrs={"prompt": f"text 0 {HOSTILE}", "explained": 0.31, "convention": "unit rows; sinks left out"},
    )


@pytest.fixture(scope="session", autouse=True)
def each_chart_is_drawn_once() -> Iterator[None]:
    """Most charts of these pages are the same: what one page has drawn is kept for the others."""
    drawn: dict[str, str] = {}

    def svg_of(specification: Mapping[str, Any]) -> str:
        key = f"{drawing._PROGRAM} {json.dumps(specification)}"
        if key not in drawn:
            drawn[key] = drawing.svg_of(specification)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svg, "svg_of", svg_of)
        yield


@pytest.fixture(scope="session")
def build() -> Callable[..., Diagnosis]:
    """Makes synthetic diagnoses."""
    return synthetic


@pytest.fixture(scope="session")
def diagnosis() -> Diagnosis:
    """Thirty layers, nine heads, five prompts."""
    return synthetic()


@pytest.fixture(scope="session")
def page(diagnosis: Diagnosis) -> str:
    """Its report."""
    return page_of(diagnosis)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all pages."""
    driver = started(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def browser(driver: Any) -> Iterator[Any]:
    """The browser, at no page afterwards: one that moves would take half a processor from all later tests."""
    yield driver
    driver.get("about:blank")


@pytest.fixture
def opened(browser: Any, address: str) -> Any:
    """The browser at the page of the module's own fixture `address`, with empty logs."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    emulate(browser)
    browser.get(address)
    return browser


@pytest.fixture(scope="session")
def hostile() -> str:
    """Text that tries to break the page."""
    return HOSTILE


@pytest.fixture(scope="session")
def defined_page() -> str:
    """The report of a model whose A exists, with friendly names."""
    result = synthetic(layers=6, heads=4, prompts=2, grouped=False)
    return page_of(replace(result, model=result.model | {"name": "friendly", "random_seed": 7}))


@pytest.fixture(scope="session")
def study_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a large study, written by its result."""
    path = full_study().report(tmp_path_factory.mktemp("study") / "report.html")
    return plain_spaces(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run, written by its record after that was stored."""
    folder = tmp_path_factory.mktemp("run")
    planted_record().save(folder)
    return plain_spaces(Record.open(folder).report(folder / "report.html").read_text(encoding="utf-8"))
