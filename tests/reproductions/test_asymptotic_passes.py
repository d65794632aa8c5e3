"""Section 7.5 of `asymptotic`, repeated passes: against transformers' own hidden states, and sentences both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

import tokendynamics as td
from reproductions.asymptotic import fig6, fig7, fig8, table3
from reproductions.asymptotic.repeated import CITY, Curve, consensus_rows, decrease_rows, decreases, ends
from reproductions.figures import FIGURES
from reproductions.kept import store_record, stored_records
from reproductions.record import Record

BYTES = torch.tensor([list(CITY.encode())])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GPT-2 of two layers that reads bytes; its name without a seed."""
    folder = tmp_path_factory.mktemp("gpt2")
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 256, "vocab_size": 300}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes, "initializer_range": 0.2}))
    return f"random:{folder}"


@pytest.fixture(scope="module")
def figure_6(tiny: str) -> Record:
    return fig6.reproduce(
        model=f"{tiny}:4", others=(f"{tiny}:5",), passes=4, network=f"{tiny}:6", fixed_passes=3, fresh_passes=5
    )


def energy(x: Tensor) -> float:
    """E of (25) written out, for (token, feature)."""
    unit = nn.functional.normalize(x.double(), dim=-1)
    return 1 - float((unit @ unit[0]).abs().mean())


def energies(network: Any, count: int) -> list[float]:
    """E before the first pass and after each, by transformers' own forward pass, which adds positions itself."""
    places = network.wpe.weight[: BYTES.shape[1]]
    values = []
    with torch.no_grad():
        x = network.wte(BYTES) + places
        for _ in range(count):
            values.append(energy(x[0]))
            x = network(inputs_embeds=x - places).last_hidden_state
    return [*values, energy(x[0])]


def curve(*values: float, name: str = "it", floor: float = 1e-10) -> Curve:
    return Curve(name, np.array(values), floor, (1.0, 0.5, 2.0), 7)


@pytest.mark.long
def test_figure_6_is_e_of_the_networks_own_hidden_states(figure_6: Record, tiny: str) -> None:
    trained, untrained = figure_6.results["trained"], figure_6.results["random"]
    for computed, seed, count in ((trained[0], 4, 4), (trained[1], 5, 4), (untrained[0], 6, 3)):
        expected = energies(td.load(f"{tiny}:{seed}").model, count)
        np.testing.assert_allclose(computed.energy, expected, rtol=1e-4)
        assert computed.tokens == BYTES.shape[1]
    # New weights: what comes before the first pass is the same, and nothing behind it.
    np.testing.assert_allclose(untrained[1].energy[0], untrained[0].energy[0], rtol=1e-12)
    assert min(abs(untrained[1].energy[1:4] / untrained[0].energy[1:] - 1)) > 1e-4
    label = f"{tiny}:4: largest rise of E in one of these"
    assert figure_6[label].ours == pytest.approx(np.diff(energies(td.load(f"{tiny}:4").model, 4)).max(), rel=1e-3)
    assert "read as bytes" in figure_6.invented


@pytest.mark.long
def test_figure_6_draws_e_from_the_first_pass_on(figure_6: Record) -> None:
    for panel, group in zip(fig6.draw(figure_6).axes, ("trained", "random"), strict=True):
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        lines = {line.get_label(): line for line in panel.lines}
        for result in figure_6.results[group]:
            assert result.energy[1:].min() > 0
            np.testing.assert_array_equal(lines[result.name].get_ydata(), result.energy[1:])
            np.testing.assert_array_equal(lines[result.name].get_xdata(), np.arange(1, len(result.energy)))
        assert np.unique(np.asarray(lines["rounding"].get_ydata())) == [figure_6.results[group][0].floor]


def test_an_e_that_rises_is_said_to_rise() -> None:
    falls, rises = curve(0.9, 0.5, 0.2, 0.1), curve(0.9, 0.4, 0.5, 0.1)
    assert decreases(falls) == "it: in each of 3"
    assert decreases(rises) == "it: not in 1 of 3, with a largest rise of 0.1"
    verdicts = [[row.verdict for row in decrease_rows(entry, "paper")] for entry in (falls, rises)]
    assert verdicts == [["measured", "measured", "yes"], ["measured", "measured", "no"]]
    assert [row.ours for row in decrease_rows(rises, "paper")] == [3.0, pytest.approx(1 / 3), pytest.approx(0.1)]


