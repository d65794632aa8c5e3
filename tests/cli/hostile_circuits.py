"""Calls of the circuits commands that cannot be answered, and the files they read."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

_BIG = "9" * 30


def npy(array: Any, **options: Any) -> bytes:
    """The bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def npy_header(description: str, data: bytes = b"") -> bytes:
    """A .npy file with any header."""
    header = description.encode("latin-1")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def npz(members: dict[str, bytes], *, compressed: bool = True) -> bytes:
    """A .npz file with any members."""
    buffer = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


_SQUARE = npy([[1.0, 2.0], [3.0, 4.0]])
_WIDE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000000), }"
_NESTED = "{'descr': '<f8', 'fortran_order': False, 'shape': " + "(" * 3000 + "1" + ",)" * 3000 + ", }"

FUNCTIONALS: dict[str, tuple[str, bytes]] = {
    "an empty npy": ("q.npy", b""),
    "a npy of its magic only": ("q.npy", _SQUARE[:6]),
    "a npy cut in its header": ("q.npy", _SQUARE[:40]),
    "a npy cut in its data": ("q.npy", _SQUARE[:-9]),
    "a npy of random bytes": ("q.npy", bytes(range(256)) * 4),
    "a npy of version 9": ("q.npy", b"\x93NUMPY\x09\x00" + _SQUARE[8:]),
    "a npy of objects": ("q.npy", npy(np.array([[{}, []]], dtype=object), allow_pickle=True)),
    "a npy of texts": ("q.npy", npy([["a", "b"], ["c", "d"]])),
    "a npy of complex numbers": ("q.npy", npy([[1j, 0.0], [0.0, 1.0]])),
    "a npy of truth values": ("q.npy", npy([[True, False], [False, True]])),
    "a npy of dates": ("q.npy", npy(np.array([["2020-01-01"]], dtype="datetime64[D]"))),
    "a npy of records": ("q.npy", npy(np.zeros((2, 2), dtype=[("a", "f8"), ("b", "i4")]))),
    "a npy of many fields": ("q.npy", npy(np.zeros((2, 2), dtype=[(f"f{i}", "f8") for i in range(400)]))),
    "a npy with NaN": ("q.npy", npy([[1.0, float("nan")], [0.0, 1.0]])),
    "a npy of one axis": ("q.npy", npy([1.0, 2.0])),
    "a npy that is not square": ("q.npy", npy([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])),
    "a npy without rows": ("q.npy", npy(np.zeros((0, 0)))),
    "a npy that declares 10^18 numbers": ("q.npy", npy_header(_WIDE, bytes(64))),
    "a npy that declares negative rows": ("q.npy", npy_header(_WIDE.replace("1000000000000", "-5"), bytes(64))),
    "a npy of a nested header": ("q.npy", npy_header(_NESTED, bytes(64))),
    "a npy whose header is code": ("q.npy", npy_header("__import__('os').mkdir('made')")),
    "a npy without a shape": ("q.npy", npy_header("{'descr': '<f8', 'fortran_order': False}")),
    "a npy of an unknown type": ("q.npy", npy_header(_WIDE.replace("<f8", "<q9"), bytes(64))),
    "a zip named npy": ("q.npy", npz({"q": _SQUARE})),
    "a zip of zeros named npy": ("q.npy", npz({"q": npy_header(_WIDE, bytes(30_000_000))})),
    "a damaged zip named npy": ("q.npy", npz({"q": _SQUARE})[:-30]),
    "an empty csv": ("q.csv", b""),
    "a csv of words": ("q.csv", b"a,b\nc,d\n"),
    "a ragged csv": ("q.csv", b"1,2\n3\n"),
    "a csv in UTF-16": ("q.csv", "1,2\n3,4\n".encode("utf-16")),
    "a csv with a null byte": ("q.csv", b"1,2\n3,\x004\n"),
    "a csv of escapes": ("q.csv", b"\x1b[31m,2\n3,4\n"),
    "a csv of one long line": ("q.csv", b"1," * 500_000 + b"1\n"),
    "a csv of huge numbers": ("q.csv", b"1e999,2\n3,4\n"),
    "a csv of long numbers": ("q.csv", b"9" * 100_000 + b",2\n3,4\n"),
    "an empty json": ("q.json", b""),
    "a json that ends early": ("q.json", b"[[1, 2], [3"),
    "a json of a text": ("q.json", b'"text"'),
    "a json of texts": ("q.json", b'[["1", "2"], ["3", "4"]]'),
    "a json of truth values": ("q.json", b"[[true, false], [false, true]]"),
    "a json of nothing": ("q.json", b"null"),
    "a json of an object": ("q.json", b'{"a": 1}'),
    "a ragged json": ("q.json", b"[[1, 2], [3]]"),
    "a json of NaN": ("q.json", b"[[NaN, 1], [1, 1]]"),
    "a nested json": ("q.json", b"[" * 100_000 + b"]" * 100_000),
    "a json nested 100 deep": ("q.json", b"[" * 100 + b"1" + b"]" * 100),
    "a json of huge integers": ("q.json", b"[[" + b"9" * 5000 + b", 1], [1, 1]]"),
    "a json of integers beyond float": ("q.json", b"[[1" + b"0" * 400 + b", 1], [1, 1]]"),
    "a json that is no UTF-8": ("q.json", b"[[1, 2], [3, \xff]]"),
    "a file of another kind": ("q.txt", b"1 2\n3 4\n"),
    "a file without a suffix": ("q", b"1 2\n3 4\n"),
}
"""A name and a content for --q-true."""

