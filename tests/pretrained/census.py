"""Build every model type of the installed transformers small, and write down what is read of each.

A half of a network is *traced* if the states before and after each of its blocks equal what hooks on the blocks give;
*audited* if in addition every layer with an attention has factors that recompute it; *refused* if an error of this
library says why not; *failed* if anything else comes of it, which must not be. What transformers itself does not build,
or not small, is *not built*.

``make census`` writes a line for each half to census-out/census.jsonl, which a run that was interrupted goes on from,
and at the end docs/census.json and the table in docs/checkpoints.md.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import multiprocessing
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.numerics.errors import AttentionFactorsError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery._calls import BlockSites
from tokendynamics.pretrained.discovery._random_inputs import random_inputs
from tokendynamics.pretrained.network import half_of, quietly
from tokendynamics.pretrained.other_libraries import silenced

_WIDTH, _HEADS, _VOCABULARY, _LAYERS, _ACROSS = 48, 4, 97, 2, 4

_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "embedding_size"), _WIDTH),
    **dict.fromkeys(("encoder_hidden_size", "decoder_hidden_size", "text_hidden_size", "out_hidden_size"), _WIDTH),
    **dict.fromkeys(("projector_hidden_size", "output_hidden_size", "word_embed_proj_dim", "projection_dim"), _WIDTH),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_num_attention_heads"), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), _HEADS // 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim"), _WIDTH // _HEADS),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 40),
    **dict.fromkeys(("mlp_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "hidden_dim"), 40),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), 64),
    **{"n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "rotary_dim": 8},
    **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 12},
    **{
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 4,
        "qk_head_dim": 20,
        "max_length": 32,
        "global_head_dim": _WIDTH // _HEADS,
        "max_source_positions": 8,
        "num_mel_bins": 10,
    },
}
"""Small sizes by the names that configurations have for them."""

_WIDE_HEADS: Mapping[str, int] = {
    **{name: 256 for name, size in _SIZES.items() if size == _WIDTH},
    **{name: 2 for name, size in _SIZES.items() if size == _HEADS and "head" in name},
    **{"num_key_value_heads": 1, "num_kv_heads": 1, "head_dim": 128, "d_kv": 128},
}
"""Heads of 128 features, as classes expect that turn fixed numbers of pairs by time, height and width."""

_NEEDED: Mapping[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 4, "context_length": 8},
    "informer": {"prediction_length": 4, "context_length": 8},
    "time_series_transformer": {"prediction_length": 4, "context_length": 8},
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "mamba2": {"expand": 1, "head_dim": 32, "n_groups": 1},
}
"""Settings without which a class makes no network, or not a small one."""

_DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers", "depth", "num_layers_encoder", "encoder_num_hidden_layers", "decoder_num_hidden_layers",
)  # fmt: skip


_KINDS = ("layer_types", "layers_block_type", "block_types")
"""Lists of the kinds of layers."""


class Reading(NamedTuple):
    """What came of one half of a network, or of all of it.

    Attributes:
        model_type: As transformers calls it.
        half: Of a network of two; empty for any other.
        outcome: "audited", "traced", "refused", "failed" or "not built".
        words: Why no more than that.
        layers: How many it has.
        attending: How many of them have an attention.
        read: In how many of these its factors were read.
    """

    model_type: str
    half: str
    outcome: str
    words: str = ""
    layers: int = 0
    attending: int = 0
    read: int = 0

    @property
    def name(self) -> str:
        """The type, with its half."""
        return f"{self.model_type} ({self.half})" if self.half else self.model_type


OUTCOMES = ("audited", "traced", "refused", "failed", "not built")
"""From the best to the worst."""


def model_types() -> list[str]:
    """Return the model types of the installed transformers, one for each class of base models."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    by_class: dict[Any, str] = {}
    for model_type in CONFIG_MAPPING:
        with suppress(Exception):  # a class that is named and not there
            kind = CONFIG_MAPPING[model_type]
            classes: Any = MODEL_MAPPING[kind]
            network = classes[0] if isinstance(classes, tuple) else classes
            # Several types may share a class: it is called by the one that it was written for.
            if not kind.__module__.startswith("transformers."):
                continue  # what this library registers
            written_for = kind.model_type == model_type and _package(kind) == _package(network)
            if written_for or network not in by_class:
                by_class[network] = model_type
    return list(by_class.values())


def _package(kind: Any) -> str:
    return str(kind.__module__).rpartition(".")[0]


