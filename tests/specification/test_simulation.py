"""Running a specification from Python: what the command writes, without a line printed or a figure drawn unasked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import FREE_FLOW, call
from tokendynamics import figures, specification
from tokendynamics.dynamics import Interrupted, Trajectory
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.specification.examples import example_names, example_text

FAST = ("minimal",)


def spec(*changes: tuple[str, str]) -> specification.SpecificationFile:
    text = FREE_FLOW
    for old, new in changes:
        text = text.replace(old, new)
    return specification.parse(text, "spec.toml")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in example_names() if name != "fig5"],
)
def test_the_function_gives_what_the_command_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.toml").write_text(example_text(name))
    assert call(["simulate", f"{name}.toml", "--out", "by the command"]) == 0
    simulation = specification.run(f"{name}.toml")
    simulation.save("by the function")
    command, function = Path("by the command"), Path("by the function")
    assert {path.name for path in command.iterdir()} == {path.name for path in function.iterdir()}
    kept = Trajectory.open(command / "trajectory.zarr")
    assert np.array_equal(kept.states, np.asarray(simulation.trajectory.states), equal_nan=True)
    for same in ("certificates.json", "specification.toml"):
        assert (command / same).read_bytes() == (function / same).read_bytes()
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (command, function)]
    for changing in ("command", "started", "duration_seconds", "files"):
        assert all(manifest.pop(changing) for manifest in manifests)
    assert manifests[0] == manifests[1]


def test_nothing_is_printed_drawn_or_written_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(*arguments: object, **options: object) -> None:
        raise AssertionError("a figure was drawn")

    with monkeypatch.context() as patched:
        patched.setattr("tokendynamics.specification._simulation.draw", refused)
        simulation = specification.run(spec())
        assert simulation.statuses == {"reached the horizon": 1}
        assert simulation.warnings == []
        assert simulation.certificates is not None
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert list(simulation.figures) == ["tokens", "norms"]
    assert simulation.figures["norms"] is simulation.figures["norms"]
    assert simulation.draw("distances").axes


def test_the_closed_form_is_what_is_run() -> None:
    simulation = specification.run(spec(), threads=1)
    start = np.array([[3.0, 4.0], [1.0, 0.0]])
    decay = np.expm1(-simulation.trajectory.times)[:, None, None]
    assert np.allclose(simulation.trajectory.states, start + start.mean(axis=0) * decay, atol=1e-7)
    assert simulation.manifest["hardware"]["threads"] == 1
    assert simulation.manifest["command"] == "specification.run('spec.toml')"


def test_a_figure_that_cannot_be_drawn_costs_no_run() -> None:
    times = "times = [0.0, 0.5, 1.0]"
    still = spec(("3.0, 4.0", "0.0, 0.0"), ("1.0, 0.0", "0.0, 0.0"), (times, f'{times}\n[output]\nfigures = ["norms"]'))
    simulation = specification.run(still)
    assert simulation.figures == {}
    assert list(simulation.undrawn) == ["norms"]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("system", [0, 1])
def test_of_several_systems_the_one_asked_for_is_in_the_film(system: int, tmp_path: Path) -> None:
    drawn = 'law = "normal"\ntokens = 2\ndim = 2\nsystems = 2\nseed = 1'
    film = f'[output]\nfigures = ["tokens"]\nanimation = "gif"\nsystem = {system}\n'
    simulation = specification.run(spec(("tokens = [[3.0, 4.0], [1.0, 0.0]]", drawn), ("[time]", f"{film}[time]")))
    simulation.save(tmp_path / "out")
    alone = figures.animate(simulation.trajectory, tmp_path / "alone.gif", system=system)
    assert (tmp_path / "out" / "animation.gif").read_bytes() == alone.read_bytes()


def test_systems_that_end_early_are_warned_of() -> None:
    simulation = specification.run(spec(("[time]", "[solver]\nmax_steps = 1\n[time]")))
    assert simulation.statuses == {"step budget spent": 1}
    assert any("not every system reached the horizon t = 1: 1 step budget spent" in one for one in simulation.warnings)


def test_progress_has_the_protocol_and_names_the_file() -> None:
    message: list[tuple[float, float, str]] = []
    specification.run(spec(), progress=lambda done, total, what: message.append((done, total, what)))
    assert {(total, what) for _, total, what in message} == {(1.0, "Simulating spec.toml")}
    assert [done for done, _, _ in message] == sorted(done for done, _, _ in message)
    assert message[-1][0] == 1.0


def test_ctrl_c_gives_what_was_reached(tmp_path: Path) -> None:
    def interrupting(done: float, total: float, what: str) -> None:
        if 0.4 < done < 1:
            raise KeyboardInterrupt

    stepped = spec(("[time]", "[solver]\nstep = 0.01\n[time]"))
    with pytest.raises(specification.InterruptedRun) as stopped:
        specification.run(stepped, progress=interrupting)
    simulation = stopped.value.simulation
    assert isinstance(stopped.value, Interrupted)
    assert simulation.certificates is None
    assert simulation.statuses == {"interrupted": 1}
    names = {path.name for path in simulation.save(tmp_path / "out")}
    assert names == {"trajectory.zarr", "certificates.json", "specification.toml", "manifest.json"}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", [specification.run, specification.check])
def test_what_is_wrong_is_said_with_its_line_before_anything_runs(function, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(FREE_FLOW.replace("qk =", "kq ="))
    with pytest.raises(specification.SpecificationError, match=r"wrong\.toml line 2: attention\.kq: unknown key"):
        function(path)
    output = '[output]\nfigures = ["potential"]'
    two = "qk = [{ identity = 0.0 }, { identity = 1.0 }]"
    heads = spec(("qk = { identity = 0.0 }", two), ("[time]", f"{output}\n[time]"))
    with pytest.raises(specification.SpecificationError, match=r"output\.figures\[0\]: 'potential': expected one head"):
        function(heads)
    with pytest.raises(FileNotFoundError):
        function(tmp_path / "missing.toml")
    with pytest.raises(ArgumentValueError, match="threads"):
        function(spec(), threads=0)
    for wrong in (5, None, {"attention": {}}):
        with pytest.raises(ArgumentTypeError, match=r"spec: expected a str or Path or SpecificationFile, got "):
            function(wrong)


def test_another_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'sweep'; it has .*run"):
        _ = specification.sweep
