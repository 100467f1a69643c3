"""The documentation is true: its Python runs, its commands parse, and its names, defaults and settings are those of the code.

`python tests/docs/test_docs.py` writes the table of settings into docs/settings.md.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import shlex
import typing
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tyro

import freewheel
from freewheel.config import assemble, image, local, on_policy, parts
from freewheel.config.assemble import known

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.name: page.read_text() for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]}
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->"
COMMAND = re.compile(r"^\s*\$ (?:PYTHONPATH=\S+ )?(freewheel .*?)(?: +#.*)?$", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[str]:
    """Lines after a prompt, and commands within a sentence."""
    found = [line for text in TEXTS.values() for line in COMMAND.findall(text)]
    found += [line for text in TEXTS.values() for line in re.findall(r"`(freewheel (?:train|eval|play) [^`]+)`", text)]
    return sorted({line for line in found if "COMMAND" not in line})


@pytest.mark.parametrize("name", [page.name for page in PAGES if blocks(TEXTS[page.name], "python")])
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks(TEXTS[name], "python"):
        exec(compile(block, name, "exec"), names)


@pytest.mark.parametrize("name", TEXTS)
def test_the_files_it_names_exist(name: str) -> None:
    folder = next((page.parent for page in PAGES if page.name == name), ROOT)
    named = re.findall(r"`((?:src|core|tests|docs|examples|benchmarks|scripts)/[\w./-]+)`", TEXTS[name])
    links = re.findall(r"\]\((?!http)([\w./-]+)(?:#[\w-]+)?\)", TEXTS[name])
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [link for link in links if not (folder / link).exists()] == []


def test_every_page_is_in_the_site() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


class Parsed(Exception):
    """A command got as far as its work."""


def stop(*given: Any, **named: Any) -> NoReturn:
    raise Parsed


@pytest.fixture
def only_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands stop where their work would begin; settings of a training are put together and checked."""
    training = importlib.import_module("freewheel.train")

    def train(env: str | None = None, *, settings: dict[str, Any], preset: str = "auto", **rest: Any) -> NoReturn:
        if env is None:
            assert [name for name in settings if not name.startswith(training.MAY_CHANGE)] == []
        else:
            assemble(env, settings, preset)
        raise Parsed

    monkeypatch.chdir(tmp_path)
    (preset,) = blocks(TEXTS["settings.md"], "toml")
    (tmp_path / "mine.toml").write_text(preset)
    monkeypatch.setattr(training, "train", train)
    for where in (
        "train.limit_threads",
        "eval.load_agent",
        "play.load_agent",
        "runs.show",
        "doctor.examine",
        "runs.remove",
        "runs.clean",
    ):
        module, _, name = where.partition(".")
        does = (lambda threads: None) if name == "limit_threads" else stop
        monkeypatch.setattr(importlib.import_module(f"freewheel.cli.{module}"), name, does)


@pytest.mark.parametrize("line", commands())
@pytest.mark.usefixtures("only_parsed")
def test_commands_parse(line: str) -> None:
    # Names that stand for the reader's own.
    words = shlex.split(line.replace("ENV", "CartPole-v1"))[1:]
    if "--help" in words:
        words.remove("--help")
    if words[0] == "bench":
        settings = importlib.import_module("freewheel.cli.bench").SETTINGS
        tyro.extras.subcommand_cli_from_dict(settings, args=words[1:])
        return
    with pytest.raises(Parsed):
        importlib.import_module(f"freewheel.cli.{words[0]}").main(words[1:])


def test_there_are_commands_of_each_kind() -> None:
    assert {line.split()[1] for line in commands()} >= {"train", "eval", "play", "runs"}


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_settings_it_names_exist(name: str) -> None:
    flags = re.findall(r"--((?:no-)?[a-z]+\.[a-z0-9_-]+)", TEXTS[name])
    flags = [re.sub(r"\.no_|^no_", lambda found: "." if "." in found[0] else "", f.replace("-", "_")) for f in flags]
    roots = "|".join(sorted({setting.partition(".")[0] for setting in known() if "." in setting}))
    dotted = [] if name == "memory.md" else re.findall(rf"`((?:{roots})\.[a-z0-9_]+)`", TEXTS[name])
    assert [flag for flag in flags + dotted if flag not in known() and flag != "replay.bin"] == []


