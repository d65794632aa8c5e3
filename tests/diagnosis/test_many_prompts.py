"""Prompts by the thousand: what is compared between all of them takes time in proportion to their number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokendynamics.diagnosis.tracing.prompt_shares import _first_alike
from tokendynamics.pretrained.forward_arguments import Prepared

RNG = np.random.default_rng(5)


def directly(several: list[torch.Tensor], tolerance: float) -> list[int]:
    """The first of those before that are alike, from all pairs."""
    return [
        next(
            (
                place
                for place in range(number)
                if several[place].shape == states.shape
                and (several[place] - states).norm() <= tolerance * states.norm()
            ),
            -1,
        )
        for number, states in enumerate(several)
    ]


@pytest.mark.parametrize("tolerance", [1e-6, 1e-13])
def test_the_first_that_is_alike_is_that_of_all_pairs(tolerance: float) -> None:
    states = [torch.from_numpy(RNG.normal(size=(int(RNG.integers(1, 4)), 3))) for _ in range(60)]
    # Copies to rounding, and others of the same norm.
    again = [states[number] * (1 + tolerance / 10 * float(RNG.normal())) for number in RNG.integers(0, 60, 40)]
    turned = [states[number].flip(-1) for number in RNG.integers(0, 60, 40)]
    several = [*states, *again, *turned, torch.zeros(1, 3), torch.zeros(1, 3)]
    first = _first_alike(several, tolerance)
    assert first.tolist() == directly(several, tolerance)
    assert (first >= 0).sum() > 40
    assert first[-1] == len(several) - 2


def test_each_prompt_is_compared_with_those_of_its_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = 0
    norm = torch.Tensor.norm

    def counted(self: torch.Tensor) -> torch.Tensor:
        nonlocal norms
        norms += 1
        return norm(self)

    monkeypatch.setattr(torch.Tensor, "norm", counted)
    several = [torch.from_numpy(row) for row in RNG.normal(size=(500, 2, 3))]
    assert (_first_alike([*several, *several], 1e-6)[500:] == np.arange(500)).all()
    assert norms < 3 * 1000  # all pairs are half a million


def test_inputs_are_equal_if_their_names_shapes_and_values_are() -> None:
    def content(**inputs: torch.Tensor) -> tuple[object, ...]:
        return Prepared(inputs, "", None).content

    ids = torch.tensor([[1, 2]])
    assert content(input_ids=ids) == content(input_ids=ids.clone())
    assert content(input_ids=ids) != content(input_ids=ids + 1)
    assert content(input_ids=ids) != content(input_ids=ids.T)
    assert content(input_ids=ids) != content(ids=ids)
    assert content(a=ids, b=ids > 1) == content(b=ids > 1, a=ids)
    half = torch.tensor([[0.5]], dtype=torch.bfloat16)  # NumPy has no such numbers
    assert content(x=half) == content(x=half.clone()) != content(x=-half)
