"""Which versions make the numbers: those of others are not the same to the last bit, and their workers are refused."""

from __future__ import annotations

from collections.abc import Mapping

from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.numerics.errors import expected
from tokendynamics.provenance.manifest import versions

_NUMERICAL = ("tokendynamics", "torch", "numpy", "scipy", "numba")


class WorkerVersionError(TokenDynamicsError, RuntimeError):
    """A worker has other versions than the client; the message names the worker and both versions."""


def own_versions() -> dict[str, str]:
    """Return the versions of what makes the numbers, in this process.

    >>> "torch" in own_versions()
    True
    """
    found = versions(*_NUMERICAL[1:])
    return {name: found[name] for name in _NUMERICAL if name in found}


def check_versions(wanted: Mapping[str, str], came: Mapping[str, str] | None = None, worker: str = "") -> None:
    """Refuse other versions than those of the client.

    Args:
        wanted: The client's.
        came: The worker's; None for those of this process.
        worker: What the worker is called; empty for this one.

    Raises:
        WorkerVersionError: They differ.
    """
    found = own_versions() if came is None else came
    differing = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if differing:
        ours, theirs = (
            ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in differing)
            for versions in (wanted, found)
        )
        advice = "install the same versions on every worker: results are then the same to the last bit"
        raise WorkerVersionError(expected("workers", ours, f"{theirs} on the worker {worker or _name()}", advice))


def _name() -> str:
    from distributed import get_worker

    try:
        return get_worker().address
    except ValueError:
        return "in this process"