def test_a_rise_below_rounding_is_none_and_one_out_of_it_is_one() -> None:
    assert curve(0.9, 1e-12, 2e-12, 1e-12).rises == 0
    assert curve(0.9, 1e-12, 2e-12, 1e-9).rises == 1
    assert curve(0.9, 0.5, float("nan")).steps.size == 2  # what is no number is not taken for rounding
    assert decrease_rows(curve(0.9, 0.5, float("nan")), "paper")[-1].verdict == "no"


def test_consensus_is_said_of_what_ends_in_it() -> None:
    there, back = curve(0.9, 0.01, 5e-4, 1e-5), curve(0.9, 5e-4, 0.2)
    assert ends(there) == "it: E is below 0.001 after 2 passes"
    assert ends(back) == "it: E is 0.2 after 2 passes, not below 0.001"
    assert [consensus_rows(entry, "paper", 2)[0].verdict for entry in (there, back)] == ["yes", "no"]
    assert [consensus_rows(entry, "paper", within)[1].verdict for entry, within in ((there, 2), (there, 1))] == [
        "yes",
        "no",
    ]
    assert consensus_rows(curve(0.9, 0.5), "paper", 2)[1].verdict == "no"
    assert [row.ours for row in consensus_rows(there, "paper")[2:]] == [1.0, 0.5, 2.0]


@pytest.mark.long
def test_figure_7_is_of_new_weights_without_and_with_feed_forward_parts(tiny: str) -> None:
    record = fig7.reproduce(model=tiny, network=tiny, passes=6, seed=3)
    full, without = record.results["curves"]
    ckpt = td.load(tiny)
    for computed, variant in ((full, None), (without, {"feed_forward": 0})):
        drawn = td.passes(ckpt, CITY, 6, weights="law", seed=3, variant=variant).consensus.values[0]
        np.testing.assert_array_equal(computed.energy, drawn)
    assert full.energy[1] != without.energy[1]
    # Six passes are too few: each sentence says so.
    assert record.statement.count("not below 0.001") == sum(entry.energy[-1] >= 1e-3 for entry in (full, without)) > 0
    lines = fig7.draw(record).axes[0].lines
    np.testing.assert_array_equal(lines[1].get_ydata(), without.energy[1:])


@pytest.mark.long
def test_figure_8_pads_with_zero_embeddings_and_draws_every_matrix_alike(tiny: str) -> None:
    record = fig8.reproduce(model=tiny, network=tiny, passes=2, seed=9)
    from tokendynamics.pretrained.loading import untrained_twin

    network: Any = untrained_twin(td.load(tiny), 9, fig8.STD).model
    assert float(network.h[1].mlp.c_proj.weight.std()) == pytest.approx(0.02, rel=0.05)
    *padded, plain = record.results["curves"]
    assert [entry.name for entry in (padded[4], plain)] == ["prompt 5", "prompt 5, not padded"]
    longest = max(len(text.encode()) for text in fig8.PROMPTS)
    for text, computed in zip(fig8.PROMPTS, padded, strict=True):
        length = len(text.encode())
        x = network.wte(torch.tensor([list(text.encode())])) + network.wpe.weight[:length]
        with torch.no_grad():
            assert computed.energy[0] == pytest.approx(energy(x[0]), rel=1e-4)
            x = torch.cat([x, torch.zeros(1, longest - length, 32)], dim=1)
            for number in (1, 2):
                for block in network.h:
                    out = block(x)
                    x = out[0] if isinstance(out, tuple) else out
                x = network.ln_f(x)
                assert computed.energy[number] == pytest.approx(energy(x[0]), rel=1e-4)
                if computed is padded[4]:
                    # No token sees what is behind it: the prompt's own tokens go as they would without padding.
                    assert plain.energy[number] == pytest.approx(energy(x[0, :length]), rel=1e-4)
    assert (plain.tokens, padded[4].tokens) == (len(fig8.PROMPTS[4].encode()), longest)
    ratio = record["prompt 5: E after pass 1, padded over not padded"].ours
    assert ratio == padded[4].energy[1] / plain.energy[1] != 1
    assert len(fig8.draw(record).axes[0].get_legend().get_texts()) == 7


