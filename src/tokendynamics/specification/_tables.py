"""The tables of a specification file, and how its matrices are written; `docs/simulate.md` shows each key.

A matrix is constant or varies with time, and stands for one head or, in a list, for each.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
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

    def resemblance(tag: str) -> tuple[int, int]:
        """Count keys in common, then keys that are nearly the same."""
        return len(value.keys() & forms[tag].model_fields.keys()), sum(_is_near(key, forms[tag]) for key in value)

    return max(forms, key=resemblance, default=None)


@lru_cache(maxsize=1024)  # the points of a sweep have the same keys
def _is_near(key: str, form: type[TomlTable]) -> bool:
    return "did you mean" in did_you_mean(key, form.model_fields)


_NO_MATRIX = "expected rows of numbers, 'identity', or a table such as { identity = -1.0 }"

_by = partial(Discriminator, custom_error_type="no_matrix", custom_error_message=_NO_MATRIX)

OwnMatrix = Annotated[
    Annotated[Literal["identity"], Tag("<name>")]
    | Annotated[Rows, Tag("<rows>")]
    | Annotated[ScaledIdentity, Tag("<identity>")]
    | Annotated[DiagonalMatrix, Tag("<diagonal>")]
    | Annotated[Product, Tag("<query>")]
    | Annotated[DrawnMatrix, Tag("<law>")]
    | Annotated[DefiniteMatrix, Tag("<definite>")],
    _by(lambda value: _form(value, _FORMS)),
]
"""A matrix that does not depend on time and stands for itself."""


class FromContraction(TomlTable):
    """``{ contraction = A }``, for ov only: ``ov = A^{-1} qk``, so that ``A = qk ov^{-1}`` (`positional`).

    With `norm` it is scaled to that spectral norm, a change of time.
    """

    contraction: OwnMatrix
    norm: PositiveFloat | None = None


_CONSTANT_FORMS: dict[str, type[TomlTable]] = {**_FORMS, "<contraction>": FromContraction}


def _constant_form(value: Any) -> str | None:
    form = _form(value, _CONSTANT_FORMS)
    return form if form in (None, "<contraction>") else "<own>"


ConstantMatrix = Annotated[
    Annotated[OwnMatrix, Tag("<own>")] | Annotated[FromContraction, Tag("<contraction>")], _by(_constant_form)
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
    _by(_any_form),
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


class AttentionTable(TomlTable):
    """``[attention]``: the circuits of the heads and how weights follow from logits."""

    qk: Circuit
    ov: Circuit = "identity"
    causal: bool = False
    mask: list[list[bool]] | None = None
    frozen: list[NonNegativeInt] = Field(default_factory=list)
    weights: Literal["softmax", "linear", "exponential", "hardmax"] = "softmax"
    offset: float = 0.0
    normalization: Literal["plain", "paper"] | None = None


class AbsoluteTable(TomlTable):
    """``[positions]`` of kind "absolute": vectors added to the tokens, given or sinusoidal."""

    kind: Literal["absolute"]
    table: Annotated[Literal["sinusoidal"], Tag("<name>")] | Annotated[Rows, Tag("<rows>")] = Field(
        discriminator=Discriminator(lambda value: "<name>" if isinstance(value, str) else "<rows>")
    )
    base: PositiveFloat = 10000.0


class RotaryTable(TomlTable):
    """``[positions]`` of kind "rotary": rotated queries Q̄ and keys K̄."""

    kind: Literal["rotary"]
    query: ConstantMatrix
    key: ConstantMatrix
    base: PositiveFloat = 10000.0
    scale: PositiveFloat = 1.0


Positions = Annotated[AbsoluteTable | RotaryTable, Field(discriminator="kind")]


class FreeTable(TomlTable):
    """``[space]`` of kind "free"."""

    kind: Literal["free"]


class SphereTable(TomlTable):
    """``[space]`` of kind "sphere"."""

    kind: Literal["sphere"]
    projection: Literal["orthogonal", "remark_5_1"] = "orthogonal"


class EllipsoidTable(TomlTable):
    """``[space]`` of kind "ellipsoid": the points with y^T metric y = 1."""

    kind: Literal["ellipsoid"]
    metric: ConstantMatrix
    projection: Literal["orthogonal", "remark_5_1"] = "orthogonal"


class NormalizedTable(TomlTable):
    """``[space]`` of kind "normalized": tokens with a radius and a direction, as a network with a norm has them."""

    kind: Literal["normalized"]
    scheme: Literal["post", "pre", "mix", "peri", "ngpt", "scaled"]
    switch: float | None = None
    rate: PositiveFloat | None = None
    radius: PositiveFloat = 1.0


SpaceTable = Annotated[FreeTable | SphereTable | EllipsoidTable | NormalizedTable, Field(discriminator="kind")]


class GivenTokens(TomlTable):
    """``[start]`` with the tokens themselves: (token, dim), or (system, token, dim)."""

    tokens: (
        Annotated[Rows, Tag("<one system>")] | Annotated[Annotated[list[Rows], Field(min_length=1)], Tag("<systems>")]
    ) = Field(discriminator=Discriminator(lambda value: _depth(value)))


class GivenAngles(TomlTable):
    """``[start]`` with tokens on the unit circle, by their angles."""

    angles: Annotated[list[Angle], Field(min_length=1)]


class _DrawnTokens(Drawn):
    """What every law of drawn tokens needs."""

    tokens: PositiveInt
    systems: PositiveInt | None = None
    dim: PositiveInt | None = None


class UniformStart(_DrawnTokens):
    """Uniform on the sphere or ellipsoid; in the directions, at the radius of the space, where tokens have both."""

    law: Literal["uniform"]


class HemisphereStart(_DrawnTokens):
    """Uniform on the part of the sphere or ellipsoid where direction · y > 0."""

    law: Literal["hemisphere"]
    direction: Annotated[list[float], Field(min_length=1)]


class BoxStart(_DrawnTokens):
    """Each coordinate uniform on [low, high], then projected onto the space."""

    law: Literal["box"]
    low: float = -0.5
    high: float = 0.5


class NormalStart(_DrawnTokens):
    """Each coordinate normal with standard deviation `scale`, then projected onto the space."""

    law: Literal["normal"]
    scale: PositiveFloat = 1.0


DrawnStart = Annotated[UniformStart | HemisphereStart | BoxStart | NormalStart, Field(discriminator="law")]


def _depth(value: Any) -> str:
    """Tell whether nested lists are one system or several."""
    first = value[0] if isinstance(value, list) and value else None
    nested = isinstance(first, list) and bool(first) and isinstance(first[0], list)
    return "<systems>" if nested else "<one system>"


def _start_form(value: Any) -> str:
    if isinstance(value, dict):
        if "law" in value or isinstance(value.get("tokens"), int):
            return "<drawn>"
        return "<angles>" if "angles" in value else "<given>"
    return {"GivenTokens": "<given>", "GivenAngles": "<angles>"}.get(type(value).__name__, "<drawn>")


Start = Annotated[
    Annotated[GivenTokens, Tag("<given>")]
    | Annotated[GivenAngles, Tag("<angles>")]
    | Annotated[DrawnStart, Tag("<drawn>")],
    Discriminator(_start_form),
]


class GivenTimes(TomlTable):
    """``[time]`` with the saved times themselves."""

    times: Annotated[list[float], Field(min_length=2)]


class SpacedTimes(TomlTable):
    """``[time]`` from 0 to `end` in `points` saved times, evenly or in powers from `first` on."""

    end: PositiveFloat
    points: Annotated[int, Field(ge=2)] = 101
    spacing: Literal["linear", "log"] = "linear"
    first: PositiveFloat | None = None

    def model_post_init(self, context: Any) -> None:
        """Refuse a `first` that is missing, useless or late."""
        if (self.first is None) == (self.spacing == "log"):
            wanted = "needs" if self.spacing == "log" else "has no"
            message = "spacing {spacing} {wanted} 'first', the first time after 0"
            raise PydanticCustomError("first", message, {"spacing": repr(self.spacing), "wanted": wanted})
        if self.first is not None and self.first >= self.end:
            raise PydanticCustomError(
                "first", "expected first < end, got {first} and {end}", {"first": self.first, "end": self.end}
            )


Times = Annotated[
    Annotated[GivenTimes, Tag("<given>")] | Annotated[SpacedTimes, Tag("<spaced>")],
    Discriminator(
        lambda value: (
            "<given>" if isinstance(value, GivenTimes) or (isinstance(value, dict) and "times" in value) else "<spaced>"
        )
    ),
]


class NoiseTable(Drawn):
    """``[solver] noise``: Brownian motion beside the flow; see `tokendynamics.Noise`."""

    strength: Annotated[float, Field(ge=0.0)]


class SolverTable(TomlTable):
    """``[solver]``: how to integrate; what is left out takes the default of `tokendynamics.simulate`."""

    engine: Literal["auto", "batched", "compiled", "stiff", "hardmax", "fixed", "layers", "sde"] | None = None
    rtol: PositiveFloat | None = None
    atol: PositiveFloat | None = None
    max_steps: PositiveInt | None = None
    method: Literal["dopri5", "bosh3", "dop853", "rk4", "heun", "euler"] | None = None
    step: PositiveFloat | None = None
    tau: PositiveFloat | None = None
    residual: Annotated[float, Field(ge=0.0)] | None = None
    max_step: PositiveFloat | None = None
    frame: Literal["tokens", "rescaled"] | None = None
    noise: NoiseTable | None = None
    dtype: Literal["float64", "float32"] | None = None
    device: str | None = None
    threads: PositiveInt | None = None


class ConsensusEvent(TomlTable):
    """Stop a system once every token is within a chord (about the angle in radians) of token `reference`, from 0."""

    below: PositiveFloat = 1e-3
    reference: NonNegativeInt = 0


class EventsTable(TomlTable):
    """``[events]``: what ends a system before the horizon, or is recorded while it runs on."""

    then: Literal["end", "record"] = "end"
    consensus: ConsensusEvent | None = None
    norm_above: PositiveFloat | None = None
    at_rest: PositiveFloat | None = None


FigureName = Literal["tokens", "phase_plane", "norms", "distances", "consensus", "hemisphere", "potential", "circuits"]
FigureFormat = Literal["png", "svg", "pdf"]


class OutputTable(TomlTable):
    """``[output]``: the figures to draw (of one system of several, counted from 0) and their formats."""

    figures: list[FigureName] | None = None
    formats: Annotated[list[FigureFormat], Field(min_length=1)] = Field(default=["png"])
    system: NonNegativeInt = 0
    animation: Literal["gif", "mp4"] | None = None


class Specification(TomlTable):
    """A whole file: a flow, where it starts, for how long, and what to make of it."""

    title: str = ""
    attention: AttentionTable
    positions: Positions | None = None
    space: SpaceTable
    start: Start
    time: Times
    solver: SolverTable = SolverTable()
    events: EventsTable = EventsTable()
    output: OutputTable = OutputTable()
