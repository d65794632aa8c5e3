"""What the folder of a run holds."""

from __future__ import annotations

import shutil
from pathlib import Path

EXPERIMENT, RECORD = "experiment.json", "record.json"
CHECKPOINTS, LOGS, MODEL, AVERAGED = "checkpoints", "logs", "model", "model-averaged"


def put_folder(made: Path, place: Path) -> None:
    """Give a complete folder its name; what had it before goes."""
    if place.exists():
        shutil.rmtree(place)
    made.rename(place)
