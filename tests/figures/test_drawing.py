"""Charts are drawn by a child process: its death costs the page and nothing else."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import FREE_FLOW, LEARN_LITTLE, TINY_GPT2, call
from tokendynamics.figures import drawing as _drawing
from tokendynamics.figures.drawing import drawing, svg_of
from tokendynamics.numerics.errors import PageError

CHART = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"a": 1}, {"a": 2}]},
    "mark": "point",
    "encoding": {"x": {"field": "a", "type": "quantitative"}},
}
DIES = "import os, sys; sys.stdin.readline(); os.abort() if hasattr(os, 'fork') else os._exit(3)"


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process that draws ends as soon as it is asked for a chart."""
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    monkeypatch.setattr(_drawing, "_PROGRAM", program)
    monkeypatch.setattr(_drawing, "_CHARTS", _drawing.ContextVar("charts", default=None))


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of other tests draws."""
    monkeypatch.setattr(_drawing, "_CHARTS", _drawing.ContextVar("charts", default=None))


@pytest.mark.long
@pytest.mark.usefixtures("anew")
def test_a_block_has_one_process_that_ends_with_it() -> None:
    with drawing():
        first = svg_of(CHART)
        charts = _drawing._CHARTS.get()
        assert charts is not None
        process = charts._process
        assert process is not None
        with drawing():
            assert svg_of(CHART) == first
        assert charts._process is process
        assert process.poll() is None
    assert process.poll() == 0
    assert first.startswith("<svg")


@pytest.mark.long
@pytest.mark.usefixtures("anew")
def test_the_next_chart_is_drawn_by_another_process() -> None:
    with drawing():
        svg_of(CHART)
        charts = _drawing._CHARTS.get()
        assert charts is not None
        assert charts._process is not None
        charts._process.kill()
        charts._process.wait()
        with pytest.raises(PageError, match="page: expected a process that draws its charts, got a process that ended"):
            svg_of(CHART)
        assert svg_of(CHART).startswith("<svg")


@pytest.mark.long
@pytest.mark.usefixtures("anew")
def test_what_cannot_be_drawn_is_an_error_of_the_page() -> None:
    with pytest.raises(PageError, match="ValueError"):
        svg_of({"mark": "no such mark", "$schema": CHART["$schema"]})


@pytest.mark.usefixtures("anew")
def test_a_process_that_cannot_be_started_is_an_error_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(PageError, match=r"got none that starts .*let /no/such/python be run") as refused:
        svg_of(CHART)
    assert "ulimit" not in str(refused.value)


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.EACCES])
def test_limits_are_named_where_they_keep_the_process_from_starting(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(PageError, match="got none that starts") as raised:
        svg_of(CHART)
    assert ("ulimit" in str(raised.value)) == (number != errno.EACCES)


COMMANDS = {
    "simulate": (["simulate", "spec.toml", "--out", "o"], {"trajectory.zarr", "certificates.json", "tokens.png"}),
    "diagnose": (["diagnose", "random:./tiny", "--prompt", "a", "--out", "o"], {"trace.zarr", "diagnosis.json"}),
    "build": (["circuits", "build", "linear", "--out", "o"], {"circuits.npz", "circuits.json"}),
    "landscape": (["circuits", "landscape", "3.1", "--starts", "2", "--out", "o"], {"landscape.json"}),
    "evidence": (
        ["circuits", "evidence", "solution-1", "--samples", "50", "--resamples", "20", "--out", "o"],
        {"evidence.json"},
    ),
    "learn": (
        ["circuits", "learn", "solution-1", *LEARN_LITTLE, "--steps", "2", "--seeds", "1", "--out", "o"],
        {"seed-0", "learning.json"},
    ),
}


@pytest.mark.few(2)
@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_that_cannot_be_drawn_is_one_line_and_the_data_are_kept(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(FREE_FLOW + '[output]\nfigures = ["tokens"]\n')
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text(json.dumps(TINY_GPT2))
    arguments, kept = COMMANDS[command]
    assert call(arguments) == 1
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "page: expected a process that draws its charts" in errors[0]
    assert "defect" not in errors[0]
    assert printed.out.strip()
    names = {path.name for path in Path("o").iterdir()}
    assert kept | {"manifest.json"} <= names
    assert "report.html" not in names
    assert not list(Path().glob(".*partial*"))
    if command != "simulate":
        return
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert call(arguments) == 0
    assert Path("o/report.html").is_file()
    listed = json.loads(Path("o/manifest.json").read_text())["files"]
    assert "report.html" in listed
    assert any(name.split("/")[0] in kept for name in listed)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit of address space")
def test_results_survive_a_limit_of_address_space(tmp_path: Path) -> None:
    """What batch systems set (ulimit -v): the engine that draws reserves more than it uses, and is ended for it."""
    (tmp_path / "spec.toml").write_text(FREE_FLOW)
    limited = (
        "import resource, sys; from tokendynamics.cli import main; import tokendynamics.report.simulation;"
        "import tokendynamics.specification._simulation;"
        "resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "simulate", "spec.toml", "--out", "o"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: page:")] == done.stderr.splitlines()[
        -1:
    ]
    assert (tmp_path / "o" / "trajectory.zarr").is_dir()
    assert not list(tmp_path.glob(".*"))
