"""The tables of a specification file; `docs/simulate.md` shows each key with its meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Tag
from pydantic_core import PydanticCustomError

from tokendynamics.specification._matrices import Circuit, ConstantMatrix, Drawn, Rows
from tokendynamics.specification.section import Angle, TomlTable


class AttentionTable(TomlTable):
    """``[attention]``: the circuits of the heads and how weights follow from logits."""

    qk: Circuit
    ov: Circuit = "identity"
    causal: bool = False
    weights: Literal["softmax", "linear"] = "softmax"
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


SpaceTable = Annotated[FreeTable | SphereTable | EllipsoidTable, Field(discriminator="kind")]


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
    """Uniform on the sphere or ellipsoid."""

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
        lambda value: "<given>" if isinstance(value, GivenTimes) or "times" in _keys(value) else "<spaced>",
    ),
]


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


class SolverTable(TomlTable):
    """``[solver]``: how to integrate; what is left out takes the default of `tokendynamics.simulate`."""

    engine: Literal["auto", "batched", "compiled", "stiff", "fixed", "layers"] | None = None
    rtol: PositiveFloat | None = None
    atol: PositiveFloat | None = None
    max_steps: PositiveInt | None = None
    method: Literal["dopri5", "bosh3", "rk4", "euler"] | None = None
    step: PositiveFloat | None = None
    tau: PositiveFloat | None = None
    max_step: PositiveFloat | None = None
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
