"""The Python of the documents runs as it is printed, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = {
    path.name: blocks
    for path in sorted((ROOT / "docs").glob("*.md"))
    if (blocks := re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
}


def test_there_are_blocks_to_run() -> None:
    assert {"checkpoints.md", "depth.md", "diagnose.md", "simulate.md"} <= BLOCKS.keys()


MARKS = {"diagnose.md": [pytest.mark.slow], "remedy.md": [pytest.mark.slow, pytest.mark.pretrained]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in BLOCKS])
def test_the_python_of_a_document_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCKS[name]:
        exec(compile(block, name, "exec"), names)  # noqa: S102
        printed = capsys.readouterr().out
        for said in re.findall(r"print\(.*\)  # (.+?)(?: …)?$", block, re.MULTILINE):
            assert said in printed