def test_what_padding_changes_is_said_as_it_is() -> None:
    early, late, never = curve(0.9, 1e-4, 1e-5), curve(0.9, 0.5, 1e-5), curve(0.9, 0.5, 0.4)
    assert fig8.padding(early, early) == "Padding 7 tokens to 7 does not change that number (it)."
    assert fig8.padding(late, early) == "Padding 7 tokens to 7 changes that number by +1 (it)."
    assert fig8.padding(early, late) == "Padding 7 tokens to 7 changes that number by -1 (it)."
    assert fig8.padding(early, never) == fig8.padding(never, late) == "it does not get there both padded and as it is."


@pytest.mark.long
def test_runs_go_on_from_their_folder(tiny: str, tmp_path: Path) -> None:
    short = fig7.reproduce(model=tiny, network=tiny, passes=2, folder=tmp_path)
    long = fig7.reproduce(model=tiny, network=tiny, passes=4, folder=tmp_path)
    again = fig7.reproduce(model=tiny, network=tiny, passes=4)
    for before, after, fresh in zip(*(one.results["curves"] for one in (short, long, again)), strict=True):
        np.testing.assert_array_equal(after.energy, fresh.energy)
        np.testing.assert_array_equal(after.energy[:3], before.energy)
    assert len(list(tmp_path.glob("*.npz"))) == 2
    fig7.reproduce(model=tiny, network=tiny, passes=2, seed=1, folder=tmp_path)
    fig8.reproduce(model=tiny, network=tiny, passes=1, seed=1, folder=tmp_path)
    fig8.reproduce(model=tiny, network=tiny, passes=1, seed=2, folder=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 8


def words(distinct: list[float]) -> xr.Dataset:
    counts = [1, 5, 10][: len(distinct)]
    values = {"distinct_1": ("pass", distinct), "entropy": ("pass", [4 * entry for entry in distinct])}
    return xr.Dataset(values, coords={"pass": counts})


def test_words_that_get_more_varied_again_are_said_to() -> None:
    worse, better = words([0.6, 0.1, 0.05]), words([0.6, 0.1, 0.3])
    assert table3.repetitiveness(worse) == (
        "after 1, 5 and 10 passes 60 %, 10 %, 5 % of the tokens are different. "
        "That share never rises from one to the next."
    )
    assert table3.repetitiveness(better).endswith("That share rises from 5 to 10 passes.")
    expected = [(worse, ["yes", "yes", "yes"]), (better, ["no", "no", "no"])]
    for table, verdicts in expected:
        rows = [row for row in table3.repetition_rows(table) if row.verdict != "measured"]
        assert [row.verdict for row in rows] == verdicts
    rise = next(row for row in table3.repetition_rows(better) if "largest rise" in row.name)
    assert rise.ours == pytest.approx(0.2)
    assert not any("after 10" in row.name for row in table3.repetition_rows(words([0.6, 0.1])))


@pytest.mark.slow
@pytest.mark.pretrained
def test_table_3_is_what_the_network_itself_says(tmp_path: Path) -> None:
    figure = FIGURES["asymptotic-table3"]
    record = figure.reproduce(quick=True)
    ckpt = td.load("smollm2")
    ids = ckpt.encode(table3.PROMPT).ids
    network: Any = ckpt.model
    with torch.no_grad():  # SmolLM2 reads its last states with the embedding itself
        logits = network(input_ids=ids).last_hidden_state[0] @ network.embed_tokens.weight.T
    text = logits.argmax(dim=-1).tolist()
    tokenizer: Any = ckpt.tokenizer
    assert record.texts["after 1 pass"] == tokenizer.decode(text)
    assert record["after 1 pass: different tokens over all"].ours == len(set(text)) / len(text)
    assert record["after 10 passes: different tokens over all, at most"].ok
    assert record.texts["prompt"] == table3.PROMPT
    below = figure.draw(record).get_supxlabel()
    assert f"after 10 passes: {record.texts['after 10 passes'][:40]}" in below
    # The words are kept, and shown on the page as they are.
    store_record("asymptotic-table3", replace(record, quick=None), tmp_path)
    assert stored_records(tmp_path)["asymptotic-table3"].texts == record.texts
    page = (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert f"| after 10 passes | ` {record.texts['after 10 passes']} ` |" in page


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_collapses_within_ten_passes() -> None:
    record = FIGURES["asymptotic-fig6"].reproduce(quick=True)
    assert record["smollm2: first pass with E below 0.001"].ours == 6
    assert record["smollm2: largest rise of E in one of these"].ok
    assert "random:distilgpt2" in record.invented
    assert "smollm2: E is below 0.001 after 6 passes" in record.statement
