"""A run's folder: its settings, checkpoints and logs, and the lock that keeps two processes from training in it.

runs/CartPole-v1-dqn-0-20260131-154500/
  run.json       env, algorithm, seed and start time; a folder without it is not a run
  config.json    the effective settings        status.json   the progress
  checkpoints/   see checkpoint.py             result.json   the final result
  metrics.csv    episodes.csv    tb/           lock          held while a process trains in it
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from freewheel.errors import MOST_SHOWN, CheckpointError, ConfigError, FreewheelError
from freewheel.store import disk, signature

DEFAULT_ROOT = Path("runs")
IDENTITY, CONFIG, STATUS, RESULT, LOCK = "run.json", "config.json", "status.json", "result.json", "lock"
MOST_JSON_BYTES = 4 << 20
# A process that only checks the lock holds it for microseconds; a training waits that long.
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.02
MOST_NAME = 80
# Names of policies become names of files. A checkpoint is a folder step-N.
POLICY_NAME = re.compile(r"(?!step-)[A-Za-z0-9_-]{1,64}")
# Folders of a run that are written by name; what they hold is replaced, not written through.
WRITTEN_INTO = (".", "checkpoints", "profile")


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. `problem` says why run.json could not be read; only `list_runs` sets it."""

    path: Path
    env: str
    algo: str
    seed: int
    started_s: float
    problem: str = ""
    signature: str = ""  # of its settings

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tb"

    def config(self) -> dict[str, Any]:
        """The effective settings of the run; `policies` has those of each of several policies."""
        found = _read_object(self.path / CONFIG)
        if "policies" in found and not is_by_policy(found["policies"]):
            raise CheckpointError(f"run {self.path}: {CONFIG} is damaged: policies must have settings by name.")
        return found

    def why_foreign(self, config: Mapping[str, Any]) -> str:
        """Why settings that `config` returned may be somebody else's; "" if this user made the run with them."""
        return signature.why_foreign(CONFIG, signature.text_of(config), self.signature)

    def refuse_links(self) -> None:
        """A link in a folder from elsewhere may lead anywhere: writing through it could overwrite any file of the user."""
        for folder in WRITTEN_INTO:
            with suppress(OSError), os.scandir(self.path / folder) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        raise CheckpointError(
                            f"run {self.path}: {Path(folder, entry.name)} is a link to {os.readlink(entry.path)}, and a run writes "
                            "only into its own folder. Put what it links to in its place, or remove it."
                        )

    def write_status(self, status: str, **figures: Any) -> None:
        """`status` is `running`, `finished`, `stopped`, `failed` or `unsaved`; `figures` are numbers such as steps=..."""
        value = {"status": status, "updated_s": time.time(), **figures}
        try:
            # Not durable: it is written often, and little is lost with it.
            _write_object(self.path / STATUS, value, is_durable=False)
        except CheckpointError:
            try:
                disk.overwrite(self.path / STATUS, _text(value))
            except OSError:
                pass
            else:
                return
            raise

    def write_result(self, result: Mapping[str, Any]) -> None:
        _write_object(self.path / RESULT, result)

    def result(self) -> dict[str, Any] | None:
        """The final result; None before the end."""
        return _read_object(self.path / RESULT) if (self.path / RESULT).exists() else None

    def status(self) -> dict[str, Any]:
        """The last status. A run that is `running` without its lock has `died`."""
        if not (self.path / STATUS).exists():
            return {"status": "running" if self.is_in_use() else "new"}
        status = _read_object(self.path / STATUS)
        if status.get("status") == "running" and not self.is_in_use():
            status["status"] = "died"
        return status

    def num_bytes(self) -> int:
        """Bytes of its files; links are not followed."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue  # a checkpoint was removed meanwhile
        return total

    def is_in_use(self) -> bool:
        """True while a process trains in it. The kernel frees the lock when that process ends."""
        try:
            fd = _open_lock(self.path)
        except OSError:
            return False
        try:
            return not _try_lock(fd)
        finally:
            os.close(fd)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run for this process. A ConfigError names the process that has the lock; a CheckpointError what is in its place."""
        path = self.path / LOCK
        try:
            fd = _open_lock(self.path, os.O_CREAT)
        except OSError as error:
            kind = CheckpointError if path.is_symlink() or (path.exists() and not path.is_file()) else ConfigError
            raise kind(f"run {self.path} cannot be locked: {error.strerror}. Is the folder yours?") from error
        try:
            for _ in range(LOCK_TRIES):
                if _try_lock(fd):
                    break
                time.sleep(LOCK_PAUSE_S)
            else:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                raise ConfigError(
                    f"run {self.name} is in use by process {holder}. Wait until it ends, stop it, or start another run."
                )
            if not path.exists() or path.stat().st_ino != os.fstat(fd).st_ino:
                raise ConfigError(f"run {self.name} was removed meanwhile.")
            os.truncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            disk.sweep(self.path)
            yield
        finally:
            os.close(fd)


