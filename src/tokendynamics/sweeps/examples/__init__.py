"""Sweeps that run as they are, as `tokendynamics sweep --example NAME` prints them."""

from __future__ import annotations

from importlib.resources import files

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification.section import did_you_mean

__all__ = ["example_names", "example_text"]


def __dir__() -> list[str]:
    return __all__


def example_names() -> list[str]:
    """Return the names of the examples.

    >>> example_names()
    ['outcomes', 'random', 'temperature']
    """
    return sorted(
        entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml")
    )


@typed_arguments
def example_text(name: str) -> str:
    """Return the text of an example.

    Raises:
        ArgumentValueError: No example of that name; the nearest one is printed.

    >>> example_text("outcomes").splitlines()[0][:11]
    '# Free flow'
    """
    if name not in example_names():
        raise ArgumentValueError(f"example: unknown name {shown(name)}; {did_you_mean(name[:100], example_names())}")
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
