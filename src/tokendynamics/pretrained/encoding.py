"""Text to token ids and back to something a person can read, and where a network's tokenizer comes from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.extras import install, require
from tokendynamics.pretrained.other_libraries import refusing, silenced, without_panics
from tokendynamics.pretrained.sources._configuration import read_json_object

_UNKNOWN_ID = (IndexError, KeyError, ValueError, OverflowError)
"""What tokenizers written in Python raise of an id that they do not know."""

MOST_GROWTH = 1000
"""Times its length that a text may reach; tokenizers in use stay below ten."""

_MOST_ALONE = 100
"""Patterns that are followed alone as well; a longer chain shows in the text of all of them."""


def check_growth(path: Path) -> None:
    """Refuse a tokenizer whose normalizer or decoder makes a text more than `MOST_GROWTH` times as long.

    A chain of replacements, each of one letter by two, doubles a text with every step. Replacements of plain text are
    followed on a text of all their patterns; of those by regular expressions, which may match anything, the lengths are
    multiplied.

    Args:
        path: A tokenizer.json.

    Raises:
        CheckpointError: It does, or the file cannot be read.
    """
    facts = read_json_object(path)
    for name in ("normalizer", "decoder"):
        steps = list(_steps(facts.get(name)))
        # Each pattern alone, and all of them.
        patterns = list(dict.fromkeys(pattern for kind, pattern, _ in steps if kind == "String" and pattern))
        patterns += [pattern.lower() for pattern in patterns if pattern.lower() != pattern]
        texts = [*patterns[:_MOST_ALONE], " ".join(patterns)]
        by_expression = prod(max(1, len(content)) for kind, _, content in steps if kind == "Regex")
        if by_expression > MOST_GROWTH or not all(_bounded(steps, text) for text in texts):
            wanted = f"a {name} that makes a text at most {MOST_GROWTH:,} times as long"
            came = f"{len(steps)} replacements that make one longer"
            raise CheckpointError(str(path), wanted, came, "take the tokenizer of the original checkpoint")


def _bounded(steps: list[tuple[str, str, str]], text: str) -> bool:
    """Tell whether a text stays within the bound through the replacements of plain text."""
    most = MOST_GROWTH * max(1, len(text))
    for kind, pattern, content in steps:
        if kind == "Prepend":
            text = content + text
        elif kind == "String" and pattern:
            # The length is known before the longer text is made.
            if len(text) + text.count(pattern) * (len(content) - len(pattern)) > most:
                return False
            text = text.replace(pattern, content)
        if len(text) > most:
            return False
    return True


def _steps(part: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the pattern and the content of every replacement, in order."""
    if not isinstance(part, Mapping):
        return
    for inner in ("normalizers", "decoders"):
        if isinstance(part.get(inner), list):
            for step in part[inner]:
                yield from _steps(step)
    pattern, content = part.get("pattern"), part.get("content", "")
    if part.get("type") == "Replace" and isinstance(pattern, Mapping) and isinstance(content, str):
        for kind in ("String", "Regex"):
            if isinstance(pattern.get(kind), str):
                yield kind, pattern[kind], content
    elif part.get("type") == "Prepend" and isinstance(part.get("prepend"), str):
        yield "Prepend", "", part["prepend"]


_MARIAN = ("source.spm", "target.spm", "vocab.json")
_SENTENCEPIECE = (
    "source.spm",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "spm.model",
)
_ENOUGH = ("tokenizer.json", "merges.txt", "vocab.txt")
"""Files beside which a file of sentencepiece is not needed, other than Marian's."""

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", *_SENTENCEPIECE)
_ADVICE = "pass tokenizer= to td.load, or token ids as the prompt"
_MOST_WORDS = 100
_LEAST_EQUAL = 0.9
"""Share of a file's own words that must be cut as sentencepiece cuts them; few differ by ties of their scores."""

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/=]+ \d+\s")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Encoding:
    """A prompt as token ids.

    Attributes:
        ids: Token ids, int64, shape (1, token).
        tokens: Each token as readable text, with its leading space where it has one.

    >>> Encoding(torch.tensor([[5, 6]]), ["one", "two"]).ids.shape
    torch.Size([1, 2])
    """

    ids: Int[Tensor, "1 token"]
    tokens: list[str]


def _unreadable(folder: Path, wanted: str) -> Callable[[str], CheckpointError]:
    def refusal(words: str) -> CheckpointError:
        came = f"an unreadable one ({words})"
        return CheckpointError(str(folder), wanted, came, "copy or download it again")

    return refusal


