"""Writes frames as a GIF or an MP4: the file is complete or absent, and its size is bounded."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from freewheel.contracts import Array
from freewheel.errors import ConfigError, EnvError
from freewheel.store import disk

if TYPE_CHECKING:
    from PIL.Image import Image

NEEDS = {".gif": ["PIL.Image"], ".mp4": ["PIL.Image", "imageio_ffmpeg"]}
# 600 frames of 400 x 267, about 200 MB while the film is made. A perfect episode of CartPole keeps all its frames.
MOST_PIXELS = 64_000_000
GIF_SIDE = 400
MOST_SIDE = 4096
# Viewers show a frame of less than 0.02 s for 0.1 s.
SHORTEST_S = 0.02
# A loop that begins again at once hides how the episode ended.
LAST_S = 1.0
PALETTE_FRAMES = 16
FFMPEG_S = 60.0


def check_film(path: Path, fps: float = 1.0, size: int | None = None) -> None:
    """Refuses a film that cannot be written, before anything is played."""
    suffix = path.suffix.lower()
    if suffix not in NEEDS:
        raise ConfigError(f"--out {path} has the ending {suffix!r}; films are written as .gif or .mp4.")
    if not (math.isfinite(fps) and 0 < fps <= 1000):
        raise ConfigError(f"--fps {fps} must be above 0 and at most 1000.")
    if size is not None and not 16 <= size <= MOST_SIDE:
        raise ConfigError(f"--size {size} must be between 16 and {MOST_SIDE} pixels.")
    for module in NEEDS[suffix]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            other = ", or write a .gif" if module == "imageio_ffmpeg" else ""
            raise ConfigError(
                f'a {suffix} film needs {module.partition(".")[0]}, which is not installed. pip install "freewheel[video]"{other}'
            ) from error
    if suffix == ".mp4":
        _find_ffmpeg()
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}. Make it, or choose another place.")
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder. Give the name of a file.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} cannot be written: no permission. Choose another place with --out.")


class Film:
    """Takes frames (uint8 [height, width, 3]). The file appears when the `with` block ends without an error.

    `size` is the longest side in pixels; None keeps the frames' size, but at most 400 in a GIF. `env` is the name of the env in errors.
    """

    def __init__(self, path: Path, fps: float, size: int | None = None, env: str = "the env") -> None:
        check_film(path, fps, size)
        self.path = path
        self.num_shown = 0
        self._fps, self._size, self.env = fps, size, env
        self._shape: tuple[int, ...] = ()
        self._temp = disk.temp_in(path.parent.absolute())
        self._is_gif = path.suffix.lower() == ".gif"
        self._encoder: Gif | Mp4 | None = None  # made with the first frame

    @property
    def num_frames(self) -> int:
        """Frames in the file; a long GIF leaves some out."""
        return 0 if self._encoder is None else self._encoder.num_frames

    def checked(self, frame: Any) -> Array:
        """Refuses anything that is not a frame."""
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            what = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise EnvError(f"{self.env} gave {what} from render(); a frame is an array of uint8 [height, width, 3].")
        return frame

    def add(self, frame: Any) -> None:
        frame = self.checked(frame)
        self._shape = self._shape or frame.shape
        if frame.shape != self._shape or 0 in frame.shape:
            raise EnvError(
                f"{self.env} gave a frame of shape {frame.shape} after {self._shape} from render(); all frames of a film need "
                "the same shape."
            )
        self.num_shown += 1
        with self._writing():
            image = self._fitted(frame)
            if self._encoder is None:
                self._encoder = Gif(self._temp, self._fps) if self._is_gif else Mp4(self._temp, self._fps, image.size)
            self._encoder.add(image)

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._encoder is None:
            return
        try:
            if error is None:
                with self._writing():
                    self._encoder.finish()
                    with open(self._temp, "rb") as file:
                        os.fsync(file.fileno())
                    os.replace(self._temp, self.path)
        finally:
            self._encoder.stop()
            disk.remove(self._temp)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"{self.path} could not be written: {error.strerror or error}. "
                "Free some space there, or choose another place with --out."
            ) from error

    def _fitted(self, frame: Array) -> Image:
        from PIL import Image

        image = Image.fromarray(frame)
        longest = max(image.size)
        wanted = self._size or (min(longest, GIF_SIDE) if self._is_gif else longest)
        sides = [max(1, round(side * wanted / longest)) for side in image.size]
        if not self._is_gif:
            sides = [max(2, side - side % 2) for side in sides]  # H.264 needs even sides
        if wanted == longest:
            return image.crop((0, 0, sides[0], sides[1]))
        # Small drawings keep their square pixels when they are enlarged.
        how = Image.Resampling.LANCZOS if wanted < longest else Image.Resampling.NEAREST
        return image.resize((sides[0], sides[1]), how)


class Gif:
    """Keeps every n-th frame, so that viewers can show each long enough, and the last frame.

    Each time the kept frames exceed MOST_PIXELS, n is doubled and every second frame is dropped: the film keeps its duration.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._every = max(1, math.ceil(fps * SHORTEST_S))
        self._kept: list[tuple[int, Image]] = []
        self._count = 0

    @property
    def num_frames(self) -> int:
        return len(self._kept)

    def add(self, image: Image) -> None:
        if self._kept and self._kept[-1][0] % self._every:
            self._kept.pop()  # it was kept only as the last
        self._kept.append((self._count, image))
        self._count += 1
        if len(self._kept) * image.width * image.height > MOST_PIXELS and len(self._kept) > 2:
            self._every *= 2
            *before, last = self._kept
            self._kept = [*(frame for frame in before if frame[0] % self._every == 0), last]

    def finish(self) -> None:
        from PIL import Image

        palette = self._palette()
        frames = (image.quantize(palette=palette, dither=Image.Dither.NONE) for _, image in self._kept)
        with open(self._path, "xb") as file:
            next(frames).save(
                file, "GIF", save_all=True, append_images=frames, duration=self._durations_ms(), loop=0, optimize=False
            )

    def stop(self) -> None:
        """Nothing runs between two calls."""

    def _palette(self) -> Image:
        """One palette for all frames: with one palette each, still areas would flicker and need more bytes."""
        from PIL import Image

        images = [image for _, image in self._kept]
        chosen = images[:: math.ceil(len(images) / PALETTE_FRAMES)]
        chosen = chosen if chosen[-1] is images[-1] else [*chosen, images[-1]]
        width, height = images[0].size
        strip = Image.new("RGB", (width, height * len(chosen)))
        for i, image in enumerate(chosen):
            strip.paste(image, (0, i * height))
        return strip.quantize(255)  # one colour is left for transparency: pixels that do not change

    def _durations_ms(self) -> list[int]:
        """A GIF counts hundredths of a second. Rounds each frame's time, not its duration, so that errors do not add up."""
        times = [round(100 * index / self._fps) for index, _ in self._kept]
        shown = [10 * (after - before) for before, after in pairwise(times)]
        return [max(duration, int(1000 * SHORTEST_S)) for duration in shown] + [int(1000 * LAST_S)]


