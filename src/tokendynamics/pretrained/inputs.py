"""What a user may pass as input of a network: texts with options, token ids, images, arguments by name."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_count, native
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_fields
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained.encoding import (
    Encoding,
    check_length,
    check_not_empty,
    encode_bytes,
    no_tokenizer,
    pieces_of,
)
from tokendynamics.pretrained.forward_arguments import Prepared, as_token_ids, checked_ids
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
            raise ArgumentTypeError("texts", "texts without options", "Texts", "give all options at once")
        if self.window is not None:
            as_count(self.window, "window", 2)
        if self.chat and not self.special_tokens:
            advice = "the chat template writes the special tokens: change the template"
            raise ArgumentValueError("special_tokens", "True beside chat=True", "False", advice)

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
            raise ArgumentTypeError(name, "a text", type(item).__name__, advice)
        text = _rendered(ckpt, item, name) if self.chat else item
        check_not_empty(name, text)
        whole = _alone(ckpt, text, name)
        if not whole.tokens:
            raise ArgumentValueError(name, "a text of at least one token", "none")
        ids: list[int] = whole.ids[0].tolist()
        before, after = _added_around(ckpt, text, ids) if self.special_tokens and not self.chat else ([], [])
        spans = [(0, len(ids))] if self.window is None else windows_of(len(ids), self._room(ckpt, before + after))
        pieces = {}
        for number, (start, end) in enumerate(spans, start=1):
            called = name if len(spans) == 1 else f"{name}, window {number} of {len(spans)}"
            written = text if len(spans) == 1 else _text_of(ckpt, whole, start, end)
            tokens = [*pieces_of(before, ckpt.tokenizer), *whole.tokens[start:end], *pieces_of(after, ckpt.tokenizer)]
            row = torch.tensor([[*before, *ids[start:end], *after]], dtype=torch.long)
            pieces[called] = Prepared({ckpt.ids_name or "input_ids": row}, written, tokens)
        return pieces

    def _room(self, ckpt: Checkpoint, added: list[int]) -> int:
        """Return how many tokens of a text go into a window."""
        window, context = self.window or 0, ckpt.architecture.context
        if context is not None and window > context:
            raise ArgumentValueError("window", f"at most {context} tokens (the model's context)", window)
        if window - len(added) < 2:
            advice = f"the tokenizer adds {len(added)} to each window; special_tokens=False leaves them out"
            raise ArgumentValueError("window", f"at least {len(added) + 2} tokens", window, advice)
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
    with refusing(lambda words: CheckpointError("tokenizer", "one that can encode", words)), silenced():
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
    raise CheckpointError("tokenizer", wanted, came, "pass special_tokens=False with window=")


def _rendered(ckpt: Checkpoint, conversation: Any, name: str) -> str:
    """Return a conversation as the tokenizer's chat template writes it."""
    messages = _checked_messages(conversation, name)
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        ckpt.encode("a", truncate=True, argument=name)  # refuses one that cannot be read in its own words
        raise CheckpointError(no_tokenizer(ckpt.name))
    if not getattr(tokenizer, "chat_template", None):
        advice = "pass texts without chat=True, or set tokenizer.chat_template"
        raise CheckpointError(ckpt.name, "a tokenizer with a chat template", "one without", advice)

    def refusal(words: str) -> ArgumentValueError:
        return ArgumentValueError(name, "messages that the chat template takes", words)

    with refusing(refusal), silenced():
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)


def _checked_messages(conversation: Any, name: str) -> list[dict[str, Any]]:
    messages = conversation.get("messages") if isinstance(conversation, Mapping) else conversation
    if not isinstance(messages, list | tuple):
        raise ArgumentTypeError(name, _MESSAGES, type(messages).__name__)
    if not messages:
        raise ArgumentValueError(name, "at least one message", "none")
    for number, message in enumerate(messages, start=1):
        where = f"{name}: message {number}"
        if not isinstance(message, Mapping):
            raise ArgumentTypeError(where, 'a mapping with "role" and "content"', shown(message))
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                came = shown(message[key]) if key in message else "none"
                raise ArgumentTypeError(where, f'a text as "{key}"', came)
    return [dict(message) for message in messages]


def _text_of(ckpt: Checkpoint, whole: Encoding, start: int, end: int) -> str:
    """Return some of the tokens of a text as text."""
    if ckpt.tokenizer is None:
        return "".join(whole.tokens[start:end])
    with refusing(lambda words: CheckpointError("tokenizer", "one that can decode", words)), silenced():
        return str(ckpt.tokenizer.decode(whole.ids[0, start:end].tolist()))


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

