"""The message of an interrupted command: what is on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from tokendynamics.cli._terminal import echo

NOTHING = "nothing was written"


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C anywhere in the block into one line and exit code 130.

    Args:
        kept: Returns a sentence about what is on the disk and how to continue.
    """
    try:
        yield
    except KeyboardInterrupt:
        echo(f"interrupted: {kept()}", err=True)
        raise click.exceptions.Exit(130) from None
