"""Texts as token ids: conversations by a chat template, long documents in windows, special tokens or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_fields
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained.encoding import Encoding, check_not_empty, encode_bytes, no_tokenizer, pieces_of
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.other_libraries import refusing, silenced

_MESSAGES = 'a list of messages, each with "role" and "content"'


@typed_fields
@dataclass(frozen=True)
class Texts:
    """Texts with how they become token ids; every function that takes texts takes these.

    Attributes:
        texts: One text, several, or several by name. With `chat` each is a conversation: a list of messages
            ``{"role": …, "content": …}``, or a mapping with such a list as ``"messages"``.
        chat: Whether the tokenizer's chat template renders conversations. It writes the special tokens, so the
            tokenizer adds none, and it writes no generation prompt.
        window: Most tokens of a prompt, special ones included, at least 2: longer texts are cut into windows. A window
            shares half of its tokens with the one before it. None leaves texts whole.
        special_tokens: Whether the tokenizer adds its special tokens to each text, or to each window.

    Raises:
        ArgumentTypeError: A value of another kind, or texts that have such options already.
        ArgumentValueError: A window of less than 2 tokens; `chat` without special tokens.

    >>> Texts("a text").window is None
    True
    """

    texts: Any
    chat: bool = False
    window: int | None = None
    special_tokens: bool = True

    def __post_init__(self) -> None:
        """Refuse options that do not go together."""
        if isinstance(self.texts, Texts):
            raise ArgumentTypeError(expected("texts", "texts without options", "Texts", "give all options at once"))
        if self.window is not None:
            as_count(self.window, "window", 2)
        if self.chat and not self.special_tokens:
            advice = "the chat template writes the special tokens: change the template"
            raise ArgumentValueError(expected("special_tokens", "True beside chat=True", "False", advice))

    @property
    def plain(self) -> bool:
        """Whether texts are encoded as the tokenizer does by default."""
        return not self.chat and self.window is None and self.special_tokens

    def conversations(self) -> dict[str, Any]:
        """Return the conversations by name, unchecked."""
        if isinstance(self.texts, Mapping) and "messages" not in self.texts:
            return dict(self.texts)
        if not isinstance(self.texts, list | tuple):
            return {"prompt 1": self.texts}
        first = self.texts[0] if self.texts else None
        several = [self.texts] if isinstance(first, Mapping) and "messages" not in first else self.texts
        return {f"prompt {number}": conversation for number, conversation in enumerate(several, start=1)}

    def pieces(self, ckpt: Checkpoint, item: Any, name: str) -> dict[str, Prepared]:
        """Return one text or conversation as token ids of any number: whole, or its windows by name.

        Args:
            ckpt: What reads it.
            item: The text or conversation.
            name: What it is called.

        Raises:
            ArgumentTypeError, ArgumentValueError: Another prompt, an empty one, a malformed conversation, or a window
                that leaves no room for two tokens or is larger than the context.
            CheckpointError: No tokenizer, no chat template, or a tokenizer that cannot encode.
        """
        if not self.chat and not isinstance(item, str):
            advice = "leave out window= and special_tokens= for token ids, images and arguments by name"
            raise ArgumentTypeError(expected(name, "a text", type(item).__name__, advice))
        text = _rendered(ckpt, item, name) if self.chat else item
        check_not_empty(name, text)
        whole = _alone(ckpt, text, name)
        if not whole.tokens:
            raise ArgumentValueError(expected(name, "a text of at least one token", "none"))
        ids: list[int] = whole.ids[0].tolist()
        before, after = _added_around(ckpt, text, ids) if self.special_tokens and not self.chat else ([], [])
        spans = [(0, len(ids))] if self.window is None else windows_of(len(ids), self._room(ckpt, before + after))
        pieces = {}
        for number, (start, end) in enumerate(spans, start=1):
            called = name if len(spans) == 1 else f"{name}, window {number} of {len(spans)}"
            written = text if len(spans) == 1 else _text_of(ckpt, whole, start, end)
            tokens = [*pieces_of(before, ckpt.tokenizer), *whole.tokens[start:end], *pieces_of(after, ckpt.tokenizer)]
            row = torch.tensor([[*before, *ids[start:end], *after]], dtype=torch.long)
            pieces[called] = Prepared({"input_ids": row}, written, tokens)
        return pieces

    def _room(self, ckpt: Checkpoint, added: list[int]) -> int:
        """Return how many tokens of a text go into a window."""
        window, context = self.window or 0, ckpt.architecture.context
        if context is not None and window > context:
            raise ArgumentValueError(expected("window", f"at most {context} tokens (the model's context)", window))
        if window - len(added) < 2:
            advice = f"the tokenizer adds {len(added)} to each window; special_tokens=False leaves them out"
            raise ArgumentValueError(expected("window", f"at least {len(added) + 2} tokens", window, advice))
        return window - len(added)


def windows_of(tokens: int, size: int) -> list[tuple[int, int]]:
    """Return where windows begin and end: each of `size` tokens but for the last, and by half over the one before.

    Args:
        tokens: Of the whole text.
        size: Of a window, at least 2; two neighbours share ``size // 2`` tokens.

    >>> windows_of(11, 4)
    [(0, 4), (2, 6), (4, 8), (6, 10), (8, 11)]
    """
    step = size - size // 2
    further = max(0, -((size - tokens) // step))  # rounded up
    return [(start, min(start + size, tokens)) for start in range(0, further * step + 1, step)]


def ids_of_any_length(ckpt: Checkpoint, text: str, argument: str = "text") -> Int[Tensor, " token"]:
    """Return the token ids of a text, however long it is: its tokens alone, without special ones around them.

    Args:
        ckpt: From `load`; an untrained one without a tokenizer reads bytes.
        text: Some text.
        argument: What an error calls it.

    Raises:
        ArgumentTypeError, ArgumentValueError, CheckpointError: See `Checkpoint.encode`.
    """
    return _alone(ckpt, text, argument).ids[0]


def _alone(ckpt: Checkpoint, text: str, argument: str) -> Encoding:
    """Return a text of any length without special tokens."""
    facts, tokenizer = ckpt.architecture, ckpt.tokenizer
    if ckpt.ids_name is None or tokenizer is None:
        # Refuses a network that reads no text, and a trained one without a tokenizer.
        ckpt.encode("a", truncate=True, argument=argument)
        return encode_bytes(text, int(facts.vocabulary or 0), None, truncate=False, argument=argument)
    ids = _encoded(tokenizer, text, special=False)
    return Encoding(torch.tensor([ids], dtype=torch.long), pieces_of(ids, tokenizer))


def _encoded(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    with refusing(lambda words: CheckpointError(expected("tokenizer", "one that can encode", words))), silenced():
        return tokenizer(text, add_special_tokens=special, truncation=False, verbose=False)["input_ids"]


def _added_around(ckpt: Checkpoint, text: str, ids: list[int]) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer adds before and after a text."""
    if ckpt.tokenizer is None:
        return [], []
    whole = _encoded(ckpt.tokenizer, text, special=True)
    for start in range(len(whole) - len(ids) + 1):
        if whole[start : start + len(ids)] == ids:
            return whole[:start], whole[start + len(ids) :]
    wanted, came = "one that adds special tokens only around a text", "one that changes the tokens of the text as well"
    raise CheckpointError(expected("tokenizer", wanted, came, "pass special_tokens=False with window="))


