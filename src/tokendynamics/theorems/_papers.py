"""The papers behind the package, by the keys that docstrings, statements and figures cite them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


_PAPERS = (
    Paper(
        key="asymptotic",
        title="The asymptotic behavior of attention in transformers",
        authors=(("Á.", "Rodríguez Abella"), ("J. P.", "Silvestre"), ("P.", "Tabuada")),
        year=2024,
        arxiv="2412.02682v1",
    ),
    Paper(
        key="logical",
        title=(
            "Is logical analysis performed by transformers taking place in self-attention or in the fully connected "
            "part?"
        ),
        authors=(("Evgeniy", "Shin"), ("Heinrich", "Matzinger")),
        year=2025,
        arxiv="2501.11765",
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
        year=2025,
        arxiv="2512.03058",
    ),
)
PAPERS: Mapping[str, Paper] = MappingProxyType({paper.key: paper for paper in _PAPERS})
"""By key. README.md and CITATION.cff say the same."""

_FORMAL = "in a formalization of the field's papers in Lean, not in the paper itself"
_ABSTRACT = "in the abstract only"
_OTHERS = (
    Paper(
        "clusters",
        "The emergence of clusters in self-attention dynamics",
        (("Borjan", "Geshkovski"), ("Cyril", "Letrouit"), ("Yury", "Polyanskiy"), ("Philippe", "Rigollet")),
        2023,
        "2305.05465",
        _FORMAL,
    ),
    Paper(
        "perspective",
        "A mathematical perspective on transformers",
        (("Borjan", "Geshkovski"), ("Cyril", "Letrouit"), ("Yury", "Polyanskiy"), ("Philippe", "Rigollet")),
        2023,
        "2312.10794",
        _FORMAL,
    ),
    Paper(
        "metastability",
        "Dynamic metastability in the self-attention model",
        (("Borjan", "Geshkovski"), ("Hugo", "Koubbi"), ("Yury", "Polyanskiy"), ("Philippe", "Rigollet")),
        2024,
        "2410.06833",
        _FORMAL,
    ),
    Paper(
        "masking",
        "Clustering in causal attention masking",
        (("Nikita", "Karagodin"), ("Yury", "Polyanskiy"), ("Philippe", "Rigollet")),
        2024,
        "2411.04990",
        _FORMAL,
    ),
    Paper(
        "context",
        "Critical attention scaling in long-context transformers",
        (("Shi", "Chen"), ("Zhengjiang", "Lin"), ("Yury", "Polyanskiy"), ("Philippe", "Rigollet")),
        2025,
        "2510.05554",
        _FORMAL,
    ),
    Paper(
        "meanfield",
        "A unified perspective on the dynamics of deep transformers",
        (("Valérie", "Castin"), ("Pierre", "Ablin"), ("José Antonio", "Carrillo"), ("Gabriel", "Peyré")),
        2025,
        "2501.18322",
        _ABSTRACT,
    ),
    Paper(
        "rollout",
        "On the emergence of position bias in transformers",
        (("Xinyi", "Wu"), ("Yifei", "Wang"), ("Stefanie", "Jegelka"), ("Ali", "Jadbabaie")),
        2025,
        "2502.01951",
        _ABSTRACT,
    ),
    Paper(
        "kinetic",
        "Kinetic theory for transformers and the lost-in-the-middle phenomenon",
        (("Mitia", "Duerinckx"), ("Borjan", "Geshkovski"), ("Stefano", "Rossi")),
        2026,
        "2605.09213",
        _FORMAL,
    ),
    Paper(
        "circle",
        "Synchronization of mean-field models on the circle",
        (("Yury", "Polyanskiy"), ("Philippe", "Rigollet"), ("Andrew", "Yao")),
        2025,
        "2507.22857",
        _ABSTRACT,
    ),
    Paper(
        "lipschitz",
        "How smooth is attention?",
        (("Valérie", "Castin"), ("Pierre", "Ablin"), ("Gabriel", "Peyré")),
        2023,
        "2312.14820",
        _ABSTRACT,
    ),
    Paper(
        "rank",
        "Attention is not all you need: pure attention loses rank doubly exponentially with depth",
        (("Yihe", "Dong"), ("Jean-Baptiste", "Cordonnier"), ("Andreas", "Loukas")),
        2021,
        "2103.03404",
        "in the abstract, and the bound in summaries",
    ),
    Paper(
        "masks",
        "On the role of attention masks and LayerNorm in transformers",
        (("Xinyi", "Wu"), ("Amir", "Ajorlou"), ("Yifei", "Wang"), ("Stefanie", "Jegelka"), ("Ali", "Jadbabaie")),
        2024,
        "2405.18781",
        _ABSTRACT,
    ),
    Paper(
        "spheres",
        "Synchronization on circles and spheres with nonlinear interactions",
        (("Christopher", "Criscitiello"), ("Quentin", "Rebjock"), ("Andrew D.", "McRae"), ("Nicolas", "Boumal")),
        2024,
        "2405.18273",
        _ABSTRACT,
    ),
    Paper(
        "norms",
        "Normalization in attention dynamics",
        (("Nikita", "Karagodin"), ("Shu", "Ge"), ("Yury", "Polyanskiy"), ("Philippe", "Rigollet")),
        2025,
        "2510.22026",
        _FORMAL,
    ),
    Paper(
        "noise",
        "Phase transitions for the noisy transformer model in arbitrary dimension",
        (("Kyunghoo", "Mun"), ("Matthew", "Rosenzweig")),
        2026,
        "2606.05140",
        _ABSTRACT,
    ),
    Paper(
        "hardmax",
        "Attention's forward pass and Frank–Wolfe",
        (("Albert", "Alcalde"), ("Borjan", "Geshkovski"), ("Domènec", "Ruiz-Balet")),
        2025,
        "2508.09628",
        _FORMAL,
    ),
    Paper(
        "leaders",
        "Clustering in pure-attention hardmax transformers and its role in sentiment analysis",
        (("Albert", "Alcalde"), ("Giovanni", "Fantuzzi"), ("Enrique", "Zuazua")),
        2024,
        "2407.01602",
        _ABSTRACT,
    ),
)
SOURCES: Mapping[str, Paper] = MappingProxyType(PAPERS | {paper.key: paper for paper in _OTHERS})
"""By key: the three papers, and those whose statements are in the atlas."""
