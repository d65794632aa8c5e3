"""Has charts drawn by a child process: Vega's engine ends the process that it runs in where memory is refused to it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokendynamics.numerics.errors import PageError

_PROGRAM = Path(__file__).with_name("_chart_process.py")
_PATIENCE = 10.0
"""Seconds that the child process has to end once nothing is asked of it any more."""
_ADVICE = "its data are complete; raise the limits of memory (ulimit -v) or of open files (ulimit -n) to draw it"


class _Charts:
    """A child process that draws charts; started by the first one, and again after it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def svg(self, specification: Mapping[str, Any]) -> str:
        request = json.dumps(specification).encode("ascii") + b"\n"
        process = self._started()
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # the pipe of a process that has ended
            line = b""
        except BaseException:  # Ctrl-C: what the process still answers is for nobody
            self.close(at_once=True)
            raise
        if not line.endswith(b"\n"):
            self.close()
            raise _undrawn(f"a process that ended ({_ending(process.returncode)})")
        answer: dict[str, str] = json.loads(line)
        if "svg" not in answer:
            raise _undrawn(answer["error"])
        return answer["svg"]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            package = find_spec("vl_convert")
            if package is None or package.origin is None:
                raise _undrawn("no package vl_convert", "its data are complete; install vl-convert-python to draw it")
            # Without -P the folder of the program would hide modules of the standard library.
            arguments = [sys.executable, "-P", str(_PROGRAM), str(Path(package.origin).parents[1])]
            try:
                self._process = subprocess.Popen(  # noqa: S603
                    arguments,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            except (OSError, ValueError, MemoryError) as error:
                denied = isinstance(error, PermissionError | FileNotFoundError)
                advice = f"its data are complete; let {sys.executable} be run to draw it" if denied else _ADVICE
                raise _undrawn(f"none that starts ({error})", advice) from error
        return self._process

    def close(self, *, at_once: bool = False) -> None:
        """End the child process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        if at_once:
            process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_CHARTS: ContextVar[_Charts | None] = ContextVar("charts", default=None)


@contextmanager
def drawing() -> Iterator[None]:
    """Have all charts of the block drawn by one child process; a block within another one uses its process.

    Also a decorator, for the function that makes a page.
    """
    if _CHARTS.get() is not None:
        yield
        return
    charts = _Charts()
    token = _CHARTS.set(charts)
    try:
        yield
    finally:
        _CHARTS.reset(token)
        charts.close()


def svg_of(specification: Mapping[str, Any]) -> str:
    """Return the drawing of a Vega-Lite specification as SVG.

    Raises:
        PageError: The child process ended, cannot be started, or refuses the specification.
    """
    with drawing():
        charts = _CHARTS.get()
        assert charts is not None  # noqa: S101
        return charts.svg(specification)


def _undrawn(came: str, advice: str = _ADVICE) -> PageError:
    return PageError("page", "a process that draws its charts", came, advice)


def _ending(code: int | None) -> str:
    """Put an exit code in words.

    >>> _ending(3)
    'exit code 3'
    """
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
