"""Records and compares the golden runs.

python tests/golden compare [CASE ...]   the first step at which the base commit and this checkout differ, and the values that do
python tests/golden record               runs the base commit and writes its hashes for this machine to recordings.json
python tests/golden key                  what the recordings of this machine are filed under
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import golden_base
from golden_cases import CASES

builds = golden_base.builds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("compare", "record", "key"))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"compare: all, or some of: {', '.join(CASES)}")
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.cases or list(CASES))
    if given.command == "record":
        record()
    print(golden_base.machine_key())
    return 0


def record() -> None:
    held = json.loads(golden_base.COMMITTED.read_text()) if golden_base.COMMITTED.exists() else {}
    held[golden_base.machine_key()] = golden_base.record_base()
    golden_base.COMMITTED.write_text(json.dumps(held, indent=1) + "\n")


def compare(names: list[str]) -> int:
    """1 if any case differs. Each side runs in a process of its own; this checkout through the interpreter that runs this."""
    held = golden_base.recorded_or_made()
    current = golden_base.run_with(Path(sys.executable), names)
    differing = [name for name in names if not is_same(held[name], current[name])]
    for name in names:
        if name not in differing:
            print(f"{name}: equal")
    for name in differing:
        print(f"{name}: {explain(name, held[name], current[name])}", flush=True)
    return 1 if differing else 0


def is_same(held: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    return held["values"] == current["values"] and held["trace"] == current["trace"]


def explain(name: str, held: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Looks at every turn between the last equal and the first differing point of the trace."""
    window = differing_window(held["trace"], current["trace"])
    if window is None:
        return (
            f"equal in all checkpoints; these differ: {', '.join(differing_names(held['values'], current['values']))}"
        )
    both = [
        golden_base.run_with(python, [name], window)[name]
        for python in (builds.build_revision(golden_base.BASE), sys.executable)
    ]
    for step in sorted(set(both[0]) | set(both[1]), key=int):
        one, two = (side.get(step) for side in both)
        if one is None or two is None:
            return f"the first difference is at step {step}: only {'this checkout' if one is None else 'the base'} stops there"
        if one != two:
            return f"the first difference is at step {step}: {', '.join(differing_names(one, two))}"
    return (
        f"differs between steps {window[0]} and {window[1]}, but not when every turn is saved: saving changes the run"
    )


def differing_window(held: Mapping[str, str], current: Mapping[str, str]) -> tuple[int, int] | None:
    """The steps around the first difference of two traces."""
    before = 0
    for step in sorted(map(int, {*held, *current})):
        if held.get(str(step)) != current.get(str(step)):
            return before, step
        before = step
    return None


def differing_names(held: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*held, *current}) if held.get(name) != current.get(name)]


if __name__ == "__main__":
    sys.exit(main())
