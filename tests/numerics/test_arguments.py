"""What a user may pass, what is refused and in which words, and that results come back in the same type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.numerics import resources
from tokendynamics.numerics.arguments import (
    as_device,
    as_square,
    as_states,
    as_tensor,
    check_finite,
    like,
    without_labels,
)
from tokendynamics.numerics.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    MemoryLimitError,
    TokenDynamicsError,
    expected,
    shown,
)
from tokendynamics.numerics.resources import limited_threads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128, torch.int64])
def test_finite_numbers_of_any_kind_are_taken_and_the_first_other_one_is_named(dtype: torch.dtype) -> None:
    numbers = torch.tensor([3, 1, 2]).to(dtype)
    check_finite(numbers, "x")
    check_finite(torch.full((3,), torch.finfo(torch.float64).max, dtype=torch.float64), "x")
    if dtype != torch.int64:
        numbers[1:] = torch.inf
        with pytest.raises(ArgumentValueError, match=r"x: expected finite numbers, got .*inf.* at index \(1,\)"):
            check_finite(numbers, "x")


def test_floating_input_keeps_its_precision_and_lists_become_float64() -> None:
    assert as_tensor(torch.ones(2, dtype=torch.float32), "x").dtype == torch.float32
    assert as_tensor(np.ones(2, dtype=np.float64), "x").dtype == torch.float64
    assert as_tensor([1, 2], "x").dtype == torch.float64
    assert as_tensor(torch.ones(2, dtype=torch.bfloat16), "x").dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, dtype=torch.int32), "dtype torch.int32"),
        (torch.ones(2, dtype=torch.complex64), "dtype torch.complex64"),
        (np.ones(2, dtype=bool), "dtype bool"),
        (np.array(["a"]), "dtype <U1"),
        ("text", "str"),
        ([[1.0], [1.0, 2.0]], "list"),
    ],
)
def test_what_is_no_real_array_is_refused_by_name(value: object, words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^x: expected .*{words}"):
        as_tensor(value, "x")


def test_any_layout_of_an_array_is_read() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for view in (array[:, ::-1], array.astype(">f8"), np.broadcast_to(array[:1], (2, 3)), np.asfortranarray(array)):
        np.testing.assert_array_equal(as_tensor(view, "x").numpy(), view)


def test_too_few_axes_empty_axes_and_odd_squares_print_the_shape() -> None:
    with pytest.raises(ArgumentValueError, match=r"x: expected at least 2 axes \(…, token, dim\), got shape \(3,\)"):
        as_states(torch.ones(3))
    with pytest.raises(ArgumentValueError, match=r"x: expected at least one token .* got shape \(0, 3\)"):
        as_states(torch.ones(0, 3))
    with pytest.raises(ArgumentValueError, match=r"m: expected square matrices .* got shape \(2, 3\)"):
        as_square(torch.ones(2, 3), "m")


def test_the_first_bad_number_is_located() -> None:
    states = torch.ones(2, 3, 4)
    states[1, 2, 0] = torch.inf
    with pytest.raises(ArgumentValueError, match=r"x: expected finite numbers, got inf at index \(1, 2, 0\)"):
        as_states(states)


def test_results_come_back_as_what_went_in() -> None:
    result = torch.tensor([1.0, 2.0])
    assert like(result, torch.zeros(1)) is result
    assert isinstance(like(result, np.zeros(1)), np.ndarray)
    assert like(result, [[0.0]]) == [1.0, 2.0]
    assert like(torch.tensor(3.0), [[0.0]]) == 3.0


def test_every_deliberate_error_has_one_base() -> None:
    assert issubclass(ArgumentTypeError, TokenDynamicsError)
    assert issubclass(ArgumentTypeError, TypeError)
    assert issubclass(ArgumentValueError, ValueError)


def test_threads_are_restored_even_after_a_failure() -> None:
    before = torch.get_num_threads()

    def fail_with_one_thread() -> None:
        with limited_threads(1):
            assert torch.get_num_threads() == 1
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_with_one_thread()
    assert torch.get_num_threads() == before
    with pytest.raises(ArgumentValueError, match="threads: expected at least 1, got 0"), limited_threads(0):
        pass


class _Raising:
    """An object whose own attributes raise."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name} here")


