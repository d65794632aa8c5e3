"""One protocol for progress: the same three arguments from every long piece of work, and one bar that shows them."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.console import Console

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.provenance.progress import bar, reporting, silent, tracked


@pytest.mark.slow
def test_every_long_function_tells_the_same_three_things() -> None:
    message: list[tuple[float, float, str]] = []

    def note(done: float, total: float, what: str) -> None:
        message.append((done, total, what))

    td.diagnose("random:distilgpt2", ["a text", "another"], layers=[1, 3], progress=note)
    assert message == [
        *((done, 2, "following the tokens") for done in range(3)),
        *((done, 2, "auditing the weights") for done in range(3)),
    ]
    message.clear()
    flow = td.Flow(td.Attention([[1.0]], [[-1.0]]), td.Free())
    td.simulate(flow, [[1.0]], [0.0, 0.5, 1.0], progress=note)
    assert {(total, what) for _, total, what in message} == {(1.0, "simulating")}
    assert message[-1][0] == 1.0


@pytest.mark.long
def test_texts_by_the_thousand_report_how_many_are_read() -> None:
    reports: list[tuple[float, float, str]] = []
    network, texts = td.load("random:distilgpt2"), [[number % 7, number // 7] for number in range(1000)]
    windows = td.Texts(["a text"] * 1000, window=2)
    for read, given, work in (
        (td.trace, texts, "reading the prompts"),
        (td.trace, windows, "tokenizing the texts"),
        (td.attention_seen, texts, "reading the prompts"),
        (td.attention_seen, windows, "tokenizing the texts"),
    ):
        reports.clear()
        with pytest.raises(ArgumentValueError, match="a last prompt"):
            read(network, _then_refused(given), progress=lambda *report: reports.append(report))
        assert [report for report in reports if report[2] == work][:3] == [(done, 1001, work) for done in range(3)]
    reports.clear()
    with pytest.raises(ArgumentValueError, match="a last prompt"):
        td.trace(network, _then_refused(texts[:998]), progress=lambda *report: reports.append(report))
    assert not reports  # fewer take no time


def _then_refused(texts: Any) -> Any:
    """The same prompts and an empty one, so that nothing is traced."""
    if isinstance(texts, td.Texts):
        named = {str(number): text for number, text in enumerate(texts.texts)}
        return td.Texts({**named, "a last prompt": ""}, window=texts.window)
    return {**{str(number): ids for number, ids in enumerate(texts)}, "a last prompt": ""}


_DRAWS = """
import random, sys, time
import numpy as np, torch
import tokendynamics as td
from tokendynamics.provenance.progress import reporting, tracked

random.seed(3), np.random.seed(3), torch.manual_seed(3)
with reporting(sys.argv[1] == "bar") as report:
    for _ in tracked(range(3), report, "counting"):
        time.sleep(0.06)
td.simulate(td.Flow(td.Attention([[1.0]], [[-1.0]]), td.Free()), [[1.0]], [0.0, 1.0], progress=sys.argv[1] == "bar")
print(random.random(), np.random.rand(), torch.rand(1).item(), "rich" in sys.modules)
"""


@pytest.mark.slow
def test_a_bar_leaves_all_random_numbers_as_they_were() -> None:
    """In a process of its own: what is imported for the bar, once, drew from Python's generator."""
    by_name = {}
    for kind in ("bar", "none"):
        done = subprocess.run([sys.executable, "-c", _DRAWS, kind], capture_output=True, text=True, check=True)
        *by_name[kind], imported = done.stdout.split()
        assert (imported == "True") == (kind == "bar")
    assert by_name["bar"] == by_name["none"]


def test_work_that_is_broken_off_reports_no_further() -> None:
    message: list[float] = []
    for item in tracked(range(5), lambda done, total, what: message.append(done), "work"):
        if item == 2:
            break
    assert message == [0, 1, 2]


def test_false_is_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(False) as report:
        assert report is silent
        report(1, 2, "work")
    assert capsys.readouterr() == ("", "")


def test_a_bar_counts_parts_or_shows_a_share_and_takes_names_as_text() -> None:
    file = io.StringIO()
    with bar(Console(file=file, force_terminal=True, width=100)) as report:
        report(1, 4, "model [bold]\x1b[2J")
        report(3, 4, "model [bold]\x1b[2J")
        report(0.25, 1.0, "simulating")
    shown = file.getvalue()
    assert "3/4" in shown
    assert "25%" in shown
    assert "model [bold]␛[2J" in shown


def test_a_bar_tells_how_many_of_many_parts_a_second_are_done_and_the_time_left() -> None:
    file = io.StringIO()
    with bar(Console(file=file, force_terminal=True, width=120)) as report:
        for done in (0, 500, 1000, 1500):
            report(done, 2000, "systems")
            report(done // 500, 4, "layers")
            time.sleep(0.02)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()
    many = [line for line in lines if "1,500/2,000" in line]
    assert re.search(r"1,500/2,000 [\d,.]+/s 0:00:00 0:00:0\d", many[-1])
    assert not any("/s" in line for line in lines if "3/4" in line)


def test_a_bar_is_closed_when_its_work_fails() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(KeyboardInterrupt), bar(console):
        raise KeyboardInterrupt
    with bar(console) as report:  # a second display would be refused while the first were open
        report(2, 2, "work")


@pytest.mark.parametrize("given", [lambda share: None, int, lambda: None, lambda done, total, what, more: None])
def test_a_function_of_other_arguments_is_refused_before_the_work(given: Any) -> None:
    words = r"progress: expected True, False or a function \(done, total, what\)"
    with pytest.raises(ArgumentTypeError, match=words), reporting(given):
        pytest.fail("the work has begun")


def test_a_function_that_takes_more_of_its_own_is_fine() -> None:
    for given in (print, lambda *arguments: None, lambda done, total, what, more=None: None):
        with reporting(given) as report:
            assert report is given
