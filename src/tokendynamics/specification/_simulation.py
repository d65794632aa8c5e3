"""Runs a specification: the trajectory, what the theory said before and holds after it, and how to make it again.

Nothing is printed, drawn or written unless it is asked for, so that thousands of systems can be run this way.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokendynamics import figures, observables
from tokendynamics.dynamics import Flow, Interrupted, Noise, Trajectory, simulate
from tokendynamics.figures import Figure
from tokendynamics.figures.time_axis import Log
from tokendynamics.numerics import ArgumentTypeError, TokenDynamicsError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import manifest, write_json
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.provenance.whole import check_free, whole_folder
from tokendynamics.results import Result
from tokendynamics.specification._tables import FigureName, FreeTable, NormalStart, SpacedTimes, UniformStart
from tokendynamics.specification.build import Setup, build
from tokendynamics.specification.file import SpecificationFile, read
from tokendynamics.theorems import Certificate, Check, Hypothesis, certify
from tokendynamics.theorems import check as check_flow
from tokendynamics.theorems.statements.asymptotic_remark_4_2 import DRAWN

WRITER = "tokendynamics simulate"
TRAJECTORY, CERTIFICATES, SPECIFICATION = "trajectory.zarr", "certificates.json", "specification.toml"
REPORT, _ANIMATION = "report.html", "animation"
_ARRIVED = ("reached the horizon", "consensus", "equilibrium")
_MOST_TOKENS_FOR_DISTANCES = 200


def figure_names(file: SpecificationFile) -> tuple[FigureName, ...]:
    """Return the figures that a file asks for; if none, the tokens and one functional that says what became of them."""
    if file.tables.output.figures is not None:
        return tuple(file.tables.output.figures)
    return ("tokens", "norms" if isinstance(file.tables.space, FreeTable) else "consensus")


def draw(name: FigureName, trajectory: Trajectory, flow: Flow, *, system: int, log_times: bool) -> Figure:
    """Draw one figure of a run; in a batch, of one system, or of all where a functional has one line for each.

    The run is cut where the drawn system ended.

    Raises:
        ArgumentValueError: What `tokendynamics.figures` refuses, such as a norm on a logarithmic axis when all are 0.
    """
    batched = trajectory.tensor.ndim == 4
    reached = trajectory.reached[system] if batched else trajectory.reached
    states = trajectory.tensor[system] if batched else trajectory.tensor
    states, times = states[torch.from_numpy(reached)].detach().cpu().double(), trajectory.times[reached]
    log_times = log_times and len(times) > 1
    log: Log = "times" if log_times else "none"
    match name:
        case "tokens":
            return figures.tokens(trajectory, system=system if batched else None)
        case "phase_plane":
            return figures.phase_plane(trajectory, system=system if batched else None)
        case "norms":
            return figures.norms(times, states, log="both" if log_times else "values")
        case "distances":
            geometry = "sphere" if flow.space.name == "sphere" else "euclidean"
            return figures.distances(times, states, geometry=geometry, log=log)
        case "consensus":
            # One line for each system: those that ended early are held at the last state they reached.
            values = observables.consensus(trajectory.tensor.detach().cpu().double())
            return figures.over_time(trajectory.times, values, "consensus E", log=log)
        case "hemisphere":
            direction = observables.hemisphere(states[0]).direction
            values = observables.hemisphere_function(states, direction)
            return figures.over_time(times, values, "maxᵢ (1 − v·yᵢ)", log=log)
    qk = [_of_system(flow.attention.qk.matrix_at(float(time)), system if batched else 0, axes=3) for time in times]
    if name == "potential":
        matrices = torch.stack([heads[0] for heads in qk])
        values = observables.potential(states, matrices.detach().cpu().double())
        return figures.over_time(times, values, "potential V", log=log)
    norms = torch.stack([heads.norm(dim=(-2, -1)) for heads in qk], dim=-1).detach().cpu().double()
    names = [f"head {head + 1}" for head in range(len(norms))] if 1 < len(norms) <= 6 else []
    return figures.over_time(times, norms, "Frobenius norm of qk", names=names, many="heads", log=log)


def _of_system(states: torch.Tensor, system: int, axes: int = 2) -> torch.Tensor:
    """Return the tensor of one system, where it has a system axis in front of the last `axes`."""
    return states[system] if states.ndim > axes else states


def _checked_setup(file: SpecificationFile) -> Setup:
    """Build what a file asks for, and refuse figures that cannot be drawn of it before anything is integrated.

    Raises:
        SpecificationError: No such system, or a figure that cannot be drawn of this setup.
    """
    setup, table = build(file), file.tables.output
    systems = setup.start.shape[0] if setup.start.ndim == 3 else 1
    if table.system >= systems:
        raise file.error(("output", "system"), f"expected a system from 0 to {systems - 1}, got {table.system}")
    tokens, dim = setup.start.shape[-2:]
    for index, name in enumerate(table.figures or ()):
        match name:
            case "phase_plane" if dim < 2:
                objection = f"expected tokens of dim 2 or more, got {dim}"
            case "distances" if not 2 <= tokens <= _MOST_TOKENS_FOR_DISTANCES:
                objection = f"expected 2 to {_MOST_TOKENS_FOR_DISTANCES} tokens, got {tokens}"
            case "potential" if setup.flow.heads != 1:
                objection = f"expected one head, got {setup.flow.heads}"
            case "potential" if file.tables.solver.frame == "rescaled":
                objection = "expected frame 'tokens', as logits are those of x, got 'rescaled'"
            case "hemisphere" if float(observables.hemisphere(_of_system(setup.start, table.system)).margin) <= 0:
                objection = "expected tokens that start in an open half space, got tokens around the origin"
            case _:
                continue
        raise file.error(("output", "figures", index), f"{name!r}: {objection}")
    return setup


@dataclass(frozen=True, repr=False)
class Simulation(Result):
    """A specification that was run.

    Attributes:
        file: What was run.
        setup: The flow, its start and the times, as built from the file.
        trajectory: The run, whole or up to where it was interrupted.
        checks: Which statements applied before the run.
        certificates: What held, of the statements that apply to some system; None where the run was interrupted.
        manifest: How to make the results again: parameters, versions, hardware, seed, duration; engine and statuses.
        files: Names of the data files beside the page.

    >>> from tokendynamics.specification import parse
    >>> from tokendynamics.specification.examples import example_text
    >>> simulation = run(parse(example_text("minimal"), "minimal.toml"))
    >>> simulation.trajectory.states.shape, simulation.file.name
    (torch.Size([101, 10, 3]), 'minimal.toml')
    """

    file: SpecificationFile
    setup: Setup
    trajectory: Trajectory
    checks: tuple[Check, ...]
    certificates: tuple[Certificate, ...] | None
    manifest: dict[str, Any]
    files: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Title and how the run ended."""
        return f"{self.file.tables.title or self.file.name}: {self.trajectory.headline}"

    @property
    def findings(self) -> list[str]:
        """What the engine says of the run, warnings, and what each certificate found."""
        certificates = self.certificates or ()
        held = [f"{certificate.statement} {certificate.outcome}: {certificate.text}" for certificate in certificates]
        return [*self.warnings, *held, *(["The run was interrupted."] if self.certificates is None else [])]

    @property
    def statuses(self) -> Counter[str]:
        """How many systems ended with each status."""
        return _statuses(self.trajectory)

    @property
    def warnings(self) -> list[str]:
        """What the engine warns of, and a sentence where systems neither reached the horizon nor meant to end early."""
        trajectory = self.trajectory
        sentences = [note.removeprefix("warning: ") for note in trajectory.notes if note.startswith("warning: ")]
        early = {status: count for status, count in self.statuses.items() if status not in _ARRIVED}
        if early:
            what = ", ".join(f"{count} {status}" for status, count in early.items())
            last = float(trajectory.end_times.min())
            sentences.append(
                f"not every system reached the horizon t = {trajectory.times[-1]:g}: {what}; "
                f"the earliest ended at t = {last:g}, and the states reached are kept"
            )
        return sentences

    def draw(self, name: FigureName) -> Figure:
        """Draw one figure, whether or not the file asks for it.

        Raises:
            ArgumentValueError: What `tokendynamics.figures` refuses, such as norms of 0 alone on a logarithmic axis.
        """
        time, system = self.file.tables.time, self.file.tables.output.system
        log_times = isinstance(time, SpacedTimes) and time.spacing == "log"
        return draw(name, self.trajectory, self.setup.flow, system=system, log_times=log_times)

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures that the file asks for, by name, without those in `undrawn`; drawn on first use."""
        return {name: figure for name, figure in self._drawn.items() if isinstance(figure, Figure)}

    @property
    def undrawn(self) -> dict[str, str]:
        """Why a figure that the file asks for could not be drawn, by name: the run itself is worth keeping."""
        return {name: str(error) for name, error in self._drawn.items() if isinstance(error, TokenDynamicsError)}

    @cached_property
    def _drawn(self) -> dict[str, Figure | TokenDynamicsError]:
        by_name: dict[str, Figure | TokenDynamicsError] = {}
        for name in figure_names(self.file):
            try:
                by_name[name] = self.draw(name)
            except TokenDynamicsError as error:
                by_name[name] = error
        return by_name

    def save(self, folder: str | Path, *, overwrite: bool = False, argument: str = "folder") -> tuple[Path, ...]:
        """Write the data, then the figures, then the page, each step whole; of an interrupted run the data only.

        Files of an earlier simulation in `folder` are replaced, and those that this one does not have are removed.

        Args:
            folder: Need not exist.
            overwrite: Replace foreign files that are in the way.
            argument: What the folder is called in a message.

        Returns:
            Paths of what was written.

        Raises:
            ArgumentValueError: See `whole_folder`.
            PageError: The page cannot be drawn; everything else is written.
        """
        complete = self.certificates is not None
        put = partial(whole_folder, folder, self.manifest, WRITER, overwrite=overwrite, argument=argument)
        with put() as made:
            self.trajectory.save(made / TRAJECTORY)
            (made / SPECIFICATION).write_text(self.file.text, encoding="utf-8")
            write_json(made / CERTIFICATES, {"checks": self.checks, "certificates": self.certificates})
            names = {path.name for path in made.iterdir()}
        if complete:
            # What is drawn is added to results that are complete without it.
            with put(keep=True) as made:
                self._write_figures(made)
                names |= {path.name for path in made.iterdir()}
            with put(keep=True) as made:
                replace(self, files=tuple(sorted(names))).report(made / REPORT)
            names |= {REPORT}
        return tuple(Path(folder) / name for name in sorted({*names, MANIFEST}))

    @staticmethod
    def check_folder(
        file: SpecificationFile, folder: Path, *, overwrite: bool = False, argument: str = "folder"
    ) -> None:
        """Refuse a folder in which `save` would replace what no simulation wrote, before anything is run.

        Raises:
            ArgumentValueError: See `whole_folder`.
        """
        output = file.tables.output
        drawn = [f"{name}.{format}" for name in figure_names(file) for format in output.formats]
        films = [] if output.animation is None else [f"{_ANIMATION}.{output.animation}"]
        entries = (TRAJECTORY, SPECIFICATION, CERTIFICATES, REPORT, *drawn, *films)
        check_free(folder, entries, WRITER, overwrite=overwrite, argument=argument)

    def _write_figures(self, folder: Path) -> None:
        output = self.file.tables.output
        for name, figure in self.figures.items():
            for format in output.formats:
                figures.save(figure, folder / f"{name}.{format}")
        if output.animation is not None:
            system = output.system if self.trajectory.tensor.ndim == 4 else None
            figures.animate(self.trajectory, folder / f"{_ANIMATION}.{output.animation}", seconds=None, system=system)


class InterruptedRun(Interrupted):
    """Ctrl-C while a specification was run.

    Attributes:
        simulation: What was reached; without certificates.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation.trajectory)
        self.simulation = simulation


