"""What `logical` prints or claims, and what comes out instead."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproductions.figures import FIGURES
from reproductions.logical import attention_2_18, equivalence, fig1, fig2, landscape, weights, worked_examples
from reproductions.logical.landscape import by_attention, by_positions, by_values
from reproductions.logical.learned import Size, learned, median_interval
from reproductions.record import Record
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly

TINY: dict[str, Any] = {"categories": 3, "positions": 5, "batch": 60, "steps": 5, "inner": 6, "seeds": 2}


def failing(record: Record) -> list[str]:
    return [quantity.name for quantity in record.failures]


def test_the_worked_example_comes_out_as_printed_up_to_the_readout_and_wrong_after_it():
    record = worked_examples.reproduce(tasks=14)
    assert failing(record) == [
        "token 3: what any other row yields, at most",
        "token 3: hidden units that stay on",
        *(f"(2.12), Y_{i} of the example" for i in (2, 3, 4)),
        "(2.13), Y_1",
    ]
    outputs = record.results["outputs"]
    assert outputs["printed"].tolist() == [0, 5, 32, 70]
    for name in ("claimed", "two biases", "other C", "own blocks"):
        np.testing.assert_allclose(outputs[name], [0, 3, 10, 6], atol=1e-12)


def test_the_worked_example_is_drawn_with_all_its_numbers():
    panels = worked_examples.draw(worked_examples.reproduce(tasks=1)).axes
    summed = [text.get_text() for text in panels[2].texts]
    assert summed[:16] == ["1", "2", "0", "0", "0", "0", "1", "3", "0", "1", "2", "0", "0", "0", "0", "0"]
    printed = [text.get_text() for text in panels[4].texts][4:8]
    assert printed == ["0", "5", "32", "70"]
    assert [label.get_text() for label in panels[3].get_yticklabels()][:5] == ["1,1", "2,2", "3,3", "4,4", "1,2"]


def test_digit_pairs_are_retrieved_and_negative_values_are_not():
    record = attention_2_18.reproduce(tasks=14)
    assert failing(record) == [
        "third entry of (12, 32, 25, 11), − of −100 as printed: largest error",
        "(2.21): largest error for values of any sign",
    ]
    assert record.failures[0].ours == 200.0
    targets, printed = record.results["targets"], record.results["printed"]
    assert record.failures[1].ours == pytest.approx(-float(targets.min()), abs=1e-12)
    torch.testing.assert_close(printed, targets.relu(), atol=1e-12, rtol=0)
    diagonal = record.results["retrieved"][4:].diagonal()
    np.testing.assert_allclose(diagonal, [0, 13, 32, 22, 24], atol=1e-12)


@pytest.mark.long
def test_solutions_2_and_3_agree_and_their_logic_is_in_different_places():
    record = equivalence.reproduce(tasks=12, samples=200)
    assert not record.failures
    assert "“attention” and in “feed-forward”" in record.statement
    numbers = [text.get_text() for text in equivalence.draw(record).axes[2].texts]
    assert numbers[:6] == numbers[6:12] == numbers[12:]


def enumerated(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(3.3) for equally likely categories, text by text."""
    positions, categories = q.shape[0], v.shape[0]
    texts = torch.cartesian_prod(*[torch.arange(categories)] * positions)
    tokens = torch.nn.functional.one_hot(texts, categories).double()
    outputs = torch.einsum("kl,nsl,si->nik", v, tokens, q)
    return (tokens[:, :-1] - outputs[:, 1:]).square().sum(dim=(1, 2)).mean()


def test_the_printed_derivatives_of_3_1_are_minus_half_of_those_of_an_enumeration():
    random = torch.Generator().manual_seed(5)
    q = torch.randn(4, 4, generator=random, dtype=torch.float64, requires_grad=True)
    v = torch.randn(3, 3, generator=random, dtype=torch.float64, requires_grad=True)
    by_q, by_v = torch.autograd.grad(enumerated(q, v), (q, v))
    torch.testing.assert_close(by_attention(q.detach(), v.detach()), -by_q / 2, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(by_values(q.detach(), v.detach()), -by_v / 2, atol=1e-12, rtol=1e-12)


def test_the_printed_derivative_3_37_is_a_quarter_of_the_true_one():
    random = torch.Generator().manual_seed(6)
    q = torch.randn(3, 3, generator=random, dtype=torch.float64)
    v = torch.randn(4, 4, generator=random, dtype=torch.float64)
    exact = CategoriesOnly(random_functional(3, 1), None, 4)
    printed = by_positions(exact.q_true, q, v)
    torch.testing.assert_close(printed, exact.gradient(q, v).v / 4, atol=1e-12, rtol=1e-12)


@pytest.fixture(scope="module")
def landscapes() -> Record:
    return landscape.reproduce(starts=2, depths=(3.0, 5.0))


@pytest.mark.long
def test_of_section_3_only_claims_of_the_paper_fail_and_each_has_a_reason(landscapes: Record):
    assert {quantity.source for quantity in landscapes.failures} == {"paper"}
    assert all(quantity.reason for quantity in landscapes.failures)
    failed = "\n".join(failing(landscapes))
    for claim in ("(3.7), (3.8)", "(3.18)", "3.1: families", "3.2: stationary", "(3.37)", "above (3.71)", "(3.59)"):
        assert claim in failed
    assert landscapes["(3.71): 0 = a(t) + v_ii q_tt, largest error"].ok


@pytest.mark.long
def test_the_landscape_is_drawn_as_it_was_found(landscapes: Record):
    left, middle, right = landscape.draw(landscapes).axes
    losses = sorted(run.loss / 5 for run in landscapes.results["found"]["3.1"].runs)
    np.testing.assert_allclose(np.asarray(left.lines[0].get_ydata()), losses)
    solved = landscapes.results["found"]["3.1"].share("global minimum").fraction
    assert middle.patches[0].get_extents().width == pytest.approx(solved * middle.bbox.width)
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [s.time for s in landscapes.results["stalls"]])
    assert (left.lines[0].get_linestyle(), left.lines[0].get_marker()) == ("None", "o")
    legend = right.get_legend()
    assert legend is not None
    right.figure.canvas.draw()
    frame = legend.get_window_extent()
    first, last = right.transData.transform(right.lines[0].get_xydata())
    assert not any(frame.contains(*(first + share * (last - first))) for share in np.linspace(0, 1, 50))


