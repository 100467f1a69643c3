"""Messages of errors that are not ours: whatever they are, ours can be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from freewheel.errors import MOST_QUOTED, Breach, EnvError, Trouble, quoted
from freewheel.imports import find_module


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_any_message_can_be_quoted() -> None:
    assert quoted(ValueError("short")) == "short"
    assert "cannot be shown: RuntimeError" in quoted(Mute())
    long = quoted(ValueError("x" * 100_000))
    assert len(long) < MOST_QUOTED + 100
    assert long.endswith("(100,000 characters)")
    assert "cannot be shown" in Trouble.of(Mute()).text


@pytest.mark.parametrize(
    ("cause", "is_final"), [(None, True), (Breach("gave no mask", "Give one."), True), (ValueError("x"), False)]
)
def test_a_breach_of_the_contract_comes_again_after_a_restart(cause: Exception | None, is_final: bool) -> None:
    error = EnvError("the env")
    error.__cause__ = cause
    assert Trouble.of(error).is_final == is_final


def test_a_module_is_found_when_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    assert find_module("json").loads("1") == 1
