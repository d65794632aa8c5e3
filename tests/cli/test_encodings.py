"""Every command prints on a stream of any encoding, and without one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import FREE_FLOW, LEARN_LITTLE, TINY_GPT2, call

_CIRCUIT = ["--out", "o"]
COMMANDS = {
    "diagnose": ["diagnose", "random:./tiny", "--prompt", "κ → é", "--prompt", "b", "--out", "o", "--no-baseline"],
    "diagnose json": ["diagnose", "random:./tiny", "--prompt", "κ → é", "--out", "o", "--json", "--no-baseline"],
    "compare": ["compare", "random:./tiny", "random:./tiny:1", "--prompt", "é", "--out", "o", "--no-weights"],
    "inspect": ["inspect", "random:./tiny"],
    "simulate": ["simulate", "spec.toml", "--out", "o"],
    "simulate example": ["simulate", "--example", "fig3"],
    "simulate list": ["simulate", "--example", "list"],
    "check": ["check", "spec.toml"],
    "check json": ["check", "spec.toml", "--json"],
    "sweep list": ["sweep", "--example", "list"],
    "study list": ["study", "--example", "list"],
    "train list": ["train", "list"],
    "build": ["circuits", "build", "linear", *_CIRCUIT],
    "landscape": ["circuits", "landscape", "3.1", "--starts", "2", *_CIRCUIT],
    "evidence": ["circuits", "evidence", "solution-1", "--samples", "50", "--resamples", "20", *_CIRCUIT],
    "learn": ["circuits", "learn", "solution-1", *LEARN_LITTLE, "--steps", "2", "--seeds", "1", *_CIRCUIT],
}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text('title = "κ → é"\n' + FREE_FLOW + '[output]\nfigures = ["tokens"]\n', encoding="utf-8")
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text(json.dumps(TINY_GPT2))


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_the_encoding_has_and_escapes_for_the_rest(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = command in {"check", "check json", "train list", "study list", "sweep list", "simulate list"}
    for number, encoding in enumerate(("ascii", "cp1252", *(("latin-1", "utf-8") if quick else ()))):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
        with monkeypatch.context() as replaced:
            replaced.setattr(sys, "stdout", out)
            replaced.setattr(sys, "stderr", err)
            arguments = [f"o{number}" if entry == "o" else entry for entry in COMMANDS[command]]
            code = call(arguments)
        printed, text = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))  # type: ignore[attr-defined]
        assert code == 0, text
        assert printed.strip()
        if "--json" in arguments:
            json.loads(printed)


@pytest.mark.usefixtures("inputs")
def test_json_says_the_same_in_every_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokendynamics.cli._terminal import echo_json

    values = []
    for encoding in ("ascii", "cp1252", "utf-8"):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        with monkeypatch.context() as replaced:
            replaced.setattr(sys, "stdout", out)
            echo_json({"name": "κ → é\x9b"})
        values.append(json.loads(out.buffer.getvalue().decode(encoding)))  # type: ignore[attr-defined]
    assert values == [{"name": "κ → é\x9b"}] * 3


@pytest.mark.long
@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_may_be_closed(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as replaced:
        replaced.setattr(sys, stream, None)
        assert call(["simulate", "spec.toml", "--out", "o"]) == 0
        assert call(["check", "spec.toml", "--json"]) == 0
    assert Path("o/report.html").is_file()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a shell of POSIX")
@pytest.mark.usefixtures("inputs")
def test_a_run_without_any_stream_writes_everything() -> None:
    """What V8 did with a closed standard input was to end the process: it now has a pipe of its own."""
    command = f"exec {sys.executable} -m tokendynamics simulate spec.toml --out o <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", command], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0
    assert Path("o/report.html").is_file()


STREAMS = """
import os, sys, warnings
from tokendynamics.numerics.printable import prepare_streams
prepare_streams()
print("progress", file=sys.stderr, flush=True)
warnings.warn("a warning", stacklevel=1)
with open("results", "w") as file:
    os.write(2, b"by a library in C")
    os._exit(file.fileno()) if file.fileno() < 3 else print("done", flush=True)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the devices of Linux")
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">&- 2>&-", "<&- 2</dev/null"])
def test_lost_messages_end_nothing_and_reach_no_file(streams: str, tmp_path: Path) -> None:
    """A reader that goes away, a full disk or a closed descriptor must not cost the results."""
    command = f'exec {sys.executable} -c "$0" {streams}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, STREAMS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    assert done.stdout == ("" if streams.startswith(">&-") else "done\n")
    assert (tmp_path / "results").read_text() == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the devices of Linux")
@pytest.mark.parametrize(
    ("arguments", "streams", "code", "message"),
    [
        ("--version", ">/dev/full", 1, "standard output cannot be written: No space left on device"),
        ("check nowhere.toml", "2>/dev/full", 2, ""),
        ("check nowhere.toml", "2>&-", 2, ""),
        ("diagnose random:gpt2 --prompts -", "<&-", 2, "--prompts"),
    ],
)
def test_the_code_is_that_of_the_command_whatever_the_streams_are(
    arguments: str, streams: str, code: int, message: str
) -> None:
    command = f"exec {sys.executable} -m tokendynamics {arguments} {streams}"
    done = subprocess.run(["/bin/sh", "-c", command], check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == bool(message)
    assert done.stdout == ""


class Panic(BaseException):
    """As PyO3 raises where code in Rust panics."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Os { code: 24, kind: Uncategorized, message: "Too many open files" }', "raise it (ulimit -n"),
        ("index out of bounds", "unexpected Panic: index out of bounds; this is a defect"),
    ],
)
def test_a_panic_of_a_library_is_one_line(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import click

    from tokendynamics import cli as entry

    @click.command("panics")
    def panics() -> None:
        raise Panic(text)

    monkeypatch.setitem(entry.commands.commands, "panics", panics)
    assert call(["panics"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of files are bytes on Linux")
def test_a_folder_whose_name_is_not_utf_8_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out, spec = os.fsdecode(b"o\xff"), os.fsdecode(b"s\xfe.toml")
    Path(spec).write_text(FREE_FLOW)
    for number, encoding in enumerate(("ascii", "utf-8")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as replaced:
            replaced.setattr(sys, "stdout", stream)
            code = call(["simulate", spec, "--out", f"{out}{number}", *["--json"][:number]])
        assert code in (0, 1, 2)
        assert "defect" not in stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
