"""What a diagnosis is: the data, the sentences, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import xarray as xr

from tokendynamics.numerics.signatures import typed_arguments

LayerEffect = Literal["contracts", "neutral", "expands"]
FigureName = Literal["together", "grow", "who", "weights", "watch"]


@dataclass(frozen=True)
class Finding:
    """One plain sentence of the verdict.

    Attributes:
        text: The sentence, each claim with its number.
        figure: The figure that shows it.
        values: The numbers in it by name, unrounded.
    """

    text: str
    figure: FigureName
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The diagnosis in words.

    Attributes:
        sentences: Three to six findings, the most important first.
        layers: What each layer 1 … L does to the tokens: draws them together, leaves them, spreads them.
    """

    sentences: tuple[Finding, ...]
    layers: tuple[LayerEffect, ...]

    def __str__(self) -> str:
        return " ".join(finding.text for finding in self.sentences)


@dataclass(frozen=True)
class Convention:
    """One choice that the numbers hang on.

    Attributes:
        name: What is chosen.
        choice: What was done.
        otherwise: What would change if it were otherwise.
    """

    name: str
    choice: str
    otherwise: str


@dataclass(frozen=True)
class Diagnosis:
    """Everything measured on one model.

    Attributes:
        model: Name, family, layers, heads, dim, parameters and the like, as plain values.
        audit: What the weights alone say; see `audit`.
        trace: Where the tokens of real prompts go; see `trace`.
        paths: One prompt's tokens in two principal dimensions; see `token_paths`.
        verdict: The sentences.
        conventions: Every choice the numbers hang on.
        manifest: Command, parameters, versions, hardware, seed, start and duration.
        files: Names of the data files saved beside the report.
    """

    model: dict[str, Any]
    audit: xr.Dataset
    trace: xr.Dataset
    paths: xr.Dataset
    verdict: Verdict
    conventions: tuple[Convention, ...]
    manifest: dict[str, Any]
    files: tuple[str, ...] = ()

    @typed_arguments
    def save(
        self, folder: str | Path, *, format: Literal["zarr", "netcdf"] = "zarr", overwrite: bool = False
    ) -> tuple[Path, ...]:
        """Write the datasets and a JSON summary into `folder`; see `tokendynamics.diagnosis.saving.save_diagnosis`."""
        from tokendynamics.diagnosis.saving import save_diagnosis

        return save_diagnosis(self, Path(folder), format=format, overwrite=overwrite)