MOST_PIXELS = 89_478_485
"""Of an image: 256 MiB in three colours, from which on Pillow warns of small files that unpack to much."""


def opened_image(source: str | Path | BytesIO, argument: str, name: str) -> Any:
    """Return an image in three colours, as Pillow has it.

    Args:
        source: A file, or its content.
        argument: What an error calls it.
        name: Of the image, for the message.

    Raises:
        ArgumentValueError: No regular file (a pipe would be waited for), or more pixels than `MOST_PIXELS`.
        Exception: Whatever Pillow raises of what it cannot read.
    """
    import warnings

    from PIL import Image

    if not isinstance(source, BytesIO):
        check_regular([source], argument)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below with the number
        image = Image.open(source)
    with image:
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            came = f"{image.width:,} × {image.height:,} = {pixels:,} in {name}"
            raise ArgumentValueError(argument, f"images of at most {MOST_PIXELS:,} pixels", came, "scale it")
        return image.convert("RGB")


def check_regular(paths: Iterable[str | Path], argument: str) -> None:
    """Refuse what is no regular file, such as a named pipe or a device, without opening it; links are followed.

    Raises:
        ArgumentValueError: The first such path.
    """
    for path in paths:
        try:
            regular = stat.S_ISREG(Path(path).stat().st_mode)
        except OSError:  # nothing there, or a link that leads nowhere: opening it says what is wrong
            continue
        if not regular:
            raise ArgumentValueError(argument, "images that are regular files", str(path), "remove it")


def images_in(folder: Path) -> list[Path]:
    """Return the images of a folder by name.

    Raises:
        ArgumentValueError: There are none, or one of them is no regular file.
    """
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise ArgumentValueError("texts", f"images in {folder}", "none")
    check_regular(paths, "texts")
    return paths


_WANTED = "a text, token ids, an image, or the arguments of the forward pass by name"


def prepared(ckpt: Checkpoint, item: Any, *, truncate: bool = False, argument: str = "input") -> Prepared:
    """Return one input as arguments of a checkpoint's forward pass.

    Args:
        ckpt: From `load`.
        item: A text; token ids (whole numbers, one axis); an image (a path, a PIL image, or an array of rows, columns
            and three colours), for the checkpoint's own image processor; an array of real numbers (a series, a
            waveform, pixels) for a live network of one such argument; or arguments by name, for one input, with or
            without an axis of inputs. Or one text or conversation with options, or what came of it.
        truncate: Whether a text or token ids longer than the context are cut.
        argument: What an error calls the input.

    Raises:
        ArgumentTypeError: Nothing of these, or nothing that this network reads.
        ArgumentValueError: An empty text, or one longer than the context.
        CheckpointError: There is no tokenizer or image processor, or it fails.
    """
    if isinstance(item, Texts):
        return prepared(ckpt, _only(ckpt, item, argument), truncate=truncate, argument=argument)
    if isinstance(item, Prepared):
        (ids,) = item.inputs.values()
        most = ckpt.architecture.context if truncate else None
        check_length(argument, ids[:, :most].shape[1], ckpt.architecture.context)
        ids = checked_ids(ids[:, :most], ckpt.architecture, argument)
        return Prepared({ckpt.ids_name or "input_ids": ids}, item.text, (item.tokens or [])[:most])
    if isinstance(item, str):
        encoding = ckpt.encode(item, truncate=truncate, argument=argument)
        return Prepared({ckpt.ids_name or "input_ids": encoding.ids}, item, encoding.tokens)
    if isinstance(item, Mapping):
        return _by_name(ckpt, item, argument)
    ids = as_token_ids(item, argument)
    if ids is not None:
        name = ckpt.ids_name
        if name is None:
            wanted, advice = (
                "the arguments of its forward pass, by name in a mapping",
                "this network reads no token ids",
            )
            raise ArgumentTypeError(argument, wanted, "token ids", advice)
        most = ckpt.architecture.context
        ids = checked_ids(ids[:most] if truncate else ids, ckpt.architecture, argument)
        return Prepared({name: ids}, "token ids", pieces_of(ids.flatten().tolist(), ckpt.tokenizer))
    if (array := _as_only_argument(ckpt, item, argument)) is not None:
        return Prepared(array, "an array", None)
    if is_image(item):
        text = item.name if isinstance(item, Path) else "an image"
        return Prepared(_pixels(ckpt, item, argument), text, None)
    raise ArgumentTypeError(argument, _WANTED, type(item).__name__)


