"""A page: its registry, templates, scripts and styles, foreign text and the manifest on it, and its file."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import singledispatch
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tokendynamics.figures.figure import NO_MARKUP, Section
from tokendynamics.figures.palette import dark_rules
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.printable import printable
from tokendynamics.provenance.whole import whole_file
from tokendynamics.words import Convention, duration, manifest_entries, moment, plural, sentence, written


@singledispatch
def page_of(result: Any) -> str:
    """Return the page of a result as HTML; functions for classes of results are registered in the modules of pages.

    Raises:
        ArgumentTypeError: There is no page for results of this class.
    """
    raise ArgumentTypeError("result", "a result that has a page", shown(result))


def render(
    template: str,
    *,
    title: str,
    sections: Sequence[Section],
    conventions: Sequence[Convention],
    manifest: Mapping[str, Any],
    verdict_title: str = "Result",
    files: Sequence[str] = (),
    scripts: Sequence[str] = (),
    sheets: Sequence[str] = (),
    about: Markup = NO_MARKUP,
    **parts: Any,
) -> str:
    """Return a page as HTML that needs nothing else: no request, no script to be read, all foreign text escaped.

    `template` is a child of ``base.html.jinja``, which has what every page has, and asks for `parts` beyond that. The
    first section, ``#verdict``, is the template's own; `sections` are those that the navigation lists after it.
    `scripts` and `sheets` follow those of every page. `about` stands among the conventions, at the end: from `piece`.
    """
    script, sheet = "\n\n".join(map(resource, ("shared.js", *scripts))), style("page.css", *sheets)
    return (
        templates()
        .get_template(template)
        .render(
            title=title,
            verdict_title=verdict_title,
            sections=sections,
            conventions=conventions,
            manifest=manifest_entries(manifest),
            command=str(manifest.get("command", "")),
            data_files=[(name, quote(name)) for name in files],
            script=Markup(script),  # noqa: S704  # the project's own files
            style=Markup(sheet),  # noqa: S704
            about=about,
            policy=content_security_policy(script, sheet),
            **parts,
        )
    )


def conventions(*keys: str, **words: Any) -> tuple[Convention, ...]:
    """Return the conventions of a page by their keys in conventions.toml, with the words put into their braces."""
    stored = tomllib.loads(resource("conventions.toml"))
    return tuple(Convention(**{part: text.format(**words) for part, text in stored[key].items()}) for key in keys)


def piece(template: str, **parts: Any) -> Markup:
    """Return what one template makes of its parts, all foreign text escaped.

    Args:
        template: Its name.
        parts: What it asks for.
    """
    return Markup(templates().get_template(template).render(**parts))  # noqa: S704  # escaped by the template


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
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def templates() -> Environment:
    """Return templates that escape whatever is put into them."""
    made = Environment(
        loader=PackageLoader("tokendynamics.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"plural": plural, "prose": prose, "sentence": sentence, "subscripts": subscripts}
    return made


def _finalize(value: Any) -> Any:
    """Make every text that enters the page visible; markup of our own is left unchanged."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def resource(name: str) -> str:
    """Return the text of one of the project's own files."""
    return files("tokendynamics.report").joinpath("template", name).read_text(encoding="utf-8").strip()


def style(*names: str) -> str:
    """Return the style sheets of those names, and the dark twins of the drawings' colours."""
    sheets = "\n".join(resource(name) for name in names)
    return f"{sheets}\n@media screen and (prefers-color-scheme: dark) {{\n{dark_rules()}\n}}"


def write_page(html: str, path: str | Path, *, max_bytes: int | None = None) -> Path:
    """Write a page as one file: made beside its place and then renamed, so that no failure leaves half of it."""
    target = Path(path)
    if target.is_dir():
        raise ArgumentValueError("path", "a file name", f"the folder {target}", "add a name such as report.html")
    page = html.encode("utf-8", "backslashreplace")
    if max_bytes is not None and len(page) > max_bytes:
        came = f"a page of {len(page)} bytes"
        raise ArgumentValueError("max_bytes", f"at most {max_bytes}", came, "use fewer or shorter prompts")
    with whole_file(target) as made:
        made.write_bytes(page)
    return target


def visible(text: str) -> str:
    r"""Return `printable` text of several lines, as it stands on a page.

    >>> visible("a\x00b\u202ec")
    'a␀b‹U+202E›c'
    """
    return printable(text, keep="\n\t")


_SUBSCRIPT = re.compile(r"(?<![\w.])([A-Za-zΑ-ω])_([A-Za-z]|head|true)(?![A-Za-z0-9_]|\.\w)")
_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|s|MB|GB)(?!\w)|× 10)|(?<=×) (?=10)|(?<=κ′) (?=[−\d])|(?<=κ) (?=[−\d])|(?<=CI) (?=[−\d])"
)


def prose(text: str) -> str:
    r"""Return a sentence of the page in which no line ends between a number and its unit, power of ten or symbol.

    >>> prose("12 % after 3 s, 1.3 × 10⁻⁹ of 5 layers (κ′ 0.48, 90 % CI −0.1 to 1)")
    '12\xa0% after 3\xa0s, 1.3\xa0×\xa010⁻⁹ of 5 layers (κ′\xa00.48, 90\xa0% CI\xa0−0.1 to 1)'
    """
    return _BEFORE_UNIT.sub("\u00a0", visible(text))


def subscripts(text: str) -> Markup:
    """Return escaped `prose` in which W_Q, d_head and q_true have real subscripts; names of modules stay as they are.

    >>> subscripts("W_Q W_Kᵀ < 1, mlp.c_proj.bias and q_proj")
    Markup('W<sub>Q</sub> W<sub>K</sub>ᵀ &lt; 1, mlp.c_proj.bias and q_proj')
    """
    shown = str(escape(prose(text)))
    return Markup(_SUBSCRIPT.sub(r"\1<sub>\2</sub>", shown))  # noqa: S704  # escaped above


_LONGEST = 400
"""Letters of one entry; the files have it in full."""


def shortened(value: Any) -> Any:
    """Return an entry of the manifest without values too long for a page, such as matrices and initial states."""
    if isinstance(value, Mapping):
        return {name: shortened(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    text = written(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(',', 1)[0]}, …"


def made(manifest: Mapping[str, Any], seconds: float | None = None) -> list[tuple[str, str]]:
    """Return when it was made and with which versions, as far as is recorded.

    Args:
        manifest: See `tokendynamics.provenance`.
        seconds: How long it took; None for what the manifest says.
    """
    facts, calls = [], manifest.get("runs") or [manifest]
    if "started" in calls[0]:
        took = sum(call.get("duration_seconds") or 0.0 for call in calls) if seconds is None else seconds
        several = f", in {plural(len(calls), 'call')}" if len(calls) > 1 else ""
        facts.append(("Made", f"{moment(calls[0]['started'])}, in {duration(took)}{several}"))
    return [*facts, *([("With", written(manifest["versions"]))] if manifest.get("versions") else [])]
