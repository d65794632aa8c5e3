"""Trainable attention: both forms, their converter, starts, options and what is refused."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from tokendynamics.modules import REGIMES, ConstrainedAttention, Regime
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError


def made(regime="divergence", dim=8, heads=2, seed=0, dtype=torch.float64, **options) -> ConstrainedAttention:
    generator = torch.Generator().manual_seed(seed)
    return ConstrainedAttention(dim, heads, regime, generator=generator, dtype=dtype, **options)


def shaken(layer: ConstrainedAttention, size: float = 0.3) -> ConstrainedAttention:
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in filter(lambda entry: entry.requires_grad, layer.parameters()):
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return layer


def states(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("output", ["identity", "free"])
@pytest.mark.parametrize("regime", REGIMES)
def test_the_layer_is_attention_with_its_weights(regime, output, causal):
    layer = shaken(made(regime, output=output, causal=causal, bias=True))
    query, key, value, projection = (None if part is None else part.detach().numpy() for part in layer.weights())
    biases = [
        bias.detach().numpy()
        for bias in (
            layer.query.bias,
            layer.key.bias,
            layer.value.bias,
        )
    ]
    x = states(5, 8)
    parts = [x.numpy() @ part.T + bias for part, bias in zip((query, key, value), biases, strict=True)]
    outputs = []
    for head in range(2):
        q, k, v = (part[:, 4 * head : 4 * head + 4] for part in parts)
        logits = q @ k.T / 2
        if causal:
            logits = np.where(np.tril(np.ones((5, 5))) > 0, logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ v)
    expected = np.concatenate(outputs, -1)
    if projection is not None:
        expected = expected @ projection.T + layer.projection.bias.detach().numpy()
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(layer.scores(x)[1].detach().numpy(), parts[0][:, 4:] @ parts[1][:, 4:].T / 2, atol=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("first", ["congruence", "solve"])
@pytest.mark.parametrize("regime", [*REGIMES, Regime("half", "half"), Regime(a="negative")])
def test_both_forms_reach_each_others_weights(regime, first, symmetric):
    layer = shaken(made(regime, dim=12, form=first, symmetric=symmetric), 0.1)
    second = "solve" if first == "congruence" else "congruence"
    other = layer.converted(second)
    assert other.form == second
    assert layer.form == first
    for before, after in zip(layer.weights()[:3], other.weights()[:3], strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-8)
    back = other.converted(first)
    for name, parameter in back.state_dict().items():
        if name.startswith(("query.", "key.", "value.")):
            torch.testing.assert_close(parameter, layer.state_dict()[name], rtol=0, atol=1e-8)
    for before, after in zip(layer.weights()[:3], back.weights()[:3], strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-8)


def test_congruence_and_solve_are_what_they_say():
    layer = shaken(made("intermediate"))
    query, key, value, _ = layer.weights()
    torch.testing.assert_close(key, layer.query_key() @ query)
    torch.testing.assert_close(value, layer.contraction() @ query.mT @ key)
    layer = shaken(made("intermediate", form="solve"))
    query, key, value, _ = layer.weights()
    torch.testing.assert_close(query.mT @ key, layer.query_key())
    torch.testing.assert_close(layer.contraction() @ value, layer.query_key())


@pytest.mark.parametrize("form", ["congruence", "solve"])
def test_starts(form):
    dim = 64
    for regime, sign in (("divergence", 1.0), ("convergence", -1.0), ("tied", 1.0)):
        layer = made(regime, dim=dim, form=form, skew=0.0)
        query, key, value, _ = (None if part is None else part.detach() for part in layer.weights())
        torch.testing.assert_close(query @ query.mT, torch.eye(dim).double(), rtol=0, atol=1e-12)
        product = query.mT @ key
        noise = 3 * 0.02 * 0.15
        torch.testing.assert_close(product, 0.15 * torch.eye(dim).double(), rtol=0, atol=noise)
        torch.testing.assert_close(value, sign * product, rtol=0, atol=noise)
        product = (lambda query, key, *_: query.mT @ key)(*made(regime, dim=dim, form=form).weights()).detach()
        skew = ((product - product.mT) / 2)[tuple(torch.triu_indices(dim, dim, 1))]
        assert float(skew.std()) == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.parametrize("form", ["congruence", "solve"])
def test_values_may_start_at_the_identity(form):
    for regime in ("divergence", "tied"):
        value = made(regime, dim=16, form=form, value_start="like_w").weights().value.detach()
        torch.testing.assert_close(value, torch.eye(16).double(), rtol=0, atol=1e-9)
    layer = made("convergence", dim=16, form=form, value_start="like_w")
    query, key, value, _ = (None if part is None else part.detach() for part in layer.weights())
    product = query.mT @ key
    contraction = product @ torch.linalg.inv(value)
    torch.testing.assert_close(contraction + contraction.mT, -(product + product.mT), rtol=0, atol=1e-9)
    torch.testing.assert_close(contraction - contraction.mT, product - product.mT, rtol=0, atol=1e-9)


def test_the_same_generator_gives_the_same_layer_and_arms_share_their_queries():
    one, two = made("convergence"), made("divergence")
    torch.testing.assert_close(one.query.weight, two.query.weight)
    torch.testing.assert_close(one.query_key(), two.query_key())
    again = made("convergence")
    for name, parameter in one.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name])
    assert not torch.equal(one.query.weight, made("convergence", seed=1).query.weight)


def test_conditioning_is_what_numpy_says():
    layer = shaken(made("intermediate"))
    query, key, value, _ = (None if part is None else part.detach().numpy() for part in layer.weights())
    result = layer.conditioning()
    assert result["query_condition"] == pytest.approx(np.linalg.cond(query), rel=1e-9)
    assert result["value_condition"] == pytest.approx(np.linalg.cond(value), rel=1e-9)
    contraction = query.T @ key @ np.linalg.inv(value)
    assert result["contraction_condition"] == pytest.approx(np.linalg.cond(contraction), rel=1e-6)
    real = np.linalg.eigvals(value).real
    assert result["value_real_lowest"] == pytest.approx(real.min(), abs=1e-9)
    assert result["value_real_highest"] == pytest.approx(real.max(), abs=1e-9)
    singular = made("baseline")
    with torch.no_grad():
        singular.value.weight.zero_()
    assert singular.conditioning()["contraction_condition"] == math.inf


def test_a_network_in_bfloat16_runs_and_learns():
    layer = made("convergence", dtype=torch.bfloat16)
    x = states(2, 4, 8).bfloat16()
    out = layer(x)
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16
    learnt = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in learnt)
    exact = made("convergence")
    exact.load_state_dict({name: entry.double() for name, entry in layer.state_dict().items()})
    torch.testing.assert_close(out.double(), exact(x.double()), rtol=0, atol=0.05 * float(out.detach().abs().max()))


def test_dropout_is_for_training_alone():
    layer = made("baseline", dropout=0.5, causal=False)
    x = states(4, 6, 8)
    torch.manual_seed(0)
    assert not torch.allclose(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x))


def test_gradients_reach_every_parameter():
    for regime, form in itertools.product(REGIMES, ("congruence", "solve")):
        layer = made(regime, form=form, bias=True, output="free")
        layer(states(3, 5, 8)).square().sum().backward()
        for name, parameter in layer.named_parameters():
            if name.endswith("signs"):
                assert parameter.grad is None
                continue
            assert parameter.grad is not None, (regime, form, name)
            if name != "key.bias":  # softmax does not see a shift of all keys
                assert float(parameter.grad.abs().max()) > 1e-12, (regime, form, name)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((8, 3), {}, "heads: expected a divisor of dim = 8, got 3"),
        ((8, 0), {}, "heads: expected a divisor of dim = 8, got 0"),
        ((0, 1), {}, "dim: expected an integer from 1, got 0"),
        ((8, 2, "diverging"), {}, "regime: expected a Regime or one of baseline, tied"),
        ((8, 2), {"form": "inverse"}, "form: expected 'congruence' or 'solve', got 'inverse'"),
        ((8, 2), {"output": "none"}, "output: expected 'free' or 'identity', got 'none'"),
        ((8, 2), {"scope": "layer"}, "scope: expected 'sum' or 'head'"),
        ((8, 2), {"value_start": "zero"}, "value_start: expected 'identity' or 'like_w'"),
        ((8, 2, "divergence"), {"scope": "head", "form": "solve"}, "scope: expected 'sum' in the form 'solve'"),
        ((8, 2, "tied"), {"scope": "head"}, "scope: expected 'sum'"),
        ((8, 2), {"skew": -0.1}, "skew: expected a standard deviation from 0, or None, got -0.1"),
        ((8, 2), {"skew": math.nan}, "skew: expected a standard deviation from 0, or None, got nan"),
        ((8, 2), {"dropout": 1.0}, "dropout: expected a share from 0 to below 1, got 1.0"),
        ((8, 2), {"dropout": -0.1}, "dropout: expected a share from 0 to below 1, got -0.1"),
        ((8, 2, "w_only"), {"value_start": "like_w"}, "value_start: expected 'identity' where W or A"),
        ((8, 2, Regime(a="positive")), {"value_start": "like_w"}, "value_start: expected 'identity' where W or A"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(arguments, options, message, unchecked):
    with pytest.raises(ArgumentValueError, match=message):
        ConstrainedAttention(*arguments, **options)


@pytest.mark.parametrize("terms", [[nn.Linear(8, 8)], [object()], nn.Linear(8, 8), "rotary", None])
def test_terms_that_add_nothing_to_the_logits_are_refused(terms, unchecked):
    with pytest.raises(ArgumentTypeError, match="terms: expected a list of modules with a method `extended`"):
        made(terms=terms)


def test_states_of_another_width_are_refused():
    for shape in ((3, 7), (8,)):
        with pytest.raises(ArgumentValueError, match=r"x: expected shape \(…, token, 8\), got"):
            made()(states(*shape))


def test_regimes_of_ones_own_are_checked(unchecked):
    with pytest.raises(ArgumentValueError, match="w: expected None or one of positive, negative, half, free, got 'up'"):
        Regime(w="up")
    with pytest.raises(ArgumentValueError, match="spectrum: expected 'positive', 'negative' or None, got 'half'"):
        Regime(spectrum="half")
    with pytest.raises(ArgumentValueError, match="spectrum: expected None where A is constrained"):
        Regime(a="positive", spectrum="positive")


def test_a_singular_w_is_not_converted():
    layer = made("divergence")
    with torch.no_grad():
        layer.query.weight[0] = layer.query.weight[1]
    with pytest.raises(ArgumentValueError):
        layer.converted("solve")


def test_the_regime_outlives_an_optimiser_that_decays_everything():
    layer = made("convergence", dtype=torch.float32)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=1.0)
    for _ in range(50):
        loss = nn.functional.mse_loss(layer(states(4, 6, 8).float()), torch.zeros(4, 6, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    qk, ov = (circuit.double() for circuit in layer.circuits())
    contraction = qk @ torch.linalg.inv(ov)
    assert (torch.linalg.eigvalsh(qk + qk.mT) > 0).all()
    assert (torch.linalg.eigvalsh(contraction + contraction.mT) < 0).all()
