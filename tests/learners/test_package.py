"""Compiled packages: made once for equal graphs, loaded from the disk, changing their arguments in place as the function does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from freewheel.learners import package


def stepped(weights: Tensor, gradient: Tensor) -> list[Tensor]:
    weights.sub_(0.5 * gradient)
    return [weights.square().sum()]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def key(function: package.Function, *args: Tensor) -> str:
    return package.key_of(package.trace(function, args), args)


def test_a_package_does_what_the_function_does_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, gradient = torch.arange(5.0), torch.ones(5)
    expected = weights.clone()
    (norm,) = stepped(expected, gradient)
    run = package.compiled(stepped, [weights, gradient])
    torch.testing.assert_close(weights, torch.arange(5.0))  # compiling carries nothing out
    (given,) = run(weights, gradient)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(given, norm)
    assert [path.suffix for path in package.folder().iterdir()] == [".pt2"]

    monkeypatch.setattr(package, "_compile", None)  # would fail if it were called
    again = package.compiled(stepped, [weights, gradient])
    again(weights, gradient)
    torch.testing.assert_close(weights, expected - 0.5)


def test_what_changes_the_code_changes_the_key() -> None:
    five, constant = torch.ones(5), torch.ones(5)
    first = key(stepped, five, five)
    assert key(stepped, five, five) == first
    assert key(stepped, torch.ones(6), torch.ones(6)) != first
    assert key(stepped, five.double(), five.double()) != first
    assert key(lambda weights, gradient: [weights.sub_(0.25 * gradient)], five, five) != first

    def with_constant(weights: Tensor) -> list[Tensor]:
        return [weights * constant]

    held = key(with_constant, five)
    constant[0] = 2.0
    assert key(with_constant, five) != held


def test_the_least_recently_used_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MOST_KEPT", 2)
    package.folder().mkdir(parents=True)
    for age, name in enumerate(("new", "middle", "old")):
        path = package.folder() / f"{name}.pt2"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    package._forget_oldest()
    assert sorted(path.stem for path in package.folder().iterdir()) == ["middle", "new"]