def readings(model_type: str) -> list[Reading]:
    """Return what is read of a type: of the first small configuration that runs, or else of the first that is built."""
    from transformers import CONFIG_MAPPING, AutoModel

    words, first = "", list[Reading]()
    with silenced():
        try:
            configurations = list(small_configurations(CONFIG_MAPPING[model_type]))
        except Exception as error:
            return [Reading(model_type, "", "not built", _short(error))]
        for config in configurations:
            try:
                with torch.device("meta"):
                    _check_small(AutoModel.from_config(config))
                torch.manual_seed(0)
                network = AutoModel.from_config(config).eval()
            except Exception as error:  # what building a network of impossible sizes raises
                words = words or _short(error)
                continue
            halves = [_reading(network, model_type, half) for half in _halves(network)]
            first = first or halves
            if all(half.outcome != "refused" or "runs on random inputs" not in half.words for half in halves):
                return halves
    return first or [Reading(model_type, "", "not built", words)]


_MOST = 3 * 10**8


def _check_small(network: Any) -> None:
    count = sum(parameter.numel() for parameter in network.parameters())
    if count > _MOST:
        raise ValueError(f"{count:,} parameters in its small configuration")


def _halves(network: Any) -> list[str | None]:
    """Return the names of a network's halves; None for all of it."""
    halves: list[str | None] = []
    for half in (None, "encoder", "decoder", "text", "vision"):
        with suppress(TokenDynamicsError):
            half_of(network, half, "")
            halves.append(half)
        if halves == [None]:
            break
    return halves


def _reading(network: Any, model_type: str, half: str | None) -> Reading:
    this, counts = partial(Reading, model_type, half or ""), (0, 0, 0)
    try:
        ckpt = td.load(network, half=half)
        layers, attending = ckpt.layout.layers, ckpt.layout.attending
        read = [layer for layer in attending if layers[layer - 1].attention is not None]
        counts = len(layers), len(attending), len(read)
        problem = _misses(ckpt, half_of(network, half, "")[1])
        if problem:
            return this("failed", problem, *counts)
        for layer in read:
            ckpt.attention(layer)
    except AttentionFactorsError as error:
        return this("traced", " ".join(str(error).split()), *counts)
    except TokenDynamicsError as error:
        words = " ".join(str(error).split())
        return this("refused", re.sub(r"(missing \d+ required positional arguments?).*", r"\1", words))
    except Exception as error:
        if "allocate memory" in str(error):
            return this("not built", f"it needs more than {_MEMORY >> 30} GB")
        return this("failed", f"{type(error).__name__}: {_short(error)}")
    problems = [_of_any(layer.problem, name) for layer, name in zip(layers, ckpt.layout.blocks, strict=True)]
    return this("audited" if read and len(read) == len(attending) else "traced", _once("; ".join(problems)), *counts)


def _of_any(problem: str, block: str) -> str:
    """Return a problem of one block as one of any: its number is left out."""
    return problem.replace(block, re.sub(r"\d+$", "i", block))


def _once(words: str) -> str:
    """Return every clause once, in order."""
    return "; ".join(dict.fromkeys(filter(None, words.split("; "))))


