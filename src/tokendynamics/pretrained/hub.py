"""Checkpoints of the Hugging Face hub, through its own client and its own cache."""

from __future__ import annotations

import re
from pathlib import Path

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.pretrained.messages import in_short
from tokendynamics.pretrained.quiet import quiet

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]


def is_hub_id(text: str) -> bool:
    """Tell whether `text` has the form ``org/name``.

    >>> is_hub_id("openai-community/gpt2"), is_hub_id("gpt2"), is_hub_id("./runs/gpt2")
    (True, False, False)
    """
    return _ID.fullmatch(text) is not None


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
        with quiet():
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
