"""Text to token ids and back to something a person can read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.other_libraries import refusing, silenced, without_panics

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Encoding:
    """A prompt as token ids.

    Attributes:
        ids: Token ids, int64.
        tokens: Each token as readable text, with its leading space where it has one.
    """

    ids: Int[Tensor, "1 token"]
    tokens: list[str]


def load_tokenizer(folder: Path) -> Any | None:
    """Return the tokenizer of a checkpoint folder, None if it has none.

    Raises:
        CheckpointError: Its files cannot be read.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    def refusal(words: str) -> CheckpointError:
        came = f"an unreadable one ({words})"
        return CheckpointError(expected(str(folder), "a tokenizer", came, "copy or download it again"))

    # Tokenizer files fail in as many ways as there are formats.
    with refusing(refusal), silenced(), without_panics():
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_image_processor(folder: Path) -> Any | None:
    """Return the image processor of a checkpoint folder, None if it has none.

    Raises:
        CheckpointError: Its file cannot be read.
    """
    if not (folder / "preprocessor_config.json").is_file():
        return None
    from transformers import AutoImageProcessor

    def refusal(words: str) -> CheckpointError:
        came = f"an unreadable one ({words})"
        return CheckpointError(expected(str(folder), "an image processor", came, "copy or download it again"))

    with refusing(refusal), silenced():
        return AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)


def encode(text: str, tokenizer: Any, context: int | None, *, truncate: bool, argument: str = "prompt") -> Encoding:
    """Encode a prompt with the model's own tokenizer and its own special tokens.

    Raises:
        ArgumentValueError: An empty prompt, or one longer than `context` without `truncate`.
    """
    _check_not_empty(argument, text)
    with refusing(lambda words: CheckpointError(expected("tokenizer", "one that can encode", words))), silenced():
        ids = tokenizer(text, truncation=truncate, max_length=context if truncate else None)["input_ids"]
    _check_length(argument, len(ids), context)
    return Encoding(torch.tensor([ids], dtype=torch.long), pieces_of(ids, tokenizer))


def pieces_of(ids: list[int], tokenizer: Any) -> list[str]:
    """Return each token as readable text.

    Tables of embeddings are often longer than the tokenizer: an id that it does not know stands as ``<id 50300>``.
    """
    pieces = [_piece(number, tokenizer) for number in ids]
    return [
        f"<id {number}>" if piece is None else _readable(piece, tokenizer)
        for number, piece in zip(ids, pieces, strict=True)
    ]


def _piece(number: int, tokenizer: Any) -> str | None:
    try:
        (piece,) = tokenizer.convert_ids_to_tokens([number])
    except (IndexError, KeyError, OverflowError):  # as tokenizers written in Python may refuse it
        return None
    return piece if isinstance(piece, str) else None


def encoded(
    text: str, tokenizer: Any | None, vocabulary: int, context: int | None, *, truncate: bool, argument: str
) -> Encoding:
    """Encode a prompt by a tokenizer, or as bytes without one; see `encode` and `encode_bytes`."""
    if tokenizer is not None:
        return encode(text, tokenizer, context, truncate=truncate, argument=argument)
    return encode_bytes(text, vocabulary, context, truncate=truncate, argument=argument)


def no_tokenizer(name: str) -> str:
    """Return the message for a trained network that comes without one."""
    advice = "add tokenizer.json to the folder, pass tokenizer= to td.load, or pass token ids as the prompt"
    advice += ": td.trace and td.diagnose take them too"
    return expected(name, "a tokenizer beside the trained weights", "none", advice)


def encode_bytes(
    text: str, vocabulary: int, context: int | None, *, truncate: bool, argument: str = "prompt"
) -> Encoding:
    """Encode a prompt as its UTF-8 bytes modulo the vocabulary, for untrained networks without a tokenizer.

    >>> encode_bytes("aé", vocabulary=50257, context=8, truncate=False)
    Encoding(ids=tensor([[ 97, 195, 169]]), tokens=['a', '<0xC3>', '<0xA9>'])

    Raises:
        ArgumentValueError: See `encode`.
    """
    _check_not_empty(argument, text)
    data = text.encode()
    data = data[:context] if truncate else data
    _check_length(argument, len(data), context)
    tokens = [chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in data]
    return Encoding(torch.tensor([[byte % vocabulary for byte in data]], dtype=torch.long), tokens)


def _check_not_empty(argument: str, text: str) -> None:
    if not text.replace("\0", "").strip():
        raise ArgumentValueError(expected(argument, "some text", repr(text[:20]), "pass at least one word"))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        came = f"a lone surrogate at character {error.start}"
        raise ArgumentValueError(expected(argument, "text that UTF-8 can hold", came, "remove it")) from error


def _check_length(argument: str, length: int, context: int | None) -> None:
    if context is not None and length > context:
        advice = "shorten it, or keep its beginning with truncate=True (--truncate on the command line)"
        raise ArgumentValueError(
            expected(argument, f"at most {context} tokens (the model's context)", f"{length}", advice)
        )


def _readable(piece: str, tokenizer: Any) -> str:
    if "▁" in piece:
        return piece.replace("▁", " ")
    if byte := _BYTE.fullmatch(piece):
        return chr(int(byte.group(1), 16)) if int(byte.group(1), 16) < 128 else piece
    if _is_byte_level(tokenizer):
        # Byte-level vocabularies spell each byte as a printable letter: Ġ is a space.
        text = tokenizer.convert_tokens_to_string([piece])
        return _byte_in_words(piece) if text == "\N{REPLACEMENT CHARACTER}" and len(piece) == 1 else text
    return piece


def _byte_in_words(letter: str) -> str:
    """Return a byte that is no character by itself, from the letter that it is spelt as."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return next((f"<0x{byte:02X}>" for byte, spelt in bytes_to_unicode().items() if spelt == letter), letter)


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in repr(getattr(backend, "decoder", None))
