"""The prompts of a command: texts on the command line, files with one prompt, and files with one prompt a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import click

from tokendynamics.cli._signature import Option
from tokendynamics.numerics.printable import printable, shortened

_MOST_BYTES = 16 << 20
"""More text than the context of any model holds; a device such as /dev/zero never ends."""

_STDIN = Path("-")
_TEXT_FILE, _PROMPTS = "--text-file", "--prompts"
_JSON_LINES = (".jsonl", ".ndjson")
_WANTED = 'expected a string or an object with "text"'


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
    """

    prompts: Annotated[tuple[str, ...], Option("--prompt")] = ()
    text_files: Annotated[_TextFiles, Option(_TEXT_FILE)] = ()
    prompt_files: Annotated[_TextFiles, Option(_PROMPTS)] = ()


def named_prompts(
    prompts: Sequence[str], text_files: Sequence[Path], prompt_files: Sequence[Path] = ()
) -> dict[str, str] | None:
    """Return the prompts in order; None if there are none.

    A file is called by its name, or by its path where two have the same name; a line by its file and number, or by its
    own name.

    Raises:
        click.BadParameter: A file that is given twice, cannot be read as text, is too long or holds no prompt; a line
            that is not a prompt; two prompts of one name.
    """
    files = [(path, _TEXT_FILE) for path in text_files] + [(path, _PROMPTS) for path in prompt_files]
    paths, names = [path for path, _ in files], [path.name for path, _ in files]
    named = {f"prompt {number}": text for number, text in enumerate(prompts, start=1)}
    for path, option in files:
        if paths.count(path) > 1:
            raise _refused(option, f"{'standard input' if path == _STDIN else path} is given twice")
        taken = path.name in named or names.count(path.name) > 1
        name = "standard input" if path == _STDIN else str(path) if taken else path.name
        for prompt in [_Prompt(name, _text(path))] if option == _TEXT_FILE else _lines(path, name):
            if prompt.name in named:
                raise _refused(option, f"{prompt.place or path} has the name of another prompt, {prompt.name!r}")
            named[prompt.name] = prompt.text
    return named or None


@dataclass(frozen=True)
class _Prompt:
    """A prompt, and its place if it is a line of a file."""

    name: str
    text: str
    place: str = ""


def _text(path: Path) -> str:
    text = _decoded(path, _TEXT_FILE)
    if not text.strip():
        raise _refused(_TEXT_FILE, f"{path} is empty")
    return text


def _lines(path: Path, name: str) -> Iterator[_Prompt]:
    """Yield the prompts of a file with one a line."""
    # A byte order mark is neither text nor JSON.
    lines = enumerate(_decoded(path, _PROMPTS).removeprefix("\ufeff").split("\n"), start=1)
    filled = {number: line for number, line in lines if line.strip()}
    if not filled:
        raise _refused(_PROMPTS, f"{path} has no line with a prompt")
    values, errors = _as_json(filled)
    if not values and path.suffix.lower() not in _JSON_LINES:
        yield from (_Prompt(f"{name}:{number}", line) for number, line in filled.items())
        return
    for number in filled:
        place = f"line {number} of {path}"
        if number in errors:
            other = f", but line {min(values)} is: write all lines as JSON or none" if values else ""
            raise _refused(_PROMPTS, f"{place} is not a JSON string or object ({errors[number]}){other}")
        text, given = _of_json(values[number], place)
        yield _Prompt(given or f"{name}:{number}", text, place)


def _as_json(lines: dict[int, str]) -> tuple[dict[int, Any], dict[int, str]]:
    """Return by number the lines that are a JSON string or object, and the reasons of the others."""
    values: dict[int, Any] = {}
    errors: dict[int, str] = {}
    for number, line in lines.items():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            errors[number] = _why_broken(error)
            continue
        if isinstance(value, str | dict):
            values[number] = value
        else:
            errors[number] = f"it is {_kind(value)}"
    return values, errors


def _why_broken(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number too long"


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "an array" if isinstance(value, list) else "an object" if isinstance(value, dict) else "a number"


def _of_json(value: str | dict[str, Any], place: str) -> tuple[str, str | None]:
    """Return text and name of a line of JSON."""
    text, name = (value, None) if isinstance(value, str) else (value.get("text"), value.get("name"))
    if not isinstance(text, str):
        came = "one without it" if text is None else f'"text" that is {_kind(text)}'
        raise _refused(_PROMPTS, f"{place}: {_WANTED}, got {came}")
    if not text.strip():
        raise _refused(_PROMPTS, f"{place} is an empty text")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise _refused(_PROMPTS, f'{place}: expected a "name" that is a text, got {shortened(repr(name), 40)}')
    for part in (text, name or ""):
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refused(_PROMPTS, f"{place} has half of a surrogate pair, which is not a character") from error
    return text, name


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
