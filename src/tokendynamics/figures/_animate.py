"""Moving pictures of a run, one frame for each saved state: GIF by Pillow, MP4 by ffmpeg, the same bytes each time."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from tokendynamics.figures import style as style
from tokendynamics.figures._scene import Scene
from tokendynamics.figures.recording import Recording, Run, choose_view, read_run
from tokendynamics.figures.style import SINGLE, check_pixels, known_suffix, panels, paper_style
from tokendynamics.numerics import ArgumentValueError, TokenDynamicsError
from tokendynamics.numerics.arguments import ArrayLike, as_positive
from tokendynamics.numerics.extras import install, missing
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.whole import whole_file
from tokendynamics.spaces import Space


def write_gif(frames: Iterator[np.ndarray], count: int, path: Path, frames_per_second: float) -> None:
    """Write frames (height, width, 3) of bytes as a GIF that repeats for ever.

    A GIF counts in hundredths of a second: the frames' ends are rounded, so that the whole takes the right time.
    """
    ends = np.round(100 * np.arange(count + 1) / frames_per_second).astype(int)
    images = (_few_colours(frame) for frame in frames)
    first = next(images)
    lasting = [int(10 * step) for step in np.diff(ends)]
    first.save(path, format="GIF", save_all=True, append_images=images, duration=lasting, loop=0, optimize=False)


def _few_colours(frame: np.ndarray) -> Image.Image:
    # The most frequent colours are kept exactly, white paper among them, and the others go to the nearest of them:
    # Pillow's own reduction turns white to grey, and dithering would flicker between frames.
    packed = frame.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    colours, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    channels = colours[:, None] >> np.array([16, 8, 0]) & 255
    kept = channels[np.argsort(-counts, kind="stable")[:256]]
    apart = ((channels**2).sum(axis=1)[:, None] - 2 * channels @ kept.T) + (kept**2).sum(axis=1)
    image = Image.fromarray(apart.argmin(axis=1).astype(np.uint8)[place].reshape(frame.shape[:2]))
    image.putpalette(kept.astype(np.uint8).tobytes())
    return image


def write_mp4(frames: Iterator[np.ndarray], path: Path, frames_per_second: float, ffmpeg: str) -> None:
    """Pipe frames (height, width, 3) of bytes through `ffmpeg` into an H.264 file that browsers play.

    Raises:
        TokenDynamicsError: ffmpeg failed; its last line is given.
    """
    first = _even(next(frames))
    height, width, _ = first.shape
    command = [ffmpeg, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", f"{frames_per_second:g}", "-i", "-", "-an", "-c:v", "libx264", "-crf", "16", "-threads", "1"]
    command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", "-fflags", "+bitexact", "-flags:v", "+bitexact"]
    command += ["-map_metadata", "-1", "-f", "mp4", str(path)]
    # The program is the one that find_ffmpeg named, and no shell reads the command.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603
        if process.stdin is None or process.stderr is None:
            raise TokenDynamicsError("ffmpeg: its input could not be opened")
        try:
            for frame in chain([first], map(_even, frames)):
                process.stdin.write(frame.tobytes())
            process.stdin.close()
        except BrokenPipeError:
            pass  # ffmpeg has ended early; what it says below is the reason
        complaint = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise TokenDynamicsError(
            f"ffmpeg: could not write the film: {complaint.splitlines()[-1:] or 'no reason given'}"
        )


def find_ffmpeg() -> str:
    """Return the ffmpeg to use: the one on the PATH, or that of the package imageio-ffmpeg.

    Raises:
        ArgumentValueError: There is neither.
    """
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None and not missing("animations"):
        try:
            ffmpeg = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        except RuntimeError:
            ffmpeg = None  # the package came without a program for this platform
    if ffmpeg is None:
        wanted = "ffmpeg on the PATH or the package imageio-ffmpeg, to write an .mp4"
        raise ArgumentValueError("path", wanted, "neither", f"{install('animations')}, or write a .gif")
    return ffmpeg


def _even(frame: np.ndarray) -> np.ndarray:
    # H.264 with halved colour resolution needs even sides: repeat the (white) last row or column.
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


_FASTEST_GIF = 50


@paper_style()
@typed_arguments
def animate(
    states: Run,
    path: str | Path,
    *,
    frames_per_second: float = 25,
    seconds: float | None = None,
    times: ArrayLike | None = None,
    space: Space | None = None,
    system: int | None = None,
    view: tuple[float, float] | None = None,
    width: float = SINGLE,
    dots_per_inch: float = 200,
) -> Path:
    """Write a moving picture of one run, in the look of `tokens`: the paths grow, the grey circles move.

    Every frame shows a state that was saved; none is interpolated, so time passes evenly only if it was saved
    evenly, and the time is written on each frame. Save more times for a smoother picture.

    Args:
        states: A `tokendynamics.dynamics.Trajectory`, or states (time, token, dim) or (system, time, token, dim).
        path: Ends in ``.gif``, or in ``.mp4``, which needs ffmpeg (on the PATH, or the package imageio-ffmpeg).
        frames_per_second: At most 50 for a GIF, whose clock has steps of 1/100 s.
        seconds: How long it takes: as many saved states are picked, evenly by their number, the first and the last
            among them; None to show all of them.
        times: Times of plain states, to be written on the frames; without them the states are counted.
        space: See `tokens`.
        system: Which system of a batch to draw.
        view: See `tokens`.
        width: Width in inches, as in `tokens`; with `dots_per_inch` it makes the number of pixels.
        dots_per_inch: Pixels to the inch.

    Returns:
        The path written.

    Raises:
        ArgumentTypeError, ArgumentValueError: States that are not one run, another suffix, no ffmpeg for an MP4,
            or more seconds than the saved states can fill.

    >>> import tempfile, torch
    >>> from PIL import Image
    >>> path = torch.rand(4, 3, 2, dtype=torch.float64)
    >>> with tempfile.TemporaryDirectory() as folder, Image.open(animate(path, f"{folder}/run.gif")) as picture:
    ...     picture.n_frames
    4
    """
    kind = _checked_kind(path, frames_per_second)
    ffmpeg = find_ffmpeg() if kind == "mp4" else None
    recording = read_run(states, space=space, times=times, system=system)
    shown = picked(recording.states.shape[0], frames_per_second, seconds)
    figure, (panel,) = panels(width=width, height=0.92 * width)
    check_pixels(figure, dots_per_inch)
    figure.set_dpi(dots_per_inch)
    scene = Scene(panel, recording, choose_view(recording, view))
    frames = _frames(figure, scene, shown)
    with whole_file(path) as temporary:
        if ffmpeg is None:
            write_gif(frames, len(shown), temporary, frames_per_second)
        else:
            write_mp4(frames, temporary, frames_per_second, ffmpeg)
    return Path(path)


def picked(saved: int, frames_per_second: float, seconds: float | None) -> list[int]:
    """Return which saved states are shown.

    >>> picked(9, 5, 1.0)
    [0, 2, 4, 6, 8]
    """
    if seconds is None:
        return list(range(saved))
    count = round(min(frames_per_second * as_positive(seconds, "seconds"), saved + 1))
    if not 1 <= count <= saved:
        longest = f"{1 / frames_per_second:.3g} to {saved / frames_per_second:.3g} s"
        wanted = f"{longest}, for {saved} saved states at {frames_per_second:g} in a second"
        advice = "save more times, lower frames_per_second, or leave seconds out"
        raise ArgumentValueError("seconds", wanted, f"{seconds:g}", advice)
    return [round(step) for step in np.linspace(0, saved - 1, count)] if count > 1 else [saved - 1]


def _frames(figure: Figure, scene: Scene, shown: list[int]) -> Iterator[np.ndarray]:
    canvas = FigureCanvasAgg(figure)
    scene.surroundings(last="now")
    stamps = _stamps(scene.recording)
    # Drawn once, the layout stays: a panel must not shift while the tokens move.
    canvas.draw()
    figure.set_layout_engine("none")
    for index in shown:
        drawn = scene.tokens(index + 1)
        where = {"transform": scene.axes.transAxes, "ha": "right", "va": "top"}
        drawn.append(scene.axes.text(1.0, 1.0, stamps[index], color=style.INK, fontsize=7, **where))
        canvas.draw()
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()
        for artist in drawn:
            artist.remove()


def _stamps(recording: Recording) -> list[str]:
    """Return what is written on each frame: the time with as many digits as tell neighbours apart."""
    count = recording.states.shape[0]
    if recording.times is None:
        return [f"state {index + 1} of {count}" for index in range(count)]
    digits = 3
    while digits < 17 and len({f"{time:.{digits}g}" for time in recording.times}) < count:
        digits += 1
    return [f"t = {time:.{digits}g}" for time in recording.times]


def _checked_kind(path: str | Path, frames_per_second: float) -> str:
    kind = known_suffix(path, ("gif", "mp4"))
    if not frames_per_second > 0:
        raise ArgumentValueError("frames_per_second", "a positive number", frames_per_second)
    if kind == "gif" and frames_per_second > _FASTEST_GIF:
        advice = "write an .mp4 for more"
        raise ArgumentValueError("frames_per_second", "at most 50 for a GIF", frames_per_second, advice)
    return kind
