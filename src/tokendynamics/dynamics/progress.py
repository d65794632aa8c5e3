"""A progress bar for a share of work done, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokendynamics.numerics.arguments import as_flag


@contextmanager
def reporting(progress: bool | Callable[[float], None]) -> Iterator[Callable[[float], None]]:
    """Yield a function to be called with the share done (0 to 1); a bar it opens is closed however the body ends."""
    if callable(progress):
        yield progress
        return
    if not as_flag(progress, "progress"):
        yield lambda share: None
        return
    columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("simulating", total=1.0)
        yield lambda share: bar.update(task, completed=share)
