"""Which modules count as projections, and what is read of those whose weights stand in no one place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.discovery._calls import ModuleCall
from tokendynamics.pretrained.discovery._columns import Storage, Tracer, composed, stored_how
from tokendynamics.pretrained.discovery._maps import Probed, is_packed, map_of
from tokendynamics.pretrained.discovery._recomputed import affine_of
from tokendynamics.pretrained.discovery.words import block_in_words
from tokendynamics.pretrained.feed_forward import FeedForwardWeights


class Wrapped(nn.Module):
    """Something that is done to what a linear map gives."""

    def __init__(self, then: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.inner, self.then = nn.Linear(4, 3, bias=bias), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.inner(x))


def how(module: nn.Module) -> Storage | None:
    torch.manual_seed(2)
    x = torch.randn(2, 5, 4)
    with torch.no_grad():
        return stored_how(ModuleCall("it", module, x, x, module(x), ((x,), {}), 1, 2))


def test_a_map_is_affine_where_doubling_and_turning_round_say_so() -> None:
    assert how(nn.Linear(4, 3)) == "out x in"
    assert how(Wrapped(lambda y: 3.0 * y - 1.0)) == Probed(4, "Wrapped")
    assert how(Wrapped(lambda y: y, bias=False)) == Probed(4, "Wrapped")
    # Each passes one of the two tests: an odd map does not double, and one that doubles is not turned round.
    assert how(Wrapped(lambda y: y**3, bias=False)) is None
    assert how(Wrapped(torch.abs, bias=False)) is None
    # Far from zero, where the bias decides.
    assert how(Wrapped(lambda y: 0.1 * y + 20.0)) == Probed(4, "Wrapped")
    assert how(Wrapped(lambda y: (y + 20.0) ** 2)) is None


def test_what_reads_another_width_than_its_inner_modules_is_no_projection() -> None:
    class Half(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x[..., :4])

    x = torch.randn(2, 5, 8)
    half = Half(lambda y: y)
    assert stored_how(ModuleCall("it", half, x, x, half(x), ((x,), {}), 1, 2)) is None
    assert stored_how(ModuleCall("it", half, x, x[..., :4], half(x), ((x,), {}), 1, 2)) == Probed(4, "Half")


@pytest.mark.long
@pytest.mark.parametrize("part", ["q", "v"])
def test_a_projection_in_a_container_has_the_weights_and_the_bias_of_the_one_inside(part: str) -> None:
    network, _ = network_of("qwen2")
    plain = [td.load(network).attention(layer) for layer in (1, 2, 3)]
    for layer in network.layers:
        inner = getattr(layer.self_attn, f"{part}_proj")
        assert float(inner.bias.detach().abs().max()) > 0.05
        setattr(layer.self_attn, f"{part}_proj", nn.Sequential(nn.Dropout(), inner).eval())
    live, name = td.load(network), {"q": "query", "v": "value"}[part]
    for number, reference in enumerate(plain, 1):
        attention = live.layout.layers[number - 1].attention
        assert attention is not None
        assert [entry.does for entry in getattr(attention, name)] == [Probed(48, "Sequential")]
        attended = live.attention(number)
        for which in (name, f"{name}_bias", "key", "key_bias"):
            torch.testing.assert_close(getattr(attended, which), getattr(reference, which), rtol=1e-5, atol=1e-6)


class Int8(nn.Module):
    """Rows as whole numbers and one scale each: no parameters at all."""

    scale: Tensor
    rows: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("scale", linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127)
        self.register_buffer("rows", (linear.weight.detach() / self.scale).round().to(torch.int8))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def dense(self) -> Tensor:
        return self.rows * self.scale

    def forward(self, x: Tensor) -> Tensor:
        y = x @ (self.rows * self.scale).to(x).mT
        return y if self.bias is None else y + self.bias


class LowRank(nn.Module):
    """Two matrices under names of their own."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        u, s, v = torch.linalg.svd(linear.weight.detach())
        self.up, self.down = nn.Parameter(u[:, :8] * s[:8]), nn.Parameter(v[:8])
        self.shift = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def dense(self) -> Tensor:
        return (self.up @ self.down).detach()

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.down.mT @ self.up.mT
        return y if self.shift is None else y + self.shift


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("form", [Int8, LowRank])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_maps_in_any_form_are_read_by_what_they_do(family: str, form: type[Int8 | LowRank]) -> None:
    network, _ = network_of(family)
    dense = copy.deepcopy(network)
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Linear) and ("attn" in name or "attention" in name):
            owner, _, leaf = name.rpartition(".")
            changed = form(module)
            setattr(network.get_submodule(owner), leaf, changed)
            dense.get_submodule(name).weight.data = changed.dense().to(module.weight)
    live, plain = td.load(network), td.load(dense)
    attention = live.layout.layers[0].attention
    assert attention is not None, live.layout.layers[0].problem
    assert attention.output[1] == Probed(48, form.__name__)
    for layer in (1, 3):
        computed, expected = live.attention(layer), plain.attention(layer)
        for which in ("query", "key", "value", "output"):
            torch.testing.assert_close(getattr(computed, which), getattr(expected, which), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(td.audit(live).qk_balance, td.audit(plain).qk_balance, atol=1e-5)
    assert f"(a {form.__name__}, read by what it does)" in " ".join(
        words for _, words in block_in_words(live.layout.layers[0])
    )


class Rows8(Tensor):
    """A weight in a format of its own: it is multiplied and taken apart, like torchao's."""

    rows: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, rows: Tensor, scale: Tensor) -> Rows8:
        made = Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scale.dtype)
        made.rows, made.scale = rows, scale
        return made

    @classmethod
    def of(cls, weight: Tensor) -> Rows8:
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self) -> Tensor:
        return self.rows * self.scale

    def __repr__(self, **named: Any) -> str:
        return f"Rows8{tuple(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            return nn.functional.linear(args[0], args[1].dequantize(), bias)
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].rows, args[0].scale)
        raise NotImplementedError(str(func))


