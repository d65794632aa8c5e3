"""The flow, start, times and options that a file describes, against what the papers print and closed forms."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.specification.build import Setup, build
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.specification.file import parse
from tokendynamics.specification.section import SpecificationError

BASE = """\
[attention]
qk = [[1.0, 0.5], [0.0, 2.0]]
ov = "identity"
[space]
kind = "free"
[start]
tokens = [[3.0, 4.0], [0.0, 1.0]]
[time]
end = 3
"""


def built(text: str) -> Setup:
    return build(parse(text, "a.toml"))


def changed(*pairs: tuple[str, str]) -> str:
    text = BASE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def example(name: str) -> Setup:
    return built(example_text(name))


def close(left: Any, right: Any, tolerance: float = 1e-12) -> bool:
    return bool(np.allclose(np.asarray(left), np.asarray(right), rtol=0, atol=tolerance))


def test_every_example_builds_and_moves() -> None:
    for name in example_names():
        setup = example(name)
        velocity = setup.flow.velocity(setup.start)
        assert torch.isfinite(velocity).all()
        assert setup.flow.space.defect(setup.start) < 1e-14
        assert np.all(np.diff(setup.times) > 0)


def test_figure_2_has_the_norms_measured_from_the_printed_matrices() -> None:
    qk = example("fig2").flow.attention.qk
    norms = np.array([qk.matrix_at(float(t)).norm(dim=(-2, -1)).numpy() for t in np.linspace(0, 0.5, 2001)])
    assert close(norms[0], [0.826335, 0.770807], 1e-6)
    assert close(norms[:, 0].max(), 1.0708, 1e-4)
    assert close(norms[:, 0].min(), 0.6003, 1e-4)
    assert close(norms[:, 1].min(), 0.3641, 1e-4)
    assert close(norms[-1], norms[0], 1e-10)


def test_figure_4_has_the_printed_spectrum_and_a_start_on_one_side() -> None:
    setup = example("fig4")
    values, vectors = torch.linalg.eigh(setup.flow.attention.ov.matrix_at(0.0)[0])
    assert close(values, [-1.41849, -0.02148, 0.43888], 1e-5)
    assert close(vectors[:, 2].abs(), [0.57806, 0.10208, 0.80958], 1e-5)
    assert (setup.start @ torch.tensor([0.57806, -0.10208, 0.80958], dtype=torch.float64) > 0).all()


def test_the_contraction_form_of_figure_2a_comes_back() -> None:
    attention = example("fig2a").flow.attention
    qk, ov = attention.qk.matrix_at(0.0)[0], attention.ov.matrix_at(0.0)[0]
    assert close(qk @ torch.linalg.inv(ov), [[-2.94058, -2.12076], [-5.14498, -4.58104]], 1e-10)


def test_figure_5_left_has_the_printed_eigenvalues() -> None:
    qk = example("fig5-left").flow.attention.qk.matrix_at(0.0)[0]
    assert close(torch.linalg.eigvalsh((qk + qk.mT) / 2), [0.03766541, 0.15005164], 1e-7)


def test_one_entry_holds_for_every_head_and_a_constant_head_stands_still_beside_a_varying_one() -> None:
    heads = '["identity", { matrix = [[1, 2], [3, 4]], frequency = "1 Hz", phase = 0.5, amplitude = [2, 3] }]'
    attention = built(changed(("[[1.0, 0.5], [0.0, 2.0]]", heads))).flow.attention
    time = 0.3
    wave = math.sin(2 * math.pi * time + 0.5)
    expected = np.diag([2 * wave, 3 * wave]) @ np.array([[1, 2], [3, 4]])
    assert close(attention.qk.matrix_at(time), [np.eye(2), expected])
    assert close(attention.ov.matrix_at(time), [np.eye(2), np.eye(2)])


def test_periodic_heads_take_their_turns() -> None:
    heads = '["identity", { matrices = [{ diagonal = [1, 2] }, { identity = 3 }], period = 4 }]'
    qk = built(changed(("[[1.0, 0.5], [0.0, 2.0]]", heads))).flow.attention.qk
    assert close(qk.matrix_at(1.9), [np.eye(2), np.diag([1, 2])])
    assert close(qk.matrix_at(2.1), [np.eye(2), 3 * np.eye(2)])
    assert close(qk.matrix_at(4.1), qk.matrix_at(0.1))


def test_drawn_matrices_follow_their_law_and_their_seed() -> None:
    law = '{ law = "uniform", low = -1, high = 3, seed = 5, symmetric = true }'
    start = ("tokens = [[3.0, 4.0], [0.0, 1.0]]", 'law = "normal"\ntokens = 2\ndim = 60\nseed = 1')
    text = changed(("[[1.0, 0.5], [0.0, 2.0]]", law), start)
    qk = built(text).flow.attention.qk.matrix_at(0.0)[0]
    assert torch.equal(qk, built(text).flow.attention.qk.matrix_at(0.0)[0])
    assert not torch.equal(qk, built(text.replace("seed = 5", "seed = 6")).flow.attention.qk.matrix_at(0.0)[0])
    assert torch.equal(qk, qk.mT)
    assert -2 <= float(qk.min()) < -1
    assert 5 < float(qk.max()) <= 6
    assert abs(float(qk.mean()) - 2) < 0.15


def test_inline_tokens_are_projected_onto_the_sphere() -> None:
    assert close(built(changed(('"free"', '"sphere"'))).start, [[0.6, 0.8], [0.0, 1.0]])
    assert close(built(BASE).start, [[3.0, 4.0], [0.0, 1.0]])


def test_angles_are_points_of_the_circle() -> None:
    text = changed(("tokens = [[3.0, 4.0], [0.0, 1.0]]", 'angles = ["90 deg", 0.5]'), ('"free"', '"sphere"'))
    assert close(built(text).start, [[0.0, 1.0], [math.cos(0.5), math.sin(0.5)]])


@pytest.mark.parametrize(
    ("law", "more"), [("uniform", ""), ("box", ""), ("normal", ""), ("hemisphere", "direction = [0.0, 1.0]\n")]
)
def test_drawn_starts_lie_on_the_ellipsoid(law: str, more: str) -> None:
    start = f'law = "{law}"\n{more}systems = 3\ntokens = 40\nseed = 2'
    metric = '"ellipsoid"\nmetric = [[4.0, 0.0], [0.0, 1.0]]'
    setup = built(changed(("tokens = [[3.0, 4.0], [0.0, 1.0]]", start), ('"free"', metric)))
    assert setup.start.shape == (3, 40, 2)
    assert setup.flow.space.defect(setup.start) < 1e-14
    assert (law == "hemisphere") == bool((setup.start[..., 1] > 0).all())


def test_a_box_on_free_space_is_the_box() -> None:
    start = 'law = "box"\nlow = 1.0\nhigh = 2.0\ntokens = 500\nseed = 2'
    tokens = built(changed(("tokens = [[3.0, 4.0], [0.0, 1.0]]", start))).start
    assert 1 <= float(tokens.min()) < 1.01
    assert 1.99 < float(tokens.max()) <= 2


def test_times_are_linear_logarithmic_or_given() -> None:
    assert close(built(changed(("end = 3", "end = 3\npoints = 4"))).times, [0, 1, 2, 3])
    log = 'end = 100\npoints = 4\nspacing = "log"\nfirst = 1'
    assert close(built(changed(("end = 3", log))).times, [0, 1, 10, 100])
    assert close(built(changed(("end = 3", "times = [0, 0.5, 7]"))).times, [0, 0.5, 7])


def test_events_and_options_reach_the_simulation() -> None:
    tables = "[events]\nconsensus = { below = 0.5, reference = 1 }\nnorm_above = 9\nat_rest = 1e-9\n"
    tables += '[solver]\nrtol = 1e-3\ndtype = "float32"\nthreads = 1\n[time]'
    setup = built(changed(("[time]", tables)))
    assert [type(event).__name__ for event in setup.events] == ["Consensus", "NormAbove", "AtRest"]
    assert (setup.events[0].below, setup.events[0].reference) == (0.5, 1)
    assert setup.options == {"rtol": 1e-3, "dtype": torch.float32}


def test_positions_are_read() -> None:
    sinusoidal = built(changed(("[space]", '[positions]\nkind = "absolute"\ntable = "sinusoidal"\n[space]')))
    assert close(sinusoidal.flow.attention.positions.table[0], [math.sin(1), math.cos(1)])
    rotary = '[positions]\nkind = "rotary"\nquery = { diagonal = [1, 2] }\nkey = "identity"\nscale = 0.5\n[space]'
    assert built(changed(("[space]", rotary))).flow.attention.positions.scale == 0.5


@pytest.mark.parametrize(
    ("pairs", "line", "words"),
    [
        ([('ov = "identity"', "ov = [[1.0]]")], 3, "attention.ov: expected shape (2, 2) to fit the tokens, got (1, 1)"),
        ([("[[3.0, 4.0], [0.0, 1.0]]", "[[3.0, 4.0, 5.0]]")], 2, "attention.qk: expected shape (3, 3) to fit the tok"),
        ([('ov = "identity"', 'ov = ["identity", "identity"]'), ("qk = [[1.0, 0.5], [0.0, 2.0]]",
          'qk = ["identity", "identity", "identity"]')], 3, "attention.ov: expected as many heads as qk, 3, or one"),
        ([('"free"', '"ellipsoid"\nmetric = [[1.0, 0.0], [0.0, -2.0]]')], 6, "lowest eigenvalue -2"),
        ([('"free"', '"ellipsoid"\nmetric = [[1.0, 0.5], [0.0, 2.0]]')], 6, "space.metric: expected a symmetric"),
        ([('"free"', '"sphere"'), ("[0.0, 1.0]]", "[0.0, 0.0]]")], 7, "a zero vector at token 1"),
        ([('"free"', '"sphere"\nprojection = "remark_5_1"'), ("[[1.0, 0.5], [0.0, 2.0]]", '["identity", "identity"]')],
         6, "space.projection: expected one head"),
        ([('ov = "identity"', "ov = { contraction = [[1.0, 1.0], [1.0, 1.0]] }")], 3, "expected an invertible contra"),
        ([("[[1.0, 0.5], [0.0, 2.0]]", "{ contraction = [[1.0]] }")], 2, "expected a matrix"),
        ([("[[1.0, 0.5], [0.0, 2.0]]", '{ matrices = ["identity", "identity"], period = 2.0 }'),
          ("end = 3", "end = 1e12")],
         8, "time: expected at most 1,000,000 jumps of a periodic matrix (period 2), got 1e+12 from time 0"),
        ([("end = 3", "times = [0, 2, 1]")], 9, "time.times[2]: expected increasing times, got 1.0 after 2.0"),
        ([("tokens = [[3.0, 4.0], [0.0, 1.0]]", 'law = "uniform"\ntokens = 2\nseed = 1')], 7, "free space has no unif"),
        ([("tokens = [[3.0, 4.0], [0.0, 1.0]]", 'law = "normal"\ntokens = 2\nseed = 1'),
          ("[[1.0, 0.5], [0.0, 2.0]]", '"identity"')], 6, "start: missing key 'dim'"),
        ([("[time]", "[events]\nconsensus = { reference = 2 }\n[time]")], 9, "expected a token from 0 to 1, got 2"),
        ([("[space]", '[positions]\nkind = "absolute"\ntable = [[1.0, 2.0]]\n[space]')], 6, "expected shape (2, 2)"),
        ([("[space]", '[positions]\nkind = "rotary"\nquery = [[1.0], [2.0]]\nkey = [[1.0], [2.0]]\n[space]')], 6,
         "positions.query: expected an even number of columns, got 1"),
        ([("[[1.0, 0.5], [0.0, 2.0]]", '{ matrix = "identity", frequency = [1, 2, 3] }')], 2,
         "attention.qk.frequency: expected one number, or one for each of 2 rows, got 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_line(pairs: list[tuple[str, str]], line: int, words: str) -> None:
    with pytest.raises(SpecificationError) as refused:
        built(changed(*pairs))
    assert str(refused.value).startswith(f"a.toml line {line}: "), str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_token_that_cannot_be_placed_is_named_by_its_key_alone() -> None:
    text = changed(('kind = "free"', 'kind = "sphere"'), ("[0.0, 1.0]", "[0.0, 0.0]"))
    with pytest.raises(SpecificationError, match=r"^a\.toml line 7: start\.tokens: expected tokens that are not zero"):
        built(text)


def test_layers_are_counted_in_whole_numbers() -> None:
    layers = '[solver]\nengine = "layers"\n'
    counted = changed(("end = 3", "end = 3\npoints = 4")) + layers
    assert built(counted).options == {"engine": "layers"}
    assert built(counted + "residual = 0.0\n").options == {"engine": "layers", "residual": 0.0}
    with pytest.raises(SpecificationError, match=r"solver\.residual: .*greater than or equal to 0"):
        built(counted + "residual = -0.5\n")
    with pytest.raises(SpecificationError, match=r"^a\.toml line 8: time: expected whole numbers"):
        built(BASE + layers)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        ("tau = 0.5", "engine 'auto' has no 'tau'; take engine 'layers'"),
        ("residual = 0.0", "engine 'auto' has no 'residual'; take engine 'layers'"),
        ("engine = 'stiff'\ntau = 0.5", "engine 'stiff' has no 'tau'; take engine 'layers'"),
        (
            "engine = 'stiff'\nmethod = 'bosh3'",
            "engine 'stiff' has no 'method'; take engine 'batched' or 'compiled' or 'fixed'",
        ),
        ("engine = 'batched'\nstep = 0.5", "engine 'batched' has no 'step'; take engine 'fixed'"),
    ],
)
def test_options_that_the_engine_does_not_use_are_refused(solver, message):
    text = (
        "[attention]\nqk = 'identity'\n[space]\nkind = 'sphere'\n[start]\nangles = [0.0, 1.0]\n"
        f"[time]\ntimes = [0.0, 1.0]\n[solver]\n{solver}\n"
    )
    with pytest.raises(SpecificationError, match=re.escape(message)):
        build(parse(text, "a.toml"))


@pytest.mark.parametrize("then", ["end", "record"])
def test_events_end_a_run_or_are_recorded(then):
    text = (
        "[attention]\nqk = 'identity'\n[space]\nkind = 'free'\n[start]\ntokens = [[1.0, 0.0]]\n"
        f"[time]\ntimes = [0.0, 1.0]\n[events]\nthen = '{then}'\nnorm_above = 2.0\nat_rest = 1e-3\nconsensus = {{}}\n"
    )
    setup = build(parse(text, "a.toml"))
    assert [event.then for event in setup.events] == [then] * 3
