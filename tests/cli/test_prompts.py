"""Prompts of one a line: texts or JSON Lines, each called by where it stands, and one line for what is none."""
# ruff: noqa: E501  (a table reads better in long rows)

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import pytest

from command_line import TINY_GPT2, call
from tokendynamics.cli._prompts import named_prompts

WITHOUT = ((), ())


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(content: str | bytes, name: str = "lines.txt") -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    Path(name).write_bytes(data)
    return Path(name)


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        ("a cat\n\n  \na dog\n", {"lines.txt:1": "a cat", "lines.txt:4": "a dog"}),
        (b"a cat\r\na dog\ra bird", {"lines.txt:1": "a cat", "lines.txt:2": "a dog", "lines.txt:3": "a bird"}),
        ("  indented, and a space behind ", {"lines.txt:1": "  indented, and a space behind "}),
        (b"\xef\xbb\xbfmarked", {"lines.txt:1": "marked"}),
        ("one\x0bline\u2028still", {"lines.txt:1": "one\x0bline\u2028still"}),
        ('"Did you?" she asked.\n{a set} of words', {"lines.txt:1": '"Did you?" she asked.', "lines.txt:2": "{a set} of words"}),
        ("5\n[1, 2]\nnull", {"lines.txt:1": "5", "lines.txt:2": "[1, 2]", "lines.txt:3": "null"}),
        ('"a\\nb"\n\n"c"', {"lines.txt:1": "a\nb", "lines.txt:3": "c"}),
        ('{"text": "a", "name": "first"}\n{"text": "b", "id": 7}\n"c"', {"first": "a", "lines.txt:2": "b", "lines.txt:3": "c"}),
        (b'\xef\xbb\xbf{"text": "a", "name": null}', {"lines.txt:1": "a"}),
    ],
)  # fmt: skip
def test_every_line_is_a_prompt(content: str | bytes, prompts: dict[str, str]) -> None:
    prompts_by_name = named_prompts(*WITHOUT, [written(content)])
    assert prompts_by_name is not None
    assert prompts_by_name == prompts
    assert list(prompts_by_name) == list(prompts)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "", "a.txt has no line with a prompt"),
        ("a.txt", " \n\t\r\n", "a.txt has no line with a prompt"),
        ("a.txt", b"good\nbad \xff", "a.txt is not UTF-8 text (invalid start byte at byte 9, line 2)"),
        ("a.txt", b"a\n" * (9 << 20), "a.txt is longer than 16,777,216 bytes"),
        ("a.txt", '"a"\n\nplain', "line 3 of a.txt is not a JSON string or object (Expecting value at column 1), but line 1 is"),
        ("a.txt", 'plain\n"a"', "line 1 of a.txt is not a JSON string or object (Expecting value at column 1), but line 2 is"),
        ("a.txt", '"a"\n{"text": "b"', "line 2 of a.txt is not a JSON string or object (Expecting ',' delimiter"),
        ("a.txt", '"a"\n[1]', "line 2 of a.txt is not a JSON string or object (it is an array), but line 1 is"),
        ("a.jsonl", '{"text": "a"', "line 1 of a.jsonl is not a JSON string or object (Expecting ',' delimiter at column 13)"),
        ("a.jsonl", '{"text": "a", "text": "b"}', "line 1 of a.jsonl is not a JSON string or object (it has 'text' twice)"),
        ("a.jsonl", "null", "line 1 of a.jsonl is not a JSON string or object (it is null)"),
        ("a.JSONL", "plain", "line 1 of a.JSONL is not a JSON string or object"),
        ("a.txt", '"a"\n{"prompt": "b"}', 'line 2 of a.txt: expected a string or an object with "text", got one without it'),
        ("a.txt", '{"text": 5}', 'line 1 of a.txt: expected a string or an object with "text", got "text" that is a number'),
        ("a.txt", '"a"\n" "', "line 2 of a.txt is an empty text"),
        ("a.txt", '{"text": "a", "name": 5}', 'line 1 of a.txt: expected a "name" that is a text, got 5'),
        ("a.txt", '"a"\n"\\ud800"', "line 2 of a.txt has half of a surrogate pair"),
        ("a.txt", '{"text": "a", "name": "x"}\n{"text": "b", "name": "x"}', "line 2 of a.txt has the name of another prompt, 'x'"),
        ("a.txt", '{"text": "a", "name": "a.txt:2"}\n"b"', "line 2 of a.txt has the name of another prompt, 'a.txt:2'"),
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_named_by_its_line(name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        named_prompts(*WITHOUT, [written(content, name)])
    assert words in refused.value.message
    assert refused.value.param_hint == "--prompts"
    assert "\n" not in refused.value.message


def test_a_line_is_a_conversation_with_chat() -> None:
    messages = [{"role": "user", "content": "a"}]
    lines = [json.dumps(entry) for entry in (messages, {"messages": messages}, {"messages": messages, "name": "talk"})]
    conversations = named_prompts(*WITHOUT, [written("\n\n".join(lines))], chat=True)
    assert conversations == {"lines.txt:1": messages, "lines.txt:3": messages, "talk": messages}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("plain", "line 1 of a.txt is not a JSON array or object (Expecting value at column 1)"),
        ('"a"', "line 1 of a.txt is not a JSON array or object (it is a string)"),
        ('{"text": "a"}', 'line 1 of a.txt: expected an array of messages or an object with "messages", got one without it'),
        ('{"messages": "a"}', 'got "messages" that is a string'),
        ("[]", "line 1 of a.txt has no message"),
        ('[{"role": "user", "content": "a"}, 5]', 'line 1 of a.txt: expected message 2 to have a text as "role"'),
        ('[{"role": "user", "content": ["a"]}]', 'line 1 of a.txt: expected message 1 to have a text as "content"'),
        ('[{"role": "user", "content": "\\ud800"}]', "line 1 of a.txt has half of a surrogate pair"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_named_by_its_line(content: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        named_prompts(*WITHOUT, [written(content, "a.txt")], chat=True)
    assert words in refused.value.message


def test_texts_are_no_conversations() -> None:
    for prompts, text_files, prompt_files in ((["a"], [], [written("[]")]), ([], [written("a")], []), ([], [], [])):
        with pytest.raises(click.UsageError, match="--chat needs conversations: pass --prompts FILE alone"):
            named_prompts(prompts, text_files, prompt_files, chat=True)


def test_a_device_is_refused_with_the_way_to_read_it() -> None:
    with pytest.raises(click.BadParameter, match=r"not a regular file; .*--prompts - < FILE"):
        named_prompts(*WITHOUT, [Path("/dev/zero")])


def test_prompts_of_every_source_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = written("a cat", "one.txt"), written("from\nlines", "other.txt")
    with written('"piped"\n{"text": "b", "name": "c"}', "stdin").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        prompts_by_name = named_prompts(["given"], [one], [other, Path("-")])
    assert prompts_by_name == {
        "prompt 1": "given", "one.txt": "a cat", "other.txt:1": "from", "other.txt:2": "lines",
        "standard input:1": "piped", "c": "b",
    }  # fmt: skip


def test_files_of_one_name_are_called_by_their_paths() -> None:
    Path("folder").mkdir()
    prompts_by_name = named_prompts(*WITHOUT, [written("a"), written("b", "folder/lines.txt")])
    assert prompts_by_name == {"lines.txt:1": "a", "folder/lines.txt:1": "b"}


@pytest.mark.parametrize("path", ["lines.txt", "-"])
@pytest.mark.parametrize("beside", [0, 1])
def test_a_file_is_read_once(path: str, beside: int) -> None:
    written("a")
    text_files, prompt_files = ([Path(path)], [Path(path)]) if beside else ([], [Path(path), Path(path)])
    with pytest.raises(click.BadParameter, match="is given twice"):
        named_prompts((), text_files, prompt_files)


def test_without_any_there_are_none() -> None:
    assert named_prompts((), (), ()) is None


@pytest.mark.long
def test_the_command_follows_the_lines_and_names_those_that_repeat_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text(json.dumps(TINY_GPT2))
    written('{"text": "a cat", "name": "cat"}\n{"text": "A  CAT", "name": "louder"}\n"a dog sat"', "lines.jsonl")
    assert call(["diagnose", "random:tiny", "--prompts", "lines.jsonl", "--json", "--out", "out", "--sinks", "0"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["prompts"] == {"cat": "a cat", "louder": "A  CAT", "lines.jsonl:3": "a dog sat"}
    assert summary["manifest"]["parameters"]["sinks"] == "positions [0] left out at every layer"
    notes = [line for line in printed.err.splitlines() if line.startswith("note: ")]
    assert notes == ["note: texts “cat” and “louder” are the same and count as one observation"]
