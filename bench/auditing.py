"""Auditing a checkpoint of LLaMA-7B's shape: peak memory against one layer's bytes, time against whole spectra."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import xarray as xr

import tokendynamics as td
from bench.measure import NOTHING_COMPARED, Comparison, rounds_of, speedup
from tokendynamics.spectra.value_map import Wanted

DIM, HIDDEN, HEADS, VOCABULARY = 4096, 11008, 32, 32000
LAYERS = 2
ALLOWED = 1.5

# VmHWM and not ru_maxrss: the latter starts from the resident size of the process that forked this one.
_AUDIT = """
import pathlib, sys
import torch
torch.set_num_threads(int(sys.argv[2]))
import tokendynamics as td
table = td.audit(td.load(sys.argv[1]))
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) * 1024, *table.regime.values)
"""


def run() -> Iterator[Comparison]:
    """Two layers of random weights, in float16 and in float32, one shard a layer; then one of them by both routes."""
    yield from _memory()
    yield _time()


def _time() -> Comparison:
    found: dict[str, xr.Dataset] = {}
    with tempfile.TemporaryDirectory() as scratch:
        write_checkpoint(Path(scratch) / "large", DIM, HIDDEN, HEADS, VOCABULARY, torch.float16)
        ckpt = td.load(Path(scratch) / "large")

        def by(spectra: Wanted) -> None:
            found[spectra] = td.audit(ckpt, layers=[1], spectra=spectra)

        works = {"ours": lambda: by("extremes"), "other": lambda: by("whole")}
        rounds = rounds_of(works, 3, uncounted=0)
    return speedup(
        "audit of a layer of LLaMA-7B's shape, against the one by whole spectra",
        [(each["ours"], each["other"]) for each in rounds],
        at_least=2,
        error=_difference(found["extremes"], found["whole"]),
    )


def _difference(ours: xr.Dataset, other: xr.Dataset) -> str:
    exact = (
        "W_inertia",
        "A_inertia",
        "qk_inertia",
        "ov_inertia",
        "V_rank",
        "V_near_zero",
        "V_near_zero_relative",
        "regime",
    )
    counts = sum(int((ours[name] != other[name]).sum()) for name in exact)
    scaled = {"V_max_real": "V_radius", "V_radius": "V_radius", "V_condition": "V_condition"}
    worst = max(float((abs(ours[name] - other[name]) / other[scale]).max()) for name, scale in scaled.items())
    return f"{counts} counts differ; extremes by {worst:.0e}; route: {ours.V_route.values[0]}"


def _memory() -> Iterator[Comparison]:
    for dtype in (torch.float16, torch.float32):
        with tempfile.TemporaryDirectory() as scratch:
            layer_bytes = write_checkpoint(Path(scratch) / "large", DIM, HIDDEN, HEADS, VOCABULARY, dtype)
            write_checkpoint(Path(scratch) / "small", 64, 128, 4, 100, dtype)
            footprint = _peak(Path(scratch) / "small")
            peak = _peak(Path(scratch) / "large")
        ratio = (peak - footprint) / layer_bytes
        yield Comparison(
            f"peak of auditing LLaMA-7B's shape, {str(dtype).removeprefix('torch.')}, beyond a footprint of "
            f"{footprint / 1e6:.0f} MB, against one layer",
            (peak - footprint) / 1e6, layer_bytes / 1e6, ratio, (ratio, ratio),
            f"≤ {ALLOWED:g} × one layer", ratio <= ALLOWED, NOTHING_COMPARED, "MB",
        )  # fmt: skip


def write_checkpoint(folder: Path, dim: int, hidden: int, heads: int, vocabulary: int, dtype: torch.dtype) -> int:
    """A sharded LLaMA checkpoint of random weights; returns the bytes of one layer."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": dim, "intermediate_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": LAYERS,
        "vocab_size": vocabulary, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "self_attn.q_proj": (dim, dim), "self_attn.k_proj": (dim, dim), "self_attn.v_proj": (dim, dim),
        "self_attn.o_proj": (dim, dim), "mlp.gate_proj": (hidden, dim), "mlp.up_proj": (hidden, dim),
        "mlp.down_proj": (dim, hidden), "input_layernorm": (dim,), "post_attention_layernorm": (dim,),
    }  # fmt: skip
    generator, index, layer_bytes = torch.Generator().manual_seed(0), {}, 0
    ends = {
        "model.embed_tokens.weight": torch.zeros(vocabulary, dim, dtype=dtype),
        "model.norm.weight": torch.ones(dim),
    }
    for number in range(LAYERS + 1):
        shard = f"model-{number + 1:05d}-of-{LAYERS + 1:05d}.safetensors"
        tensors = (
            ends
            if number == LAYERS
            else {
                f"model.layers.{number}.{name}.weight": _drawn(name, shape, generator).to(dtype)
                for name, shape in shapes.items()
            }
        )
        layer_bytes = layer_bytes or sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        index |= dict.fromkeys(tensors, shard)
        save_file(tensors, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return layer_bytes


def _drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Weights as a new network has them; gains are folded into what is audited, and near 1."""
    drawn = 0.02 * torch.randn(shape, generator=generator)
    return 1 + drawn if name.endswith("layernorm") else drawn


def _peak(folder: Path) -> int:
    command = [sys.executable, "-c", _AUDIT, str(folder), str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
