"""Vision transformers in a chosen regime: what DeiT computes and starts with, saved and read like others."""

import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, ViTConfig, ViTForImageClassification

import tokendynamics as td
from tokendynamics.cli import commands
from tokendynamics.modules import REGIMES
from tokendynamics.modules.network import DropPath
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.modules.vision._model import Encoder
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.training.tasks._images import Digits

SMALL = {
    "image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "num_labels": 10,
}  # fmt: skip


def made(seed: int = 0, **choices) -> VisionModel:
    torch.manual_seed(seed)
    return VisionModel(VisionConfig(**{**SMALL, **choices})).eval()


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def taught(model: VisionModel, steps: int = 3) -> VisionModel:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        model(pictures(4, seed=step), labels=torch.arange(4)).loss.backward()
        optimizer.step()
    return model


CHOICES = [
    *({"regime": regime} for regime in REGIMES),
    *({"regime": "convergence", "form": "solve", "output": output} for output in ("free", "identity")),
    *({"norms": norms} for norms in ("post", "none")),
    {"intermediate_size": 0, "bias": False},
    {"regime": "intermediate", "value_start": "like_w", "symmetric": True},
    {"regime": "divergence", "scope": "head", "drop_path": 0.3},
    {"id2label": {number: f"digit {number}" for number in range(10)}},
]


@pytest.mark.few(8)
@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values()))[:40])
def test_a_round_trip_gives_the_same_logits_to_the_last_bit(choices, tmp_path):
    model = taught(made(**choices))
    images = pictures(3, seed=7)
    wanted = model(images).logits
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert type(again) is VisionModel
    assert torch.equal(again(images).logits, wanted)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is Encoder
    assert torch.equal(base(images).last_hidden_state, model(images, output_hidden_states=True).hidden_states[-1])
    kept = AutoConfig.from_pretrained(tmp_path)
    assert all(getattr(kept, name) == value for name, value in {**SMALL, **choices}.items())


