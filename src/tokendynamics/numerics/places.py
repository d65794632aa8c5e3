"""Where in an array the first thing wrong is, for messages."""

from __future__ import annotations

from torch import Tensor


def first_index(marked: Tensor) -> tuple[int, ...]:
    """Return the index of the first True entry, in the order of storage.

    >>> import torch
    >>> first_index(torch.tensor([[False, False], [True, True]]))
    (1, 0)
    """
    return tuple(int(i) for i in marked.nonzero()[0])


def first_token(marked: Tensor, verb: str = "") -> str:
    """Return which token of which system is the first one marked in (…, token), in words; `verb` follows the token.

    >>> import torch
    >>> first_token(torch.tensor([False, True])), first_token(torch.tensor([[False, True]]))
    ('token 1', 'token 1 of system (0,)')
    """
    *system, token = first_index(marked)
    return f"token {token}{verb}" + (f" of system {tuple(system)}" if system else "")


def first_system(marked: Tensor, word: str = "system") -> str:
    """Return " in system …" for the first one marked in (…,); nothing where there is but one.

    >>> import torch
    >>> first_system(torch.tensor([False, True])), first_system(torch.tensor(True))
    (' in system (1,)', '')
    """
    return f" in {word} {first_index(marked)}" if marked.ndim else ""
