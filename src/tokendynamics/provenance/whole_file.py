"""Files that are whole or not there: made in a folder of their own beside the target and then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokendynamics.provenance.staging import staging
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole_folder import told_if_full


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a name to write to, rename it to `path` when the block is done, and remove it when it fails.

    The remains of a run that was killed meanwhile are cleared by the next.

    Raises:
        StorageError: The disk is full; the older file is as it was.
    """
    target = Path(os.path.realpath(path))
    recover(target)
    with told_if_full(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with staging(target) as root:
            made = root / target.name
            yield made
            made.replace(target)
