"""The folder that results go to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


class Folder(click.Path):
    """A folder's name; an empty one, which would quietly be the current folder, is refused."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("expected the name of a folder, got an empty one; '.' is the current one", param, ctx)
        return super().convert(value, param, ctx)


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
    """Return the option --overwrite; `settings` are click's."""
    help = "Replace files in the way that no earlier run of this command wrote."
    return click.option("--overwrite", is_flag=True, help=help, **settings)
