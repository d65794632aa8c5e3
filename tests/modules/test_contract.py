"""The contract of PyTorch's modules: what is in memory is what the stored parameters say, whatever wrote to them.

Every regime, form, network and optimiser; wrappers of linear layers; compilers and transforms of functions; threads.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import pydoc
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from tokendynamics.modules import (
    REGIMES,
    ConstrainedAttention,
    NegativeDiagonal,
    PlacedSpectrum,
    Regime,
    SignedMatrix,
    matrices,
)
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.training._trainer import parameter_groups
from tokendynamics.training.experiment import preset

FORMS = ("congruence", "solve")
DERIVED = [name for name in REGIMES if name != "baseline"]
SIGNED = ("w_only", "convergence", "intermediate", "divergence")
SPECTRA = {"contracting": -1, "expanding": 1}
DIM, HEADS = 16, 4


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def layer_of(regime: str, form: str = "congruence", seed: int = 0, **options: Any) -> ConstrainedAttention:
    generator = torch.Generator().manual_seed(seed)
    return ConstrainedAttention(DIM, HEADS, regime, form=form, generator=generator, **options)


def network_of(kind: str, regime: str, form: str, seed: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small network and a batch for it."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    if kind == "language":
        config = LanguageModelConfig(
            vocab_size=20, max_position_embeddings=12, regime=regime, form=form, remedy="diagonal", **sizes
        )
        ids = torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(1))
        return LanguageModel(config), {"input_ids": ids, "labels": ids}
    config = VisionConfig(image_size=4, patch_size=2, channels=1, num_labels=3, regime=regime, form=form, **sizes)
    return VisionModel(config), {"pixel_values": drawn(3, 1, 4, 4, seed=1), "labels": torch.tensor([0, 1, 2])}


def of_transformers(name: str) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        arguments = TrainingArguments(output_dir="unused", optim=name, learning_rate=1e-2, report_to=[], use_cpu=True)
        try:
            kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
        except (ImportError, ValueError) as error:
            pytest.skip(f"{name} is not installed: {error}")
        return kind(model.parameters(), **options)

    return make


def of_torch(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: kind(model.parameters(), lr=1e-2, **options)


class WritesToData(torch.optim.Optimizer):
    """Gradient descent that writes to ``.data``, of which PyTorch counts nothing."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.write(parameter, 0.05 * parameter.grad)

    def write(self, parameter: nn.Parameter, update: Tensor) -> None:
        parameter.data.sub_(update)


class WritesByNumpy(WritesToData):
    """The same through an array that shares the memory."""

    def write(self, parameter: nn.Parameter, update: Tensor) -> None:
        array = parameter.detach().numpy()
        array -= update.numpy()


FUSED = {
    "AdamW, fused": of_torch(torch.optim.AdamW, fused=True),
    "SGD, fused": of_torch(torch.optim.SGD, momentum=0.9, fused=True),
    "Adagrad, fused": of_torch(torch.optim.Adagrad, fused=True),
    "Adam, foreach": of_torch(torch.optim.Adam, foreach=True),
    ".data": lambda model: WritesToData(model.parameters()),
    "numpy": lambda model: WritesByNumpy(model.parameters()),
}
OPTIMIZERS = FUSED | {optimizername.value: of_transformers(optimizername.value) for optimizername in OptimizerNames}


def trained(network: nn.Module, batch: dict[str, Tensor], make: Callable[[nn.Module], Any], steps: int = 3) -> None:
    network.train()
    optimizer = make(network)
    for _ in range(steps):
        optimizer.zero_grad()
        network(**batch).loss.backward()
        optimizer.step()
    network.eval()


