"""What may be passed as a prompt: texts, token ids, images, and arguments of the forward pass by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tokendynamics as td
from pretrained.families import inputs_of, network_of
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.report import write

IDS = [5, 9, 33, 21, 7, 50]


def measured(table: Any) -> np.ndarray:
    return table.mean_pair_cosine.sel(sinks="kept").values


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "form",
    [
        IDS,
        tuple(IDS),
        torch.tensor(IDS),
        torch.tensor([IDS], dtype=torch.int32),
        np.array(IDS),
        {"input_ids": torch.tensor([IDS])},
        [IDS],
        {"ids": np.array(IDS)},
        [{"input_ids": torch.tensor([IDS]), "attention_mask": torch.ones(1, 6, dtype=torch.long)}],
    ],
    ids=str,
)
def test_token_ids_in_any_form_are_one_prompt(form: Any) -> None:
    live = load(network_of("gpt2")[0])
    table = td.trace(live, form)
    assert table.sizes["prompt"] == 1
    assert table.attrs["tokenization"] == "none: no input is a text"
    assert table.token_text.values[0].tolist() == [f"<id {number}>" for number in IDS]
    states = live.states(torch.tensor([IDS])).feed_forward.double()
    units = torch.nn.functional.normalize(states, dim=-1)
    cosines = (units @ units.mT).sum(dim=(-2, -1)).sub(6).div(30)
    np.testing.assert_allclose(measured(table)[0, :, 1], cosines.numpy(), atol=1e-10)


def test_several_prompts_of_ids_keep_their_names_and_lengths() -> None:
    table = td.trace(load(network_of("gpt2")[0]), {"long": IDS, "short": IDS[:3]})
    assert table.prompt.values.tolist() == ["long", "short"]
    assert table.token_text.values.tolist()[1] == ["<id 5>", "<id 9>", "<id 33>", "", "", ""]


@pytest.fixture
def vision(tmp_path: Path) -> tuple[Any, Path]:
    """A tiny ViT with its image processor, and a folder of two images."""
    from transformers import ViTImageProcessorPil

    network, _ = network_of("vit")
    with silenced():
        network.save_pretrained(tmp_path / "model")
        ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(tmp_path / "model")
    (tmp_path / "images").mkdir()
    random = np.random.default_rng(2)
    for name in ("b.png", "a.png"):
        Image.fromarray(random.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(tmp_path / "images" / name)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return load(tmp_path / "model"), tmp_path / "images"


@pytest.mark.long
def test_a_folder_of_images_is_traced_as_its_pixels_are(vision: tuple[Any, Path]) -> None:
    checkpoint, folder = vision
    table = td.trace(checkpoint, folder)
    assert table.prompt.values.tolist() == ["a.png", "b.png"]
    assert table.token_text.shape == (2, 10)  # nine patches and the class token
    with Image.open(folder / "a.png") as image:
        resized = np.asarray(image.convert("RGB").resize((12, 12), Image.Resampling.BILINEAR), dtype=np.float64)
    pixels = torch.tensor((resized / 255 - 0.5) / 0.5, dtype=torch.float32).permute(2, 0, 1)[None]
    by_name = td.trace(checkpoint, {"pixel_values": pixels})
    np.testing.assert_allclose(measured(table)[0], measured(by_name)[0], atol=1e-6)


@pytest.mark.long
def test_an_image_may_be_a_path_a_picture_or_an_array(vision: tuple[Any, Path]) -> None:
    checkpoint, folder = vision
    path = folder / "b.png"
    with Image.open(path) as image:
        forms = [path, image.convert("RGB"), np.asarray(image.convert("RGB"))]
        tables = [td.trace(checkpoint, [form]) for form in forms]
    for table in tables[1:]:
        np.testing.assert_array_equal(measured(table), measured(tables[0]))


@pytest.mark.slow
def test_the_whole_diagnosis_runs_on_images(vision: tuple[Any, Path], tmp_path: Path) -> None:
    checkpoint, folder = vision
    diagnosis = td.diagnose(checkpoint, folder, value="VO")
    diagnosis.save(tmp_path / "out")
    assert diagnosis.paths.attrs["prompt"] == "a.png"
    assert write(diagnosis, tmp_path / "report.html").is_file()


def test_what_no_network_of_this_kind_reads_is_refused(vision: tuple[Any, Path], tmp_path: Path) -> None:
    checkpoint, folder = vision
    text = load(network_of("gpt2")[0])
    with pytest.raises(ArgumentTypeError, match=r"prompt 1: expected a text or token ids, got an image; .* no images"):
        td.trace(text, [folder / "a.png"])
    with pytest.raises(ArgumentTypeError, match=r"prompt 1: expected pixel_values, no text.* as a Path$"):
        td.trace(checkpoint, "a text")
    with pytest.raises(ArgumentValueError, match="prompt 1: expected an image that can be read"):
        td.trace(checkpoint, [folder / "notes.txt"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentValueError, match=r"texts: expected images in .*, got none"):
        td.trace(checkpoint, tmp_path / "empty")
    with pytest.raises(CheckpointError, match="an image processor beside the weights, got none"):
        td.trace(load(network_of("vit")[0]), [folder / "a.png"])
    with pytest.raises(ArgumentTypeError, match="prompt 1: expected a text, token ids, an image, or the arguments"):
        td.trace(text, [[0.5, 1.5]])
    with pytest.raises(ArgumentValueError, match="ids from 0 to 60, got ids from 5 to 99"):
        td.trace(text, [5, 99])


@pytest.mark.long
def test_a_live_network_reads_texts_with_the_tokenizer_that_is_passed() -> None:
    class Letters:
        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) % 60 for letter in text]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [chr(number + 60) for number in ids]

    network, _ = network_of("gpt2")
    table = td.trace(load(network, Letters()), "abc")
    assert table.token_text.values.tolist() == [["a", "b", "c"]]
    assert table.attrs["tokenization"] == "own"
    with pytest.raises(CheckpointError, match="a tokenizer beside the trained weights, got none"):
        td.trace(load(network), "abc")


def test_sounds_are_passed_by_name() -> None:
    network, half = network_of("whisper")
    live = load(network, half=half)
    assert td.trace(live, inputs_of(network.encoder)).sizes["token"] == 8


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_tokens_that_fill_up_a_prompt_behind_its_end_are_not_measured(dtype: torch.dtype) -> None:
    live = load(network_of("bert")[0])
    ids, filled = torch.tensor([IDS]), torch.tensor([IDS + 3 * [0]])
    mask = torch.tensor([[1] * 6 + [0] * 3])
    alone = td.trace(live, {"input_ids": ids})
    padded = td.trace(live, {"input_ids": filled, "attention_mask": mask.to(dtype), "token_type_ids": 0 * filled})
    np.testing.assert_array_equal(measured(padded), measured(alone))
    everything = td.trace(live, {"input_ids": filled, "attention_mask": torch.ones_like(mask)})
    assert padded.sizes["token"] == 6 < everything.sizes["token"]
    with torch.no_grad():  # the network's own pass with the mask
        last = live.model(input_ids=filled, attention_mask=mask).last_hidden_state[0, :6]
    states = live.states({"input_ids": filled, "attention_mask": mask.to(dtype)})
    torch.testing.assert_close(states.feed_forward[-1], last, rtol=1e-5, atol=1e-6)


class _Marked(nn.Module):
    """Reads a mask that says which tokens are marked, and hides none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mark = _Encoder(), nn.Parameter(torch.randn(8))

    def forward(self, src: torch.Tensor, global_attention_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(src + global_attention_mask[..., None] * self.mark)


def test_a_mask_that_hides_nothing_is_no_padding() -> None:
    arguments = {"src": torch.randn(1, 6, 8), "global_attention_mask": torch.tensor([[1, 0, 0, 0, 0, 0]])}
    assert td.trace(load(_Marked().eval(), inputs=arguments), [arguments]).sizes["token"] == 6


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, src: torch.Tensor, src_key_padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.encoder(src, src_key_padding_mask=src_key_padding_mask)


def test_padding_that_cannot_be_cut_off_is_refused() -> None:
    bert, src = load(network_of("bert")[0]), torch.randn(1, 6, 8)
    encoder = load(_Encoder().eval(), inputs=src)
    before = torch.tensor([[0, 0, 1, 1, 1, 1]])
    for live, name, inputs in (
        (bert, "attention_mask", {"input_ids": torch.tensor([IDS]), "attention_mask": before}),
        (encoder, "src_key_padding_mask", {"src": src, "src_key_padding_mask": ~before.bool()}),
    ):
        with pytest.raises(ArgumentValueError, match=f"{name}: expected a mask that hides no token, got one that h"):
            td.trace(live, inputs)
        td.trace(live, inputs | {name: torch.full_like(inputs[name], name == "attention_mask")})


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(hidden, -torch.inf).softmax(dim=-1).nan_to_num()
        return x + self.out(weights @ v)


class _Masked(nn.Module):
    """Its mask has a name and a shape of its own; `there` is what it says of a token that the others see."""

    def __init__(self, there: bool, causal: int | None = None) -> None:
        super().__init__()
        self.there, self.causal, self.blocks = there, causal, nn.ModuleList(_Block() for _ in range(2))

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        hidden = m.reshape(len(x), 1, -1).bool() != self.there
        if self.causal is not None:
            hidden = hidden | torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(self.causal)
        for block in self.blocks:
            x = block(x, hidden)
        return x


@pytest.mark.long
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("form", [lambda m: m, lambda m: m.bool(), lambda m: m.float()[:, None, None]])
def test_what_a_mask_of_any_name_and_shape_hides_behind_the_end_is_not_measured(there: bool, form: Any) -> None:
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(2))
    every, some = torch.full((1, 6), int(there)), torch.full((1, 6), int(there))
    some[:, 4:] = int(not there)
    live = load(_Masked(there).eval(), inputs={"x": x, "m": form(every)})
    filled, alone = {"x": x, "m": form(some)}, {"x": x[:, :4], "m": form(every[:, :4])}
    trace = td.trace(live, filled)
    np.testing.assert_allclose(measured(trace), measured(td.trace(live, alone)), atol=1e-6)
    assert trace.sizes["token"] == 4
    assert live.states(filled).feed_forward.shape[1] == 6  # as the network has them
    several = [{name: value + (name == "x") * number for name, value in filled.items()} for number in range(5)]
    together = td.trace(live, several)
    for change in (td.what_if(live, several, {"attention": 0}), td.compare(live, live, texts=several).table):
        of_first = change.consensus_within.isel(model=0)
        np.testing.assert_allclose(of_first, together.consensus_within, atol=1e-6)
    with pytest.raises(ArgumentValueError, match="m: expected a mask that hides no token, got one that hides 2 tokens"):
        td.levers(live, several)


