"""The texts a diagnosis reads when it is given none: a small population of different kinds and languages."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["default_texts", "five_texts"]


def __dir__() -> list[str]:
    return __all__


_NAMES = (
    "prose", "code", "dialogue", "list", "german",  # the first five: `five_texts`
    "french", "spanish", "japanese", "russian", "mathematics", "poem", "news", "json", "email",
)  # fmt: skip


def default_texts() -> dict[str, str]:
    """Return the fourteen texts by name, written for this project, none longer than 250 bytes.

    >>> len(default_texts()), list(default_texts())[:6]
    (14, ['prose', 'code', 'dialogue', 'list', 'german', 'french'])
    """
    folder = files(__name__)
    return {name: folder.joinpath(f"{name}.txt").read_text(encoding="utf-8").strip() for name in _NAMES}


def five_texts() -> dict[str, str]:
    """Return the first five of `default_texts`, once all there were: their numbers can be made again.

    >>> list(five_texts())
    ['prose', 'code', 'dialogue', 'list', 'german']
    """
    return dict(list(default_texts().items())[:5])
