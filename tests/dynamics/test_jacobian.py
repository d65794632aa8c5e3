"""The Jacobian by formula, against automatic differentiation and differences of the field itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tokendynamics.attention import (
    AbsolutePositions,
    Attention,
    FactoredMatrix,
    Periodic,
    Positions,
    RotaryPositions,
    Sinusoidal,
)
from tokendynamics.dynamics import Flow
from tokendynamics.dynamics._field import Field, jacobian, jacobian_vector
from tokendynamics.spaces import Ellipsoid, Free, Sphere

TOKENS, DIM, HEADS, SYSTEMS = 5, 4, 2, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def metric() -> Tensor:
    root = drawn(DIM, DIM, seed=1)
    return root @ root.mT + torch.eye(DIM, dtype=torch.float64)


def per_system(leading: tuple[int, ...] = (SYSTEMS,)) -> tuple[Tensor, Tensor]:
    return drawn(*leading, HEADS, DIM, DIM, seed=2), drawn(*leading, HEADS, DIM, DIM, seed=3)


def sinusoidal() -> tuple[Sinusoidal, Sinusoidal]:
    qk, ov = per_system(())
    gates = (drawn(HEADS, DIM, seed=4), drawn(DIM, seed=5), drawn(DIM, seed=6))
    return Sinusoidal(qk, *gates), Sinusoidal(ov, *gates, absolute=True)


def factored() -> tuple[FactoredMatrix, FactoredMatrix]:
    sides = [drawn(HEADS, DIM, 2, seed=seed) for seed in range(7, 11)]
    return FactoredMatrix(sides[0], sides[1]), FactoredMatrix(sides[2], sides[3])


def periodic() -> tuple[Periodic, Tensor]:
    qk, ov = per_system(())
    return Periodic(torch.stack([qk, -qk]), period=1.0), ov


CIRCUITS = {
    "shared": lambda: per_system(()),
    "per system": per_system,
    "sinusoidal": sinusoidal,
    "factored": factored,
    "periodic": periodic,
    "identity ov": lambda: (per_system(())[0], torch.eye(DIM, dtype=torch.float64).expand(HEADS, DIM, DIM)),
}
POSITIONS = {
    "nowhere": lambda: None,
    "absolute": lambda: AbsolutePositions(drawn(TOKENS, DIM, seed=11)),
    "rotary": lambda: RotaryPositions(drawn(HEADS, DIM, 2, seed=12), drawn(HEADS, DIM, 2, seed=13), scale=0.7),
}
SPACES = {"free": Free, "sphere": Sphere, "ellipsoid": lambda: Ellipsoid(metric())}


def states() -> Tensor:
    """Off the sphere, where the projection has a derivative too."""
    return drawn(SYSTEMS, TOKENS, DIM, seed=14)


def automatic(field: Field, x: Tensor, t: float | Tensor) -> Tensor:
    whole = torch.func.jacrev(lambda z: field.velocity(z, t))(x)
    return torch.stack([whole[system, :, :, system] for system in range(SYSTEMS)])


def agree(actual: Tensor, reference: Tensor, tolerance: float) -> bool:
    return float((actual - reference).abs().max()) <= tolerance * float(reference.abs().max())


@pytest.mark.few(25)
@pytest.mark.parametrize("weights", ["softmax", "linear", "exponential"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("circuits", CIRCUITS)
@pytest.mark.parametrize("space", SPACES)
def test_the_jacobian_and_its_products_are_those_of_automatic_differentiation(
    space, circuits, positions, causal, weights
) -> None:
    qk, ov = CIRCUITS[circuits]()
    attention = Attention(qk, ov, causal=causal, weights=weights, positions=POSITIONS[positions]())
    x, t = states(), 0.3
    field = Flow(attention, SPACES[space]()).field(x)
    reference = automatic(field, x, t)
    direction = drawn(*x.shape, seed=15)
    along = torch.einsum("siakb,skb->sia", reference, direction)
    forward = torch.func.jvp(lambda z: field.velocity(z, t), (x,), (direction,))[1]
    assert agree(jacobian(field, x, t), reference, 1e-12)
    assert agree(jacobian_vector(field, x, t, direction), along, 1e-12)
    assert agree(jacobian_vector(field, x, t, direction), forward, 1e-12)


def test_every_system_has_its_own_time() -> None:
    x, t = states(), torch.tensor([0.1, 0.7, 2.0], dtype=torch.float64)
    field = Flow(Attention(*sinusoidal()), Sphere()).field(x)
    assert agree(jacobian(field, x, t), automatic(field, x, t), 1e-12)


def test_the_projection_of_remark_5_1() -> None:
    ov = drawn(DIM, DIM, seed=16)
    flow = Flow(Attention(drawn(DIM, DIM, seed=17), ov, causal=True), Ellipsoid(ov.mT @ ov), "remark_5_1")
    x = states()
    field, direction = flow.field(x), drawn(*x.shape, seed=18)
    reference = automatic(field, x, 0.0)
    assert agree(jacobian(field, x, 0.0), reference, 1e-11)
    along = torch.einsum("siakb,skb->sia", reference, direction)
    assert agree(jacobian_vector(field, x, 0.0, direction), along, 1e-11)


@pytest.mark.parametrize("space", SPACES)
def test_the_jacobian_is_the_limit_of_differences(space) -> None:
    x, h = states(), 1e-6
    field = Flow(Attention(*per_system(())), SPACES[space]()).field(x)
    direction = drawn(*x.shape, seed=19)
    quotient = (field.velocity(x + h * direction, 0.0) - field.velocity(x - h * direction, 0.0)) / (2 * h)
    assert agree(jacobian_vector(field, x, 0.0, direction), quotient, 1e-8)


def test_lengths_of_tokens_are_a_neutral_direction() -> None:
    x = states()
    field = Flow(Attention(*per_system(())), Ellipsoid(metric())).field(x)
    lengths = x * drawn(SYSTEMS, TOKENS, 1, seed=20)
    assert float(jacobian_vector(field, x, 0.0, lengths).abs().max()) < 1e-13
    assert float(torch.einsum("siakb,skb->sia", jacobian(field, x, 0.0), lengths).abs().max()) < 1e-13


def test_a_cluster_of_coincident_tokens_contracts_at_the_rate_of_its_weights() -> None:
    # With qk = 0, ov = 1 and L coincident tokens of the circle, tangent differences decay at 1/√2 and the mean rests.
    x = torch.tensor([[[1.0, 0.0]] * 4], dtype=torch.float64)
    field = Flow(Attention(torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)), Sphere()).field(
        x
    )
    tangent = jacobian(field, x, 0.0)[0, :, 1, :, 1]
    rates = torch.linalg.eigvalsh(tangent)
    expected = torch.tensor([-1.0, -1.0, -1.0, 0.0], dtype=torch.float64) / 2**0.5
    assert torch.allclose(rates, expected, atol=1e-14)


def test_products_in_pieces_are_the_products_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = states()
    for weights in ("softmax", "linear", "exponential"):
        field = Flow(Attention(*per_system(()), causal=True, weights=weights), Sphere()).field(x)
        direction = drawn(*x.shape, seed=21)
        at_once = jacobian_vector(field, x, 0.0, direction)
        monkeypatch.setattr("tokendynamics.dynamics._field._JACOBIAN_ENTRIES", 2 * HEADS * SYSTEMS * TOKENS)
        assert torch.allclose(jacobian_vector(field, x, 0.0, direction), at_once, rtol=0, atol=1e-14)
        monkeypatch.undo()


@pytest.mark.parametrize("multiple", [False, True], ids=["general ov", "ov = cI"])
@pytest.mark.parametrize("weights", ["softmax", "linear", "exponential"])
@pytest.mark.parametrize("space", SPACES)
def test_automatic_differentiation_goes_through_the_velocity_that_users_call(space, weights, multiple) -> None:
    # Tokens of very different lengths, which are scaled by powers of two before they are projected.
    x = states()[0] * torch.tensor([1.0, 0.3, 40.0, 1e-3, 1.0])[:TOKENS].double().unsqueeze(-1)
    ov = 1.3 * torch.eye(DIM, dtype=torch.float64) if multiple else drawn(DIM, DIM, seed=31)
    flow = Flow(Attention(0.1 * drawn(DIM, DIM, seed=30), ov, weights=weights), SPACES[space]())
    reference = jacobian(flow.field(x[None]), x[None], 0.0)[0]
    by_automatic = torch.autograd.functional.jacobian(lambda z: flow.velocity(z), x)
    assert agree(by_automatic, reference, 1e-10)


class NoFormula(Positions):
    """Logits that grow with the position of the query; the derivative is not given as a formula."""

    def extended(self, query: Tensor, key: Tensor, x: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor]:
        return query * torch.arange(1.0, x.shape[-2] + 1, dtype=x.dtype)[:, None], key


@pytest.mark.parametrize("space", [Free(), Sphere(), Ellipsoid(metric())])
@pytest.mark.parametrize("positions", [None, AbsolutePositions(0.1 * drawn(TOKENS, DIM, seed=8)), NoFormula()])
def test_the_jacobian_that_users_call_is_the_limit_of_differences(space, positions) -> None:
    qk, ov = per_system()
    flow = Flow(Attention(qk, ov, positions=positions), space)
    x = drawn(SYSTEMS, TOKENS, DIM, seed=7)
    slopes = flow.jacobian(x, 0.3)
    assert slopes.shape == (*x.shape, TOKENS, DIM)
    direction, step = drawn(SYSTEMS, TOKENS, DIM, seed=9), 1e-6
    difference = (flow.velocity(x + step * direction, 0.3) - flow.velocity(x - step * direction, 0.3)) / (2 * step)
    along = torch.einsum("siakb,skb->sia", slopes, direction)
    assert torch.allclose(along, difference, rtol=1e-7, atol=1e-8 * float(slopes.abs().max()))
    assert torch.equal(flow.jacobian(x.reshape(SYSTEMS, 1, TOKENS, DIM).squeeze(1), 0.3), slopes)
