"""Whether what a file asks for fits into memory, before any of it is made."""

from __future__ import annotations

from tokendynamics.numerics.memory import in_bytes, installed_memory
from tokendynamics.specification.circuits import heads_of
from tokendynamics.specification.lines import KeyPath
from tokendynamics.specification.read import SpecificationFile
from tokendynamics.specification.start import tokens_of
from tokendynamics.specification.tables import GivenAngles, GivenTimes, GivenTokens

_NUMBER = 8
_COPIES = 4
"""Of states and matrices at the least, while a run is under way."""
_TIME = 64
"""Bytes of a saved time beside its states: a Python number, an array's entry, and whether it was reached."""


def check_size(file: SpecificationFile, dim: int) -> None:
    """Refuse a file whose start, matrices or saved states are larger than the memory of this machine.

    Raises:
        SpecificationError: With the line of what needs most, the counts, and both sizes.
    """
    start, time, table = file.tables.start, file.tables.time, file.tables.attention
    tokens, systems = tokens_of(start), _systems(file)
    points = len(time.times) if isinstance(time, GivenTimes) else time.points
    heads = max(len(heads_of(circuit, ())) for circuit in (table.qk, table.ov))
    states = _NUMBER * systems * tokens * dim
    needed: dict[KeyPath, int] = {
        ("start",): _COPIES * states,
        ("attention",): _COPIES * _NUMBER * heads * dim**2,
        ("time",): points * (states + _TIME),
    }
    total, installed = sum(needed.values()), installed_memory()
    if total > installed:
        counts = f"{systems:.6g} systems × {tokens:.6g} tokens × {dim:.6g} features, {heads} heads, {points:.6g} times"
        wanted = f"what fits into the {in_bytes(installed)} of memory of this machine"
        largest = max(needed, key=lambda path: needed[path])
        raise file.error(largest, f"expected {wanted}, got {counts}: {in_bytes(total)} needed at least")


def _systems(file: SpecificationFile) -> int:
    start = file.tables.start
    if isinstance(start, GivenAngles):
        return 1
    if isinstance(start, GivenTokens):
        return len(start.tokens) if isinstance(start.tokens[0][0], list) else 1
    return start.systems or 1
