"""What is imported only when it is needed: packages of extras, and the public names of a package by its stub."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import lazy_loader

from tokendynamics.numerics.errors import ArgumentValueError, TokenDynamicsError

EXTRAS = {
    "animations": ("imageio_ffmpeg",),
    "bench": ("torchdiffeq", "torchode", "diffrax", "jax"),
    "devices": ("accelerate",),
    "fast": ("numba",),
    "gguf": ("gguf", "accelerate"),
    "peft": ("peft",),
    "netcdf": ("h5netcdf", "h5py"),
    "sentencepiece": ("sentencepiece",),
    "sweeps": ("distributed", "cryptography"),
    "training": ("accelerate", "datasets", "kornia", "sklearn", "tensorboard"),
}
"""The modules of each optional dependency of the project."""


def missing(extra: str) -> tuple[str, ...]:
    """Return the modules of an extra that are not installed."""
    return tuple(module for module in EXTRAS[extra] if find_spec(module) is None)


def install(extra: str) -> str:
    """Return the command that brings an extra.

    >>> install("netcdf")
    'pip install "tokendynamics[netcdf]"'
    """
    return f'pip install "tokendynamics[{extra}]"'


def require(
    extra: str, argument: str, use: str, *, otherwise: str = "", error: type[TokenDynamicsError] = ArgumentValueError
) -> None:
    """Refuse, in words that name the extra, what needs packages that are not installed.

    Raises:
        error: A package is missing.
    """
    absent = missing(extra)
    if absent:
        advice = install(extra) + (f", or {otherwise}" if otherwise else "")
        raise error(argument, f"the packages for {use}", f"no {' and no '.join(absent)}", advice)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package; an unknown name is refused with the known ones.

    Args:
        package: The `__name__` of the package.
        file: Its `__file__`; the stub `__init__.pyi` is next to it.
    """
    attribute, _, names = lazy_loader.attach_stub(package, file)

    def known_attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        return attribute(name)

    return known_attribute, lambda: names, names