@pytest.mark.long
def test_weights_in_a_format_of_their_own_are_read_and_never_copied() -> None:
    network, _ = network_of("llama")
    dense = copy.deepcopy(network)
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            weight = Rows8.of(module.weight.detach())
            module.weight = nn.Parameter(weight, requires_grad=False)
            dense.get_submodule(name).weight.data = weight.dequantize()
    live, plain = td.load(network), td.load(dense)
    attention = live.layout.layers[0].attention
    assert attention is not None, live.layout.layers[0].problem
    assert [part.does for part in attention.query] == [Probed(48, "Rows8")]
    for which in ("query", "key", "value", "output"):
        torch.testing.assert_close(
            getattr(live.attention(2), which), getattr(plain.attention(2), which), rtol=1e-5, atol=1e-6
        )
    np.testing.assert_allclose(td.audit(live).qk_balance, td.audit(plain).qk_balance, atol=1e-5)
    ids = torch.tensor([5, 9, 33])
    torch.testing.assert_close(live.states(ids).feed_forward, plain.states(ids).feed_forward)


class Closed8(Rows8):
    """Such a weight that only multiplies."""

    def dequantize(self) -> Tensor:
        raise NotImplementedError("dequantize")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            return nn.functional.linear(args[0], args[1].rows * args[1].scale, bias)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_weights_that_cannot_be_taken_apart_are_read_by_what_they_do() -> None:
    network, _ = network_of("llama")
    dense = copy.deepcopy(network)
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            weight = Closed8.of(module.weight.detach())
            module.weight = nn.Parameter(weight, requires_grad=False)
            dense.get_submodule(name).weight.data = weight.rows * weight.scale
    live, plain = td.load(network), td.load(dense)
    for which in ("query", "key", "value", "output"):
        torch.testing.assert_close(
            getattr(live.attention(2), which), getattr(plain.attention(2), which), rtol=1e-5, atol=1e-6
        )


