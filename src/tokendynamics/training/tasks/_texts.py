"""Text byte by byte or word by word: its three splits, and windows of its tokens."""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_path
from tokendynamics.training.tasks._task import Item, checked_options

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


LAYOUT = (
    "a file of text such as enwik8 (split 90, 5 and 5 % in its own order), a folder with wiki.train.tokens, "
    "wiki.valid.tokens and wiki.test.tokens (or train.txt, valid.txt and test.txt), a folder of other text files (each "
    "whole in one split), 'pydoc' (pages of help that every CPython has) or 'python-doc' (its manual, Debian's package "
    "python3-doc)"
)
_OWN_SPLITS = ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt")
_SOURCES = ("python3.*/html/_sources", "python3/html/_sources")
_LOOKED_AT = 2**16
"""Bytes at the beginning of a file that tell whether it is text."""
_PIECE = 2**20
"""Characters that are read at once: a corpus may be one line, whose words would take many times its size."""
_HEADING = 100
"""Characters of the longest heading: what has more is a paragraph."""
_SPLIT_SEED = 20_261_124
"""Of which documents are held out: the same for every run, so that no run trains on what another is tested on."""


class Splits(NamedTuple):
    """Bytes of each split, (byte,) uint8."""

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def text_splits(data: str, held_out: float) -> Splits:
    """Return the bytes of a text in three splits; files of one split or of all are mapped into memory, not read.

    Args:
        data: ``"pydoc"``, ``"python-doc"``, or the path of a file or folder. Links in a folder are not followed: they
            would bring a text twice, and what is trained on into the test; for the same reason a document that is
            there twice is taken once.
        held_out: Share of each of the validation and the test split, between 0 and 0.5, where the data have none of
            their own.

    Raises:
        ArgumentValueError: Nothing there, nothing in it, no text, or a share out of range.
    """
    if not 0 < held_out < 0.5:
        raise ArgumentValueError("held_out", "a share between 0 and 0.5", held_out)
    if data == "pydoc":
        # Pages that are part of a longer one, a third of all, are left out: the test must not be trained on.
        from pydoc_data.topics import topics

        kept: list[bytes] = []
        seen: set[str] = set()
        for page in sorted(set(topics.values()), key=lambda page: (-len(page), page)):
            paragraphs = {part.strip() for part in page.split("\n\n") if len(part) > _HEADING}
            if not paragraphs or not paragraphs <= seen:
                kept.append(page.encode())
                seen |= paragraphs
        return _of_documents(kept, held_out)
    place = text_place(data)
    try:
        if place.is_dir():
            splits = own_splits(place)
            return _of_documents(_files(place), held_out) if splits is None else Splits(*map(_mapped, splits))
        if place.is_file():
            mapped = _mapped(place)
            size, held = len(mapped), round(len(mapped) * held_out)
            if size == 0:
                raise ArgumentValueError("data", LAYOUT, f"the empty file {place}")
            return Splits(mapped[: size - 2 * held], mapped[size - 2 * held : size - held], mapped[size - held :])
    except OSError as error:
        came = f"{error.filename or place} ({error.strerror})"
        raise ArgumentValueError("data", "files that can be read", came) from error
    came = f"nothing at {place}" if not os.path.lexists(place) else f"{place}, which is neither"
    raise ArgumentValueError("data", LAYOUT, came)


def text_place(data: str) -> Path:
    """Return the path that a text is at, which may or may not be there.

    Raises:
        ArgumentValueError: No path, or 'python-doc' where it is not installed.
    """
    if data == "python-doc":
        shared = Path("/usr/share/doc")
        path = next(
            (place for pattern in _SOURCES for place in sorted(shared.glob(pattern)) if not place.is_symlink()), None
        )
        if path is None:
            advice = "apt install python3-doc, or name a folder of text files"
            raise ArgumentValueError("data", "the sources of Python's manual", "none under /usr/share/doc", advice)
        return path
    place = as_path(data, "data")
    if not data:
        raise ArgumentValueError("data", LAYOUT, "an empty name")
    try:
        return place.expanduser()
    except RuntimeError as error:
        raise ArgumentValueError("data", LAYOUT, f"{data} ({error})") from error


