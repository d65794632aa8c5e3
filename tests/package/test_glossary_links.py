"""The first mention of a term on a page of explanation, or of how-to, is a link to the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for folder in ("explanation", "how-to") for path in (DOCS / folder).glob("*.md"))

TERMS = {
    "κ′": r"κ′",
    "κ": r"κ(?![′₀])",
    "line excess": r"(?i:line excess)",
    "massive token": r"(?i:massive (?:tokens?|activations?))",
    "attention sink": r"(?i:attention sinks?)",
    "effective rank": r"(?i:effective ranks?)",
    "regime": r"(?i:regimes?)",
    "QK circuit": r"QK(?: circuits?)?",
    "OV circuit": r"OV(?: circuits?)?",
    "residual stream": r"(?i:residual streams?)",
    "anisotropy": r"(?i:anisotropy)",
    "rank collapse": r"(?i:rank collapse)",
    "consensus": r"(?i:consensus)",
    "logit": r"(?i:logits?)",
    "common share": r"(?i:common share)",
    "certificate": r"(?i:certificates?)",
    "lever": r"(?i:levers?)",
    "remedy": r"(?i:remed(?:y|ies))",
    "untrained network": r"(?i:untrained networks?)",
    "causal mask": r"(?i:causal masks?)",
    "rotary positions": r"(?i:rotary positions?)",
}
"""Terms of the glossary, and the forms in which a sentence has them."""

_BESIDE_SENTENCES = re.compile(
    r"^```.*?^```|^\$\$.*?\$\$$|^#[^\n]*$|!?\[[^\]]*\]\([^)]*\)|(\{term\}`[^`]*`)|`[^`]*`|\$[^$\n]+\$|\"[^\"\n]*\""
    r"|^\*\*Question\.\*\*.*?(?=\n\n)",
    re.MULTILINE | re.DOTALL,
)
"""Code, formulas, headings, links, quoted output and the opening question; as a group a link to a term, which stays."""

_LINK = re.compile(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`")


def unlinked(text: str) -> Iterator[str]:
    """Yield the terms whose first mention in the sentences of a page is no link."""
    sentences = _BESIDE_SENTENCES.sub(lambda match: match[1] or "", text)
    for term, form in TERMS.items():
        linked = [match.start() for match in _LINK.finditer(sentences) if re.fullmatch(form, match[1])]
        prose = _LINK.sub(lambda match: " " * len(match[0]), sentences)
        mention = re.search(rf"(?<!\w)(?:{form})(?!\w)", prose)
        if mention and min(linked, default=len(sentences)) > mention.start():
            yield term


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_first_mention_of_a_term_is_a_link(path: Path) -> None:
    assert list(unlinked(path.read_text(encoding="utf-8"))) == []


def test_every_term_is_in_the_glossary() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    assert [term for term in TERMS if f"\n{term}\n" not in text] == []


def test_a_mention_before_the_link_is_seen() -> None:
    assert list(unlinked("# κ\n\n`κ` of a {term}`logit`, κ, and {term}`κ`.\n")) == ["κ"]
    assert list(unlinked("The {term}`logits <logit>` are logits.\n")) == []
    assert list(unlinked("Regimes differ.\n")) == ["regime"]
