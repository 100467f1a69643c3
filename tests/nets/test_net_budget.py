"""A network that cannot fit is refused before its memory is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError
from freewheel.nets import budget

NUMBERS = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "allowed_bytes", lambda: (1_000_000, "this machine"))


def made(algo: str, obs: Any = NUMBERS, action: Any = None, copies: int = 1, body: Any = None, **given: Any) -> Any:
    settings = {"algo": algo, **{name.replace("__", "."): value for name, value in given.items()}}
    if body is not None:
        settings["net.body"] = "given:own"
    action = action or (spaces.Box(-1, 1, (2,), np.float32) if algo == "sac" else spaces.Discrete(2))
    return make_algo(assemble("", settings, "none"), Spaces(obs, action, 4), body=body, copies=copies)


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("dqn", {"net__hidden": (10**9,)}),
        ("dqn", {"obs": spaces.Discrete(10**9)}),
        ("dqn", {"action": spaces.Discrete(10**9)}),
        ("dqn", {"action": spaces.Discrete(10**9), "q__noisy": True, "q__dueling": True}),
        ("qrdqn", {"q__num_quantiles": 2**31 - 1}),
        ("c51", {"q__num_atoms": 2**31 - 1}),
        ("iqn", {"q__num_cosines": 2**31 - 1}),
        ("dqn", {"obs": IMAGE, "net__channels": (2**31 - 1, 64, 64)}),
        ("dqn", {"obs": IMAGE, "net__body": "impala", "net__channels": (2**31 - 1,)}),
        ("ppo", {"net__hidden": (10**9, 10**9), "net__shared": True}),
        ("ppo", {"action": spaces.Discrete(10**9)}),
        ("ppo", {"obs": spaces.Discrete(10**9), "ppo__normalize_obs": True}),
        ("sac", {"obs": spaces.Dict(a=NUMBERS, b=spaces.Discrete(10**12))}),
    ],
)
def test_f29_a_huge_network_is_refused_with_needed_and_allowed_bytes(algo: str, given: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"needs at least .* [GT]B \([\d,]+ weights\), this machine allows 1.0 MB.*observations="
    ):
        made(algo, **given)


def test_f29_weights_count_as_often_as_they_are_kept() -> None:
    count = sum(tensor.numel() for tensor in made("dqn").net.parameters())
    fitting = 1_000_000 // (4 * count)
    made("dqn", copies=fitting)
    with pytest.raises(ConfigError, match=f"weights kept {fitting + 1} times"):
        made("dqn", copies=fitting + 1)


def test_f29_a_network_of_the_user_counts_too() -> None:
    def own(space: Any) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3, 10**9))

    with pytest.raises(ConfigError, match="needs at least 12.0 GB"):
        made("dqn", body=own)


@pytest.mark.parametrize(
    "make", [lambda: torch.empty(40, 50), lambda: torch.zeros((40, 50)), lambda: torch.full([2000], 1.0)]
)
def test_f29_every_way_to_ask_for_a_size_is_counted(make: Any) -> None:
    config = assemble("", {}, "none").net
    with budget.Budget(config, {}, 100):
        make()
    with pytest.raises(ConfigError, match="2,000 weights"), budget.Budget(config, {}, 200):
        make()
