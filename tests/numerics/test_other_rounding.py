"""The rounding of another processor is another one, and a correct one."""

from __future__ import annotations

import pytest
import torch

from other_rounding import OtherRounding


@pytest.fixture(autouse=True)
def another_processor() -> None:
    """Not under the whole run's other rounding: two permutations of the terms undo each other."""


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


CALLS = {
    "matrix product": lambda: draw(7, 40) @ draw(40, 5),
    "batched product": lambda: draw(3, 7, 40) @ draw(3, 40, 5),
    "matrix and vector": lambda: draw(7, 40) @ draw(40),
    "einsum": lambda: torch.einsum("bij,bjk->bik", draw(2, 6, 30), draw(2, 30, 6)),
    "sum": lambda: draw(9, 300).sum(-1),
    "sum of all": lambda: draw(1001).sum(),
    "mean": lambda: draw(9, 301).mean(0),
    "exp": lambda: draw(1000).exp(),
    "sin": lambda: draw(1000).sin(),
    "softmax": lambda: draw(50, 37).softmax(-1),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*(draw(1, 2, 9, 16),) * 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_differs_from_the_usual_rounding_and_by_rounding_only(name: str):
    usual = CALLS[name]()
    with OtherRounding():
        other = CALLS[name]()
    assert not torch.equal(usual, other)
    torch.testing.assert_close(other, usual, rtol=1e-13, atol=1e-13)


def test_what_is_exact_stays_exact():
    with OtherRounding():
        zeros = torch.zeros(3, dtype=torch.float64)
        assert torch.equal(zeros.exp(), torch.ones(3, dtype=torch.float64))
        assert torch.equal(zeros.sin(), zeros)
        assert torch.equal(torch.ones(4, 4, dtype=torch.float64) @ torch.eye(4, dtype=torch.float64), torch.ones(4, 4))


def test_a_batch_rounds_otherwise_than_its_systems():
    left, right = draw(5, 6, 40), draw(5, 40, 6)
    with OtherRounding():
        whole = left @ right
        alone = torch.stack([one @ other for one, other in zip(left, right, strict=True)])
    assert not torch.equal(whole, alone)
    torch.testing.assert_close(whole, alone, rtol=1e-13, atol=1e-13)