_BUILD = ("circuits", "build", "solution-2")
_EVIDENCE = ("circuits", "evidence", "solution-2")
_LANDSCAPE = ("circuits", "landscape", "3.1")
_LEARN = ("circuits", "learn", "solution-2", "--out", "o")

CALLS: dict[str, tuple[str, ...]] = {
    " ".join(option for option in call if len(option) < 60): call
    for call in (
        *(
            (*_BUILD, name, value)
            for name in ("-N", "-M")
            for value in ("0", "-1", "1.5", "many", "1000000000", _BIG, "")
        ),
        *((*_BUILD, "--seed", value) for value in ("one", _BIG, "1.5")),
        *((*_BUILD, "-K", value) for value in ("0", "-1", "nan", "inf", "text", "1e-300")),
        (*_BUILD, "--x", "1,2,99"),
        (*_BUILD, "--x", "1,0"),
        (*_BUILD, "--x", "one,two"),
        (*_BUILD, "--x", ""),
        (*_BUILD, "--x", _BIG),
        (*_BUILD, "--x", "9" * 5000),
        (*_BUILD, "--x", ",".join("1" * 30_000), "-M", "30"),
        (*_BUILD, "--x", "\x1b[31m"),
        *(
            (*_BUILD, "--law", value)
            for value in ("gauss", "0.5,0.5", "1,2,3,4", "nan,1,1,1", "-1,1,1,0", "a,b", ",", "\x1b[31m")
        ),
        *(
            (*_BUILD, "--q-true", value)
            for value in (
                "random:",
                "random:-1",
                "random:x",
                f"random:{_BIG}",
                "digits:",
                "digits:nan",
                "digits:1e308",
                "",
            )
        ),
        *(
            (*_BUILD, "--q-true", value)
            for value in ("nothing.npy", "/dev/zero", ".", "~nosuchuser/q.npy", "x" * 5000 + ".npy")
        ),
        (*_BUILD, "--form", "cubic"),
        (*_BUILD, "--share", "0.5"),
        (*_BUILD, "--out", ""),
        (*_BUILD, "--out", "file"),
        (*_BUILD, "--out", "file/below"),
        (*_BUILD, "--out", "x" * 300),
        (*_BUILD, "--unknown"),
        ("circuits", "build", "solution-9"),
        ("circuits", "build", "\x1b[31m"),
        ("circuits", "build", "mixture", "--share", "2"),
        ("circuits", "build", "mixture", "--share", "nan"),
        ("circuits", "build", "softmax-1", "--sharpness", "-1"),
        ("circuits", "build", "softmax-1", "--sharpness", "1e300"),
        ("circuits", "build", "linear", "--base", "inf"),
        *((*_EVIDENCE, "--samples", value) for value in ("0", "10", "-5", "1e3", "1000000000", _BIG)),
        *((*_EVIDENCE, "--resamples", value) for value in ("0", "-5", "1000000000000", _BIG)),
        *((*_EVIDENCE, "--confidence", value) for value in ("0", "1", "2", "nan", "text")),
        *((*_EVIDENCE, "--threads", value) for value in ("0", "-1", _BIG, "many")),
        (*_EVIDENCE, "--seed", _BIG),
        (*_EVIDENCE, "-M", "1"),
        (*_EVIDENCE, "-N", "1000000000"),
        (*_EVIDENCE, "-M", "1000000000"),
        ("circuits", "evidence", "nothing"),
        ("circuits", "evidence", "file"),
        ("circuits", "evidence", "."),
        ("circuits", "evidence", ""),
        ("circuits", "evidence", "/dev/zero"),
        ("circuits", "evidence", "~nosuchuser"),
        ("circuits", "evidence", "x" * 5000),
        *(
            (*_LANDSCAPE, name, value)
            for name in ("-N", "-M", "--starts", "--budget")
            for value in ("0", "-1", "many", _BIG)
        ),
        *((*_LANDSCAPE, name, "1000000000") for name in ("-N", "-M", "--starts")),
        ("circuits", "landscape", "3.4"),
        (*_LANDSCAPE, "--law", "1,1"),
        (*_LANDSCAPE, "--seed", _BIG),
        (*_LANDSCAPE, "--method", "prayer"),
        (*_LANDSCAPE, "--q-true", "random:0"),
        ("circuits", "landscape", "3.3", "-N", "1000000000"),
        ("circuits", "landscape", "3.3", "-M", "1000000000"),
        ("circuits", "landscape", "3.2", "-M", "1000000000"),
        *(
            (*_LEARN, name, value)
            for name in ("--batch", "--steps", "--inner", "--hidden", "--seeds")
            for value in ("0", "-1", "many", _BIG)
        ),
        *((*_LEARN, name, "1000000000000") for name in ("--batch", "--hidden", "--samples", "--seeds", "--steps")),
        (*_LEARN, "--seed", "-1"),
        (*_LEARN, "--seed", _BIG),
        (*_LEARN, "--flavour", "towards-2"),
        (*_LEARN, "-M", "1"),
        (*_LEARN, "-N", "1000000"),
        ("circuits", "learn", "solution-2"),
        ("circuits", "learn", "solution-2", "--out", "file"),
        ("circuits", "learn", "solution-9", "--out", "o"),
        ("circuits", "dance"),
        ("simulate", "--example", "nonsense"),
        ("simulate", "--example", "../../etc/passwd"),
        ("simulate", "--example", "\x1b[31m"),
        ("simulate", "--example", ""),
        ("simulate",),
        ("simulate", "--threads", "0", "x.toml"),
        ("simulate", "--threads", _BIG, "x.toml"),
        ("check",),
        ("check", "a.toml", "b.toml"),
        ("dance",),
        ("\x1b[31m",),
        ("--unknown",),
    )
}
"""Options beyond their range, and what is no model."""