@typed_arguments
def run(
    spec: str | Path | SpecificationFile,
    *,
    threads: int | None = None,
    progress: bool | Progress = False,
    command: str | None = None,
) -> Simulation:
    """Run the flow that a specification describes, and certify what the theory says of it.

    Args:
        spec: The path of a file, or what `read` or `parse` gave.
        threads: PyTorch threads for this call; None for those of the file, or else the ones in force.
        progress: True for a progress bar, or a function; see `progress`.
        command: What to record as the command that makes this again; None for the Python call.

    Returns:
        The run. Its figures are drawn, and its files written, when they are asked for.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        OSError: The file cannot be read.
        InterruptedRun: Ctrl-C; it holds the simulation so far.

    >>> from tokendynamics.specification import parse
    >>> from tokendynamics.specification.examples import example_text
    >>> simulation = run(parse(example_text("minimal"), "minimal.toml"))
    >>> simulation.statuses["reached the horizon"], list(simulation.figures)
    (1, ['tokens', 'consensus'])
    """
    started = datetime.now(UTC)
    file = _file(spec)
    setup = _checked_setup(file)
    trajectory: Trajectory | None = None
    certificates: tuple[Certificate, ...] | None = None
    with limited_threads(_threads(file, threads)) as in_force, reporting(progress) as report:

        def named(done: float, total: float, what: str) -> None:
            report(done, total, f"Simulating {file.tables.title or file.name}")

        checks = tuple(_checks(file, setup))
        try:
            with file.blaming(("solver",)):
                options: dict[str, Any] = {"events": setup.events, "progress": named, **setup.options}
                trajectory = simulate(setup.flow, setup.start, setup.times, **options)
            applying = {statement_check.statement for statement_check in checks if statement_check.applies_to.any()}
            certificates = tuple(
                certificate for certificate in certify(trajectory) if certificate.statement in applying
            )
        except Interrupted as stopped:
            trajectory = trajectory or stopped.trajectory
    command = command or f"specification.run({file.name!r})"
    record = _manifest(file, trajectory, command, started, in_force)
    simulation = Simulation(file, setup, trajectory, checks, certificates, record)
    if certificates is None:
        raise InterruptedRun(simulation)
    return simulation


