"""JSON files of a checkpoint folder, read with a limit on everything that a file can choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.pretrained.messages import in_short

_MOST_BYTES = 64 << 20
"""The index of a model of a trillion parameters has 20 MB."""


def read_json_object(path: Path, wanted: str = "a JSON object") -> dict[str, Any]:
    """Return the object in a file.

    Args:
        path: A regular file.
        wanted: What it should hold, for the message.

    Raises:
        CheckpointError: It is no regular file, too large, unreadable, no JSON, nested too deeply, or no object.
    """
    try:
        size = path.stat().st_size
        if not path.is_file() or size > _MOST_BYTES:
            came = f"{size:,} bytes" if path.is_file() else "no regular file"
            raise CheckpointError(expected(str(path), f"{wanted} of at most {_MOST_BYTES:,} bytes", came))
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise CheckpointError(expected(str(path), wanted, "one nested too deeply")) from None
    except (OSError, ValueError) as error:
        came = f"an unreadable file ({in_short(error)})"
        raise CheckpointError(expected(str(path), wanted, came, "copy or download it again")) from error
    if not isinstance(content, dict):
        raise CheckpointError(expected(str(path), wanted, type(content).__name__))
    return content