_PARAMETERS = "parameters.npz"
Damage = Callable[[dict[str, Any], dict[str, np.ndarray]], tuple[bytes, bytes]]


def _json(entries: dict[str, Any]) -> bytes:
    return json.dumps(entries).encode()


def _arrays(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _entry(key: str, value: Any) -> Damage:
    return lambda entries, arrays: (_json({**entries, key: value}), _arrays(arrays))


def _array(key: str, value: Any) -> Damage:
    return lambda entries, arrays: (_json(entries), _arrays({**arrays, key: np.asarray(value)}))


def _record(content: bytes) -> Damage:
    return lambda entries, arrays: (content, _arrays(arrays))


def _without(key: str) -> Damage:
    return lambda entries, arrays: (
        _json({name: value for name, value in entries.items() if name != key}),
        _arrays(arrays),
    )


def _parameters(content: bytes) -> Damage:
    return lambda entries, arrays: (_json(entries), content)


RECORDS: dict[str, Damage] = {
    "an empty record": _record(b""),
    "an empty parameters.npz": _parameters(b""),
    "a cut parameters.npz": lambda entries, arrays: (_json(entries), _arrays(arrays)[:-100]),
    "a parameters.npz of its first bytes": lambda entries, arrays: (_json(entries), _arrays(arrays)[:4]),
    "parameters of random bytes": _parameters(bytes(range(256)) * 8),
    "parameters that are an npy": _parameters(_SQUARE),
    "parameters that are a pickle": _parameters(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94."),
    "parameters of objects": lambda entries, arrays: (
        _json(entries),
        npz({"q": npy(np.array([{}], dtype=object), allow_pickle=True)}),
    ),
    "parameters that declare 10^18 numbers": _parameters(npz({"q": npy_header(_WIDE, bytes(64))})),
    "parameters that are a bomb": _parameters(
        npz({name: npy_header(_WIDE, bytes(20_000_000)) for name in ("q", "k", "v", "B", "C")})
    ),
    "no parameters": _parameters(npz({})),
    "parameters without q": lambda entries, arrays: (
        _json(entries),
        _arrays({name: array for name, array in arrays.items() if name != "q"}),
    ),
    "parameters of integers": lambda entries, arrays: (
        _json(entries),
        _arrays({name: array.astype(int) for name, array in arrays.items()}),
    ),
    "a parameter of texts": _array("q", [["a", "b"], ["c", "d"]]),
    "a parameter of complex numbers": lambda entries, arrays: (
        _json(entries),
        _arrays({**arrays, "q": arrays["q"].astype(complex)}),
    ),
    "a parameter with NaN": lambda entries, arrays: (_json(entries), _arrays({**arrays, "q": arrays["q"] * np.nan})),
    "a parameter of another shape": _array("q", np.ones((7, 7))),
    "a record that is a list": _record(b"[]"),
    "a record that is null": _record(b"null"),
    "a record in UTF-16": lambda entries, arrays: (json.dumps(entries).encode("utf-16"), _arrays(arrays)),
    "a record nested without end": _record(b"[" * 100_000),
    "a record of a huge integer": _record(b'{"seed": ' + b"9" * 5000 + b"}"),
    "a record of objects": _record(b"{}"),
    **{
        f"{key} is {value!r}": _entry(key, value)
        for key in ("batch", "steps", "inner", "hidden", "positions", "seed")
        for value in (None, "text", 1.5, True, [1], float("nan"), 10**30)
    },
    **{
        f"{key} is {value!r}": _entry(key, value)
        for key in ("batch", "steps", "inner", "hidden", "positions")
        for value in (0, -1)
    },
    **{
        f"{key} is {value!r}": _entry(key, value)
        for key in ("architecture", "flavour", "status")
        for value in (None, 3, "\x1b[31m", [1], {})
    },
    **{
        f"{key} is {value!r}": _entry(key, value)
        for key in ("q_true", "law")
        for value in ("text", 3, [], [[1.0]], [[float("nan")] * 4] * 4, [["a"]], {})
    },
    **{
        f"{key} is {value!r}": _entry(key, value)
        for key in ("losses", "penalty_weights")
        for value in ("text", 3, None, [[1.0]], ["a"], {})
    },
    **{
        f"{key} is {value!r}": _entry(key, value)
        for key in ("final_loss", "seconds", "evaluations")
        for value in ("text", [1.0], {}, True)
    },
    "a hidden layer of 10^12": _entry("hidden", 10**12),
    "10^9 positions": _entry("positions", 10**9),
    **{
        f"no {key}": _without(key)
        for key in ("architecture", "flavour", "batch", "q_true", "law", "losses", "final_loss", "status", "seed")
    },
}
"""What becomes of a learned model's record and parameters, of which `circuits evidence` reads both."""
