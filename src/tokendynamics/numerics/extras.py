"""Packages that only some uses need: one place says which extra brings them, and how it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from tokendynamics.numerics.errors import ArgumentValueError, TokenDynamicsError, expected

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
    extra: str,
    argument: str,
    use: str,
    *,
    otherwise: str = "",
    error: type[TokenDynamicsError] = ArgumentValueError,
) -> None:
    """Refuse, in words that name the extra, what needs packages that are not installed.

    Raises:
        error: A package is missing.
    """
    absent = missing(extra)
    if absent:
        advice = install(extra) + (f", or {otherwise}" if otherwise else "")
        raise error(expected(argument, f"the packages for {use}", f"no {' and no '.join(absent)}", advice))
