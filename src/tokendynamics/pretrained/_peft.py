"""Adapters of PEFT (LoRA and the like) from a folder, put on a network without its output head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from tokendynamics.numerics._errors import CheckpointError, expected
from tokendynamics.numerics._extras import require
from tokendynamics.pretrained._other_libraries import refusing, silenced

_WEIGHTS = "adapter_model.safetensors"
_WRAPPED = "base_model.model."


def with_adapter(network: Any, folder: Path) -> nn.Module:
    """Return a network with the adapter of a folder on it; the network itself is changed.

    Args:
        network: A base model.
        folder: With adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: PEFT is not installed, the folder holds no adapter, or one that was made for another network.
    """
    require("peft", "adapter", "adapters", error=CheckpointError)
    for name in ("adapter_config.json", _WEIGHTS):
        if not (folder / name).is_file():
            raise CheckpointError(expected("adapter", f"a folder with {name}", f"none in {folder}"))

    def refusal(words: str) -> CheckpointError:
        came = f"one that does not fit ({words})"
        return CheckpointError(expected("adapter", "an adapter made for this network", came, "pass its own base model"))

    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    with refusing(refusal), silenced():
        config: Any = PeftConfig.from_pretrained(str(folder))
        # What the head was trained for does not matter below it.
        config.task_type, config.inference_mode, config.modules_to_save = None, True, None
        adapted: Any = get_peft_model(network, config)
        tensors = load_file(folder / _WEIGHTS)
        renamed = {_below_the_head(name, network): tensor for name, tensor in tensors.items()}
        result: Any = set_peft_model_state_dict(adapted, renamed)
    own = [name for name in result.missing_keys if config.peft_type.lower() in name.lower()]
    for names, what in ((result.unexpected_keys, "no place for"), (own, "nothing for")):
        if names:
            raise refusal(f"{what} {names[0]}, the first of {len(names)}")
    return adapted.eval()


def _below_the_head(name: str, network: Any) -> str:
    """Return a tensor's name in the base model: a network with a head holds it under a name of its own."""
    prefix = f"{_WRAPPED}{network.base_model_prefix}."
    return _WRAPPED + name.removeprefix(prefix) if name.startswith(prefix) else name
