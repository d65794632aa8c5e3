"""Texts: what is in which split, what is passed over, what is refused, and windows that foretell every token once."""

from __future__ import annotations

import io
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.training.tasks import _texts
from tokendynamics.training.tasks._texts import END, AdjoiningWindows, Bytes, RandomWindows, Words, text_splits
from training.runs import text


def document(number: int, size: int = 40) -> bytes:
    return f"document {number} ".encode() + bytes([97 + number % 26]) * size


def in_splits(folder: Path, held_out: float = 0.2) -> dict[str, list[bytes]]:
    splits = text_splits(str(folder), held_out)._asdict()
    return {name: split.tobytes().split(b"\n") for name, split in splits.items()}


def joined(splits: dict[str, list[bytes]]) -> list[bytes]:
    return sorted(document for split in splits.values() for document in split if document)


def test_a_file_of_the_size_of_enwik8_is_split_to_the_byte_and_mapped_not_read(tmp_path: Path) -> None:
    place, size = tmp_path / "enwik8", 100_000_000
    place.write_bytes(b"<mediawiki>" * 10_000)
    os.truncate(place, size)  # a hole, which takes no room on the disk
    before = psutil.Process().memory_info().rss
    splits = text_splits(str(place), 0.05)
    assert [len(split) for split in splits] == [90_000_000, 5_000_000, 5_000_000]
    assert all(isinstance(split, np.memmap) and split.offset == 0 for split in splits)
    assert all(np.shares_memory(split, splits.training.base) for split in splits)
    task = Bytes.of(str(place), {"context": 1024}, seed=0, draws=10)
    assert task.training[3]["ids"].shape == (1025,)
    assert psutil.Process().memory_info().rss - before < size / 2


def test_a_file_is_split_in_its_own_order_and_nothing_is_lost(tmp_path: Path) -> None:
    place = tmp_path / "text"
    place.write_text(text(1003))
    splits = text_splits(str(place), 0.1)
    assert [len(split) for split in splits] == [803, 100, 100]
    assert b"".join(split.tobytes() for split in splits) == place.read_bytes()


@given(sizes=st.lists(st.integers(1, 400), min_size=3, max_size=40), held_out=st.floats(0.01, 0.49))
@settings(max_examples=40)
def test_a_document_is_whole_in_one_split_and_the_held_out_shares_are_reached(
    sizes: list[int], held_out: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        every = [document(number, size) for number, size in enumerate(sizes)]
        for number, content in enumerate(every):
            Path(folder, f"{number:02}.txt").write_bytes(content)
        splits = in_splits(Path(folder), held_out)
    assert joined(splits) == sorted(every)
    total, longest = sum(map(len, every)), max(map(len, every))
    for name in ("test", "validation"):
        size = sum(map(len, splits[name]))
        assert size < held_out * total + longest
    assert sum(map(len, splits["test"])) >= held_out * total


def test_a_document_that_is_there_twice_and_links_and_hidden_files_are_taken_once_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    every = [document(number) for number in range(30)]
    for number, content in enumerate(every):
        (folder / ("inner" if number % 2 else "") / f"{number}.txt").write_bytes(content)
    wanted = in_splits(folder)
    (folder / "copy.txt").write_bytes(every[0])
    (folder / "another copy.txt").write_bytes(every[7])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(b"outside of the folder")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "linked").symlink_to(outside)
    (folder / "itself").symlink_to(folder)
    (folder / ".hidden").write_bytes(b"hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "object").write_bytes(b"\0hidden")
    (folder / "empty.txt").touch()
    result = in_splits(folder)
    assert joined(result) == sorted(every) == joined(wanted)


@pytest.mark.parametrize("data", ["pydoc", "python-doc"])
def test_no_page_of_python_s_own_texts_is_in_two_splits(data: str) -> None:
    try:
        splits = text_splits(data, 0.05)
    except ArgumentValueError as refused:
        assert data == "python-doc"  # a package of Debian
        assert "apt install python3-doc" in str(refused)  # noqa: PT017
        pytest.skip("python3-doc is not installed")
    paragraphs = [{part for part in split.tobytes().split(b"\n\n") if len(part) > 400} for split in splits]
    assert min(map(len, paragraphs)) > 3
    assert not paragraphs[0] & paragraphs[2]
    assert not paragraphs[1] & paragraphs[2]
    total = sum(map(len, splits))
    assert 0.05 <= len(splits.test) / total < 0.15


@pytest.mark.parametrize("pattern", ["wiki.{}.tokens", "{}.txt"])
@pytest.mark.parametrize("task", [Bytes, Words])
def test_a_text_with_splits_of_its_own_keeps_them(tmp_path: Path, pattern: str, task: type[Bytes | Words]) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / pattern.format(part)).write_text(f"{part} " * 40)
    options = {"context": 4} if task is Bytes else {"context": 4, "evaluation_context": 32}
    result = task.of(str(tmp_path), options, seed=0, draws=1)
    if isinstance(result, Bytes):
        assert [bytes(entry[0]["ids"]) for entry in (result.validation, result.test)] == [b"valid", b"test "]
    else:
        assert result.vocabulary == ["train", "<eos>", "<unk>"]
        assert result.test[0]["ids"].tolist() == [2] * 33  # the words of the test are not known