def _sentencepiece_file(folder: Path) -> Path | None:
    """Return the file of a folder's tokenizer that only sentencepiece reads; None where it is not needed.

    Raises:
        CheckpointError: It is no such file, or others that belong to it are missing.
    """
    file = next((folder / name for name in _SENTENCEPIECE if (folder / name).is_file()), None)
    if file is None:
        return None
    if file.name in _MARIAN:
        if absent := [name for name in _MARIAN if not (folder / name).is_file()]:
            wanted = f"the tokenizer files {', '.join(_MARIAN)}"
            raise CheckpointError(str(folder), wanted, f"no {' and no '.join(absent)}", _ADVICE)
    elif any((folder / name).is_file() for name in _ENOUGH):
        return None
    with file.open("rb") as content:
        beginning = content.read(1000)
    if _TIKTOKEN_LINE.match(beginning):
        return None
    if not beginning.startswith(b"\n"):  # the tag of the first piece
        raise CheckpointError(str(file), "a file of sentencepiece", "another one", f"copy it again, {_ADVICE}")
    return file


def _cuts(folder: Path, file: Path) -> dict[str, list[str]]:
    """Return words that a file of sentencepiece has among its pieces, each with the pieces that it is cut into.

    Tokenizers may lowercase a text or decompose its letters first, so that no such word is among them.

    Raises:
        CheckpointError: The library is not installed, or cannot read the file.
    """
    use = f"the tokenizer in {file.name}"
    require("sentencepiece", str(folder), use, otherwise=_ADVICE, error=CheckpointError)

    def refusal(words: str) -> CheckpointError:
        return CheckpointError(str(folder), f"the packages for {use}", words, install("sentencepiece"))

    with refusing(refusal):
        library, form = (import_module(f"sentencepiece{name}") for name in ("", ".sentencepiece_model_pb2"))
    with refusing(_unreadable(file, "a file of sentencepiece")):
        model = form.ModelProto.FromString(file.read_bytes())
        processor = library.SentencePieceProcessor(model_proto=model.SerializeToString())
        words = (entry.piece.strip("▁") for entry in model.pieces if entry.type == entry.NORMAL)
        plain = [word for word in words if word.isalpha() and word == unicodedata.normalize("NFKD", word.lower())]
        return {word: processor.encode(word, out_type=str) for word in list(dict.fromkeys(plain))[:_MOST_WORDS]}


def _check_cuts(folder: Path, file: Path, tokenizer: Any, cuts: Mapping[str, list[str]]) -> None:
    """Refuse a tokenizer that transformers reads from a file of sentencepiece as another one.

    Without tokenizer_config.json it may take another class, which leaves out the space before a text or cuts by bytes.
    """
    other = {}
    with refusing(_unreadable(folder, "a tokenizer that can encode")), silenced():
        for word, pieces in cuts.items():
            ids = tokenizer(word, add_special_tokens=False)["input_ids"]
            if (came := tokenizer.convert_ids_to_tokens(ids)) != pieces:
                other[word] = f"{' '.join(map(str, came))} for {' '.join(pieces)}"
    if len(other) > (1 - _LEAST_EQUAL) * len(cuts):
        came = f"{type(tokenizer).__name__} of transformers, with {len(other)} of {len(cuts)} words otherwise"
        came += f" ({next(iter(other.values()))})"
        advice = f"add tokenizer.json or tokenizer_config.json, {_ADVICE}"
        raise CheckpointError(str(folder), f"a tokenizer that cuts words as {file.name} does", came, advice)


def load_tokenizer(folder: Path, config: Any | None = None) -> Any | None:
    """Return the tokenizer of a checkpoint folder, None if it has none.

    Args:
        folder: Of the checkpoint.
        config: The network's, whose type decides what some files are; None for that of the folder.

    Raises:
        CheckpointError: Its files cannot be read, need a library that is not installed, are read as another tokenizer,
            or make a text longer without bound.
    """
    if (file := folder / "tokenizer.json").is_file():
        check_growth(file)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    file = _sentencepiece_file(folder)
    cuts = {} if file is None else _cuts(folder, file)
    from transformers import AutoTokenizer

    def refusal(words: str) -> CheckpointError:
        came = f"one that transformers does not read ({words})"
        return CheckpointError(str(folder), "a tokenizer", came, f"copy it again, {_ADVICE}")

    # Tokenizer files fail in as many ways as there are formats.
    with refusing(refusal), silenced(), without_panics():
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, **options)
    if file is not None:
        _check_cuts(folder, file, tokenizer, cuts)
    return tokenizer


