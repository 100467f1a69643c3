"""Films are whole or absent, as long as what they show, and of a bounded size."""

from __future__ import annotations

import builtins
import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from freewheel.errors import ConfigError, EnvError
from freewheel.films import film as films
from freewheel.films.film import Film, check_film

Array = np.ndarray[Any, Any]


def frame(i: int, width: int = 60, height: int = 40) -> Array:
    """A grey field with a red square that moves with i."""
    drawn = np.full((height, width, 3), 200, np.uint8)
    drawn[10:20, i % (width - 10) : i % (width - 10) + 10] = (255, 0, 0)
    return drawn


def shoot(path: Path, count: int, fps: float = 25, size: int | None = None, width: int = 60, height: int = 40) -> Film:
    with Film(path, fps, size) as film:
        for i in range(count):
            film.add(frame(i, width, height))
    return film


def read_gif(path: Path) -> tuple[list[Array], list[int], dict[str, Any]]:
    frames, durations = [], []
    with Image.open(path) as image:
        info = dict(image.info)
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB")))
            durations.append(image.info["duration"])
    return frames, durations, info


def read_mp4(path: Path) -> tuple[tuple[int, int], float, list[Array]]:
    """Its size, frames per second and frames, as ffmpeg decodes them."""
    program = imageio_ffmpeg.get_ffmpeg_exe()
    raw = ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]
    done = subprocess.run([program, "-i", str(path), *raw], capture_output=True, check=True, timeout=60)
    told = re.search(rb"Video: h264.*?, (\d+)x(\d+).*? ([\d.]+) fps", done.stderr)
    assert told is not None
    width, height = int(told[1]), int(told[2])
    return (width, height), float(told[3]), list(np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3))


def place_of_red(image: Array) -> int:
    """The left edge of the square."""
    red = (image[:, :, 0] > 180) & (image[:, :, 1] < 90)
    return int(np.flatnonzero(red.any(axis=0))[0])


def test_a_gif_has_the_frames_in_order(tmp_path: Path) -> None:
    film = shoot(tmp_path / "a.gif", 12)
    frames, durations, info = read_gif(tmp_path / "a.gif")
    assert film.num_frames == film.num_shown == len(frames) == 12
    assert [place_of_red(image) for image in frames] == list(range(12))
    assert np.abs(frames[3].astype(int) - frame(3)).max() < 8
    assert durations == [40] * 11 + [1000]
    assert info["loop"] == 0
    assert os.listdir(tmp_path) == ["a.gif"]


@pytest.mark.parametrize("fps", [7, 15, 24, 30, 50, 60, 144, 1000])
def test_a_gif_takes_as_long_as_what_it_shows(tmp_path: Path, fps: float) -> None:
    """Viewers slow down frames below 0.02 s, and the format counts in 0.01 s: neither may add up."""
    film = shoot(tmp_path / "a.gif", 45, fps)
    frames, durations, _ = read_gif(tmp_path / "a.gif")
    assert len(frames) == film.num_frames
    assert place_of_red(frames[-1]) == 44
    assert min(durations) >= 20
    assert (sum(durations) - 1000) / 1000 == pytest.approx(44 / fps, abs=0.025)


@pytest.mark.parametrize("count", range(20, 50))
def test_a_long_gif_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(films, "MOST_PIXELS", 60 * 40 * 12)
    film = shoot(tmp_path / "a.gif", count)
    frames, durations, _ = read_gif(tmp_path / "a.gif")
    assert film.num_shown == count
    assert 6 <= len(frames) == film.num_frames <= 13
    places = [place_of_red(image) for image in frames]
    every = places[1]
    assert places[:-1] == list(range(0, count - 1, every))
    assert places[-1] == count - 1
    assert sum(durations) == 40 * (count - 1) + 1000


def test_a_frame_that_stays_is_shown_longer(tmp_path: Path) -> None:
    with Film(tmp_path / "a.gif", 25) as film:
        for i in (0, 0, 0, 5):
            film.add(frame(i))
    frames, durations, _ = read_gif(tmp_path / "a.gif")
    assert [place_of_red(image) for image in frames] == [0, 5]
    assert durations == [120, 1000]


def test_one_frame_is_a_film(tmp_path: Path) -> None:
    shoot(tmp_path / "a.gif", 1)
    shoot(tmp_path / "a.mp4", 1)
    assert len(read_gif(tmp_path / "a.gif")[0]) == 1
    assert len(read_mp4(tmp_path / "a.mp4")[2]) == 1


