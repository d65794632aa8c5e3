"""The folder that results go to."""

from __future__ import annotations

import os
from pathlib import Path

import click


def check_writable(out: Path | None) -> None:
    """Refuse a target that cannot be made before minutes are spent on what should go there."""
    existing = next(path for path in (out or Path()).absolute().parents if path.exists())
    if out is not None and out.exists():
        existing = out
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise click.BadParameter(f"{existing} is not a folder that can be written to", param_hint="--out")