class Mp4:
    """Pipes the frames to ffmpeg; its exit code says whether the file is complete."""

    def __init__(self, path: Path, fps: float, sides: tuple[int, int]) -> None:
        self.num_frames = 0
        rate = str(Fraction(fps).limit_denominator(1001))
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{sides[0]}x{sides[1]}", "-r", rate, "-i", "pipe:0"]
        # crf 20: no visible difference in drawings. faststart: a browser can play it before all of it is loaded.
        film = ["-an", "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
        # Errors go to a file: nothing reads a pipe while frames are written, and a full pipe would block both sides.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = subprocess.Popen(
            [_find_ffmpeg(), "-v", "error", "-nostdin", "-n", *raw, *film, f"file:{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C must not reach it
        )
        self._pipe = cast("IO[bytes]", self._child.stdin)

    def add(self, image: Image) -> None:
        try:
            self._pipe.write(image.tobytes())
        except OSError as error:
            raise OSError(self._message()) from error
        self.num_frames += 1

    def finish(self) -> None:
        with suppress(OSError):  # the exit code says more
            self._pipe.close()
        try:
            code = self._child.wait(FFMPEG_S)
        except subprocess.TimeoutExpired:
            raise OSError(f"ffmpeg has not ended within {FFMPEG_S:.0f} s") from None
        if code != 0:
            raise OSError(self._message())

    def stop(self) -> None:
        with suppress(OSError):
            self._pipe.close()
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._errors.close()

    def _message(self) -> str:
        """The last line that ffmpeg wrote before it failed."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return (
            f"ffmpeg says: {lines[-1].strip().rstrip('.')}" if lines else f"ffmpeg ended with code {self._child.poll()}"
        )


def _find_ffmpeg() -> str:
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except RuntimeError as error:
        raise ConfigError(f'an .mp4 film needs ffmpeg: {error} pip install "freewheel[video]"') from error