@pytest.mark.parametrize("missing", [["valid"], ["test"], ["train"], ["valid", "test"]])
@pytest.mark.parametrize("pattern", ["wiki.{}.tokens", "{}.txt"])
def test_a_text_without_one_of_its_splits_is_refused_and_not_split_by_chance(
    tmp_path: Path, pattern: str, missing: list[str]
) -> None:
    for part in {"train", "valid", "test"} - set(missing):
        (tmp_path / pattern.format(part)).write_text(f"{part} " * 300)
    (tmp_path / "README").write_text("read me")
    (tmp_path / "LICENSE").write_text("do what you want")
    for task in (Bytes, Words):
        with pytest.raises(ArgumentValueError) as refused:
            task.of(str(tmp_path), {"context": 4}, seed=0, draws=1)
        names = " and ".join(pattern.format(part) for part in missing)
        assert f"got {tmp_path} without {names}" in str(refused.value)
        assert "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens" in str(refused.value)


def test_documents_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    for number, name in enumerate(("test.txt", "a.txt", "b.txt", "c.txt")):
        (tmp_path / name).write_bytes(document(number))
    assert joined(in_splits(tmp_path)) == sorted(document(number) for number in range(4))


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A path where no text is."""
    target = tmp_path / "data"
    kind = request.param
    if kind == "an empty folder":
        target.mkdir()
    elif kind == "a folder of empty files":
        target.mkdir()
        (target / "a.txt").touch()
    elif kind == "a folder of two documents":
        target.mkdir()
        for number in range(2):
            (target / f"{number}.txt").write_bytes(document(number))
    elif kind == "an empty file":
        target.touch()
    elif kind == "a file":
        target.write_bytes(document(0))
    elif kind == "a file below a file":
        target.touch()
        target = target / "below"
    elif kind == "an archive":
        target.write_bytes(b"PK\x03\x04\0\0" * 1000)
    elif kind == "UTF-16":
        target.write_text(text(500), encoding="utf-16")
    elif kind == "a folder with an image":
        target.mkdir()
        for number in range(4):
            (target / f"{number}.txt").write_bytes(document(number))
        (target / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    elif kind == "a pipe":
        os.mkfifo(target)
    elif kind == "a device":
        target = Path("/dev/zero")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(target))
            yield target
            return
    elif kind == "a link to nothing":
        target.symlink_to(tmp_path / "gone")
    yield target


@pytest.mark.parametrize(
    ("place", "came"),
    [
        ("nothing", "got nothing at {}"),
        ("an empty folder", "got the folder {} without a file that has text"),
        ("a folder of empty files", "got the folder {} without a file that has text"),
        (
            "a folder of two documents",
            "at least three different documents in a folder, one for each split, got 2 in {}",
        ),
        ("an empty file", "got the empty file {}"),
        ("a file below a file", "got nothing at {}"),
        ("an archive", "expected text, which has no null bytes, got {}"),
        ("UTF-16", "expected text, which has no null bytes, got {}"),
        ("a folder with an image", "expected text, which has no null bytes, got {}/image.png"),
        ("a pipe", "got {}, which is neither"),
        ("a device", "got {}, which is neither"),
        ("a socket", "got {}, which is neither"),
        ("a link to nothing", "got {}, which is neither"),
    ],
    indirect=["place"],
)
@pytest.mark.parametrize("task", [Bytes, Words])
def test_what_is_no_text_is_refused_in_one_line(place: Path, came: str, task: type[Bytes | Words]) -> None:
    with pytest.raises(ArgumentValueError) as refused:
        task.of(str(place), {}, seed=0, draws=1)
    words = str(refused.value)
    assert came.format(place) in words
    assert "\n" not in words
    if "which is neither" in came or "nothing at" in came or "without a file" in came:
        assert "'pydoc'" in words  # the layout is shown
        assert "wiki.train.tokens" in words


@pytest.mark.parametrize("data", ["", "~nobody-of-this-name/text", "a\0b", "x" * 300])
def test_what_is_no_path_is_refused(data: str) -> None:
    with pytest.raises(ArgumentValueError, match=r"^data: "):
        text_splits(data, 0.05)


@pytest.mark.parametrize("place", ["a file"], indirect=True)
def test_what_cannot_be_read_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(ArgumentValueError, match=rf"files that can be read, got {place} \(Permission denied\)"):
        text_splits(str(place), 0.05)


@pytest.mark.parametrize(("size", "split"), [(40, "validation"), (200, None)])
def test_fewer_bytes_than_one_context_are_refused_and_the_split_is_named(
    tmp_path: Path, size: int, split: str | None
) -> None:
    place = tmp_path / "short"
    place.write_text(text(size))
    if split is None:
        assert len(Bytes.of(str(place), {"context": 9}, seed=0, draws=1).test) == 1
        return
    with pytest.raises(ArgumentValueError) as refused:
        Bytes.of(str(place), {"context": 9}, seed=0, draws=1)
    assert "data: expected at least 10 bytes in each split" in str(refused.value)
    assert f"got 2 in the {split} split of {place}" in str(refused.value)


@pytest.mark.parametrize("task", [Bytes, Words])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"contxt": 8}, ArgumentValueError, "options: expected entries among context, .*, got 'contxt'"),
        ({"context": 0}, ArgumentValueError, "context: expected at least 1, got 0"),
        ({"context": 8.0}, ArgumentTypeError, "context: expected an integer of at least 1, got 8.0"),
        ({"context": True}, ArgumentTypeError, "context"),
        ({"held_out": 0.5}, ArgumentValueError, "held_out: expected a share between 0 and 0.5, got 0.5"),
        ({"held_out": 0}, ArgumentValueError, "held_out"),
        ({"held_out": "much"}, ArgumentTypeError, "held_out: expected a real number"),
        ({"held_out": float("nan")}, ArgumentValueError, "held_out"),
        ({"context": None}, ArgumentTypeError, "context"),
    ],
)
def test_options_are_refused_by_name(task: type, options: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        task.of("pydoc", options, seed=0, draws=1)


@given(size=st.integers(3, 200), length=st.integers(2, 20))
@settings(max_examples=50)
def test_adjoining_windows_foretell_every_token_once_up_to_less_than_a_window(size: int, length: int) -> None:
    windows = AdjoiningWindows(np.arange(size), length)
    foretold = [token for number in range(len(windows)) for token in windows[number]["ids"][1:].tolist()]
    assert foretold == list(range(1, len(foretold) + 1))
    assert size - 1 - len(foretold) < length - 1
    assert all(len(windows[number]["ids"]) == length for number in range(len(windows)))


@pytest.mark.long
def test_random_windows_begin_anywhere_and_hang_on_seed_and_draw_alone() -> None:
    tokens, draws = np.arange(12), 4000
    one, other = (RandomWindows(tokens, 5, seed=seed, draws=draws) for seed in (0, 1))
    begins = [int(one[draw]["ids"][0]) for draw in range(draws)]
    counts = np.bincount(begins, minlength=8)
    assert len(counts) == 8  # 12 − 5 + 1
    assert ((counts - draws / 8) ** 2 / (draws / 8)).sum() < 24.3  # χ² of 7 degrees, one in a thousand
    assert [int(one[draw]["ids"][0]) for draw in reversed(range(draws))] == begins[::-1]
    assert begins != [int(other[draw]["ids"][0]) for draw in range(draws)]


def test_words_are_numbered_as_the_tokenizer_beside_the_weights_numbers_them(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    place, lines = tmp_path / "text", ["the cat , the dog", "", "page\x0cbreak  the", "né\u2028the ​end"] * 30
    place.write_text("\r\n".join(lines[:60]) + "\n" + "\n".join(lines[60:]) + "\n", newline="")
    task = Words.of(str(place), {"context": 8, "evaluation_context": 8, "least": 2}, seed=0, draws=1)
    task.save_inputs(tmp_path / "inputs")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "inputs")
    content = place.read_bytes()
    training = content[: len(content) - 2 * round(len(content) * 0.05)].decode(errors="replace")
    ids = tokenizer(training)["input_ids"]
    assert task.training._tokens[: len(ids)].tolist() == ids
    assert task.vocabulary[0] == "<eos>"
    counts = np.bincount(task.training._tokens, minlength=len(task.vocabulary))
    assert (np.diff(counts[:-1]) <= 0).all()  # by falling frequency; the last is <unk>, which does not occur


@pytest.mark.parametrize(
    "text", ["a b\nc  d\n\n e", "ab cd ef\r\n gh\u3000ij\n", "abcdefgh ij\n", "a b c d", " a\t b \n "]
)
def test_words_are_the_same_in_pieces_of_any_length(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.frombuffer(text.encode(), dtype=np.uint8)
    lines = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    expected = [word for line in lines for word in [*line.split(), END]]
    for piece in range(1, 12):
        monkeypatch.setattr(_texts, "_PIECE", piece)
        assert list(_texts._WordsOf(content)) == expected


def test_a_corpus_of_one_line_is_read_word_by_word(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("a b " * 400_000)
    task = Words.of(str(path), {"context": 8, "evaluation_context": 8}, seed=0, draws=1)
    assert set(task.vocabulary) == {"a", "b", END, "<unk>"}
