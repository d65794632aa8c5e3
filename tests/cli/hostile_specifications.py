"""Specification files that no simulation can be made of: for each a name and the bytes of the file."""

from __future__ import annotations

VALID = {
    "title": '"hostile"',
    "attention.qk": "[[1.0, 0.2], [0.3, -0.5]]",
    "attention.ov": '"identity"',
    "space.kind": '"sphere"',
    "start.tokens": "[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]",
    "time.end": "1.0",
    "time.points": "3",
}
"""The right side of each key of a file that runs."""

_DRAWN = {"start.tokens": "3", "start.dim": "2", "start.law": '"uniform"', "start.seed": "0"}
_HUGE_INTEGER = "9" * 5000


def written(changes: dict[str, str | None] | None = None) -> str:
    """The valid file with some right sides changed, added, or (None) left out."""
    keys = {**VALID, **(changes or {})}
    tables: dict[str, list[str]] = {}
    for key, value in keys.items():
        if value is not None:
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {value}")
    return "\n".join("\n".join(([f"[{table}]"] if table else []) + lines) for table, lines in tables.items()) + "\n"


def _nested(opening: str, closing: str, depth: int) -> str:
    return opening * depth + closing * depth


_SYNTAX: dict[str, str] = {
    "empty": "",
    "only blanks": " \n\t\n",
    "no TOML": "this is no TOML",
    "JSON": '{"attention": {"qk": [[1.0]]}}',
    "a null byte": 'title = "a\0b"\n',
    "an escape in a key": '"\\u001b[31m" = 1\n',
    "an escape in a value": written({"space.kind": '"\\u001b[31mred"'}),
    "escapes in an unknown key": written({'attention."\\u001b]0;x\\u0007"': "1"}),
    "arrays in arrays": "title = " + _nested("[", "]", 5000),
    "arrays in arrays, unclosed": "title = " + "[" * 200_000,
    "tables in tables": "title = " + "{a=" * 2000 + "1" + "}" * 2000,
    "many dots": ".".join(["a"] * 20_000) + " = 1\n",
    "many dots in a header": "[" + ".".join(["a"] * 20_000) + "]\n",
    "many dotted keys": "\n".join(f"a.{'b.' * 200}c{i} = 1" for i in range(500)),
    "many tables": "\n".join(f"[a{i}]" for i in range(20_000)),
    "a long line": 'title = "' + "x" * 3_000_000 + '"\n',
    "a long key": "x" * 100_000 + " = 1\n",
    "a key twice": written() + "points = 4\n",
    "a table twice": written() + "[time]\nend = 2.0\n",
    "unfinished text": 'title = "abc',
    "unfinished array": "title = [1, 2",
    "a huge integer": written({"time.points": _HUGE_INTEGER}),
    "a huge integer as a number": written({"time.end": _HUGE_INTEGER}),
    "a huge hexadecimal": written({"time.points": "0x" + "f" * 100_000}),
    "a huge exponent": written({"time.end": "1e999"}),
}

_VALUES: dict[str, dict[str, str | None]] = {
    f"{key} is {name}": {key: value}
    for key in VALID
    for name, value in {
        "a date": "2020-01-01",
        "a time": "07:32:00",
        "a truth value": "true",
        "nan": "nan",
        "minus infinity": "-inf",
        "an empty array": "[]",
        "an empty table": "{}",
        "a text": '"nonsense"',
        "a deep array": _nested("[", "]", 60),
        "negative": "-1",
        "a mixed array": '[[1.0, "a"], [2020-01-01, true]]',
        "a ragged array": "[[1.0, 2.0], [3.0]]",
        "another shape": "[[1.0, 2.0, 3.0]]",
        "huge numbers": "[[1e308, 1e308], [1e308, 1e308]]",
        "an integer beyond float": "1" + "0" * 400,
    }.items()
    if not (key == "title" and name == "a text")
    and not (key == "time.points" and name == "a truth value")
    and not (key in ("attention.qk",) and name == "huge numbers")
    and not (key == "start.tokens" and name == "huge numbers")
    and not (key == "attention.ov" and name == "huge numbers")
}

