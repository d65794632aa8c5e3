"""Wrong Python calls about models: a typed error that names the argument, whatever came in its place."""
# ruff: noqa: E501  (a table reads better in long rows)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.diagnosis.tracing.measure import check_trace_fits
from tokendynamics.numerics import resources as memory
from tokendynamics.numerics.errors import MemoryLimitError, TokenDynamicsError
from tokendynamics.observables import direction_clusters
from tokendynamics.pretrained import Checkpoint

pytestmark = pytest.mark.usefixtures("unchecked")

Tiny = Callable[..., Checkpoint]
Call = Callable[[Checkpoint], Any]

NO_LAYERS = (
    0, -1, 99, True, "1", b"1", 1.0, float("nan"), [], [0], [-1], [99], [True], [1.0], [float("nan")], ["1"], [None],
    [[1]], {}, np.ma.masked_array([1, 2], [False, True]), np.array([1.0]), object(), [10**400], "a\x1b[2J",
)  # fmt: skip
NO_TEXTS = (
    "",
    " ",
    [],
    {},
    [""],
    ["a", ""],
    None,
    b"a",
    [b"a"],
    5,
    [5.0],
    {"a": 5},
    {5: "a"},
    [None],
    {"a", "b"},
    [["a"]],
)
NO_FLAGS = ("no", 0, None, [], np.ones(2))
NO_NUMBERS = ("2", None, [2.0], float("nan"), float("inf"), -1.0, True, np.ma.masked)

