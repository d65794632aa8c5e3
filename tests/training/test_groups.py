"""Every trainable parameter is in one group, at the rate and decay that its kind has, and schedules keep the ratios."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tokendynamics.modules import REGIMES
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.training import Multipliers, Recipe
from tokendynamics.training._trainer import RunTrainer, parameter_groups, trainer_arguments
from tokendynamics.training.networks import network_of, task_of
from training.runs import small

RECIPE = Recipe(
    steps=9,
    batch=1,
    learning_rate=0.5,
    weight_decay=0.1,
    multipliers=Multipliers(lower=3.0, skew=5.0, pivots=7.0, remedy=11.0),
)
SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def wanted(name: str, shape: torch.Size, regime: str) -> tuple[float, float]:
    """Rate and decay of a parameter by its name alone."""
    last = name.rpartition(".")[2]
    special = {"lower": 3.0, "skew": 5.0, "diagonal": 7.0, "rho": 11.0, "log_diagonal": 11.0}
    if last in special:
        return special[last] * 0.5, 0.0
    if regime == "tied" and name.endswith(("query_key.weight", "contraction.weight")):
        return 5.0 * 0.5, 0.0
    if last in ("bias", "table", "class_token") or "norm" in name:
        return 0.5, 0.0
    assert len(shape) >= 2
    return 0.5, 0.1


def networks() -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for regime in REGIMES:
        for form, scope in (("congruence", "sum"), ("solve", "sum"), ("congruence", "head")):
            if scope == "head" and REGIMES[regime].w in (None, "free"):
                continue
            by_name[f"{regime}, {form}, {scope}"] = {"regime": regime, "form": form, "scope": scope}
    for positions in ("learned", "rotary", "decoupled"):
        by_name[positions] = {"positions": positions, "regime": "divergence"}
    for remedy in ("identity", "diagonal"):
        by_name[f"remedy {remedy}"] = {"remedy": remedy, "regime": "intermediate", "norms": "post"}
    by_name["clusters"] = {"vocab_size": 30, "cutoffs": [10, 20]}
    by_name["tied tables"] = {"tie_word_embeddings": True, "output": "free"}
    return by_name


def assert_grouped(model: torch.nn.Module, regime: str) -> None:
    groups = parameter_groups(model, RECIPE)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    trainable = {name: entry for name, entry in model.named_parameters() if entry.requires_grad}
    assert sorted(grouped) == sorted(map(id, trainable.values()))
    assert not any(name.endswith("signs") for name in trainable)
    of = {id(parameter): (group["lr"], group["weight_decay"]) for group in groups for parameter in group["params"]}
    for name, parameter in trainable.items():
        assert of[id(parameter)] == wanted(name, parameter.shape, regime), name
    assert groups[0]["name"] == "decaying"  # whose rate is logged
    assert groups[0]["lr"] == RECIPE.learning_rate


@pytest.mark.parametrize("name", networks())
def test_every_parameter_of_a_decoder_is_in_one_group_and_gets_a_gradient(name: str) -> None:
    choices = networks()[name]
    model = LanguageModel(LanguageModelConfig(**{"vocab_size": 16, **SIZES, **choices}))
    assert_grouped(model, choices.get("regime", "baseline"))
    model(input_ids=torch.arange(12)[None], labels=torch.arange(12)[None]).loss.backward()
    # Processes that train together wait for every gradient.
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("regime", ["baseline", "convergence", "expanding"])
def test_every_parameter_of_a_vision_network_is_in_one_group_and_gets_a_gradient(regime: str) -> None:
    choices = {"regime": regime, "bias": True, "output": "free"}
    model = VisionModel(VisionConfig(**{**SIZES, "image_size": 4, "patch_size": 2, "num_labels": 3, **choices}))
    assert_grouped(model, regime)
    model(pixel_values=torch.rand(2, 3, 4, 4), labels=torch.tensor([0, 2])).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


SCHEDULES = {
    "constant": ({"schedule": "constant"}, lambda share: 1.0),
    "linear": ({"schedule": "linear"}, lambda share: 1 - share),
    "cosine": ({"schedule": "cosine"}, lambda share: (1 + math.cos(math.pi * share)) / 2),
    "cosine with a floor": (
        {"schedule": "cosine", "lowest": 0.2},
        lambda share: 0.2 + 0.8 * (1 + math.cos(math.pi * share)) / 2,
    ),
}


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_keeps_the_ratios_of_the_groups_and_is_its_formula(name: str, warmup: int, tmp_path: Path) -> None:
    changes, after_warmup = SCHEDULES[name]
    steps, rate = 10, 2e-3
    recipe = {"steps": steps, "warmup": warmup, "learning_rate": rate, "lowest": 0.0, **changes}
    experiment = small(tmp_path, recipe=recipe, model={"regime": "divergence", "remedy": "identity"})
    task = task_of(experiment, 20)
    arguments = trainer_arguments(experiment.recipe, tmp_path / "checkpoints", 0, [], {"use_cpu": True})
    trainer = RunTrainer(network_of(experiment, task), task, experiment.recipe, arguments)
    optimizer = trainer.create_optimizer()
    schedule = trainer.create_scheduler(num_training_steps=steps)
    multipliers = {"decaying": 1.0, "other": 1.0, "lower": 10.0, "skew": 2.5, "pivots": 7.0, "remedy": 10.0}
    assert {group["name"] for group in optimizer.param_groups} == multipliers.keys()
    for step in range(steps):
        share = step / warmup if step < warmup else after_warmup((step - warmup) / (steps - warmup))
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(rate * share * multipliers[group["name"]], rel=1e-12, abs=1e-18)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(("optimizer", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_optimiser_has_the_recipe_s_betas(optimizer: str, kind: type, tmp_path: Path) -> None:
    experiment = small(tmp_path, recipe={"optimizer": optimizer, "betas": [0.8, 0.97]})
    task = task_of(experiment, 20)
    arguments = trainer_arguments(experiment.recipe, tmp_path / "checkpoints", 0, [], {"use_cpu": True})
    made = RunTrainer(network_of(experiment, task), task, experiment.recipe, arguments).create_optimizer()
    assert type(made) is kind
    assert all(group["betas"] == (0.8, 0.97) for group in made.param_groups)
