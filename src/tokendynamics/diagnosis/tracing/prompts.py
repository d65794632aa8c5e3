"""Prompts: their names, the noun for them, their tokens, and which of them repeat each other.

Two prompts that repeat each other are one observation of a population, not two. The common share is measured between
prompts. Between a text and its copy it nearly equals what the tokens of one prompt share, whatever the network does, so
a network that reads the same text twice would appear anisotropic. Unknown tokens and doubled BOS tokens distort
similarity likewise.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import check_open, native
from tokendynamics.numerics.errors import shown
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.forward_arguments import Prepared, are_token_ids, as_token_ids
from tokendynamics.pretrained.inputs import Texts, images_in, is_image, is_real
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.pretrained.packs import ids_in
from tokendynamics.provenance.progress import Progress, silent, tracked_if_many
from tokendynamics.words import Finding, percent, plural

MANY_UNKNOWN = 0.1
"""Share of unknown tokens above which a finding warns that they make the texts look alike."""

_WORDS: dict[Repetition, str] = {
    "same": "are the same and count as one observation",
    "contained": "are nearly one observation because the second contains the first",
    "beginning": "are nearly one observation because more than half of the shorter one is the beginning of both",
}

_UNIT = re.compile(r"\w+|[^\w\s]")


def in_words(item: Any) -> str:
    """Return what a prompt is, for people."""
    if isinstance(item, Prepared):
        return item.text
    if isinstance(item, str | Path):
        return item if isinstance(item, str) else item.name
    return "arguments by name" if isinstance(item, Mapping) else f"a {type(item).__name__}"


class NamedPrompts(dict[str, Any]):
    """Prompts by name, as `named_prompts` returns them and takes them again.

    Attributes:
        options: How texts became tokens; None for prompts of all kinds, of which texts are encoded as by default.
        documents: The text that each prompt is of, by name: itself, or the one that it is a window of.
    """

    options: Texts | None = None

    def __init__(self, prompts: Mapping[str, Any], documents: Sequence[str] | None = None) -> None:
        super().__init__(prompts)
        self.documents = list(prompts if documents is None else documents)

    def conventions(self, tokenizer: Any | None) -> dict[str, str | int]:
        """Return how texts became tokens, as attributes of a trace; nothing of what no tokenizer did.

        Args:
            tokenizer: The network's own.
        """
        options = Texts(None) if self.options is None else self.options
        written: dict[str, str | int] = {}
        if tokenizer is not None and any(isinstance(item, str | Prepared) for item in self.values()):
            added = ADDED if options.special_tokens else "left out"
            written["special_tokens"] = "written by the chat template" if options.chat else added
        if options.window is not None:
            written |= {"window": options.window, "documents": len(set(self.documents))}
        return written


_AXES_OF_ROWS, _SEVERAL = 2, 2

_ONE = (str, Mapping, list, tuple, Tensor, np.ndarray)
"""Kinds of one prompt that can be gone through."""

ADDED = "added by the tokenizer"
"""What is recorded of special tokens by default."""


def named_prompts(texts: Any, ckpt: Checkpoint | None = None, report: Progress = silent) -> NamedPrompts:
    """Return several prompts by name; see `prepared` for the kinds.

    Args:
        texts: See `trace`.
        ckpt: What reads them, which tells the arguments of one forward pass from prompts by name; None before there is
            one: then a tensor with two axes in a mapping makes it arguments.
        report: Called after each text with options, which is tokenized here, where they are many.

    Raises:
        ArgumentTypeError, ArgumentValueError: None, or names that are no texts.
    """
    if isinstance(texts, NamedPrompts):
        return texts
    if isinstance(texts, Texts):
        return named_prompts(texts.texts, ckpt) if texts.plain else _read(texts, ckpt, report)
    if isinstance(texts, Mapping) and not _are_arguments(texts, ckpt):
        named = dict(texts)
    elif isinstance(texts, Path) and texts.is_dir():
        named = {path.name: path for path in images_in(texts)}
    elif (several := _as_list(texts, ckpt)) is not None:
        named = {f"prompt {number}": text for number, text in enumerate(several, start=1)}
    elif texts is None or isinstance(texts, bytes | int | float):
        raise ArgumentTypeError("texts", "a text, several, or several by name", type(texts).__name__)
    elif isinstance(texts, Iterable) and not isinstance(texts, _ONE):
        advice = "pass a list of inputs, such as list(...)"
        raise ArgumentTypeError("texts", "a text, several in a list, or several by name", type(texts).__name__, advice)
    else:
        named = {"prompt 1": texts}
    return NamedPrompts(_checked_names(named))


def checkpoint_for(
    model: Model, texts: Any, argument: str = "ckpt", report: Progress = silent, **options: Any
) -> Checkpoint:
    """Return a checkpoint; where a user's own network needs an example input, the first prompt is that.

    Args:
        model: See `as_checkpoint`.
        texts: What it is to read; see `trace`.
        argument: What an error calls the model.
        report: Called while a file is converted first.
        **options: Of `tokendynamics.load`.

    Raises:
        ArgumentTypeError, ArgumentValueError, CheckpointError: See `as_checkpoint`.
    """
    try:
        return as_checkpoint(model, argument, progress=report, **options)
    except CheckpointError:
        of_transformers = None not in (getattr(model, name, None) for name in ("config", "main_input_name"))
        example = None if of_transformers or not isinstance(model, nn.Module) else _example_in(texts)
        if example is None:
            raise
    return as_checkpoint(model, argument, inputs=example, progress=report, **options)


def _example_in(texts: Any) -> Tensor | dict[str, Tensor] | None:
    """Return the first prompt with an axis of inputs; None where it is no tensor, or may have that axis or not."""
    texts = texts.texts if isinstance(texts, Texts) and texts.plain else texts
    if texts is None or isinstance(texts, str | Texts) or (is_real(texts) and (texts.ndim < 3 or len(texts) > 1)):
        return None  # such as an array that may be one input or several
    first = next(iter(named_prompts(texts).values()))
    if not isinstance(first, Mapping):
        return _as_input(first)
    several = {str(name): _as_input(value) for name, value in first.items()}
    given = {name: value for name, value in several.items() if value is not None}
    # All have an axis of inputs, or none has.
    added = {given[name].ndim > np.ndim(first[name]) for name in given}
    return given if len(given) == len(first) and len(added) == 1 else None


def _as_input(item: Any) -> Tensor | None:
    """Return numbers with an axis of inputs; of real ones, a first axis of length 1 before two others is that."""
    if not are_token_ids(item) and not isinstance(item, Tensor | np.ndarray):
        return None
    try:
        tensor = torch.as_tensor(native(item))
    except (TypeError, ValueError, RuntimeError):
        return None
    if tensor.is_floating_point() and tensor.ndim == _AXES_OF_ROWS and len(tensor) == 1:
        return None  # one token, or one input without features
    least = 3 if tensor.is_floating_point() else _AXES_OF_ROWS
    return tensor if tensor.ndim >= least and len(tensor) == 1 else tensor[None] if tensor.ndim else None


def _as_list(texts: Any, ckpt: Checkpoint | None) -> list[Any] | None:
    """Return the prompts of a list, or of an array whose rows are ids or which has one axis more than an input."""
    if isinstance(texts, list | tuple):
        return None if are_token_ids(texts) else list(texts)
    if not isinstance(texts, Tensor | np.ndarray) or len(texts.shape) < _AXES_OF_ROWS or len(texts) < _SEVERAL:
        return None
    if isinstance(texts, Tensor) and texts.layout != torch.strided:
        return None
    if is_real(texts):
        example = list(ckpt.example.values()) if ckpt is not None else []
        rows = len(example) == 1 and example[0].is_floating_point() and example[0].ndim == len(texts.shape)
    else:
        rows = len(texts.shape) == _AXES_OF_ROWS and as_token_ids(texts[:1], "texts") is not None
    return list(texts) if rows else None


def _checked_names(named: dict[Any, Any]) -> dict[str, Any]:
    if not named:
        raise ArgumentValueError("texts", "at least one prompt", "none")
    for name in named:
        if not isinstance(name, str):
            raise ArgumentTypeError("texts", "texts as the names of prompts", shown(name))
    # A file name that is no UTF-8 holds lone surrogates, which no table can store.
    return {name.encode("utf-8", "backslashreplace").decode(): item for name, item in named.items()}


def _read(texts: Texts, ckpt: Checkpoint | None, report: Progress) -> NamedPrompts:
    """Return texts with options as token ids by name."""
    if ckpt is None:
        advice = "a monitor takes texts without options, or token ids"
        raise ArgumentTypeError("texts", "prompts that need no tokenizer yet", "Texts", advice)
    named = _checked_names(texts.conversations()) if texts.chat else named_prompts(texts.texts, ckpt)
    pieces: dict[str, Prepared] = {}
    documents: list[str] = []
    for name, item in tracked_if_many(named.items(), report, "tokenizing the texts"):
        several = texts.pieces(ckpt, item, name)
        if taken := pieces.keys() & several.keys():
            raise ArgumentValueError("texts", "prompts of different names", f"two called {taken.pop()}")
        pieces |= several
        documents += [name] * len(several)
    prompts = NamedPrompts(pieces, documents)
    prompts.options = texts
    return prompts


def with_options(texts: Any, chat: bool, window: int | None, special_tokens: bool) -> Any:
    """Return texts with options, or as they are where each option is at its default."""
    if isinstance(texts, Texts) and not chat and window is None and special_tokens:
        return texts
    return Texts(texts, chat, window, special_tokens)


def _are_arguments(texts: Mapping[Any, Any], ckpt: Checkpoint | None) -> bool:
    if not any(isinstance(value, Tensor | np.ndarray) and value.ndim > 1 for value in texts.values()):
        return False
    return ckpt is None or set(texts) <= ckpt.argument_names


def noun_of(prompts: Mapping[str, Any]) -> str:
    """Return the noun for prompts as `tokendynamics.trace` takes them: "text", "image", or else "input".

    >>> noun_of({"a": "some words", "b": [5, 9]}), noun_of({"a": {"input_features": [0.5, 0.25]}})
    ('text', 'input')
    """
    nouns = set()
    for item in prompts.values():
        if isinstance(item, Mapping):
            # Token ids and masks are integers; sounds and precomputed states have no common name.
            numbers = {name: torch.as_tensor(native(value)) for name, value in item.items() if name != "pixel_values"}
            kinds = {"input" if value.is_floating_point() else "text" for value in numbers.values()}
            kinds |= {"image"} if "pixel_values" in item else set()
            nouns.add(kinds.pop() if len(kinds) == 1 else "input")
        else:
            nouns.add("image" if is_image(item) else "input" if is_real(item) else "text")
    return nouns.pop() if len(nouns) == 1 else "input"


def noun_in(trace: xr.Dataset) -> str:
    """Return the noun recorded in a trace; "text" in traces of earlier versions, which have none."""
    return str(trace.attrs.get("prompt_noun", "text"))


def token_conditions(tokenizer: Any | None, given: Sequence[Prepared]) -> dict[str, float | int]:
    """Return attributes on the tokens of a trace; empty without a tokenizer or without token ids.

    These are ``unknown_token_share``, the share of unknown tokens among all but the other special tokens, and
    ``doubled_bos``, the number of prompts that begin with two BOS tokens.

    Args:
        tokenizer: The network's own.
        given: The prompts as arguments of the forward pass.
    """
    ids = [read.flatten() for prompt in given if (read := ids_in(prompt.inputs)) is not None]
    if tokenizer is None or not ids:
        return {}
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    unknown, bos = getattr(tokenizer, "unk_token_id", None), getattr(tokenizer, "bos_token_id", None)
    others = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "sep", "cls", "mask"))
    unknown = None if unknown in others else unknown  # it doubles as another special token
    counted = [
        number for prompt_ids in ids for number in prompt_ids.tolist() if number == unknown or number not in special
    ]
    doubled = sum(bos is not None and prompt_ids[:2].tolist() == [bos, bos] for prompt_ids in ids)
    share = counted.count(unknown) / len(counted) if counted and unknown is not None else 0.0
    return {"unknown_token_share": float(share), "doubled_bos": int(doubled)}


def tokens_in_words(attrs: Mapping[Any, Any]) -> str:
    """Describe the tokens of a trace, for its conditions.

    >>> tokens_in_words({"tokenization": "own", "unknown_token_share": 0.25, "doubled_bos": 0})
    "the model's own tokenizer; 25 % of the tokens are unknown to it"
    """
    if attrs["tokenization"] != "own":
        return str(attrs["tokenization"])
    words = "the model's own tokenizer"
    special = attrs.get("special_tokens", ADDED)
    words += "" if special == ADDED else f"; special tokens are {special}"
    words += f"; windows of at most {attrs['window']} tokens that overlap by half" if "window" in attrs else ""
    share, doubled = float(attrs.get("unknown_token_share", 0.0)), int(attrs.get("doubled_bos", 0))
    words += f"; {percent(share)} of the tokens are unknown to it" if share > 0 else ""
    return words + (f"; {doubled} of the texts {_begin(doubled)} with two BOS tokens" if doubled else "")


def token_finding(trace: xr.Dataset) -> Finding | None:
    """Return a finding on many unknown tokens or doubled BOS tokens; None if there are neither."""
    share, doubled = float(trace.attrs.get("unknown_token_share", 0.0)), int(trace.attrs.get("doubled_bos", 0))
    noun, sentences = noun_in(trace), []
    if share > MANY_UNKNOWN:
        sentences.append(
            f"The tokenizer does not know {percent(share)} of the tokens and maps them to one id, so the {noun}s look "
            f"more alike than they are. Use {noun}s of the kind that the network was trained on."
        )
    if doubled:
        sentences.append(
            f"{doubled} of {trace.sizes['prompt']} {noun}s {_begin(doubled)} with two BOS tokens, which networks are "
            "not trained on. Remove the one in the text, or the one that the tokenizer adds."
        )
    values: dict[str, float | int] = {"unknown_token_share": share, "doubled_bos": doubled}
    count, documents = trace.sizes["prompt"], int(trace.attrs.get("documents", trace.sizes["prompt"]))
    if documents < count:
        values |= {"windows": count, "documents": documents}
        sentences.append(
            f"The {count} windows come from {plural(documents, 'document')} and overlap by half, so they are not "
            "independent. The confidence intervals are too narrow, and the common share includes what windows of one "
            "document share. For results about a population, use a dozen or more different documents."
        )
    if not sentences:
        return None
    return Finding(" ".join(sentences), "shares", values)


def _begin(count: int) -> str:
    return "begins" if count == 1 else "begin"


Repetition = Literal["same", "contained", "beginning"]


_BEGIN, _END, _BETWEEN = "\x1d", "\x1e", "\x1f"
"""White space to Python, so that no unit of a text contains them."""


@dataclass(frozen=True)
class RepeatedTexts:
    """Two prompts, one of which repeats the other.

    Attributes:
        names: Their names; of "contained" the one that is contained first, otherwise in the order of the prompts.
        how: "same" (but for white space and upper case), "contained", or "beginning" (more than half of the shorter).
        text: A sentence without its full stop.
    """

    names: tuple[str, str]
    how: Repetition
    text: str


def repeated_texts(prompts: Mapping[str, Any]) -> tuple[RepeatedTexts, ...]:
    r"""Return the prompts that are equal or nearly equal; each is paired with at most one other.

    Texts are compared by words, signs and letters of scripts without capitals (Chinese, Thai, …), or by token ids,
    ignoring white space. Other prompts (images, arguments by name) are compared only as a whole.

    Args:
        prompts: By name, as `tokendynamics.trace` takes them.

    Raises:
        ArgumentTypeError: No mapping of names to prompts.

    >>> [pair.text for pair in repeated_texts({"a": "A cat sat.", "b": "a cat\nsat.", "c": "A dog ran."})]
    ['texts “a” and “b” are the same and count as one observation']
    """
    check_open(prompts, "prompts")
    if not isinstance(prompts, Mapping):
        raise ArgumentTypeError("prompts", "prompts by name", shown(prompts))
    names, noun = list(prompts), noun_of(prompts)
    keys = [_BETWEEN + "".join(unit + _BETWEEN for unit in _units(item)) for item in prompts.values()]
    whole = [_BEGIN + key + _END for key in keys]
    everything, starts = "".join(whole), list(accumulate(map(len, whole), initial=0))[:-1]
    pairs: dict[frozenset[int], RepeatedTexts] = {}
    for place, key in enumerate(keys):
        for how, pattern in _patterns(key):
            others = (bisect_right(starts, where) - 1 for where in _occurrences(everything, pattern))
            other = next((candidate for candidate in others if candidate != place), None)
            if other is None:
                continue
            pair = (place, other) if how == "contained" else (min(place, other), max(place, other))
            if how == "beginning" and keys[other] in key:
                pair, how = (other, place), "contained"
            first, second = names[pair[0]], names[pair[1]]
            text = f"{noun}s “{first}” and “{second}” {_WORDS[how]}"
            pairs.setdefault(frozenset(pair), RepeatedTexts((first, second), how, text))
            break
    return tuple(pairs.values())


def _patterns(key: str) -> Iterator[tuple[Repetition, str]]:
    """Yield what another prompt has if it repeats this one, the plainest first; none for an empty text."""
    if key == _BETWEEN:
        return
    yield "same", _BEGIN + key + _END
    yield "contained", key
    units = key[1:-1].split(_BETWEEN)
    yield "beginning", _BEGIN + _BETWEEN + "".join(unit + _BETWEEN for unit in units[: len(units) // 2 + 1])


def _occurrences(text: str, pattern: str) -> Iterator[int]:
    where = text.find(pattern)
    while where >= 0:
        yield where
        where = text.find(pattern, where + 1)


def _units(item: Any) -> list[str]:
    """Return what is compared, one after the other."""
    if isinstance(item, Prepared):
        return _units(item.inputs)
    if isinstance(item, str):
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", item).casefold())
        # In a script without capitals a word is taken letter by letter: it may be many words.
        words = _UNIT.findall(folded)
        alone = [any(unicodedata.category(letter) == "Lo" for letter in word) for word in words]
        return [part for word, by_letter in zip(words, alone, strict=True) for part in (word if by_letter else [word])]
    ids = item.get("input_ids") if isinstance(item, Mapping) and set(item) <= {"input_ids", "attention_mask"} else item
    numbers = _ids(ids)
    return [f"#{_digest(item)}"] if numbers is None else [f"#{number}" for number in numbers]


def _ids(item: Any) -> list[int] | None:
    if (
        isinstance(item, Sequence)
        and not isinstance(item, str | bytes)
        and all(isinstance(token, int) for token in item)
    ):
        return list(item)
    if not isinstance(item, Tensor | np.ndarray):
        return None
    array = np.asarray(item.detach().cpu().numpy() if isinstance(item, Tensor) else item)
    array = array[0] if array.ndim == 2 and len(array) == 1 else array
    return array.tolist() if array.ndim == 1 and array.dtype.kind in "iu" else None


def _digest(item: Any) -> str:
    """Return a name for the content of what is neither text nor ids."""
    if isinstance(item, Path):
        return sha256(str(item.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    if isinstance(item, Mapping):
        return sha256(repr(sorted((str(name), _digest(value)) for name, value in item.items())).encode()).hexdigest()
    if not isinstance(item, Tensor) and not hasattr(item, "__array_interface__"):  # arrays and PIL's images
        return f"object {id(item)}"
    values = item.detach().cpu().double().numpy() if isinstance(item, Tensor) else np.asarray(item)
    return sha256(f"{values.shape} {values.dtype} ".encode() + values.tobytes()).hexdigest()
