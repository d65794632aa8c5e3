"""Decoders in a chosen regime: what they compute, that a round trip changes nothing, that they are read like others."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import tokendynamics as td
from tokendynamics.modules import REGIMES
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.language_model._model import Decoder
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def made(seed: int = 0, **choices) -> LanguageModel:
    torch.manual_seed(seed)
    return LanguageModel(LanguageModelConfig(**{**SMALL, **choices})).eval()


def words(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(seed))


def taught(model: LanguageModel, steps: int = 3) -> LanguageModel:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        ids = words(2, 9, seed=step)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    return model


CHOICES = [
    *({"regime": regime} for regime in REGIMES),
    *({"regime": "convergence", "form": "solve", "output": output} for output in ("free", "identity")),
    *({"positions": positions} for positions in ("learned", "rotary", "decoupled", "none")),
    *({"remedy": remedy, "positions": "rotary"} for remedy in ("identity", "diagonal")),
    *({"norms": norms} for norms in ("post", "none")),
    {"intermediate_size": 0},
    {"regime": "intermediate", "value_start": "like_w", "symmetric": True},
    {"tie_word_embeddings": True},
    *({"cutoffs": [10, 30], "tie_word_embeddings": tied} for tied in (False, True)),
]


@pytest.mark.few(12)
@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values())))
def test_a_round_trip_gives_the_same_logits_to_the_last_bit(choices, tmp_path):
    model = taught(made(**choices))
    ids = words(3, 11, seed=7)
    wanted = model(ids).logits
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is LanguageModel
    assert torch.equal(again(ids).logits, wanted)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is Decoder
    assert torch.equal(base(ids).last_hidden_state, model(ids, output_hidden_states=True).hidden_states[-1])
    kept = AutoConfig.from_pretrained(tmp_path)
    assert all(getattr(kept, name) == value for name, value in {**SMALL, **choices}.items())
    assert "__" not in json.dumps(json.loads((Path(tmp_path) / "config.json").read_text()))


@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values())))
def test_no_token_sees_a_later_one(choices):
    model = made(**choices)
    ids = words(2, 8)
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 50
    torch.testing.assert_close(model(ids).logits[:, :5], model(other).logits[:, :5], rtol=0, atol=1e-5)
    assert not torch.allclose(model(ids).logits[:, 5:], model(other).logits[:, 5:])


def test_states_are_the_sums_of_the_parts():
    model = made(norms="pre", positions="learned").double()
    ids = words(1, 6)
    states = model(ids, output_hidden_states=True).hidden_states
    assert len(states) == 3
    block, decoder = model.model.layers[0], model.model
    start = decoder.embed_tokens(ids) + decoder.positions.table[:6]
    torch.testing.assert_close(states[0], start)
    middle = start + block.attention(block.attention_norm(start))
    after = middle + block.feed_forward(block.feed_forward_norm(middle))
    torch.testing.assert_close(states[1], after)
    post = made(norms="post", positions="learned").double()
    block, start = post.model.layers[0], post.model.embed_tokens(ids) + post.model.positions.table[:6]
    middle = block.attention_norm(start + block.attention(start))
    after = block.feed_forward_norm(middle + block.feed_forward(middle))
    torch.testing.assert_close(post(ids, output_hidden_states=True).hidden_states[1], after)
    bare = made(norms="none", intermediate_size=0, positions="none").double()
    start = bare.model.embed_tokens(ids)
    torch.testing.assert_close(
        bare(ids, output_hidden_states=True).hidden_states[1], start + bare.model.layers[0].attention(start)
    )


def test_the_loss_is_the_mean_nats_of_the_next_token():
    model = made()
    ids = words(2, 7)
    labels = ids.clone()
    labels[0, 3] = -100
    logits = model(ids).logits.log_softmax(-1).detach().numpy()
    nats = [-logits[row, at, ids[row, at + 1]] for row in range(2) for at in range(6) if (row, at + 1) != (0, 3)]
    assert float(model(ids, labels=labels).loss.detach()) == pytest.approx(np.mean(nats), rel=1e-5)


def test_padding_on_the_right_changes_no_token_before_it():
    model = made(positions="rotary")
    ids = words(1, 6)
    padded = functional.pad(ids, (0, 3))
    mask = functional.pad(torch.ones_like(ids), (0, 3))
    torch.testing.assert_close(model(padded, mask).logits[:, :6], model(ids).logits, rtol=0, atol=1e-5)
    with pytest.raises(ArgumentValueError, match="attention_mask: expected padding on the right alone"):
        model(padded, mask.flip(-1))


def test_arms_of_a_seed_differ_in_their_attention_alone():
    arms = {regime: dict(made(3, regime=regime).named_parameters()) for regime in REGIMES}
    baseline = arms["baseline"]
    for regime, parameters in arms.items():
        for name in baseline.keys() & parameters.keys():
            if ".attention." not in name:
                assert torch.equal(parameters[name], baseline[name]), (regime, name)
    assert not torch.equal(baseline["lm_head.weight"], dict(made(4).named_parameters())["lm_head.weight"])


def test_signs_hold_in_a_model_that_was_taught():
    model = taught(made(regime="convergence", output="identity"), 20)
    for layer in model.model.layers:
        qk, ov = (circuit.double() for circuit in layer.attention.circuits())
        form = qk @ torch.linalg.inv(ov)
        assert (torch.linalg.eigvalsh(qk + qk.mT) > 0).all()
        assert (torch.linalg.eigvalsh(form + form.mT) < 0).all()


@pytest.mark.parametrize(
    "choices", [{"regime": "convergence"}, {"positions": "rotary"}, {"norms": "post"}, {"positions": "decoupled"}]
)
def test_a_live_model_is_traced_and_audited(choices):
    model = made(**choices)
    network = td.load(model)
    assert (network.architecture.layers, network.architecture.heads) == (2, 2)
    audit = td.audit(network, fold_norms=False)
    for number, layer in enumerate(model.model.layers):
        _, ov = layer.attention.circuits()
        # Norms before the parts take the mean of the features away: no part sees it.
        centred = torch.eye(16).double() - 1 / 16 if model.config.norms == "pre" else torch.eye(16).double()
        norm = float(torch.linalg.matrix_norm(centred @ ov.double() @ centred, 2))
        assert float(audit["ov_norm"][number]) == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("regime", ["convergence", "intermediate"])
def test_a_saved_model_is_audited_as_any_other(regime, tmp_path):
    model = taught(made(regime=regime, norms="post", output="identity"))
    model.save_pretrained(tmp_path)
    audit = td.audit(td.load(tmp_path), value="V")
    of_a = {"convergence": [0, 16, 0], "intermediate": [8, 8, 0]}[regime]
    assert audit["W_inertia"].values.tolist() == [[16, 0, 0]] * 2
    assert audit["A_inertia"].values.tolist() == [of_a] * 2


@pytest.mark.parametrize("form", ["congruence", "solve"])
@pytest.mark.parametrize("regime", REGIMES)
def test_every_arm_may_ask_for_values_that_start_like_w(regime, form):
    model = made(regime=regime, form=form, value_start="like_w").double()
    if regime not in ("tied", "convergence", "intermediate", "divergence"):
        plain = made(regime=regime, form=form).double().state_dict()
        assert all(torch.equal(parameter, plain[name]) for name, parameter in model.state_dict().items())
        return
    for layer in model.model.layers:
        query, key, value, _ = (part.detach() for part in layer.attention.weights())
        product = query.T @ key
        contraction = product @ torch.linalg.inv(value)
        near = {"rtol": 0, "atol": 1e-5}
        torch.testing.assert_close(contraction - contraction.T, product - product.T, **near)
        if regime in ("tied", "divergence"):
            torch.testing.assert_close(value, torch.eye(16).double(), **near)
        elif regime == "convergence":
            torch.testing.assert_close(contraction + contraction.T, -(product + product.T), **near)
        else:
            assert (torch.linalg.eigvalsh(contraction + contraction.T) > 0).sum() == 8


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"regime": "other"}, "regime: expected one of baseline, tied"),
        ({"positions": "alibi"}, "positions: expected one of learned, sinusoidal, rotary, decoupled, none"),
        ({"norms": "sandwich"}, "norms: expected one of pre, post, none"),
        ({"remedy": "lambda"}, "remedy: expected one of none, identity, diagonal"),
        ({"num_attention_heads": 3}, "num_attention_heads: expected a divisor of hidden_size = 16, got 3"),
        ({"vocab_size": 0}, "vocab_size: expected an integer from 1, got 0"),
        ({"intermediate_size": -1}, "intermediate_size: expected an integer from 0, got -1"),
        ({"rotary_width": 4}, "rotary_width: expected None for positions = 'sinusoidal', got 4"),
        ({"positions": "rotary", "rotary_width": 5}, "rotary_width: expected an even number from 2 to 8, the width of"),
        ({"positions": "rotary", "rotary_width": 10}, "rotary_width: expected an even number from 2 to 8, .*, got 10"),
        ({"positions": "rotary", "rotary_width": 0}, "rotary_width: expected an even number from 2 to 8, .*, got 0"),
        ({"positions": "rotary", "num_attention_heads": 16}, "rotary_width: .*, got None; None means 1"),
        ({"positions": "decoupled", "rotary_width": 7}, "rotary_width: expected an even number from 2, got 7"),
        ({"positions": "decoupled", "rotary_width": -2}, "rotary_width: expected an even number from 2, got -2"),
        ({"dropout": 1.0}, "dropout: expected a share from 0 to below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout: expected a share from 0 to below 1, got -0.1"),
        ({"dropout": math.nan}, "dropout: expected a share from 0 to below 1, got nan"),
        ({"skew": math.nan}, "skew: expected a standard deviation from 0, or None, got nan"),
        ({"skew": -1.0}, "skew: expected a standard deviation from 0, or None, got -1.0"),
        ({"skew": math.inf}, "skew: expected a standard deviation from 0, or None, got inf"),
        ({"cutoffs": [20, 10]}, r"cutoffs: expected rising numbers .* vocab_size = 50, or None, got \[20, 10\]"),
        ({"cutoffs": [10, 10]}, "cutoffs: expected rising numbers"),
        ({"cutoffs": [10, 50]}, "cutoffs: expected rising numbers"),
        ({"cutoffs": [0, 10]}, "cutoffs: expected rising numbers"),
        ({"cutoffs": []}, "cutoffs: expected rising numbers"),
    ],
)
def test_what_cannot_be_built_is_refused_where_it_is_described(choices, message, unchecked):
    with pytest.raises(ArgumentValueError, match=message):
        LanguageModelConfig(**{**SMALL, **choices})


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"cutoffs": 10}, "cutoffs: expected a list of whole numbers, or None, got 10"),
        ({"cutoffs": [1.5]}, r"cutoffs\[0\]: expected an integer, got 1.5"),
        ({"hidden_size": 16.0}, "hidden_size: expected an integer, got 16.0"),
        ({"symmetric": "no"}, "symmetric: expected True or False, got 'no'"),
    ],
)
def test_what_is_of_another_kind_is_refused(choices, message, unchecked):
    with pytest.raises(ArgumentTypeError, match=message):
        LanguageModelConfig(**{**SMALL, **choices})


@pytest.mark.parametrize(
    "choices", [{"positions": "rotary", "rotary_width": 8}, {"positions": "decoupled", "rotary_width": 32}]
)
def test_widths_at_the_end_of_their_range_are_taken(choices):
    assert made(**choices)(words(1, 4)).logits.isfinite().all()


def test_what_cannot_be_read_is_refused_by_name():
    model = made(max_position_embeddings=8)
    with pytest.raises(ArgumentValueError, match="input_ids: expected 8 tokens at most, got 9"):
        model(words(1, 9))
    with pytest.raises(ArgumentValueError, match="input_ids: expected either input_ids or inputs_embeds"):
        model()