def _by_name(ckpt: Checkpoint, item: Mapping[Any, Any], argument: str) -> Prepared:
    """Return arguments by name as tensors; those that lack the axis of inputs get one."""
    inputs: dict[str, Tensor] = {}
    for name, value in item.items():
        try:
            inputs[str(name)] = torch.as_tensor(native(value))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            where, wanted = f"{argument}[{shown(name)}]", "a tensor, or an array of numbers"
            raise ArgumentTypeError(where, wanted, shown(value)) from error
    known = [name for name in inputs if name in ckpt.example]
    lacking = [name for name in known if inputs[name].ndim == ckpt.example[name].ndim - 1]
    if lacking and len(lacking) < len(known):
        whole = next(name for name in known if name not in lacking)
        wanted, came = "all arguments with an axis of inputs, or none", f"{whole} with one and {lacking[0]} without"
        raise ArgumentValueError(argument, wanted, came)
    inputs |= {name: inputs[name].unsqueeze(0) for name in lacking}
    ids = inputs.get("input_ids")
    if ids is None or ckpt.architecture.vocabulary is None:
        return Prepared(inputs, "arguments by name", None)
    ids = inputs["input_ids"] = checked_ids(ids, ckpt.architecture, argument)
    return Prepared(inputs, "arguments by name", pieces_of(ids.flatten().tolist(), ckpt.tokenizer))


def _as_only_argument(ckpt: Checkpoint, item: Any, argument: str) -> dict[str, Tensor] | None:
    """Return real numbers as the only argument of a network that takes such; None for anything else."""
    if not is_real(item) or len(ckpt.example) != 1 or (is_image(item) and ckpt.image_processor is not None):
        return None
    ((name, example),) = ckpt.example.items()
    if not example.is_floating_point():
        return None
    values = (item if isinstance(item, Tensor) else torch.from_numpy(native(np.asarray(item)))).to(ckpt.dtype)
    values = values.unsqueeze(0) if values.ndim == example.ndim - 1 else values
    if values.ndim != example.ndim or len(values) != 1:
        wanted, came = f"one {name}, an array of {example.ndim - 1} axes", f"shape {tuple(item.shape)}"
        raise ArgumentValueError(argument, wanted, came, "pass several inputs as a list")
    if name == "pixel_values" and values.shape[1] != example.shape[1]:
        wanted, came = f"pixels of {example.shape[1]} channels, which come first", f"shape {tuple(item.shape)}"
        raise ArgumentValueError(argument, wanted, came)
    return {name: values}


def is_real(item: Any) -> bool:
    """Whether a prompt is an array of real numbers."""
    if isinstance(item, Tensor):
        return item.is_floating_point() and not item.is_meta and not item.is_sparse
    return isinstance(item, np.ndarray) and not isinstance(item, np.ma.MaskedArray) and item.dtype.kind == "f"


def _only(ckpt: Checkpoint, texts: Texts, argument: str) -> Any:
    """Return the only prompt of texts with options."""
    if texts.plain:
        return texts.texts
    pieces = texts.pieces(ckpt, texts.texts, argument)
    if len(pieces) > 1:
        raise ArgumentValueError(argument, "one prompt", f"{len(pieces)} windows", "pass a larger window")
    return next(iter(pieces.values()))


def is_image(item: Any) -> bool:
    """Whether a prompt is an image: a path, one of Pillow's images, or an array of three axes with three channels.

    Real numbers whose first axis has length 1 are one input of three features.
    """
    if isinstance(item, Path) or type(item).__module__.startswith("PIL."):
        return True
    if not isinstance(item, Tensor | np.ndarray) or item.ndim != 3 or (is_real(item) and item.shape[0] == 1):
        return False
    return 3 in (item.shape[0], item.shape[-1])


def _pixels(ckpt: Checkpoint, item: Any, argument: str) -> dict[str, Tensor]:
    if ckpt.architecture.vocabulary is not None:
        raise ArgumentTypeError(argument, "a text or token ids", "an image", "this network reads no images")
    processor = ckpt.image_processor
    if processor is None:
        advice = "add preprocessor_config.json to the folder, or pass the pixels by name"
        raise CheckpointError(ckpt.name, "an image processor beside the weights", "none", advice)

    def refusal(words: str) -> ArgumentValueError:
        return ArgumentValueError(argument, "an image that can be read", words)

    with refusing(refusal), silenced():
        image = opened_image(item, argument, item.name) if isinstance(item, Path) else item
        return dict(processor(image, return_tensors="pt"))
