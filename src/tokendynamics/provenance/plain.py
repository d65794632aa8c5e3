"""Results as plain JSON values."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> Any: ...


def plain(value: Any) -> Any:
    """Return dataclasses, arrays and tensors as plain JSON values; NaN and infinity are null, a path its last name.

    >>> import numpy as np
    >>> plain({"margin": np.float64("nan"), "shape": (1, 2)})
    {'margin': None, 'shape': [1, 2]}
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, _Array):  # arrays, tensors and their numbers
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Enum):
        return value.value
    return value.name if isinstance(value, Path) else value


def write_json(path: Path, values: Any) -> None:
    """Write `plain` values, indented, with a newline at the end."""
    text = json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
