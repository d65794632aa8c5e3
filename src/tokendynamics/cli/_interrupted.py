"""What a long command says when it is interrupted: what is on the disk, as it is found there."""

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
        kept: Looks at the disk, and returns in words what is there and how to continue.
    """
    try:
        yield
    except KeyboardInterrupt:
        echo(f"interrupted: {kept()}", err=True)
        raise click.exceptions.Exit(130) from None
