"""The message of an interrupted command: what is on the disk."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tokendynamics.cli._terminal import echo
from tokendynamics.provenance.owned import MANIFEST, written_in
from tokendynamics.words import listing

NOTHING = "nothing was written"
NO_RESULTS = "no results were written"
"""Where only a cache was filled."""

PAGE = "report.html"


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C, or a signal of `ending_signals`, anywhere in the block into one line and the exit code of it.

    Args:
        kept: Returns a sentence about what is on the disk and how to continue.
    """
    try:
        yield
    except KeyboardInterrupt:
        with undisturbed():
            echo(f"interrupted: {kept()}", err=True)
        raise click.exceptions.Exit(interrupted_code()) from None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore a second signal in the block, where Python lets the handling of signals be changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What a batch system or a closed terminal sends: without a handler no cleaning up, and no word of what is kept."""

_received: list[int] = []
"""The signals that this process was sent: engines end as `Interrupted`, which does not carry the number on."""


@contextmanager
def ending_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does; one that is ignored, as under nohup, stays ignored."""
    former = {number: signal.getsignal(number) for number in _ENDING}
    default = [number for number, handler in former.items() if handler is signal.SIG_DFL]
    for number in default:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: Any) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def interrupted_code() -> int:
    """Return the exit code after an interruption: 128 and the number of the first signal, 130 for Ctrl-C."""
    return 128 + next(iter(_received), signal.SIGINT)


class Kept:
    """Says what a command has written, compared with what was there when it named its folder and its models."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._former: Any = None
        self._caches: dict[Path, tuple[str, dict[Path, Any]]] = {}

    def results(self, folder: Path | None) -> None:
        """Name the folder of the results, before it is written to; None for none."""
        self._folder = folder
        self._former = None if folder is None else stamp(folder / MANIFEST)

    def models(self, names: Sequence[str]) -> None:
        """Name the models, before they are loaded: loading may fill a cache."""
        from tokendynamics.pretrained.sources.finding import hub_folder
        from tokendynamics.pretrained.sources.gguf import cache_root

        caches = {cache_root(None) / "gguf": "the converted weights"}
        for folder in map(hub_folder, names):
            if folder is not None:
                caches[folder / "blobs"] = "the downloaded files"
        self._caches = {folder: (content, _entries(folder)) for folder, content in caches.items()}

    def __call__(self) -> str:
        """Return the sentence."""
        cached = [
            f"{path} keeps {content}"
            for folder, (content, former) in self._caches.items()
            for path in (_new(folder, former) if content == "the converted weights" else [folder.parent])
            if _new(folder, former)
        ]
        results = self._results()
        if not results and not cached:
            return NOTHING
        return "; ".join([results or NO_RESULTS, *cached])

    def _results(self) -> str:
        if self._folder is None or stamp(self._folder / MANIFEST) == self._former:
            return ""
        written = written_in(self._folder)
        if written is None:
            return ""
        if PAGE in written.entries:
            return f"the results in {self._folder} are complete"
        return (
            f"{self._folder} holds {listing(sorted(written.entries))}, but not {PAGE}; the same command replaces them"
        )


def says_what_is_kept(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a `Kept` as the argument `kept` of a command, and print what it says when the command is interrupted."""

    @wraps(command)
    def interruptible_command(**options: Any) -> Any:
        kept = Kept()
        with interruptible(kept):
            return command(**options, kept=kept)

    whole = inspect.signature(command, eval_str=True)
    typed = [parameter for name, parameter in whole.parameters.items() if name != "kept"]
    interruptible_command.__signature__ = whole.replace(parameters=typed)  # type: ignore[attr-defined]
    return interruptible_command


def stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None without a file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


def _entries(folder: Path) -> dict[Path, Any]:
    """Return the complete entries of a cache with what changes when they are written anew."""
    try:
        return {path: stamp(path) for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError:
        return {}


def _new(folder: Path, former: dict[Path, Any]) -> list[Path]:
    return sorted(path for path, stamp in _entries(folder).items() if former.get(path) != stamp)