class Nibbles(nn.Linear):
    """Like bitsandbytes' and HQQ's: 4 bits in a uint8 parameter, dense in one precision while it runs."""

    def __init__(self, linear: nn.Linear, compute_dtype: torch.dtype) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        weight, self.compute_dtype = linear.weight.detach().float(), compute_dtype
        self.step = weight.abs().amax(dim=1, keepdim=True) / 7
        levels = ((weight / self.step).round() + 8).to(torch.uint8)
        self.weight = nn.Parameter(levels[:, ::2] * 16 + levels[:, 1::2], requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().to(compute_dtype))

    def dense(self) -> Tensor:
        levels = torch.stack((self.weight // 16, self.weight % 16), dim=-1).flatten(1).float() - 8
        return (levels * self.step).to(self.compute_dtype)

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input.to(self.compute_dtype), self.dense(), self.bias).to(input)


class Words(nn.Module):
    """Like GPTQ's and AWQ's: 8 times 4 bits in each int32 of a buffer, scales in half precision, no parameters."""

    words: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight, self.in_features = linear.weight.detach().float(), linear.in_features
        scales = (weight.abs().amax(dim=1) / 7).to(dtype)
        levels = ((weight / scales.float()[:, None]).round() + 8).clamp(0, 15).to(torch.int32).mT
        shifts = 4 * torch.arange(8, dtype=torch.int32)
        self.register_buffer("scales", scales)
        self.register_buffer("words", (levels.unflatten(0, (-1, 8)) << shifts[:, None]).sum(dim=1).to(torch.int32))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().to(dtype))

    def dense(self) -> Tensor:
        levels = (self.words[:, None] >> (4 * torch.arange(8, dtype=torch.int32))[:, None]) & 15
        return ((levels.flatten(0, 1).mT - 8) * self.scales[:, None]).to(self.scales)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.dense(), self.bias)  # no other precision than that of its scales


class OfRows8(nn.Linear):
    """Like torchao's and quanto's: the weight is a tensor of another class, which cannot be copied."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        self.weight = nn.Parameter(Rows8.of(linear.weight.detach().to(dtype)), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().to(dtype))

    def dense(self) -> Tensor:
        weight: Any = self.weight
        return weight.dequantize()


_PACKED = (Nibbles, Words, OfRows8)


@pytest.mark.parametrize("form", _PACKED)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.0), (torch.float16, 1e-3)])
def test_a_packed_map_is_read_without_the_rounding_of_its_own_precision(
    form: Any, dtype: torch.dtype, rtol: float
) -> None:
    torch.manual_seed(4)
    linear = nn.Linear(48, 16)
    linear.bias.data *= 20.0  # beside which the weights would be rounded
    packed = form(linear, dtype)
    affine = map_of(packed, 48)
    assert affine.bias is not None
    torch.testing.assert_close(affine.weight.mT, packed.dense().float(), rtol=rtol, atol=0.02 * rtol)
    torch.testing.assert_close(affine.bias, packed.bias.float(), rtol=0, atol=0)


@pytest.mark.parametrize("form", _PACKED)
def test_a_quantised_network_in_half_precision_is_read_as_the_weights_that_it_holds(form: Any) -> None:
    network = copy.deepcopy(network_of("qwen2")[0]).bfloat16()
    dense = copy.deepcopy(network)
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Linear):
            owner, _, leaf = name.rpartition(".")
            packed = form(module, torch.bfloat16)
            setattr(network.get_submodule(owner), leaf, packed)
            dense.get_submodule(name).weight.data = packed.dense()
    live, plain = td.load(network), td.load(dense)
    attention = live.layout.layers[0].attention
    assert attention is not None, live.layout.layers[0].problem
    kind = "Rows8" if form is OfRows8 else form.__name__
    assert [part.does for part in attention.query] == [Probed(48, kind)]
    for which in ("query", "query_bias", "key", "value", "output"):
        assert torch.equal(getattr(live.attention(2), which), getattr(plain.attention(2), which))
    down = "mlp.down_proj.weight"
    one, other = live.feed_forward(1), plain.feed_forward(1)
    assert isinstance(one, FeedForwardWeights)
    assert isinstance(other, FeedForwardWeights)
    assert torch.equal(one.matrices[down], other.matrices[down])
    ids = torch.tensor([5, 9, 33])
    assert torch.equal(live.states(ids).feed_forward, plain.states(ids).feed_forward)


def test_torchao_is_read_as_the_weights_that_it_holds() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    network = copy.deepcopy(network_of("llama")[0]).bfloat16()
    quantization.quantize_(network, quantization.Int8WeightOnlyConfig())
    dense = copy.deepcopy(network)
    for module in dense.modules():
        if isinstance(module, nn.Linear):
            weight: Any = module.weight
            module.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
    np.testing.assert_allclose(td.audit(td.load(network)).qk_balance, td.audit(td.load(dense)).qk_balance, atol=1e-6)


class RoundingNibbles(Nibbles):
    """Weights in 4 bits, and 8 bits for what it reads."""

    def forward(self, input: Tensor) -> Tensor:
        scale = input.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
        return super().forward((input / scale).round() * scale)


def test_rounding_what_is_read_is_told_from_half_precision() -> None:
    network = copy.deepcopy(network_of("llama")[0]).bfloat16()
    for layer in network.layers:
        layer.self_attn.k_proj = RoundingNibbles(layer.self_attn.k_proj, torch.bfloat16)
    live = td.load(network)
    words = "self_attn.k_proj (RoundingNibbles) is a linear map only to 0.0"
    assert words in live.layout.layers[0].problem
    assert bool(torch.isfinite(live.states(torch.tensor([5, 9, 33])).feed_forward).all())


class Rounding(nn.Module):
    """Inputs in 8 bits, each token with its own scale: it doubles and turns round, and does not add up."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inner = linear

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
        return self.inner((x / scale).round() * scale)