def test_the_interval_of_a_median_has_the_coverage_of_its_order_statistics():
    # 1 − 2·P(Binomial(n, ½) < k) ≥ 0.9: k = 1 for n = 5, 6, 7, k = 2 for n = 8, 9, 10, k = 3 for n = 11, 12.
    kept = {n: median_interval([float(i) for i in range(n)])[0] + 1 for n in range(5, 13)}
    assert kept == {5: 1, 6: 1, 7: 1, 8: 2, 9: 2, 10: 2, 11: 3, 12: 3}
    assert median_interval([float(i) for i in range(8)]) == (1.0, 6.0)
    assert median_interval([0.0] * 4) == (-np.inf, np.inf)


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([1.5, 2.0, 2.5, 3.0, 4.0], "yes"),
        ([0.5, 2.0, 2.5, 3.0, 4.0], "cannot tell"),
        ([0.5, 0.2, -2.5, 0.1, 0.4], "no"),
        ([5.0, 5.0], "cannot tell"),
    ],
)
def test_a_claim_on_losses_is_settled_by_five_agreeing_seeds(gaps: list[float], verdict: str):
    assert fig2.claim("x", np.array(gaps), 1.0, "because", "reading").verdict == verdict


def test_learned_models_are_kept_and_found_again(tmp_path: Path):
    size = Size(3, 4, batch=20, steps=2, inner=3)
    message: list[str] = []
    first = learned(
        [("solution-1", "free")],
        size,
        range(2),
        tmp_path,
        lambda done, total, what: message.append(f"{done} of {total} {what}"),
        1,
    )
    again = learned([("solution-1", "free")], size, range(2), tmp_path, False, 1)
    assert message == [f"{done} of 2 learned models" for done in range(3)]
    pairs = zip(first["solution-1", "free"], again["solution-1", "free"], strict=True)
    assert all(
        one.losses == other.losses and one.seconds == pytest.approx(other.seconds, abs=1e-3) for one, other in pairs
    )
    assert len(list(tmp_path.glob("solution-1-free-N3-M4-*/record.json"))) == 2


