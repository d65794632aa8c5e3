"""Which statements a layer comes nearest to, on networks that were built to meet or to miss their hypotheses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import tokendynamics as td
from tokendynamics.diagnosis import NearStatement
from tokendynamics.diagnosis._network_flow import _Flows
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

PROMPT = torch.arange(3, 10)
DIM = 8
RELAXED = ("directions of tokens only", "no positions")


def network(heads: int = 1, value: float = 0.5) -> nn.Module:
    """Return two layers of one width, whose OV circuits are `value` times the identity if there is one head."""
    sizes = {"vocab_size": 64, "hidden_size": DIM, "intermediate_size": 8, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **sizes, num_attention_heads=heads, num_key_value_heads=heads)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data = torch.eye(DIM)
        layer.self_attn.o_proj.weight.data = value * torch.eye(DIM)
        layer.self_attn.q_proj.weight.data *= 20
    return model


def nearest(model: nn.Module, layer: int | None = None) -> dict[str, NearStatement]:
    """Return what is near by the names of the statements."""
    return {one.statement: one for one in td.nearest_statements(model, PROMPT, layer)}


def test_a_layer_built_to_meet_a_theorem_meets_it() -> None:
    near = nearest(network())["asymptotic-5.1"]
    assert (near.violated, near.relaxations, near.layer, near.head) == ((), RELAXED, 1, None)
    flow = td.Flow(td.Attention(torch.eye(2), torch.eye(2), causal=True), td.Sphere())
    (check,) = td.check(flow, [[1.0, 0.0], [0.6, 0.8]], statements=["asymptotic-5.1"])
    assert near.satisfied == sum(one.holds is True for one in check.hypotheses)
    beginning = (
        "asymptotic-5.1 (layer 1) with directions of tokens only and no positions: applies: from almost every start"
    )
    assert str(near).startswith(beginning)
    assert near.prediction.split(",")[0] == check.prediction.text.split(",")[0]


@pytest.mark.long
def test_one_that_misses_it_says_by_what() -> None:
    repelling = nearest(network(value=-0.5))["asymptotic-5.1"]
    assert [one.name for one in repelling.violated] == ["the multiples are positive"]
    assert repelling.violated[0].margin == pytest.approx(-0.5)
    assert repelling.prediction == ""
    assert "violated: the multiples are positive (the least multiple c of the identity in ov is −0.5" in str(repelling)
    two = nearest(network(heads=2))["asymptotic-5.1"]
    assert [one.name for one in two.violated] == ["ov is a multiple of the identity"]


@pytest.mark.long
def test_the_mask_is_given_up_where_a_statement_asks_for_another() -> None:
    near = nearest(network())["asymptotic-4.1"]
    assert set(near.relaxations) == {*RELAXED, "each token seen by all"}
    free = nearest(network())["clusters-8-hull"]
    assert set(free.relaxations) == {"no norm before attention", "no positions"}
    # Positions are kept where a statement is about them.
    assert nearest(network())["positional-C.3"].relaxations == ("no norm before attention",)


@pytest.mark.long
def test_the_head_that_comes_nearest_is_named() -> None:
    model = network(heads=2)
    # Head 2 of layer 1 moves nothing; head 1 has a top eigenvalue that is simple.
    attention = model.model.layers[0].self_attn
    attention.o_proj.weight.data[:, DIM // 2 :] = 0.0
    attention.o_proj.weight.data[:, : DIM // 2] *= torch.tensor([4.0, 1.0, 1.0, 1.0])
    near = nearest(model)["clusters-4"]
    assert near.head == 1
    assert "head 1 alone" in str(near)
    swapped = network(heads=2)
    swapped.model.layers[0].self_attn.o_proj.weight.data[:, : DIM // 2] = 0.0
    swapped.model.layers[0].self_attn.o_proj.weight.data[:, DIM // 2 :] *= torch.tensor([4.0, 1.0, 1.0, 1.0])
    assert nearest(swapped)["clusters-4"].head == 2


@pytest.mark.long
def test_the_norm_of_the_network_is_kept_where_a_statement_speaks_of_it() -> None:
    near = nearest(network())["norms-4.3-radius"]
    assert near.relaxations == ("no positions",)
    names = [one.name for one in near.violated]
    flow = td.Flow(td.Attention(torch.eye(2), torch.eye(2)), td.Normalized("pre"))
    (check,) = td.check(flow, [[1.0, 0.0], [0.0, 1.0]], statements=["norms-4.3-radius"])
    assert set(names) <= {one.name for one in check.hypotheses}


@pytest.mark.long
def test_what_is_least_violated_comes_first_and_nothing_false_comes_at_all() -> None:
    near = td.nearest_statements(network(heads=2), PROMPT, 2)
    keys = [(len(one.violated), len(one.relaxations) + (one.head is not None)) for one in near]
    assert keys == sorted(keys)
    assert {one.layer for one in near} == {2}
    names = {one.statement for one in near}
    assert len(near) == len(names) > 30
    left_out = {one.name for one in (*td.theorems.STATEMENTS, *td.theorems.ATLAS) if one.standing == "false"}
    assert not names & (left_out | {"rank-collapse", "masks-rooted", "spheres-graph"})


@pytest.mark.parametrize("space", ["pre", "sphere", "free"])
def test_without_relaxations_the_flow_is_that_of_the_layer(space: str) -> None:
    checkpoint = td.load(network(heads=2))
    (weights,) = checkpoint.iter_attention([2])
    flows = _Flows(weights, True)
    kind = next(one for one in flows.kinds if one.space == space and not one.alone)
    spaces = {"pre": td.Normalized("pre"), "sphere": td.Sphere(), "free": td.Free()}
    whole = td.flow_of(checkpoint, 2, space=spaces[space])
    x = torch.randn(5, DIM, dtype=torch.float64, generator=torch.manual_seed(1))
    x = torch.nn.functional.normalize(x, dim=-1) if space == "sphere" else x
    torch.testing.assert_close(flows.of(kind).velocity(x), whole.velocity(x))
    # Heads add up.
    parts = sum(flows.of(kind, head).velocity(x) for head in range(2))
    torch.testing.assert_close(parts, whole.velocity(x))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"layer": 0}, ArgumentValueError, "layer: expected"),
        ({"layer": 3}, ArgumentValueError, "layer: expected"),
        ({"layer": 1.0}, ArgumentTypeError, "layer: expected an integer"),
        ({"text": 3}, ArgumentTypeError, "prompt: expected a text, token ids"),
        ({"progress": "loud"}, ArgumentTypeError, "progress: expected"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        td.nearest_statements(**({"checkpoint": network(), "text": PROMPT} | wrong))
