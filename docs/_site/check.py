"""Check the built site: links that lead nowhere, requests to other hosts, and its size. Run by `make docs`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGEST = 40e6
"""Bytes of the whole site."""

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
"""Attributes whose address a browser requests by itself; besides, `href` of a `link` that is not only a relation."""

_REQUESTED_RELATIONS = {"stylesheet", "icon", "preload", "shortcut icon"}


class Page(HTMLParser):
    """The links, requests and anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.requests: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one tag refers to."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in _LOADED and _LOADED[tag] in values:
            self.requests.append(values[_LOADED[tag]])
        if tag == "link" and values.get("rel") in _REQUESTED_RELATIONS:
            self.requests.append(values["href"])


def problems(folder: Path) -> list[str]:
    """Return one line for each link that leads nowhere, each request to another host, and a site that is too large."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        shown = path.relative_to(folder).as_posix()
        lines += [f"{shown}: requests {url[:100]}" for url in page.requests if urlsplit(url).netloc]
        for url in {*page.links, *page.requests}:
            if not _leads_somewhere(url, path, pages):
                lines.append(f"{shown}: {url} leads nowhere")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > LARGEST:
        lines.append(f"the site has {size / 1e6:.0f} MB, at most {LARGEST / 1e6:.0f} MB allowed")
    return lines


def _leads_somewhere(url: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return False
    fragment = unquote(parts.fragment)
    return not fragment or target not in pages or fragment in pages[target].anchors


def main() -> int:
    """Print the problems; 1 if there are any."""
    lines = problems(Path(sys.argv[1]).resolve())
    print(*lines, sep="\n", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
