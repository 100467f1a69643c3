"""The tree shows the data path: imports go one way, files stay small, and no data runs as code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "freewheel"
BENCHMARKS = SOURCE.parents[1] / "benchmarks"

# A part may import what stands above it here, and parts of one line never import each other. First what everybody uses: errors,
# settings, spaces, contracts. Then what joins actors and learners, then those two, then the algorithms, which put parts together, then
# what runs, examines and starts them. A file may have a place of its own, apart from its folder's.
ORDER = [
    {"errors", "_core"},
    {"imports"},
    {"config", "spec"},
    {"contracts"},
    {"memory"},
    {"nets"},
    {"machine"},
    {"store"},
    {"weights", "report"},
    {"worlds"},
    {"actors", "learners"},
    {"algos"},
    {"store.load"},
    {"evaluate"},
    {"run"},
    {"films"},
    {"doctor"},
    {"train"},
    {"bench"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}

MODULE_NAME = re.compile(r"benchmarks(\.\w+)+(:\w+)?")
NEED_TORCH = {"__init__", "weights_nets"}

# Each of these can turn data into running code.
RUNS_DATA = {"pickle", "cloudpickle", "marshal", "dill", "shelve", "eval", "exec", "torch.load", "joblib"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return ranked(path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", "."))


def ranked(module: str) -> str:
    """The folder of a module, or the module itself where it has a place of its own."""
    own = ".".join(module.split(".")[:2])
    return own if own in RANK else module.split(".")[0]


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or '.'}.{alias.name}" for alias in node.names)


def wrong_imports(part: str, source: str) -> list[str]:
    """The imports of our own that go against the order."""
    own = [
        ranked(name.removeprefix("freewheel."))
        for name in imports_of(ast.parse(source))
        if name.startswith("freewheel.")
    ]
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
    assert not wrong_imports(part_of(path), path.read_text())


def imported_parts(source: str) -> set[str]:
    """The first names of all imports, and of modules that are named as text, as programs of child processes are."""
    tree = ast.parse(source)
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {
        name.split(".")[0] for name in (*imports_of(tree), *(text for text in texts if MODULE_NAME.fullmatch(text)))
    }


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_package_does_not_need_the_benchmarks(path: Path) -> None:
    assert "benchmarks" not in imported_parts(path.read_text())


def test_an_import_of_the_benchmarks_is_seen() -> None:
    assert "benchmarks" in imported_parts("from benchmarks.installed import find_python")
    assert "benchmarks" in imported_parts("import benchmarks")
    assert "benchmarks" in imported_parts("MODULE = 'benchmarks.peers.dqn_sb3'")
    assert "benchmarks" not in imported_parts("'the benchmarks. They are elsewhere'")


def foreign_imports(source: str) -> list[str]:
    """What a program of a peer's interpreter, which has no freewheel, imports of it beyond `bench.worker`."""
    names = [name for name in imports_of(ast.parse(source)) if name.split(".")[0] == "freewheel"]
    return [name for name in names if not name.startswith("freewheel.bench.worker.")]


@pytest.mark.parametrize(
    "path", sorted([*(SOURCE / "bench/worker").glob("*.py"), *(BENCHMARKS / "peers").glob("*.py")])
)
def test_programs_of_peers_need_nothing_but_the_worker_folder(path: Path) -> None:
    assert foreign_imports(path.read_text()) == []


def test_the_worker_folder_loads_neither_torch_nor_the_core() -> None:
    names = sorted(path.stem for path in (SOURCE / "bench/worker").glob("*.py") if path.stem not in NEED_TORCH)
    text = "import importlib, sys; [importlib.import_module(f'freewheel.bench.worker.{n}') for n in sys.argv[1:]]; "
    text += "print([n for n in ('torch', 'freewheel._core') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text, *names], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_import_that_a_peer_cannot_make_is_seen() -> None:
    assert foreign_imports("from freewheel.bench.harness import Case") == ["freewheel.bench.harness.Case"]
    assert foreign_imports("import freewheel") == ["freewheel"]
    assert foreign_imports("from freewheel.bench.worker.meter import Meter") == []


def test_an_import_against_the_data_is_seen() -> None:
    assert wrong_imports("memory", "from freewheel.learners import learner") == ["learners"]
    assert wrong_imports("actors", "import freewheel.learners.update") == ["learners"]
    assert wrong_imports("store", "from freewheel.store.load import Policy") == ["store.load"]
    assert wrong_imports("learners", "from freewheel.memory.replay import Replay") == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a02_no_code_from_data(path: Path) -> None:
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


MOST_LINES, MOST_FUNCTION_LINES, MOST_RUN_FILES = 350, 40, 20
SMALLER = {"train.py": 120, "contracts.py": 200}


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def long_functions(source: str) -> dict[str, int]:
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = [(function.name, (function.end_lineno or 0) - function.lineno + 1) for function in functions]
    return {name: length for name, length in lengths if length > MOST_FUNCTION_LINES}


def test_files_stay_small() -> None:
    assert {str(path.relative_to(SOURCE)): n for path in modules() if (n := num_lines(path)) > MOST_LINES} == {}
    core = SOURCE.parents[1] / "core"
    files = [*BENCHMARKS.rglob("*.py"), *core.glob("*.[ch]pp")]
    assert {path.name: n for path in files if (n := num_lines(path)) > 400} == {}


@pytest.mark.parametrize("name", SMALLER)
def test_what_is_read_first_is_short(name: str) -> None:
    assert num_lines(SOURCE / name) <= SMALLER[name]


def test_functions_fit_on_a_screen() -> None:
    found = {str(path.relative_to(SOURCE)): long_functions(path.read_text()) for path in modules()}
    assert {name: own for name, own in found.items() if own} == {}


def test_a_long_function_is_seen() -> None:
    body = "\n".join("    x = 1" for _ in range(MOST_FUNCTION_LINES))
    assert long_functions(f"def f():\n{body}\n") == {"f": MOST_FUNCTION_LINES + 1}
    assert long_functions("def f():\n    x = 1\n") == {}


def test_run_is_one_house() -> None:
    files = [path for path in (SOURCE / "run").glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_RUN_FILES, sorted(path.name for path in files)


def test_every_folder_says_what_it_is() -> None:
    for path in SOURCE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