def test_the_size_of_the_paper_is_the_default_and_names_the_folders_of_runs(tmp_path: Path):
    assert Size() == Size(10, 50, 1000, 50, 20)
    learned([("solution-1", "free")], Size(3, 4, 20, 2, 3), [7], tmp_path, False, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["solution-1-free-N3-M4-batch20-steps2x3-seed7"]


@pytest.mark.long
def test_figure_1_compares_as_the_evidence_does():
    record = fig1.reproduce(**{**TINY, "batch": 200, "steps": 12})
    run = record.results["runs"][record.results["best"]]
    instrument = evidence(run.transformer, run.task, samples=50, resamples=20).instrument("correlation")
    raw, centred = np.abs(record.results["correlations"][record.results["best"]])
    assert centred == pytest.approx(instrument.named("centred").value, abs=1e-12)
    assert raw == pytest.approx(instrument.named("raw").value, abs=1e-12)


@pytest.mark.long
def test_figure_1_draws_q_true_beside_the_block_and_both_centred():
    record = fig1.reproduce(**TINY)
    panels = fig1.draw(record).axes
    run = record.results["runs"][record.results["best"]]
    shown = [np.asarray(panels[i].collections[0].get_array()).reshape(3, 3) for i in (0, 1, 3, 4)]
    np.testing.assert_array_equal(shown[0], run.task.q_true)
    np.testing.assert_allclose(np.abs(shown[1]), run.qk[:3, :3].mT.abs().numpy())
    np.testing.assert_allclose(shown[2], shown[0] - shown[0].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(shown[3], shown[1] - shown[1].mean(axis=0), atol=1e-12)
    assert float((shown[2] * shown[3]).sum()) >= 0


@pytest.fixture(scope="module")
def flavours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Record]:
    folder = tmp_path_factory.mktemp("learned")
    return fig2.reproduce(**TINY, folder=folder), weights.reproduce(**TINY, samples=60, folder=folder)


@pytest.mark.slow
def test_figure_2_draws_medians_over_the_seeds_and_every_final_loss(flavours: tuple[Record, Record]):
    record, _ = flavours
    left, right = fig2.draw(record).axes
    runs = record.results["runs"]
    lines = {line.get_label(): line.get_ydata() for line in left.lines}
    for model in (fig2.FREE, fig2.FIRST, fig2.SECOND, fig2.THIRD):
        np.testing.assert_array_equal(lines[fig2.MODELS[model]], np.median([run.losses for run in runs[model]], axis=0))
    drawn = [np.asarray(line.get_xdata()).tolist() for line in right.lines if line.get_marker() == "o"]
    assert drawn == [[run.final_loss for run in runs[model]] for model in fig2.MODELS]
    assert left.get_yscale() == right.get_xscale() == "log"


@pytest.mark.slow
def test_figure_2_compares_final_losses_seed_by_seed(flavours: tuple[Record, Record]):
    record, _ = flavours
    first, second = ([run.final_loss for run in record.results["runs"][m]] for m in (fig2.FIRST, fig2.SECOND))
    gaps = [math.log10(two / one) for one, two in zip(first, second, strict=True)]
    name = "towards 2 over towards 1: log10 of the final losses' ratio, median"
    assert record[name].ours == pytest.approx(sum(gaps) / 2, abs=1e-12)


@pytest.mark.slow
def test_two_seeds_settle_no_claim_of_figure_2(flavours: tuple[Record, Record]):
    record, _ = flavours
    assert {quantity.verdict for quantity in record.compared} == {"cannot tell"}
    assert len(record.compared) == 6


@pytest.mark.long
def test_the_weights_are_those_of_figure_2_and_carry_their_verdicts(flavours: tuple[Record, Record]):
    losses, record = flavours
    for model, runs in record.results["runs"].items():
        assert [run.losses for run in runs] == [run.losses for run in losses.results["runs"][model]]
    panels = weights.draw(record).axes
    for panel, model in zip(panels[:4], weights.EXPECTED, strict=True):
        verdict = record.results["found"][model][0].verdict
        assert panel.get_title(loc="left") == f"{fig2.MODELS[model]}: {verdict}"


def test_what_is_drawn_of_the_weights_does_not_see_constants_in_blocks():
    task = Size(3, 4, 1, 1, 1).task(0)
    random = torch.Generator().manual_seed(1)
    matrix = torch.randn(7, 7, generator=random, dtype=torch.float64)
    shifted = matrix.clone()
    shifted[:3, 3:] += torch.arange(4.0, dtype=torch.float64)
    torch.testing.assert_close(weights.centred_pairs(shifted, task), weights.centred_pairs(matrix, task))
    torch.testing.assert_close(weights.centred_values(shifted.T, task), weights.centred_values(matrix.T, task))
    centred = weights.centred_pairs(matrix, task)
    for rows in (slice(0, 3), slice(3, 7)):
        for columns in (slice(0, 3), slice(3, 7)):
            block = centred[rows, columns]
            assert float(block.mean(dim=0).abs().max() + block.mean(dim=1).abs().max()) < 1e-14


def test_only_resumable_figures_are_given_a_folder(tmp_path: Path):
    names = {name for name, figure in FIGURES.items() if figure.resumable}
    repeated = {"asymptotic-fig6", "asymptotic-fig7", "asymptotic-fig8"}
    studies = {f"positional-{figure}" for figure in ("table1", "table2", "table3", "fig3", "fig4", "fig6", "fig7")}
    assert names == {"logical-fig1", "logical-fig2", "logical-weights"} | repeated | studies
    record = FIGURES["logical-2-18"].reproduce(quick=True, folder=tmp_path)
    assert record.quick == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_every_logical_record_says_which_paper_it_is_of(landscapes: Record, flavours: tuple[Record, Record]):
    records = [landscapes, *flavours, worked_examples.reproduce(tasks=1)]
    assert {record.paper for record in records} == {"logical"}
    assert len({record.figure for record in records}) == 4


@pytest.mark.parametrize(
    ("agreeing", "settled", "share"),
    [([True] * 5, True, 1.0), ([False] * 5, True, 0.0), ([True] * 4 + [False], False, 0.8), ([False] * 2, False, 0.0)],
)
def test_what_most_runs_do_is_settled_where_an_interval_excludes_a_half(
    agreeing: list[bool], settled: bool, share: float
):
    computed, unsettled = weights.majority(agreeing)
    assert (computed, not unsettled) == (share, settled)


@pytest.mark.long
def test_names_of_quantities_are_unique_in_each_record(landscapes: Record, flavours: tuple[Record, Record]):
    for record in (landscapes, *flavours, worked_examples.reproduce(tasks=1), attention_2_18.reproduce(tasks=1)):
        names = [quantity.name for quantity in record.quantities]
        assert len(set(names)) == len(names)