CALLS: dict[str, tuple[tuple[Any, ...], Callable[[Any], Call]]] = {
    "audit layers": (NO_LAYERS, lambda v: lambda c: td.audit(c, layers=v)),
    "audit ckpt": (("gpt2", None, 5, [], Path()), lambda v: lambda c: td.audit(v)),
    "audit value": (("Q", "", None, 5, b"V", ["V"]), lambda v: lambda c: td.audit(c, v)),
    "audit singular": (("maybe", None, True), lambda v: lambda c: td.audit(c, singular=v)),
    "audit fold_norms": (("no", 0, [], np.ones(2)), lambda v: lambda c: td.audit(c, fold_norms=v)),
    "audit offsets": (([0.5], "01", 3, [None], [True]), lambda v: lambda c: td.audit(c, offsets=v)),
    "audit progress": ((5, "bar"), lambda v: lambda c: td.audit(c, progress=v)),
    "trace texts": (NO_TEXTS, lambda v: lambda c: td.trace(c, v)),
    "trace ckpt": (("gpt2", None), lambda v: lambda c: td.trace(v, "a")),
    "trace sinks": (
        ([0.5], [True], ["0"], [None], "all", 0, [-1], [99], [0, 1, 2], b"\0", {0}, [float("nan")]),
        lambda v: lambda c: td.trace(c, "abc", sinks=v),
    ),
    "trace sink_ratio": ((*NO_NUMBERS, 1.0), lambda v: lambda c: td.trace(c, "abc", sink_ratio=v)),
    "trace cluster_angle": (NO_NUMBERS, lambda v: lambda c: td.trace(c, "abc", extra=["clusters"], cluster_angle=v)),
    "trace extra": (("clusters", ["nothing"], [5], 5), lambda v: lambda c: td.trace(c, "abc", extra=v)),
    "trace truncate": (NO_FLAGS, lambda v: lambda c: td.trace(c, "abc", truncate=v)),
    "diagnose texts": (NO_TEXTS[:6], lambda v: lambda c: td.diagnose(c, v)),
    "diagnose layers": (NO_LAYERS, lambda v: lambda c: td.diagnose(c, "abc", layers=v)),
    "diagnose threads": ((0, -1, 10**9, 10**30, 1.0, "1", True), lambda v: lambda c: td.diagnose(c, "a", threads=v)),
    "diagnose model": ((None, 5, b"gpt2", ["gpt2"], np.ones(2), ""), lambda v: lambda c: td.diagnose(v)),
    "flow_of layers": (NO_LAYERS, lambda v: lambda c: td.flow_of(c, v)),
    "flow_of space": (("sphere", 5, td.Ellipsoid(np.eye(8))), lambda v: lambda c: td.flow_of(c, space=v)),
    "flow_of dtype": ((torch.int8, "float64", None), lambda v: lambda c: td.flow_of(c, dtype=v)),
    "flow_of checkpoint": (("gpt2", None), lambda v: lambda c: td.flow_of(v)),
    "load spec": (
        (None, 5, b"gpt2", ["gpt2"], "", "a\0b", "~nosuchuser", "x" * 5000, "\ud800", Path("\0"), "random:gpt2:" + "9" * 5000),
        lambda v: lambda c: td.load(v),
    ),
    "load device": (
        ("meta", torch.device("meta"), "", "toaster", "cuda:99", 0, None, b"cpu", ["cpu"], "cpu:-1"),
        lambda v: lambda c: td.load("random:gpt2", device=v),
    ),
    "load dtype": (("int8", None, torch.int8, 5, ["float32"]), lambda v: lambda c: td.load("random:gpt2", dtype=v)),
    "load cache": ((5, b"x", "a\0b"), lambda v: lambda c: td.load("random:gpt2", cache=v)),
    "load progress": ((5, "x"), lambda v: lambda c: td.load("random:gpt2", progress=v)),
    "load allow_pickle": (NO_FLAGS, lambda v: lambda c: td.load("random:gpt2", allow_pickle=v)),
    "attention layer": ((0, -1, 99, None, "0", 0.0, True, [0]), lambda v: lambda c: c.attention(v)),
    "encode text": (("", " ", None, 5, b"a", ["a"], "\ud800"), lambda v: lambda c: c.encode(v)),
    "states ids": (
        (
            None, [1, 2], np.array([1]), "a", torch.tensor([0.5]), torch.tensor([]), torch.tensor([-1]), torch.tensor([300]),
            torch.tensor([True]), torch.tensor([[1], [2]]), torch.tensor(1), torch.ones(1, 65, dtype=torch.long),
            torch.ones(2, dtype=torch.long, device="meta"), torch.tensor([1j]),
        ),
        lambda v: lambda c: c.states(v),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", list(CALLS))
def test_a_wrong_argument_is_a_typed_error_that_names_it(name: str, tiny: Tiny) -> None:
    checkpoint = tiny("gpt2")
    values, call = CALLS[name]
    for value in values:
        with pytest.raises(TokenDynamicsError) as refused:
            call(value)(checkpoint)
        message = str(refused.value)
        assert isinstance(refused.value, TypeError | ValueError), (name, value)
        assert len(message) <= 500
        assert message.isprintable(), message
        assert ": expected " in message, message


def test_a_diagnosis_is_saved_to_a_path_and_nothing_else(tiny: Tiny, tmp_path: Path) -> None:
    diagnosis = td.diagnose(tiny("gpt2"), "abc", layers=[1])
    for folder in (None, 5, b"x", "a\0b", ["x"]):
        with pytest.raises(TokenDynamicsError, match="folder"):
            diagnosis.save(folder)  # type: ignore[arg-type]
    for format in ("csv", None, 5):
        with pytest.raises(TokenDynamicsError, match="format"):
            diagnosis.save(tmp_path / "x", format=format)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_what_does_not_fit_is_refused_before_it_is_computed(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, large = tiny("bloom"), tiny("gpt2", n_embd=1 << 12)
    monkeypatch.setattr(memory, "installed_memory", lambda: 1 << 27)
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 27)
    with pytest.raises(MemoryLimitError, match=r"prompt 1: .*0\.1 GiB of memory .*35\.8 GiB needed at least; shorten"):
        td.trace(dense, "a" * 40_000)
    # PyTorch's attention is watched in blocks of rows, and these states fit.
    check_trace_fits(tiny("gpt2", n_positions=40_000), {"prompt 1": 40_000})
    with pytest.raises(MemoryLimitError, match=r"texts: .* GiB needed at least; the states of all are kept"):
        check_trace_fits(tiny("gpt2"), {f"prompt {number}": 40_000 for number in range(20)})
    with pytest.raises(MemoryLimitError, match=r"x: .*3\.8 GiB needed at least"):
        direction_clusters(np.broadcast_to(np.array([1.0, 2.0]), (16_000, 2)))
    with pytest.raises(MemoryLimitError, match=r"the audit of .* 0\.5 GiB needed at least"):
        td.audit(large)
    with pytest.raises(MemoryLimitError, match=r"tensor h\.0\.attn\.c_attn\.weight: .* 0\.2 GiB needed at least"):
        large.attention(1)
    with pytest.raises(MemoryLimitError, match=r"the network: .* GiB needed at least"):
        _ = large.model


def test_right_calls_pass(tiny: Tiny) -> None:
    checkpoint = tiny("gpt2")
    assert td.audit(checkpoint, layers=np.array([2, 1, 2])).layer.values.tolist() == [2, 1]
    assert td.audit(checkpoint, layers=(layer for layer in [3])).layer.values.tolist() == [3]
    assert td.trace(checkpoint, ("abc", "de"), sinks=(0,)).sizes["prompt"] == 2
    assert td.flow_of(checkpoint, np.int64(1)).dim == 8
