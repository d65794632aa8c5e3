"""Rules of language that every sentence of a result keeps, over the words of small results of several kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest

import tokendynamics as td
from diagnosis.test_heads import ids_of, network_of
from package.test_language import phrases_in
from tokendynamics.diagnosis.result import further_in_words
from tokendynamics.figures.figure import Figure, Section
from tokendynamics.report.diagnosis import _sections
from tokendynamics.training.monitor.looks import Look
from tokendynamics.training.monitor.series import Series
from tokendynamics.words import Convention
from training.monitored import look

LONGEST = 30
"""Words of a sentence, those in brackets apart; 25 is the aim."""

_SYMBOLS = re.compile(r"κ|α|λ|∂|\bE\b|ρ")
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z“‖Σ0-9])|(?<=:)\s+(?=Line:)")


def problems_of(text: str, *, first_screen: bool = False) -> list[str]:
    """Return which rules a text breaks, each with what breaks it."""
    broken = [f"double space: {text!r}"] if "  " in text.strip() else []
    patterns = {
        "plural": r"\b1 (?:layers|texts|parts|heads|tokens|images|inputs|prompts|remedies|words|steps|measurements)\b",
        "undefined": r"\bn[ao]n\b|\bNone\b(?! (?:of|was))|\binf\b",
        "raw error": r"expected .+, got ",
        "space before a sign": r" [,.;:](?:\s|$)",
        "two signs": r"[.,;:]{2}(?!\.)|\.\s*,",
        "repeated word": r"\b(\w+) \1\b",
    }
    broken += [f"{name}: {text!r}" for name, pattern in patterns.items() if re.search(pattern, text)]
    broken += [f"bracket {one}: {text!r}" for one, other in ("()", "[]", "“”") if text.count(one) != text.count(other)]
    broken += [f"phrase {words!r}: {text!r}" for _, words in phrases_in(text)]
    if first_screen and (symbol := _SYMBOLS.search(text)):
        broken.append(f"symbol {symbol[0]}: {text!r}")
    for sentence in _SENTENCE.split(text):
        words = [word for word in _without_brackets(sentence).split() if re.search(r"\w", word)]
        broken += [f"{len(words)} words: {sentence!r}"] * (len(words) > LONGEST)
    for value, low, high in re.findall(r"([−+]?[\d.]+) \(\d+ % CI ([−\d.]+)(?:–| to )([−\d.]+)\)", text):
        places = [len(number.partition(".")[2]) for number in (value, low, high)]
        broken += [f"digits of {value}: {text!r}"] * (places[0] > max(places[1:]))
    return broken


def _without_brackets(text: str) -> str:
    while (shorter := re.sub(r"\([^()]*\)|“[^“”]*”", "", text)) != text:
        text = shorter
    return text


def captions_of(sections: list[Section]) -> Iterator[str]:
    for section in sections:
        yield from (section.title, *section.sentences, *section.notes)
        yield from (table.caption for table in section.tables)
        for figure in (*section.figures, *section.variants):
            yield from _of_figure(figure)


def _of_figure(figure: Figure) -> Iterator[str]:
    yield from (figure.caption, figure.title, figure.description, figure.question)
    if figure.table is not None:
        yield figure.table.caption


def clauses_of(conventions: Sequence[Convention]) -> list[str]:
    """Return the clauses of conventions, which are lists of them."""
    parts = (part for convention in conventions for part in (convention.choice, convention.otherwise))
    return [clause for part in parts for clause in re.split(r"[;:] ", part)]


@cache
def diagnoses() -> list[td.Diagnosis]:
    everything = td.diagnose(network_of("llama"), ids_of(), remedies=True, joint=True, baseline=None)
    images = {**vars(everything), "trace": everything.trace.assign_attrs(prompt_noun="image")}
    return [everything, td.diagnose(network_of("bert"), ids_of(1)), td.Diagnosis(**images)]


@pytest.mark.long
def test_sentences_of_diagnoses_keep_the_rules(known_layouts: None) -> None:
    broken = []
    for diagnosis in diagnoses():
        broken += [
            problem
            for name, text in diagnosis.verdict.lines
            for problem in problems_of(text, first_screen=name != "How sure")
        ]
        texts = [*further_in_words(diagnosis), *captions_of(_sections(diagnosis)), *diagnosis.summary().splitlines()]
        texts += clauses_of(diagnosis.conventions)
        broken += [problem for text in texts for problem in problems_of(text.removeprefix("- "))]
    assert not broken, "\n".join(dict.fromkeys(broken))


def test_captions_call_inputs_what_the_sentences_call_them(known_layouts: None) -> None:
    everything, _, images = diagnoses()
    for diagnosis, noun, others in ((everything, "text", ("image",)), (images, "image", ())):
        captions = [text for text in captions_of(_sections(diagnosis)) if text not in further_in_words(diagnosis)]
        # Prompts have names such as “prompt 1”, which are their user's.
        named = [text for text in captions if re.search(r"\bprompts?\b(?! \d)", text)]
        assert not named
        assert not [text for text in captions for other in others if re.search(rf"\b{other}s?\b", text)]
        assert sum(noun in text for text in captions) > 10


def test_sentences_of_comparisons_keep_the_rules(known_layouts: None) -> None:
    first, other = network_of("llama"), network_of("llama")
    other.model.layers[1].self_attn.o_proj.weight.data *= 3
    comparison = td.compare(first, other, texts=ids_of(), names=("one", "other"), halved=True)
    texts = [finding.text for finding in comparison.sentences]
    texts += clauses_of(comparison.conventions)
    broken = [problem for text in (*texts, *comparison.markdown().splitlines()) for problem in problems_of(text)]
    assert "3× as large" in str(comparison)
    assert not broken, "\n".join(dict.fromkeys(broken))


def test_sentences_of_monitors_keep_the_rules() -> None:
    several = Series({"model": "a network", "every": 1}, [["a", "b"]] * 3)
    spread, point = (0.1, 0.01, 0.0), (0.1, 0.9, 0.0)
    for entry in (
        look(0, spread, spread, half=0.01), look(1, point, spread, half=0.01), look(2, point, point, half=0.01),
        Look(3, "not finite at layer 2"), look(4, spread, point, half=0.01, after_norm=point),
    ):  # fmt: skip
        several.add(entry)
    two = Series({"model": "a network", "prompt_noun": "image"}, [["a", "b"]] * 2)
    two.add(look(0, spread, half=np.nan))
    broken = []
    for series in (several, two):
        texts = [series.headline, *series.findings, *(change.text for change in series.changes)]
        broken += [problem for text in texts for problem in problems_of(text)]
    assert "three different images" in " ".join(two.findings)
    assert not broken, "\n".join(dict.fromkeys(broken))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("It has 1 layers.", "plural"), ("κ is nan.", "undefined"), ("It is None.", "undefined"),
        ("texts: expected two, got one.", "raw error"), ("A  b.", "double space"), ("It is (open.", "bracket"),
        ("It is is.", "repeated"), ("It is it , so.", "space"), ("It is said..", "two signs"),
        ("κ is 0.123 (90 % CI 0.1–0.2).", "digits"), (f"{'word ' * 31}.", "31 words"), ("All is made of it.", "phrase"),
    ],
)  # fmt: skip
def test_each_rule_is_seen_where_it_is_broken(text: str, rule: str) -> None:
    assert any(problem.startswith(rule) for problem in problems_of(text)), problems_of(text)
    assert not problems_of("κ is 0.12 (90 % CI 0.10–0.20). None of the 2 layers does it, 1 layer apart.")
    assert [problem[:8] for problem in problems_of("κ is 1.", first_screen=True)] == ["symbol κ"]
