"""Prints what pyproject.toml asks for, with the development extra, one a line: the packages to install before the core is built."""

import pathlib
import re


def listed(text: str, key: str) -> list[str]:
    """The strings of one list in the file; tomllib is not there before Python 3.11."""
    block = re.search(rf"^{key} = \[\n(.*?)^\]$", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]+)"', block.group(1)) if block else []


text = (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text()
print("\n".join(listed(text, "dependencies") + listed(text, "dev")))
