"""Wrong values of every kind of argument that the public functions take."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

HUGE = 10**400
_SQUARE = np.array([[1.0, 0.2], [0.3, -0.5]])


class Unprintable:
    """Whatever a user's class may do when it is printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NoArray:
    """An object whose own way to become an array fails."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise KeyError("no array")


class Raising:
    """An object of which nothing can be asked, not even its class."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes")

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")


def nested(depth: int) -> list[Any]:
    """A number in that many lists."""
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


NOTHING: dict[str, Any] = {
    "an object": object(),
    "an unprintable object": Unprintable(),
    "a raising object": Raising(),
    "a dict": {"a": 1.0},
    "a set": {1.0, 2.0},
    "a class": int,
    "a path": Path("x"),
    "a namespace": SimpleNamespace(shape=(2, 2), dtype="float64"),
    "bytes": b"12",
    "a byte array": bytearray(b"12"),
    "not implemented": NotImplemented,
    "an ellipsis": ...,
    "a slice": slice(2),
}
"""No value of any argument."""

ARRAYS: dict[str, Any] = {
    **NOTHING,
    "a text": "text",
    "a number as text": "3.0",
    "numbers as texts": [["1", "2"], ["3", "4"]],
    "a generator": (row for row in [[1.0, 2.0]]),
    "no array": NoArray(),
    "ragged": [[1.0], [1.0, 2.0]],
    "None inside": [[1.0, None], [1.0, 2.0]],
    "truth values in lists": [[True, False], [False, True]],
    "complex in lists": [[1j, 0.0], [0.0, 1.0]],
    "dates": np.array([["2020-01-01", "2020-01-02"]] * 2, dtype="datetime64[D]"),
    "a huge integer": [[HUGE, 1.0], [0.0, 1.0]],
    "nested 100": nested(100),
    "nested 100000": nested(100_000),
    "endless": endless(),
    "complex": _SQUARE.astype(complex),
    "complex tensor": torch.ones(2, 2, dtype=torch.complex128),
    "texts": np.array([["a", "b"], ["c", "d"]]),
    "objects": np.array([[object(), None], [{}, "x"]], dtype=object),
    "structured": np.zeros((2, 2), dtype=[("a", "f8"), ("b", "i4")]),
    "many fields": np.zeros((2, 2), dtype=[(f"field_{i}", "f8") for i in range(500)]),
    "truth values": _SQUARE > 0,
    "masked": np.ma.masked_less(_SQUARE, 0),
    "masked without a mask": np.ma.array(_SQUARE),
    "masked in a list": [np.ma.masked_less(row, 0) for row in _SQUARE],
    "masked constant": [[1.0, np.ma.masked], [0.0, 1.0]],
    "meta": torch.ones(2, 2, device="meta"),
    "meta integers": torch.ones(2, 2, device="meta", dtype=torch.int64),
    "sparse": torch.from_numpy(_SQUARE).to_sparse(),
    "sparse rows": torch.from_numpy(_SQUARE).to_sparse_csr(),
    "quantized": torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8),
    "float8": torch.ones(2, 2).to(torch.float8_e4m3fn),
    "longdouble": _SQUARE.astype(np.longdouble),
    "NaN": np.array([[1.0, np.nan], [0.0, 1.0]]),
    "infinity": [[1.0, float("inf")], [0.0, 1.0]],
    "a table of texts": pd.DataFrame({"a": ["x", "y"], "b": ["z", "w"]}),
    "a table with NA": pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [1.0, 2.0]}),
    "an xarray of texts": xr.DataArray([["a", "b"], ["c", "d"]], dims=("token", "feature")),
    "a dataset": xr.Dataset({"a": ("token", [1.0, 2.0])}),
}
"""Nothing that could stand for real numbers, of whatever shape."""

SHAPES: dict[str, Any] = {
    "None": None,
    "True": True,
    "a number": 3.0,
    "an infinite number": float("inf"),
    "0-d": np.array(1.0),
    "0-d tensor": torch.tensor(1.0),
    "empty": [],
    "empty rows": [[], []],
    "no rows": np.zeros((0, 2)),
    "no columns": np.zeros((2, 0)),
    "no systems": np.zeros((0, 2, 2)),
    "one axis": [1.0, 2.0],
    "another size": np.ones((5, 7)),
    "many axes": np.ones((2, 1, 3, 2, 2)),
    "integers": np.ones((2, 2), dtype=np.int64),
    "integer tensor": torch.ones(2, 2, dtype=torch.int32),
    "zeros": np.zeros((2, 2)),
    "huge numbers": np.full((2, 2), 1e308),
    "tiny numbers": np.full((2, 2), 5e-324),
    "float16": np.ones((2, 2), dtype=np.float16),
    "needs a gradient": torch.ones(2, 2, dtype=torch.float64, requires_grad=True),
    "foreign bytes": _SQUARE.astype(">f8"),
    "a table": pd.DataFrame(_SQUARE),
    "an xarray": xr.DataArray(_SQUARE),
    "tensors in a list": [torch.ones(2), torch.ones(2)],
    "Decimal": [[Decimal(1), Decimal(2)], [Decimal(3), Decimal(4)]],
}
"""What some function may take and another may not: each answers or refuses by name."""

NUMBERS: dict[str, Any] = {
    **NOTHING,
    "a text": "text",
    "a number as text": "3",
    "True": True,
    "complex": 1j,
    "an array": np.ones(3),
    "a list": [1.0],
    "masked": np.ma.masked,
    "meta": torch.ones((), device="meta"),
    "NaN": float("nan"),
    "a huge integer": HUGE,
    "a negative huge integer": -HUGE,
}
"""No real number, for any argument that is one."""

INTEGERS: dict[str, Any] = {
    **{name: value for name, value in NUMBERS.items() if "huge" not in name},
    "a fraction": 1.5,
    "a whole float": 2.0,
    "infinity": float("inf"),
    "a tensor": torch.tensor([1, 2]),
}
"""No integer."""

RANGES: dict[str, Any] = {
    "zero": 0,
    "negative": -1,
    "very negative": -(10**9),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "tiny": 5e-324,
    "large": 1e308,
    "a large integer": 2**70,
    "a large negative integer": -(2**70),
    "numpy": np.float32(1.5),
    "0-d": np.array(1.0),
}
"""Numbers that some argument takes and another does not."""

COUNTS: dict[str, Any] = {
    "zero": 0,
    "negative": -1,
    "very negative": -(10**30),
    "huge": HUGE,
    "a large integer": 2**70,
    "unsigned": np.uint64(2**64 - 1),
    "numpy": np.int16(1),
}
"""Integers out of some range."""

FLAGS: dict[str, Any] = {
    **NOTHING,
    "a text": "no",
    "a number": 1,
    "a list": [True],
    "an array": np.array([True, False]),
}
"""Neither true nor false; None may stand for a default."""

CHOICES: dict[str, Any] = {
    **NOTHING,
    "another word": "anything",
    "an empty text": "",
    "a list": ["softmax"],
    "an unhashable": [[]],
    "a number": 1,
    "an array": np.array(["a", "b"]),
    "a long text": "x" * 100_000,
    "escapes": "\x1b[31mred\x00",
}
"""None of the words that an argument may be."""

TEXTS: dict[str, Any] = {name: CHOICES[name] for name in (*NOTHING, "a list", "a number", "an array")}
"""No text."""

OTHER: dict[str, Any] = {**NOTHING, "None": None, "a text": "text", "a number": 3.0, "a list": [1.0], "array": _SQUARE}
OTHER["sparse"] = ARRAYS["sparse"]
"""Nothing that an argument of a type of ours could be."""
