"""The configuration of a checkpoint and the facts in it, checked before anything is built or allocated for them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import shown
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.provenance.reading import check_regular, kind_of, parse_json

_LARGEST = 3.4e38
"""The largest number of single precision, in which settings enter the computation."""

_POSITIVE = frozenset(
    {
        *("rope_theta", "rope_local_base_freq", "local_rope_theta", "global_rope_theta", "rotary_emb_base"),
        *("rotary_base", "compress_rope_theta", "query_pre_attn_scalar"),
        *("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"),
    }
)
"""Settings that are divided by, or of which a root or a power is taken; None switches them off."""

_POSITIVE_OF_ROTATIONS = frozenset(
    {
        *("factor", "long_factor", "short_factor", "original_max_position_embeddings"),
        *("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"),
    }
)
_ROTATIONS = ("rope_parameters", "rope_scaling")


def check_settings(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings of a configuration that make states NaN or infinite.

    These are numbers that are not finite (a bound such as `time_step_limit` may be infinite), a base or a factor of
    rotations that is not positive, an epsilon below zero, and a cap of logits that is not positive.

    Args:
        settings: Of a network or an adapter, by name, with mappings and lists inside.
        where: The file, or the network, in a message.

    Raises:
        CheckpointError: There is one; it is named.

    >>> check_settings({"rope_parameters": {"rope_theta": 0.0}}, "config.json")
    Traceback (most recent call last):
    ...
    tokendynamics.numerics.errors.CheckpointError: config.json: expected rope_parameters.rope_theta above 0, got 0.0
    """
    for name, value in _numbers_in(settings):
        if (wanted := _expected(name, value)) is not None:
            raise CheckpointError(where, wanted, value)
    for name in _ROTATIONS:
        value = settings.get(name)
        rotations = value if isinstance(value, Mapping) else {}
        by_kind = [
            (f"{name}.{kind}", rotation_of_kind)
            for kind, rotation_of_kind in rotations.items()
            if isinstance(rotation_of_kind, Mapping)
        ]
        for label, rotation in by_kind or [(name, rotations)]:
            # Two settings of which neither is wrong alone.
            kind, low = rotation.get("rope_type", rotation.get("type")), rotation.get("low_freq_factor")
            if kind == "llama3" and low is not None and low == rotation.get("high_freq_factor"):
                wanted = f"{label}.high_freq_factor above low_freq_factor"
                raise CheckpointError(where, wanted, f"{low} for both")
            if kind == "yarn" and rotation.get("rope_theta") == 1:
                raise CheckpointError(where, f"{label}.rope_theta other than 1 for YaRN", 1)


def _expected(name: str, value: float) -> str | None:
    """Return what a setting must be, None where it is that."""
    parts = name.split(".")
    leaf = parts[-1]
    bounded = "limit" in leaf and not isnan(value)
    if not bounded and not abs(value) <= _LARGEST:
        return f"{name} as a finite number" if not isfinite(value) else f"{name} of at most {_LARGEST}"
    of_rotations = leaf in _POSITIVE_OF_ROTATIONS and any(part in _ROTATIONS for part in parts)
    if (leaf in _POSITIVE or of_rotations) and value <= 0:
        return f"{name} above 0"
    epsilon = leaf in ("eps", "epsilon") or leaf.endswith(("_eps", "_epsilon"))
    return f"{name} of 0 or more" if epsilon and value < 0 else None


