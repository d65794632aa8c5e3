"""Series, waveforms and pixels as prompts, for networks whose only argument takes real numbers."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.families import network_of as network_of_family
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError


class Series(nn.Module):
    """Reads (input, token, 3) and, where it is given, a mask of padding (input, token)."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, dropout=0.0)
        self.read, self.blocks = nn.Linear(width, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, series: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.blocks(self.read(series), src_key_padding_mask=padding)


class Wave(Series):
    """Reads (input, sample), four samples a token."""

    def __init__(self) -> None:
        super().__init__(4)

    def forward(self, wave: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.blocks(self.read(wave.unflatten(-1, (-1, 4))))


def series_of(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))


def kappa(table: Any) -> np.ndarray:
    return table.consensus_within.values


@pytest.fixture(scope="module")
def live() -> Any:
    return td.load(Series().eval(), inputs={"series": torch.randn(2, 6, 3)})


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: x[None],
        lambda x: x.double().numpy(),
        lambda x: {"series": x},
        lambda x: {"series": x[None]},
    ],
)
def test_a_series_is_a_prompt_in_any_form(live: Any, form: Any) -> None:
    several = [series_of(tokens, 3) for tokens in (5, 8, 9)]
    table = td.trace(live, [form(x) for x in several], packed=False)
    wanted = [live.states({"series": x[None]}).feed_forward.double() for x in several]
    for place, states in enumerate(wanted):
        units = torch.nn.functional.normalize(states, dim=-1)
        tokens = units.shape[1]
        cosines = ((units @ units.mT).sum(dim=(-2, -1)) - tokens) / (tokens * (tokens - 1))
        measured = table.mean_pair_cosine.sel(site="feed_forward", sinks="kept").values[place]
        np.testing.assert_allclose(measured, cosines.numpy(), atol=1e-6)
    assert (table.attrs["prompt_noun"], table.attrs["tokenization"]) == ("input", "none: no input is a text")


def test_one_series_and_series_by_name_are_told_from_several(live: Any) -> None:
    x = series_of(5, 3)
    assert td.trace(live, x).prompt.values.tolist() == ["prompt 1"]
    assert td.trace(live, {"a": x, "b": series_of(8, 3)}).prompt.values.tolist() == ["a", "b"]
    assert td.trace(live, {"series": x}).prompt.values.tolist() == ["prompt 1"]


def test_a_mask_passes_as_it_is(live: Any) -> None:
    x, padding = series_of(7, 3), torch.tensor([[False] * 5 + [True] * 2])
    masked = live.states({"series": x[None], "padding": padding}).feed_forward
    given = td.trace(live, {"series": x, "padding": padding})
    units = torch.nn.functional.normalize(masked[-1].double(), dim=-1)
    units = units[:5]  # what no other token sees is padding: it is not measured
    wanted = float(((units @ units.mT).sum() - 5) / 20)
    assert masked.shape[1] == 7
    assert float(given.mean_pair_cosine.sel(site="feed_forward", sinks="kept")[0, -1]) == pytest.approx(
        wanted, abs=1e-6
    )
    assert not np.allclose(given.mean_pair_cosine, td.trace(live, x).mean_pair_cosine, equal_nan=True)


def test_a_waveform_is_a_prompt() -> None:
    wave = td.load(Wave().eval(), inputs={"wave": torch.randn(2, 24)})
    sound = series_of(32)
    np.testing.assert_array_equal(kappa(td.trace(wave, sound)), kappa(td.trace(wave, {"wave": sound[None]})))
    assert td.trace(wave, sound).sizes["token"] == 8


def test_pixels_are_a_prompt_where_there_is_no_image_processor() -> None:
    live = td.load(network_of_family("vit")[0])
    pixels = series_of(3, 12, 12)
    np.testing.assert_array_equal(
        td.trace(live, pixels.numpy()).mean_pair_cosine.values,
        td.trace(live, {"pixel_values": pixels[None]}).mean_pair_cosine.values,
    )
    with pytest.raises(ArgumentValueError, match="pixels of 3 channels, which come first, got shape"):
        td.trace(live, pixels.movedim(0, -1))


