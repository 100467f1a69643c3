"""`freewheel train`: the flags of an algorithm's settings are read, whichever of their neighbours are hidden."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from freewheel.cli import train as command


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--q.n_step", "2"], {"q.n_step": 2}),
        (["--q.no-double", "--explore.end", "0.5"], {"q.double": False, "explore.end": 0.5}),
        (["--algo", "ppo", "--ppo.epochs", "2", "--net.hidden", "8"], {"algo": "ppo", "ppo.epochs": 2}),
    ],
)
def test_settings_of_a_section_with_hidden_ones(
    words: list[str], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def train(env: Any, *, settings: dict[str, Any], **_: Any) -> None:
        seen.update(settings)
        raise Stop

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    monkeypatch.setattr(importlib.import_module("freewheel.train"), "train", train)
    with pytest.raises(Stop):
        command.main(["CartPole-v1", "--runtime", "sequential", *words])
    assert {name: seen[name] for name in wanted} == wanted
