"""Numbers on the command line, at their very bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from tokendynamics.cli import commands
from tokendynamics.cli._signature import ShareType, whole


@pytest.mark.parametrize("text", ["1e-300", "0.999999"])
def test_a_share_lies_between_0_and_1(text: str) -> None:
    assert ShareType().convert(text, None, None) == float(text)


@pytest.mark.parametrize("text", ["0", "1", "1.2", "-0.1", "nan", "inf", "half"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        ShareType().convert(text, None, None)


def test_whole_numbers_have_64_bits() -> None:
    assert whole().convert(str(2**63 - 1), None, None) == 2**63 - 1
    assert whole().convert(str(1 - 2**63), None, None) == 1 - 2**63
    for text in (str(2**63), str(-(2**63)), "1.5", "9" * 400):
        with pytest.raises(click.BadParameter):
            whole().convert(text, None, None)


def _thread_options(group: click.Group, name: str = "") -> Iterator[tuple[str, click.Option]]:
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _thread_options(command, f"{word} ")
        else:
            yield from ((name + word, option) for option in command.params if option.name == "threads")


@pytest.mark.parametrize(("command", "option"), list(_thread_options(commands)))
def test_one_thread_is_the_least_and_what_is_taken_unasked(command: str, option: click.Option) -> None:
    assert option.type.convert("1", None, None) == 1
    with pytest.raises(click.BadParameter):
        option.type.convert("0", None, None)
    assert not isinstance(option.default, int) or option.default == 1, command


def _helped(group: click.Group, name: str = "tokendynamics") -> Iterator[tuple[str, str]]:
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _helped(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command.get_help(click.Context(command, info_name=word))


HELP = dict(_helped(commands))


@pytest.mark.parametrize("command", HELP)
def test_help_shows_the_bounds_that_matter_and_no_bound_of_64_bits(command: str) -> None:
    words = HELP[command]
    assert not re.search(r"\d{9}|None", words)
    assert "--threads" not in words or "x>=1" in words or "1<=x" in words
