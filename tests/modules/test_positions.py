"""Positions and remedies: what they add to embeddings and logits, against the library's own flows and by hand."""

import math

import pytest
import torch

import tokendynamics as td
from tokendynamics.modules import (
    ConstrainedAttention,
    DecoupledRotary,
    LearnedPositions,
    NegativeDiagonal,
    Rotary,
    SinusoidalPositions,
)
from tokendynamics.numerics import ArgumentValueError


def states(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(*terms: torch.nn.Module, heads: int = 2, **options) -> ConstrainedAttention:
    generator = torch.Generator().manual_seed(0)
    return ConstrainedAttention(8, heads, terms=terms, generator=generator, **options).double()


def test_sinusoids_are_those_of_the_flows():
    x = states(3, 7, 6)
    table = td.AbsolutePositions.sinusoidal(7, 6).table
    torch.testing.assert_close(SinusoidalPositions()(x), x + table, rtol=0, atol=1e-14)
    other = td.AbsolutePositions.sinusoidal(7, 6, base=50.0).table
    torch.testing.assert_close(SinusoidalPositions(50.0)(x), x + other, rtol=0, atol=1e-14)
    assert not SinusoidalPositions().state_dict()


def test_learned_positions_are_rows_of_a_table():
    positions = LearnedPositions(5, 3, std=0.1, generator=torch.Generator().manual_seed(1))
    x = torch.zeros(2, 4, 3)
    torch.testing.assert_close(positions(x)[1], positions.table[:4])
    big = LearnedPositions(500, 64, std=0.1, generator=torch.Generator().manual_seed(1))
    assert float(big.table.detach().std()) == pytest.approx(0.1, rel=0.02)
    with pytest.raises(ArgumentValueError, match="x: expected 5 tokens at most, got 6"):
        positions(torch.zeros(6, 3))


def neighbours(matrix: torch.Tensor) -> torch.Tensor:
    """Columns (…, rank) with those side by side that are turned together: halves are, in what is trained."""
    return matrix.unflatten(-1, (2, -1)).mT.flatten(-2)


def test_rotary_turns_queries_and_keys_of_each_head():
    turned, plain = layer(Rotary(4)), layer()
    x = states(6, 8)
    query, key = (neighbours(part.weight.detach().unflatten(0, (2, 4)).mT) for part in (plain.query, plain.key))
    flow = td.Attention(
        torch.zeros(2, 8, 8).double(),
        torch.zeros(2, 8, 8).double(),
        positions=td.RotaryPositions(query, key, scale=0.5),
    )
    torch.testing.assert_close(turned.scores(x).detach(), flow.logits(x), rtol=0, atol=1e-12)


def test_rotary_of_some_columns_leaves_the_others():
    x = states(6, 8)
    none, part, whole = layer(), layer(Rotary(2)), layer(Rotary(4))
    query, key = (linear(x).detach().unflatten(-1, (2, 4)).transpose(0, 1) for linear in (none.query, none.key))
    rest = query[..., 2:] @ key[..., 2:].mT / 2
    first = (part.scores(x) - rest).detach()
    torch.testing.assert_close(first.diagonal(dim1=1, dim2=2), (query[..., :2] * key[..., :2]).sum(-1) / 2)
    # One pair turns by a radian a token.
    expected = (math.cos(2.0) * query[0, 4, :2] @ key[0, 2, :2]) + math.sin(2.0) * (
        query[0, 4, 0] * key[0, 2, 1] - query[0, 4, 1] * key[0, 2, 0]
    )
    assert float(first[0, 4, 2]) == pytest.approx(float(expected / 2), abs=1e-12)
    assert not torch.allclose(part.scores(x), whole.scores(x))


def test_rotary_twice_turns_by_twice_the_angles():
    x = states(6, 8)
    between = torch.stack([x, torch.zeros_like(x)], 1).flatten(0, 1)  # each token at twice its place
    twice, once = layer(Rotary(4), Rotary(4)).scores(x), layer(Rotary(4)).scores(between)
    torch.testing.assert_close(twice, once[..., ::2, ::2], rtol=0, atol=1e-12)


def test_rotary_beside_columns_turns_the_queries_themselves():
    x, remedy = states(6, 8), NegativeDiagonal(8, 2, "diagonal", start=-0.5)
    before, after = (layer(*terms).scores(x) for terms in ((Rotary(2), remedy), (remedy, Rotary(2))))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_a_rotary_of_ones_own_may_extend_otherwise():
    class Threefold(Rotary):
        def extended(self, query, key, x):
            return 3 * query, key

    x = states(6, 8)
    torch.testing.assert_close(layer(Threefold(4)).scores(x), 3 * layer().scores(x), rtol=0, atol=1e-12)


def test_decoupled_rotary_is_formula_7():
    term = DecoupledRotary(8, 2, 6, base=100.0, generator=torch.Generator().manual_seed(3))
    attention = layer(term, regime="convergence")
    x = states(5, 8)
    query, key = (neighbours(part.weight.detach().unflatten(0, (2, 6)).mT) for part in (term.query, term.key))
    flow = td.Attention(*attention.head_circuits(), positions=td.RotaryPositions(query / 2, key, base=100.0))
    torch.testing.assert_close(attention.scores(x).detach(), flow.logits(x), rtol=0, atol=1e-12)
    assert float(term.query.weight.detach().abs().max()) <= 8**-0.5
    assert not torch.equal(term.query.weight, term.key.weight)


@pytest.mark.parametrize("kind", ["identity", "diagonal"])
def test_the_remedy_adds_lambda_to_the_scaled_w(kind):
    term = NegativeDiagonal(8, 2, kind, start=-0.3)
    treated, plain = layer(term), layer()
    with torch.no_grad():
        term.rho.fill_(math.log(0.7))
        if kind == "diagonal":
            term.log_diagonal.copy_(torch.linspace(-1.0, 1.0, 8))
    diagonal = 0.7 * (torch.linspace(-1.0, 1.0, 8).double().exp() if kind == "diagonal" else torch.ones(8).double())
    torch.testing.assert_close(term.coefficients().detach(), -diagonal, rtol=1e-6, atol=0)
    x = states(3, 5, 8)
    difference = (treated.scores(x) - plain.scores(x)).detach()
    torch.testing.assert_close(difference.sum(1), -(x * diagonal) @ x.mT, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(difference[:, 1], -(x * diagonal)[..., 4:] @ x[..., 4:].mT, rtol=1e-6, atol=1e-9)


def test_lambda_starts_where_it_is_told_and_stays_negative():
    term = NegativeDiagonal(4, 1, start=-0.02)
    torch.testing.assert_close(term.coefficients().detach(), torch.full((4,), -0.02))
    optimizer = torch.optim.SGD(term.parameters(), lr=10.0)
    for _ in range(20):
        optimizer.zero_grad()
        term.coefficients().sum().neg().backward()  # pushes λ up
        optimizer.step()
    assert (term.coefficients() < 0).all()
    assert float(term.coefficients().abs().max().detach()) < 0.02


def test_fused_attention_serves_all_terms_together():
    terms = (Rotary(2), DecoupledRotary(8, 2, 4), NegativeDiagonal(8, 2, "diagonal", start=-0.5))
    for causal in (True, False):
        attention = layer(*terms, causal=causal)
        x = states(2, 6, 8)
        scores = attention.scores(x)
        if causal:
            scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
        value = attention.value(x).unflatten(-1, (2, 4)).transpose(-2, -3)
        expected = (scores.softmax(-1) @ value).transpose(-2, -3).flatten(-2)
        torch.testing.assert_close(attention(x), expected, rtol=0, atol=1e-12)
        attention(x).square().sum().backward()
        assert all(parameter.grad is not None for term in terms for parameter in term.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotary(3), "width: expected an even number from 2.*got 3"),
        (lambda: Rotary(0), "width: expected an even number from 2.*got 0"),
        (lambda: DecoupledRotary(8, 2, 5), "width: expected an even number"),
        (lambda: DecoupledRotary(8, 0, 4), "heads: expected an integer from 1, got 0"),
        (lambda: layer(Rotary(6)).scores(states(3, 8)), "width: expected 4 columns of a head at most, got 6"),
        (lambda: NegativeDiagonal(8, 3), "heads: expected a divisor of dim = 8, got 3"),
        (lambda: NegativeDiagonal(8, 2, start=0.0), "start: expected a negative λ, got 0.0"),
        (lambda: NegativeDiagonal(8, 2, start=math.nan), "start: expected a negative λ, got nan"),
        (lambda: NegativeDiagonal(8, 2, "full"), "kind: expected 'identity' or 'diagonal', got 'full'"),
        (lambda: NegativeDiagonal(8, 2, start=-math.inf), "start: expected a negative λ, got -inf"),
        (lambda: LearnedPositions(0, 3), "tokens: expected an integer from 1, got 0"),
        (lambda: LearnedPositions(2, 3, std=-1.0), "std: expected a standard deviation from 0, or None, got -1.0"),
        (lambda: SinusoidalPositions(0.0), "base: expected a positive finite number, got 0.0"),
        (lambda: Rotary(2, base=-1.0), "base: expected a positive finite number, got -1.0"),
        (lambda: DecoupledRotary(8, 2, 4, base=math.nan), "base: expected a positive finite number, got nan"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(make, message, unchecked):
    with pytest.raises(ArgumentValueError, match=message):
        make()
