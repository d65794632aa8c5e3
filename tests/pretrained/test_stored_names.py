"""Names in files, by transformers' own rules: no public interface, so these tests hold what is used of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrained.families import network_of
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained import load
from tokendynamics.pretrained._stored_tensors import stored_names
from tokendynamics.pretrained.network import empty_network
from tokendynamics.pretrained.other_libraries import silenced


def _saved(family: str, folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    network, _ = network_of(family)
    with silenced():
        network.save_pretrained(folder)
    return network, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", ["vit", "dinov2", "mixtral", "deepseek_v3", "bert", "llama"])
def test_every_tensor_of_a_saved_network_is_found_and_read_back_as_it_was(family: str, tmp_path: Path) -> None:
    network, stored = _saved(family, tmp_path)
    result = stored_names(empty_network(network.config), stored, {})
    for name, parameter in network.state_dict().items():
        value = result[name].read(lambda key: stored[key])
        assert torch.equal(value, parameter), name


def test_the_files_of_some_families_do_not_name_their_modules(tmp_path: Path) -> None:
    # If a version of transformers ends this, the rules are no longer tested here.
    network, stored = _saved("mixtral", tmp_path)
    assert set(stored) != set(network.state_dict())


def test_names_with_the_prefix_of_a_headed_network_and_older_endings_are_read(tmp_path: Path) -> None:
    network, stored = _saved("bert", tmp_path)
    older = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in stored.items()
    }
    save_file(older | {"cls.predictions.bias": torch.zeros(61)}, tmp_path / "model.safetensors")
    read = load(tmp_path).model
    for name, parameter in read.named_parameters():
        assert torch.equal(parameter, network.get_parameter(name)), name


def test_a_tied_tensor_that_is_stored_once_is_read_under_both_its_names(tmp_path: Path) -> None:
    network, _ = network_of("t5")
    with silenced():
        network.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path, half="encoder").model.embed_tokens.weight, network.shared.weight)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    _, stored = _saved("mixtral", tmp_path)
    gone = next(name for name in stored if "experts" in name)
    save_file({name: value for name, value in stored.items() if name != gone}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"layer 1: tensor layers\.0\..*experts.* pieces of one tensor that fit together"
    ):
        _ = load(tmp_path).model
