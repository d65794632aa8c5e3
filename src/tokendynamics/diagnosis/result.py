"""What a diagnosis is: the data, the sentences, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xarray as xr

from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.numerics.signatures import typed_arguments


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
        """Write the datasets and a JSON summary into `folder`; see `save_diagnosis`."""
        return save_diagnosis(self, Path(folder), format=format, overwrite=overwrite)
