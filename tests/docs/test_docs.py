"""The documentation matches the code: its Python runs, its commands parse, and its names, defaults and settings exist.

`python tests/docs/test_docs.py` writes the table of settings into docs/settings.md.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import shlex
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tyro

import freewheel
from freewheel.config import assemble, find_algo
from freewheel.config.algos import names as algo_names
from freewheel.config.assemble import known
from freewheel.config.check import of_other_algos
from freewheel.run.prepare import MAY_CHANGE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.name: page.read_text() for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]}
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->"
OUTSIDE = {"soft.temperature"}  # of the example in algorithms.md, which tests/cli/test_outside.py runs
COMMAND = re.compile(r"^\s*\$ (?:PYTHONPATH=\S+ )?(freewheel .*?)(?: +#.*)?$", re.MULTILINE)
BENCHMARK = re.compile(
    r"(?:`|^\s*\$ )(?:\.venv/bin/)?python -m benchmarks ([a-z][^`\n]*?)(?: +#.*)?(?:`|$)", re.MULTILINE
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[str]:
    """Lines after a prompt, and commands within a sentence."""
    found = [line for text in TEXTS.values() for line in COMMAND.findall(text)]
    found += [
        line for text in TEXTS.values() for line in re.findall(r"`(freewheel (?:train|eval|play|bench) [^`]+)`", text)
    ]
    return sorted({line for line in found if "COMMAND" not in line})


@pytest.mark.parametrize("name", [page.name for page in PAGES if blocks(TEXTS[page.name], "python")])
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks(TEXTS[name], "python"):
        # A block that begins with a file name becomes that module: settings classes are found by their module.
        if named := re.match(r"# (\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            monkeypatch.syspath_prepend(tmp_path)
            importlib.import_module(named[1])
            sys.modules.pop(named[1])
        else:
            exec(compile(block, name, "exec"), names)


@pytest.mark.parametrize("name", TEXTS)
def test_the_files_it_names_exist(name: str) -> None:
    folder = next((page.parent for page in PAGES if page.name == name), ROOT)
    named = re.findall(r"`((?:src|core|tests|docs|examples|benchmarks|scripts)/[\w./-]+)`", TEXTS[name])
    links = re.findall(r"\]\((?!http)([\w./-]+)(?:#[\w-]+)?\)", TEXTS[name])
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("name", TEXTS)
def test_the_headings_it_links_to_exist(name: str) -> None:
    links = re.findall(r"\]\((?!http)([\w./-]*)#([\w-]+)\)", TEXTS[name])
    missing = [f"{page}#{anchor}" for page, anchor in links if anchor not in anchors(Path(page).name or name)]
    assert missing == []


def anchors(name: str) -> set[str]:
    """The anchors that GitHub and mkdocs make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", TEXTS[name], re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_site() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


class Parsed(Exception):
    """A command was parsed and would now do its work."""


def stop(*given: Any, **named: Any) -> NoReturn:
    raise Parsed


