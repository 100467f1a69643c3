"""Forbidden actions are never taken, and no target is made of their values: every algorithm of action values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from strict_envs import FIRST, NUM_ACTIONS, Strict
from torch import Tensor, nn

import freewheel
from freewheel.actors.value_policy import Explorer
from freewheel.algos.make import make_algo
from freewheel.config import ExploreConfig, LearnerConfig, NetConfig, QConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError, EnvError
from freewheel.learners import package
from freewheel.learners.update import Update
from freewheel.nets.masks import WORTHLESS, MaskedNet

VALUE_METHODS = ("dqn", "qrdqn", "iqn", "c51", "rainbow")
ATOMS = {"num_atoms": 5, "v_min": 0.0, "v_max": 40.0}
SMALL = {"num_taus": 4, "num_target_taus": 4, "num_act_taus": 4, "num_quantiles": 4}
SETTINGS: dict[str, Any] = {
    "world.lanes": 4,
    "net.hidden": (16,),
    "replay.rows": 2_000,
    "replay.warmup_rows": 100,
    "learner.batch_size": 16,
    "learner.ratio": 4.0,
    "learner.compile": "off",
    "explore.over_steps": 1_500,
    "eval_episodes": 4,
    "log.tensorboard": False,
}
OWN: dict[str, dict[str, Any]] = {
    "dqn": {"q.n_step": 3, "world.stack": 2, "explore.hold_steps": 4},
    "qrdqn": {"q.num_quantiles": 5, "q.double": False},
    "iqn": {"q.num_taus": 4, "q.num_target_taus": 4, "q.num_act_taus": 4, "q.double": False},
    "c51": {"q.num_atoms": 7, "q.v_min": -2.0, "q.v_max": 2.0, "q.double": False},
    "rainbow": {"q.num_atoms": 7, "q.v_min": -2.0, "q.v_max": 2.0, "world.stack": 2},
}


def train(folder: Path, algo: str, env: Any = Strict, steps: int = 3_000, **more: Any) -> freewheel.Run:
    settings = {**SETTINGS, **OWN.get(algo, {}), "log.folder": str(folder), "runtime": "sequential", **more}
    if algo == "rainbow":
        settings = {name: value for name, value in settings.items() if name != "explore.over_steps"}
    return freewheel.train(env, algo=algo, steps=steps, preset="none", settings=settings, is_quiet=True)


@pytest.mark.parametrize("algo", VALUE_METHODS)
def test_no_forbidden_action_is_taken_in_a_run_its_evaluation_and_by_its_policy(algo: str, tmp_path: Path) -> None:
    run = train(tmp_path, algo)
    assert run.result["steps"] >= 3_000
    policy, env = run.policy(), Strict()
    obs, _ = env.reset(seed=7)
    for _ in range(50):
        obs, _, terminated, truncated, _ = env.step(policy.act(obs))
        if terminated or truncated:
            obs, _ = env.reset()
            policy.reset()
    nothing = {**obs, "action_mask": np.zeros(NUM_ACTIONS, np.int8)}
    with pytest.raises(EnvError, match="observation 0 has an action_mask without an allowed action"):
        policy.act(nothing)


def test_no_forbidden_action_is_taken_in_a_local_run(tmp_path: Path) -> None:
    more = {"local.actors": 2, "world.kind": "inline", "learner.workers": 1, "eval_episodes": 0}
    assert train(tmp_path, "dqn", runtime="local", **more).result["steps"] >= 3_000


class Table(nn.Module):
    """Gives the outputs that stand in the weights, whatever it sees."""

    num_noise, num_actions, first_action = 0, 3, FIRST

    def __init__(self, out: Tensor) -> None:
        super().__init__()
        self.out = out

    def forward(self, obs: Tensor, noise: Any = None, taus: Any = None) -> Tensor:
        assert obs.shape[1:] == (2,), "the network sees no mask"
        return self.out.expand(len(obs), *self.out.shape)


def forward(params: Tensor, obs: Any, noise: Any = None, taus: Any = None) -> Tensor:
    return MaskedNet(Table(params), "see")(obs, noise, taus)  # type: ignore[no-any-return]


def outputs(algo: str, values: list[float]) -> Tensor:
    """Outputs of the network that mean these values: atoms and quantiles at one place."""
    wide = torch.tensor(values)
    if algo == "dqn":
        return wide
    if algo in ("qrdqn", "iqn"):
        return wide.unsqueeze(1).expand(3, 4)
    atoms = torch.linspace(ATOMS["v_min"], ATOMS["v_max"], int(ATOMS["num_atoms"]))
    return torch.where(atoms == wide.unsqueeze(1), 0.0, -1e4)


def made(algo: str, **q: Any) -> Any:
    config = QConfig(**{**(ATOMS if algo in ("c51", "rainbow") else SMALL), **q})
    space = spaces.Dict({"see": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.MultiBinary(3)})
    settings = find_algo(algo).Settings("test", algo=algo, q=config, net=NetConfig(hidden=(4,)))
    return make_algo(settings, Spaces(space, spaces.Discrete(3, start=FIRST), 1))


@pytest.mark.parametrize("algo", VALUE_METHODS)
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize(
    ("double", "mask", "next_value"),
    [
        (False, [1, 1, 1], 40),  # the target network's best
        (False, [1, 1, 0], 20),  # the best that is allowed
        (True, [1, 1, 1], 40),  # the online network's best is the last one too
        (True, [1, 1, 0], 10),  # its best that is allowed is the first
        (True, [0, 1, 0], 20),
    ],
)
def test_the_target_is_made_of_allowed_actions(
    algo: str, is_ahead: bool, double: bool, mask: list[int], next_value: float
) -> None:
    """The second row has ended, and nothing is allowed there."""
    online, target = outputs(algo, [20.0, 0.0, 40.0]), outputs(algo, [10.0, 20.0, 40.0])
    own, see = made(algo, double=double), torch.zeros(2, 2)
    masks = torch.tensor([mask, [0, 0, 0]], dtype=torch.int8)
    batch = {
        "obs": {"see": see, "action_mask": torch.tensor([[1, 0, 0], [1, 0, 0]], dtype=torch.int8)},
        "next_obs": {"see": see, "action_mask": masks},
        "action": torch.tensor([FIRST, FIRST]),
        "reward": torch.tensor([10.0, 10.0]),
        "discount": torch.tensor([0.5, 0.0]),
        "weight": torch.ones(2),
    }
    draws = own.draws(2, torch.Generator().manual_seed(0))
    if is_ahead:
        assert own.lookahead is not None
        batch |= own.lookahead.function(forward, target, batch, draws)
    loss, outcome = own.loss(forward, online, target, batch, draws)
    assert outcome.td.tolist() == pytest.approx([10 + 0.5 * next_value - 20, 10 - 20], abs=1e-3)
    assert bool(loss.isfinite())
    figures = outcome.metrics()
    assert (figures["q_min"], figures["q_max"]) == pytest.approx((20, 20)), "forbidden actions have no value to report"


def rows(seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)

    def obs(least: float) -> dict[str, Tensor]:
        mask = torch.rand(16, 3, generator=g) < 0.5
        mask[:, 0] |= torch.rand(16, generator=g) >= least
        return {"see": torch.randn(16, 2, generator=g), "action_mask": mask.to(torch.int8)}

    numbers = {name: torch.rand(16, generator=g) for name in ("reward", "discount", "weight")}
    action = torch.randint(FIRST, FIRST + 3, (16,), generator=g)
    found = {"obs": obs(0.0), "next_obs": obs(0.5), "action": action, **numbers}
    # The actions of rows were allowed.
    found["obs"]["action_mask"][torch.arange(16), action - FIRST] = 1
    return found


@pytest.mark.parametrize("algo", ["dqn", "c51"])
def test_a_compiled_update_and_values_made_ahead_agree_with_the_eager_one(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        package, "make", package.trace
    )  # the graph as it is traced: the compiler takes most of a minute
    monkeypatch.setattr(package, "load", lambda graph: graph)
    eager, graph, led = (Update(made(algo, double=True), LearnerConfig(target_every_updates=3)) for _ in range(3))
    for seed in range(4):
        batch, draws = rows(seed), eager.algo.draws(16, torch.Generator().manual_seed(seed))
        if not graph.is_compiled:
            graph.compile(batch, draws)
        with torch.no_grad():
            ahead = led.lookahead(batch, draws)
        hyper = {"lr": 1e-2}
        one, two, three = eager(batch, draws, hyper), graph(batch, draws, hyper), led(batch, draws, hyper, ahead)
        assert bool(one.loss.isfinite())
        for other in (two, three):
            torch.testing.assert_close(other.loss, one.loss, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(other.outcome.td, one.outcome.td, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(graph.state.weights, eager.state.weights, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(led.state.weights, eager.state.weights, rtol=1e-3, atol=1e-5)


def test_the_network_sees_no_mask() -> None:
    own = made("dqn")
    obs = {"see": torch.ones(2, 2), "action_mask": torch.tensor([[1, 1, 1], [0, 1, 0]])}
    out = own.net(obs)
    plain = own.net.net(obs["see"])
    assert plain.shape == (2, 3)
    assert torch.equal(out[0], plain[0])
    assert (out[1] == WORTHLESS).tolist() == [True, False, True]
    nothing = {**obs, "action_mask": torch.zeros(2, 3, dtype=torch.int8)}
    assert torch.equal(own.net(nothing), plain), "a final state's values are finite"
    with torch.autocast("cpu", torch.bfloat16):
        assert own.net(obs)[1, 0] == WORTHLESS


def test_a_mask_of_another_size_is_refused() -> None:
    space = spaces.Dict({"see": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.MultiBinary(4)})
    settings = find_algo("dqn").Settings("test", algo="dqn")
    with pytest.raises(ConfigError, match=r"action_mask.*must be a Box or MultiBinary of 3 numbers"):
        make_algo(settings, Spaces(space, spaces.Discrete(3), 1))
    only = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
    with pytest.raises(ConfigError, match="only the part 'action_mask'"):
        make_algo(settings, Spaces(only, spaces.Discrete(3), 1))


LANES = np.arange(4_000)


def test_exploration_is_uniform_over_what_is_allowed() -> None:
    mask = np.tile(np.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]], np.bool_), (2_000, 1))
    explorer = Explorer(ExploreConfig(), len(LANES), 5, seed=1)
    explores, tried = explorer.explore(np.ones(len(LANES)), LANES, np.zeros(len(LANES), np.bool_), mask)
    assert explores.all()
    counts = np.bincount(tried[::2], minlength=5)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert counts[[1, 2, 4]].min() > 580
    assert (tried[1::2] == 0).all()


def test_a_mask_that_allows_everything_changes_nothing() -> None:
    for hold_steps in (1, 4):
        config, first = ExploreConfig(hold_steps=hold_steps), np.zeros(len(LANES), np.bool_)
        plain, masked = (Explorer(config, len(LANES), 5, seed=3) for _ in range(2))
        for _ in range(5):
            one = plain.explore(np.full(len(LANES), 0.5), LANES, first)
            two = masked.explore(np.full(len(LANES), 0.5), LANES, first, np.ones((len(LANES), 5), np.bool_))
            np.testing.assert_array_equal(np.array(one), np.array(two))


masks = st.lists(st.booleans(), min_size=NUM_ACTIONS, max_size=NUM_ACTIONS).filter(any)


@pytest.mark.parametrize("algo", ["dqn", "c51"])
@examples(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.lists(masks, min_size=3, max_size=3), min_size=1, max_size=6),
    epsilon=st.sampled_from([0.0, 0.5, 1.0]),
    hold_steps=st.sampled_from([1, 5]),
    stack=st.sampled_from([1, 3]),
    scale=st.sampled_from([0.0, 1.0, 1e9]),
)
def test_a_forbidden_action_is_never_chosen(
    algo: str, steps: list[list[list[bool]]], epsilon: float, hold_steps: int, stack: int, scale: float
) -> None:
    q = QConfig(num_atoms=3, v_min=0.0, v_max=1.0)
    explore = ExploreConfig(schedule="constant", end=epsilon, hold_steps=hold_steps)
    world = freewheel.config.WorldConfig(lanes=3, stack=stack)
    settings = find_algo(algo).Settings(
        "test", algo=algo, q=q, explore=explore, net=NetConfig(hidden=(4,)), world=world
    )
    own = make_algo(settings, Spaces(Strict.observation_space, Strict.action_space, 3))
    policy = own.policy(own.net.eval(), lambda stream: 1, range(3), 3)
    with torch.no_grad():
        for tensor in own.net.parameters():
            tensor.mul_(scale)  # all values alike, or far apart
    frames = [np.zeros((3, NUM_ACTIONS), np.int8)] * stack
    for number, rows in enumerate(steps):
        newest = np.array(rows, np.int8)
        frames = [*frames[1:], newest]
        mask = newest if stack == 1 else np.stack(frames, 1)
        see = np.full((3, 3) if stack == 1 else (3, stack, 3), number, np.float32)
        obs = {"obs.see": see, "obs.action_mask": mask}
        assert policy.refuse(obs) is None
        first = np.full(3, number == 0)
        for action in (policy.choose(obs, np.arange(3), first, number).actions, policy.greedy(obs)):
            assert newest[np.arange(3), action["action"] - FIRST].all()
