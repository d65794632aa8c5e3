"""Seeds are whole numbers of 64 bits with a sign; every other one is refused by name."""

from __future__ import annotations

import pytest
import torch

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import generator


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -(2**63)])
def test_a_seed_gives_its_own_draws(seed: int) -> None:
    draws = torch.rand(3, generator=generator(seed))
    assert torch.equal(draws, torch.rand(3, generator=generator(seed)))
    assert not torch.equal(draws, torch.rand(3, generator=generator(seed // 2 + 7)))


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64])
def test_a_seed_of_more_bits_is_refused(seed: int) -> None:
    with pytest.raises(ArgumentValueError, match=rf"seed: expected an integer of 64 bits, got {seed}"):
        generator(seed)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [1.0, True, "1", None])
def test_what_is_no_whole_number_is_refused(seed: object) -> None:
    with pytest.raises(ArgumentTypeError, match="seed: expected an integer, got"):
        generator(seed)  # pyright: ignore[reportArgumentType]
