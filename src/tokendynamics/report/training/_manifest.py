"""What a manifest says on a page of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendynamics.report.kit._text import duration, moment, written

_LONGEST = 400
"""Letters of one entry; what is longer is in the record."""


def shortened(value: Any) -> Any:
    """Return an entry of the manifest with what is too long for a page left out."""
    if isinstance(value, Mapping):
        return {name: shortened(each) for name, each in value.items()}
    text = written(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(',', 1)[0]}, …"


def made(manifest: Mapping[str, Any], seconds: float | None = None) -> list[tuple[str, str]]:
    """Return when it was made and with which versions, as far as is recorded.

    Args:
        manifest: See `tokendynamics.provenance`.
        seconds: How long it took; None for what the manifest says.
    """
    facts = []
    if "started" in manifest:
        took = manifest.get("duration_seconds") if seconds is None else seconds
        facts.append(("Made", f"{moment(manifest['started'])}, in {duration(took)}"))
    return [*facts, *([("With", written(manifest["versions"]))] if manifest.get("versions") else [])]
