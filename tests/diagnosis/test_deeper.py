"""Variants made deeper, side by side: against runs of their own, and every sentence from both sides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

import tokendynamics as td
from diagnosis.test_decode import _with_head
from pretrained.families import network_of
from tokendynamics.diagnosis import Deeper
from tokendynamics.diagnosis.deepening._deeper import VARIANTS, _side_by_side
from tokendynamics.diagnosis.deepening.result import sentences_of
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, CheckpointError, MemoryLimitError
from tokendynamics.results import Refused
from tokendynamics.words import percent

OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "by law": {"weights": "law", "seed": 5, "positions": "never"},
    "before the norm": {"feed_back": "before_norm"},
}


def _texts(count: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {f"text {n}": torch.randint(3, 60, (8 + n,), generator=generator) for n in range(count)}


@pytest.fixture(scope="module")
def ckpt() -> td.Checkpoint:
    return td.load(_with_head("llama"))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("how", OPTIONS)
def test_each_variant_is_a_run_of_its_own(ckpt: td.Checkpoint, how: str) -> None:
    deepening = td.deeper(ckpt, _texts(3), 5, **OPTIONS[how])
    assert deepening.variants == VARIANTS == ("full", "no-ffn", "no-norm", "attention-only")
    for name in VARIANTS:
        alone = td.passes(ckpt, _texts(3), 5, variant=name, **OPTIONS[how])
        actual = deepening.table.sel(variant=name)
        for variable, values in alone.data_vars.items():
            there = actual[variable].sel({"pass": alone["pass"]}) if "pass" in values.dims else actual[variable]
            np.testing.assert_array_equal(there.values, values.values, err_msg=f"{name} {variable}")
        assert actual.changed.item() == alone.attrs["variant"]
        assert actual.scale.item() == alone.attrs["scale"]
        for key in ("weights", "feed_back", "positions", "seed", "resolution", "asked_for"):
            assert deepening.table.attrs[key] == alone.attrs[key]


def test_a_run_that_ends_early_is_undefined_behind_its_end(ckpt: td.Checkpoint) -> None:
    deepening = td.deeper(ckpt, _texts(), 12, feed_back="before_norm", variants=("full", "no-norm"))
    alone = td.passes(ckpt, _texts(), 12, feed_back="before_norm", variant="no-norm")
    assert alone.sizes["pass"] < 13  # without norms the feed-forward parts overflow
    row = deepening.table.sel(variant="no-norm")
    assert set(row.status.values) == {"not finite"}
    assert np.isnan(row.consensus.values[:, alone.sizes["pass"] :]).all()
    assert np.isnan(row.median_consensus.values[alone.sizes["pass"] - 1 :]).all()
    assert np.isfinite(deepening.table.consensus.sel(variant="full").values).all()
    lost = int(np.flatnonzero(np.isnan(alone.log_norm.values).any(axis=0))[0])
    words = f"become non-finite in 4 of 4 texts, first after pass {lost}; medians end there."
    assert words in _said_of(deepening, "no-norm")
    assert "not finite" not in _said_of(deepening, "full")


def _said_of(result: td.Deeper, name: str) -> str:
    (sentence,) = (entry for entry in result.sentences if entry.startswith(f"{name}: "))
    return sentence


@pytest.mark.long
def test_half_lives_are_of_the_median_over_prompts(ckpt: td.Checkpoint) -> None:
    deepening = td.deeper(ckpt, _texts(), 20, variants=("full", "attention-only"))
    for name in deepening.variants:
        row = deepening.table.sel(variant=name)
        median = np.median(row.consensus.values, axis=0)
        np.testing.assert_array_equal(row.median_consensus.values, median)
        first, last = int(row.fit_first), int(row.fit_last)
        assert first == int(np.flatnonzero(median <= median[0] / 2)[0])
        half = (last - first) / np.log2(median[first] / median[last])  # a mean of steps is the chord
        assert float(row.median_half_life.sel(estimate="value")) == pytest.approx(half, rel=1e-12)
        assert float(row.median_collapse_pass.sel(estimate="value")) == int(np.flatnonzero(median < 1e-3)[0])


def test_of_one_prompt_the_median_is_that_prompt(ckpt: td.Checkpoint) -> None:
    deepening = td.deeper(ckpt, _texts(1), 15, variants=("no-ffn",))
    alone = td.passes(ckpt, _texts(1), 15, variant="no-ffn")
    np.testing.assert_array_equal(deepening["median_half_life"].values[0], alone.half_life.values[0])
    np.testing.assert_array_equal(deepening["median_collapse_pass"].values[0], alone.collapse_pass.values[0])
    assert "κ" not in deepening.text
    assert "median over" not in deepening.text
    two = td.deeper(ckpt, _texts(2), 2, variants=("full",))
    (kappa,), (common,) = two["consensus_within"].values, two["share_common"].values
    message = re.search(
        r"to pass 2, similarity κ goes from (.*) to (.*) and the share .* texts from (.*) to ([^ ]*)\.",
        two.sentences[1],
    )
    assert message is not None
    wanted = [kappa[0], kappa[2], common[0], common[2]]
    np.testing.assert_allclose([float(group.replace("−", "-")) for group in message.groups()], wanted, atol=0.0051)


def _given(*curves: Sequence[float], **attrs: Any) -> str:
    """What is said of prompts whose E is given, pass by pass."""
    passes, prompts = len(curves[0]) - 1, len(curves)
    run = td.passes(td.load(_with_head("gpt2")), _texts(prompts), 1)
    run = run.reindex({"pass": np.arange(passes + 1)}).assign_attrs(run.attrs | {"asked_for": passes} | attrs)
    values = np.array(curves, dtype=float)
    lost = np.isnan(values).any(axis=1)
    run = run.assign(
        consensus=(("prompt", "pass"), values),
        log_norm=(("prompt", "pass"), np.where(np.isnan(values), np.nan, 0.0)),
        status=("prompt", np.where(lost, "not finite", "all passes done")),
    )
    text = sentences_of(_side_by_side({"full": run}), {}, "it was not requested")[1]
    return re.sub(r" From the embedding to pass .* share common to all texts from \S+ to \S+\.", "", text)


def _halving(passes: int, life: float = 4.0, start: float = 1.0) -> list[float]:
    return [start * 0.5 ** (k / life) for k in range(passes + 1)]


NAN = float("nan")
CASES: dict[str, tuple[list[list[float]], str]] = {
    "seen": (
        [_halving(60)],
        "full: E falls from 1 to below 0.001 at pass 40; the half-life is 4 passes (90 % CI 4–4).",
    ),
    "not yet": (
        [_halving(20)],
        "full: E falls from 1 to 0.031 in 20 passes and has not reached 0.001; the half-life is 4 passes (90 % CI "
        "4–4). At this rate it is reached at about pass 40 (90 % CI 40–40).",
    ),
    "it comes back": (
        [[*_halving(60), *[0.5] * 5]],
        "It is 0.5 again after pass 65.",
    ),
    "constant": ([[0.5] * 31], "full: E does not fall: 0.5 at the embedding, 0.5 after pass 1, 0.5 after pass 30."),
    "growing": (
        [[0.1 * 1.02**k for k in range(31)]],
        "full: E does not fall: 0.1 at the embedding, 0.1 after pass 1, 0.18 after pass 30.",
    ),
    "halved and back half of the way": (
        [[0.8, 0.3, *np.linspace(0.3, 0.6, 20)]],
        "full: E stops falling: 0.8 at the embedding, 0.3 after pass 1, 0.6 after pass 21.",
    ),
    "up and down": (
        [[1.0, *(0.4 + 0.05 * np.sin(2.0 * np.arange(29))), 0.399]],
        "From pass 1 on its fall is not significant: ",
    ),
    "two passes": (
        [[0.9, 0.5, 0.2]],
        "full: E goes from 0.9 to 0.2 in 2 passes; the half-life is undefined because E is measured after too few "
        "passes.",
    ),
    "two passes above rounding": (
        [[0.9, 0.002, *[1e-17] * 8]],
        "at pass 2; the half-life is undefined because too few passes are above rounding.",
    ),
    "one pass": ([[0.9, 0.5]], "full: E goes from 0.9 to 0.5 in 1 pass; the half-life is undefined"),
    "one direction from the start": ([[0.0] * 9], "E is already below 0.001 before the first pass."),
    "lost at once": (
        [[0.5, NAN]],
        "full: E is 0.5 at the embedding and undefined after every pass. States become non-finite in 1 of 1 text, "
        "first after pass 1;",
    ),
    "no directions": (
        [[NAN, NAN]],
        "full: nothing is measured because tokens have no directions before the first pass",
    ),
    "one of three lost": (
        [_halving(60), _halving(60), [*_halving(50), *[NAN] * 10]],
        "full: The median of E falls from 1 to below 0.001 at pass 40; the half-life is 4 passes (90 % CI 4–4). After "
        "the last pass (50), E is below 0.001 in all 3 texts. States become non-finite in 1 of 3 texts, first "
        "after pass 51; medians end there.",
    ),
    "the middle one of three": (
        [_halving(60), _halving(60, 8.0), _halving(60, 2.0)],
        "After the last pass (60), E is below 0.001 in 2 of 3 texts.",
    ),
}  # fmt: skip


@pytest.mark.few(5)
@pytest.mark.parametrize("case", CASES)
def test_each_sentence_follows_its_numbers(case: str) -> None:
    curves, words = CASES[case]
    assert words in _given(*curves)


@pytest.mark.long
def test_a_share_outside_0_to_1_is_no_sentence() -> None:
    def said(*common: float) -> str:
        run = td.passes(td.load(_with_head("gpt2")), _texts(2), 1)
        run["share_common"] = ("pass", list(common))
        run["consensus_within"] = ("pass", [0.1, 0.2])
        return sentences_of(_side_by_side({"full": run}), {}, "it was not requested")[1]

    assert "and the share common to all texts from 0.10 to 1.00." in said(0.1, 1.0)
    for common in ((-0.09, 0.5), (0.1, 1.09)):
        assert "κ goes from 0.10 to 0.20." in said(*common)
        assert "share common" not in said(*common)


def test_rounding_is_no_collapse() -> None:
    curve = [*_halving(16), *[0.05] * 10]  # as bfloat16 leaves it
    assert "E falls from 1 to 0.05, which is within rounding; the half-life" in _given(curve, resolution=0.055)
    assert "within rounding" not in _given(curve, resolution=1e-10)


@pytest.mark.long
def test_identity_does_not_collapse_and_averaging_does() -> None:
    network = _with_head("gpt2")
    still, mixing = _with_head("gpt2"), network
    for block in still.transformer.h:
        for part in (block.attn.c_proj, block.mlp.c_proj):
            part.weight.data.zero_()
            part.bias.data.zero_()
    asked: dict[str, Any] = {"variants": ("full",), "feed_back": "before_norm"}
    deepening = td.deeper(td.load(still), _texts(), 8, **asked)
    values = deepening["median_consensus"].values[0]
    np.testing.assert_array_equal(values, values[0])
    assert "full: E does not fall" in deepening.text
    assert "half-life" not in deepening.text
    other = td.deeper(td.load(mixing), _texts(), 20, variants=("full",))
    assert "full: The median of E falls from 0.77 to below 0.001" in other.text


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({f"w{n}": n for n in range(61)}, unk_token="w0"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0")  # noqa: S106


@pytest.mark.long
def test_texts_are_those_of_decode() -> None:
    ckpt = td.load(_with_head("llama"), tokenizer=_tokenizer())
    texts = {"one": "w5 w9 w33 w21 w7 w50", "other": "w12 w3 w44 w8"}
    deepening = td.deeper(ckpt, texts, 12, variants=("full", "no-ffn"), decoded=(1, 3, 12, 13))
    assert deepening["decoded_pass"].values.tolist() == [1, 3, 12]
    assert deepening.undecoded == ""
    for name in deepening.variants:
        alone = td.decode(ckpt, texts["one"], (1, 3, 12), variant=name)
        assert deepening["decoded"].sel(variant=name).values.tolist() == alone.decoded.values.tolist()
        np.testing.assert_array_equal(deepening["distinct_1"].sel(variant=name), alone.distinct_1)
        first, last = (percent(float(alone.distinct_1.values[place])) for place in (0, -1))
        assert f"{first} of its tokens are different after pass 1, {last} after pass 12." in _said_of(deepening, name)
    fed = td.deeper(ckpt, texts, 12, variants=("no-norm",), feed_back="before_norm")
    lost = int(np.flatnonzero(np.isnan(fed["log_norm"].values[0, 0]))[0])
    shares = fed["distinct_1"].values[0]
    assert np.isfinite(shares).tolist() == [step < lost for step in (1, 2, 5, 10)]
    assert (fed["decoded"].values[0] == "").tolist() == [step >= lost for step in (1, 2, 5, 10)]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (
            [0.9, 0.6, 0.1],
            "The decoded text becomes repetitive: 90 % of its tokens are different after pass 1, 10 % after",
        ),
        ([0.9, 0.6, 0.3], "The decoded text does not become repetitive: 90 % of its tokens"),
        ([0.1, 0.1, 0.1], "The decoded text is repetitive from the start: 10 % of its tokens"),
        ([0.1, 0.6, 0.9], "The decoded text is repetitive from the start, but not at the end: 10 % of its tokens"),
        ([0.9, NAN, NAN], "The decoded text is not repetitive: 90 % of its tokens are different after pass 1."),
        ([0.1, NAN, NAN], "The decoded text is repetitive: 10 % of its tokens are different after pass 1."),
        ([NAN, NAN, NAN], "No text can be decoded."),
    ],
)
def test_whether_a_text_turns_repetitive(ckpt: td.Checkpoint, shares: list[float], words: str) -> None:
    table = td.deeper(ckpt, _texts(), 2, variants=("full",)).table
    table = table.assign(distinct_1=(("variant", "decoded_pass"), [shares])).assign_coords(decoded_pass=[1, 5, 10])
    assert words in sentences_of(table, {}, "")[1]


def test_why_nothing_is_decoded(ckpt: td.Checkpoint) -> None:
    one: dict[str, Any] = {"variants": ("full",)}
    without = td.deeper(td.load(network_of("gpt2")[0], tokenizer=_tokenizer()), _texts(), 2, **one)
    assert "a network with a language head" in without.undecoded
    assert f"No text was decoded: {without.undecoded}." in without.sentences
    assert "decoded" not in without.table
    assert td.deeper(ckpt, _texts(), 2, **one).undecoded == "there is no tokenizer"
    known = td.load(_with_head("llama"), tokenizer=_tokenizer())
    assert td.deeper(known, _texts(), 2, decoded=(), **one).undecoded == "it was not requested"
    assert (
        "trained with other weights than those drawn" in td.deeper(known, _texts(), 2, weights="law", **one).undecoded
    )
    assert td.deeper(known, _texts(), 2, **one).undecoded == ""


def test_a_variant_that_a_network_cannot_have_is_named_and_the_others_run() -> None:
    network, _ = network_of("mamba")
    deepening = td.deeper(td.load(network), _texts(), 3)
    assert deepening.variants == ("full", "no-norm")
    assert list(deepening.refused) == ["no-ffn", "attention-only"]
    assert "feed_forward, which no layer has" in deepening.refused["no-ffn"]
    assert f"no-ffn was not run: {deepening.refused['no-ffn']}." in deepening.sentences
    with pytest.raises(ArgumentValueError, match="which no layer has"):
        td.deeper(td.load(network), _texts(), 3, variants=("no-ffn", "attention-only"))


class _Own(nn.Module):
    """A network of the user's own, whose initial law nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.long