def new_run(root: Path, env: str, algo: str, seed: int, config: Mapping[str, Any]) -> RunFolder:
    """Makes the folder of a new run, readable only by its owner. Runs that start at the same time get different folders."""
    root, started_s = root.absolute(), time.time()  # an env may change the current folder
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_s))
    stem = f"{_plain(env)}-{_plain(algo)}-{seed}-{stamp}"
    identity = {"env": env, "algo": algo, "seed": seed, "started_s": started_s, "freewheel": version("freewheel")}
    identity["signature"] = signed = signature.sign(CONFIG, signature.text_of(config))
    try:
        root.mkdir(parents=True, exist_ok=True)
        disk.sweep(root)
        with disk.temp_folder(root) as temp:
            disk.write_new(temp / IDENTITY, _text(identity))
            disk.write_new(temp / CONFIG, _text(config))
            os.mkdir(temp / "checkpoints", 0o700)
            path = _claim(temp, root, stem)
        disk.sync_folder(root)
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"no run folder can be made in {str(root)[:MOST_SHOWN]}: {why}. Choose another place for runs."
        ) from error
    return RunFolder(path, env, algo, seed, started_s, signature=signed)


def spare_run(run: Path, place: str = "") -> Path:
    """A private copy of a run without its checkpoints and logs, in the folder `place`, by default the one for temporary files."""
    parent = Path(place or tempfile.gettempdir())
    path, is_new = parent.absolute() / f"freewheel-{run.name}", False
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
            is_new = True
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            path = Path(
                tempfile.mkdtemp(prefix=f"{path.name}-", dir=parent)
            )  # another user may have made the other one
        for name in (IDENTITY, CONFIG):
            disk.replace(path / name, (run / name).read_bytes())
    except OSError as error:
        if is_new:
            shutil.rmtree(path, ignore_errors=True)
        raise CheckpointError(f"{path} cannot be made: {error.strerror or error}.") from error
    return path


def open_run(path_or_name: str | Path, root: Path = DEFAULT_ROOT) -> RunFolder:
    """A run by its name in `root`, or by the path of its folder."""
    for path in (root / path_or_name, Path(path_or_name)):
        if path.is_dir():
            return _read_run(path.resolve())
    names = [run.name for run in list_runs(root)]
    near = difflib.get_close_matches(Path(path_or_name).name, names, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"there is no run {str(path_or_name)!r} in {root.absolute()}.{guess} 'freewheel runs' lists the {len(names)} there."
    )


def list_runs(root: Path = DEFAULT_ROOT) -> list[RunFolder]:
    """The runs in `root`, oldest first. A run that cannot be read has a `problem`. Other folders are skipped."""
    try:
        paths = [root / name for name in os.listdir(root) if not name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"the runs in {root.absolute()} cannot be listed: {error.strerror}.") from error
    runs = []
    for path in paths:
        try:
            if path.is_symlink() or not os.path.lexists(path / IDENTITY):
                continue
            runs.append(_read_run(path))
        except (FreewheelError, OSError) as error:
            runs.append(RunFolder(path, "?", "?", 0, os.lstat(path).st_mtime, problem=str(error)))
    return sorted(runs, key=lambda run: (run.started_s, run.name))


def remove_run(run: RunFolder) -> None:
    """Removes a run, unless a process trains in it."""
    away = disk.temp_in(run.path.parent)
    with run.lock():
        try:
            # Renamed first: a crash during the removal leaves nothing that looks like a run.
            os.rename(run.path, away)
        except OSError as error:
            raise ConfigError(f"run {run.path} cannot be removed: {error.strerror}. Is the folder yours?") from error
        disk.remove(away)


def _claim(temp: Path, root: Path, stem: str) -> Path:
    """Renames to a free name. A rename onto another run fails, because that folder is not empty."""
    for count in itertools.count(1):
        path = root / (stem if count == 1 else f"{stem}-{count}")
        try:
            os.rename(temp, path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
    return path


def _plain(text: str) -> str:
    """Text for a folder's name: `ALE/Pong-v5` becomes `ALE-Pong-v5`, `my.module:make` becomes `my.module-make`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:MOST_NAME] or "env"


def _read_run(path: Path) -> RunFolder:
    if not os.access(path, os.R_OK | os.X_OK):
        raise CheckpointError(f"run {path} cannot be read: permission denied. Is the folder yours?")
    if not os.path.lexists(path / IDENTITY):
        raise ConfigError(f"{path} is not a run: it has no {IDENTITY}. Give the name of a run ('freewheel runs').")
    identity = _read_object(path / IDENTITY)
    kinds = {"env": str, "algo": str, "seed": int, "started_s": float}
    wrong = [key for key, kind in kinds.items() if type(identity.get(key)) is not kind]
    if wrong:
        raise CheckpointError(f"run {path}: {IDENTITY} is damaged: {', '.join(wrong)} missing or of the wrong type.")
    signed = identity.get("signature", "")
    return RunFolder(path, **{key: identity[key] for key in kinds}, signature=signed if type(signed) is str else "")


def is_by_policy(value: Any) -> bool:
    """Whether a folder has something for each of several policies, by names that they may have."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(POLICY_NAME.fullmatch(name) and isinstance(each, dict) for name, each in value.items())
    )


def _open_lock(run: Path, more: int = 0) -> int:
    """Does not block, whatever is in the place of the lock; an OSError says what."""
    fd = os.open(run / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | more, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PermissionError(1, f"{LOCK} is not a regular file; remove it")
    return fd


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with disk.open_folder(path.parent) as fd:
            return disk.parse_json(path.name, disk.read_bytes(path.name, fd, MOST_JSON_BYTES))
    except CheckpointError as error:
        raise CheckpointError(f"run {path.parent}: {error}") from None


def _write_object(path: Path, value: Mapping[str, Any], is_durable: bool = True) -> None:
    try:
        disk.replace(path, _text(value), is_durable)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}. Make room there.") from error


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value), indent=1).encode() + b"\n"


def _try_lock(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
