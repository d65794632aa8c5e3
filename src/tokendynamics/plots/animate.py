"""Moving pictures of a run, one frame for each saved state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tokendynamics.numerics.arguments import ArrayLike, as_positive
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.plots import style
from tokendynamics.plots.files import known_suffix
from tokendynamics.plots.recording import Recording, Run, read_run
from tokendynamics.plots.scene import Scene
from tokendynamics.plots.sizes import check_pixels
from tokendynamics.plots.style import SINGLE, panels, paper_style
from tokendynamics.plots.video import find_ffmpeg, write_gif, write_mp4
from tokendynamics.plots.view import choose_view
from tokendynamics.provenance.whole_file import whole_file
from tokendynamics.spaces import Space

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
        seconds: How long it takes: so many saved states are picked, evenly by their number, the first and the last
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
    kind = known_suffix(path, ("gif", "mp4"))
    _check_rate(kind, frames_per_second)
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
        raise ArgumentValueError(expected("seconds", wanted, f"{seconds:g}", advice))
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


def _check_rate(kind: str, frames_per_second: float) -> None:
    if not frames_per_second > 0:
        raise ArgumentValueError(expected("frames_per_second", "a positive number", frames_per_second))
    if kind == "gif" and frames_per_second > _FASTEST_GIF:
        advice = "write an .mp4 for more"
        raise ArgumentValueError(expected("frames_per_second", "at most 50 for a GIF", frames_per_second, advice))
