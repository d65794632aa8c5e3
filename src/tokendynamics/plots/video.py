"""Frames into files: GIF by Pillow, MP4 by ffmpeg, the same bytes each time."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from tokendynamics.numerics.errors import ArgumentValueError, TokenDynamicsError, expected
from tokendynamics.numerics.extras import install, missing


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
    found = shutil.which("ffmpeg")
    if found is None and not missing("animations"):
        try:
            found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        except RuntimeError:
            found = None  # the package came without a program for this platform
    if found is None:
        wanted = "ffmpeg on the PATH or the package imageio-ffmpeg, to write an .mp4"
        raise ArgumentValueError(expected("path", wanted, "neither", f"{install('animations')}, or write a .gif"))
    return found


def _even(frame: np.ndarray) -> np.ndarray:
    # H.264 with halved colour resolution needs even sides: repeat the (white) last row or column.
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
