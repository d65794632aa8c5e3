"""Changes of a network's weights that leave its function as it is: each takes a network and returns a changed copy.

For GPT-2, LLaMA (grouped queries, with an output head) and BERT of transformers. `mathematics` 10 lists the changes;
no number that is reported of a network by default, and no word, may depend on them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = ("gpt2", "llama", "bert")
_DIM, _LAYERS, _HEADS, _KV_HEADS, _VOCABULARY = 24, 2, 4, 2, 61

Change = Callable[[nn.Module, int], nn.Module]


def network_of(family: str, seed: int = 0, layers: int = _LAYERS) -> nn.Module:
    """A network in float64 with no parameter at its default."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    common = {"vocab_size": _VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"num_hidden_layers": layers, "num_attention_heads": _HEADS, "hidden_size": _DIM, "intermediate_size": 40}
    settings: dict[str, dict[str, Any]] = {
        "gpt2": {"n_layer": layers, "n_head": _HEADS, "n_embd": _DIM, "n_positions": 64},
        "llama": sizes | {"num_key_value_heads": _KV_HEADS, "attention_bias": True, "tie_word_embeddings": False},
        "bert": sizes | {"max_position_embeddings": 64},
    }
    config = AutoConfig.for_model(family, **common, **settings[family])
    made = (AutoModelForCausalLM if family == "llama" else AutoModel).from_config(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in made.named_parameters():
        gain = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
        draw = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(1 + 0.3 * draw if gain else 0.3 * draw)
    return made.double().eval()


def output_of(network: nn.Module, ids: Tensor) -> Tensor:
    """What the network computes: logits where it has a head, else its last states."""
    with torch.no_grad():
        result = network(input_ids=ids)
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


def head_order(network: nn.Module, seed: int) -> list[int]:
    """Which old head stands at each place after `permute_heads`; groups stay together."""
    heads, groups = _heads(network)
    generator = torch.Generator().manual_seed(seed)
    entry = heads // groups
    order = []
    for group in torch.randperm(groups, generator=generator).tolist():
        order += [group * entry + inner for inner in torch.randperm(entry, generator=generator).tolist()]
    return order


def permute_heads(network: nn.Module, seed: int) -> nn.Module:
    """Put the heads of every layer in another order, with their groups of keys and values."""
    order = head_order(network, seed)
    heads, groups = _heads(network)
    group_order = [head // (heads // groups) for head in order[:: heads // groups]]

    def change(factors: dict[str, Tensor | None]) -> None:
        for name, factor in factors.items():
            if factor is not None:
                factors[name] = factor[order if name.startswith(("query", "output")) else group_order]

    return _changed(network, change)


def change_of_query_and_key(network: nn.Module, seed: int) -> nn.Module:
    """W_Q R and W_K R^{-T}, R of each group any, or one that commutes with the rotation where there is one."""
    generator = torch.Generator().manual_seed(seed)
    rotary = _family(network) == "llama"

    def change(factors: dict[str, Tensor | None]) -> None:
        groups, width = len(_of(factors, "key")), _of(factors, "key").shape[-1]
        turn = torch.stack([(_commuting if rotary else _any)(width, generator) for _ in range(groups)])
        _times(factors, "query", turn)
        _times(factors, "key", torch.linalg.inv(turn).mT)

    return _changed(network, change)


def change_of_value_and_output(network: nn.Module, seed: int) -> nn.Module:
    """W_V S and S^{-1} W_O, S of each group any."""
    generator = torch.Generator().manual_seed(seed)

    def change(factors: dict[str, Tensor | None]) -> None:
        groups, width = len(_of(factors, "value")), _of(factors, "value").shape[-1]
        _change_values(factors, torch.stack([_any(width, generator) for _ in range(groups)]))

    return _changed(network, change)


def flip_signs(network: nn.Module, seed: int) -> nn.Module:
    """Turn W_V and W_O of some heads around."""
    generator = torch.Generator().manual_seed(seed)

    def change(factors: dict[str, Tensor | None]) -> None:
        groups, width = len(_of(factors, "value")), _of(factors, "value").shape[-1]
        signs = 2.0 * torch.randint(0, 2, (groups, 1, 1), generator=generator) - 1
        _change_values(factors, signs.double() * torch.eye(width, dtype=torch.float64))

    return _changed(network, change)


def move_gains(network: nn.Module, seed: int) -> nn.Module:
    """Move a factor of every feature, of either sign, from each norm into the matrices behind it (not in BERT)."""
    changed, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    for block in _blocks(changed):
        for norm, readers in _norms(block, _family(network)):
            factor = torch.exp(torch.randn(_DIM, generator=generator)).double()
            _move_gain(norm, readers, factor * (2.0 * torch.randint(0, 2, (_DIM,), generator=generator) - 1))
    return changed


def permute_hidden_units(network: nn.Module, seed: int) -> nn.Module:
    """Put the hidden units of every feed-forward part in another order."""
    changed, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    for block in _blocks(changed):
        into, out = _feed_forward(block, _family(network))
        width = _rows_by_input(out).shape[0]
        order = torch.randperm(width, generator=generator)
        for module in into:
            _set_rows(module, _rows_by_input(module)[:, order])
            if module.bias is not None:
                module.bias.data = module.bias.data[order]
        _set_rows(out, _rows_by_input(out)[order])
    return changed


def rotate_residual_stream(network: nn.Module, seed: int) -> nn.Module:
    """Fold every gain of a LLaMA, then turn its residual stream; the output head turns back."""
    changed: Any = copy.deepcopy(network)
    turn = _orthogonal(_DIM, torch.Generator().manual_seed(seed))
    blocks = _blocks(changed)
    norms = [pair for block in blocks for pair in _norms(block, "llama")]
    for norm, readers in [*norms, (changed.model.norm, [changed.lm_head])]:
        _move_gain(norm, readers, norm.weight.data.clone())
        for reader in readers:
            _set_rows(reader, turn.mT @ _rows_by_input(reader))
    for block in blocks:
        for writer in (block.self_attn.o_proj, block.mlp.down_proj):
            _set_rows(writer, _rows_by_input(writer) @ turn)
            if writer.bias is not None:
                writer.bias.data = writer.bias.data @ turn
    embedding = changed.model.embed_tokens.weight
    embedding.data = embedding.data @ turn
    return changed


CHANGES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "permuted heads": (permute_heads, FAMILIES),
    "W_Q R, W_K R^-T": (change_of_query_and_key, FAMILIES),
    "W_V S, S^-1 W_O": (change_of_value_and_output, FAMILIES),
    "signs of heads": (flip_signs, FAMILIES),
    "gains moved": (move_gains, ("gpt2", "llama")),
    "hidden units": (permute_hidden_units, FAMILIES),
    "residual stream rotated": (rotate_residual_stream, ("llama",)),
}
"""Every change with the families that it is one of."""


def _family(network: nn.Module) -> str:
    return str(network.config.model_type)  # type: ignore[union-attr]


def _heads(network: Any) -> tuple[int, int]:
    config = network.config
    heads = config.num_attention_heads
    return heads, config.num_key_value_heads if _family(network) == "llama" else heads


def _blocks(network: Any) -> list[Any]:
    family = _family(network)
    return list({"gpt2": lambda: network.h, "llama": lambda: network.model.layers}.get(
        family, lambda: network.encoder.layer
    )())  # fmt: skip


def _norms(block: Any, family: str) -> list[tuple[Any, list[Any]]]:
    if family == "gpt2":
        return [(block.ln_1, [block.attn.c_attn]), (block.ln_2, [block.mlp.c_fc])]
    attention = block.self_attn
    return [
        (block.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]),
        (block.post_attention_layernorm, [block.mlp.gate_proj, block.mlp.up_proj]),
    ]


