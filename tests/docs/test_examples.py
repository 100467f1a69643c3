"""The examples run, and are short."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

# The return of an agent that does nothing useful until the episode is cut.
LEAST = {"network_security": -4_000}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    assert loaded(path).main(steps=1_500, folder=str(tmp_path)) > LEAST.get(path.stem, -2)


def test_the_corridor_is_learned(tmp_path: Path) -> None:
    (corridor,) = [path for path in EXAMPLES if path.stem == "custom_env"]
    assert loaded(corridor).main(folder=str(tmp_path)) > 0.9


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60