def test_an_example_of_states_that_do_not_differ_is_refused() -> None:
    """Ones or zeros may stand for every token, not for what the tokens are."""
    with pytest.raises(ArgumentValueError, match="numbers that differ, got x of shape"):
        load(_Masked(True).eval(), inputs={"x": torch.zeros(1, 6, 8), "m": torch.randint(0, 9, (1, 6))})


class _MaskedOnce(_Masked):
    """The second of its blocks shows the tokens that the first one hides."""

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        hidden = m.reshape(len(x), 1, -1).bool() != self.there
        first, second = self.blocks
        return first(second(x, torch.zeros_like(hidden)), hidden)


def test_what_some_layer_sees_is_measured() -> None:
    x, mask = torch.randn(1, 6, 8), torch.tensor([[1, 1, 1, 1, 0, 0]])
    live = load(_MaskedOnce(True).eval(), inputs={"x": x, "m": torch.ones(1, 6)})
    assert td.trace(live, {"x": x, "m": mask}).sizes["token"] == 6


def test_what_a_mask_hides_before_other_tokens_is_refused() -> None:
    x, mask = torch.randn(1, 6, 8), torch.tensor([[0, 1, 1, 0, 1, 1]])
    live = load(_Masked(True).eval(), inputs={"x": x, "m": torch.ones(1, 6)})
    with pytest.raises(ArgumentValueError, match="m: expected a mask that hides no token, got one that hides 2 tokens"):
        td.trace(live, {"x": x, "m": mask})