@typed_arguments
def check(spec: str | Path | SpecificationFile, *, threads: int | None = None) -> list[Check]:
    """Check which statements speak about a specification's flow and start; nothing is integrated.

    What `run` would refuse before integrating is refused here, too.

    Args:
        spec: See `run`.
        threads: See `run`.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        OSError: The file cannot be read.

    >>> from tokendynamics.specification import parse
    >>> from tokendynamics.specification.examples import example_text
    >>> checks = check(parse(example_text("fig1"), "fig1.toml"))
    >>> [statement_check.statement for statement_check in checks if statement_check.applies]
    ['asymptotic-3.1', 'asymptotic-3.2']
    """
    file = _file(spec)
    setup = _checked_setup(file)
    with limited_threads(_threads(file, threads)):
        return _checks(file, setup)


def _file(spec: object) -> SpecificationFile:
    if isinstance(spec, SpecificationFile):
        return spec
    if isinstance(spec, str | Path):
        return read(spec)
    raise ArgumentTypeError("spec", "the path of a file, or the result of `read` or `parse`", shown(spec))


def _threads(file: SpecificationFile, threads: int | None) -> int | None:
    return file.tables.solver.threads if threads is None else threads


def _manifest(
    file: SpecificationFile, trajectory: Trajectory, command: str, started: datetime, threads: int
) -> dict[str, Any]:
    parameters = file.tables.model_dump(mode="json", exclude_unset=True)
    seed = getattr(file.tables.start, "seed", None)
    record = manifest(command, parameters, seed=seed, started=started, threads=threads)
    # Nothing of a network runs here: what is installed and was not imported made none of the numbers.
    used = {name: version for name, version in record["versions"].items() if name in ("python", *sys.modules)}
    return record | {
        "versions": used,
        "engine": trajectory.engine,
        "counts": trajectory.counts,
        "status": dict(_statuses(trajectory)),
        "horizon": float(trajectory.times[-1]),
        "end_times": trajectory.end_times,
    }


