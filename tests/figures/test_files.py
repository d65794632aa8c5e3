"""Files of every kind open, are the same twice, and are whole or not there."""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tokendynamics import figures
from tokendynamics.figures import _animate as video
from tokendynamics.figures._animate import find_ffmpeg, write_mp4
from tokendynamics.numerics.errors import ArgumentValueError, TokenDynamicsError
from tokendynamics.spaces import Sphere

Find = Callable[..., np.ndarray]
# The package's name `animate` is the function: the module of that name is found here.
animation = sys.modules["tokendynamics.figures._animate"]


@pytest.fixture
def figure(plane: np.ndarray) -> Figure:
    _, (left, right) = figures.panels(2, width=figures.DOUBLE, height=2.5)

    class Turn:
        def velocity(self, x: Any, t: float = 0.0) -> Any:
            return x.flip(-1)

    figures.phase_plane(plane, flow=Turn(), probe=0, axes=left)
    return figures.distances(np.arange(7.0), plane, axes=right)


@pytest.mark.long
def test_png_has_the_printed_size(figure: Figure, tmp_path: Path) -> None:
    path = figures.save(figure, tmp_path / "new" / "figure.png", dots_per_inch=100)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with Image.open(path) as image:
        assert image.size == (690, 250)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.long
def test_svg_is_xml_with_text_as_text_and_nothing_but_vectors(figure: Figure, tmp_path: Path) -> None:
    root = ET.fromstring(figures.save(figure, tmp_path / "figure.svg").read_text())  # noqa: S314 - our own file
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    words = {"".join(text.itertext()).strip() for text in root.iter(f"{space}text")}
    assert {"x[0]", "time t", "tokens 1, 2", "start", "end"} <= words
    assert root.get("width") == "496.8pt"
    assert not list(root.iter(f"{space}image"))
    assert "date" not in {element.tag.rpartition("}")[2] for element in root.iter()}


