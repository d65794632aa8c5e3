"""The options that say how a model is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import click

from tokendynamics.cli._options import Half, OutFolder
from tokendynamics.cli._signature import Option
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
        named = {module.strip(): device.strip() for module, _, device in pairs}
        return {module: int(word) if re.fullmatch(r"[0-9]{1,4}", word) else word for module, word in named.items()}


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How each of several models is read, named as the arguments of `tokendynamics.load`.

    Attributes:
        stream: Whether to read each block's weights just before it runs.  [default: where they do not fit into memory]
        device: Where the forward pass runs, such as cuda:0.
        device_map: Use several devices: filled in turn, or as named.
        half: Which half of a network with two, such as an encoder-decoder.
        allow_pickle: Also read pickled weights; use it for sources that you trust.
        cache: Folder for converted GGUF files.  [default: TOKENDYNAMICS_CACHE, or the user's cache]
    """

    stream: bool | None = None
    device: str = "cpu"
    device_map: Annotated[Any, Option(type=DeviceMap(), metavar="auto|MODULE=DEVICE,…")] = None
    half: Half | None = None
    allow_pickle: bool = False
    cache: OutFolder | None = None


@dataclass(frozen=True, kw_only=True)
class Loading(ReadingOptions):
    """How one model is loaded: further arguments.

    Attributes:
        adapter: Folder of an adapter (such as LoRA) to apply.
        dtype: Precision of the forward pass.
    """

    adapter: OutFolder | None = None
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