@pytest.fixture
def only_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands stop before their work begins; the settings of a training are assembled and checked."""
    training = importlib.import_module("freewheel.train")

    def train(env: str | None = None, *, settings: dict[str, Any], preset: str = "auto", **rest: Any) -> NoReturn:
        if env is None:
            assert [name for name in settings if not name.startswith(MAY_CHANGE)] == []
        else:
            assemble(env, settings, preset)
        raise Parsed

    monkeypatch.chdir(tmp_path)
    (preset,) = blocks(TEXTS["settings.md"], "toml")
    (tmp_path / "mine.toml").write_text(preset)
    for text in TEXTS.values():
        for block in blocks(text, "python"):
            if named := re.match(r"# (\w+)\.py\n", block):
                (tmp_path / f"{named[1]}.py").write_text(block)
                monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(training, "train", train)
    for where in (
        "train.limit_threads",
        "eval.load_agents",
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
    # A placeholder for the reader's own env.
    words = shlex.split(line.replace("ENV", "CartPole-v1"))[1:]
    if "--help" in words:
        words.remove("--help")
    if words[0] == "bench":
        settings = importlib.import_module("freewheel.cli.bench").SETTINGS
        tyro.extras.subcommand_cli_from_dict(settings, args=words[1:])
        return
    with pytest.raises(Parsed):
        importlib.import_module(f"freewheel.cli.{words[0]}").main(words[1:])


def benchmarks() -> list[str]:
    texts = [*TEXTS.values(), (ROOT / "benchmarks" / "README.md").read_text()]
    return sorted({line for text in texts for line in BENCHMARK.findall(text)})


@pytest.mark.parametrize("line", benchmarks())
def test_commands_of_the_benchmarks_parse(line: str) -> None:
    settings = importlib.import_module("benchmarks.__main__").SETTINGS
    tyro.extras.subcommand_cli_from_dict(settings, args=shlex.split(line))


def test_there_are_commands_of_every_benchmark() -> None:
    assert {line.split()[0] for line in benchmarks()} == set(importlib.import_module("benchmarks.__main__").SETTINGS)


def test_there_are_commands_of_each_kind() -> None:
    assert {line.split()[1] for line in commands()} >= {"train", "eval", "play", "runs"}


def all_known() -> set[str]:
    """The settings of all algorithms."""
    return {name for algo in algo_names() for name in known(find_algo(algo).Settings)}


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_settings_it_names_exist(name: str) -> None:
    flags = re.findall(r"--((?:no-)?[a-z]+\.[a-z0-9_-]+)", TEXTS[name])
    flags = [re.sub(r"\.no_|^no_", lambda found: "." if "." in found[0] else "", f.replace("-", "_")) for f in flags]
    roots = "|".join(sorted({setting.partition(".")[0] for setting in all_known() if "." in setting}))
    dotted = [] if name == "memory.md" else re.findall(rf"`((?:{roots})\.[a-z0-9_]+)`", TEXTS[name])
    assert [flag for flag in flags + dotted if flag not in {*all_known(), *OUTSIDE, "replay.bin"}] == []


@pytest.mark.parametrize("name", ["algorithms.md", "ppo.md", "resume.md"])
def test_defaults_it_names_are_the_defaults(name: str) -> None:
    rows = re.findall(r"^\| `--([\w.-]+)` \| `([^`]*)` \|", TEXTS[name], re.MULTILINE)
    assert len(rows) >= 3
    defaults = {setting.name: setting.default for _, own in sections() for setting in own}
    said = {flag.replace("-", "_"): default for flag, default in rows}
    assert said == {flag: defaults[flag] for flag in said}


def test_resume_says_what_may_change() -> None:
    (sentence,) = re.findall(r"^Settings that say how long.*$", TEXTS["resume.md"], re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == {name.rstrip(".") for name in MAY_CHANGE}


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
    # Only the learner calls these methods of an outcome; a loss does not.
    assert missing == {f"Outcome: {name}" for name in ("in_order", "joined", "metrics")}


def public_members(kind: type) -> list[str]:
    names = [*vars(kind), *(getattr(kind, "__annotations__", {}))]
    return sorted({name for name in names if not name.startswith("_")} - set(vars(tuple)))


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    default: str
    sentence: str


def sections() -> list[tuple[tuple[str, ...], list[Setting]]]:
    """Settings and the algorithms that have them, the most common settings first."""
    owners: dict[Setting, list[str]] = {}
    for algo in algo_names():
        config = assemble("", {"algo": algo}, "none")
        hidden = of_other_algos(config)
        for setting in settings_of(type(config)):
            if setting.name not in hidden:
                owners.setdefault(setting, []).append(algo)
    grouped: dict[tuple[str, ...], list[Setting]] = {}
    for setting, own in owners.items():
        grouped.setdefault(tuple(own), []).append(setting)
    return sorted(grouped.items(), key=lambda item: (-len(item[0]), item[0]))


def settings_of(settings: type) -> list[Setting]:
    """In the order of the fields, each with the sentence below it."""
    kinds = typing.get_type_hints(settings)
    parts = [(f"{f.name}.", kinds[f.name]) for f in dataclasses.fields(settings) if is_part(kinds[f.name])]
    return [
        Setting(prefix + f.name, shown(f.default), sentences(kind)[f.name])
        for prefix, kind in [("", settings), *parts]
        for f in dataclasses.fields(kind)
        if not is_part(typing.get_type_hints(kind)[f.name])
    ]


@functools.cache
def sentences(kind: type) -> dict[str, str]:
    """The sentence below each field of a dataclass and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        found |= {
            field.target.id: str(ast.literal_eval(below.value))
            for field, below in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)
        }
    return found


def is_part(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def shown(default: Any) -> str:
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def settings_table() -> str:
    """A section for all algorithms, one for each group that shares settings, and the defaults that each algorithm changes."""
    lines: list[str] = []
    for algos, own in sections():
        is_all = algos == algo_names()
        lines += [f"### {'Every algorithm' if is_all else ', '.join(algos)}", ""]
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        for setting in own:
            kind = known(find_algo(algos[0]).Settings)[setting.name]
            choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
            # No list of choices after a sentence that already names them all.
            has_choices = all(choice in setting.sentence for choice in choices)
            meaning = setting.sentence if has_choices else f"{setting.sentence} One of {', '.join(choices)}."
            default = f"`{setting.default}`" if setting.default else ""
            lines.append(f"| `{setting.name}` | {default} | {meaning} |")
        lines.append("")
    lines += ["### Defaults that an algorithm changes", "", "| algorithm | defaults |", "|---|---|"]
    for algo in algo_names():
        changed = find_algo(algo).defaults
        told = ", ".join(f"`{name}` {shown(value)}" for name, value in changed.items())
        lines += [f"| {algo} | {told} |"] if told else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = ROOT / "docs" / "settings.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + settings_table() + END + rest.partition(END)[2])
