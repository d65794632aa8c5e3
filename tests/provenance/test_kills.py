"""kill −9 at any moment of a command that writes: the older or the newer results are whole, the next run clears up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("kill_driver.py")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("command", "kills"), [("simulate", 20), ("diagnose", 16), ("learn", 16), ("convert", 16)])
def test_a_killed_command_leaves_whole_results_and_the_next_one_succeeds(
    command: str, kills: int, tmp_path: Path
) -> None:
    if command == "convert":
        pytest.importorskip("gguf")
    done = subprocess.run(
        [sys.executable, str(DRIVER), command, str(tmp_path), str(kills)],
        capture_output=True, text=True, check=False, timeout=1500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["kills"] == kills
    assert record["steps"] > 10
    assert {"old"} <= set(record["left"]) <= {"old", "new", "between"}
    print(record)
