"""How well networks fit: targets beside outputs, and losses of several runs over steps, or by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendynamics.figures.axes import log_ticks
from tokendynamics.figures.palette import BLUE, GREEN, INK, ORANGE, PAPER
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered


@dataclass(frozen=True)
class Fit:
    """The outputs of a network for one sequence, beside the targets."""

    labels: Sequence[str]
    targets: Sequence[float]
    outputs: Sequence[float]


@dataclass(frozen=True)
class Fits:
    """A few sequences, one below the other: targets as rings and outputs as discs.

    Attributes:
        sequences: In order from the top.
        title: What the labels of the tokens are.
    """

    sequences: Sequence[Fit]
    title: str

    @property
    def keys(self) -> list[Key]:
        """The legend."""
        return [Key("target Y", "circle", INK), Key("output", "disc", BLUE), Key("difference", "line", ORANGE)]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        return {"vconcat": [self._sequence(fit, width) for fit in self.sequences], "spacing": 26}

    def _sequence(self, fit: Fit, width: float) -> Specification:
        rows = [
            {"token": f"{place}", "target": target, "output": output}
            for place, (target, output) in enumerate(zip(fit.targets, fit.outputs, strict=True), start=1)
        ]
        label = f"{list(fit.labels)}[toNumber(datum.value) - 1]"
        axis = alt.Axis(title=self.title, labelExpr=label, labelAngle=0)
        base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("token:O", sort=None, axis=axis))
        target, output = (alt.Y(f"{name}:Q", axis=alt.Axis(title="Y")) for name in ("target", "output"))
        ring = base.mark_point(shape="circle", fill=PAPER, stroke=INK, strokeWidth=1.4, size=110, opacity=1)
        disc = base.mark_point(shape="circle", fill=BLUE, stroke=BLUE, size=26, opacity=1)
        layers = [
            base.mark_rule(color=ORANGE, strokeWidth=2).encode(y=target, y2="output:Q"),
            ring.encode(y=target),
            disc.encode(y=output),
        ]
        return layered(*layers, width=width, height=190)


@dataclass(frozen=True)
class Level:
    """A loss that is marked across, with its name in the legend."""

    name: str
    loss: float
    colour: str
    dash: tuple[float, float]


@dataclass(frozen=True)
class LossesOverSteps:
    """The loss of several runs over steps on a logarithmic axis, with their median and range.

    Attributes:
        runs: Losses at steps 0, 1, …; NaN where not positive or not finite.
        levels: Marked across.
        titles: Of the horizontal and the vertical axis.
    """

    runs: Sequence[np.ndarray]
    levels: Sequence[Level]
    titles: tuple[str, str]

    @property
    def keys(self) -> list[Key]:
        """The legend: runs, their median and range, and the levels."""
        keys = [Key("one seed", "line", BLUE, width=1.0), Key("median over seeds", "line", INK)]
        keys += [Key("lowest to highest", "band", BLUE)] if len(self.runs) > 1 else []
        return keys + [
            Key(level.name, "line", level.colour, dash="{:g} {:g}".format(*level.dash), width=1.4)
            for level in self.levels
        ]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        known = [run[np.isfinite(run)].tolist() for run in self.runs]
        present = [loss for run in known for loss in run] + [level.loss for level in self.levels]
        low, high = min(present, default=1.0) / 1.6, max(present, default=1.0) * 1.6
        last = max(len(run) for run in self.runs) - 1
        marks = log_ticks(low, high)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        axis = alt.Axis(title=self.titles[1], values=marks[:: math.ceil(len(marks) / 9)], format=".0e")
        y, middle, bottom = (alt.Y(f"{name}:Q", scale=scale, axis=axis) for name in ("loss", "median", "low"))
        x = alt.X(
            "step:Q",
            scale=alt.Scale(domain=[0, max(last, 1)], nice=False),
            axis=alt.Axis(title=self.titles[0], format="d"),
        )
        rows = [
            {"step": step, "loss": loss, "seed": seed}
            for seed, run in enumerate(self.runs)
            for step, loss in enumerate(run.tolist())
            if math.isfinite(loss)
        ]
        lines = alt.Chart(alt.Data(values=rows)).mark_line(color=BLUE, strokeWidth=1.0, opacity=0.75)
        rules = [
            alt.Chart(alt.Data(values=[{"loss": level.loss}]))
            .mark_rule(color=level.colour, strokeWidth=1.4, strokeDash=list(level.dash))
            .encode(y=y)
            for level in self.levels
        ]
        summary = alt.Chart(alt.Data(values=self._summary(last)))
        layers = [
            summary.mark_area(color=BLUE, opacity=0.16).encode(x=x, y=bottom, y2="high:Q"),
            *rules,
            lines.encode(x=x, y=y, detail="seed:N"),
            summary.mark_line(color=INK, strokeWidth=2.2).encode(x=x, y=middle),
        ]
        return layered(*layers, width=width, height=340)

    def _summary(self, last: int) -> list[dict[str, float]]:
        rows = []
        for step in range(last + 1):
            losses = [float(run[step]) for run in self.runs if step < len(run) and math.isfinite(run[step])]
            if losses:
                rows.append({"step": step, "low": min(losses), "median": float(np.median(losses)), "high": max(losses)})
        return rows


@dataclass(frozen=True)
class LossesByRank:
    """The loss of every run at its end, sorted, on a logarithmic axis.

    Attributes:
        losses: Rising.
        colours: One for each.
        least: Smaller losses are drawn at this value.
        levels: Marked across where they are above zero.
        titles: Of the horizontal and the vertical axis.
        keys: The legend.
    """

    losses: Sequence[float]
    colours: Sequence[str]
    least: float
    levels: Sequence[float]
    titles: tuple[str, str]
    keys: Sequence[Key]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        rows = [
            {"rank": rank, "loss": max(loss, self.least), "colour": colour}
            for rank, (loss, colour) in enumerate(zip(self.losses, self.colours, strict=True), start=1)
        ]
        high = max([*(row["loss"] for row in rows), *self.levels, 1e-6]) * 2
        scale = alt.Scale(type="log", domain=[self.least / 2, high], nice=False)
        ticks = [10.0**power for power in range(-12, math.floor(math.log10(high)) + 1, 2)]
        y = alt.Y("loss:Q", scale=scale, axis=alt.Axis(title=self.titles[1], values=ticks, format=".0e"))
        points = alt.Chart(inline(rows)).mark_point(
            shape="circle", filled=True, size=46, opacity=1, stroke=PAPER, strokeWidth=0.6
        )
        rules = [
            alt.Chart(alt.Data(values=[{"loss": level}]))
            .mark_rule(color=GREEN, strokeWidth=1.3, strokeDash=[5, 3])
            .encode(y=y)
            for level in self.levels
            if level > 0
        ]
        x = alt.X("rank:Q", axis=alt.Axis(title=self.titles[0], format="d", tickMinStep=1))
        fill = alt.Color("colour:N", scale=None)
        return layered(*rules, points.encode(x=x, y=y, color=fill), width=width, height=240)
