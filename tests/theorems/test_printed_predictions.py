"""The numbers in the sentences of predictions, worked out here from formulas, at circuits that are no identity."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from scipy.special import iv

import tokendynamics as td

BETA, VALUE = 1.7, 1.3
ROOT_2, ROOT_3 = math.sqrt(2), math.sqrt(3)
NEAR = np.array([[1.0, 0.2, 0.1], [1.0, -0.1, 0.3], [0.9, 0.0, -0.2], [1.0, 0.1, 0.1]])
NEAR /= np.linalg.norm(NEAR, axis=1, keepdims=True)
CIRCLE = np.array([[math.cos(angle), math.sin(angle)] for angle in (0.3, 0.8, -0.4, 1.1)])


def flow(dim: int, space: Any, qk: Any = BETA, ov: Any = VALUE, **options: Any) -> td.Flow:
    eye = np.eye(dim)
    circuits = (one * eye if isinstance(one, float) else one for one in (qk, ov))
    return td.Flow(td.Attention(*circuits, **options), space)


def on_sphere(dim: int = 3, **options: Any) -> td.Flow:
    return flow(dim, td.Sphere(), **options)


def free(dim: int = 3, **options: Any) -> td.Flow:
    return flow(dim, td.Free(), **options)


def numbers_in(text: str) -> list[float]:
    """Return the decimal numbers of a sentence, with their signs, also as powers of ten."""
    plain = text.translate(str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")).replace(",", "")
    return [float(one.replace(" × 10", "e")) for one in re.findall(r"-?\d+\.\d+(?: × 10-?\d+)?", plain)]


def spread(start: np.ndarray) -> float:
    return max(float(np.linalg.norm(a - b)) for a in start for b in start)


def length(start: np.ndarray) -> float:
    return float(np.linalg.norm(start, axis=1).max())


ANGLES = np.array([0.0, 2 * math.pi / 3 + 0.01, 4 * math.pi / 3 - 0.01])
THIRDS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1)
DEVIATION = math.sqrt(2) * 0.01
QK = np.array([[0.4, 0.1, 0.0], [0.0, -0.3, 0.2], [0.1, 0.0, 0.2]])
OV = np.array([[0.2, 0.0, 0.1], [0.1, 0.3, 0.0], [0.0, 0.1, -0.1]])
NORM_QK, NORM_OV = np.linalg.norm(QK, 2), np.linalg.norm(OV, 2)
FREE_START = np.array([[1.0, 0.2, 0.1], [0.3, -0.5, 0.3], [0.9, 0.0, -0.4], [0.1, 0.1, 0.1]])
GRAPH = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]], dtype=bool)
ORTHONORMAL = np.eye(4)[:3]

COMMON = np.concatenate([math.sqrt(0.7) * np.eye(3), np.full((3, 1), math.sqrt(0.3))], axis=1)
WEIGHTS = np.exp(BETA * COMMON @ COMMON.T)
AVERAGES = WEIGHTS / WEIGHTS.sum(axis=1, keepdims=True) @ COMMON
AVERAGED = AVERAGES[0] @ AVERAGES[1] / np.linalg.norm(AVERAGES[0]) / np.linalg.norm(AVERAGES[1])
REACH = math.acos((math.sqrt(4 * BETA**2 + 1) - 1) / (2 * BETA))

CASES: list[tuple[str, td.Flow, np.ndarray, list[Any]]] = [
    ("asymptotic-3.2", on_sphere(qk=2.0, ov=1.0), NEAR, [-1 / ROOT_3]),
    ("asymptotic-5.1", on_sphere(causal=True), NEAR, [-VALUE / ROOT_3 / 2]),
    (
        "asymptotic-6.1",
        on_sphere(ov=np.diag([1.5, 0.4, 0.2]), causal=True),
        NEAR,
        [-(1.5 - 0.4) / ROOT_3],
    ),
    ("asymptotic-remark-4.2", on_sphere(), NEAR, [7 / 8]),
    ("perspective-6.1", on_sphere(), NEAR, [-VALUE / ROOT_3]),
    ("perspective-6.1", on_sphere(weights="exponential", offset=0.4), NEAR, [-VALUE / ROOT_3 * math.exp(BETA - 0.4)]),
    ("perspective-6.4-step", on_sphere(), NEAR, [-VALUE / ROOT_3 * math.exp(-2 * BETA) / 8]),
    ("perspective-6.8", flow(4, td.Sphere()), ORTHONORMAL, [BETA, -VALUE / 2]),
    ("perspective-9", on_sphere(ov=-VALUE), NEAR[:3], [-0.5]),
    (
        "masking-table-1-space",
        on_sphere(qk=QK, ov=np.diag([1.5, 1.5, -0.4]), causal=True),
        NEAR,
        [-1.9 / ROOT_3],
    ),
    (
        "masking-B",
        on_sphere(2, causal=True),
        CIRCLE,
        [REACH],
    ),
    ("masking-C.1", on_sphere(2, causal=True), CIRCLE, [(1 - (1 - REACH / math.pi) ** 4) / (REACH / math.pi)]),
    ("clusters-8-hull", free(qk=QK), FREE_START, [VALUE]),
    ("context-layer", flow(4, td.Sphere()), ORTHONORMAL, [0.0, BETA / math.log(3)]),
    ("context-layer", flow(4, td.Sphere()), COMMON, [0.3, AVERAGED, BETA / math.log(3), 1 / 0.7]),
    (
        "rollout-product",
        on_sphere(qk=QK, causal=True),
        NEAR,
        [1 / (1 + 3 * math.exp(2 * NORM_QK))],
    ),
    (
        "lipschitz-ball",
        free(qk=QK, ov=OV),
        FREE_START,
        [NORM_OV * (2 + NORM_QK * length(FREE_START) ** 2 * 3)],
    ),
    ("circle-synchronization", on_sphere(2, weights="exponential", offset=0.3), CIRCLE,
     [-VALUE / ROOT_2 * math.exp(BETA - 0.3)]),
    (
        "circle-threshold",
        on_sphere(2, qk=-1.2, weights="exponential"),
        THIRDS,
        [
            -VALUE / ROOT_2 * math.exp(0.6) * (-0.5 + 0.9),
            -VALUE / ROOT_2 * (math.exp(0.6) * 0.4 - math.exp(1.2) * (1 + 3.6 + 1.44) * DEVIATION),
        ],
    ),
    ("rank-collapse", free(qk=QK, ov=OV), FREE_START, [NORM_QK * NORM_OV / 4, spread(FREE_START)]),
    ("rank-skip", free(qk=QK, ov=OV), FREE_START, [1 - NORM_OV]),
    (
        "hardmax-averaging",
        free(qk=0.6, ov=1.0),
        FREE_START,
        [4 / (1 + 3 * math.exp(0.6 * length(FREE_START) * spread(FREE_START)))],
    ),
    (
        "masks-rooted",
        free(qk=QK, ov=1.0, mask=GRAPH),
        FREE_START,
        [(1 / (1 + math.exp(NORM_QK * length(FREE_START) * spread(FREE_START)))) ** 2],
    ),
    (
        "noise-transition",
        flow(3, td.Sphere(), qk=1.2, ov=0.8, weights="exponential", normalization="plain"),
        NEAR,
        [math.sqrt(0.8 * 2**1.5 * math.gamma(1.5) * iv(1.5, 1.2) / 1.2**1.5)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "of", "start", "wanted"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)]
)
def test_the_numbers_of_a_prediction_are_those_of_its_formula(
    name: str, of: td.Flow, start: np.ndarray, wanted: list[float]
) -> None:
    (checked,) = td.check(of, start, statements=[name])
    assert checked.applies, checked.reasons
    assert checked.prediction is not None
    printed = numbers_in(checked.prediction.text)
    for one in wanted:
        assert any(value == pytest.approx(one, rel=6e-3, abs=1e-12) for value in printed) or (
            one == 0 and "the cosine 0 " in checked.prediction.text
        ), (one, checked.prediction.text)


def test_layers_of_a_mask_are_counted_by_its_radius() -> None:
    """All see token 1 in the first graph; in the second token 3 sees it through token 2."""
    of_one, of_two = np.eye(4, dtype=bool), GRAPH
    of_one[:, 0] = True
    texts = [
        str(td.check(free(qk=QK, ov=1.0, mask=mask), FREE_START, statements=["masks-rooted"])[0].prediction)
        for mask in (of_one, of_two)
    ]
    assert "at each layer the largest distance" in texts[0]
    assert "over 2 layers the largest distance" in texts[1]


def test_the_tokens_of_a_text_are_counted() -> None:
    (checked,) = td.check(on_sphere(2, causal=True), CIRCLE, statements=["masking-C.1"])
    assert "of 4 uniform tokens" in str(checked.prediction)
