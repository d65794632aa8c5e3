"""What `positional` says of real networks, on networks small enough to be computed by hand."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from reproductions.__main__ import main
from reproductions.figures import FIGURES, PaperFigure
from reproductions.given import RealText, in_record, name_of_model, real_text, sequences_of
from reproductions.positional import fig8, fig10, fig11, table7
from reproductions.positional.depth import DepthCurves, depth_curves, growth_of
from reproductions.positional.fig8 import rotated, silhouettes_by_chance
from reproductions.positional.sampled import mean_of
from reproductions.record import Quantity, Record
from tokendynamics.diagnosis import audit
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.observables import direction_clusters
from tokendynamics.pretrained import Checkpoint, load

SIZES = {"n_embd": 16, "n_head": 2, "n_layer": 6, "n_positions": 128, "vocab_size": 256}
"""Two heads of width 8."""


def gpt2(seed: int = 0, **changed: int) -> GPT2Model:
    """Return a small GPT-2 in float64 with large weights, and biases everywhere."""
    torch.manual_seed(seed)
    network = GPT2Model(GPT2Config(**{**SIZES, **changed})).double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the words for a small untrained network, by a folder."""
    folder = tmp_path_factory.mktemp("networks") / "tiny"
    GPT2Config(**SIZES).save_pretrained(folder)
    return f"random:{folder}:3"


# --- a model and a text of the user's ------------------------------------------------------------------------------


def reading_figure() -> PaperFigure:
    """Return a figure that takes a model and a text and does nothing with them."""

    def reproduce(*, model: str | None = None, text: str | None = None, draws: int = 7) -> Record:
        del model, text
        rows = (Quantity("one", 1.0, 1.0, 0.0),)
        return Record("positional", "Figure 0", "A line.", rows, f"{draws} draws", 1, results={})

    module = ModuleType("reading")
    module.__file__ = __file__  # a record keeps a digest of its module's text
    module.__doc__ = "Reads."
    module.reproduce, module.draw = reproduce, lambda record: FIGURES["positional-fig10"].module.figures.panels()[0]  # pyright: ignore
    return PaperFigure(module, quick={"draws": 2, "model": "random:distilgpt2"})