def test_what_is_ambiguous_is_refused_by_name(live: Any) -> None:
    for shape in ((5,), (2, 1, 5, 3), (1, 1, 5, 3)):
        with pytest.raises(ArgumentValueError, match="prompt 1: expected one series, an array of 2 axes, got shape"):
            td.trace(live, series_of(*shape))
    both = td.load(Series().eval(), inputs=(torch.randn(2, 6, 3), torch.zeros(2, 6, dtype=torch.bool)))
    with pytest.raises(ArgumentTypeError, match="prompt 1: expected a text"):
        td.trace(both, series_of(5, 3))
    with pytest.raises(
        ArgumentValueError, match="with an axis of inputs, or none, got padding with one and series without"
    ):
        td.trace(both, {"series": series_of(6, 3), "padding": torch.zeros(1, 6)})


class Folded(Series):
    """Every channel of a series is a sequence of its own, in the axis of inputs (PatchTST, DLinear-like patches)."""

    def __init__(self) -> None:
        super().__init__(4)

    def forward(self, series: Tensor, padding: Tensor | None = None) -> Tensor:
        inputs, length, channels = series.shape
        rows = series.transpose(1, 2).reshape(inputs * channels, length // 4, 4)
        return super().forward(rows, padding).unflatten(0, (inputs, channels))


@pytest.mark.parametrize("several", [1, 3])
def test_channels_that_are_folded_into_the_inputs_are_named(several: int) -> None:
    torch.manual_seed(2)
    ckpt: Any = td.load(Folded().eval(), inputs=torch.randn(2, 32, 3))
    prompts = [series_of(32, 3) for _ in range(several)]
    words = (
        "series: expected an input that the blocks read as one sequence, got 3 sequences from one of shape (1, 32, 3); "
        "the network folds another axis, such as channels, into the first: pass each channel as an input, "
        "shape (1, 32, 1)"
    )
    for measure in (td.trace, partial(td.passes, n=1)):
        with pytest.raises(ArgumentValueError, match=re.escape(words)):
            measure(ckpt, prompts)
    with pytest.raises(ArgumentValueError, match="the network folds another axis"), ckpt.gated() as gated:
        gated.run(ckpt.packs([{"series": prompt[None]} for prompt in prompts])[0], torch.ones(gated.exists.shape))
    # What the advice says works, and gives the states of that channel.
    channel = prompts[0][:, 1:2]
    trace = td.trace(ckpt, [channel, prompts[0][:, 0:1]])
    assert trace.sizes["token"] == 8
    rows: list[Tensor] = []
    hook = ckpt.model.blocks.layers[-1].register_forward_hook(lambda module, given, y: rows.append(y[1]))
    with torch.no_grad():
        ckpt.model(prompts[0][None])
    hook.remove()
    torch.testing.assert_close(ckpt.states({"series": channel[None]}).feed_forward[-1], rows[0], rtol=1e-5, atol=1e-6)


def test_several_inputs_in_one_tensor_are_named_as_such(live: Any) -> None:
    with pytest.raises(ArgumentValueError, match="one input, with a first axis of length 1, got"):
        td.trace(live, [{"series": series_of(2, 9, 3)}])


class OfThree(Folded):
    """A norm with a gain for each of three channels makes three of one (RevIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.rand(3))

    def forward(self, series: Tensor, padding: Tensor | None = None) -> Tensor:
        return super().forward(series * self.gains, padding)


def test_channels_that_no_input_has_alone_are_read_by_the_module_inside() -> None:
    ckpt: Any = td.load(OfThree().eval(), inputs=torch.randn(2, 32, 3))
    with pytest.raises(ArgumentValueError, match=r"got 3 sequences from one of shape \(1, 32, 1\); .* load the module"):
        td.trace(ckpt, [series_of(32, 1) for _ in range(2)])
