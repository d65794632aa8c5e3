"""Measure the trained networks that diagnoses are compared with, on inputs of the kind that each was trained on.

SmolLM2 and MiniLM read the default texts. The wheels `iglm` (two GPT-2 of antibody sequences) and `rxnmapper` (an
ALBERT of chemical reactions) are data here: their code is not imported, and their inputs are written below by hand:
variable domains put together from common frameworks and loops, and reactions that textbooks have.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokendynamics.diagnosis import Diagnosis, diagnose
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.yardstick import MeasuredNetwork, measured_network, write_table
from tokendynamics.pretrained import Checkpoint, load

_HEAVY = (
    ("EVQLVESGGGLVQPGGSLRLSCAAS", "WVRQAPGKGLEWVA", "RFTISADTSKNTAYLQMNSLRAEDTAVYYC", "WGQGTLVTVSS"),
    ("QVQLVQSGAEVKKPGASVKVSCKAS", "WVRQAPGQGLEWMG", "RVTMTRDTSISTAYMELSRLRSDDTAVYYC", "WGQGTTVTVSS"),
    ("QVQLQESGPGLVKPSETLSLTCTVS", "WIRQPPGKGLEWIG", "RVTISVDTSKNQFSLKLSSVTAADTAVYYC", "WGRGTLVTVSS"),
)
"""Frameworks of heavy chains: before, between and after the three loops."""

_HEAVY_LOOPS = (
    ("GFNIKDTYIH", "RIYPTNGYTRYADSVKG", "SRWGGDGFYAMDY"),
    ("GYTFTGYYMH", "WINPNSGGTNYAQKFQG", "ARDYYGSGSYFDP"),
    ("GGSISSYYWS", "YIYYSGSTNYNPSLKS", "ARGLTTVTHWFFDL"),
    ("GFTFSSYAMS", "AISGSGGSTYYADSVKG", "AKDRLSITIRPRYYGLDV"),
)

_LIGHT = (
    ("DIQMTQSPSSLSASVGDRVTITC", "WYQQKPGKAPKLLIY", "GVPSRFSGSGSGTDFTLTISSLQPEDFATYYC", "FGQGTKVEIK"),
    ("EIVLTQSPGTLSLSPGERATLSC", "WYQQKPGQAPRLLIY", "GIPDRFSGSGSGTDFTLTISRLEPEDFAVYYC", "FGGGTKLEIK"),
)

_LIGHT_LOOPS = (
    ("RASQDVNTAVA", "SASFLYS", "QQHYTTPPT"),
    ("RASQSVSSSYLA", "GASSRAT", "QQYGSSPLT"),
)

_REACTIONS = (
    "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O",
    "Nc1ccc(O)cc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccc(O)cc1",
    "CCO.CC(=O)O>>CCOC(C)=O",
    "O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1",
    "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",
    "O=[N+]([O-])c1ccccc1.[H][H]>>Nc1ccccc1",
    "CC(C)(C)OC(=O)N1CCNCC1.Cl>>C1CNCCN1",
    "C=CC=C.O=C1C=CC(=O)O1>>O=C1OC(=O)C2CC=CCC12",
    "Clc1ccnc2ccccc12.NCCN>>NCCNc1ccnc2ccccc12",
    "COC(=O)c1ccc(F)cc1.[Na+].[OH-]>>O=C(O)c1ccc(F)cc1",
    "C1COCCN1.O=C(Cl)c1ccccc1>>O=C(c1ccccc1)N1CCOCC1",
    "C[C@H](N)C(=O)O.CO>>COC(=O)[C@H](C)N",
    "N#Cc1ccc(Br)cc1.OCC>>CCOc1ccc(C#N)cc1",
    "CS(=O)(=O)Cl.NCc1ccccc1>>CS(=O)(=O)NCc1ccccc1",
)

_ATOMS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|[A-Za-z0-9().=#+/\\~*$:@-]")
"""Tokens of a reaction in SMILES."""


def antibodies() -> dict[str, list[str]]:
    """Return twelve heavy and four light chains as the tokens of IgLM, by name."""
    chains = {}
    for kind, frames, loops in (("HEAVY", _HEAVY, _HEAVY_LOOPS), ("LIGHT", _LIGHT, _LIGHT_LOOPS)):
        for first, frame in enumerate(frames, 1):
            for second, loop in enumerate(loops, 1):
                species = ("HUMAN", "MOUSE")[(first + second) % 2]
                pieces = [piece for pair in zip(frame, (*loop, ""), strict=True) for piece in pair]
                chains[f"{kind.lower()} {first}.{second}"] = [f"[{kind}]", f"[{species}]", *"".join(pieces)]
    return chains


def reactions() -> dict[str, list[str]]:
    """Return the reactions as the tokens of RXNMapper, by name."""
    return {f"reaction {place}": ["[CLS]", *_ATOMS.findall(text), "[SEP]"] for place, text in enumerate(_REACTIONS, 1)}


def as_ids(texts: Mapping[str, list[str]], vocabulary: Path) -> dict[str, list[int]]:
    """Return texts as token ids.

    Args:
        texts: Their tokens, by name.
        vocabulary: A token a line.

    Raises:
        KeyError: A token that the vocabulary does not have.
    """
    numbers = {token: place for place, token in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}
    return {name: [numbers[token] for token in tokens] for name, tokens in texts.items()}


def measured(wheels: Path) -> Iterator[MeasuredNetwork]:
    """Yield the rows of the table.

    Args:
        wheels: Where `iglm` and `rxnmapper` are installed.
    """
    defaults, chains = "the default texts", "antibody variable domains put together by hand"
    for name in ("smollm2", "minilm"):
        yield measured_network(_diagnosed(load(name), default_texts()), defaults, name)
    trained = wheels / "iglm" / "trained_models"
    for name in ("IgLM", "IgLM-S"):
        ckpt = load(trained / name, allow_pickle=True)
        yield measured_network(_diagnosed(ckpt, as_ids(antibodies(), trained / "vocab.txt")), chains, name)
    (albert,) = (wheels / "rxnmapper" / "models" / "transformers").iterdir()
    texts = as_ids(reactions(), albert / "vocab.txt")
    ckpt = load(albert, allow_pickle=True)
    yield measured_network(_diagnosed(ckpt, texts), "reactions of textbooks in SMILES", "RXNMapper")


def _diagnosed(ckpt: Checkpoint, texts: Mapping[str, object]) -> Diagnosis:
    """Return what the table needs of a diagnosis; parts, heads and twins change none of it."""
    return diagnose(ckpt, texts, layers=[1], levers=False, baseline=None)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Measure the networks that diagnoses are compared with.")
    parser.add_argument("--wheels", type=Path, required=True, help="where iglm and rxnmapper are installed")
    parser.add_argument("--out", type=Path, required=True, help="the table")
    chosen = parser.parse_args()
    write_table(chosen.out, list(measured(chosen.wheels)))


if __name__ == "__main__":
    main()
