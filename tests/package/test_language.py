"""Texts are in plain technical English: words that readers would have to translate stay out of code and documents."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

# Each may continue on the next line: within a comment, a list of a document, or a string in several parts.
PHRASES = [
    "a piece of", "anybody's", "are well", "by their law", "goes on", "hang on", "hangs on", "held against",
    "held beside", "hung on", "is at home", "is none", "is told", "left as it is", "let alone", "made of",
    "next to nothing", "no collapse", "nought", "of one's own", "so many", "than not", "told apart",
    "twice over", "what comes of", "what is to be said", "whole or not there",
]  # fmt: skip
PLACES = ["src", "docs", "reproductions", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
TEXTS = {".css", ".jinja", ".js", ".json", ".md", ".py", ".pyi", ".svg", ".toml", ".txt"}

_BETWEEN_WORDS = r"""(?:\s|["'#*>]|\b[fr]+(?=["']))+"""


def _words(phrase: str) -> str:
    """Match a phrase as whole words over the end of a line; `is None` is Python, not a phrase."""
    return _BETWEEN_WORDS.join("(?-i:none)" if word == "none" else re.escape(word) for word in phrase.split())


_PHRASE = re.compile(rf"\b(?:{'|'.join(map(_words, PHRASES))})\b", re.IGNORECASE)


def phrases_in(text: str) -> list[tuple[int, str]]:
    """Return line number and words of every listed phrase of a text."""
    return [(text.count("\n", 0, match.start()) + 1, match.group()) for match in _PHRASE.finditer(text)]


def _files(place: str) -> list[Path]:
    path = ROOT / place
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in TEXTS)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_listed_phrases_do_not_occur(place: str) -> None:
    occurrences = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}"
        for path in _files(place)
        for line, words in phrases_in(path.read_text(encoding="utf-8"))
    ]
    assert not occurrences, "\n".join(occurrences)


@pytest.mark.parametrize("phrase", PHRASES)
def test_every_phrase_is_recognised_in_any_case_and_over_the_end_of_a_line(phrase: str) -> None:
    assert [words for _, words in phrases_in(f"It {phrase.upper()}.".replace("NONE", "none"))]
    first, _, rest = phrase.partition(" ")
    for joint in ("\n", "\n    # ", ' "\n    f"', "\n> "):
        assert not rest or phrases_in(f"\n\nIt {first}{joint}{rest} it")[0][0] == 3


@pytest.mark.parametrize(
    "text",
    ["if value is None:", "a homemade offer", "thought", "go on", "so much", "a piece, of all", "the gangs on it"],
)
def test_words_that_only_resemble_a_phrase_are_allowed(text: str) -> None:
    assert phrases_in(text) == []


VAGUE = {"found", "each", "own", "said", "told", "moved", "ours", "theirs", "mine"}
MOST_VAGUE = {"diagnosis": 1, "observables": 1, "training": 1}
"""How often a package gives a variable, an argument or a field one of these names; others and tests never do.

The three are fields that a user reads: of shares, of the first difference of a comparison, of a change in training.
"""


def vague_names_in(source: str) -> list[tuple[int, str]]:
    """Return line and name wherever a variable, argument or field is given a name that does not say what it holds."""
    named = [
        (node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    return sorted((line, name) for line, name in named if name in VAGUE)


@pytest.mark.long
def test_names_that_do_not_say_what_they_hold_become_fewer() -> None:
    library, places = ROOT / "src" / "tokendynamics", defaultdict[str, list[str]](list)
    for path in [*library.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        package = path.relative_to(library).parts[0] if path.is_relative_to(library) else "tests"
        for line, name in vague_names_in(path.read_text(encoding="utf-8")):
            places[package].append(f"{path.relative_to(ROOT)}:{line}: {name}")
    more = [place for package, named in places.items() if len(named) > MOST_VAGUE.get(package, 0) for place in named]
    assert not more, "\n".join(more)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("found = 1\nfound += 1", [1, 2]),
        ("def f(own, *, told=0, **said): pass", [1, 1, 1]),
        ("[each for each in x]\nlambda each: each", [1, 2]),
        ("for place, (mine, theirs) in x: pass", [1, 1]),
        ("if (ours := x): pass", [1]),
        ("class A:\n    moved: float = 0.0", [2]),
        ("print(found)\nx.found = 1\ndef found(): pass\nf(own=1)\nfounder = 'each'", []),
    ],
)
def test_names_are_counted_where_they_are_given(source: str, lines: list[int]) -> None:
    assert [line for line, _ in vague_names_in(source)] == lines


def test_commits_are_checked_by_what_make_lint_runs() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().removeprefix("@").replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == commands
    assert local["repo"] == "local"