@pytest.mark.long
def test_a_projection_that_quantises_what_it_reads_is_no_linear_map() -> None:
    assert how(Rounding(nn.Linear(4, 3))) is None
    network, _ = network_of("llama")
    for layer in network.layers:
        layer.self_attn.k_proj = Rounding(layer.self_attn.k_proj)
    words = r"self_attn.k_proj \(Rounding\) is a linear map only to 0.0\d+, as where it quantises what it reads"
    with pytest.raises(CheckpointError, match=words):
        td.audit(td.load(network))


def test_what_mixes_tokens_is_no_projection() -> None:
    class Smoothed(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + x.roll(1, dims=1))

    assert how(Smoothed(lambda y: y)) is None


def test_a_query_behind_a_chain_of_ten_maps_is_their_product() -> None:
    torch.manual_seed(3)
    maps = [nn.Linear(6, 6).double() for _ in range(10)]
    x = start = torch.randn(2, 8, 6, dtype=torch.float64)
    calls, product, bias = [], torch.eye(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for number, module in enumerate(maps):
        module.weight = nn.Parameter(torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q, requires_grad=False)
        y = module(x).detach()
        calls.append(ModuleCall(f"block.{number}", module, x, x, y, ((x,), {}), 2 * number, 2 * number + 1))
        x, product, bias = y, product @ module.weight.T, bias @ module.weight.T + module.bias.detach()
    parts = Tracer(calls, start, "block.").parts(3.0 * x, "queries")
    result = composed(parts, 6, lambda part: affine_of(maps[int(part.module)], part.does))
    assert result is not None
    torch.testing.assert_close(result.weight, 3.0 * product, rtol=0, atol=1e-7)
    torch.testing.assert_close(result.bias, 3.0 * bias, rtol=0, atol=1e-7)
    # Without the first of them the chain does not start where the attention reads.
    with pytest.raises(CheckpointError, match="no module gives the input of 1"):
        Tracer(calls[1:], start, "block.").parts(x, "queries")


@pytest.mark.long
def test_a_container_that_is_no_projection_is_named() -> None:
    network, _ = network_of("llama")
    for layer in network.layers:
        layer.self_attn.q_proj = nn.Sequential(layer.self_attn.q_proj, nn.GELU()).eval()
    with pytest.raises(CheckpointError, match=r"layer 1: .*self_attn\.q_proj") as raised:
        td.audit(td.load(network))
    assert "\n" not in str(raised.value)


class _ByHand(nn.Module):
    """Blocks of one attention each, by functions; all of its maps may be of any form."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.blocks = nn.ModuleList(_AttentionByHand() for _ in range(2))

    def forward(self, series: Tensor) -> Tensor:
        states = self.embed(series)
        for block in self.blocks:
            states = block(states)
        return states


class _Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in maps)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _AttentionByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixing = nn.LayerNorm(8), _Mixing()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixing(self.norm(x))


@pytest.mark.long
def test_an_attention_by_hand_without_any_parameter_is_read() -> None:
    torch.manual_seed(4)
    network: Any = _ByHand().eval()
    dense = copy.deepcopy(network)
    for block, other in zip(network.blocks, dense.blocks, strict=True):
        for name in ("query", "key", "value", "out"):
            packed = Int8(getattr(block.mixing, name))
            getattr(other.mixing, name).weight.data = packed.dense()
            setattr(block.mixing, name, packed)
    assert not list(network.blocks[0].mixing.parameters())
    live, plain = (td.load(one, inputs=torch.randn(2, 6, 3)) for one in (network, dense))
    attention = live.layout.layers[0].attention
    assert attention is not None, live.layout.layers[0].problem
    assert attention.module == "mixing"
    for layer in (1, 2):
        for which in ("query", "key", "value", "output"):
            expected = getattr(plain.attention(layer), which)
            torch.testing.assert_close(getattr(live.attention(layer), which), expected, rtol=1e-5, atol=1e-6)


class Float8(nn.Module):
    """Numbers of eight bits as a parameter, with one scale; they do not add up."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = nn.Parameter(linear.weight.detach().abs().max() / 448, requires_grad=False)
        self.weight = nn.Parameter((linear.weight.detach() / self.scale).to(torch.float8_e4m3fn), requires_grad=False)

    def dense(self) -> Tensor:
        return self.weight.float() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x) * self.scale.to(x))


