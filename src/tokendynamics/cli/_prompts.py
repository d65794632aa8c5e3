"""The prompts of a command: texts on the command line, files with one prompt, and files with one prompt a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import click

from tokendynamics.cli._signature import Option, whole
from tokendynamics.numerics.printable import printable, shortened

_MOST_BYTES = 16 << 20
"""More text than the context of any model holds; a device such as /dev/zero never ends."""

_STDIN = Path("-")
_TEXT_FILE, _PROMPTS = "--text-file", "--prompts"
_JSON_LINES = (".jsonl", ".ndjson")
_WANTED = 'expected a string or an object with "text"'
_MESSAGES = 'expected an array of messages or an object with "messages"'


_TextFiles = Annotated[
    tuple[Path, ...], Option(type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The texts of a command.

    Attributes:
        prompts: A text to trace through the model. May be repeated.
        text_files: A UTF-8 file with one prompt; "-" reads standard input. May be repeated.
        prompt_files: A UTF-8 file with one prompt a line, empty lines skipped; or JSON Lines: strings, or objects with
            "text" and optionally "name". "-" reads standard input. May be repeated.
        chat: Read the lines of --prompts as conversations, which the model's chat template renders: JSON arrays of
            {"role", "content"}, or objects with such an array as "messages".
    """

    prompts: Annotated[tuple[str, ...], Option("--prompt")] = ()
    text_files: Annotated[_TextFiles, Option(_TEXT_FILE)] = ()
    prompt_files: Annotated[_TextFiles, Option(_PROMPTS)] = ()
    chat: bool = False


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """How texts become tokens, named as the arguments of `tokendynamics.diagnose`.

    Attributes:
        window: Cut longer texts into windows of at most N tokens, which overlap by half.
        special_tokens: Whether the tokenizer adds its special tokens to each text or window.
    """

    window: Annotated[int | None, Option(type=whole(2), metavar="N")] = None
    special_tokens: bool = True


def named_prompts(
    prompts: Sequence[str], text_files: Sequence[Path], prompt_files: Sequence[Path] = (), chat: bool = False
) -> dict[str, Any] | None:
    """Return the prompts in order; None if there are none.

    A file is called by its name, or by its path where two have the same name; a line by its file and number, or by its
    own name.

    Raises:
        click.BadParameter: A file that is given twice, cannot be read as text, is too long or holds no prompt; a line
            that is not a prompt; two prompts of one name.
        click.UsageError: Texts where conversations are expected.
    """
    if chat and (prompts or text_files or not prompt_files):
        raise click.UsageError("--chat needs conversations: pass --prompts FILE alone, one conversation a line")
    files = [(path, _TEXT_FILE) for path in text_files] + [(path, _PROMPTS) for path in prompt_files]
    paths, names = [path for path, _ in files], [path.name for path, _ in files]
    named: dict[str, Any] = {f"prompt {number}": text for number, text in enumerate(prompts, start=1)}
    for path, option in files:
        if paths.count(path) > 1:
            raise _refused(option, f"{'standard input' if path == _STDIN else path} is given twice")
        taken = path.name in named or names.count(path.name) > 1
        name = "standard input" if path == _STDIN else str(path) if taken else path.name
        for prompt in [_Prompt(name, _text(path))] if option == _TEXT_FILE else _lines(path, name, chat):
            if prompt.name in named:
                raise _refused(option, f"{prompt.place or path} has the name of another prompt, {prompt.name!r}")
            named[prompt.name] = prompt.text
    return named or None


@dataclass(frozen=True)
class _Prompt:
    """A prompt, and its place if it is a line of a file."""

    name: str
    text: Any
    place: str = ""


def _text(path: Path) -> str:
    text = _decoded(path, _TEXT_FILE)
    if not text.strip():
        raise _refused(_TEXT_FILE, f"{path} is empty")
    return text