@pytest.mark.long
def test_what_is_given_takes_the_place_of_the_figures_own_and_of_a_path_only_name_and_digest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES, "reading", reading_figure())  # pyright: ignore
    text = tmp_path / "a text.txt"
    text.write_text("words", encoding="utf-8")
    out = tmp_path / "out"
    given = ["--model", "minilm", "--text", str(text)]
    assert main(["reading", "--quick", *given, "--out", str(out)]) == 0
    record = json.loads((out / "reading.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(b"words").hexdigest()
    assert record["arguments"] == {"model": "minilm", "text": {"name": "a text.txt", "sha256": digest}, "draws": 2}
    assert record["reduced"] == {"draws": 2}  # the model was not reduced, but chosen
    assert str(tmp_path) not in json.dumps(record)


def test_what_no_chosen_figure_takes_is_refused_before_work_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["positional-fig9b", "positional-remark-3-2", "--model", "minilm", *out]) == 2
    printed = capsys.readouterr().err
    assert "--model: expected a figure that takes it: " in printed
    assert "positional-table7" in printed
    assert printed.rstrip().endswith("got positional-fig9b, positional-remark-3-2")
    assert main(["positional-table7", "--text", __file__, *out]) == 2
    assert "--text: expected a figure that takes it: positional-fig8, positional-fig10" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "a text file in UTF-8"), (b"\xff\xfe\x00", "a text file in UTF-8"), (b" \n", "some text")],
)
def test_a_text_that_cannot_be_read_is_refused_before_work_begins(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    assert main(["positional-fig10", "--text", str(path), "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_path_to_a_model_is_known_by_its_last_part_and_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "my net"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "model.safetensors").write_bytes(b"abc")
    (folder / "notes.txt").write_bytes(b"not a weight")
    assert name_of_model(str(folder)) == "my net"
    assert name_of_model(f"random:{folder}:4") == "random:my net:4"
    assert in_record("model", str(folder)) == {"name": "my net", "sha256": hashlib.sha256(b"{}abc").hexdigest()}
    for plain in ("smollm2", "org/name", "random:gpt2-xl:0", None):
        assert in_record("model", plain) == plain


# --- sequences of a text -------------------------------------------------------------------------------------------


def test_sequences_are_pieces_of_the_text_that_do_not_overlap(untrained: str) -> None:
    ckpt = load(untrained)
    text = RealText("letters", "".join(chr(48 + place // 10) + chr(48 + place % 10) for place in range(100)))
    drawn = sequences_of(ckpt, text, 20, 10, seed=1)
    pieces = ["".join(map(chr, row)) for row in drawn.tolist()]
    assert sorted(pieces) == [text.text[20 * place :][:20] for place in range(10)]  # all of them: each once
    assert pieces != sorted(pieces)
    assert torch.equal(sequences_of(ckpt, text, 20, 10, seed=1), drawn)
    assert not torch.equal(sequences_of(ckpt, text, 20, 10, seed=2), drawn)
    with pytest.raises(ArgumentValueError, match="11 sequences of 20 tokens, got 200 tokens in letters, which make 10"):
        sequences_of(ckpt, text, 20, 11, seed=1)
    with pytest.raises(ArgumentValueError, match="length: expected at most 128 tokens"):
        sequences_of(ckpt, text, 129, 1, seed=1)


@pytest.mark.long
def test_texts_that_a_network_cannot_read_are_refused() -> None:
    with pytest.raises(CheckpointError, match="a tokenizer beside the trained weights"):
        sequences_of(load(gpt2()), real_text(), 8, 1, 0)
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    picture = load(ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)))
    with pytest.raises(ArgumentTypeError):
        sequences_of(picture, real_text(), 2, 1, 0)


def test_help_pages_are_real_text_and_named_with_their_digest() -> None:
    text = real_text()
    assert len(text.text) > 300_000
    assert hashlib.sha256(text.text.encode()).hexdigest()[:12] in text.words


# --- norms and distances by layer ----------------------------------------------------------------------------------


def attention_by_hand(block: nn.Module, x: Tensor, heads: int) -> Tensor:
    """Return x + attention(x) of a GPT-2 block without its norm, from its matrices."""
    attention = block.attn
    query, key, value = (
        part.unflatten(-1, (heads, -1)).transpose(0, 1)
        for part in (x @ attention.c_attn.weight + attention.c_attn.bias).chunk(3, -1)
    )
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    weights = torch.where(seen, logits, -torch.inf).softmax(-1)
    return x + (weights @ value).transpose(0, 1).flatten(1) @ attention.c_proj.weight + attention.c_proj.bias


def mean_distance(x: Tensor) -> float:
    return float(np.mean([(x[i] - x[j]).norm() for i in range(len(x)) for j in range(i)]))


@pytest.mark.long
def test_curves_are_those_of_the_networks_own_matrices() -> None:
    network = gpt2()
    ids = torch.tensor([[5, 80, 200, 7, 9], [1, 2, 3, 4, 5]])
    simplified, full = depth_curves(load(network).under("attention-only"), ids), depth_curves(load(network), ids)
    with torch.no_grad():
        for row, tokens in enumerate(ids):
            states = [network.wte.weight[tokens] + network.wpe.weight[: len(tokens)]]
            for block in network.h:
                states.append(attention_by_hand(block, states[-1], heads=2))
            values = [(math.log(x.norm(dim=-1).mean()), math.log(mean_distance(x))) for x in states]
            np.testing.assert_allclose(np.stack([simplified.norm[row], simplified.distance[row]]).T, values, rtol=1e-9)
            passed = network(tokens[None], output_hidden_states=True)
            for layer in range(SIZES["n_layer"]):  # the last of them is after the final norm
                x = passed.hidden_states[layer][0]
                assert full.norm[row, layer] == pytest.approx(math.log(x.norm(dim=-1).mean()), rel=1e-9)
                assert full.distance[row, layer] == pytest.approx(math.log(mean_distance(x)), rel=1e-9)
            last = passed.last_hidden_state[0]
            assert full.of("norm", after_final_norm=True)[row, -1] == pytest.approx(math.log(last.norm(dim=-1).mean()))
            assert full.of("distance", after_final_norm=True)[row, -1] == pytest.approx(math.log(mean_distance(last)))


def multiplying(factor: float, layers: int = 6) -> tuple[Checkpoint, GPT2Model]:
    """Return a network of which every token attends to itself and adds (factor − 1) times itself.

    Its layout is found before its weights are put in: the attention is then a multiple of what it reads, and could be
    taken for the norm that it reads from.
    """
    network = gpt2(n_head=1, vocab_size=16, n_layer=layers).float()
    ckpt, identity = load(network), torch.eye(16)
    with torch.no_grad():
        network.wte.weight.copy_(3 * identity)
        network.wpe.weight.zero_()
        for block in network.h:
            block.attn.c_attn.weight.copy_(torch.cat([5000 * identity, 5000 * identity, identity], dim=1))
            block.attn.c_proj.weight.copy_((factor - 1) * identity)
            for bias in (block.attn.c_attn.bias, block.attn.c_proj.bias):
                bias.zero_()
    return ckpt, network


@pytest.mark.long
@pytest.mark.parametrize(("factor", "layers"), [(1.5, 6), (0.5, 6), (1e6, 8)])
def test_a_network_that_multiplies_grows_by_its_factor_also_beyond_float32(factor: float, layers: int) -> None:
    ckpt = multiplying(factor, layers)[0].under("attention-only")
    curves = depth_curves(ckpt, torch.tensor([[0, 1, 2, 3], [9, 8, 7, 6]]))
    steps = math.log(factor) * np.arange(layers + 1)
    np.testing.assert_allclose(curves.norm - math.log(3), np.stack([steps] * 2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        curves.distance - math.log(3 * math.sqrt(2)), np.stack([steps] * 2), rtol=1e-5, atol=1e-6
    )
    growth = growth_of(curves.norm[0])
    assert growth.slope == pytest.approx(math.log(factor), rel=1e-5)
    assert growth.explained == pytest.approx(1.0, abs=1e-8)


def test_growth_tells_a_straight_line_from_an_exponential() -> None:
    straight = growth_of(np.log(1.0 + 5.0 * np.arange(12)))
    assert straight.explained_plain == pytest.approx(1.0)
    assert straight.explained < 0.85
    bent = growth_of(0.7 * np.arange(12))
    assert (bent.slope, bent.explained) == (pytest.approx(0.7), pytest.approx(1.0))
    assert bent.explained_plain < 0.6
    assert math.isnan(growth_of(np.array([1.0, np.nan, 2.0])).slope)
    assert growth_of(np.ones(4)).explained == 0.0


@pytest.mark.long
def test_states_that_overflow_are_not_numbers_and_massive_tokens_can_be_left_out() -> None:
    ckpt, network = multiplying(1.5)
    with torch.no_grad():
        network.h[2].mlp.c_proj.bias.fill_(torch.inf)
        network.wte.weight[3] *= 100.0
    curves = depth_curves(ckpt.under("no-norm"), torch.tensor([[0, 1, 3, 2]]))
    assert np.isfinite(curves.norm[0]).tolist() == [True, True, True, False, False, False, False]
    assert np.isnan(curves.norm_without_massive[0, 3:]).all()
    simplified = depth_curves(ckpt.under("attention-only"), torch.tensor([[0, 1, 3, 2]]))
    assert simplified.norm[0, 0] == pytest.approx(math.log((3 * 3 + 300) / 4), rel=1e-6)
    assert simplified.norm_without_massive[0, 0] == pytest.approx(math.log(3), rel=1e-6)


def curves_of(logs: np.ndarray, final: float = math.nan) -> DepthCurves:
    last = np.full(len(logs), final)
    return DepthCurves(logs, logs, logs, last, last)


def sequences(curve: np.ndarray) -> np.ndarray:
    """Return five sequences about a curve."""
    return curve + 1e-3 * np.arange(5)[:, None] * np.linspace(0, 1, len(curve))


EXPONENTIAL, STRAIGHT = 0.5 * np.arange(13.0), np.log(1 + 30 * np.arange(13.0))
PLATEAU = np.log([1, 3, 9, 12, 14, 15, 15, 15, 15, 15, 15, 15, 14.0])


@pytest.mark.parametrize(
    ("simplified", "full", "words"),
    [
        (EXPONENTIAL, PLATEAU, ("exponentially: net so", "early layers: net so", "later ones: net so")),
        (STRAIGHT, EXPONENTIAL, ("exponentially: net not so", "early layers: net so", "later ones: net not so")),
        (-EXPONENTIAL, -EXPONENTIAL, ("exponentially: net not so", "early layers: net not so", "later ones: net so")),
        (1e-4 * EXPONENTIAL, PLATEAU, ("exponentially: net not decided", "early layers: net so", "later ones: net so")),
    ],
)
def test_figure_10_says_what_the_curves_do(simplified: np.ndarray, full: np.ndarray, words: tuple[str, ...]) -> None:
    spread = sequences(simplified) if np.ptp(simplified) > 1 else np.stack([simplified] * 5)
    text = fig10.said({"net": fig10.compared("net", curves_of(spread), curves_of(sequences(full)))})
    assert [part in text for part in words] == [True, True, True], text


def test_figure_10_counts_the_final_norm_apart() -> None:
    rows = fig10.compared("net", curves_of(sequences(EXPONENTIAL)), curves_of(sequences(EXPONENTIAL), final=0.0))
    without, counted = rows[fig10.ENDS][0], rows[""][0]
    assert (without.verdict, without.ours) == ("no", pytest.approx(2.0, abs=1e-2))  # four layers of 0.5
    assert counted.name.endswith("the last after the final norm")
    assert (counted.verdict, counted.ours) == ("yes", pytest.approx(-4.0, abs=1e-2))


def test_figure_11_says_at_which_lengths_growth_is_exponential() -> None:
    by_name = {16: curves_of(sequences(EXPONENTIAL)), 64: curves_of(sequences(STRAIGHT))}
    text = fig11.said("net", {length: fig11.compared(length, curves) for length, curves in by_name.items()}, by_name)
    assert "16 tokens so, 64 tokens not so." in text
    slopes = [np.polyfit(np.arange(13), sequences(curve)[2], 1)[0] for curve in (EXPONENTIAL, STRAIGHT)]
    assert f"grows by {slopes[0]:.3g} to {slopes[1]:.3g} a layer" in text


def test_a_mean_close_to_its_bound_is_not_decided() -> None:
    far, near = np.array([0.9, 1.0, 1.1]), np.array([-0.9, 1.0, 0.1])
    assert [mean_of("x", values, 0.0, "≥").verdict for values in (far, -far, near)] == ["yes", "no", "cannot tell"]
    assert [mean_of("x", values, 0.0, "≤").verdict for values in (far, -far, near)] == ["no", "yes", "cannot tell"]
    assert mean_of("x", far, 0.0, "≤", tolerance=1.5).ok
    assert mean_of("x", far[:1], 0.0, "≥").verdict == "cannot tell"
    assert mean_of("x", np.array([1.0, np.nan]), 0.0, "≥").verdict == "no"


# --- groups of tokens ----------------------------------------------------------------------------------------------


def test_rotations_keep_mean_and_covariance_and_mix_every_row() -> None:
    rows = torch.randn(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    drawn = rotated(rows, 3, seed=5)
    # Coordinates in the span: inner products of means, and the spectrum of the covariance, do not depend on the axes.
    for entry in drawn:
        assert float(entry.mean(0).norm()) == pytest.approx(float(rows.mean(0).norm()), rel=1e-12)
        spectra = [torch.linalg.svdvals(x - x.mean(0))[:11] for x in (entry, rows)]
        torch.testing.assert_close(*spectra, rtol=1e-10, atol=1e-12)
        through = [(x - x.mean(0)) @ x.mean(0) for x in (entry, rows)]  # how the mean lies in the covariance
        torch.testing.assert_close(through[0].norm(), through[1].norm(), rtol=1e-10, atol=1e-12)
    assert float((drawn[0] - drawn[1]).abs().max()) > 0.1


@pytest.mark.long
def test_groups_are_clearer_than_chance_where_they_were_built_and_not_in_a_cloud() -> None:
    random = torch.Generator().manual_seed(6)
    cloud = torch.randn(30, 20, dtype=torch.float64, generator=random)
    centres = torch.randn(3, 20, dtype=torch.float64, generator=random)
    built = centres.repeat_interleave(10, dim=0) + 0.1 * cloud
    chance = silhouettes_by_chance(torch.nn.functional.normalize(built, dim=-1), 30, 7)
    assert direction_clusters(built).silhouette > chance.max() + 0.2
    shares = []
    for seed in range(12):
        rows = torch.nn.functional.normalize(torch.randn(20, 6, dtype=torch.float64, generator=random), dim=-1)
        shares.append(float((silhouettes_by_chance(rows, 20, seed) < direction_clusters(rows).silhouette).mean()))
    assert 0.2 < np.mean(shares) < 0.8  # 0.5 ± 0.08 for directions that chance made


def grouped(start: float, end: float, count: int = 3, largest: float = 0.5) -> fig8.Grouped:
    silhouette = np.array([[start, end, end, end]] * 6) + 0.01 * np.arange(6)[:, None] * np.array([0, 1, 1, 1])
    shares = np.full(6, largest) + 0.01 * np.arange(-2.5, 3.0)
    return fig8.Grouped(np.full((6, 4), count), silhouette, np.full((6, 4), 0.2), np.ones((6, 4)), shares)


@pytest.mark.parametrize(
    ("measured", "words", "verdicts"),
    [
        (grouped(0.3, 0.6), "so / so, clear groups in 6 of 6 texts", ["yes", "yes"]),
        (grouped(0.5, 0.3, 1), "so / not so, clear groups in 0 of 6 texts", ["yes", "no"]),
        (grouped(0.0, 0.1, 1), "not so / so, clear groups in 0 of 6 texts", ["no", "yes"]),
        (grouped(0.3, 0.6, 0), "states are not finite", ["measured"]),
    ],
)
def test_figure_8_says_whether_groups_are_clearer_than_chance(
    measured: fig8.Grouped, words: str, verdicts: list[str]
) -> None:
    assert f"net full: {words}" in fig8.said({"net": {"full": measured}})
    rows = fig8.compared("net, full", measured, claimed=True)
    assert [row.verdict for row in rows][:2] == verdicts
    assert {row.verdict for row in fig8.compared("net", measured, claimed=False)} == {"measured"}


def test_a_few_tokens_apart_from_all_others_are_said_to_be_that() -> None:
    few, many = grouped(0.3, 0.6, largest=0.92), grouped(0.3, 0.6, largest=0.88)
    assert fig8.said({"net": {"full": few}}).endswith("6 of 6 texts (the largest with 92% of the tokens).")
    assert fig8.said({"net": {"full": many}}).endswith("6 of 6 texts.")
    assert fig8.compared("net", few, claimed=True)[-1].ours == pytest.approx(0.92)
    assert "the largest" not in fig8.said({"net": {"full": grouped(0.3, 0.6, 1, largest=1.0)}})


@pytest.mark.long
def test_the_largest_group_is_counted_in_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt, ids = load(gpt2()), torch.arange(10)
    clusters = fig8.token_clusters(ckpt, ids).copy(deep=True)
    clusters["member"][-2] = 0
    clusters["member"][-1] = [0] * 6 + [1] * 3 + [-1]  # one token is in no group
    monkeypatch.setattr(fig8, "token_clusters", lambda *_: clusters)
    assert fig8.groups(ckpt, ids[None], 2, 0).largest == pytest.approx([6 / 9])


@pytest.mark.long
def test_states_that_overflow_have_no_groups_and_no_path() -> None:
    network = gpt2()
    ckpt, ids = load(network).under("no-norm"), torch.arange(10)
    with torch.no_grad():
        network.h[2].mlp.c_proj.bias.fill_(torch.inf)
    assert not fig8.groups(ckpt, ids[None], 2, 0).finite
    assert fig8.drawn_paths(ckpt, ids) is None


# --- Table 7 -------------------------------------------------------------------------------------------------------


def test_shares_of_a_layer_are_those_of_numpys_eigenvalues_and_of_the_audit() -> None:
    network = gpt2(3)
    ckpt = load(network)
    result = table7.of_layer(ckpt.attention(2))
    W_Q, W_K, W_V = network.h[1].attn.c_attn.weight.detach().numpy().reshape(16, 3, 16).swapaxes(0, 1)
    W = W_Q @ W_K.T
    A = W @ np.linalg.inv(W_V.T)
    for name, matrix in (("qk", W), ("contraction", A)):
        assert result[name] == pytest.approx(100 * (np.linalg.eigvalsh(matrix + matrix.T) > 0).mean())
    assert result["near_zero"] == pytest.approx(100 * (np.abs(np.linalg.eigvals(W_V)) < 1e-3).mean())
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        whole = np.linalg.eigvals(W_Q[:, part] @ W_K[:, part].T)
        nonzero = whole[np.argsort(-np.abs(whole))[:8]]
        assert result["heads"][head] == pytest.approx(100 * (nonzero.real > 0).mean())
        small = W_Q[:, part].T @ W_K[:, part]
        assert result["heads_symmetric"][head] == pytest.approx(100 * (np.linalg.eigvalsh(small + small.T) > 0).mean())
    table = audit(ckpt, "V", False, layers=[2])
    assert result["qk"] == pytest.approx(100 * float(table["W_inertia"][0, 0]) / 16)
    assert result["contraction"] == pytest.approx(100 * float(table["A_inertia"][0, 0]) / 16)


def test_grouped_queries_leave_a_undefined_and_v_singular() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 32}
    network = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).double()
    result = table7.counted(load(network), None, lambda done, total, what: None)
    assert np.isnan(result.contraction).all()
    np.testing.assert_allclose([result.rank, result.near_zero], 50.0)
    rows = table7.beside_claims("net", result)
    reasons = {row.name: row.reason for row in rows if row.verdict == "no"}
    assert reasons["net, V: |λ| below 1e-3, mean over layers (%)"] == "W_V has rank 50 % of dim, so that A is undefined"
    third = replace(result, qk=result.qk / 2, rank=result.rank / 2)
    assert table7.beside_claims("net", third)[0].reason.endswith("W_sym has rank 50 % of dim at most")
    assert "V has eigenvalues near zero in net." in table7.said(rows)


def counted(qk: float, spread: float, heads: float, near_zero: float = 0.0) -> table7.Counted:
    """Return shares of 48 layers with 25 heads, of given means and spreads."""
    signs = np.where(np.arange(48) % 2, 1.0, -1.0)
    of_heads = 50 + heads * np.where(np.arange(48 * 25) % 2, 1.0, -1.0).reshape(48, 25)
    zeros = np.full(48, near_zero)
    return table7.Counted(qk + spread * signs, 49.99 + 0.06 * signs, zeros, zeros, 100 + zeros, of_heads, of_heads)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (
            counted(50.2, 2.85, 1.0),
            "as printed or about 50 %|none of V's|GPT-2 XL comes out over layers|it is not as large",
        ),
        (counted(50.0, 0.04, 2.86), "as printed|none of V's|does not come out over layers (± 0.04); it is as large"),
        (counted(60.0, 0.04, 2.86, 1.0), "not all about 50 %|V has eigenvalues near zero in gpt2-xl, re|does not"),
    ],
)
def test_table_7_says_what_the_printed_spread_is_a_spread_of(shares: table7.Counted, words: str) -> None:
    name = "gpt2-xl, re-initialised"
    rows = table7.beside_print(name, shares, table7.PRINTED_REINITIALISED) + table7.spreads(name, shares, 1)
    text = table7.said(rows)
    assert all(part in text for part in words.split("|")), text


def test_layers_of_several_networks_do_not_narrow_what_one_printed_network_allows() -> None:
    one = counted(50.0, 0.04, 2.86)
    two = table7.joined([one, one])
    rows = [table7.beside_print("net", entry, table7.PRINTED["gpt2-xl"], n) for entry, n in ((one, 1), (two, 2))]
    assert two.heads.shape == (96, 25)
    assert [row.tolerance for row in rows[0]][:4] == [row.tolerance for row in rows[1]][:4]


# --- all together --------------------------------------------------------------------------------------------------


def test_table_7_runs_on_a_given_network_and_is_drawn(untrained: str) -> None:
    record = table7.reproduce(model=untrained, reinitialised=())
    assert record.results["found"]["random:tiny:3"].qk.shape == (6,)
    left, right = table7.draw(record).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["random:tiny:3: W", "random:tiny:3: A"]
    assert len(right.lines[0].get_xdata()) == 6 * 2


@pytest.mark.long
def test_figure_8_runs_on_a_given_network_and_is_drawn(untrained: str) -> None:
    record = fig8.reproduce(model=untrained, texts=1, tokens=12, draws=2)
    panels = fig8.draw(record).axes
    assert [panel.get_title(loc="left") for panel in panels] == [f"random:tiny:3: {w}" for w in fig8.VARIANTS.values()]
    direct = record.results["paths"]["random:tiny:3"]["full"]
    drawn = {tuple(point) for line in panels[1].lines for point in line.get_xydata()[-1:]}
    assert tuple(direct.position.values[-1, 0]) in drawn


@pytest.mark.long
def test_figures_10_and_11_run_on_a_given_network_and_are_drawn(untrained: str) -> None:
    record = fig10.reproduce(model=untrained, reinitialised=None, sequences=2)
    above = fig10.draw(record).axes[1]
    norm = record.results["found"]["random:tiny:3"][0].norm
    np.testing.assert_allclose(above.lines[0].get_ydata(), np.median(norm, axis=0) / math.log(10))
    assert "tiny" in record.statement
    assert "/" not in record.caption.replace("and/or", "")
    record = fig11.reproduce(model=untrained, lengths=(8, 16), sequences=3)
    distance, _ = fig11.draw(record).axes
    assert [line.get_label() for line in distance.lines] == ["8 tokens", "16 tokens"]


@pytest.mark.slow
def test_all_four_run_quickly_without_any_download(tmp_path: Path) -> None:
    names = [f"positional-{name}" for name in ("table7", "fig8", "fig10", "fig11")]
    assert main([*names, "--quick", "--out", str(tmp_path)]) == 0
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in names)


@pytest.mark.slow
@pytest.mark.pretrained
def test_scaled_states_of_smollm2_grow_as_plain_ones_do_in_double_precision() -> None:
    ids = sequences_of(load("smollm2"), real_text(), 24, 2, 0)
    scaled = depth_curves(load("smollm2", dtype="float64").under("attention-only"), ids)
    with load("smollm2", dtype="float64").varied("attention-only") as varied:
        blocks = [varied.network.get_submodule(f"layers.{layer}") for layer in range(30)]
        seen: list[Tensor] = []
        hooks = [block.register_forward_hook(lambda m, i, out: seen.append(out)) for block in blocks]
        varied.network(ids)
        for hook in hooks:
            hook.remove()
    plain = torch.stack(seen).norm(dim=-1).mean(dim=-1).log().T
    assert float(2 * plain.max()) > math.log(3e38)  # logits, of the square of that size, are beyond float32
    # Attention on states of such size picks one token; where two nearly tie, rounding decides: first layers only.
    np.testing.assert_allclose(scaled.norm[:, 1:11], plain[:, :10].detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(scaled.norm[:, 1:], plain.detach().numpy(), rtol=0.02)


@pytest.mark.parametrize(("growth", "message"), [(math.log(2.1), True), (math.log(1.9), False)])
def test_growth_that_does_not_double_over_all_layers_is_no_exponential(growth: float, message: bool) -> None:
    # Over three of the four layers neither doubles.
    layers = np.arange(5) / 4
    curves = np.array([growth * layers**bend for bend in (0.9, 1.0, 1.1)])
    straighter = fig10.exponential("x", curves)[2]
    assert (not straighter.unsettled.startswith("it grows by a factor of")) is message