def _numbers_in(settings: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number inside mappings and lists, with the name of the entry that it is in."""
    if isinstance(settings, Mapping) and set(settings) == {"__float__"}:
        # transformers writes so what JSON has no number for.
        yield name, {"NaN": nan, "Infinity": inf, "-Infinity": -inf}.get(str(settings["__float__"]), nan)
    elif isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _numbers_in(value, f"{name}.{key}" if name else str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _numbers_in(value, name)
    elif isinstance(settings, int | float) and not isinstance(settings, bool):
        yield name, settings


_OWN = {
    "tokendynamics-decoder": "tokendynamics.modules.language_model",
    "tokendynamics-vision": "tokendynamics.modules.vision",
}
"""Networks of this package, by model type, and what has to be imported for each."""


SAME_NETWORK = ("roberta", "camembert", "xlm-roberta")
"""Model types that are one network under several names, with the same settings."""

_OF_2019 = (*SAME_NETWORK, *("albert", "bert", "ctrl", "distilbert", "gpt2", "openai-gpt", "t5", "xlm", "xlnet"))
"""Model types of before version 2.4 of transformers (January 2020), which was the first to store the model type."""


@dataclass(frozen=True)
class ModelType:
    """The model types that a configuration may be of.

    Attributes:
        candidates: One where the file states it (any value, unchecked), or a class that it names has it; else all of
            2019 whose sizes are stated, which may be none.
        named: The class that the file names; empty where it states the type, or names none.
        stated: Whether the file states it.
    """

    candidates: tuple[Any, ...]
    named: str = ""
    stated: bool = False

    def refusal(self, folder: Path, fitting: Collection[str] = ()) -> CheckpointError:
        """Return the error for a folder whose architecture is not known.

        Args:
            folder: Of the configuration.
            fitting: The candidates that the tensors fit; none where they were not asked, or fit none.
        """
        # The older loaders of transformers took the longest model type that the name of the folder contains.
        types = sorted(fitting or _known_types(), key=len, reverse=True)
        named = next((name for name in types if name in folder.name.lower()), "…")
        line = f'"model_type": "{named}"'
        came = "none (files of before 2020 have none)"
        if fitting:
            came = f"none, and tensors that fit each of {', '.join(fitting)}"
        elif named == "…":
            line += ' (such as "bert" or "gpt2")'
        wanted = "a model_type, which transformers needs to choose the architecture"
        return CheckpointError(str(folder / "config.json"), wanted, came, f"add the line {line} to it")


def _known_types() -> Collection[str]:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING.keys()


def model_type_of(folder: Path) -> ModelType:
    """Return the model types that the configuration in `folder` may be of.

    Raises:
        CheckpointError: No config.json, or an unreadable one.
    """
    import transformers
    from transformers import CONFIG_MAPPING

    facts = _facts(folder)
    if facts.get("model_type") is not None:
        return ModelType((facts["model_type"],), stated=True)
    named = facts.get("architectures")
    for name in named if isinstance(named, list) else ():
        settings = getattr(getattr(transformers, str(name), None), "config_class", None)
        if settings is not None:
            return ModelType((settings.model_type,), str(name))
    sizes = [_COUNTS[size] for size in ("layers", "heads", "dim")]
    maps = {kind: CONFIG_MAPPING[kind].attribute_map for kind in _OF_2019}
    stated = [kind for kind, names in maps.items() if all(names.get(size, size) in facts for size in sizes)]
    return ModelType(tuple(stated))


_DESCRIPTIONS = (
    *("*config.json", "*.index.json", "modules.json", "tokenizer*.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.*", "normalizer.json", "emoji.json"),
    *("*vocab*.json", "vocab.txt", "merges.txt", "bpe.codes", "*.model", "*.spm", "*.tiktoken"),
)
"""Files beside the weights that transformers reads, whatever their size, or passes over where they are no files."""


def check_files(folder: Path) -> None:
    """Refuse a folder whose configuration or tokenizer is a pipe, a device, too large or cannot be read.

    Without it transformers waits, fills the memory, or leaves the file out in silence.

    Raises:
        CheckpointError: The file is named.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        denied = isinstance(error, PermissionError)
        came, advice = (
            ("permission denied", "change its permissions") if denied else (kind_of(folder), "check the path")
        )
        raise CheckpointError(str(folder), "a folder that can be read", came, advice) from error
    templates = folder / "additional_chat_templates"
    for path in (*paths, *(sorted(templates.iterdir()) if templates.is_dir() else ())):
        if path.parent == templates or any(path.match(pattern) for pattern in _DESCRIPTIONS):
            check_file(path, described=True)


def check_file(path: Path, *, described: bool = False) -> None:
    """Refuse a file of a checkpoint that is no regular file or cannot be read.

    Args:
        path: The file, or a link to it.
        described: Whether it is a configuration or a tokenizer, whose size is limited.

    Raises:
        CheckpointError: The file is named, with what is there instead.
    """
    try:
        if (came := kind_of(path)) == "a file":
            size = check_regular(path, str(path), described=described)
            readable = os.access(path, os.R_OK)
            came = "permission denied" if not readable else "an empty one" if described and not size else ""
    except ArgumentValueError as error:
        raise CheckpointError(f"{error}; copy or download it again") from error
    if came:
        raise CheckpointError(str(path), "a regular file that can be read", came, "copy or download it again")


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        advice = "pass the folder that holds config.json and the weights"
        raise CheckpointError(str(folder), "a checkpoint folder", "no config.json in it", advice)
    return read_json_object(path)


def read_config(folder: Path, model_type: Any) -> Any:
    """Return the transformers configuration in `folder`.

    Args:
        folder: With config.json.
        model_type: From `model_type_of`.

    Raises:
        CheckpointError: No config.json, an unreadable one, an unknown architecture, or quantised weights.
    """
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    path, facts = folder / "config.json", _facts(folder)
    if isinstance(model_type, str) and model_type in _OWN:
        import_module(_OWN[model_type])  # which makes the name known to transformers
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        wanted = f"a model type that transformers {__version__} knows"
        advice = "update transformers, or pass the network itself"
        raise CheckpointError("architecture", wanted, shown(model_type), advice)
    check_settings(facts, str(path))
    if facts.get("quantization_config"):
        advice = "use the unquantised checkpoint or a .gguf file"
        raise CheckpointError(str(path), "plain weights", "a quantization_config", advice)
    # A strict configuration class refuses values in its own words.
    with refusing(lambda words: CheckpointError(str(path), "a valid configuration", words)), silenced():
        reader = AutoConfig if facts.get("model_type") is not None else CONFIG_MAPPING[model_type]
        return reader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def read_json(path: Path, wanted: str) -> Any:
    """Return what a JSON file of a checkpoint holds; see `read_json_object`."""
    try:
        return parse_json(path, str(path), wanted, float)
    except ArgumentValueError as error:
        raise CheckpointError(f"{error}; copy or download it again") from error


def read_json_object(path: Path, wanted: str = "a JSON object") -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint; NaN and Infinity, which some hold, are numbers.

    Args:
        path: A regular file.
        wanted: What it should hold, for the message.

    Raises:
        CheckpointError: It is no regular file, too large, unreadable, no JSON, nested too deeply, or no object.
    """
    content = read_json(path, wanted)
    if not isinstance(content, dict):
        raise CheckpointError(str(path), wanted, type(content).__name__)
    return content


MOST_LAYERS = 2048
"""Twice the deepest network there is; building one layer takes milliseconds even without its weights."""

_COUNTS: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "dim": "hidden_size",
    "d_head": "head_dim",
    "context": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "feed_forward_dim": "intermediate_size",
}
"""What we call the sizes of a network, and transformers' common names for them."""

_NEEDED = ("layers", "dim")
_MOST = 2**40


def check_sizes(config: Any, origin: str) -> None:
    """Refuse a configuration of impossible sizes, before anything is built for them.

    Args:
        config: The transformers configuration of one network.
        origin: The checkpoint in a message.

    Raises:
        CheckpointError: A count that no network has; heads that do not share their keys evenly; a rotation of an odd
            number of features.
    """
    where = f"{origin}: config.json"
    sizes = {name: getattr(config, setting, None) for name, setting in _COUNTS.items()}
    if sizes["context"] == -1:
        sizes["context"] = None  # as XLNet says that any length will do
    for name, value in sizes.items():
        if value is not None or name in _NEEDED:
            least = 0 if name == "feed_forward_dim" else 1  # a network may be attention alone
            most = MOST_LAYERS if name == "layers" else _MOST
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                wanted = f"a whole number of {name.replace('_', ' ')} from {least} to {most:,}"
                raise CheckpointError(where, wanted, shown(value))
    heads = sizes["heads"]
    if heads is None:
        return
    kv_heads = sizes["kv_heads"] or heads
    if heads % kv_heads:
        raise CheckpointError(where, "key-value heads that divide the heads", f"{kv_heads} for {heads} heads")
    d_head = sizes["d_head"] or sizes["dim"] // heads
    if d_head < 1:
        raise CheckpointError(where, "a whole number of d head from 1 on", d_head)
    rotary = getattr(config, "rope_parameters", None)
    if (
        rotary
        and not getattr(config, "partial_rotary_factor", None)
        and "partial_rotary_factor" not in rotary
        and d_head % 2
    ):
        raise CheckpointError(where, "an even head width, since pairs rotate", d_head)


def check_depth(
    names: Collection[str], blocks: str, layers: int, ignored: Sequence[re.Pattern[str]], origin: str
) -> None:
    """Refuse a configuration of another depth than its files, before its layers are built.

    Fewer would be left out in silence, and the rest be called the network.

    Args:
        names: What the files hold, by its name in the network.
        blocks: Name of the network's list of blocks.
        layers: How many the configuration says.
        ignored: Names that the files may hold besides, such as layers that predict further ahead.
        origin: The checkpoint in a message.

    Raises:
        CheckpointError: The last layer with a tensor is not the last of the configuration.
    """
    pattern = re.compile(rf"(?:^|\.){re.escape(blocks)}\.(\d{{1,9}})\.")
    kept = (name for name in names if not any(pattern_ignored.search(name) for pattern_ignored in ignored))
    layers_stored = {int(match[1]) for name in kept if (match := pattern.search(name))}
    if layers_stored and max(layers_stored) != layers - 1:
        advice = "the files are incomplete or config.json belongs to another model"
        came = f"{layers} in config.json"
        wanted = f"the {max(layers_stored) + 1} layers that the files hold"
        raise CheckpointError(origin, wanted, came, advice)