def _move_gain(norm: Any, readers: list[Any], factor: Tensor) -> None:
    norm.weight.data = norm.weight.data / factor
    if getattr(norm, "bias", None) is not None:
        norm.bias.data = norm.bias.data / factor
    for reader in readers:
        _set_rows(reader, factor[:, None] * _rows_by_input(reader))


def _feed_forward(block: Any, family: str) -> tuple[list[Any], Any]:
    if family == "gpt2":
        return [block.mlp.c_fc], block.mlp.c_proj
    if family == "llama":
        return [block.mlp.gate_proj, block.mlp.up_proj], block.mlp.down_proj
    return [block.intermediate.dense], block.output.dense


def _rows_by_input(module: Any) -> Tensor:
    """The weight with one row for each input feature: Linear stores the transpose, GPT-2's Conv1D does not."""
    return module.weight.data.mT if isinstance(module, nn.Linear) else module.weight.data


def _set_rows(module: Any, rows: Tensor) -> None:
    module.weight.data = (rows.mT if isinstance(module, nn.Linear) else rows).contiguous()


def _changed(network: nn.Module, change: Callable[[dict[str, Tensor | None]], None]) -> nn.Module:
    changed = copy.deepcopy(network)
    heads, groups = _heads(network)
    for block in _blocks(changed):
        modules = _projections(block, _family(network))
        factors: dict[str, Tensor | None] = {}
        for name, (module, columns) in modules.items():
            count = heads if name in ("query", "output") else groups
            rows = _rows_by_input(module)[:, columns]
            factors[name] = rows.unflatten(0, (count, -1)) if name == "output" else _by_head(rows, count)
            if name != "output":
                bias = None if module.bias is None else module.bias.data[columns]
                factors[f"{name}_bias"] = None if bias is None else bias.unflatten(0, (count, 1, -1))
        change(factors)
        for name, (module, columns) in modules.items():
            rows, factor = _rows_by_input(module).clone(), _of(factors, name)
            rows[:, columns] = factor.flatten(0, 1) if name == "output" else factor.movedim(0, 1).flatten(1)
            _set_rows(module, rows)
            bias = factors.get(f"{name}_bias")
            if bias is not None:
                module.bias.data[columns] = bias.flatten()
    return changed


