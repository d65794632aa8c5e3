"""A pipe, a device or a socket is no place for a file: a run of root would replace /dev/null for the whole machine."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tokendynamics.numerics import StorageError
from tokendynamics.provenance.whole import whole_file

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(("make", "came"), [(os.mkfifo, "a named pipe"), (_socket, "a socket")])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None], came: str, linked: bool) -> None:
    place = tmp_path / "place"
    make(place)
    (tmp_path / "link").symlink_to(place)
    target = tmp_path / ("link" if linked else "place")
    wanted = f"{target.name}: expected the path of a file, got {came}"
    with pytest.raises(StorageError, match=wanted), whole_file(target) as made:
        made.write_text("x")
    assert not stat.S_ISREG(place.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "place"]


def test_a_link_to_a_file_or_to_nothing_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "second"):
        with whole_file(tmp_path / "link") as made:
            made.write_text(text)
        assert (tmp_path / "file").read_text() == text
