"""What Sphinx and its theme leave out for readers who use a keyboard or hear a page, put into the finished pages."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*?</dd>\n)+)</dl>', re.DOTALL)

_REPLACED = (
    (re.compile(r"<pre(?![^>]*tabindex)"), '<pre tabindex="0"'),  # long lines scroll by keyboard
    (re.compile(r'<aside class="sidebar-drawer">'), '<aside class="sidebar-drawer" aria-label="Pages">'),
    (re.compile(r'<aside class="toc-drawer'), '<aside aria-label="On this page" class="toc-drawer'),
    (re.compile(r"<th([^>]*)><p></p></th>"), r"<td\1></td>"),  # a corner of a table heads nothing
    (re.compile(r'<div class="math"'), '<div class="math" tabindex="0"'),
    (re.compile(r'<p class="caption" role="heading">'), '<p class="caption" role="heading" aria-level="2">'),
    (re.compile(r'(<div class="table-wrapper)([^"]*)"'), r'\1\2" tabindex="0"'),
)


def accessible(page: str) -> str:
    """Return the text of a page with these things mended."""
    page = _PARAMETERS.sub(lambda match: _as_lines(match[1]), page)
    for pattern, replacement in _REPLACED:
        page = pattern.sub(replacement, page)
    return page


def _as_lines(parameters: str) -> str:
    """Return the parameters of a signature, which are no list of definitions, as lines."""
    lines = parameters.replace("<dd>", "<div>").replace("</dd>", "</div>")
    return f'<div class="sig-parameters">\n{lines}</div>'


def rewrite(app: Sphinx, exception: Exception | None) -> None:
    """Rewrite the pages of a build that succeeded."""
    if exception is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        if path.name == "explorer-presets.html":
            continue
        before = path.read_text(encoding="utf-8")
        after = accessible(before)
        if path.name == "search.html" and "<h1" not in after:
            after = after.replace('id="furo-main-content">', 'id="furo-main-content"><h1>Search</h1>')
        if after != before:
            path.write_text(after, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Rewrite after the build."""
    app.connect("build-finished", rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
