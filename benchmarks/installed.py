"""Where the peers are installed, and which of those a user asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.packages import PACKAGES, PEERS
from freewheel.bench.checks import check_names
from freewheel.bench.child import Program
from freewheel.errors import ConfigError

ROOT = Path(__file__).parents[1]
# Our own modules here are found by the first. Peers' interpreters have no freewheel: they take `freewheel.bench.worker` from the second.
OUR_PATH = (ROOT,)
PEER_PATH = (ROOT, ROOT / "src")
HERE = Path(sys.executable)

FOLDER = ".venv-peers"
HOW_TO_GET = "peers are not installed: run 'make peers'"
LOOK_TIMEOUT_S = 60.0


def find_python(venv: str = "") -> Path | None:
    """The peers' interpreter: of FREEWHEEL_PEERS, of the current directory, or of the repository.

    `venv` is for those that have an environment of their own; it lies beside that of the others.
    """
    suffix = f"-{venv}" if venv else ""
    named = os.environ.get("FREEWHEEL_PEERS")
    if named:
        folder = Path(named).absolute()
        python = folder.with_name(folder.name + suffix) / "bin" / "python"
        if python.exists():
            return python
        if venv:
            return None
        raise ConfigError(f"FREEWHEEL_PEERS={named} has no bin/python. Unset it or run 'make peers'.")
    for place in (Path.cwd(), ROOT):
        python = place / (FOLDER + suffix) / "bin" / "python"
        if python.exists():
            return python
    return None


def program(python: Path, module: str, *args: str) -> Program:
    """A module of `benchmarks.peers` in a peers' interpreter, or in ours."""
    return Program(python, f"benchmarks.peers.{module}", args, PEER_PATH)


def installed_peers(python: Path, known: Sequence[str] = PEERS) -> list[str]:
    """The peers this interpreter can find, without importing them."""
    look = (
        "import importlib.util, json, sys;"
        "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))"
    )
    modules = [PACKAGES[peer].module for peer in known]
    try:
        done = subprocess.run(
            [str(python), "-c", look, *modules],
            capture_output=True,
            text=True,
            timeout=LOOK_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        raise ConfigError(f"{python} does not run: {said}. Remove {FOLDER} and run 'make peers' again.") from error
    found = json.loads(done.stdout)
    return [peer for peer in known if PACKAGES[peer].module in found]


def choose(asked: Sequence[str] | None, python: Path | None, known: Sequence[str] = PEERS) -> list[str]:
    """The peers to run: those asked for, all that are installed when none were named, none of them for `none`."""
    if asked is not None:
        asked = check_names(asked, known, "peer")
        if not asked:
            return []
    if python is None:
        if asked is not None:
            raise ConfigError(f"{', '.join(asked)}: {HOW_TO_GET}")
        return []
    present = installed_peers(python, known)
    missing = [peer for peer in asked or [] if peer not in present]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: not in {python.parent.parent}. Run 'make peers'.")
    return present if asked is None else list(asked)


def find_peers(asked: Sequence[str] | None, known: Sequence[str]) -> dict[str, Path]:
    """The interpreter of each peer to run, in the order of `known`; those that are missing and were not asked for are named on stderr."""
    wanted = list(known) if asked is None else check_names(asked, known, "peer")
    found: dict[str, Path] = {}
    for venv in dict.fromkeys(PACKAGES[peer].venv for peer in wanted):
        members = [peer for peer in wanted if PACKAGES[peer].venv == venv]
        python = find_python(venv) if venv else find_python()
        if python is None and asked is None:
            print(f"{', '.join(members)}: {HOW_TO_GET}", file=sys.stderr)
            continue
        present = choose(None if asked is None else members, python, members)
        if python is not None:
            found |= dict.fromkeys(present, python)
    return {peer: found[peer] for peer in wanted if peer in found}
