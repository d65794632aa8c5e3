"""Families of systems: what each chart promises of its matrices and starts, and which family a statement gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.theorems._families import CIRCUITS, STARTS, Family, family_of

STATEMENTS = {one.name: one for one in (*td.theorems.STATEMENTS, *td.theorems.ATLAS)}
WITHOUT = {
    "asymptotic-remark-5.1": "the projection of the remark",
    "positional-remark-3.2": "its one system",
    "positional-remark-3.5": "its one system",
    "positional-C.1": "positions",
    "positional-C.2": "positions",
    "positional-C.3": "positions",
    "circle-threshold": "exponential weights of a small β",
    "masking-5.2": "frozen tokens",
    "norms-4.3-radius": "tokens with a radius",
    "norms-4.3-variance": "tokens in a very narrow cone",
}
"""What no drawn system has."""
SIZE = {
    "perspective-6.1": (4, 3),
    "perspective-6.3": (3, 4),
    "perspective-6.8": (3, 4),
    "context-layer": (3, 4),
    "clusters-2.1": (3, 1),
    "masks-norm": (3, 3),
    "spheres-graph": (4, 3),
}


def drawn(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Return normal numbers."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, size)))


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
@pytest.mark.parametrize("word", CIRCUITS)
def test_a_matrix_is_what_its_word_says(word: str, dim: int) -> None:
    matrices = CIRCUITS[word](drawn(40, dim * dim).reshape(40, dim, dim))
    symmetric = torch.equal(matrices, matrices.mT)
    even = torch.allclose(matrices, matrices[:, :1, :1] * torch.eye(dim).double(), rtol=0, atol=0)
    lowest, highest = (torch.linalg.eigvalsh((matrices + matrices.mT) / 2)[:, place] for place in (0, -1))
    if word == "any":
        assert torch.linalg.matrix_rank(matrices).eq(dim).all()
    else:
        assert symmetric or word == "λ twice, and less"
    assert even == (dim == 1 or word.endswith("I") or word == "0" or (dim == 2 and word == "λ twice, and less"))
    if word.startswith("positive") or word in ("multiple of I", "large multiple of I", "I"):
        assert (lowest > 0).all()
    if word.startswith(("negative", "-")):
        assert (highest < 0).all()
    if word in ("I", "-I", "0"):
        assert (matrices == matrices[0]).all()
        assert matrices[0, 0, 0] == {"I": 1, "-I": -1, "0": 0}[word]
    if word == "λ twice, and less" and dim > 2:
        top, rest = matrices[:, 0, 0], matrices[:, 2:, 2:]
        assert torch.equal(matrices[:, :2, :2], top[:, None, None] * torch.eye(2).double())
        assert (matrices[:, :2, 2:] == 0).all()
        assert (matrices[:, 2:, :2] == 0).all()
        assert (torch.linalg.eigvalsh((rest + rest.mT) / 2)[:, -1] < top).all()


@pytest.mark.parametrize(("tokens", "dim"), [(2, 2), (3, 3), (3, 5)])
@pytest.mark.parametrize("word", STARTS)
def test_a_start_is_what_its_word_says(word: str, tokens: int, dim: int) -> None:
    flow, start = Family(tokens, dim, start=word).systems(drawn(30, 2 * dim**2 + tokens * dim))
    assert start.shape == (30, tokens, dim)
    assert flow.attention.system_shape == (30,)
    assert torch.allclose(torch.linalg.vector_norm(start, dim=-1), torch.ones(30, tokens).double(), atol=1e-14)
    cosines = start @ start.mT
    if word == "half space":
        assert (start[..., 0] > 0).all()
    if word == "orthonormal":
        assert torch.allclose(cosines, torch.eye(tokens).double().expand_as(cosines), atol=1e-14)
    if word == "two caps":
        assert (cosines[:, 0, 1] < 0).all()
        assert (cosines[:, 0, 2:3] > 0).all()
    free = Family(tokens, dim, space="free", start=word).systems(drawn(30, 2 * dim**2 + tokens * dim))[1]
    assert torch.allclose(torch.nn.functional.normalize(free, dim=-1), start)


def test_every_number_matters() -> None:
    family = Family(3, 2)
    numbers = drawn(1, family.numbers)
    flow, start = family.systems(numbers)
    for place in range(family.numbers):
        changed = numbers.clone()
        changed[0, place] += 0.5
        other, elsewhere = family.systems(changed)
        parts = [
            torch.equal(*(one.attention.qk.matrix_at(0.0) for one in (flow, other))),
            torch.equal(*(one.attention.ov.matrix_at(0.0) for one in (flow, other))),
            torch.equal(start, elsewhere),
        ]
        assert parts.index(False) == min(place // 4, 2)
        assert sum(parts) == 2


@pytest.mark.long
@pytest.mark.few(9)
@pytest.mark.parametrize("name", [name for name in STATEMENTS if name not in WITHOUT])
def test_systems_of_a_statements_family_meet_its_hypotheses(name: str) -> None:
    statement, size = STATEMENTS[name], SIZE.get(name, (3, 2))
    family = family_of(statement, *size)
    flow, start = family.systems(drawn(200, family.numbers, seed=1))
    assert statement.check(flow, start).applies_to.mean() > 0.01
    assert statement.concerns(flow)
    assert (family.tokens, family.dim) == size


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("name", WITHOUT)
def test_a_statement_that_no_drawn_system_meets_is_refused(name: str) -> None:
    with pytest.raises(
        ArgumentValueError, match=f"statement: expected a statement whose hypotheses .* got {name}; the ne"
    ):
        family_of(STATEMENTS[name], 3, 2)


@pytest.mark.long
def test_what_is_violated_is_named() -> None:
    with pytest.raises(ArgumentValueError, match="the nearest violate dim at least 3: dim is 2; give another size"):
        family_of(STATEMENTS["perspective-6.1"], 3, 2)


@pytest.mark.long
def test_the_most_general_family_comes_first() -> None:
    assert (family_of(STATEMENTS["asymptotic-4.1"], 3, 2).qk, family_of(STATEMENTS["lipschitz-ball"], 3, 2).ov) == (
        "any",
        "any",
    )
    assert family_of(STATEMENTS["masking-table-1-space"], 3, 3).ov == "λ twice, and less"
    assert family_of(STATEMENTS["perspective-9"], 3, 2).ov == "negative multiple of I"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"tokens": 0}, ArgumentValueError, "tokens: expected"),
        ({"dim": True}, ArgumentTypeError, "dim: expected an integer"),
        ({"space": "torus"}, ArgumentValueError, "space: expected 'free' or 'sphere', got 'torus'"),
        ({"mask": "band"}, ArgumentValueError, "mask: expected"),
        ({"weights": "hard"}, ArgumentValueError, "weights: expected"),
        ({"qk": "skew"}, ArgumentValueError, "qk: expected 'any', "),
        ({"ov": 1}, ArgumentTypeError, "ov: expected"),
        ({"start": "corner"}, ArgumentValueError, "start: expected"),
    ],
)
def test_what_is_no_family_is_refused(wrong: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Family(**({"tokens": 2, "dim": 2} | wrong))