_RANGES: dict[str, dict[str, str | None]] = {
    "no attention": {"attention.qk": None, "attention.ov": None},
    "no space": {"space.kind": None},
    "no start": {"start.tokens": None},
    "no time": {"time.end": None, "time.points": None},
    "an unknown key": {"attention.casual": "true"},
    "an unknown table": {"atention.qk": '"identity"'},
    "a table for a value": {"title.a": "1", "title": None},
    "zero tokens": {**_DRAWN, "start.tokens": "0"},
    "negative tokens": {**_DRAWN, "start.tokens": "-5"},
    "too many tokens": {**_DRAWN, "start.tokens": "1000000000"},
    "far too many tokens": {**_DRAWN, "start.tokens": "9000000000000000000"},
    "tokens beyond 64 bits": {**_DRAWN, "start.tokens": "1" + "0" * 40},
    "too many systems": {**_DRAWN, "start.systems": "1000000000"},
    "zero systems": {**_DRAWN, "start.systems": "0"},
    "too large a dim": {**_DRAWN, "start.dim": "1000000000", "attention.qk": '"identity"'},
    "a dim of 60000": {**_DRAWN, "start.dim": "60000", "attention.qk": '"identity"'},
    "a dim beyond 64 bits": {**_DRAWN, "start.dim": "1" + "0" * 30, "attention.qk": '"identity"'},
    "a dim that does not fit": {**_DRAWN, "start.dim": "7"},
    "negative seed": {**_DRAWN, "start.seed": "-1"},
    "a seed beyond 64 bits": {**_DRAWN, "start.seed": "9" * 30},
    "a seed of text": {**_DRAWN, "start.seed": '"one"'},
    "a scale of zero": {**_DRAWN, "start.law": '"normal"', "start.scale": "0.0"},
    "a box inside out": {**_DRAWN, "start.law": '"box"', "start.low": "1.0", "start.high": "-1.0"},
    "a zero direction": {
        "start.tokens": "3",
        "start.law": '"hemisphere"',
        "start.direction": "[0.0, 0.0]",
        "start.seed": "0",
    },
    "a zero token": {"start.tokens": "[[0.0, 0.0], [1.0, 0.0]]"},
    "an angle in furlongs": {"start.tokens": None, "start.angles": '["3 furlong", 1.0]'},
    "an angle of a thousand digits": {"start.tokens": None, "start.angles": '["' + "1" * 1000 + ' deg", 1.0]'},
    "an infinite angle": {"start.tokens": None, "start.angles": '["1e999 deg", 1.0]'},
    "too many times": {"time.points": "1000000000"},
    "times beyond 64 bits": {"time.points": "1" + "0" * 30},
    "one time": {"time.points": "1"},
    "a horizon of zero": {"time.end": "0.0"},
    "falling times": {"time.end": None, "time.points": None, "time.times": "[1.0, 0.0]"},
    "a horizon beyond the steps": {"solver.step": "1e-300"},
    "a step below rounding": {"solver.step": "5e-324", "time.end": "1e308"},
    "a step of zero": {"solver.step": "0.0"},
    "a step of nan": {"solver.step": "nan"},
    "layers beyond counting": {"solver.engine": '"layers"', "time.end": "1e18", "time.points": "2"},
    "layers that are no whole numbers": {"solver.engine": '"layers"', "time.end": "1.5", "time.points": "3"},
    "an unknown engine": {"solver.engine": '"warp"'},
    "a negative tolerance": {"solver.rtol": "-1e-3"},
    "a negative budget": {"solver.max_steps": "-1"},
    "a budget beyond 64 bits": {"solver.max_steps": "1" + "0" * 30},
    "device meta": {"solver.device": '"meta"'},
    "a device of no machine": {"solver.device": '"cuda:99"'},
    "a device of escapes": {"solver.device": '"\\u001b[31m"'},
    "an empty device": {"solver.device": '""'},
    "threads of zero": {"solver.threads": "0"},
    "threads beyond 64 bits": {"solver.threads": "1" + "0" * 30},
    "a reference beyond the tokens": {"events.consensus": "{ reference = 99 }"},
    "a reference beyond 64 bits": {"events.consensus": "{ reference = 1" + "0" * 40 + " }"},
    "a bound of zero": {"events.norm_above": "0.0"},
    "an unknown figure": {"output.figures": '["portrait"]'},
    "no formats": {"output.formats": "[]"},
    "a system beyond the batch": {"output.system": "3"},
    "a system beyond 64 bits": {"output.system": "1" + "0" * 40},
    "a metric that is not positive": {"space.kind": '"ellipsoid"', "space.metric": "{ diagonal = [1.0, -1.0] }"},
    "a metric of huge numbers": {"space.kind": '"ellipsoid"', "space.metric": "{ diagonal = [1e308, 1e308] }"},
    "a singular contraction": {"attention.ov": "{ contraction = [[1.0, 1.0], [1.0, 1.0]] }"},
    "no heads": {"attention.qk": "[]"},
    "heads that do not fit": {
        "attention.qk": '["identity", "identity"]',
        "attention.ov": '["identity", "identity", "identity"]',
    },
    "a period of zero": {"attention.qk": '{ matrices = ["identity"], period = 0.0 }'},
    "a frequency of text": {"attention.qk": '{ matrix = "identity", frequency = "often" }'},
    "an infinite frequency": {"attention.qk": '{ matrix = "identity", frequency = "1e999 Hz" }'},
    "a law of no name": {"attention.qk": '{ law = "cauchy", seed = 0 }'},
    "a seed of a matrix beyond 64 bits": {"attention.qk": '{ law = "normal", seed = ' + "9" * 30 + " }"},
    "a positions table too short": {"positions.kind": '"absolute"', "positions.table": "[[1.0, 0.0]]"},
    "a rotary of odd rank": {
        "positions.kind": '"rotary"',
        "positions.query": "[[1.0], [0.0]]",
        "positions.key": "[[1.0], [0.0]]",
    },
    "a base of zero": {"positions.kind": '"absolute"', "positions.table": '"sinusoidal"', "positions.base": "0.0"},
    "a projection of no name": {"space.projection": '"sideways"'},
}

SPECIFICATIONS: dict[str, bytes] = {
    **{name: text.encode() for name, text in _SYNTAX.items()},
    **{name: written(changes).encode() for name, changes in (_VALUES | _RANGES).items()},
    "UTF-16": written().encode("utf-16"),
    "UTF-32": written().encode("utf-32"),
    "Latin-1": written({"title": '"é"'}).encode("latin-1"),
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf" + written().encode(),
    "zeros": bytes(100_000),
    "random bytes": bytes((7 * i * i + 13 * i) % 256 for i in range(50_000)),
    "a zip file": b"PK\x03\x04" + bytes(200),
    "a lone surrogate": written({"title": '"\\ud800"'}).encode(),
    "too large": b"# " + b"x" * 60_000_000,
}
"""Each of them is refused by `simulate` and by `check`, without anything written."""
