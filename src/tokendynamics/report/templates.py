"""The project's own templates, scripts and style sheets, and how text enters them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tokendynamics.report.palette import dark_rules
from tokendynamics.report.text import plural, sentence, subscripts, visible


def environment() -> Environment:
    """Return templates that escape whatever is put into them."""
    made = Environment(
        loader=PackageLoader("tokendynamics.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"plural": plural, "sentence": sentence, "subscripts": subscripts}
    return made


def _finalize(value: Any) -> Any:
    """Make every text that enters the page visible; markup of our own is left as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def resource(name: str) -> str:
    """Return the text of one of the project's own files."""
    return files("tokendynamics.report").joinpath("template", name).read_text(encoding="utf-8").strip()


def style(*names: str) -> str:
    """Return the style sheets of those names, and the dark twins of the drawings' colours."""
    sheets = "\n".join(resource(name) for name in names)
    return f"{sheets}\n@media screen and (prefers-color-scheme: dark) {{\n{dark_rules()}\n}}"
