"""The project's own templates, scripts, style sheets and content-security policy, and how text enters them."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tokendynamics.report.kit._palette import dark_rules
from tokendynamics.report.kit._text import plural, sentence, subscripts, visible


def content_security_policy(script: str, style: str) -> str:
    """Return the policy for a page whose only script and style elements hold exactly these texts.

    >>> content_security_policy("", "").split("; ")[0]
    "default-src 'none'"
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_source(script)}",
            f"style-src {_source(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def environment() -> Environment:
    """Return templates that escape whatever is put into them."""
    made = Environment(
        loader=PackageLoader("tokendynamics.report.kit", "template"),
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
    return files("tokendynamics.report.kit").joinpath("template", name).read_text(encoding="utf-8").strip()


def style(*names: str) -> str:
    """Return the style sheets of those names, and the dark twins of the drawings' colours."""
    sheets = "\n".join(resource(name) for name in names)
    return f"{sheets}\n@media screen and (prefers-color-scheme: dark) {{\n{dark_rules()}\n}}"