def _misses(ckpt: Checkpoint, network: Any) -> str:
    """Return where the states of a checkpoint are not what hooks on its blocks show; empty if nowhere."""
    names, given = ckpt.layout.blocks, list[Tensor]()
    if any(layer.sites != BlockSites() for layer in ckpt.layout.layers):
        return ""  # blocks that are no modules that run: tests/pretrained/test_sums_outside.py adds up their parts

    inputs = random_inputs(network)(1)

    def keep(module: Any, arguments: Any, output: Any) -> None:
        del module, arguments
        given.append(output if isinstance(output, Tensor) else next(one for one in output if isinstance(one, Tensor)))

    handles = [network.get_submodule(name).register_forward_hook(keep) for name in dict.fromkeys(names)]
    try:
        torch.manual_seed(0)  # masked autoencoders draw which patches they hide
        with torch.no_grad(), quietly(network):
            network(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    torch.manual_seed(0)
    states = ckpt.states(inputs).feed_forward[1:]
    if len(states) != len(given):
        return f"{len(states)} states of {len(given)} blocks"
    for place, (state, output) in enumerate(zip(states, given, strict=True), 1):
        shown = output.reshape(-1, state.shape[-1]).to(state.dtype)
        # Some networks put tokens before or after those of the prompt.
        if not any(torch.equal(state, part) for part in (shown[: len(state)], shown[-len(state) :])):
            return f"the states after block {place} are not those that a hook on it shows"
    return ""


def _short(error: Exception) -> str:
    return f"{' '.join(str(error).split())[:200]}" or type(error).__name__


def small_configurations(kind: Any) -> Iterator[Any]:
    """Yield configurations of a class: all sizes small, then with wide heads, then depths and words alone.

    Args:
        kind: The class. Some settings follow from others where a configuration is made; others are set in one made.
    """
    default = kind(**_NEEDED.get(kind.model_type, {}))
    for sizes in (_SIZES, {**_SIZES, **_WIDE_HEADS}, dict[str, int]()):
        with suppress(Exception):  # what a class of configuration raises where settings do not fit together
            yield kind(**_NEEDED.get(kind.model_type, {}) | _small_settings(default, sizes))
        changed = copy.deepcopy(default)
        for config in _all_configurations(changed):
            for name, value in _small_settings(config, sizes, inner=False).items():
                with suppress(Exception):
                    setattr(config, name, value)
        yield changed


def _all_configurations(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if hasattr(inner := getattr(config, name, None), "to_dict"):
            yield from _all_configurations(inner)


def _small_settings(config: Any, sizes: Mapping[str, int], *, inner: bool = True) -> dict[str, Any]:
    """Return what has to be set to make a configuration small, with the configurations inside where asked for."""
    settings: dict[str, Any] = {}
    names = inspect.signature(type(config).__init__).parameters
    depths = {value for name, value in vars(config).items() if name in _DEPTHS and isinstance(value, int)}
    many = getattr(config, "num_attention_heads", None)
    kinds = next((value for name, value in vars(config).items() if name in _KINDS and value), None)
    chosen = range(_LAYERS) if kinds is None else sorted({kinds.index(kind) for kind in kinds} | {0, 1})
    for name, value in vars(config).items():
        if isinstance(value, bool) or (inner and name not in names):
            continue
        if name == "vocab_size" and isinstance(value, int):
            settings[name] = min(value, _VOCABULARY)
        elif name.endswith("_token_id") and isinstance(value, int) and value >= _VOCABULARY:
            settings[name] = 1
        elif name in _DEPTHS and isinstance(value, int):
            settings[name] = min(value, len(chosen))
        elif isinstance(value, list | tuple) and len(value) in depths and len(value) > len(chosen):
            settings[name] = [value[place] for place in chosen]
        elif isinstance(value, dict) and "mrope_section" in value:
            settings[name] = value | {"mrope_section": _sections(config, value, sizes)}
        elif name == "head_dim" and value is None and sizes:
            settings[name] = sizes["head_dim"]
        elif name in ("num_key_value_heads", "num_kv_heads") and sizes and value == many:
            settings[name] = sizes["num_attention_heads"]
        elif name == "image_size" and sizes and isinstance(value, int):
            patch = getattr(config, "patch_size", None)
            settings[name] = _ACROSS * patch if isinstance(patch, int) else min(value, 64)
        elif name in sizes and isinstance(value, int) and value > sizes[name]:
            settings[name] = sizes[name]
    for name in getattr(config, "sub_configs", {}) if inner else ():
        if hasattr(part := getattr(config, name, None), "to_dict"):
            kind = str(getattr(part, "model_type", ""))
            settings[name] = {"model_type": kind, **_small_settings(part, sizes)}
    return settings


def _sections(config: Any, rotation: Mapping[str, Any], sizes: Mapping[str, int]) -> list[int]:
    """Return how many pairs of a head turn by time, height and width."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = int(min(width, sizes.get("head_dim", width)) * rotation.get("partial_rotary_factor", 1.0)) // 2
    return [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]


def readings_apart(model_type: str, seconds: int) -> list[Reading]:
    """Return the readings of a type from a process of its own, which may be killed or run out of memory or time.

    Args:
        model_type: As transformers calls it.
        seconds: Time that it has.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(model_type, sender))
    process.start()
    sender.close()
    try:
        came = receiver.recv() if receiver.poll(seconds) else f"no outcome in {seconds} s"
    except EOFError:
        came = "its process was killed"
    process.kill()
    process.join()
    return [Reading(model_type, "", "not built", came)] if isinstance(came, str) else came


_MEMORY = 8 * 2**30


def _send(model_type: str, sender: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sender.send(readings(model_type))


def _run(types: Sequence[str], lines: Path, seconds: int) -> list[Reading]:
    """Return the readings of all types, in the order of their names; those that a former run wrote are not repeated."""
    known = [Reading(*json.loads(line)) for line in lines.read_text().splitlines()] if lines.exists() else []
    done = {reading.model_type for reading in known}
    with lines.open("a") as file:
        for place, model_type in enumerate(types, 1):
            if model_type in done:
                continue
            for reading in readings_apart(model_type, seconds):
                file.write(json.dumps(reading) + "\n")
                known.append(reading)
                print(f"[census] {place} of {len(types)}: {model_type} {reading.half} {reading.outcome}", flush=True)
            file.flush()
    return sorted(known)


def table(several: Sequence[Reading], version: str) -> str:
    """Return what came of all types in Markdown: how many, and every type that is not audited, with the reason.

    Args:
        several: What came.
        version: Of transformers.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for reading in several:
        if reading.outcome != "audited":
            groups.setdefault((reading.outcome, reason(reading)), []).append(reading.name)
    counts = {outcome: sum(reading.outcome == outcome for reading in several) for outcome in OUTCOMES}
    types = len({reading.model_type for reading in several})
    lines = [
        f"transformers {version} has {types} types of base models; encoders, decoders and towers count one by one:",
        ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) + ".",
        "",
        "| outcome | why | which |",
        "|---|---|---|",
    ]
    ordered = sorted(groups, key=lambda key: (OUTCOMES.index(key[0]), -len(groups[key]), key[1]))
    lines += [f"| {outcome} | {words} | {', '.join(groups[outcome, words])} |" for outcome, words in ordered]
    return "\n".join(lines)


def reason(reading: Reading) -> str:
    """Return why a half is not audited, without what differs between types for no reason of this library.

    Args:
        reading: Of the half.
    """
    if "runs on random inputs, got" in reading.words:
        return "it does not run on random inputs of the kind that it names; pass `inputs=`"
    if reading.outcome == "not built":
        missing = "library" in reading.words or "install" in reading.words
        return "it needs a further library" if missing else "its class builds no small network from defaults"
    if "all blocks in one list" in reading.words or "layers with different numbers of tokens" in reading.words:
        return "its blocks stand in several lists or hold different numbers of tokens, as pyramids of convolutions do"
    words = re.sub(r" got states of shape \(.*?\)", " got others", reading.words)
    words = re.sub(r"^[\w.]+: expected", "expected", words.replace("|", "/"))
    words = re.sub(r"(\w+\.)+(?=self_attn)", "", re.sub(r" by \d[\d.e-]*", "", words))
    return _once(words)


_DOCS = Path(__file__).parents[2] / "docs"
KEPT = _DOCS / "census.json"
"""What came of every type, for the tests."""

_BEGIN, _END = "<!-- census: written by make census -->", "<!-- end of the census -->"


def kept() -> tuple[str, list[Reading]]:
    """Return the version of transformers whose types were read, and what came of them."""
    document = json.loads(KEPT.read_text())
    return document["transformers"], [Reading(*row) for row in document["readings"]]


def _write(several: Sequence[Reading]) -> None:
    import transformers

    version = transformers.__version__
    rows = ",\n".join(json.dumps(reading._replace(words=_once(reading.words))) for reading in several)
    KEPT.write_text(f'{{"transformers": "{version}", "readings": [\n{rows}\n]}}\n')
    page = _DOCS / "checkpoints.md"
    before, _, rest = page.read_text().partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}\n\n{table(several, version)}\n\n{_END}{rest.partition(_END)[2]}")


def main() -> None:
    """Run the census and write what came out."""
    parser = argparse.ArgumentParser(description="What is read of every model type of the installed transformers.")
    parser.add_argument("--out", type=Path, required=True, help="folder for a line a type")
    parser.add_argument("--types", nargs="*", default=None, help="these alone: the other rows stay")
    parser.add_argument("--seconds", type=int, default=90, help="time for a type (default 90)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    several = _run(options.types or model_types(), options.out / "census.jsonl", options.seconds)
    if options.types is not None:
        _check_version()
        read = {reading.model_type for reading in several}
        several += [reading for reading in kept()[1] if reading.model_type not in read]
    _write(sorted(several))


def _check_version() -> None:
    import transformers

    if kept()[0] != transformers.__version__:
        raise SystemExit(f"docs/census.json is of transformers {kept()[0]}: run the census of every type")


if __name__ == "__main__":
    main()
