"""Reference solutions of tests/golden/dynamics as flows of the library."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Ellipsoid, Free, Sphere

FOLDER = Path(__file__).parents[1] / "golden" / "dynamics"


@cache
def read(path: Path) -> dict:
    return json.loads(path.read_text())


CASES = [path for path in sorted(FOLDER.glob("*.json")) if "model" in read(path)]
DISCRETE = [path for path in CASES if read(path)["model"] == "discrete_eq6"]
CONTINUOUS = [path for path in CASES if path not in DISCRETE]


def flow_of(case: dict) -> Flow:
    return _constrained(case) if case["paper"] == "A" else _free(case)


def states_of(case: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(start, states, times)."""
    start, states = ("Y0", "Y") if case["paper"] == "A" else ("X0", "X")
    return np.array(case[start]), np.array(case[states]), np.array(case["times"], dtype=float)


def _constrained(case: dict) -> Flow:
    normalization = "paper" if case["sqrt_factor"] else "plain"
    attention = Attention(_qk(case), np.array(case["U"]), causal=case["causal"], normalization=normalization)
    metric = np.array(case["W"])
    if case.get("projection") == "remark51":
        return Flow(attention, Ellipsoid(metric), "remark_5_1")
    return Flow(attention, Sphere() if np.array_equal(metric, np.eye(len(metric))) else Ellipsoid(metric))


def _qk(case: dict) -> np.ndarray | Sinusoidal:
    heads = case["P_specs"]
    if all(head["kind"] == "const" for head in heads):
        return np.array([head["P"] for head in heads])
    # A constant head among gated ones is gated by 1 = sin(π/2).
    steady = {"amp": [1.0] * case["d"], "omega": [0.0] * case["d"], "phase": [math.pi / 2] * case["d"]}
    gates = [head if head["kind"] == "diag_sin" else steady for head in heads]
    absolute = {head["abs"] for head in heads if head["kind"] == "diag_sin"}
    assert len(absolute) == 1
    matrices = np.array([head["Pp"] if head["kind"] == "diag_sin" else head["P"] for head in heads])
    amplitude, frequency, phase = (
        np.array([gate[key] for gate in gates], dtype=float) for key in ("amp", "omega", "phase")
    )
    return Sinusoidal(matrices, amplitude, frequency, phase, absolute=absolute.pop())


def _free(case: dict) -> Flow:
    qk, positions = np.array(case["W"]), None
    if "p" in case:
        positions = AbsolutePositions(np.array(case["p"]))
    if "Qbar" in case:
        # The file's W holds 1/√D_k already; `scale` multiplies all logits.
        scale = 1 / math.sqrt(case["Dk"])
        positions = RotaryPositions(np.array(case["Qbar"]), np.array(case["Kbar"]), scale=scale)
        qk = qk / scale
    return Flow(Attention(qk, np.array(case["V"]).T, positions=positions), Free())