@pytest.mark.long
def test_pdf_embeds_its_fonts_and_holds_no_picture(figure: Figure, tmp_path: Path) -> None:
    pdf = figures.save(figure, tmp_path / "figure.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert not re.search(rb"/Subtype\s*/Image", pdf)
    assert b"CreationDate" not in pdf


@pytest.mark.long
def test_a_pdf_with_a_formula_says_nothing_of_its_fonts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = figures.save(figures.over_time([0.0, 1.0], [1.0, 0.5], r"$\kappa'$"), tmp_path / "figure.pdf")
    assert b"Cmsy10" in path.read_bytes()  # a font of matplotlib whose date is 0
    assert not caplog.records
    assert logging.getLogger("fontTools").level == logging.NOTSET


@pytest.mark.long
def test_the_tokens_of_a_sphere_are_vectors_too(converging: Find, tmp_path: Path) -> None:
    pdf = figures.save(figures.tokens(converging(np.eye(3)), space=Sphere()), tmp_path / "sphere.pdf").read_bytes()
    assert not re.search(rb"/Subtype\s*/Image", pdf)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_drawn_twice_the_bytes_are_the_same_whatever_the_user_has_set(
    converging: Find, tmp_path: Path, kind: str
) -> None:
    import matplotlib as mpl

    states = converging(np.eye(3))
    first = figures.save(figures.tokens(states, space=Sphere()), tmp_path / f"a.{kind}").read_bytes()
    with mpl.rc_context({"font.size": 20, "lines.linewidth": 9, "axes.facecolor": "red", "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        second = figures.save(figures.tokens(states, space=Sphere()), tmp_path / f"b.{kind}").read_bytes()
        assert dict(mpl.rcParams) == before
    assert first == second


@pytest.mark.slow
def test_drawing_does_not_load_pyplot(tmp_path: Path) -> None:
    program = "import sys, tokendynamics.figures as p; p.save(p.over_time([0., 1.], [1., 2.], 'V'), sys.argv[1])"
    program += "; print('matplotlib.pyplot' in sys.modules)"
    command = [sys.executable, "-c", program, str(tmp_path / "V.png")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.svg.gz"])
def test_another_suffix_is_refused_with_the_known_ones(figure: Figure, tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentValueError, match=r"ends in \.png, \.svg, \.pdf, got") as caught:
        figures.save(figure, tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_and_a_resolution_of_zero_are_refused(figure: Figure, tmp_path: Path) -> None:
    (tmp_path / "figure.png").mkdir()
    with pytest.raises(ArgumentValueError, match="path: expected a file name, got the folder"):
        figures.save(figure, tmp_path / "figure.png")
    with pytest.raises(ArgumentValueError, match=r"dots_per_inch: expected 10 to 2407 for 6.9 x 2.5 inches, got 0;"):
        figures.save(figure, tmp_path / "other.png", dots_per_inch=0)


def test_a_failure_keeps_the_older_file(figure: Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(b"older")

    def fail(file: Path, **options: Any) -> None:
        Path(file).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        figures.save(figure, path)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.long
def test_gif_has_one_frame_for_each_saved_state_and_takes_its_time(converging: Find, tmp_path: Path) -> None:
    states = converging(np.eye(3), steps=7)
    small: dict[str, Any] = {"space": Sphere(), "frames_per_second": 15, "dots_per_inch": 60}
    path = figures.animate(states, tmp_path / "run.gif", times=np.arange(7.0), **small)
    with Image.open(path) as picture:
        assert picture.n_frames == 7
        lasting = []
        for frame in range(7):
            picture.seek(frame)
            lasting.append(picture.info["duration"])
            assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert sum(lasting) == pytest.approx(1000 * 7 / 15, abs=5)
    again = figures.animate(states, tmp_path / "again.gif", times=np.arange(7.0), **small)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.long
def test_the_last_frame_is_the_still_picture(plane: np.ndarray, tmp_path: Path) -> None:
    """Every blue pixel of the still is blue in the film: the same lines at the same places."""
    moving = figures.animate(plane, tmp_path / "run.gif", dots_per_inch=100)
    still = figures.save(figures.tokens(plane), tmp_path / "run.png", dots_per_inch=100)
    with Image.open(moving) as film, Image.open(still) as picture:
        film.seek(film.n_frames - 1)
        last, wanted = (np.asarray(image.convert("RGB")).astype(int) for image in (film, picture))
    blue = (wanted[..., 2] - wanted[..., 0]) > 80
    assert blue.sum() > 300
    assert ((last[..., 2] - last[..., 0]) > 40)[blue].mean() > 0.99


@pytest.mark.long
def test_paths_grow_by_one_saved_state_in_each_frame(plane: np.ndarray, tmp_path: Path) -> None:
    with Image.open(figures.animate(plane, tmp_path / "run.gif", dots_per_inch=100)) as film:
        blue = []
        for frame in range(film.n_frames):
            film.seek(frame)
            pixels = np.asarray(film.convert("RGB")).astype(int)
            blue.append(int(((pixels[..., 2] - pixels[..., 0]) > 80).sum()))
    assert blue[0] == 0
    assert blue == sorted(blue)
    assert len(set(blue)) == len(plane)


def test_seconds_pick_saved_states_evenly_and_never_invent_any() -> None:
    assert animation.picked(101, 10, 5.1) == list(range(0, 101, 2))
    assert animation.picked(5, 25, None) == [0, 1, 2, 3, 4]
    assert animation.picked(5, 1, 1.0) == [4]
    for count in range(2, 40):
        steps = animation.picked(40, 1, float(count))
        assert len(set(steps)) == count
        assert (steps[0], steps[-1]) == (0, 39)
        assert max(np.diff(steps)) - min(np.diff(steps)) <= 1


def test_close_times_are_told_apart_on_the_frames(plane: np.ndarray) -> None:
    from tokendynamics.figures.recording import read_run

    times = 100 + 1e-6 * np.arange(7)
    stamps = animation._stamps(read_run(plane, space=None, times=times, system=None))
    assert [float(stamp.removeprefix("t = ")) for stamp in stamps] == pytest.approx(times, abs=1e-7)
    assert len(set(stamps)) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "run.avi"}, "path: expected a file name that ends in .gif, .mp4, got 'run.avi'"),
        ({"frames_per_second": 60}, "frames_per_second: expected at most 50 for a GIF, got 60; write an .mp4"),
        ({"frames_per_second": 0}, "frames_per_second: expected a positive number, got 0"),
        ({"seconds": 10}, "seconds: expected 0.04 to 0.28 s, for 7 saved states at 25 in a second, got 10; save more"),
        ({"dots_per_inch": -1}, "dots_per_inch: expected 10 to 3159 for 3.3 x 3.036 inches, got -1"),
    ],
)
def test_wrong_input_is_named_in_one_line(
    plane: np.ndarray, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / options.get("path", "run.gif")
    with pytest.raises(ArgumentValueError, match=re.escape(message)) as caught:
        figures.animate(plane, **{**options, "path": path})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def ffmpeg() -> str:
    if shutil.which("ffmpeg") is None and importlib.util.find_spec("imageio_ffmpeg") is None:
        pytest.skip("neither ffmpeg nor imageio-ffmpeg is installed")
    return find_ffmpeg()


@pytest.mark.long
def test_mp4_holds_every_frame(converging: Find, tmp_path: Path, ffmpeg: str) -> None:
    states = converging(np.eye(3), steps=6)
    options: dict[str, Any] = {"space": Sphere(), "frames_per_second": 12, "dots_per_inch": 61}
    path = figures.animate(states, tmp_path / "run.mp4", **options)
    assert path.read_bytes()[4:8] == b"ftyp"
    command = [ffmpeg, "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True).stdout
    width, height = (2 * round(np.ceil(int(inches * 61) / 2)) for inches in (3.3, 0.92 * 3.3))
    frames = np.frombuffer(decoded, dtype=np.uint8).reshape(-1, height, width, 3)
    assert len(frames) == 6
    assert frames[:, 0, 0].min() > 250
    assert figures.animate(states, tmp_path / "again.mp4", **options).read_bytes() == path.read_bytes()


def test_what_ffmpeg_complains_about_is_passed_on(tmp_path: Path, ffmpeg: str) -> None:
    frames = iter([np.zeros((16, 16, 3), dtype=np.uint8)])
    with pytest.raises(TokenDynamicsError, match="ffmpeg: could not write the film"):
        write_mp4(frames, tmp_path / "no such folder" / "run.mp4", 10, ffmpeg)


def test_without_ffmpeg_both_sources_and_the_gif_are_named(
    plane: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video.shutil, "which", lambda name: None)
    monkeypatch.setattr("tokendynamics.numerics.extras.find_spec", lambda name: None)
    message = "expected ffmpeg on the PATH or the package imageio-ffmpeg, to write an .mp4, got neither"
    with pytest.raises(ArgumentValueError, match=message) as caught:
        figures.animate(plane, tmp_path / "run.mp4")
    assert str(caught.value).endswith("write a .gif")
    assert not list(tmp_path.iterdir())
