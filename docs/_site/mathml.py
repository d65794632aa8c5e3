"""Formulas as MathML, made when the site is built: a browser draws them without a script."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_KNOWN = {r"\thinspace": r"\,", r"\cr": r"\\\\", r"\dots": r"\ldots"}
"""Commands that the converter lacks, by others with the same meaning."""
_UNKNOWN = re.compile("|".join(rf"{re.escape(command)}(?![a-zA-Z])" for command in _KNOWN))

_INDEX_BELOW = re.compile(
    r"<munderover>\s*(<mi>[^<]*</mi>)\s*(<mi>[^<]*</mi>|<mn>[^<]*</mn>|<mrow>(?:(?!<mrow>).)*?</mrow>)\s*"
    r'(<mo stretchy="false">[˙ˆˉ˜]</mo>)\s*</munderover>',
    re.DOTALL,
)
"""The converter puts the index of an accented letter below it, as the limit of a sum."""


def _mathml(node: nodes.Element, *, block: bool) -> str:
    source = _UNKNOWN.sub(lambda match: _KNOWN[match[0]], node.astext())
    try:
        text = tex2mathml(source, as_block=block)
    except MathError as error:
        raise ExtensionError(f"{node.source}:{node.line}: {source}: {error}") from error
    return _INDEX_BELOW.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', text)


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_mathml(node, block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.Element) -> None:
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    translator.body.append(f'<div class="math">{number}{_mathml(node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
