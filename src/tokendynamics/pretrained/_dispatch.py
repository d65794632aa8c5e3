"""Where a network runs: one device, or its parts on several, as accelerate dispatches them (extra `devices`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_device
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained.other_libraries import refusing, silenced

_DISK = "stream=True reads each weight once, just before it is needed; accelerate would write all of them again"


def as_device_map(given: Any) -> dict[str, torch.device] | None:
    """Return the devices of a mapping by the names of modules, None for "auto".

    Raises:
        ArgumentTypeError, ArgumentValueError: Neither of the two, a device that is not there, the disk, or accelerate
            is not installed.
    """
    wanted = "'auto' or a mapping of modules to devices"
    if isinstance(given, str) and given != "auto":
        raise ArgumentValueError("device_map", wanted, repr(given), "name one device with device=")
    if not isinstance(given, str | Mapping):
        raise ArgumentTypeError("device_map", wanted, shown(given))
    require("devices", "device_map", "networks on several devices", otherwise="leave it out")
    if isinstance(given, str):
        return None
    devices: dict[str, torch.device] = {}
    for module, device in given.items():
        if not isinstance(module, str):
            raise ArgumentTypeError("device_map", "names of modules", shown(module))
        if device == "disk":
            raise ArgumentValueError("device_map", "devices", f"the disk for {module}", _DISK)
        # transformers and accelerate write the number of an accelerator for the accelerator.
        numbered = isinstance(device, int) and not isinstance(device, bool)
        devices[module] = as_device(f"cuda:{device}" if numbered else device, f"device_map of {module!r}")
    return devices


@dataclass(frozen=True)
class Placement:
    """Which device each part of a network is on.

    Attributes:
        devices: By the names of modules, none of which holds another, and which hold every tensor together.
    """

    devices: Mapping[str, torch.device]

    def of(self, name: str) -> torch.device:
        """Return the device of one tensor or module, by its name."""
        return next(device for module, device in self.devices.items() if _holds(module, name))

    def dispatch(self, network: nn.Module) -> nn.Module:
        """Return the network, whose tensors are where they belong, with states following them from device to device.

        Parts on the CPU beside an accelerator are computed by the accelerator: accelerate hands it their weights, one
        module after the other.
        """
        from accelerate import dispatch_model

        names: dict[str, Any] = {module: str(device) for module, device in self.devices.items()}
        first = next((name for name in names.values() if name != "cpu"), "cpu")
        skipped = getattr(network, "_skip_keys_device_placement", None)

        def refusal(words: str) -> ArgumentValueError:
            return ArgumentValueError("device_map", "a mapping that accelerate takes", words)

        with refusing(refusal), silenced():
            options: dict[str, Any] = {"main_device": first, "skip_keys": skipped, "force_hooks": True}
            return dispatch_model(network, names, **options)


def placement_of(
    network: nn.Module, chosen: Mapping[str, torch.device] | None, blocks: Iterable[str], dtype: torch.dtype
) -> Placement:
    """Return where the parts of an empty network go.

    Args:
        network: On torch's meta device.
        chosen: From `as_device_map`; None fills the accelerators in turn, then the CPU, and splits no block.
        blocks: Names of its blocks.
        dtype: Number format of the forward pass.

    Raises:
        ArgumentValueError: A name that the network does not have, modules inside others, a tensor that none holds; or
            not enough room.
    """
    if chosen is None:
        from accelerate import infer_auto_device_map

        def refusal(words: str) -> ArgumentValueError:
            return ArgumentValueError("device_map", "devices with room for the network", words)

        whole = sorted({type(network.get_submodule(name)).__name__ for name in blocks})
        with refusing(refusal), silenced():
            inferred = infer_auto_device_map(network, no_split_module_classes=whole, dtype=dtype)
        if "disk" in inferred.values():
            raise ArgumentValueError("device_map", "devices with room for the network", "too little", _DISK)
        chosen = as_device_map(inferred)
    placement = Placement(chosen or {})
    modules, known = list(placement.devices), dict(network.named_modules())
    strange = [module for module in modules if module not in known]
    if strange:
        children = ", ".join(name for name, _ in network.named_children())
        wanted = f"names of modules of the {type(network).__name__}, which has {children}"
        raise ArgumentValueError("device_map", wanted, strange[0])
    nested = [(one, other) for one in modules for other in modules if one != other and _holds(one, other)]
    if nested:
        came = f"{nested[0][1]!r} in {nested[0][0]!r}"
        raise ArgumentValueError("device_map", "modules of which none holds another", came)
    tensors = [
        name for named_tensors in (network.named_parameters(), network.named_buffers()) for name, _ in named_tensors
    ]
    left = [name for name in tensors if not any(_holds(module, name) for module in modules)]
    if left:
        advice = f"give {left[0].rpartition('.')[0] or left[0]} a device"
        raise ArgumentValueError("device_map", "a device for every module", f"none for {left[0]}", advice)
    return placement


def _holds(module: str, name: str) -> bool:
    return module in ("", name) or name.startswith(f"{module}.")


def without_hooks(network: nn.Module) -> nn.Module:
    """Take accelerate's hooks off a copy, which would move its states to where the original's weights are."""
    if any(hasattr(module, "_hf_hook") for module in network.modules()):
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(network, recurse=True)
    return network
