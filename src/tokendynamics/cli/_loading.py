"""The options that say how a model is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from tokendynamics.cli._options import Folder, half_option
from tokendynamics.numerics.printable import shortened


class DeviceMap(click.ParamType):
    """Either "auto", or the device of each module by name.

    >>> DeviceMap().convert("embed_tokens=cpu,layers=0", None, None)
    {'embed_tokens': 'cpu', 'layers': 0}
    """

    name = "devices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the argument `device_map` of `tokendynamics.load`."""
        if value == "auto":
            return value
        pairs = [part.partition("=") for part in str(value).split(",")]
        if not all(module.strip() and device.strip() for module, _, device in pairs):
            came = shortened(repr(value), 100)
            self.fail(
                f"expected 'auto', or modules and devices such as embed_tokens=cpu,layers=0, got {came}", param, ctx
            )
        if len({module.strip() for module, _, _ in pairs}) < len(pairs):
            self.fail(f"a module is named twice in {shortened(repr(value), 100)}", param, ctx)
        return {module.strip(): _device(device.strip()) for module, _, device in pairs}


def _device(word: str) -> str | int:
    return int(word) if re.fullmatch(r"[0-9]{1,4}", word) else word


_OPTIONS = (
    click.option("--adapter", type=Folder(), help="Folder of an adapter (such as LoRA) to apply."),
    click.option(
        "--stream/--no-stream",
        default=None,
        help="Whether to read each block's weights just before it runs.  [default: where they do not fit into memory]",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
        default="float32",
        show_default=True,
        help="Precision of the forward pass.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Where the forward pass runs, such as cuda:0."),
    click.option(
        "--device-map",
        type=DeviceMap(),
        metavar="auto|MODULE=DEVICE,…",
        help="Use several devices: filled in turn, or as named.",
    ),
    half_option(),
    click.option("--allow-pickle", is_flag=True, help="Also read pickled weights; use it for sources that you trust."),
    click.option(
        "--cache",
        type=Folder(),
        help="Folder for converted GGUF files.  [default: TOKENDYNAMICS_CACHE, or the user's cache]",
    ),
)
LOADING = ("adapter", "stream", "dtype", "device", "device_map", "half", "allow_pickle", "cache")
"""The options of `loading_options`, named as the arguments of `tokendynamics.load`."""


def loading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `LOADING` to a command."""
    return loading_options_without()(command)


def loading_options_without(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of `LOADING` except those that the command defines itself."""

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, option in reversed(list(zip(LOADING, _OPTIONS, strict=True))):
            command = command if name in names else option(command)
        return command

    return added
