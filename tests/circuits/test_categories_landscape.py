"""The closed-form loss of attention on categories against stored cases, enumeration and automatic derivatives."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.landscape import Landscape, LossAndGradient
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "circuits" / "10_sec33_loss_grad.json").read_text())
BOTH = pytest.mark.parametrize("causal", [False, True])


def random_case(categories: int, positions: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q_true, law, q, v."""
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    law = torch.rand(categories, generator=source, dtype=torch.float64) + 0.2
    return draw(categories, categories), law / law.sum(), draw(categories, categories), draw(positions, positions)


def enumerated_loss(q_true: Tensor, law: Tensor, q: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The loss summed over all sequences, each with its probability, by the definition of the prediction."""
    positions = len(v)
    total = torch.zeros((), dtype=torch.float64)
    for sequence in itertools.product(range(len(law)), repeat=positions):
        probability = law[list(sequence)].prod()
        for i in range(1, positions):
            attended = range(i + 1) if causal else range(positions)
            predicted = sum(v[i, j] * q[sequence[j], sequence[i]] for j in attended)
            total = total + probability * (q_true[sequence[i - 1], sequence[i]] - predicted) ** 2
    return total


@BOTH
def test_the_loss_and_its_slopes_are_those_of_the_stored_cases(causal: bool) -> None:
    case = GOLDEN["cases"]["causal" if causal else "full"]
    landscape = CategoriesOnly(GOLDEN["q_true"], GOLDEN["p"], positions=4, causal=causal)
    assert isinstance(landscape, Landscape)
    assert float(landscape.loss(GOLDEN["q"], GOLDEN["v"])) == pytest.approx(case["loss"], rel=1e-12)
    gradient = landscape.gradient(GOLDEN["q"], GOLDEN["v"])
    for actual, stored in ((gradient.attention, case["grad_q"]), (gradient.v, case["grad_v"])):
        stored = torch.tensor(stored, dtype=torch.float64)
        assert float((actual - stored).norm() / stored.norm()) < 1e-12


@BOTH
def test_the_loss_and_its_slopes_are_those_of_all_sequences(causal: bool) -> None:
    q_true, law, q, v = random_case(3, 3, seed=1)
    landscape = CategoriesOnly(q_true, law, 3, causal=causal)
    q, v = q.requires_grad_(), v.requires_grad_()
    enumerated = enumerated_loss(q_true, law, q, v, causal)
    by_q, by_v = torch.autograd.grad(enumerated, (q, v))
    gradient = landscape.gradient(q.detach(), v.detach())
    assert float(landscape.loss(q.detach(), v.detach())) == pytest.approx(float(enumerated.detach()), rel=1e-13)
    assert float((gradient.attention - by_q).abs().max()) < 1e-13 * float(by_q.abs().max())
    assert float((gradient.v - by_v).abs().max()) < 1e-13 * float(by_v.abs().max())


@pytest.mark.long
@BOTH
@settings(max_examples=15)
@given(categories=st.integers(1, 5), positions=st.integers(2, 6), seed=st.integers(0, 1000))
def test_slopes_and_curvatures_are_the_derivatives_of_the_loss(
    causal: bool, categories: int, positions: int, seed: int
) -> None:
    q_true, law, q, v = random_case(categories, positions, seed)
    landscape = CategoriesOnly(q_true, law, positions, causal=causal)
    entries = categories**2

    def loss(point: Tensor) -> Tensor:
        return landscape.loss(point[:entries].reshape(q.shape), point[entries:].reshape(v.shape))

    point = torch.cat([q.flatten(), v.flatten()]).requires_grad_()
    (slope,) = torch.autograd.grad(loss(point), point)
    gradient = landscape.gradient(q, v)
    actual = torch.cat([gradient.attention.flatten(), gradient.v.flatten()])
    assert float((actual - slope).norm()) <= 1e-12 * float(slope.norm())
    curvature = torch.autograd.functional.hessian(loss, point.detach())
    assert isinstance(curvature, Tensor)
    assert float((landscape.hessian(q, v) - curvature).norm()) <= 1e-12 * float(curvature.norm())


def test_the_first_row_and_what_a_causal_mask_hides_have_no_effect() -> None:
    q_true, law, q, v = random_case(3, 5, seed=2)
    landscape = CategoriesOnly(q_true, law, 5, causal=True)
    hidden = torch.ones(5, 5, dtype=torch.float64).triu(1)
    hidden[0] = 1.0
    assert float(landscape.loss(q, v + 7.0 * hidden)) == float(landscape.loss(q, v))
    assert not (landscape.gradient(q, v).v * hidden).any()
    assert not landscape.hessian(q, v)[9:, 9:][hidden.flatten().bool()].any()
    full = CategoriesOnly(q_true, law, 5)
    assert not full.gradient(q, v).v[0].any()
    assert bool((full.gradient(q, v).v[1:] != 0).all())


def test_leading_axes_are_systems_of_their_own() -> None:
    q_true, law, q, v = random_case(3, 4, seed=3)
    landscape = CategoriesOnly(q_true, law, 4)
    qs = torch.stack([q, 2 * q, -q])[:, None]
    vs = torch.stack([v, v.flip(0)])
    losses, gradient, hessian = landscape.loss(qs, vs), landscape.gradient(qs, vs), landscape.hessian(qs, vs)
    assert losses.shape == (3, 2)
    for a, b in itertools.product(range(3), range(2)):
        one = landscape.gradient(qs[a, 0], vs[b])
        torch.testing.assert_close(losses[a, b], landscape.loss(qs[a, 0], vs[b]), rtol=1e-14, atol=0)
        torch.testing.assert_close(gradient.attention[a, b], one.attention, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(gradient.v[a, b], one.v, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(hessian[a, b], landscape.hessian(qs[a, 0], vs[b]), rtol=1e-13, atol=1e-13)


def test_only_the_product_of_q_and_v_counts() -> None:
    q_true, law, q, v = random_case(4, 5, seed=4)
    landscape = CategoriesOnly(q_true, law, 5)
    assert float(landscape.loss(q / 8.0, 8.0 * v)) == pytest.approx(float(landscape.loss(q, v)), rel=1e-14)


def test_the_closed_form_agrees_with_sampled_sequences() -> None:
    q_true, law, q, v = random_case(4, 6, seed=5)
    source = torch.Generator().manual_seed(0)
    x = torch.multinomial(law, 40_000 * 6, replacement=True, generator=source).reshape(-1, 6)
    pairs = q[x[:, None, :], x[:, :, None]]
    missed = q_true[x[:, :-1], x[:, 1:]] - (v * pairs).sum(-1)[:, 1:]
    losses = missed.square().sum(-1)
    error = float(losses.std()) / len(losses) ** 0.5
    assert abs(float(losses.mean()) - float(CategoriesOnly(q_true, law, 6).loss(q, v))) < 4 * error


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("q_true", "law", "positions", "error", "says"),
    [
        ([[1.0, 2.0]], None, 3, ArgumentValueError, "q_true"),
        ([[1.0, float("nan")], [0.0, 1.0]], None, 3, ArgumentValueError, "index (0, 1)"),
        (torch.zeros(2, 3, 3), None, 3, ArgumentValueError, "one N × N matrix"),
        (torch.zeros(2, 2, dtype=torch.int64), None, 3, ArgumentTypeError, "q_true"),
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.3, 0.2], 3, ArgumentValueError, "law"),
        ([[1.0, 0.0], [0.0, 1.0]], None, 1, ArgumentValueError, "positions"),
        ([[1.0, 0.0], [0.0, 1.0]], None, 2.0, ArgumentTypeError, "positions"),
    ],
)
def test_what_is_no_landscape_is_refused(q_true, law, positions, error, says) -> None:
    with pytest.raises(error) as raised:
        CategoriesOnly(q_true, law, positions)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_matrices_of_another_shape_are_refused() -> None:
    landscape = CategoriesOnly([[1.0, 0.0], [0.0, 1.0]], None, 3)
    for q, v in ((torch.zeros(3, 3), torch.zeros(3, 3)), (torch.zeros(2, 2), torch.zeros(2, 2))):
        with pytest.raises(ArgumentValueError):
            landscape.loss(q.double(), v.double())


@BOTH
def test_loss_and_gradient_at_once_agree_with_one_by_one(causal: bool) -> None:
    q_true, law, q, v = random_case(4, 5, seed=11)
    landscape = CategoriesOnly(q_true, law, 5, causal=causal)
    loss, gradient = landscape.loss_and_gradient(q, v)
    alone = landscape.gradient(q, v)
    assert isinstance(landscape, LossAndGradient)
    assert torch.equal(loss, landscape.loss(q, v))
    assert torch.equal(gradient.attention, alone.attention)
    assert torch.equal(gradient.v, alone.v)