class _Endless:
    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, place: int) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ma.masked_less(np.ones((2, 2)), 0), "a masked array"),
        ([np.ma.masked_less(np.ones(2), 0)], "a masked array"),
        ([[1.0, np.ma.masked]], "a masked array"),
        (torch.ones(2, device="meta"), "device meta"),
        (torch.ones(2, 2).to_sparse(), "torch.sparse_coo"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "a quantized one"),
        (torch.ones(2).to(torch.float8_e4m3fn), "dtype torch.float8_e4m3fn"),
        (np.ones(2, dtype=np.longdouble), "dtype "),
        (np.zeros(2, dtype=[(f"f{i}", "f8") for i in range(300)]), "table of 300 fields"),
        ([["1", "2"]], "list of "),
        ("3.0", "str of '3.0'"),
        (b"3", "bytes"),
        ([True, False], "bool"),
        ([None, 1.0], "object"),
        ([10**400], "int too large"),
    ],
)
def test_what_only_looks_like_numbers_is_refused(value: object, words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^x: expected .*{words}") as caught:
        as_tensor(value, "x")  # type: ignore[arg-type]
    assert len(str(caught.value)) < 500


def test_lists_nested_without_end_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ArgumentTypeError, match="x: expected lists nested at most 64 deep"):
        as_tensor(endless, "x")


def test_a_message_is_one_short_line_whatever_came() -> None:
    message = expected("x", "a name", "\x1b[31m" + "y\n" * 1000)
    assert message.isprintable()
    assert len(message) < 500
    assert expected("n", "less", 10**5000) == "n: expected less, got an integer of 16610 bits"


def test_what_needs_more_than_is_free_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: 3 * 2**30)
    monkeypatch.setattr(resources, "installed_memory", lambda: 8 * 2**30)
    resources.check_fits(3 * 2**30, "the network")
    wanted = r"what fits into the 3.0 GiB free of the 8.0 GiB of memory of this machine, got 4.0 GiB needed at least"
    with pytest.raises(MemoryLimitError, match=wanted):
        resources.check_fits(4 * 2**30, "the network")
    with pytest.raises(MemoryLimitError, match=r"fits into the 8.0 GiB of memory of this machine, got 9.0 GiB"):
        resources.check_fits(9 * 2**30, "the network")


@pytest.mark.parametrize("count", [10**5, 10**7])
def test_views_that_repeat_a_number_beyond_the_memory_are_refused(count: int) -> None:
    array = np.broadcast_to(np.float64(1.0), (count, 10**6, 4))
    for view in (array, torch.ones(1, dtype=torch.float64).expand(count, 10**6, 4)):
        with pytest.raises(MemoryLimitError, match="x: expected what fits into the"):
            as_states(view)
    assert as_states(torch.ones(1, dtype=torch.float64).expand(3, 2)).shape == (3, 2)


def test_an_object_whose_attributes_raise_is_refused_by_the_argument() -> None:
    kinds: list[tuple[Any, str]] = [(_Raising, "no dims here"), (_Endless, "_Endless")]
    for made, words in kinds:
        with pytest.raises(ArgumentTypeError, match=f"^x: expected .*{words}"):
            as_tensor(made(), "x")
    calls: list[Any] = [td.audit, td.diagnose, lambda flow: td.simulate(flow, np.eye(2), [0.0, 1.0])]
    for call in calls:
        for value in (_Raising(), torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(2, 2)])):
            with pytest.raises(ArgumentTypeError):
                call(value)
    raising = _Raising()
    assert without_labels(raising) is raising


def test_a_long_list_in_a_message_is_not_written_out() -> None:
    class Written:
        """An object that counts how often it was written."""

        count = 0

        def __repr__(self) -> str:
            Written.count += 1
            return "written"

    assert shown([Written()] * 100_000).endswith("…")
    assert Written.count < 100


@pytest.mark.parametrize("name", ["hpu", "privateuseone", "cuda:99", "xla", "mps:7", "meta", "toaster", ""])
def test_a_device_that_is_not_there_is_refused_whatever_torch_raises(name: str) -> None:
    with pytest.raises(ArgumentValueError, match="device: expected a device of this machine"):
        as_device(name, "device")
