"""The tree shows the data path: imports go one way, files stay small, and no data runs as code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "freewheel"

# Data flows worlds → actors → memory → learners → weights → actors. A part may import what stands above it here:
# the contracts, then the memory that joins the two sides, then the two sides, which never import each other,
# then what runs, shows and starts them.
ORDER = [
    {"errors", "_core"},
    {"config", "spec", "imports"},
    {"memory"},
    {"weights", "report", "nets"},
    {"algos"},
    {"worlds"},
    {"actors", "learners"},
    {"run"},
    {"train"},
    {"bench"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}

# Each of these can turn data into running code.
RUNS_DATA = {"pickle", "cloudpickle", "marshal", "dill", "shelve", "eval", "exec", "torch.load", "joblib"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or '.'}.{alias.name}" for alias in node.names)


def wrong_imports(part: str, source: str) -> list[str]:
    """The imports of our own that go against the order."""
    own = [name.split(".")[1] for name in imports_of(ast.parse(source)) if name.startswith("freewheel.")]
    return [other for other in own if other != part and RANK[other] >= RANK[part]]


def dangerous_names(source: str) -> set[str]:
    tree = ast.parse(source)
    names = {name for full in imports_of(tree) for name in (full, full.split(".")[0])}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            names.add("pickle")
    return names & RUNS_DATA


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_data(path: Path) -> None:
    if path == SOURCE / "__init__.py" or path.suffix == ".pyi":
        return
    if "bench" in path.parts and "peers" in path.parts:
        return  # runs in the peers' environment, where there is no freewheel
    assert not wrong_imports(part_of(path), path.read_text())


def test_an_import_against_the_data_is_seen() -> None:
    assert wrong_imports("memory", "from freewheel.learners import loop") == ["learners"]
    assert wrong_imports("actors", "import freewheel.learners.step") == ["learners"]
    assert wrong_imports("learners", "from freewheel.memory.replay import Replay") == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a02_no_code_from_data(path: Path) -> None:
    if path.name == "weights.py" and part_of(path) == "bench":
        return  # measures pickling as one of the ways that others send weights
    assert not dangerous_names(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "exec(text)",
        "from cloudpickle import loads",
    ],
)
def test_a02_code_from_data_is_seen(source: str) -> None:
    assert dangerous_names(source)


def test_files_stay_small() -> None:
    core = SOURCE.parents[1] / "core"
    files = [*modules(), *core.glob("*.[ch]pp")]
    assert {path.name: n for path in files if (n := len(path.read_text().splitlines())) > 400} == {}


def test_every_folder_says_what_it_is() -> None:
    for path in SOURCE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
