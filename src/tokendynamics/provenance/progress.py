"""How long work says how far it is: one shape of function for all of it, and a bar in the terminal that has it."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.arguments import as_flag
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

T = TypeVar("T")

_MANY = 1000
"""Parts from which on the rate per second is reported, and quick work on each of them as well."""


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a task; any function of these three arguments is one."""

    def __call__(self, done: float, total: float, what: str, /) -> None:
        """Take note.

        Args:
            done: From 0 to `total`, never less than before within one piece of work.
            total: How many parts there are; 1.0 where a share is reported.
            what: The piece of work, in words; another text is another piece.
        """
        ...


def silent(done: float, total: float, what: str) -> None:
    """Take no note."""


@contextmanager
def reporting(progress: bool | Progress) -> Iterator[Progress]:
    """Yield what an argument `progress` asks for: nothing, a bar on standard error, or the caller's own function.

    Raises:
        ArgumentTypeError: Neither a truth value nor a function of three arguments.

    >>> with reporting(print) as report:
    ...     report(1, 3, "counting")
    1 3 counting
    """
    if callable(progress):
        _check_takes_three(progress)
        yield progress
    elif as_flag(progress, "progress"):
        with bar() as report:
            yield report
    else:
        yield silent


def _check_takes_three(progress: Progress) -> None:
    """Refuse a function before the work begins that would fail in the midst of it."""
    try:
        if not isinstance(progress, type):
            inspect.signature(progress).bind(0.0, 1.0, "")
            return
    except ValueError:
        return  # Written in C, without a signature.
    except TypeError:
        pass
    raise ArgumentTypeError("progress", "True, False or a function (done, total, what)", shown(progress))


def tracked(items: Collection[T], report: Progress, what: str) -> Iterator[T]:
    """Yield every item, and report before the first and after each.

    >>> [item for item in tracked("ab", print, "spelling")]
    0 2 spelling
    1 2 spelling
    2 2 spelling
    ['a', 'b']
    """
    total = len(items)
    report(0, total, what)
    for done, item in enumerate(items, start=1):
        yield item
        report(done, total, what)


def tracked_if_many(items: Collection[T], report: Progress, what: str) -> Iterator[T]:
    """Yield every item, and report as `tracked` does where there are at least a thousand: fewer take no time.

    >>> list(tracked_if_many("ab", print, "spelling"))
    ['a', 'b']
    """
    yield from tracked(items, report if len(items) >= _MANY else silent, what)


def rate(speed: float) -> str:
    """Return parts a second in words, with three digits.

    >>> rate(12345.6), rate(0.01234)
    ('12,300/s', '0.0123/s')
    """
    rounded = float(f"{speed:.3g}")
    return f"{rounded:,.0f}/s" if rounded >= 100 else f"{rounded:g}/s"


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Restore Python's generator of random numbers: rich draws from it when it is imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextmanager
def bar(console: Console | None = None) -> Iterator[Progress]:
    """Yield what draws a bar with the time left for each piece of work; closed however the body ends.

    Args:
        console: Where; None for standard error.
    """
    with _random_numbers_kept():
        from rich import progress
        from rich.console import Console
        from rich.markup import escape
        from rich.text import Text

    class Rate(progress.ProgressColumn):
        """How many parts a second are done, where they are many."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(rate(speed) if speed and (task.total or 0) >= _MANY else "")

    columns = ("{task.description}", progress.BarColumn(), "{task.fields[counted]}", Rate())
    times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with progress.Progress(*columns, *times, console=console or Console(file=sys.stderr)) as bars:

        def report(done: float, total: float, what: str) -> None:
            counted = f"{done:.0%}" if isinstance(total, float) else f"{done:,}/{total:,}"
            if what not in tasks:
                # Names of files and models are text: nothing in them is markup.
                tasks[what] = bars.add_task(escape(printable(what)), total=total, counted=counted)
            bars.update(tasks[what], completed=done, total=total, counted=counted)

        yield report
