"""How a matrix, a time-varying matrix, or one of them per head is written in the file."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tokendynamics.specification.section import Angle, Frequency, TomlTable, did_you_mean

OF_SYSTEMS = "of systems"
"""In the context of a validation: laws without a seed are allowed, and each system draws its own."""


def _rectangular(rows: list[list[float]]) -> list[list[float]]:
    lengths = [len(row) for row in rows]
    if not rows or not lengths[0] or len(set(lengths)) > 1:
        raise PydanticCustomError(
            "ragged", "expected rows of equal length, got lengths {lengths}", {"lengths": str(lengths)}
        )
    return rows


Rows = Annotated[list[list[float]], AfterValidator(_rectangular)]
"""A matrix, row by row."""


class ScaledIdentity(TomlTable):
    """``{ identity = -1.0 }``: a multiple of the identity."""

    identity: float


class DiagonalMatrix(TomlTable):
    """``{ diagonal = [1.0, 2.0] }``."""

    diagonal: Annotated[list[float], Field(min_length=1)]


class Product(TomlTable):
    """``{ query = Q, key = K }``: the matrix ``Q K^T`` (`positional` writes W so), without the 1/√D_k."""

    query: Rows
    key: Rows


class Drawn(TomlTable):
    """What is drawn; the seed is required, but in a sweep, where each system draws its own without one."""

    seed: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _has_seed(self, info: Any) -> Drawn:
        if self.seed is None and not (info.context or {}).get(OF_SYSTEMS):
            raise PydanticCustomError("no_seed", "missing key 'seed'")
        return self


class Law(Drawn):
    """Independent draws, either uniform on [low, high] or normal with a scale."""

    law: Literal["uniform", "normal"]
    low: Angle = -0.5
    high: Angle = 0.5
    scale: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Law:
        if self.low >= self.high:
            raise PydanticCustomError(
                "bounds", "expected low < high, got {low} and {high}", {"low": self.low, "high": self.high}
            )
        return self


class DrawnMatrix(Law):
    """``{ law = "uniform", low = -0.5, high = 0.5, seed = 1 }``; ``symmetric = true`` adds the transpose."""

    symmetric: bool = False


class DefiniteMatrix(Drawn):
    """``{ definite = "negative", skew = 0.5, seed = 1 }``: the sign of the symmetric part is chosen.

    ``B = L diag(s softplus(d)) L^T + skew (T − T^T)`` (`positional` D.2), L unit lower triangular, s = +1, −1, or half
    of each (mixed). The entries of d are standard normal, those of T and below the diagonal of L have variance 1/dim.

    With ``by = "rejection"`` standard normal matrices are drawn until the symmetric part S of one is definite, and the
    matrix is S + skew · (the rest): with skew = 1 the normal law, given the sign. One matrix in 7 has it in dim 2, one
    in 400 in dim 4, one in 7000 in dim 5.
    """

    definite: Literal["positive", "negative", "mixed"]
    skew: Annotated[float, Field(ge=0.0)] = 0.0
    by: Literal["construction", "rejection"] = "construction"

    @model_validator(mode="after")
    def _can_be_rejected(self) -> DefiniteMatrix:
        if self.by == "rejection" and self.definite == "mixed":
            raise PydanticCustomError("mixed", "expected definite = 'positive' or 'negative' by rejection, got 'mixed'")
        return self


_FORMS: dict[str, type[TomlTable]] = {
    "<identity>": ScaledIdentity,
    "<diagonal>": DiagonalMatrix,
    "<query>": Product,
    "<law>": DrawnMatrix,
    "<definite>": DefiniteMatrix,
}


def _form(value: Any, forms: dict[str, type[TomlTable]]) -> str | None:
    """Return the tag of the form that is meant, by the keys it has in common with what was written.

    Tags stand in angle brackets so that no key of a file can be mistaken for one.
    """
    if isinstance(value, TomlTable):
        return next((tag for tag, form in forms.items() if type(value) is form), None)
    if isinstance(value, str):
        return "<name>"
    if isinstance(value, list):
        return "<rows>"
    if not isinstance(value, dict):
        return None
    return max(forms, key=lambda tag: _resemblance(set(value), forms[tag]), default=None)


def _resemblance(keys: set[str], form: type[TomlTable]) -> tuple[int, int]:
    """Count keys in common, then keys that are nearly the same."""
    return len(keys & set(form.model_fields)), sum(_is_near(key, form) for key in keys)


@lru_cache(maxsize=1024)  # the points of a sweep have the same keys
def _is_near(key: str, form: type[TomlTable]) -> bool:
    return "did you mean" in did_you_mean(key, form.model_fields)


_NO_MATRIX = "expected rows of numbers, 'identity', or a table such as { identity = -1.0 }"

OwnMatrix = Annotated[
    Annotated[Literal["identity"], Tag("<name>")]
    | Annotated[Rows, Tag("<rows>")]
    | Annotated[ScaledIdentity, Tag("<identity>")]
    | Annotated[DiagonalMatrix, Tag("<diagonal>")]
    | Annotated[Product, Tag("<query>")]
    | Annotated[DrawnMatrix, Tag("<law>")]
    | Annotated[DefiniteMatrix, Tag("<definite>")],
    Discriminator(lambda value: _form(value, _FORMS), custom_error_type="no_matrix", custom_error_message=_NO_MATRIX),
]
"""A matrix that does not depend on time and stands for itself."""


class FromContraction(TomlTable):
    """``{ contraction = A }``, for ov only: ``ov = A^{-1} qk``, so that ``A = qk ov^{-1}`` (`positional`).

    With `norm` it is scaled to that spectral norm, a change of time.
    """

    contraction: OwnMatrix
    norm: PositiveFloat | None = None


_CONSTANT_FORMS: dict[str, type[TomlTable]] = {**_FORMS, "<contraction>": FromContraction}

ConstantMatrix = Annotated[
    Annotated[Literal["identity"], Tag("<name>")]
    | Annotated[Rows, Tag("<rows>")]
    | Annotated[ScaledIdentity, Tag("<identity>")]
    | Annotated[DiagonalMatrix, Tag("<diagonal>")]
    | Annotated[Product, Tag("<query>")]
    | Annotated[FromContraction, Tag("<contraction>")]
    | Annotated[DrawnMatrix, Tag("<law>")]
    | Annotated[DefiniteMatrix, Tag("<definite>")],
    Discriminator(
        lambda value: _form(value, _CONSTANT_FORMS), custom_error_type="no_matrix", custom_error_message=_NO_MATRIX
    ),
]
"""A matrix that does not depend on time."""


def _numbers_form(value: Any) -> str:
    if isinstance(value, dict | Law):
        return "<law>"
    return "<each>" if isinstance(value, list) else "<all>"


Numbers = Annotated[
    Annotated[float, Tag("<all>")] | Annotated[list[float], Tag("<each>")] | Annotated[Law, Tag("<law>")],
    Discriminator(_numbers_form),
]
Angles = Annotated[
    Annotated[Angle, Tag("<all>")] | Annotated[list[Angle], Tag("<each>")] | Annotated[Law, Tag("<law>")],
    Discriminator(_numbers_form),
]
Frequencies = Annotated[
    Annotated[Frequency, Tag("<all>")] | Annotated[list[Frequency], Tag("<each>")] | Annotated[Law, Tag("<law>")],
    Discriminator(_numbers_form),
]


class SinusoidalMatrix(TomlTable):
    """``diag(amplitude · sin(frequency · t + phase)) @ matrix``, each factor one number, one per row, or drawn."""

    matrix: ConstantMatrix
    amplitude: Numbers = 1.0
    frequency: Frequencies
    phase: Angles = 0.0
    absolute: bool = False


class PeriodicMatrix(TomlTable):
    """Piecewise constant: each of the matrices holds for an equal part of the period, then all repeat."""

    matrices: Annotated[list[ConstantMatrix], Field(min_length=1)]
    period: PositiveFloat


_ALL_FORMS = {**_CONSTANT_FORMS, "<matrix>": SinusoidalMatrix, "<matrices>": PeriodicMatrix}


def _any_form(value: Any) -> str | None:
    form = _form(value, _ALL_FORMS)
    return "<constant>" if form in (*_CONSTANT_FORMS, "<name>", "<rows>") else form


Matrix = Annotated[
    Annotated[ConstantMatrix, Tag("<constant>")]
    | Annotated[SinusoidalMatrix, Tag("<matrix>")]
    | Annotated[PeriodicMatrix, Tag("<matrices>")],
    Discriminator(
        _any_form,
        custom_error_type="no_matrix",
        custom_error_message=_NO_MATRIX,
    ),
]
"""A matrix, constant or varying with time."""


def _one_or_heads(value: Any) -> str:
    """Split by head: a list of lists of numbers is one matrix, a list of anything else one entry per head."""
    if not isinstance(value, list):
        return "<one>"
    first = value[0] if value else None
    is_rows = isinstance(first, list) and not (first and isinstance(first[0], list))
    return "<one>" if is_rows else "<heads>"


Circuit = Annotated[
    Annotated[Matrix, Tag("<one>")] | Annotated[list[Matrix], Field(min_length=1), Tag("<heads>")],
    Discriminator(_one_or_heads),
]
"""qk or ov: one matrix (one head), or a list with one for each head."""