class OwnTokenizer:
    """Any tokenizer that does not come from transformers, called like one that does.

    Args:
        given: A function that returns the ids of a text; or an object with ``encode`` and perhaps ``decode``, as those
            of tiktoken, tokenizers and sentencepiece.

    >>> ascii_codes = OwnTokenizer(lambda text: [ord(letter) for letter in text])
    >>> ascii_codes("ab"), ascii_codes.convert_ids_to_tokens([97])
    ({'input_ids': [97, 98]}, [None])
    """

    def __init__(self, given: Any) -> None:
        self._encode: Callable[..., Any] = getattr(given, "encode", given)
        self._decode: Callable[..., Any] | None = getattr(given, "decode", None)
        self._piece: Callable[[int], Any] | None = getattr(given, "id_to_token", None)

    def __call__(
        self,
        text: str,
        add_special_tokens: bool = True,
        truncation: bool | None = False,
        max_length: int | None = None,
        verbose: bool = True,
    ) -> dict[str, list[int]]:
        """Return the ids of a text by the name that transformers gives them.

        Raises:
            ArgumentTypeError: It gives something else.
        """
        del verbose
        given = self._encode(text) if add_special_tokens else self._without_special(text)
        ids = given["input_ids"] if isinstance(given, Mapping) else getattr(given, "ids", given)
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        ids = ids[0] if isinstance(ids, list | tuple) and len(ids) == 1 and isinstance(ids[0], list | tuple) else ids
        if not isinstance(ids, list | tuple) or not all(isinstance(number, int | np.integer) for number in ids):
            raise ArgumentTypeError("tokenizer", "one that gives the ids of a text as whole numbers", shown(given))
        ids = [int(number) for number in ids]
        return {"input_ids": ids[:max_length] if truncation else ids}

    def _without_special(self, text: str) -> Any:
        try:
            return self._encode(text, add_special_tokens=False)
        except TypeError:  # it adds none, or its own arguments say so
            return self._encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; the ids themselves where the tokenizer does not decode."""
        if self._decode is None:
            return " ".join(map(str, ids))
        try:
            return str(self._decode(list(ids)))
        except _UNKNOWN_ID:
            return "".join(pieces_of(list(ids), self))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Return the text of each id; None where the tokenizer does not decode or does not know it."""
        if self._piece is not None:
            return [self._piece(number) for number in ids]
        return [None if self._decode is None else str(self._decode([number])) for number in ids]


def as_tokenizer(given: Any) -> Any:
    """Return a tokenizer or an image processor of transformers as it is, and any other tokenizer as one of its kind.

    Raises:
        ArgumentTypeError: It encodes nothing.
    """
    if given is None or hasattr(given, "convert_ids_to_tokens") or hasattr(given, "preprocess"):
        return given
    if isinstance(given, str | bytes) or not callable(getattr(given, "encode", given)):
        wanted = "a tokenizer: one of transformers, an object with encode, or a function of a text"
        raise ArgumentTypeError("tokenizer", wanted, type(given).__name__)
    return OwnTokenizer(given)


def load_image_processor(folder: Path) -> Any | None:
    """Return the image processor of a checkpoint folder, None if it has none.

    Raises:
        CheckpointError: Its file cannot be read.
    """
    if not (folder / "preprocessor_config.json").is_file():
        return None
    from transformers import AutoImageProcessor

    with refusing(_unreadable(folder, "an image processor")), silenced():
        return AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)


def encode(text: str, tokenizer: Any, context: int | None, *, truncate: bool, argument: str = "prompt") -> Encoding:
    """Encode a prompt with the model's own tokenizer and its own special tokens.

    Raises:
        ArgumentValueError: An empty prompt, or one longer than `context` without `truncate`.
    """
    check_not_empty(argument, text)
    with refusing(lambda words: CheckpointError("tokenizer", "one that can encode", words)), silenced():
        ids = tokenizer(text, truncation=truncate, max_length=context if truncate else None)["input_ids"]
    check_length(argument, len(ids), context)
    return Encoding(torch.tensor([ids], dtype=torch.long), pieces_of(ids, tokenizer))


def pieces_of(ids: list[int], tokenizer: Any | None) -> list[str]:
    """Return each token as readable text.

    Tables of embeddings are often longer than the tokenizer: an id that it does not know stands as ``<id 50300>``, as
    every id does without a tokenizer.

    >>> pieces_of([4, 20], None)
    ['<id 4>', '<id 20>']
    """

    def piece(number: int) -> str:
        if tokenizer is None:
            return f"<id {number}>"
        try:
            (known,) = tokenizer.convert_ids_to_tokens([number])
        except _UNKNOWN_ID:
            known = None
        return _readable(known, tokenizer) if isinstance(known, str) else f"<id {number}>"

    return [piece(number) for number in ids]