@pytest.mark.parametrize(
    ("name", "width", "height", "size", "expected"),
    [
        ("a.gif", 600, 400, None, (400, 267)),
        ("a.gif", 61, 41, None, (61, 41)),
        ("a.gif", 600, 400, 600, (600, 400)),
        ("a.gif", 60, 40, 120, (120, 80)),
        ("a.mp4", 600, 400, None, (600, 400)),
        ("a.mp4", 61, 41, None, (60, 40)),
        ("a.mp4", 600, 400, 100, (100, 66)),
    ],
)
def test_the_size(
    tmp_path: Path, name: str, width: int, height: int, size: int | None, expected: tuple[int, int]
) -> None:
    path = tmp_path / name
    shoot(path, 2, size=size, width=width, height=height)
    if name == "a.gif":
        assert read_gif(path)[0][0].shape[1::-1] == expected
    else:
        assert read_mp4(path)[0] == expected


def test_an_mp4_has_all_frames(tmp_path: Path) -> None:
    film = shoot(tmp_path / "A.MP4", 30, fps=30, width=64, height=48)
    size, fps, frames = read_mp4(tmp_path / "A.MP4")
    assert film.num_frames == len(frames) == 30
    assert (size, fps) == ((64, 48), 30)
    assert [place_of_red(image) for image in frames] == pytest.approx(list(range(30)), abs=1)
    assert os.listdir(tmp_path) == ["A.MP4"]


@pytest.mark.parametrize("name", ["a.gif", "a.mp4"])
def test_an_error_keeps_the_older_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"older")

    def fail() -> None:
        with Film(tmp_path / name, 25) as film:
            for i in range(9):
                film.add(frame(i))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"older"


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_full_disk_keeps_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (tmp_path / "a.gif").write_bytes(b"older")

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Film(tmp_path / "b.gif", 25):  # what is imported late is there
        pass
    monkeypatch.setattr(builtins if call == "open" else os, call, full)
    with pytest.raises(ConfigError, match=r"a\.gif could not be written: No space left on device\. Free some space"):
        shoot(tmp_path / "a.gif", 3)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["a.gif"]
    assert (tmp_path / "a.gif").read_bytes() == b"older"


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from freewheel.errors import ConfigError
from freewheel.films.film import Film
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
noise = np.random.default_rng(0)
try:
    with Film(Path(sys.argv[1]), 25) as film:
        for i in range(int(sys.argv[2])):
            film.add(noise.integers(256, size=(200, 200, 3)).astype(np.uint8))
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(("name", "count"), [("a.gif", 5), ("a.mp4", 5), ("a.mp4", 200)])
def test_a_file_that_may_not_grow(tmp_path: Path, name: str, count: int) -> None:
    """A disk that is full in earnest: ffmpeg meets it while it gets frames, or only at the end."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / name), str(count)], capture_output=True, text=True, timeout=60
    )
    assert f"{name} could not be written: " in done.stdout, done.stderr
    assert os.listdir(tmp_path) == []


def test_frames_that_are_none(tmp_path: Path) -> None:
    for wrong in (None, np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), [1]):
        with (
            pytest.raises(EnvError, match=r"the env gave .* from render\(\); a frame is an array"),
            Film(tmp_path / "a.gif", 25) as film,
        ):
            film.add(wrong)
    with Film(tmp_path / "b.gif", 25) as film:
        film.add(frame(0))
        with pytest.raises(EnvError, match="need the same shape"):
            film.add(frame(0, width=80))
    assert os.listdir(tmp_path) == ["b.gif"]


def test_a_film_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.gif").mkdir()
    wrong: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "a.avi", {}, r"has the ending '\.avi'; films are written as \.gif or \.mp4"),
        (tmp_path / "a", {}, "has the ending ''"),
        (tmp_path / "none" / "a.gif", {}, "there is no folder .*none. Make it"),
        (tmp_path / "folder.gif", {}, "is a folder"),
        (tmp_path / "a.gif", {"fps": 0.0}, "--fps 0.0 must be"),
        (tmp_path / "a.gif", {"fps": float("nan")}, "--fps nan must be"),
        (tmp_path / "a.gif", {"size": 8}, "--size 8 must be"),
    ]
    for path, settings, message in wrong:
        with pytest.raises(ConfigError, match=message):
            check_film(path, **settings)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="no permission. Choose another place with --out"):
        check_film(tmp_path / "a.gif")


@pytest.mark.parametrize(("name", "module"), [("a.mp4", "imageio_ffmpeg"), ("a.gif", "PIL")])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image" if module == "PIL" else module, None)
    with pytest.raises(ConfigError, match=rf'needs {module}, .* pip install "freewheel\[video\]"'):
        check_film(tmp_path / name)


def test_a_missing_ffmpeg_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_program() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", no_program)
    with pytest.raises(ConfigError, match=r"needs ffmpeg: No ffmpeg exe could be found\. pip install"):
        Film(tmp_path / "a.mp4", 25)
