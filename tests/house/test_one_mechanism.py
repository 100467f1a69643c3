"""One mechanism for every algorithm: nobody outside `algos/` asks which algorithm it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from freewheel.config.algos import names

SOURCE = Path(__file__).parents[2] / "src" / "freewheel"
# Words for the question whose answer belongs in Pace, Lesson or prepare.
KINDS = {"on_policy", "is_on_policy", "off_policy", "is_off_policy"}
# Benchmarks are named after algorithms, and compare them.
APART = ("algos/", "bench/", "cli/bench.py")


def asked_in(source: str) -> list[str]:
    """The places of a file that compare with an algorithm's name, look one up in a table, or ask whether it is on-policy."""
    return sorted(set(_asked(ast.parse(source))))


def _asked(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(_is_name(part) for part in (node.left, *node.comparators)):
            yield ast.unparse(node)
        elif isinstance(node, ast.match_case) and any(_is_name(part) for part in ast.walk(node.pattern)):
            yield ast.unparse(node.pattern)
        elif isinstance(node, ast.Dict) and any(key is not None and _is_name(key) for key in node.keys):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
            yield from (ast.unparse(node) for part in node.args if _is_name(part))
        elif isinstance(node, ast.Attribute | ast.Name) and _word(node) in KINDS:
            yield _word(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower() in KINDS:
            yield node.name


def _word(node: ast.Attribute | ast.Name) -> str:
    return (node.attr if isinstance(node, ast.Attribute) else node.id).lower()


def _is_name(node: ast.AST) -> bool:
    """An algorithm's name, or a tuple, list or set that holds one."""
    if isinstance(node, ast.MatchValue):
        return _is_name(node.value)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_is_name(part) for part in node.elts)
    return isinstance(node, ast.Constant) and node.value in names()


def files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if not path.relative_to(SOURCE).as_posix().startswith(APART)]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_asks_for_the_algorithm(path: Path) -> None:
    assert asked_in(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "if config.algo == 'ppo': pass",
        "if config.algo in ('ppo', 'appo'): pass",
        "x = 1 if 'dqn' != algo else 2",
        "match algo:\n    case 'iqn': pass",
        "make = {'dqn': f, 'ppo': g}[algo]",
        "if algo.startswith('ppo'): pass",
        "if policy.is_on_policy: pass",
        "class OnPolicy: pass\nif algo.on_policy: pass",
    ],
)
def test_a_question_is_seen(source: str) -> None:
    assert asked_in(source)


def test_sentences_and_defaults_may_name_algorithms() -> None:
    assert asked_in('"""dqn and ppo"""\nalgo: str = "dqn"\nraise E(f"{x} is for ppo")') == []