def _lines(path: Path, name: str, chat: bool = False) -> Iterator[_Prompt]:
    """Yield the prompts of a file with one a line."""
    # A byte order mark is neither text nor JSON.
    lines = enumerate(_decoded(path, _PROMPTS).removeprefix("\ufeff").split("\n"), start=1)
    filled = {number: line for number, line in lines if line.strip()}
    if not filled:
        raise _refused(_PROMPTS, f"{path} has no line with a prompt")
    kinds = list | dict if chat else str | dict
    values: dict[int, Any] = {}
    errors: dict[int, str] = {}
    for at, line in filled.items():
        try:
            value = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            errors[at] = _why_broken(error)
            continue
        if isinstance(value, kinds):
            values[at] = value
        else:
            errors[at] = f"it is {_kind(value)}"
    if not chat and not values and path.suffix.lower() not in _JSON_LINES:
        yield from (_Prompt(f"{name}:{number}", line) for number, line in filled.items())
        return
    for number in filled:
        place = f"line {number} of {path}"
        if number in errors:
            other = f", but line {min(values)} is: write all lines as JSON or none" if values else ""
            wanted = "array or object" if chat else "string or object"
            raise _refused(_PROMPTS, f"{place} is not a JSON {wanted} ({errors[number]}){other}")
        text, given = (_conversation if chat else _of_json)(values[number], place)
        yield _Prompt(given or f"{name}:{number}", text, place)


class _RepeatedKeyError(ValueError):
    """A key that an object has twice: of two texts one would be lost."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, unless a key is there twice.

    Raises:
        _RepeatedKeyError: It is.
    """
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise _RepeatedKeyError(shortened(repr(key), 100))
        entries[key] = value
    return entries


def _why_broken(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    if isinstance(error, _RepeatedKeyError):
        return f"it has {error} twice"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number too long"


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds = {list: "an array", dict: "an object", str: "a string"}
    return kinds.get(type(value), "a number")


def _of_json(value: str | dict[str, Any], place: str) -> tuple[str, str | None]:
    """Return text and name of a line of JSON."""
    text, name = (value, None) if isinstance(value, str) else (value.get("text"), value.get("name"))
    if not isinstance(text, str):
        came = "one without it" if text is None else f'"text" that is {_kind(text)}'
        raise _refused(_PROMPTS, f"{place}: {_WANTED}, got {came}")
    if not text.strip():
        raise _refused(_PROMPTS, f"{place} is an empty text")
    return text, _checked_name(name, place, text)


def _conversation(value: list[Any] | dict[str, Any], place: str) -> tuple[list[Any], str | None]:
    """Return messages and name of a line of JSON."""
    messages, name = (value, None) if isinstance(value, list) else (value.get("messages"), value.get("name"))
    if not isinstance(messages, list):
        came = "one without it" if messages is None else f'"messages" that is {_kind(messages)}'
        raise _refused(_PROMPTS, f"{place}: {_MESSAGES}, got {came}")
    if not messages:
        raise _refused(_PROMPTS, f"{place} has no message")
    for number, message in enumerate(messages, start=1):
        for key in ("role", "content"):
            text = message.get(key) if isinstance(message, dict) else None
            if not isinstance(text, str):
                raise _refused(_PROMPTS, f'{place}: expected message {number} to have a text as "{key}"')
            _checked_name(None, place, text)
    return messages, _checked_name(name, place)


def _checked_name(name: Any, place: str, text: str = "") -> str | None:
    """Return the name of a prompt, if it and its text can be printed."""
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise _refused(_PROMPTS, f'{place}: expected a "name" that is a text, got {shortened(repr(name), 40)}')
    for part in (text, name or ""):
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refused(_PROMPTS, f"{place} has half of a surrogate pair, which is not a character") from error
    return name


def _decoded(path: Path, option: str) -> str:
    """Return the text of a file with line ends as Python's text files give them."""
    data = _bytes(path, option)
    if len(data) > _MOST_BYTES:
        raise _refused(option, f"{path} is longer than {_MOST_BYTES:,} bytes, more than any model reads at once")
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"{path} is not UTF-8 text ({error.reason} at byte {error.start}, line {line})"
        raise _refused(option, message) from error


def _bytes(path: Path, option: str) -> bytes:
    """Return the beginning of a file, at most one byte more than is allowed."""
    if path == _STDIN:
        return _beginning(sys.stdin.buffer)
    if not path.is_file():
        advice = f"pass its content through standard input: {option} - < FILE"
        raise _refused(option, f"{path} is not a regular file; {advice}")
    try:
        with path.open("rb") as file:
            return _beginning(file)
    except OSError as error:
        raise _refused(option, f"{path} cannot be read ({error.strerror})") from error


def _beginning(file: BinaryIO) -> bytes:
    return file.read(_MOST_BYTES + 1)


def _refused(option: str, message: str) -> click.BadParameter:
    return click.BadParameter(printable(message), param_hint=option)