def test_a_diagnosis_has_it_where_it_is_asked_for(ckpt: td.Checkpoint) -> None:
    assert td.diagnose(ckpt, _texts(), levers=False).deeper is None
    message: list[str] = []
    diagnosis = td.diagnose(
        ckpt, _texts(), levers=False, passes=3, weights="law", variants=["full", "no-ffn"],
        progress=lambda done, total, what: message.append(what),
    )  # fmt: skip
    alone = td.deeper(ckpt, _texts(), 3, weights="law", variants=["full", "no-ffn"])
    assert isinstance(diagnosis.deeper, Deeper)
    xr.testing.assert_identical(diagnosis.deeper.table, alone.table)
    assert replace(diagnosis.deeper, table=alone.table) == alone
    wanted = {"passes": 3, "weights": "law", "variants": ["full", "no-ffn"]}
    assert wanted.items() <= diagnosis.manifest["parameters"].items()
    assert {"passing: full", "passing: no-ffn"} <= set(message)


def test_a_diagnosis_says_why_a_network_was_not_made_deeper() -> None:
    loaded = td.load(_Own().eval(), inputs=lambda count: {"x": torch.randn(count, 5, 8)})
    texts = {f"{n}": {"x": torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(n))} for n in range(2)}
    diagnosis = td.diagnose(loaded, texts, levers=False, passes=2, weights="law", variants=("full",))
    assert isinstance(diagnosis.deeper, Refused)
    assert "a network that transformers initialises" in diagnosis.deeper_refused
    with pytest.raises(CheckpointError, match="a network that transformers initialises"):
        td.deeper(loaded, texts, 2, weights="law", variants=("full",))