def _statuses(trajectory: Trajectory) -> Counter[str]:
    return Counter(str(status) for status in trajectory.status.reshape(-1).tolist())


def _checks(file: SpecificationFile, setup: Setup) -> list[Check]:
    """Return the checks of the file's flow and start, with the law of the start known instead of assumed."""
    uniform = isinstance(file.tables.start, UniformStart | NormalStart)
    law = getattr(file.tables.start, "law", None)
    came = "the start is given, not drawn" if law is None else f"the law of the start is {law!r}"
    known = Hypothesis(DRAWN, uniform, None, 0.0, came)
    noise = setup.options.get("noise", Noise(0.0, seed=0))
    return [_with(one, known) for one in check_flow(setup.flow, setup.start, setup.times, noise=noise)]


def _with(one: Check, known: Hypothesis) -> Check:
    """Return the check with a hypothesis that was assumed known to hold or not."""
    if all(hypothesis.name != known.name for hypothesis in one.hypotheses):
        return one
    applies_to = np.asarray(one.applies_to & bool(known.holds))
    return replace(
        one,
        applies=bool(applies_to.all()),
        applies_to=applies_to,
        hypotheses=tuple(known if hypothesis.name == known.name else hypothesis for hypothesis in one.hypotheses),
        reasons=one.reasons if known.holds else (*one.reasons, f"{known.name}: {known.text}"),
        prediction=one.prediction if applies_to.any() else None,
        assumed=tuple(text for text in one.assumed if not text.startswith(f"{known.name}: ")),
    )
