"""The folder that results go to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def check_writable(out: Path | None) -> None:
    """Refuse a target that cannot be made before minutes are spent on what should go there.

    Args:
        out: The folder; None for one in the current folder.

    Raises:
        click.BadParameter: Nothing can be made there.
    """
    target = (out or Path()).absolute()
    existing = next(path for path in (target, *target.parents) if path.exists())
    try:
        # Permissions do not tell: some file systems refuse what their mode allows.
        with tempfile.TemporaryDirectory(dir=existing, prefix=".probe-"):
            return
    except OSError:
        message = f"{existing} is not a folder that can be written to"
        raise click.BadParameter(message, param_hint="--out") from None


def overwrite_option(**settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --overwrite; `settings` are click's."""
    help = "Replace files in the way that no earlier run of this command wrote."
    return click.option("--overwrite", is_flag=True, help=help, **settings)
