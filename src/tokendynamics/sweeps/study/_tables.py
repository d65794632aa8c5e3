"""The tables of a study's file; `docs/study.md` shows each key with its meaning."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from tokendynamics.specification.section import TomlTable

Seeds = Annotated[list[NonNegativeInt], Field(min_length=1)]
Changes = Annotated[dict[str, Any], Field(default_factory=dict)]
Positive = Annotated[float, Field(gt=0.0)]


class ChangesTable(TomlTable):
    """What of an experiment is changed."""

    regime: str | None = None
    remedy: str | None = None
    data: str | None = None
    model: Changes
    options: Changes
    recipe: Changes


class StudyTable(ChangesTable):
    """``[study]``: what is trained, with which seeds, and which arm the others are compared with."""

    name: str | None = None
    preset: str
    seeds: Seeds
    reference: str
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95


class TuningTable(TomlTable):
    """``[tuning]``: the learning rates that every arm tries, on seeds of their own."""

    learning_rate: Annotated[list[Positive], Field(min_length=2)]
    seeds: Seeds


class ArmTable(ChangesTable):
    """``[arms.NAME]``: what an arm changes beyond ``[study]``."""


class ClaimTable(TomlTable):
    """``[[claims]]``: that one arm is better than another, by at least `difference` where that is given."""

    better: str
    worse: str
    difference: Positive | None = None


class StudyFile(TomlTable):
    """A study's file."""

    study: StudyTable
    tuning: TuningTable | None = None
    arms: dict[str, ArmTable]
    claims: list[ClaimTable] = Field(default=[])
