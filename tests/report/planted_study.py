"""Results of studies and records of runs that never were: whoever plants the numbers knows what a page must say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.sweeps.study import StudyResult
from tokendynamics.training import Record, preset

REGIMES = ("baseline", "tied", "w_only", "divergence", "intermediate", "convergence")
RATES = (0.0005, 0.001, 0.002, 0.004)


def planted_study(
    values: Mapping[str, Sequence[float]],
    *,
    better: str = "lower",
    measure: str = "bits_per_byte",
    ended: Mapping[tuple[str, int], tuple[str, str]] | None = None,
    claims: Sequence[tuple[str, str, float | None]] = (),
    chosen: Mapping[str, float] | None = None,
    steps: int = 4,
    depth: int = 3,
    text: str = "a study",
    name: str = "planted",
) -> StudyResult:
    """What a study found, from the measure of each arm (the first is the reference) on seeds 1, 2, ….

    Args:
        values: By arm, one a seed.
        better: "lower" or "higher".
        measure: Its name.
        ended: How runs ended that did not finish, and why, by arm and seed.
        claims: Better, worse, and by how much.
        chosen: Learning rates by arm: with them the study has tuning, of which the best is that one.
        steps: Evaluations.
        depth: Layers.
        text: The study's file.
        name: What it is called.
    """
    arms = list(values)
    measures = np.array([values[arm] for arm in arms], dtype=np.float64)
    status, reason = np.full(measures.shape, "finished", dtype=object), np.full(measures.shape, "", dtype=object)
    for (arm, seed), how in (ended or {}).items():
        place = arms.index(arm), seed - 1
        (status[place], reason[place]), measures[place] = how, np.nan
    step, layer = 100 * np.arange(1, steps + 1), np.arange(depth + 1)
    course = np.where(np.isnan(measures), 9.0, measures)[..., None] + 1 / np.arange(1, steps + 1)
    growth = np.exp(np.arange(len(arms))[:, None, None, None] * layer / 10) * np.array([1.0, 2.0])[:, None]
    states = (
        np.broadcast_to(growth, (*measures.shape, 2, depth + 1))
        * (1 + 0.01 * np.arange(measures.shape[1]))[:, None, None]
    )
    runs, through = ("arm", "seed"), ("arm", "seed", "state", "layer")
    variables: dict[str, Any] = {
        "measure": (runs, measures),
        "final_validation": (runs, measures),
        "validation": ((*runs, "step"), course),
        "token_norm": (through, states),
        "token_distance": (through, 1 / states),
        "status": (runs, status.astype(str)),
        "reason": (runs, reason.astype(str)),
        "seconds": (runs, np.full(measures.shape, 60.0)),
        "learning_rate": (("arm",), [(chosen or {}).get(arm, 0.002) for arm in arms]),
    }
    coordinates: dict[str, Any] = {"arm": arms, "seed": np.arange(1, measures.shape[1] + 1)}
    coordinates |= {"step": step, "state": ["full", "bare"], "layer": layer}
    if chosen is not None:
        sign = 1.0 if better == "lower" else -1.0
        away = np.array([[abs(np.log2(rate / chosen[arm])) for rate in RATES] for arm in arms])
        tried = 2.0 + sign * away[..., None] + np.array([-0.1, 0.1])
        variables["tuning"] = (("arm", "rate", "tuning_seed"), tried)
        variables["tuning_status"] = (("arm", "rate", "tuning_seed"), np.full(tried.shape, "finished"))
        coordinates |= {"rate": list(RATES), "tuning_seed": [101, 102]}
    attributes = {
        "name": name,
        "preset": "bytes-small",
        "measure": measure,
        "better": better,
        "reference": arms[0],
        "confidence": 0.95,
        "claims": json.dumps([dict(zip(("better", "worse", "difference"), claim, strict=True)) for claim in claims]),
        "specification": text,
        "manifest": json.dumps({"command": "tokendynamics study planted.toml", "versions": {"torch": "2.13"}}),
    }
    return StudyResult(xr.Dataset(variables, coordinates, attributes))


def full_study(seeds: int = 10) -> StudyResult:
    """A large study of six arms, of which some are better than the first, some worse, and one run failed."""
    random = np.random.default_rng(0)
    shared = 2.3 + 0.05 * random.standard_normal(seeds)
    means = (0.0, 0.0, 0.1, -0.1, 0.05, 0.3)
    values = {
        arm: shared + mean + 0.01 * random.standard_normal(seeds) for arm, mean in zip(REGIMES, means, strict=True)
    }
    rates = dict(zip(REGIMES, (0.001, 0.002, 0.002, 0.004, 0.001, 0.0005), strict=True))
    ended = {("convergence", 2): ("failed", "RuntimeError: planted")}
    claims = [("divergence", "baseline", None), ("tied", "baseline", 0.5), ("w_only", "divergence", None)]
    return planted_study(values, chosen=rates, ended=ended, claims=claims, steps=1000, depth=24)


def planted_record(**given: Any) -> Record:
    """The record of a run of 600 steps that went well, but for what is given."""
    steps = np.arange(10, 601, 10)
    losses = 2.0 + 3.0 * np.exp(-steps / 100)
    rates = 0.002 * np.minimum(steps / 60, 1.0)
    columns = zip(steps.tolist(), losses.tolist(), rates.tolist(), strict=True)
    history = [{"step": step, "loss": loss, "learning_rate": rate, "grad_norm": 1.0} for step, loss, rate in columns]
    validation = [
        {
            "step": step,
            "loss": 2.1 + 3.0 * float(np.exp(-step / 100)),
            "bits_per_byte": (2.1 + 3.0 * float(np.exp(-step / 100))) / float(np.log(2)),
            "query_condition": 1.0 + step / 100,
            "contraction_condition": 10.0,
            "value_condition": 20.0,
            "value_real_lowest": -0.5,
            "value_real_highest": -0.1,
        }
        for step in range(100, 601, 100)
    ]
    measures = {"validation": {"loss": 2.11, "bits_per_byte": 3.044}, "test": {"loss": 2.13, "bits_per_byte": 3.073}}
    full = {"norm": [1.0, 2.0, 4.0, 8.0], "distance": [1.0, 1.5, 2.0, 2.5]}
    bare = {"norm": [1.0, 0.8, 0.5, 0.2], "distance": [1.0, 0.5, 0.25, 0.125]}
    manifest = {
        "command": "tokendynamics train bytes-small",
        "versions": {"tokendynamics": "0.1.0"},
        "started": "2026-11-21T23:35:52+00:00",
    }
    entries: dict[str, Any] = {
        "experiment": preset("bytes-small").changed(regime="convergence", seed=3, recipe={"steps": 600}),
        "status": "finished",
        "steps": 600,
        "history": tuple(history),
        "validation": tuple(validation),
        "measures": measures,
        "layers": {"full": full, "bare": bare},
        "seconds": 63.0,
        "manifest": manifest,
    }
    return Record(**{**entries, **given})
