"""Writes the report to a file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.provenance.whole_file import whole_file
from tokendynamics.report.page import render_report


def write_report(diagnosis: Diagnosis, path: str | Path, *, max_bytes: int | None = None) -> Path:
    """Write the report of `diagnosis` as one HTML file.

    It is made beside its place and then renamed: a failure or a kill leaves neither a half-written report nor a
    damaged older one.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
        path: The file to write; its folder is made if need be.
        max_bytes: Refuse to write a page larger than this; None for no limit.

    Returns:
        The path written.

    Raises:
        ArgumentValueError: `path` is a folder, or the page would be larger than `max_bytes`.
    """
    return write_page(render_report(diagnosis), path, max_bytes=max_bytes)


def write_page(html: str, path: str | Path, *, max_bytes: int | None = None) -> Path:
    """Write a page as one file, whole or not at all; arguments and errors as in `write_report`."""
    target = Path(path)
    if target.is_dir():
        raise ArgumentValueError(
            expected("path", "a file name", f"the folder {target}", "add a name such as report.html")
        )
    page = html.encode("utf-8")
    if max_bytes is not None and len(page) > max_bytes:
        came = f"a page of {len(page)} bytes"
        raise ArgumentValueError(expected("max_bytes", f"at most {max_bytes}", came, "use fewer or shorter prompts"))
    with whole_file(target) as made:
        made.write_bytes(page)
    return target