class Halved(nn.Module):
    """Whole numbers times scales in half precision, whose product is rounded to it."""

    scale: Tensor
    rows: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("scale", linear.weight.detach().abs().amax(dim=1, keepdim=True).half() / 7)
        self.register_buffer("rows", (linear.weight.detach() / self.scale).round().to(torch.int8))

    def dense(self) -> Tensor:
        return (self.rows.half() * self.scale).float()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, (self.rows.half() * self.scale).to(x))


class UpFirst(nn.Module):
    """Two maps, of which the second stands first."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, linear.out_features, bias=False), nn.Linear(linear.in_features, 3, bias=False)

    def dense(self) -> Tensor:
        return (self.up.weight @ self.down.weight).detach()

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class _OfMaps(nn.Module):
    def __init__(self, form: Callable[[nn.Linear], nn.Module]) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(_BlockOfMaps(form) for _ in range(2)), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class _BlockOfMaps(nn.Module):
    def __init__(self, form: Callable[[nn.Linear], nn.Module]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(form(nn.Linear(8, 8, bias=False)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in self.maps[:3])
        return x + self.maps[3](functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("form", [Float8, Halved, UpFirst])
def test_maps_of_other_formats_and_orders_are_read(form: Any) -> None:
    torch.manual_seed(3)
    network: Any = _OfMaps(form).eval()
    ckpt = td.load(network, inputs=lambda count: {"x": torch.randn(count, 5, 8)})
    for number, block in enumerate(network.blocks, 1):
        attention, maps = ckpt.attention(number), [part.dense() for part in block.maps]
        for head in range(2):
            rows = slice(4 * head, 4 * head + 4)
            torch.testing.assert_close(attention.query[head], maps[0][rows].mT)
            torch.testing.assert_close(attention.key[head], maps[1][rows].mT)
            torch.testing.assert_close(attention.value[head], maps[2][rows].mT)
            torch.testing.assert_close(attention.output[head], maps[3][:, rows].mT)


def test_weights_of_eight_bits_that_are_not_finite_are_named() -> None:
    network: Any = _OfMaps(Float8).eval()
    broken = network.blocks[1].maps[2]
    broken.weight.data = torch.full((8, 8), torch.nan).to(torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match=r"maps\.2\.weight: expected finite numbers, got nan at index"):
        td.load(network, inputs=lambda count: {"x": torch.randn(count, 5, 8)})


@pytest.mark.parametrize(
    ("dtype", "shape", "packed"), [("int8", (3, 4), True), ("int8", (3,), False), ("float32", (3, 4), False)]
)
def test_a_matrix_of_whole_numbers_in_a_buffer_is_a_packed_weight(
    dtype: str, shape: tuple[int, ...], packed: bool
) -> None:
    module: Any = nn.Module()
    module.in_features = 4
    module.register_buffer("table", torch.zeros(shape, dtype=getattr(torch, dtype)))
    assert is_packed(module) is packed
