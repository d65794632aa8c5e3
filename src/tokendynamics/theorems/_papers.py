"""The three papers behind the package, by the keys that docstrings, statements and figures cite them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Paper:
    """A paper as it names itself; what it does not print is None.

    Attributes:
        key: What it is cited by.
        title: Its title.
        authors: Given and family name of each.
        year: Of the date it prints.
        arxiv: The arXiv identifier it prints for itself.
    """

    key: str
    title: str
    authors: tuple[tuple[str, str], ...]
    year: int | None = None
    arxiv: str | None = None

    def __str__(self) -> str:
        """Return a reference in one line.

        >>> print(PAPERS["logical"])
        Evgeniy Shin, Heinrich Matzinger: Is logical analysis ... in the fully connected part? (2025)
        """
        printed = [str(part) for part in (self.year, self.arxiv and f"arXiv:{self.arxiv}") if part]
        names = ", ".join(f"{given} {family}" for given, family in self.authors)
        return f"{names}: {self.title}" + (f" ({', '.join(printed)})" if printed else "")


_PAPERS = (
    Paper(
        key="asymptotic",
        title="The asymptotic behavior of attention in transformers",
        authors=(("Á.", "Rodríguez Abella"), ("J. P.", "Silvestre"), ("P.", "Tabuada")),
    ),
    Paper(
        key="logical",
        title=(
            "Is logical analysis performed by transformers taking place in self-attention or in the fully connected "
            "part?"
        ),
        authors=(("Evgeniy", "Shin"), ("Heinrich", "Matzinger")),
        year=2025,
    ),
    Paper(
        key="positional",
        title="Dynamical Properties of Tokens in Self-Attention and Effects of Positional Encoding",
        authors=(
            ("Duy-Tung", "Pham"),
            ("An", "Nguyen The"),
            ("Viet-Hoang", "Tran"),
            ("Nhan-Phu", "Chung"),
            ("Xin T.", "Tong"),
            ("Tan M.", "Nguyen"),
            ("Thieu N.", "Vo"),
        ),
    ),
)
PAPERS: Mapping[str, Paper] = MappingProxyType({paper.key: paper for paper in _PAPERS})
"""By key. README.md and CITATION.cff say the same."""
