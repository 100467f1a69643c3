"""The Python in the documentation runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_run(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks, f"{page.name} has no example"
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_the_files_it_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|core|tests|docs|examples|benchmarks|scripts)/[\w./-]+)`", page.read_text())
    links = re.findall(r"\]\((?!http)([\w./-]+)\)", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert [link for link in links if not (page.parent / link).exists()] == []
