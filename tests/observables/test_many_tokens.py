"""Long prompts are measured in blocks of rows: the same numbers, in memory that grows with the number of tokens."""

from __future__ import annotations

import pytest
import torch

from tokendynamics.observables import directions
from tokendynamics.observables.share_decomposition import centred_cosines
from tokendynamics.observables.summary import gram_of, summarize, summarize_gram


def states(tokens: int, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, tokens, 6, generator=generator, dtype=torch.float64)
    if kind == "close":
        x = torch.ones(6, dtype=torch.float64) + 1e-9 * x
    if kind == "of many sizes":
        x = x * torch.logspace(-3, 3, tokens, dtype=torch.float64)[:, None]
    if kind == "repeated":
        x[:, 1::2] = x[:, ::2][:, : x[:, 1::2].shape[1]]
    return x


@pytest.mark.parametrize("kind", ["plain", "close", "of many sizes", "repeated"])
def test_blocks_of_rows_give_the_same_numbers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = states(61, kind)
    keep = torch.ones(3, 61, dtype=torch.bool)
    keep[1, :9] = False
    keep[2, 20:50] = False
    wanted = summarize(x, keep)
    center = torch.full((3, 6), 0.1, dtype=torch.float64)
    unit = torch.nn.functional.normalize(x, dim=-1)
    of_pairs = centred_cosines(unit, center, 1e-15, keep)
    monkeypatch.setattr(directions, "MANY", 20)
    monkeypatch.setattr(directions, "_BLOCK_BYTES", 8 * 61 * 7)  # blocks of seven rows
    assert gram_of(x).cosines is None
    for name, values in summarize(x, keep).items():
        torch.testing.assert_close(values, wanted[name], rtol=1e-9, atol=1e-12)
    for one, other in zip(centred_cosines(unit, center, 1e-15, keep), of_pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("many", [20, 2000])
def test_cosines_alone_are_those_of_the_whole_summary(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directions, "MANY", many)
    gram, keep = gram_of(states(61, "plain")), torch.ones(2, 3, 61, dtype=torch.bool)
    keep[1, :, :9] = False
    whole, cosines = summarize_gram(gram, keep), summarize_gram(gram, keep, cosines_only=True)
    assert set(cosines) == {"consensus_first", "consensus_first_signed", "consensus_last", "mean_pair_cosine"}
    for name, values in cosines.items():
        assert torch.equal(values, whole[name])


def test_no_matrix_of_all_pairs_is_made() -> None:
    tokens = 1500
    largest = 0

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # pyright: ignore
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Sizes():
        summarize(states(tokens, "plain"))
    assert largest < tokens**2 // 2