def own_splits(folder: Path) -> tuple[Path, Path, Path] | None:
    """Return the files for training, validation and test in a folder of a text that has splits of its own, or None.

    Raises:
        ArgumentValueError: Some of the files are there, and another is not.
    """
    for name in _OWN_SPLITS:
        train, valid, test = (folder / name.format(part) for part in ("train", "valid", "test"))
        missing = [place.name for place in (train, valid, test) if not place.is_file()]
        if not missing:
            return train, valid, test
        if len(missing) == 1 or (len(missing) == 2 and train.is_file()):
            came = f"{folder} without {' and '.join(missing)}"
            raise ArgumentValueError("data", LAYOUT, came, "without them the test would be trained on")
    return None


def _mapped(place: Path) -> np.ndarray:
    """Return the bytes of a file of text."""
    if place.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    mapped = np.memmap(place, dtype=np.uint8, mode="r")
    _check_text(bytes(mapped[:_LOOKED_AT]), place)
    return mapped


def _of_documents(documents: Iterable[bytes], held_out: float) -> Splits:
    """Give whole documents to the splits, in an order of chance, until test and validation have their shares."""
    every = list(dict.fromkeys(documents))
    total, parts = sum(map(len, every)), {"test": [], "validation": [], "training": []}
    filled = dict.fromkeys(parts, 0)
    for number in np.random.default_rng(_SPLIT_SEED).permutation(len(every)):
        held = (name for name in ("test", "validation") if filled[name] < held_out * total)
        name = next(held, "training")
        parts[name].append(every[number])
        filled[name] += len(every[number])
    joined = {name: np.frombuffer(b"\n".join(part), dtype=np.uint8) for name, part in parts.items()}
    return Splits(joined["training"], joined["validation"], joined["test"])


