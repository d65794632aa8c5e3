"""A run of `learn` that is killed at any change of the file system is resumed to the same weights."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from tokendynamics.circuits import PairTask
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.circuits.learning import _run as running

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")
TASK = PairTask([[0.3, -1.0], [0.5, 0.2]], positions=3)


def learned(folder: Path) -> LearningRecord:
    return learn(TASK, "solution-1", batch=5, steps=2, inner=2, folder=folder)


def killed_at(moment: int, folder: Path) -> bool:
    """Learn in a copy of this process that is killed before the change with this number; return whether it was."""
    child = os.fork()
    if not child:
        done = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal done
            written = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & os.O_CREAT)
            if (event in CHANGES or written) and str(folder.resolve().parent) in str(arguments[0]):
                if done == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        sys.addaudithook(hook)
        code = 1
        try:
            learned(folder)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True])
def test_a_run_killed_at_any_moment_is_resumed_to_the_same_weights(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_SAVES", 0.0)
    whole = learned(tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    moments, half = 0, 0
    for moment in range(1000):
        place = tmp_path / "run" / "target"
        place.mkdir(parents=True)
        folder = place.parent / "link" if linked else place
        if linked:
            folder.symlink_to(place, target_is_directory=True)
        if not killed_at(moment, folder):
            break
        moments += 1
        half += (place / "parameters.npz").exists() and not (place / "record.json").exists()
        resumed = learned(folder)
        assert resumed.losses == whole.losses
        assert all(torch.equal(value, resumed.parameters[name]) for name, value in whole.parameters.items())
        assert sorted(path.name for path in place.iterdir()) == names
        assert [path.name for path in place.parent.iterdir() if ".partial-" in path.name] == []
        shutil.rmtree(place.parent)
    assert moments > 10
    assert half > 0  # the last swap was broken off between its two files