def test_tokens_that_no_other_sees_without_a_mask_of_the_input_are_measured() -> None:
    """No token sees the last one where each sees those before it alone; nor is a mark of tokens a mask."""
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(2))
    marks = torch.tensor([[1, 0, 0, 1, 0, 0]])
    strict = load(_Masked(True, causal=0).eval(), inputs={"x": x, "m": torch.ones(1, 6)})
    assert td.trace(strict, {"x": x, "m": torch.ones(1, 6)}).sizes["token"] == 6
    marked = load(_OfTwoKinds().eval(), inputs={"x": x, "m": marks})
    assert td.trace(marked, {"x": x, "m": marks}).sizes["token"] == 6


class _OfTwoKinds(_Masked):
    def __init__(self) -> None:
        super().__init__(True, causal=0)
        self.kinds = nn.Embedding(2, 8)

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.kinds(m), torch.ones_like(m))


class _Counted(_Masked):
    """Its second argument is the number of tokens of a prompt; what stands behind them is hidden."""

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return super().forward(x, (torch.arange(x.shape[1]) < m.reshape(-1, 1)).long())


@pytest.mark.parametrize("form", [lambda m: m, lambda m: m.float()])
def test_what_is_hidden_by_how_many_tokens_a_prompt_has_is_not_measured(form: Any) -> None:
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(2))
    live = load(_Counted(True).eval(), inputs={"x": x, "m": form(torch.tensor([6]))})
    filled, alone = ({"x": x[:, :tokens], "m": form(torch.tensor([4]))} for tokens in (6, 4))
    trace = td.trace(live, filled)
    np.testing.assert_allclose(measured(trace), measured(td.trace(live, alone)), atol=1e-6)
    assert trace.sizes["token"] == 4
    several = [{**filled, "x": x + number} for number in range(5)]
    with pytest.raises(ArgumentValueError, match="m: expected a mask that hides no token, got one that hides 2 tokens"):
        td.levers(live, several)


def test_numbers_for_a_network_that_reads_no_token_ids_are_not_called_such() -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    ckpt = td.load(network, inputs={"input": torch.randn(2, 5, 6)})
    with pytest.raises(ArgumentTypeError, match=r"in a mapping, got tensor\(\[\[") as raised:
        ckpt.states(torch.randn(1, 5, 6))
    assert "got token ids" not in str(raised.value)
    with pytest.raises(ArgumentTypeError, match="in a mapping, got token ids"):
        ckpt.states(torch.tensor([3, 1]))
