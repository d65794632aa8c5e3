"""What a page states of a manifest: when it was made, with which versions, and entries of bounded length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokendynamics.words import duration, moment, plural, written

_LONGEST = 400
"""Letters of one entry; the files have it in full."""


def shortened(value: Any) -> Any:
    """Return an entry of the manifest without values too long for a page, such as matrices and initial states."""
    if isinstance(value, Mapping):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    text = written(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(',', 1)[0]}, …"


def made(manifest: Mapping[str, Any], seconds: float | None = None) -> list[tuple[str, str]]:
    """Return when it was made and with which versions, as far as is recorded.

    Args:
        manifest: See `tokendynamics.provenance`.
        seconds: How long it took; None for what the manifest says.
    """
    facts, calls = [], manifest.get("runs") or [manifest]
    if "started" in calls[0]:
        took = sum(call.get("duration_seconds") or 0.0 for call in calls) if seconds is None else seconds
        several = f", in {plural(len(calls), 'call')}" if len(calls) > 1 else ""
        facts.append(("Made", f"{moment(calls[0]['started'])}, in {duration(took)}{several}"))
    return [*facts, *([("With", written(manifest["versions"]))] if manifest.get("versions") else [])]