def _projections(block: Any, family: str) -> dict[str, tuple[Any, slice]]:
    if family == "gpt2":
        parts = {name: (block.attn.c_attn, slice(_DIM * at, _DIM * (at + 1))) for at, name in enumerate(_READ)}
        return parts | {"output": (block.attn.c_proj, slice(None))}
    if family == "llama":
        direct, output = block.self_attn, block.self_attn.o_proj
        names = {"query": direct.q_proj, "key": direct.k_proj, "value": direct.v_proj}
    else:
        direct, output = block.attention.self, block.attention.output.dense
        names = {"query": direct.query, "key": direct.key, "value": direct.value}
    return {name: (module, slice(None)) for name, module in (names | {"output": output}).items()}


_READ = ("query", "key", "value")


def _by_head(rows: Tensor, count: int) -> Tensor:
    return rows.unflatten(1, (count, -1)).movedim(1, 0)


def _of(factors: dict[str, Tensor | None], name: str) -> Tensor:
    computed = factors[name]
    assert computed is not None
    return computed


def _times(factors: dict[str, Tensor | None], name: str, matrices: Tensor) -> None:
    """Multiply the columns of a factor and its bias, a matrix for each group."""
    for entry in (name, f"{name}_bias"):
        factor = factors[entry]
        if factor is not None:
            factors[entry] = factor @ matrices.repeat_interleave(len(factor) // len(matrices), dim=0)


def _change_values(factors: dict[str, Tensor | None], matrices: Tensor) -> None:
    _times(factors, "value", matrices)
    output = _of(factors, "output")
    factors["output"] = torch.linalg.inv(matrices).repeat_interleave(len(output) // len(matrices), dim=0) @ output


def _orthogonal(width: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=generator).double()).Q


def _any(width: int, generator: torch.Generator) -> Tensor:
    """A matrix of condition 4 at most."""
    stretch = 0.5 * 4 ** torch.rand(width, generator=generator).double()
    return _orthogonal(width, generator) @ torch.diag(stretch) @ _orthogonal(width, generator)


def _commuting(width: int, generator: torch.Generator) -> Tensor:
    """A turn and a stretch of each pair of features (f, f + width/2)."""
    half = width // 2
    angle, stretch = torch.rand(2, half, generator=generator).double()
    cosine, sine = ((1 + stretch) * entry for entry in (torch.cos(6 * angle), torch.sin(6 * angle)))
    return torch.cat(
        [
            torch.cat([torch.diag(cosine), torch.diag(sine)], dim=1),
            torch.cat([torch.diag(-sine), torch.diag(cosine)], dim=1),
        ]
    )
