"""Writes films as GIF or MP4 files. Requires the extra ``video`` (pillow, imageio-ffmpeg)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base import files
from recollect.errors import ConfigError, RecollectError
from recollect.play.frames import Film

if TYPE_CHECKING:
    from PIL.Image import Image

SLOW, FAST = 6.0, 30.0
"""Steps per second without frames, and the maximum with frames."""
PAUSE = 1.2
"""Seconds that the image after an episode's end stays."""
COLOURS, SAMPLED = 128, 8
"""Colours of a GIF, and the number of images that they are computed from."""
SUFFIXES = (".gif", ".mp4")


def write_film(film: Film, path: str | Path, *, fps: float | None = None) -> Path:
    """Draw every step and write the video, .gif or .mp4 by suffix.

    Args:
        film: the episodes.
        path: the file; an existing one is replaced when the new one is complete.
        fps: steps per second; None: the env's, at most 30, or 6 for an env without frames.
    """
    path = check_path(path)
    rate = fps if fps is not None else min(film.fps or FAST, FAST) if film.frames else SLOW
    if not 0 < rate <= 100:
        raise ConfigError(f"fps = {rate}: give a number above 0 and up to 100")
    suffix = path.suffix.lower()
    with files.writing(f"{path} could not be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path, suffix) as part:
        part.touch(exist_ok=False)  # fails here, not in an encoder, if the folder is read-only
        (_write_gif if suffix == ".gif" else _write_mp4)(film, part, rate)
    return path


def check_path(path: str | Path) -> Path:
    """Validate the path and the installed packages before anything is played."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a video is a .gif or an .mp4 file; name it {path.stem or 'play'}.gif")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file in it, such as {path / 'play.gif'}")
    files.check_replaceable(path)
    _need("PIL", "pillow", "videos")
    if path.suffix.lower() == ".mp4":
        _need("imageio_ffmpeg", "imageio-ffmpeg", "MP4 files")
    return path


def pictures(film: Film) -> Iterator[tuple[Image, bool]]:
    """Every image, and whether it is the one after an episode's end."""
    from recollect.play.draw import Painter

    painter = Painter(film)
    for episode, step in _steps(film):
        yield painter.picture(episode, step), step == len(film.traces[episode])


def _steps(film: Film) -> list[tuple[int, int]]:
    """(episode, step) of every image; the step after the last is the image after the episode's end."""
    return [(e, step) for e, trace in enumerate(film.traces) for step in range(len(trace) + 1)]


def _write_gif(film: Film, path: Path, fps: float) -> None:
    from PIL.Image import Dither

    # GIF durations are in hundredths of a second, and viewers slow down durations below two.
    each = max(20, round(100 / fps) * 10)
    last = max(each, round(PAUSE * 1000))
    durations = [each if step < len(film.traces[episode]) else last for episode, step in _steps(film)]
    palette = _palette(film)
    images = (image.quantize(palette=palette, dither=Dither.NONE) for image, _ in pictures(film))
    first = next(images)
    first.save(path, save_all=True, append_images=images, duration=durations, loop=0, optimize=False)


def _palette(film: Film) -> Image:
    """One palette for the whole film, from images all over it: half the size, and constant colours."""
    from PIL import Image

    from recollect.play.draw import HEIGHT, WIDTH, Painter

    painter = Painter(film)
    steps = _steps(film)
    some = steps[:: -(-len(steps) // SAMPLED)]
    size = (WIDTH // 2, HEIGHT // 2)  # a quarter of the pixels has the same colours
    montage = Image.new("RGB", (size[0], size[1] * len(some)))
    for i, (episode, step) in enumerate(some):
        picture = painter.picture(episode, step).resize(size, Image.Resampling.NEAREST)
        montage.paste(picture, (0, size[1] * i))
    return montage.quantize(COLOURS)


def _write_mp4(film: Film, path: Path, fps: float) -> None:
    import imageio_ffmpeg

    from recollect.play.draw import HEIGHT, WIDTH

    writer: Any = imageio_ffmpeg.write_frames(
        str(path),
        (WIDTH, HEIGHT),
        fps=fps,  # pyright: ignore[reportArgumentType]  (a float will do)
        macro_block_size=2,
        ffmpeg_log_level="error",
    )
    writer.send(None)
    try:
        for image, is_end in pictures(film):
            for _ in range(max(1, round(PAUSE * fps)) if is_end else 1):
                writer.send(image.tobytes())
    finally:
        writer.close()


def _need(module: str, package: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise RecollectError(
            f"{what} need {package}, which is not installed here: pip install 'recollect[video]', or "
            "play as text, with --text"
        )