def _rendered(ckpt: Checkpoint, conversation: Any, name: str) -> str:
    """Return a conversation as the tokenizer's chat template writes it."""
    messages = _checked_messages(conversation, name)
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        ckpt.encode("a", truncate=True, argument=name)  # refuses one that cannot be read in its own words
        raise CheckpointError(no_tokenizer(ckpt.name))
    if not getattr(tokenizer, "chat_template", None):
        advice = "pass texts without chat=True, or set tokenizer.chat_template"
        raise CheckpointError(expected(ckpt.name, "a tokenizer with a chat template", "one without", advice))

    def refusal(words: str) -> ArgumentValueError:
        return ArgumentValueError(expected(name, "messages that the chat template takes", words))

    with refusing(refusal), silenced():
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)


def _checked_messages(conversation: Any, name: str) -> list[dict[str, Any]]:
    messages = conversation.get("messages") if isinstance(conversation, Mapping) else conversation
    if not isinstance(messages, list | tuple):
        raise ArgumentTypeError(expected(name, _MESSAGES, type(messages).__name__))
    if not messages:
        raise ArgumentValueError(expected(name, "at least one message", "none"))
    for number, message in enumerate(messages, start=1):
        where = f"{name}: message {number}"
        if not isinstance(message, Mapping):
            raise ArgumentTypeError(expected(where, 'a mapping with "role" and "content"', shown(message)))
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                came = shown(message[key]) if key in message else "none"
                raise ArgumentTypeError(expected(where, f'a text as "{key}"', came))
    return [dict(message) for message in messages]


def _text_of(ckpt: Checkpoint, whole: Encoding, start: int, end: int) -> str:
    """Return some of the tokens of a text as text."""
    if ckpt.tokenizer is None:
        return "".join(whole.tokens[start:end])
    with refusing(lambda words: CheckpointError(expected("tokenizer", "one that can decode", words))), silenced():
        return str(ckpt.tokenizer.decode(whole.ids[0, start:end].tolist()))
