"""The folder that a design fills: begun once, continued after any stop by the same design, versions and engine."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentValueError, StorageError, TokenDynamicsError
from tokendynamics.provenance.manifest import manifest, versions, write_json
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole import storage_errors, whole_file

_NUMERICAL = ("tokendynamics", "torch", "numpy", "scipy", "numba")
_NAMED = 3
"""Differences that a message names."""


@contextmanager
def filling(
    place: Path,
    *,
    resume: bool,
    progress: bool | Progress,
    check_new: Callable[[], None],
    check_same: Callable[[], None],
    kept: str,
) -> Iterator[tuple[bool, Progress]]:
    """Give whether there is a folder to continue with, and where to report progress.

    Args:
        place: The folder.
        resume: Whether a folder that is there is continued; without it, it is refused.
        progress: True for a progress bar, or a function; see `Progress`.
        check_new: Refuses a design that cannot be run, before a folder is begun.
        check_same: Refuses a folder of another design.
        kept: What of an interrupted run stays: "tasks" or "runs".

    Raises:
        ArgumentValueError: A folder is in the way, or what the checks refuse.
        StorageError: The disk is full, or nothing can be written there.
    """
    recover(place)
    there = place.exists() and (not place.is_dir() or any(place.iterdir()))
    if there and not resume:
        raise _in_the_way(str(place))
    (check_same if there else check_new)()
    try:
        with storage_errors(place), reporting(progress) as report:
            place.parent.mkdir(parents=True, exist_ok=True)
            yield there, report
    except StorageError as error:
        is_begun = place.is_dir() and any(place.iterdir())
        what = f"finished {kept} are kept: continue with --resume" if is_begun else "nothing was written: start again"
        raise StorageError(f"{error}; {what}") from error
    except OSError as error:
        if error.errno == errno.ENOTEMPTY and not there:
            raise _in_the_way(f"{place}, which another run began at the same time") from error
        raise


def _in_the_way(came: str) -> ArgumentValueError:
    advice = "continue it with --resume (resume=True), or choose another one"
    return ArgumentValueError("store", "a name where nothing is", came, advice)


@contextmanager
def recorded(
    place: Path, command: str, parameters: dict[str, Any], *, seed: int | None, started: datetime | None = None
) -> Iterator[dict[str, Any]]:
    """Add one more run to the manifest of a folder, whether it comes to the end or is stopped.

    Args:
        place: The folder; its manifest alone holds times.
        command: What the user called.
        parameters: What the numbers depend on.
        seed: Of the design, where it has one.
        started: When the run began, timezone-aware; None for now.

    Yields:
        What to say of this run beyond its times and hardware; to be filled in.
    """
    started, run = started or datetime.now(UTC), {}
    try:
        yield run
    finally:
        record = manifest(command, parameters, seed=seed, started=started, threads=1)
        run |= {
            "started": record.pop("started"),
            "duration_seconds": (datetime.now(UTC) - started).total_seconds(),
            "hardware": record.pop("hardware"),
        }
        del record["duration_seconds"]
        try:
            runs = read_json(place / MANIFEST, "store")["runs"]
        except (ValueError, KeyError, TypeError):
            runs = []
        with whole_file(place / MANIFEST) as made:
            write_json(made, record | {"runs": [*(runs if isinstance(runs, list) else []), run]})


def is_recorded(place: Path) -> bool:
    """Tell whether a folder has a manifest that can be read: a kill may come between its last task and the manifest."""
    try:
        return isinstance(read_json(place / MANIFEST, "store"), dict)
    except ArgumentValueError:
        return False


class WorkerVersionError(TokenDynamicsError, RuntimeError):
    """A worker has other versions than the client; the message names the worker and both versions."""


def own_versions() -> dict[str, str]:
    """Return the versions of what makes the numbers, in this process: results of others differ in the last bits.

    >>> "torch" in own_versions()
    True
    """
    installed = versions(*_NUMERICAL[1:])
    return {name: installed[name] for name in _NUMERICAL if name in installed}


def check_versions(wanted: Mapping[str, str], came: Mapping[str, str] | None = None, worker: str = "") -> None:
    """Refuse other versions than those of the client.

    Args:
        wanted: The client's.
        came: The worker's; None for those of this process.
        worker: What the worker is called; empty for this one.

    Raises:
        WorkerVersionError: They differ.
    """
    installed = own_versions() if came is None else came
    differing = [name for name in {**wanted, **installed} if installed.get(name) != wanted.get(name)]
    if differing:
        client_has, worker_has = (
            ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in differing)
            for versions in (wanted, installed)
        )
        where = f"on the worker {worker or _this_worker()}"
        advice = "install the same versions on every worker: results are then the same to the last bit"
        raise WorkerVersionError("workers", client_has, f"{worker_has} {where}", advice)


def _this_worker() -> str:
    from distributed import get_worker

    try:
        return get_worker().address
    except ValueError:
        return "in this process"


def differences(stored: Any, given: Any) -> list[str]:
    """Name the keys at which nested tables differ, with both values; tuples count as the lists that JSON makes of them.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}, "d": 4})
    ['a.b is 1 in the store and 3 here', 'd is not in the store and 4 here']
    """
    tables = _flat(stored), _flat(json.loads(json.dumps(given)))
    texts = [{key: json.dumps(value, ensure_ascii=False)[:60] for key, value in table.items()} for table in tables]
    return [
        f"{key} is {texts[0].get(key, 'not')} in the store and {texts[1].get(key, 'not')} here"
        for key in sorted(tables[0].keys() | tables[1].keys())
        if tables[0].get(key, _NOTHING) != tables[1].get(key, _NOTHING)
    ]


_NOTHING = object()


def first_few(differing: list[str]) -> str:
    """Return some differences as a clause, and how many there are beyond."""
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    return "; ".join(differing[:_NAMED]) + more


def _flat(value: Any, above: str = "") -> dict[str, Any]:
    """Return nested tables, and lists that hold tables, as one table of dotted keys."""
    entries: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        entries = enumerate(value)
    else:
        return {above: value}
    flat: dict[str, Any] = {}
    for key, entry in entries:
        flat |= _flat(entry, f"{above}.{key}" if above else str(key))
    return flat