def test_runs_that_are_stored_go_on(ckpt: td.Checkpoint, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"variants": ("full", "attention-only")}
    td.deeper(ckpt, _texts(), 3, store=tmp_path / "runs", **chosen)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"full.npz", "attention-only.npz"}
    counted: list[tuple[float, str]] = []
    deepening = td.deeper(
        ckpt, _texts(), 6, store=tmp_path / "runs", progress=lambda done, total, what: counted.append((done, what)),
        **chosen,
    )  # fmt: skip
    xr.testing.assert_identical(deepening.table, td.deeper(ckpt, _texts(), 6, **chosen).table)
    assert min(done for done, what in counted if what == "passing: full") == 3
    with pytest.raises(ArgumentValueError, match="store"):
        td.deeper(ckpt, _texts(), 6, store=tmp_path / "runs", positions="never", **chosen)
    with pytest.raises(ArgumentValueError, match="store: expected a folder, got the file"):
        td.deeper(ckpt, _texts(), 6, store=tmp_path / "runs" / "full.npz", **chosen)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"n": 0}, ArgumentValueError, "n: expected"),
        ({"n": -3}, ArgumentValueError, "n: expected"),
        ({"n": 2.0}, ArgumentTypeError, "n: expected an integer"),
        ({"n": 10**14}, MemoryLimitError, "fewer passes"),
        ({"variants": ("full", "no-attention")}, ArgumentValueError, "variants: expected 'full', 'no-ffn', 'no-norm'"),
        ({"variants": ("full", "full")}, ArgumentValueError, "different names, at least one"),
        ({"variants": ()}, ArgumentValueError, "different names, at least one"),
        ({"variants": "full"}, ArgumentTypeError, "variants: expected a list"),
        ({"variants": ({"attention": 0},)}, ArgumentTypeError, "variants"),
        ({"weights": "new"}, ArgumentValueError, "'fixed'"),
        ({"feed_back": "later"}, ArgumentValueError, "'after_norm'"),
        ({"positions": "twice"}, ArgumentValueError, "'once'"),
        ({"decoded": (0, 1)}, ArgumentValueError, "decoded: expected different numbers of passes from 1 on"),
        ({"decoded": (2, 2)}, ArgumentValueError, "decoded: expected different numbers"),
        ({"texts": {}}, ArgumentValueError, "at least one prompt"),
        ({"texts": torch.zeros(70, dtype=torch.int64)}, ArgumentValueError, "1 to 64 tokens"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input(ckpt: td.Checkpoint, given: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"texts": _texts(), "n": 2} | given
    with pytest.raises(error, match=words):
        td.deeper(ckpt, arguments.pop("texts"), arguments.pop("n"), **arguments)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"passes": 0}, ArgumentValueError, "passes: expected"),
        ({"passes": 10**14}, MemoryLimitError, "passes: expected"),
        ({"passes": 2, "variants": ("all",)}, ArgumentValueError, "variants"),
        ({"passes": 2, "weights": "new"}, ArgumentValueError, "weights"),
    ],
)
def test_a_diagnosis_refuses_it_before_the_work(
    ckpt: td.Checkpoint, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    begun: list[str] = []
    with pytest.raises(error, match=words):
        td.diagnose(ckpt, _texts(), progress=lambda done, total, what: begun.append(what), **given)
    assert begun == []


def test_of_a_network_without_norms_only_their_variants_are_not_run() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    bare = LanguageModelConfig(**sizes, intermediate_size=0, norms="none", positions="none")
    network = td.load(LanguageModel(bare))
    deepening = td.deeper(network, _texts(2), 2)
    assert (deepening.variants, list(deepening.refused)) == (("full",), ["no-ffn", "no-norm", "attention-only"])
    assert not {convention.name for convention in deepening.conventions} & {"feed-back", "positions"}
    with pytest.raises(CheckpointError, match="expected norms in its blocks"):
        td.deeper(network, _texts(2), 2, variants=("no-norm",))


def test_the_choices_of_final_norm_and_positions_are_of_a_network_that_has_them(ckpt: td.Checkpoint) -> None:
    deepening = td.deeper(ckpt, _texts(2), 2, variants=("full",))
    choices = {convention.name: convention.choice for convention in deepening.conventions}
    assert choices["feed-back"] == "the output of the blocks is fed back after the final norm"
    assert choices["positions"] == "once; they act in the attention of every pass"