@torch.no_grad()
def logits(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return network.eval()(**batch).logits


def frozen(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in network.named_buffers() if name.endswith("signs")}


def assert_one_network(kind: str, regime: str, form: str, optimizer: str, folder: Path) -> None:
    """In memory = a fresh one of the same state = saved and loaded; what is frozen is frozen; both train alike."""
    network, batch = network_of(kind, regime, form)
    before, signs = logits(network, batch), frozen(network)
    trained(network, batch, OPTIMIZERS[optimizer])
    now = logits(network, batch)
    assert not torch.allclose(before, now, atol=1e-4)
    fresh, _ = network_of(kind, regime, form, seed=1)
    fresh.load_state_dict(network.state_dict())
    network.save_pretrained(folder)
    loaded = type(network).from_pretrained(folder)
    for other in (fresh, loaded):
        assert torch.equal(logits(other, batch), now)
        trained(other, batch, OPTIMIZERS[optimizer])
    trained(network, batch, OPTIMIZERS[optimizer])
    for other in (fresh, loaded):
        assert torch.equal(logits(other, batch), logits(network, batch))
        assert [parameter.requires_grad for parameter in other.parameters()] == [
            parameter.requires_grad for parameter in network.parameters()
        ]
        assert all(torch.equal(signs[name], buffer) for name, buffer in frozen(other).items())


@pytest.mark.every_value_once
@pytest.mark.parametrize("kind", ["language", "vision"])
@pytest.mark.parametrize(
    ("regime", "form", "optimizer"),
    [
        ("divergence", "congruence", "adamw_torch_fused"),
        ("convergence", "solve", "SGD, fused"),
        ("intermediate", "solve", "Adagrad, fused"),
        ("contracting", "congruence", ".data"),
        ("tied", "congruence", "numpy"),
        ("w_only", "solve", "adafactor"),
        ("baseline", "congruence", "adamw_torch_fused"),
    ],
)
def test_a_network_is_what_its_parameters_say(
    kind: str, regime: str, form: str, optimizer: str, tmp_path: Path
) -> None:
    assert_one_network(kind, regime, form, optimizer, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["language", "vision"])
def test_every_network_is_what_its_parameters_say(kind: str, optimizer: str, tmp_path: Path) -> None:
    for regime, form in itertools.product(REGIMES, FORMS):
        assert_one_network(kind, regime, form, optimizer, tmp_path / f"{regime} {form}")


def test_signs_do_not_thaw() -> None:
    for regime in SIGNED:
        layer = layer_of(regime)
        layer.requires_grad_(True)
        assert not any("signs" in name for name, _ in layer.named_parameters())
        assert any("signs" in name for name, _ in layer.named_buffers())
        assert not any(signs.requires_grad for signs in frozen(layer).values())


def built_of(state: dict[str, Tensor], name: str) -> np.ndarray:
    """A signed matrix of a stored layer by its formula, in float64."""
    lower, diagonal, signs, skew = (
        state[f"{name}.{part}"].double().numpy()[0] for part in ("lower", "diagonal", "signs", "skew")
    )
    unit, below = np.tril(lower, -1) + np.eye(len(lower)), np.tril(skew, -1)
    return unit @ np.diag(signs * np.log1p(np.exp(diagonal))) @ unit.T + below - below.T


@pytest.mark.parametrize("regime", ["convergence", "intermediate", "divergence"])
@pytest.mark.parametrize("form", FORMS)
def test_folders_of_version_0_1_0_are_the_same_networks(regime: str, form: str, tmp_path: Path) -> None:
    """There signs were parameters, under the names that they have now; nothing else was stored of them."""
    network, batch = network_of("language", regime, form)
    trained(network, batch, of_torch(torch.optim.AdamW))
    network.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    parts = ["signs", "lower", "diagonal", "skew"]
    attention = "model.layers.0.attention."
    names = {f"{attention}{matrix}.{part}" for matrix in ("query_key", "contraction") for part in parts}
    projections = {f"{attention}{name}" for name in ("query.weight", "projection.weight")}
    remedy = {f"{attention}terms.0.rho", f"{attention}terms.0.log_diagonal"}
    assert {name for name in stored if name.startswith(attention)} <= names | projections | remedy
    assert names | {f"{attention}query.weight"} <= set(stored)
    swapped = stored[f"{attention}contraction.signs"]
    if regime == "intermediate":  # a converted layer may have its signs in another order
        swapped = swapped.roll(1, -1)
    save_file(stored | {f"{attention}contraction.signs": swapped}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = LanguageModel.from_pretrained(tmp_path)
    layer = loaded.model.layers[0].attention
    state = {name.removeprefix(attention): values for name, values in stored.items()} | {"contraction.signs": swapped}
    query, key, value, _ = (None if part is None else part.detach().double().numpy() for part in layer.weights())
    W, B = built_of(state, "query_key"), built_of(state, "contraction")
    of_w = query.T @ W @ query if form == "congruence" else W
    np.testing.assert_allclose(query.T @ key, of_w, atol=2e-6 * np.abs(of_w).max())
    expected = B @ of_w if form == "congruence" else np.linalg.solve(B, of_w)
    np.testing.assert_allclose(value, expected, atol=1e-5 * np.abs(expected).max())
    assert logits(loaded, batch).isfinite().all()


@pytest.mark.parametrize("regime", REGIMES)
def test_copies_and_pickles_are_their_own(regime: str) -> None:
    layer, x = layer_of(regime, bias=True), drawn(2, 5, DIM)
    before = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301
        assert torch.equal(twin(x), before)
        with torch.no_grad():
            twin.query.weight.mul_(2.0)
            twin.value.bias.add_(1.0)
        assert not torch.allclose(twin(x), before)
        assert torch.equal(layer(x), before)


def test_weights_are_built_once_in_a_pass_and_once_within_the_cache_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    forward = SignedMatrix.forward
    monkeypatch.setattr(SignedMatrix, "forward", lambda self: (calls.append(1), forward(self))[1])
    layer, x = layer_of("divergence"), drawn(2, 5, DIM)
    calls.clear()
    layer(x)
    assert len(calls) == 2  # of W and of A
    layer.weights()
    assert len(calls) == 4
    with torch.no_grad(), parametrize.cached():
        first = layer(x)
        assert torch.equal(layer(x), first)
    assert len(calls) == 6


def test_values_of_built_weights_are_refused() -> None:
    layer = layer_of("divergence")
    with pytest.raises(ArgumentValueError, match="weight: expected no value, since it is built from other parameters"):
        layer.built.weight = torch.zeros(2, DIM, DIM)


def test_bfloat16_parameters_and_autocast_build_in_float32() -> None:
    for form in FORMS:
        layer = layer_of("divergence", form)
        with torch.autocast("cpu", torch.bfloat16):
            under = layer.weights()
        for one, other in zip(under[:3], layer.weights()[:3], strict=True):
            assert torch.equal(one, other)
        assert {part.dtype for part in layer.bfloat16().weights()[1:3]} == {torch.float32}


@pytest.mark.long
@pytest.mark.parametrize(
    ("regime", "form", "backend"),
    [
        ("intermediate", "congruence", "eager"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in itertools.product(DERIVED, FORMS, ("eager", "aot_eager"))
        ),
    ],
)
def test_compiled_layers_train_alike(regime: str, form: str, backend: str, unchecked: None) -> None:
    torch._dynamo.reset()
    x = drawn(2, 6, DIM)
    pair = [layer_of(regime, form), layer_of(regime, form)]
    pair[1](x)  # the tests' wrappers of functions are made at the first call, and cannot be compiled
    run = [torch.compile(pair[0], backend=backend, fullgraph=True), pair[1]]
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9) for layer in pair]
    for _ in range(3):
        losses = []
        for layer, optimizer in zip(run, optimizers, strict=True):
            loss = layer(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("kind", ["language", "vision"])
def test_compiled_networks_give_the_same(regime: str, kind: str) -> None:
    for form, backend in itertools.product(FORMS, ("eager", "aot_eager")):
        torch._dynamo.reset()
        network, batch = network_of(kind, regime, form)
        compiled = torch.compile(network, backend=backend)
        torch.testing.assert_close(logits(compiled, batch), logits(network, batch))


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.every_value_once
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("form", FORMS)
def test_exported_layers_give_the_same(regime: str, form: str) -> None:
    layer, x = layer_of(regime, form).eval(), drawn(2, 6, DIM)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("form", FORMS)
def test_transforms_of_functions_see_the_parameters(regime: str, form: str) -> None:
    layer, x = layer_of(regime, form).double(), drawn(3, 4, DIM, dtype=torch.float64)
    parameters = {name: item.detach() for name, item in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,)).square().mean()

    result = torch.func.grad(loss)(parameters, x)
    layer(x).square().mean().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(result[name], parameter.grad)
    entry = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for name in result:
        torch.testing.assert_close(entry[name].mean(0), result[name])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        jacobian = torch.func.jacrev(loss)(parameters, x)
    torch.testing.assert_close(jacobian["query.weight"], result["query.weight"])
    several = {name: torch.stack([item, 1.1 * item]) for name, item in parameters.items()}
    both = torch.func.vmap(loss, in_dims=(0, None))(several, x)
    for row, factor in enumerate((1.0, 1.1)):
        torch.testing.assert_close(both[row], loss({name: factor * item for name, item in parameters.items()}, x))


