"""Files that run as they are, as `tokendynamics simulate`, `sweep` and `study` print them with `--example NAME`."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal, TypeAlias, get_args

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification.section import did_you_mean

__all__ = ["example_names", "example_text"]

_Kind: TypeAlias = Literal["simulation", "sweep", "study"]


def __dir__() -> list[str]:
    return __all__


@typed_arguments
def example_names(kind: _Kind = "simulation") -> list[str]:
    """Return the names of the examples.

    Args:
        kind: What the files describe.

    Raises:
        ArgumentValueError: Another kind.

    >>> example_names("sweep")
    ['outcomes', 'random', 'temperature']
    """
    if kind not in get_args(_Kind):
        raise ArgumentValueError("kind", "'simulation', 'sweep' or 'study'", shown(kind))
    names = (entry.name for entry in files(__name__).joinpath(kind).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


@typed_arguments
def example_text(name: str, kind: _Kind | None = None) -> str:
    """Return the text of an example.

    Args:
        name: One of `example_names`; no two kinds have the same.
        kind: What the file describes; None for any.

    Raises:
        ArgumentValueError: No example of that name, and the nearest one is printed; or another kind.

    >>> example_text("minimal").splitlines()[0]
    '# The least a file must say: attention, a space, a start and a horizon. Everything else has a default.'
    """
    kinds = {known: one for one in (get_args(_Kind) if kind is None else (kind,)) for known in example_names(one)}
    if name not in kinds:
        raise ArgumentValueError(f"example: unknown name {shown(name)}; {did_you_mean(name[:100], kinds)}")
    return files(__name__).joinpath(kinds[name], f"{name}.toml").read_text(encoding="utf-8")
