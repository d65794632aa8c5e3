"""The papers behind the package, by the keys that docstrings, statements and figures cite them with."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType


@dataclass(frozen=True)
class Paper:
    """A paper in the version whose statements and figures are counted here.

    Attributes:
        key: What it is cited by.
        title: Its title.
        authors: Given and family name of each.
        year: In which that version appeared; None for a source without one.
        arxiv: Its identifier on arXiv, with the version where there are several; None where it has none.
        read: How its statements were read: the paper itself, or what stood for it. What was not read in the paper can
            differ from it in a hypothesis or a constant.
    """

    key: str
    title: str
    authors: tuple[tuple[str, str], ...]
    year: int | None = None
    arxiv: str | None = None
    read: str = "in the paper"

    def __str__(self) -> str:
        """Return a reference in one line.

        >>> print(PAPERS["logical"])
        Evgeniy Shin, Heinrich Matzinger: Is logical analysis ... in the fully connected part? (2025, arXiv:2501.11765)
        """
        printed = [str(part) for part in (self.year, self.arxiv and f"arXiv:{self.arxiv}") if part]
        names = ", ".join(f"{given} {family}" for given, family in self.authors)
        return f"{names}: {self.title}" + (f" ({', '.join(printed)})" if printed else "")


def _sources() -> Iterator[Paper]:
    text = files("tokendynamics.theorems").joinpath("papers.toml").read_text(encoding="utf-8")
    for key, entry in tomllib.loads(text).items():
        yield Paper(key, entry.pop("title"), tuple(map(tuple, entry.pop("authors"))), **entry)


SOURCES: Mapping[str, Paper] = MappingProxyType({paper.key: paper for paper in _sources()})
"""By key: the three papers, and those whose statements are in the atlas."""
PAPERS: Mapping[str, Paper] = MappingProxyType({key: SOURCES[key] for key in ("asymptotic", "logical", "positional")})
"""By key. README.md and CITATION.cff say the same."""