@pytest.mark.parametrize("sign", ["positive", "half"])
def test_the_gradient_is_that_of_finite_differences_where_the_floor_acts(
    sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = nearly_singular(sign, torch.float64, 1e-3, dim=5)
    below = matrix().detach()
    monkeypatch.setattr(matrices, "MARGIN", 0.05 / torch.finfo(torch.float64).eps)
    assert float((matrix().detach() - below).abs().max()) > 0.02
    leaves = [part.detach().clone().requires_grad_() for part in (matrix.lower, matrix.diagonal, matrix.skew)]

    def built(*leaves: Tensor) -> Tensor:
        named = dict(zip(("lower", "diagonal", "skew"), leaves, strict=True))
        return torch.func.functional_call(matrix, named, ())

    assert torch.autograd.gradcheck(built, leaves)


def nearly_singular(sign: str, dtype: torch.dtype, size: float, dim: int = 12) -> SignedMatrix:
    """A matrix with an eigenvalue of a much smaller size than others.

    Entries of L that add up do that to a definite one, whose pivots are of size 1; to the other, a pivot.
    """
    matrix = SignedMatrix(dim, sign, dtype=dtype)
    with torch.no_grad():
        matrix.lower.copy_((1.0 if sign != "half" else 0.1) * -torch.ones(dim, dim).tril(-1))
        matrix.diagonal.fill_(0.5)
        if sign == "half":
            matrix.diagonal[0, dim // 2] = math.log(size)
        else:
            matrix.lower *= size ** (-1 / dim)
        matrix.skew.copy_(0.1 * drawn(dim, dim, seed=1))
    return matrix


def wrapped(kind: str, layer: ConstrainedAttention) -> None:
    """Put something around the queries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first forms of both norms are deprecated
        {
            "weight_norm": lambda: parametrizations.weight_norm(layer.query),
            "spectral_norm": lambda: parametrizations.spectral_norm(layer.query),
            "orthogonal": lambda: parametrizations.orthogonal(layer.query),
            "old weight_norm": lambda: nn.utils.weight_norm(layer.query),
            "old spectral_norm": lambda: nn.utils.spectral_norm(layer.query),
            "prune": lambda: prune.l1_unstructured(layer.query, "weight", 0.1),
            "prune twice": lambda: [prune.random_unstructured(layer.query, "weight", 0.05) for _ in range(2)],
        }[kind]()


def multiplied(module: nn.Module) -> np.ndarray:
    """The matrix with which a module multiplies, from what it does."""
    with torch.no_grad():
        return module(torch.eye(DIM)).double().numpy().T


def assert_built_from_its_queries(layer: ConstrainedAttention, form: str) -> None:
    """Keys and values are those of the query matrix that the layer applies."""
    query, key, value = (multiplied(part) for part in (layer.query, layer.key, layer.value))
    of_w, of_a = (matrix().detach().double().numpy() for matrix in (layer.query_key, layer.contraction))
    if form == "congruence":
        product = query.T @ of_w @ query
        expected = of_w @ query, of_a @ product
    else:
        product = of_w
        expected = np.linalg.solve(query.T, of_w), np.linalg.solve(of_a, of_w)
    for computed, wanted in zip((key, value), expected, strict=True):
        np.testing.assert_allclose(computed, wanted, atol=2e-4 * np.abs(wanted).max())
    for computed, wanted in zip(layer.weights()[:3], (query, key, value), strict=True):
        np.testing.assert_allclose(computed.detach().numpy(), wanted, atol=1e-5 * np.abs(wanted).max())


NORMS = ("weight_norm", "spectral_norm", "old weight_norm", "old spectral_norm")


@pytest.mark.parametrize("regime", ["divergence", "intermediate"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [*NORMS, "orthogonal", "prune", "prune twice"])
def test_keys_and_values_follow_wrapped_queries(kind: str, form: str, regime: str) -> None:
    layer, x = layer_of(regime, form), drawn(4, 6, DIM)
    wrapped(kind, layer)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-2, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(x) - x.flip(-1)).square().mean().backward()
        assert all(
            parameter.grad is not None for name, parameter in layer.named_parameters() if name.startswith("query.")
        )
        optimizer.step()
    layer.eval()
    assert_built_from_its_queries(layer, form)
    twin = layer_of(regime, form, seed=1)
    wrapped(kind, twin)
    twin.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert torch.equal(twin.eval()(x), layer(x))


@pytest.mark.parametrize("regime", DERIVED)
@pytest.mark.parametrize("kind", ["weight_norm", "old weight_norm", "prune"])
def test_every_regime_runs_with_wrapped_queries(kind: str, regime: str) -> None:
    for form in FORMS:
        layer = layer_of(regime, form)
        before = layer(drawn(2, 5, DIM))
        wrapped(kind, layer)
        if "norm" in kind:
            torch.testing.assert_close(layer(drawn(2, 5, DIM)), before)
        layer(drawn(2, 5, DIM)).sum().backward()


@pytest.mark.parametrize("targets", [["query"], "all-linear"])
@pytest.mark.parametrize(
    ("regime", "form"), [*itertools.product(("convergence", "intermediate"), FORMS), ("expanding", FORMS[0])]
)
def test_adapters_on_the_queries_keep_the_regime_and_merge(regime: str, form: str, targets: Any) -> None:
    network, batch = network_of("language", regime, form)
    adapted = peft.get_peft_model(network, peft.LoraConfig(r=2, target_modules=targets, lora_alpha=4))
    kept = {name: parameter.clone() for name, parameter in adapted.named_parameters() if not parameter.requires_grad}
    before = logits(adapted, batch)
    trained(adapted, batch, of_torch(torch.optim.AdamW, fused=True))
    now = logits(adapted, batch)
    assert not torch.allclose(before, now, atol=1e-4)
    assert all(torch.equal(kept[name], parameter) for name, parameter in adapted.named_parameters() if name in kept)
    layer = adapted.base_model.model.model.layers[0].attention
    if regime in SIGNED:
        signs = inertia_of(layer)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged, batch), now)
    if regime in SIGNED:
        assert signs == inertia_of(merged.model.layers[0].attention) == expected_inertia(regime, 8)


@pytest.mark.parametrize("form", FORMS)
def test_dropout_of_an_adapter_is_not_in_the_keys_and_values(form: str) -> None:
    network, _ = network_of("language", "intermediate", form)
    config = peft.LoraConfig(r=2, target_modules=["query"], lora_dropout=0.5, init_lora_weights=False)
    layer = peft.get_peft_model(network, config).base_model.model.model.layers[0].attention
    expected = layer.eval().weights()
    for computed, wanted in zip(layer.train().weights()[:3], expected[:3], strict=True):
        assert torch.equal(computed, wanted)
    assert all(part.training for part in layer.modules())


@pytest.mark.parametrize("regime", DERIVED)
def test_masks_on_every_parameter_hold_in_training_and_where_states_are_loaded(regime: str) -> None:
    def pruned(seed: int) -> tuple[ConstrainedAttention, list[tuple[nn.Module, str]]]:
        layer = layer_of(regime, seed=seed, terms=[NegativeDiagonal(DIM, HEADS, "diagonal")])
        parts = [(part, name) for part in layer.modules() for name, _ in part.named_parameters(recurse=False)]
        for part, name in parts:
            prune.random_unstructured(part, name, 0.2 if part._parameters[name].numel() > 1 else 0)
        return layer, parts

    (layer, parts), x = pruned(0), drawn(2, 5, DIM)
    trained_layer = pruned(1)[0]
    optimizer = torch.optim.SGD(trained_layer.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        trained_layer(x).square().mean().backward()
        optimizer.step()
    layer.load_state_dict(trained_layer.state_dict())
    masked = layer(x).detach()
    assert torch.equal(masked, trained_layer(x))
    for part, name in parts:
        prune.remove(part, name)
    assert torch.equal(layer(x), masked)


def products_of(layer: ConstrainedAttention) -> tuple[np.ndarray, np.ndarray]:
    """W and A of the weights as they are built, in their own precision, and multiplied in float64."""
    query, key, value = (part.detach().double().numpy() for part in layer.weights()[:3])
    return query.T @ key, query.T @ key @ np.linalg.inv(value)


def signs_of(matrix: np.ndarray) -> tuple[int, int]:
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    return int((values > 0).sum()), int((values < 0).sum())


def inertia_of(layer: ConstrainedAttention) -> list[tuple[int, int]]:
    return [signs_of(matrix) for matrix in products_of(layer)[: 1 if layer.contraction is None else 2]]


def expected_inertia(regime: str, dim: int) -> list[tuple[int, int]]:
    of_a = {"convergence": [(0, dim)], "intermediate": [(dim // 2, dim // 2)], "divergence": [(dim, 0)], "w_only": []}
    return [(dim, 0), *of_a[regime]]


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("form", FORMS)
def test_quantised_networks_are_near_what_they_were(regime: str, form: str) -> None:
    network, batch = network_of("language", regime, form)
    expected = logits(network, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in favour of another package
        quantised = torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)
    assert type(quantised.model.layers[0].attention.query) is not nn.Linear
    result = logits(quantised, batch)
    assert float((result - expected).norm() / expected.norm()) < 0.1
    layer = quantised.model.layers[0].attention
    assert all(part.isfinite().all() for part in layer.circuits())


@pytest.mark.few(2)
@pytest.mark.parametrize("regime", DERIVED)
def test_eight_threads_take_gradients_of_one_layer(regime: str) -> None:
    layer = layer_of(regime).double()
    inputs = [drawn(2, 5, DIM, seed=seed, dtype=torch.float64) for seed in range(8)]
    parameters = list(layer.parameters())

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x).square().sum(), parameters)

    expected = [gradients(x) for x in inputs]
    wrong: list[Any] = []
    together = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        together.wait()
        for _ in range(10):
            try:
                result = gradients(inputs[number])
            except RuntimeError as error:
                wrong.append(error)
                continue
            pairs = zip(result, expected[number], strict=True)
            wrong.extend(number for one, other in pairs if not torch.allclose(one, other, rtol=1e-10, atol=1e-12))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", ["positive", "negative", "half"])
def test_no_eigenvalue_is_lost_to_rounding(sign: str, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    counts = {"positive": (12, 0), "negative": (0, 12), "half": (6, 6)}[sign]
    for size in (1e-3, 1e-2 * eps, 1e-6 * eps):
        matrix = nearly_singular(sign, dtype, size)
        built = matrix().detach().double().numpy()
        values = np.linalg.eigvalsh((built + built.T) / 2)
        assert ((values > 0).sum(), (values < 0).sum()) == counts
        # At least half of the floor of 128 rounding errors: the rest is what the product itself is rounded by.
        assert np.abs(values).min() > 64 * eps * np.linalg.norm(built)


def test_the_floor_leaves_other_matrices_as_they_are() -> None:
    for sign, dim in itertools.product(("positive", "negative", "half"), (1, 4, 64, 512)):
        matrix = SignedMatrix(dim, sign)
        matrix.start(size=0.15, noise=0.02 / dim**0.5, skew=dim**-0.5, generator=torch.Generator().manual_seed(0))
        state = {f"matrix.{name}": entry.detach() for name, entry in matrix.state_dict().items()}
        expected = built_of(state, "matrix")
        np.testing.assert_allclose(matrix().detach().numpy(), expected, atol=1e-6 * np.abs(expected).max())


def test_matrices_near_the_floor_are_taken_and_those_below_it_refused() -> None:
    eps = torch.finfo(torch.float32).eps
    turned = torch.linalg.qr(drawn(24, 24, dtype=torch.float64)).Q
    for many, basis in itertools.product((1, 2, 12), (torch.eye(24, dtype=torch.float64), turned)):
        sizes = torch.ones(24, dtype=torch.float64)
        sizes[:many] = 2.2 * 128 * eps * 24**0.5  # those of many such eigenvalues are not above the floor
        wanted, target = basis * sizes @ basis.T, SignedMatrix(24)
        target.take(wanted)
        state = {f"matrix.{name}": entry.detach() for name, entry in target.state_dict().items()}
        assert (np.abs(built_of(state, "matrix") - wanted.numpy()).max() > 100 * eps) == (many > 2)
        torch.testing.assert_close(target().detach().double(), wanted, rtol=0, atol=4 * eps)
    almost = torch.diag(torch.tensor([1.0, 1e-6]))
    with pytest.raises(ArgumentValueError, match=r"expected eigenvalues of its symmetric part from 3.1e-05, got 1e-06"):
        SignedMatrix(2).take(almost)
    with pytest.raises(ArgumentValueError, match=r"expected eigenvalues of its symmetric part from 3.1e-05, got 1e-06"):
        SignedMatrix(2, "half").take(-almost * torch.tensor([[-1.0], [1.0]]))
    matrix = SignedMatrix(2, dtype=torch.float64)
    matrix.take(almost.double())
    torch.testing.assert_close(matrix().detach(), almost.double(), rtol=1e-9, atol=0)


def real_parts(matrix: Tensor) -> np.ndarray:
    """Re λ of a matrix as it is built, relative to its size."""
    built = matrix.detach().double().numpy()
    return np.linalg.eigvals(built).real / np.abs(built).max()


PLACED = [*SPECTRA, *(Regime(w=w, spectrum=half) for w in ("positive", "half") for half in ("negative", "positive"))]


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.every_value_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("regime", PLACED)
@pytest.mark.parametrize("form", FORMS)
def test_no_training_brings_an_eigenvalue_of_v_over_zero(form: str, regime: Any, dtype: torch.dtype) -> None:
    """What is trained is that real part alone: towards zero, relative to the size of V."""
    layer = ConstrainedAttention(6, 2, regime, form=form, dtype=dtype, generator=torch.Generator().manual_seed(0))
    side = 1 if layer.regime.spectrum == "positive" else -1
    optimizer = torch.optim.Adam(layer.spectrum.parameters(), lr=0.05)
    lowest = []
    for _ in range(80):
        value = layer.weights().value.double()
        share = (side * torch.linalg.eigvals(value).real).min() / torch.linalg.matrix_norm(value)
        lowest.append(float((side * real_parts(value)).min()))
        optimizer.zero_grad()
        torch.where(share > 1e-9, share.clamp(min=1e-9).log(), share).backward()
        optimizer.step()
    assert min(lowest) < 1e-3
    # Here the least eigenvalue is that of the floor; in general the condition of P stands between them.
    assert min(lowest) > 64 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("half", ["positive", "negative"])
def test_no_eigenvalue_of_a_placed_spectrum_is_lost_to_rounding(half: str, dtype: torch.dtype) -> None:
    """Factors whose lowest eigenvalues are far below their rounding errors, or that are nothing but zeros."""
    side = 1 if half == "positive" else -1
    for dim, size, far in itertools.product((1, 4, 16), (1e-2, 1e-4, 1e-6, 1e-13, 0.0), (0.1, 100.0)):
        matrix = PlacedSpectrum(dim, half, dtype=dtype)
        with torch.no_grad():
            for part in (matrix.metric, matrix.matrix):
                part.lower.copy_(-torch.ones(dim, dim).tril(-1) * (size ** (-1 / dim) if size else 0.0))
                part.diagonal.fill_(0.5 if size else -1e4)
            matrix.matrix.skew.copy_(far * drawn(dim, dim, seed=1) * (1.0 if size else 0.0))
        built = matrix()
        assert (side * real_parts(built) > 0).all(), (dim, size, far)
        assert all(part().isfinite().all() for part in (matrix.metric, matrix.matrix))
        gradients = torch.autograd.grad(built.sum(), list(matrix.parameters()))
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_floor_of_a_spectrum_is_exactly_zero_far_from_it() -> None:
    """Folders written before there was one hold the same networks, to the last bit."""
    for half, dim in itertools.product(("positive", "negative"), (1, 4, 64, 512)):
        matrix = PlacedSpectrum(dim, half)
        matrix.start(noise=0.5 / dim**0.5, generator=torch.Generator().manual_seed(0))
        metric, inner = matrix.metric.symmetric_part(), matrix.matrix.symmetric_part(matrix.matrix.signs)
        assert torch.equal(matrix(), (metric @ (inner + matrix.matrix.skew_part()))[0])


def test_the_gradient_of_a_spectrum_is_that_of_finite_differences_where_the_floor_acts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = PlacedSpectrum(5, "negative", dtype=torch.float64)
    matrix.start(noise=0.5, generator=torch.Generator().manual_seed(0))
    before = matrix().detach()
    monkeypatch.setattr(matrices, "MARGIN", 0.05 / torch.finfo(torch.float64).eps)
    assert float((matrix().detach() - before).abs().max()) > 0.02
    names, leaves = zip(*((name, part.detach().clone()) for name, part in matrix.named_parameters()), strict=True)

    def built(*leaves: Tensor) -> Tensor:
        return torch.func.functional_call(matrix, dict(zip(names, leaves, strict=True)), ())

    assert torch.autograd.gradcheck(built, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.slow
@pytest.mark.parametrize("regime", [*SIGNED, *SPECTRA])
@pytest.mark.parametrize("form", FORMS)
def test_signs_of_the_built_weights_hold_over_300_steps_at_the_highest_rate(regime: str, form: str) -> None:
    """As the preset trains, but with its highest rate kept to the end, in float32."""
    experiment = preset("bytes-small")
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageModelConfig(regime=regime, form=form, max_position_embeddings=128, **experiment.model)
    )
    groups, betas = parameter_groups(model, experiment.recipe), experiment.recipe.betas
    optimizer = torch.optim.AdamW(groups, lr=experiment.recipe.learning_rate, betas=betas)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / experiment.recipe.warmup))
    text = torch.frombuffer(bytearray(Path(pydoc.__file__).read_bytes()), dtype=torch.uint8).long()
    generator, losses = torch.Generator().manual_seed(0), []
    for step in range(300):
        starts = torch.randint(len(text) - 128, (16,), generator=generator)
        ids = torch.stack([text[start : start + 128] for start in starts])
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), experiment.recipe.clip)
        optimizer.step()
        warm.step()
        losses.append(loss.item())
        if step % 50 == 49:
            layers = [layer.attention for layer in model.model.layers]
            if regime in SPECTRA:
                assert all((SPECTRA[regime] * real_parts(layer.weights().value) > 0).all() for layer in layers)
            else:
                assert [inertia_of(layer) for layer in layers] == [expected_inertia(regime, 64)] * len(layers)
    assert np.mean(losses[-20:]) < 0.6 * losses[0]
