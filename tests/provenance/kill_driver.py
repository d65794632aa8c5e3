"""Runs a command in forked children and kills them: at times spread over the run, and at steps of the file system.

Usage: python kill_driver.py COMMAND FOLDER KILLS; prints one line of JSON. A process of its own, since forking one
in which other tests have started threads would not be safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import FREE_FLOW, LEARN_LITTLE, TINY_GPT2

OUTPUT = """\
[output]
figures = ["norms"]
formats = ["svg"]
"""
_MOST_SECONDS = 300.0


def diagnose(version: str) -> None:
    command("diagnose", "random:./tiny", "--prompt", version, "--out", "o")


def simulate(version: str) -> None:
    command("simulate", f"{version}.toml", "--out", "o")


def learn(version: str) -> None:
    # The newer call learns one model more.
    command(
        "circuits",
        "learn",
        "solution-1",
        *LEARN_LITTLE,
        "--steps",
        "4",
        "--out",
        "o",
        "--seeds",
        {"old": "1", "new": "2"}[version],
    )


def convert(version: str) -> None:
    from tokendynamics.pretrained import load

    load(f"{version}.gguf", cache="o").attention(1)


def command(*arguments: str) -> None:
    from tokendynamics.cli import main

    main(list(arguments))


def prepare() -> None:
    """Inputs, and every import: what is loaded once need not be loaded in each child."""
    import tokendynamics.circuits.learning._run as learning
    import tokendynamics.cli
    import tokendynamics.diagnosis.result
    import tokendynamics.figures
    import tokendynamics.pretrained.sources.gguf
    import tokendynamics.report.circuits.models
    import tokendynamics.specification._simulation  # noqa: F401
    from pretrained.gguf_files import write_gguf

    learning._SECONDS_BETWEEN_SAVES = 0.0
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text(json.dumps(TINY_GPT2))
    for seed, version in enumerate(("old", "new")):
        Path(f"{version}.toml").write_text(FREE_FLOW.replace("0.0]]", f"{seed}.0]]") + OUTPUT)
        write_gguf(Path(f"{version}.gguf"), seed=seed)


def child(act: Callable[[], None]) -> int:
    """Fork and act; the process number in the parent."""
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        errors = os.open("errors.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 2)
        act()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(code)


def ended(number: int) -> int:
    """The exit code of a child, negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def counted(at: int | None, act: Callable[[], None]) -> None:
    """Act; be killed at the given change of the file system, or write how many there were."""
    home, done = str(Path.cwd()), 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal done
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.chmod"):
            path = arguments[0]
        else:
            return
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if Path(name).is_absolute() and not name.startswith(home + "/"):
            return
        if done == at:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1

    sys.addaudithook(hook)
    with contextlib.suppress(SystemExit):
        act()
    total = done
    Path("steps.txt").write_text(str(total))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole(files: dict[str, bytes]) -> bool:
    """Whether the manifest and the files it lists are there, by their digests, and nothing else but learned models."""
    if "manifest.json" not in files:
        return False
    listed = json.loads(files["manifest.json"])["files"]
    others = {name for name in files if name != "manifest.json" and not name.startswith("seed-")}
    return set(listed) == others and all(hashlib.sha256(files[name]).hexdigest() == listed[name] for name in listed)


def check_killed(name: str, old: dict[str, bytes]) -> str:
    """What a kill left: "old", "new", or "between" where a journal lets the next run complete it."""
    result = tree(Path("o"))
    if name == "convert":
        kept = {at: result.get(at) for at in old}
        assert kept == old, "the older conversion"
        return "new" if any(at.startswith("gguf/new-") for at in result) else "old"
    visible = {at: text for at, text in result.items() if not at.startswith(".")}
    actual = {at: text for at, text in visible.items() if not at.startswith("seed-1/") and ".partial-" not in at}
    assert {at: actual.get(at) for at in old if at.startswith("seed-0/")} == {
        at: text for at, text in old.items() if at.startswith("seed-0/")
    }, "the model learned before"
    if actual == old:
        return "old"
    if whole(actual):
        return "new"
    assert any(Path().glob(".o.partial-*/journal.json")), f"a mixture: {sorted(actual)}"
    return "between"


def check_next(name: str, new: dict[str, bytes]) -> None:
    """The next run has succeeded, cleared up, and left what it would have left without the kill."""
    assert not [path for path in Path().rglob(".*") if ".partial-" in path.name], "remains"
    result = tree(Path("o"))
    same = {at for at in new if at.endswith((".npz", ".safetensors", ".toml"))}
    assert {at: result.get(at) for at in same} == {at: new[at] for at in same}
    assert set(result) - _notes(result) == set(new) - _notes(new)
    assert name == "convert" or whole(result)


def _notes(files: dict[str, bytes]) -> set[str]:
    return {at for at in files if at.startswith("digests/")}


def kill(name: str, act: Callable[[str], None], number: int, kills: int, seconds: float, steps: int) -> None:
    """Half of the kills come at a time, half at a step."""
    half = kills // 2
    if number < half:
        running = child(lambda: act("new"))
        time.sleep(seconds * (number + 0.5) / half)
        os.kill(running, signal.SIGKILL)
        ended(running)
    else:
        # The last quarter falls on the last steps: those of the swap.
        order = number - half
        at = steps - 1 - 2 * order if order < half // 2 else (order - half // 2) * steps // half * 2
        code = ended(child(lambda: counted(at, lambda: act("new"))))
        assert code == -signal.SIGKILL, f"{name}: step {at} of {steps} ended with {code}"


def main(name: str, folder: str, kills: int) -> None:
    os.chdir(folder)
    prepare()
    act: Callable[[str], None] = globals()[name]
    assert ended(child(lambda: act("old"))) == 0, Path("errors.txt").read_text()
    shutil.copytree("o", "saved")
    old = tree(Path("saved"))
    began = time.monotonic()
    assert ended(child(lambda: act("new"))) == 0, Path("errors.txt").read_text()
    seconds = time.monotonic() - began
    new = tree(Path("o"))
    outcomes: list[str] = []
    for number in range(-1, kills):
        shutil.rmtree("o")
        shutil.copytree("saved", "o")
        if number < 0:
            assert ended(child(lambda: counted(None, lambda: act("new")))) == 0
            steps = int(Path("steps.txt").read_text())
            continue
        kill(name, act, number, kills, seconds, steps)
        outcomes.append(check_killed(name, old))
        assert ended(child(lambda: act("new"))) == 0, Path("errors.txt").read_text()
        check_next(name, new)
    print(
        json.dumps(
            {"kills": len(outcomes), "steps": steps, "left": {word: outcomes.count(word) for word in set(outcomes)}}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