def encoded(
    text: str, tokenizer: Any | None, vocabulary: int, context: int | None, *, truncate: bool, argument: str
) -> Encoding:
    """Encode a prompt by a tokenizer, or as bytes without one; see `encode` and `encode_bytes`."""
    if tokenizer is not None:
        return encode(text, tokenizer, context, truncate=truncate, argument=argument)
    return encode_bytes(text, vocabulary, context, truncate=truncate, argument=argument)


def no_tokenizer(name: str) -> str:
    """Return the message for a trained network that comes without one."""
    advice = (
        "write one into the folder with tokenizer.save_pretrained(folder); or, in Python, pass tokenizer= to td.load, "
    )
    advice += "or token ids as the prompts of td.trace or td.diagnose"
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
    check_not_empty(argument, text)
    data = text.encode()
    data = data[:context] if truncate else data
    check_length(argument, len(data), context)
    tokens = [chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in data]
    return Encoding(torch.tensor([[byte % vocabulary for byte in data]], dtype=torch.long), tokens)


def check_not_empty(argument: str, text: str) -> None:
    """Refuse a text without a word, or one that UTF-8 cannot hold."""
    if not text.replace("\0", "").strip():
        raise ArgumentValueError(argument, "some text", repr(text[:20]), "pass at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        came = f"a lone surrogate at character {error.start}"
        raise ArgumentValueError(argument, "text that UTF-8 can hold", came, "remove it") from error


def check_length(argument: str, length: int, context: int | None) -> None:
    """Refuse more tokens than the context."""
    if context is not None and length > context:
        advice = "keep its beginning with truncate=True, or cut it with window= (--truncate, --window)"
        raise ArgumentValueError(argument, f"at most {context} tokens (the model's context)", f"{length}", advice)


def _readable(piece: str, tokenizer: Any) -> str:
    if "▁" in piece:
        return piece.replace("▁", " ")
    if byte := _BYTE.fullmatch(piece):
        return chr(int(byte.group(1), 16)) if int(byte.group(1), 16) < 128 else piece
    if "ByteLevel" in repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)):
        # Byte-level vocabularies spell each byte as a printable letter: Ġ is a space.
        text = tokenizer.convert_tokens_to_string([piece])
        if text == "\N{REPLACEMENT CHARACTER}" and len(piece) == 1:  # a byte that is no character by itself
            from transformers.convert_slow_tokenizer import bytes_to_unicode

            return next((f"<0x{byte:02X}>" for byte, spelt in bytes_to_unicode().items() if spelt == piece), piece)
        return text
    return piece


@dataclass
class Origin:
    """Where a network comes from.

    Attributes:
        name: What to call it.
        source: File or folder that was asked for.
        folder: Folder with its tokenizer.
        random_seed: Seed of untrained weights.
        given_tokenizer: A tokenizer or image processor that came with the call.
        notes: How its files were read, where they do not say so themselves.
        config: What the files of its tokenizer are read with; None for the configuration in the folder.
    """

    name: str
    source: Path | None = None
    folder: Path | None = None
    random_seed: int | None = None
    given_tokenizer: Any | None = None
    notes: tuple[str, ...] = ()
    config: Any | None = None

    def __post_init__(self) -> None:
        """Refuse what is no tokenizer."""
        as_tokenizer(self.given_tokenizer)

    @property
    def tokenizer(self) -> Any | None:
        """The one of the call, or else the folder's; None if there is neither.

        Raises:
            CheckpointError: The folder's cannot be read.
        """
        if isinstance(self.tokenizer_or_error, CheckpointError):
            raise self.tokenizer_or_error
        return self.tokenizer_or_error

    @cached_property
    def tokenizer_or_error(self) -> Any | None:
        """See `tokenizer`: the error in the place of one that cannot be read."""
        if self.given_tokenizer is not None:
            return as_tokenizer(self.given_tokenizer)
        try:
            return None if self.folder is None else load_tokenizer(self.folder, self.config)
        except CheckpointError as error:
            return error

    @cached_property
    def image_processor(self) -> Any | None:
        """The one of the call (in the place of a tokenizer), or else the folder's; None if there is neither."""
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        return None if self.folder is None else load_image_processor(self.folder)
