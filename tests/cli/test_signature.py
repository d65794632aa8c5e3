"""Commands made of functions: every parameter is an argument or an option, and every option says what it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

from tokendynamics.cli import commands
from tokendynamics.cli._signature import GLOSSARY, Option, Positive, command


@dataclass(frozen=True, kw_only=True)
class Base:
    """What several commands share.

    Attributes:
        loud: Whether to
            shout.  [default: as the room
            asks]
    """

    loud: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Manner(Base):
    """More of it.

    Attributes:
        tone: How.
        words: What is said. May be repeated.
    """

    tone: Literal["mild", "sharp"] = "mild"
    words: Annotated[tuple[str, ...], Option("--word")] = ()


@command("greet", epilog="Examples: none")
def greet(
    who: tuple[str, ...], *, times: Positive = 1, seed: int = 0, out: Path, manner: Manner, dry: bool = False
) -> None:
    """Greet WHO.

    A second paragraph.

    Options:
        times: How often.
        seed: Of the draw.
        out: Where to.
        dry: Whether nothing is written.
    """
    click.echo(repr((who, times, seed, out, manner, dry)))


def called(*arguments: str) -> click.testing.Result:
    return CliRunner().invoke(greet, arguments)


def test_values_reach_the_function_by_name_and_type() -> None:
    result = called(
        "a", "b", "--times", "3", "--out", "here", "--tone", "sharp", "--word", "x", "--word", "y", "--loud"
    )
    manner = Manner(loud=True, tone="sharp", words=("x", "y"))
    assert result.output == f"{(('a', 'b'), 3, 0, Path('here'), manner, False)!r}\n"


def test_what_is_left_out_is_what_the_signature_says() -> None:
    assert called("a", "--out", "here").output == f"{(('a',), 1, 0, Path('here'), Manner(), False)!r}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing argument 'WHO...'"),
        (("a",), "Missing option '--out'"),
        (("a", "--out", "x", "--times", "0"), "0 is not in the range x>=1"),
        (("a", "--out", "x", "--seed", str(2**63)), "at most 64 bits"),
        (("a", "--out", "x", "--tone", "loud"), "'loud' is not one of 'mild', 'sharp'"),
        (("a", "--out", "x", "--dry", "--no-dry"), "No such option"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[str, ...], words: str) -> None:
    result = called(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_help_shows_defaults_and_the_texts_of_the_docstrings() -> None:
    words = " ".join(called("--help").output.split())
    assert "Greet WHO. A second paragraph. Options: --times" in words
    assert "--loud / --no-loud Whether to shout. [default: as the room asks]" in words
    assert "--seed INTEGER Of the draw. [default: 0]" in words
    assert "--tone [mild|sharp] How. [default: mild]" in words
    assert "--dry Whether nothing is written. " in words
    assert words.endswith(f"Examples: none {GLOSSARY}")


def every_option(group: click.Group) -> Iterator[Any]:
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from every_option(one)
        else:
            yield from (pytest.param(option, id=f"{name} {option.name}") for option in one.params)


@pytest.mark.parametrize("option", list(every_option(commands)))
def test_every_option_of_every_command_says_what_it_is_for(option: click.Parameter) -> None:
    text = getattr(option, "help", None) or ""
    assert option.param_type_name == "argument" or (len(text) > 8 and "\n" not in text)


def _with_names(command: click.Command, name: str = "tokendynamics") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for entry, below in command.commands.items():
            yield from _with_names(below, f"{name} {entry}")


@pytest.mark.parametrize(("name", "command"), list(_with_names(commands)))
def test_every_help_text_names_the_page_of_the_glossary(name: str, command: click.Command) -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"], prog_name=name).output.split())
    (page,) = re.findall(r'explained on the page "(\w+)" of the documentation', text)
    glossary = Path(__file__).parents[2] / "docs" / "glossary.md"
    assert glossary.read_text(encoding="utf-8").startswith(f"# {page}\n")


@pytest.mark.parametrize(
    ("name", "command"), [(name, one) for name, one in _with_names(commands) if isinstance(one, click.Group)]
)
def test_each_line_of_a_list_of_commands_is_a_whole_sentence(name: str, command: click.Group) -> None:
    text = CliRunner().invoke(command, ["--help"], prog_name=name, terminal_width=80).output
    lines = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) == len(command.commands)
    assert [line for line in lines if not re.search(r"\w[.?]$", line)] == []
