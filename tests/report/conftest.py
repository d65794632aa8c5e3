"""A synthetic diagnosis: 30 layers × 9 heads, grouped queries, sinks, and text that tries to break the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from report.chromium import emulate, started
from tokendynamics.diagnosis._result import Convention, Diagnosis
from tokendynamics.diagnosis._verdict import Finding, Verdict
from tokendynamics.report import render_report

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
) -> Diagnosis:
    """A diagnosis of a model that does not exist, seeded; `pairs` False stands for one-token prompts."""
    rng = np.random.default_rng(0)
    trace = _trace(rng, layers, prompts, final_norm, pairs)
    findings = [
        Finding(f"Finding about {name}: 0.0{i} and {HOSTILE}.", name)
        for i, name in enumerate(("agreement", "norms", "components", "weights", "paths"))
    ]
    effects = [("contracts", "neutral", "expands")[i % 3] for i in range(layers)]
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
        verdict=Verdict(tuple(findings), tuple(effects)),  # type: ignore[arg-type]
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
    )


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
        "sink_norm": (("prompt", "layer"), sink if pairs else np.full_like(sink, np.nan)),
        "sink_share": (("prompt", "layer"), np.where(np.isnan(sink) | (not pairs), 0.0, 0.9)),
        "sink_count": (("prompt", "layer"), (~np.isnan(sink) & pairs).astype(int)),
        "anisotropy": (
            ("layer", "site"),
            np.where(exists & (prompts > 1) & pairs, rng.uniform(0, 0.4, (layers + 1, 3)), np.nan),
        ),
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
    return render_report(diagnosis)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all pages."""
    driver = started(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


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
    found = synthetic(layers=6, heads=4, prompts=2, grouped=False)
    return render_report(replace(found, model=found.model | {"name": "friendly", "random_seed": 7}))