@pytest.mark.parametrize("name", ["algorithms.md", "ppo.md", "resume.md"])
def test_defaults_it_names_are_the_defaults(name: str) -> None:
    rows = re.findall(r"^\| `--([\w.-]+)` \| `([^`]*)` \|", TEXTS[name], re.MULTILINE)
    assert len(rows) >= 3
    defaults = {setting.name: setting.default for setting in settings_list()}
    said = {flag.replace("-", "_"): default for flag, default in rows}
    assert said == {flag: defaults[flag] for flag in said}


def test_resume_says_what_may_change() -> None:
    may_change = importlib.import_module("freewheel.train").MAY_CHANGE
    (sentence,) = re.findall(r"^Settings that say how long.*$", TEXTS["resume.md"], re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == {name.rstrip(".") for name in may_change}


def test_the_short_forms_are_all_there() -> None:
    (sentence,) = re.findall(r"Short forms: (.*)\.$", TEXTS["settings.md"], re.MULTILINE)
    named = re.findall(r"`([\w.-]+)`", sentence)
    short = importlib.import_module("freewheel.cli.train").SHORT
    assert named == [*short, *short.values()]


def test_the_table_of_settings_is_whole() -> None:
    assert TEXTS["settings.md"].partition(BEGIN)[2].partition(END)[0] == settings_table(), (
        "docs/settings.md is stale: python tests/docs/test_docs.py"
    )


def test_the_api_page_has_every_public_name() -> None:
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", TEXTS["api.md"], re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(freewheel.__all__)
    members = {
        "train": [*inspect.signature(freewheel.train).parameters],
        "load": [*inspect.signature(freewheel.load).parameters],
        **{name: public_members(getattr(freewheel, name)) for name in ("Callback", "Episode", "Moment", "Outcome")},
        **{name: public_members(getattr(freewheel, name)) for name in ("Policy", "Run")},
    }
    missing = {
        f"{section}: {name}"
        for section, names in members.items()
        for name in names
        if not re.search(rf"\b{name}\b", sections[section])
    }
    assert missing == {"Outcome: figures"}


def public_members(kind: type) -> list[str]:
    names = [*vars(kind), *(getattr(kind, "__annotations__", {}))]
    return sorted({name for name in names if not name.startswith("_")} - set(vars(tuple)))


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    default: str
    sentence: str


def settings_list() -> list[Setting]:
    """All settings in the order of config/parts.py, with the sentence below each."""
    sources = [inspect.getsource(module) for module in (image, local, on_policy, parts)]
    nodes = [node for source in sources for node in ast.parse(source).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    sections = [(f"{f.name}.", part_of(f)) for f in dataclasses.fields(parts.Config) if part_of(f) is not None]
    found = []
    for prefix, kind in [("", parts.Config), *sections]:
        # What a part takes over from another stands first, as in its fields.
        body = [node for base in reversed(kind.__mro__[:-1]) for node in classes[base.__name__].body]
        sentences = {
            node.target.id: str(ast.literal_eval(below.value))
            for node, below in itertools.pairwise(body)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr)
        }
        found += [
            Setting(prefix + f.name, shown(f.default), sentences[f.name])
            for f in dataclasses.fields(kind)
            if part_of(f) is None
        ]
    return found


def part_of(field: dataclasses.Field[Any]) -> Any:
    """The dataclass of a part of the settings; None for a single one."""
    kind = getattr(parts, str(field.type), None)
    return kind if dataclasses.is_dataclass(kind) else None


def shown(default: Any) -> str:
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def settings_table() -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in settings_list():
        kind = known()[setting.name]
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        # A sentence that explains them all need not be followed by the list.
        is_told = all(choice in setting.sentence for choice in choices)
        meaning = setting.sentence if is_told else f"{setting.sentence} One of {', '.join(choices)}."
        default = f"`{setting.default}`" if setting.default else ""
        lines.append(f"| `{setting.name}` | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = ROOT / "docs" / "settings.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + settings_table() + END + rest.partition(END)[2])
