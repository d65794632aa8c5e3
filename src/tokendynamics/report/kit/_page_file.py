"""A page as one file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.provenance._whole import whole_file


def write_page(html: str, path: str | Path, *, max_bytes: int | None = None) -> Path:
    """Write a page as one file: made beside its place and then renamed, so that no failure leaves half of it."""
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
