"""Adapters of PEFT (LoRA and the like) from a folder, put on a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained._language_head import base_of
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.sources._configuration import read_json_object
from tokendynamics.pretrained.sources._settings import check_settings

_CONFIGURATION = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_WRAPPED = "base_model.model."


def check_no_virtual_tokens(network: nn.Module, name: str) -> None:
    """Refuse a network that puts tokens of its own before every prompt, as prompt tuning does.

    Raises:
        CheckpointError: Its states would be those of other tokens than the prompt's.
    """
    chosen: Any = getattr(network, "active_peft_config", None)
    kind = getattr(getattr(chosen, "peft_type", None), "value", "")
    if getattr(chosen, "is_prompt_learning", False) and kind != "PREFIX_TUNING":
        came = f"one with {chosen.num_virtual_tokens} virtual tokens before every prompt ({kind})"
        advice = "pass get_base_model() for the network without them"
        raise CheckpointError(expected(name, "a network whose states are those of a prompt's tokens", came, advice))


def with_adapter(network: Any, folder: Path) -> nn.Module:
    """Return a network with the adapter of a folder on it; the network itself is changed.

    What the adapter holds for a head that the network does not have is left out: it changes no state.

    Args:
        network: A base model, or one with its language head.
        folder: With adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: PEFT is not installed, the folder holds no adapter, or one that was made for another network.
    """
    require("peft", "adapter", "adapters", error=CheckpointError)
    for name in (_CONFIGURATION, _WEIGHTS):
        if not (folder / name).is_file():
            raise CheckpointError(expected("adapter", f"a folder with {name}", f"none in {folder}"))

    def refusal(words: str) -> CheckpointError:
        came = f"one that does not fit ({words})"
        return CheckpointError(expected("adapter", "an adapter made for this network", came, "pass its own base model"))

    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    check_settings(read_json_object(folder / _CONFIGURATION), str(folder / _CONFIGURATION))
    with refusing(refusal), silenced():
        config: Any = PeftConfig.from_pretrained(str(folder))
        # The task changes how PEFT calls the network, and no weight.
        config.task_type, config.inference_mode = None, True
        names = {name for name, _ in network.named_modules()}
        config.modules_to_save = [
            each for each in config.modules_to_save or () if any(f".{name}".endswith(f".{each}") for name in names)
        ] or None
        tensors = load_file(folder / _WEIGHTS)
        renamed = {new: tensor for name, tensor in tensors.items() if (new := _fitting(name, network)) is not None}
        adapted: Any = get_peft_model(network, config)
        result: Any = set_peft_model_state_dict(adapted, renamed)
    own = [name for name in result.missing_keys if config.peft_type.lower() in name.lower()]
    for names, what in ((result.unexpected_keys, "no place for"), (own, "nothing for")):
        if names:
            raise refusal(f"{what} {names[0]}, the first of {len(names)}")
    return adapted.eval()


def _fitting(name: str, network: Any) -> str | None:
    """Return what a tensor of the adapter is called on this network; None for one of a head that it does not have.

    An adapter of a network with a head calls the base model by a name of its own, one of a base model does not.
    """
    inner = name.removeprefix(_WRAPPED)
    prefix, base = base_of(network)
    if inner == name:
        return name
    if prefix:  # the network has a head
        known = {child for child, _ in network.named_children()}
        return name if inner.split(".")[0] in known else f"{_WRAPPED}{prefix}{inner}"
    inner = inner.removeprefix(f"{network.base_model_prefix}.")
    return _WRAPPED + inner if hasattr(base, inner.split(".")[0]) else None