def _files(folder: Path) -> list[bytes]:
    """Read the files of a folder and of those in it, by name; hidden and empty ones and links are passed over."""
    contents = []
    for path in _below(folder):
        content = path.read_bytes()
        _check_text(content[:_LOOKED_AT], path)
        contents += [content] if content else []
    if not contents:
        raise ArgumentValueError("data", LAYOUT, f"the folder {folder} without a file that has text")
    if len(set(contents)) < len(Splits._fields):
        wanted = "at least three different documents in a folder, one for each split"
        raise ArgumentValueError("data", wanted, f"{len(set(contents))} in {folder}", "name the file itself")
    return contents


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, followlinks=False, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(root, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _check_text(beginning: bytes, place: Path) -> None:
    """Refuse an archive, an image or UTF-16: a network would learn its bytes without a word."""
    if b"\0" in beginning:
        raise ArgumentValueError("data", "text, which has no null bytes", f"{place}, which has")


class RandomWindows(Dataset[Mapping[str, np.ndarray]]):
    """Windows that begin anywhere; window i depends on the seed and on i alone, however a run was interrupted.

    Args:
        tokens: (token,), may be mapped from a file.
        length: Tokens of a window.
        seed: Of the beginnings.
        draws: How many windows there are.

    >>> windows = RandomWindows(np.arange(100), 5, seed=0, draws=10)
    >>> len(windows), np.diff(windows[3]["ids"]).tolist(), bool((windows[3]["ids"] == windows[3]["ids"]).all())
    (10, [1, 1, 1, 1], True)
    """

    def __init__(self, tokens: np.ndarray, length: int, *, seed: int, draws: int) -> None:
        self._tokens, self.length, self._seed, self._draws = tokens, length, seed, draws

    def __len__(self) -> int:
        return self._draws

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self._draws:
            raise IndexError(index)
        begins = len(self._tokens) - self.length + 1
        begin = int(np.random.default_rng([self._seed, index]).integers(begins))
        return {"ids": self._tokens[begin : begin + self.length]}


class AdjoiningWindows(Dataset[Mapping[str, np.ndarray]]):
    """Windows side by side, each beginning with the last token of the one before.

    So every token but the first is foretold once. What is left at the end, less than a window, is left out.

    Args:
        tokens: (token,).
        length: Tokens of a window, one of which only begins it.

    >>> [window["ids"].tolist() for window in AdjoiningWindows(np.arange(8), 4)]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // (self._length - 1)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin = index * (self._length - 1)
        return {"ids": self._tokens[begin : begin + self._length]}


class TextTask:
    """What tasks of text share: windows of token ids, as what a language model is given and as what it must predict."""

    network = "decoder"
    scores = None

    def __init__(self, training: RandomWindows, validation: AdjoiningWindows, test: AdjoiningWindows) -> None:
        self.training, self.validation, self.test = training, validation, test

    def training_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return the windows as input_ids and labels, (window, token)."""
        ids = torch.from_numpy(np.stack([item["ids"] for item in items]).astype(np.int64))
        return {"input_ids": ids, "labels": ids}

    def evaluation_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """See `training_batch`."""
        return self.training_batch(items)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer of these tokens."""
        raise NotImplementedError

    def save_inputs(self, folder: Path) -> None:
        """Write the tokenizer."""
        self.tokenizer().save_pretrained(folder)


def check_length(splits: Mapping[str, np.ndarray], length: int, unit: str, data: str) -> None:
    """Refuse a split that is shorter than one window.

    Raises:
        ArgumentValueError: The split and its length are named.
    """
    for name, tokens in splits.items():
        if len(tokens) < length:
            wanted = f"at least {length} {unit} in each split: one context and the {unit[:-1]} after it"
            came = f"{len(tokens)} in the {name} split of {data}"
            raise ArgumentValueError("data", wanted, came, "take more text, or a smaller context")


_BYTES_OPTIONS: dict[str, Any] = {"context": 128, "held_out": 0.05}


class Bytes(TextTask):
    """Foretelling the next byte: windows at random in training, side by side in evaluations.

    Options: ``context``, the bytes that the network sees at most (a window has one more, to be foretold), and
    ``held_out``, the share of each of the validation and the test split. The measure is bits per byte: the mean loss
    over ln 2.

    >>> task = Bytes.of("pydoc", {"context": 16}, seed=0, draws=4)
    >>> task.training_batch([task.training[0], task.training[1]])["input_ids"].shape
    torch.Size([2, 17])
    """

    measure = "bits_per_byte"

    @classmethod
    def of(cls, data: str, options: Mapping[str, Any], seed: int, draws: int) -> Bytes:
        """Return the task on a text, see `text_splits`.

        Raises:
            ArgumentValueError: No text there, fewer bytes than one context, or an option that there is not.
        """
        given = checked_options(options, _BYTES_OPTIONS)
        length, splits = given["context"] + 1, text_splits(data, given["held_out"])
        check_length(splits._asdict(), length, "bytes", data)
        training = RandomWindows(splits.training, length, seed=seed, draws=draws)
        validation, test = (AdjoiningWindows(split, length) for split in splits[1:])
        return cls(training, validation, test)

    def fitted(self) -> dict[str, Any]:
        """Return the vocabulary of 256 bytes, and the longest sequence."""
        return {"vocab_size": 256, "max_position_embeddings": self.training.length}

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return bits per byte."""
        return {"bits_per_byte": loss / math.log(2)}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer of bytes."""
        from tokendynamics.modules.language_model import byte_tokenizer

        return byte_tokenizer()


_WORDS_OPTIONS: dict[str, Any] = {"context": 150, "evaluation_context": 156, "held_out": 0.05, "least": 1}
END, UNKNOWN = "<eos>", "<unk>"


class Words(TextTask):
    """Foretelling the next word; words are what stands between blanks, and every line ends with ``<eos>``.

    The vocabulary is that of the training split, by falling frequency as an adaptive softmax wants it; other words are
    ``<unk>``. Options: ``context``, the words that the network sees at most in training, ``evaluation_context``,
    likewise in evaluations, ``held_out``, the share of each of the validation and the test split where the data have
    none of their own, and ``least``, how often a word must occur to have a place of its own. The measure is the
    perplexity, exp of the mean loss.

    >>> task = Words.of("pydoc", {"context": 16}, seed=0, draws=4)
    >>> task.vocabulary[0], task.training_batch([task.training[0]])["labels"].shape
    ('<eos>', torch.Size([1, 17]))
    """

    measure = "perplexity"

    def __init__(
        self,
        training: RandomWindows,
        validation: AdjoiningWindows,
        test: AdjoiningWindows,
        vocabulary: Sequence[str],
        longest: int,
    ) -> None:
        super().__init__(training, validation, test)
        self.vocabulary, self._longest = vocabulary, longest

    @classmethod
    def of(cls, data: str, options: Mapping[str, Any], seed: int, draws: int) -> Words:
        """Return the task on a text.

        Raises:
            ArgumentValueError: No text there, fewer words than one context, or an option that there is not.
        """
        from tokendynamics.modules.language_model import vocabulary_of

        given = checked_options(options, _WORDS_OPTIONS)
        words = {name: _WordsOf(split) for name, split in text_splits(data, given["held_out"])._asdict().items()}
        counts = Counter(words["training"])
        least = given["least"]
        rare = sum(count for count in counts.values() if count < least)
        kept = Counter({word: count for word, count in counts.items() if count >= least})
        kept[UNKNOWN] += rare
        vocabulary = list(vocabulary_of(kept))
        numbers = {word: number for number, word in enumerate(vocabulary)}
        splits = {name: _encoded(part, numbers) for name, part in words.items()}
        context, evaluated = given["context"] + 1, given["evaluation_context"] + 1
        check_length(splits, max(context, evaluated), "words", data)
        training = RandomWindows(splits["training"], context, seed=seed, draws=draws)
        validation, test = (AdjoiningWindows(splits[name], evaluated) for name in ("validation", "test"))
        return cls(training, validation, test, vocabulary, max(context, evaluated))

    def fitted(self) -> dict[str, Any]:
        """Return the size of the vocabulary, and the longest sequence."""
        return {"vocab_size": len(self.vocabulary), "max_position_embeddings": self._longest}

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return the perplexity; infinite where it is beyond float64."""
        return {"perplexity": math.exp(loss) if loss < 700 else math.inf}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer of these words."""
        from tokendynamics.modules.language_model import word_tokenizer

        return word_tokenizer({word: number for number, word in enumerate(self.vocabulary)})


class _WordsOf:
    """The words of a text with `END` after each line, decoded anew each time; lines end as those of the tokenizer."""

    def __init__(self, content: np.ndarray) -> None:
        self._content = content

    def __iter__(self) -> Iterator[str]:
        text = io.TextIOWrapper(io.BytesIO(self._content.tobytes()), encoding="utf-8", errors="replace")
        start, inside = "", False
        while piece := text.readline(_PIECE):
            words, inside = (start + piece).split(), not piece.endswith("\n")
            start = words.pop() if inside and words and not piece[-1].isspace() else ""
            yield from words
            if not inside:
                yield END
        if start:
            yield start
        if inside:
            yield END


def _encoded(words: Iterable[str], numbers: Mapping[str, int]) -> np.ndarray:
    unknown = numbers[UNKNOWN]
    return np.fromiter((numbers.get(word, unknown) for word in words), dtype=np.int32)