def test_deit_tiny_has_as_many_parameters_as_published():
    with torch.device("meta"):
        model = VisionModel(VisionConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_717_416


def test_the_baseline_computes_what_transformers_vit_does():
    """An independent implementation of the same layers, given the same weights."""
    actual = taught(made(bias=True)).double()
    config = ViTConfig(
        **{**SMALL, "num_labels": 10}, num_channels=3, layer_norm_eps=1e-6, qkv_bias=True, hidden_act="gelu",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    reference = ViTForImageClassification(config).double().eval()
    names = {
        "embedding.convolution": "embeddings.patch_embeddings.projection", "attention_norm": "layernorm_before",
        "feed_forward_norm": "layernorm_after", "attention.query": "attention.q_proj",
        "attention.key": "attention.k_proj",
        "attention.value": "attention.v_proj", "attention.projection": "attention.o_proj",
        "feed_forward.rise": "mlp.fc1", "feed_forward.fall": "mlp.fc2",
    }  # fmt: skip
    weights = {}
    for name, tensor in actual.model.state_dict().items():
        for computed, other in names.items():
            name = name.replace(computed, other)
        weights[name] = tensor
    weights["embeddings.cls_token"] = weights.pop("embedding.class_token")[None, None]
    weights["embeddings.position_embeddings"] = weights.pop("embedding.positions.table")[None]
    weights["layernorm.weight"], weights["layernorm.bias"] = weights.pop("norm.weight"), weights.pop("norm.bias")
    reference.vit.load_state_dict(weights)
    reference.classifier.load_state_dict(actual.head.state_dict())
    images = pictures(5).double()
    torch.testing.assert_close(actual(images).logits, reference(images).logits, rtol=1e-10, atol=1e-12)


def test_the_order_of_patches_is_in_their_positions_alone():
    """Attention sees every token: patches that change places together with their positions change no logit."""
    model = made(regime="divergence").double()
    images = pictures(2).double()
    wanted = model(images).logits
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    patches = images.unflatten(2, (4, 2)).unflatten(4, (4, 2)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    shifted = patches[:, order].unflatten(1, (4, 4)).permute(0, 3, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4)
    assert not torch.allclose(model(shifted).logits, wanted)
    table = model.model.embedding.positions.table.data
    table[1:] = table[1:][order]
    torch.testing.assert_close(model(shifted).logits, wanted)


def test_the_states_after_every_layer_end_with_those_that_the_head_reads():
    model = made().double()
    images = pictures(2).double()
    result = model(images, output_hidden_states=True)
    first, middle, last = result.hidden_states
    torch.testing.assert_close(model.model.layers[0](first), middle)
    torch.testing.assert_close(model.model.norm(model.model.layers[1](middle)), last)
    torch.testing.assert_close(model.head(last[:, 0]), result.logits)


def test_the_loss_is_that_of_classes_or_of_their_weights():
    model = made()
    images, classes = pictures(3), torch.tensor([2, 0, 9])
    nats = -model(images).logits.log_softmax(-1).detach()
    wanted = float(nats[torch.arange(3), classes].mean())
    hard = model(images, labels=classes).loss
    soft = model(images, labels=torch.nn.functional.one_hot(classes, 10).float()).loss
    assert float(hard.detach()) == pytest.approx(wanted, rel=1e-5)
    assert float(soft.detach()) == pytest.approx(wanted, rel=1e-5)
    weights = torch.rand(3, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)
    mixed = model(images, labels=weights).loss
    assert float(mixed.detach()) == pytest.approx(float((weights * nats).sum(-1).mean()), rel=1e-5)


def test_arms_of_a_seed_differ_in_their_attention_alone():
    arms = {regime: dict(made(3, regime=regime).named_parameters()) for regime in REGIMES}
    baseline = arms["baseline"]
    for regime, parameters in arms.items():
        for name in baseline.keys() & parameters.keys():
            if ".attention." not in name:
                assert torch.equal(parameters[name], baseline[name]), (regime, name)
    assert not torch.equal(baseline["head.weight"], dict(made(4).named_parameters())["head.weight"])


def test_a_start_is_deits():
    model = made(hidden_size=64, intermediate_size=256)
    parts = [model.head, *(part for layer in model.model.layers for part in layer.feed_forward.modules())]
    linears = [part for part in parts if isinstance(part, torch.nn.Linear)]
    assert len(linears) == 5
    embedding = model.model.embedding
    for weight in (*(linear.weight for linear in linears), embedding.positions.table, embedding.class_token):
        # The sampling error of a standard deviation is std/√(2 n); five of them.
        assert float(weight.std().detach()) == pytest.approx(0.02, rel=5 / math.sqrt(2 * weight.numel()))
        assert abs(float(weight.mean().detach())) < 5 * 0.02 / math.sqrt(weight.numel())
    assert all(not linear.bias.any() for linear in linears)


def test_a_head_that_a_checkpoint_does_not_have_starts_as_deits(tmp_path):
    made(hidden_size=64).model.save_pretrained(tmp_path)
    torch.manual_seed(1)
    head = VisionModel.from_pretrained(tmp_path).head
    assert float(head.weight.std().detach()) == pytest.approx(0.02, rel=5 / math.sqrt(2 * 640))
    assert not head.bias.any()


def test_a_dropped_path_leaves_out_whole_samples_and_keeps_the_expectation():
    torch.manual_seed(0)
    path = DropPath(0.3).train()
    updates = torch.rand(20_000, 2, 3) + 1
    ratios = (path(updates) / updates).flatten(1)
    assert float(ratios.std(-1).max()) < 1e-5  # one draw for all of a sample
    kept = ratios[:, 0] > 0
    torch.testing.assert_close(ratios[kept], torch.full_like(ratios[kept], 1 / 0.7))
    chance = float(kept.double().mean())
    assert chance == pytest.approx(0.7, abs=5 * math.sqrt(0.7 * 0.3 / 20_000))
    assert torch.equal(path.eval()(updates), updates)


@pytest.mark.parametrize("norms", ["pre", "post", "none"])
def test_a_layer_of_which_both_paths_are_dropped_adds_nothing(norms):
    block = made(drop_path=0.9, norms=norms).model.layers[1].train()
    torch.manual_seed(0)
    states = torch.randn(2000, 3, 16)
    wanted = block.feed_forward_norm(block.attention_norm(states)) if norms == "post" else states
    same = (block(states) == wanted).flatten(1).all(1)
    assert float(same.double().mean()) == pytest.approx(0.81, abs=5 * math.sqrt(0.81 * 0.19 / 2000))


def test_nothing_is_dropped_in_the_first_layer_and_in_evaluation():
    images, states = pictures(4), torch.randn(50, 3, 16)
    dropping, plain = made(drop_path=0.9), made()
    assert torch.equal(dropping(images).logits, plain(images).logits)
    assert torch.equal(dropping.train().model.layers[0](states), plain.train().model.layers[0](states))


def test_the_share_of_dropped_paths_rises_linearly_with_depth():
    shares = [layer.drop_path.share for layer in made(drop_path=0.1, num_hidden_layers=5).model.layers]
    assert shares == pytest.approx([0, 0.025, 0.05, 0.075, 0.1])
    assert [layer.drop_path.share for layer in made(drop_path=0.1, num_hidden_layers=1).model.layers] == [0]


@pytest.mark.long
def test_a_live_model_is_traced_and_audited():
    model = made(regime="convergence")
    network = td.load(model)
    facts = network.architecture
    assert (facts.layers, facts.heads, facts.causal, facts.positions) == (2, 2, False, "learned")
    audit = td.audit(network, fold_norms=False)
    centred = torch.eye(16).double() - 1 / 16  # norms before the parts take the mean away: no part sees it
    for number, layer in enumerate(model.model.layers):
        _, ov = layer.attention.circuits()
        norm = float(torch.linalg.matrix_norm(centred @ ov.double() @ centred, 2))
        assert float(audit["ov_norm"][number]) == pytest.approx(norm, rel=1e-4)
    images = pictures(3)
    trace = td.trace(network, [{"pixel_values": image[None]} for image in images])
    states = model(images, output_hidden_states=True).hidden_states[1].detach()
    wanted = states.norm(dim=-1).median(-1).values
    selected = trace["norm_median"].sel(layer=1, site="feed_forward", sinks="kept")
    np.testing.assert_allclose(selected, wanted, rtol=1e-4)


@pytest.mark.long
def test_a_saved_model_is_read_with_its_processor_as_any_other(tmp_path):
    model = taught(made(regime="intermediate", norms="post", output="identity"))
    model.save_pretrained(tmp_path / "model")
    Digits.of("digits", {}, seed=0, draws=1).save_inputs(tmp_path / "model")
    audit = td.audit(td.load(tmp_path / "model"), value="V")
    assert audit["W_inertia"].values.tolist() == [[16, 0, 0]] * 2
    assert audit["A_inertia"].values.tolist() == [[8, 8, 0]] * 2
    text = CliRunner().invoke(commands, ["inspect", str(tmp_path / "model"), "--verify"])
    assert text.exit_code == 0, text.output
    assert "The factors of every layer reproduce its attention" in text.output
    (tmp_path / "images").mkdir()
    random = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(random.integers(0, 255, (9, 12), dtype=np.uint8)).save(tmp_path / "images" / f"{number}.png")
    diagnosis = td.diagnose(tmp_path / "model", tmp_path / "images")
    assert diagnosis.trace.prompt.values.tolist() == ["0.png", "1.png", "2.png"]
    assert diagnosis.trace.token_text.shape == (3, 17)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"regime": "other"}, "regime: expected one of baseline, tied"),
        ({"norms": "sandwich"}, "norms: expected one of pre, post, none"),
        ({"patch_size": 3}, "patch_size: expected a divisor of image_size = 8, got 3"),
        ({"patch_size": 0}, "patch_size: expected a divisor of image_size = 8, got 0"),
        ({"num_attention_heads": 3}, "num_attention_heads: expected a divisor of hidden_size = 16, got 3"),
        ({"num_labels": 0}, "num_labels: expected an integer from 1, got 0"),
        ({"id2label": {0: "cat", 1: "dog"}}, "num_labels: expected the 2 classes of id2label, or None, got 10"),
        ({"id2label": {1: "cat", 2: "dog"}}, "id2label: expected a name for every number from 0, got {1: 'cat'"),
        ({"intermediate_size": -1}, "intermediate_size: expected an integer from 0, got -1"),
        ({"drop_path": 1.0}, "drop_path: expected a share from 0 to below 1, got 1.0"),
        ({"skew": -1.0}, "skew: expected a standard deviation from 0"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps: expected"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(choices, message):
    with pytest.raises(ArgumentValueError, match=message):
        made(**choices)


def test_a_start_like_w_is_for_the_regimes_that_make_v_of_it_and_changes_no_other():
    for regime in REGIMES:
        one, other = (
            dict(made(regime=regime, value_start=start).named_parameters()) for start in ("identity", "like_w")
        )
        same = all(torch.equal(one[name], other[name]) for name in one)
        assert same != (regime in ("tied", "convergence", "intermediate", "divergence")), regime


def test_images_of_another_size_are_refused():
    with pytest.raises(
        ArgumentValueError, match=r"pixel_values: expected shape \(batch, 3, 8, 8\), got \(1, 3, 8, 9\)"
    ):
        made()(torch.zeros(1, 3, 8, 9))
