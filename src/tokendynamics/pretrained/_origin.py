"""Where a network comes from, and what makes its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokendynamics.pretrained.encoding import load_image_processor, load_tokenizer
from tokendynamics.pretrained.sources._tokenizer_growth import check_growth


@dataclass
class Origin:
    """Where a network comes from.

    Attributes:
        name: What to call it.
        source: File or folder that was asked for.
        folder: Folder with its tokenizer.
        random_seed: Seed of untrained weights.
        given_tokenizer: A tokenizer or image processor that came with the call.
    """

    name: str
    source: Path | None = None
    folder: Path | None = None
    random_seed: int | None = None
    given_tokenizer: Any | None = None

    @cached_property
    def tokenizer(self) -> Any | None:
        """The one of the call, or else the folder's; None if there is neither."""
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        if self.folder is None:
            return None
        if (file := self.folder / "tokenizer.json").is_file():
            check_growth(file)
        return load_tokenizer(self.folder)

    @cached_property
    def image_processor(self) -> Any | None:
        """The one of the call (in the place of a tokenizer), or else the folder's; None if there is neither."""
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        return None if self.folder is None else load_image_processor(self.folder)
