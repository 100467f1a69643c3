"""Builds revisions of this package side by side, each in an environment of its own that shares the installed dependencies."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "sides"
# The commit before the rebuilding of the package's middle: what behaviour and speed are held against.
BASE = "f930fd5f064820fdc2999f483a760a54ed365084"
# A cold build of the core takes about a minute on two cores.
BUILD_S = 1_200


class BuildError(Exception):
    """A revision that is not there, or that does not build; says why."""


def build_revision(revision: str = BASE) -> Path:
    """The interpreter of an environment with this commit installed; built once and kept."""
    commit = find_commit(revision)
    folder = FOLDER / commit[:12]
    with locked(folder):
        done = folder / "done"
        if not done.exists():
            shutil.rmtree(folder / "source", ignore_errors=True)
            _export(commit, folder / "source")
            _install(folder / "source", folder)
            done.touch()
    return interpreter(folder)


def build_checkout() -> Path:
    """The interpreter of an environment with the files of this checkout, as they are at this moment."""
    folder = FOLDER / "checkout"
    with locked(folder):
        _install(ROOT, folder)
    return interpreter(folder)


def find_commit(revision: str) -> str:
    """The full name of a commit; a BuildError where there is no git, no history or no such commit."""
    if not (ROOT / ".git").exists():
        raise BuildError(f"{ROOT} has no git history, so commit {revision[:7]} cannot be built")
    try:
        return _output(["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]).decode().strip()
    except (OSError, BuildError) as error:
        raise BuildError(f"commit {revision[:7]} is not in the git history of {ROOT}") from error


def interpreter(folder: Path) -> Path:
    return folder / "env" / "bin" / "python"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process builds at a time; the others wait and find it built."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clean_environment() -> dict[str, str]:
    """This process's environment without what would put another package on the path."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _export(commit: str, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(_output(["git", "archive", commit]))) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def _install(source: Path, folder: Path) -> None:
    site = _make_environment(folder / "env")
    shutil.rmtree(site / "freewheel", ignore_errors=True)  # a file that has gone must not be found
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    how = ["--no-build-isolation", "--upgrade", "--target", str(site), f"-Cbuild-dir={folder / 'core'}"]
    _output([*pip, *how, str(source)])


def _make_environment(folder: Path) -> Path:
    """A virtual environment; gives its site-packages.

    It sees the packages of ours through a .pth file. Python reads no .pth files there, so our editable install stays unseen.
    """
    found = list(folder.glob("lib/python*/site-packages"))
    if not found:
        _output([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        found = list(folder.glob("lib/python*/site-packages"))
        shared = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (found[0] / "shared.pth").write_text("\n".join(shared) + "\n")
    return found[0]


def _output(command: list[str]) -> bytes:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=BUILD_S, check=False)
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip()[-2_000:]
        raise BuildError(f"{' '.join(command)} failed with {done.returncode}:\n{tail}")
    return done.stdout
