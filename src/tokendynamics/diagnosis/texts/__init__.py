"""The texts a diagnosis reads when it is given none: prose, code, dialogue, a list, another language."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["NAMES", "default_texts"]

NAMES = ("prose", "code", "dialogue", "list", "german")


def default_texts() -> dict[str, str]:
    """Return the texts by name, written for this project.

    >>> list(default_texts())
    ['prose', 'code', 'dialogue', 'list', 'german']
    """
    folder = files(__name__)
    return {name: folder.joinpath(f"{name}.txt").read_text(encoding="utf-8").strip() for name in NAMES}
