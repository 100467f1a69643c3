"""`benchmarks control`: what is tried, what is shown of it, and the update of the compiled loop. Nothing here asserts a speed."""

from __future__ import annotations

import json

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from benchmarks.__main__ import main
from benchmarks.control import bench
from benchmarks.control.plan import LIMIT, plan
from benchmarks.control.training import order_of, settings_of
from benchmarks.peers import control_settings as same
from benchmarks.peers.control_sac import Actor, Sac, random_batch
from benchmarks.settings import ControlSettings
from freewheel.bench.several_agents import SeveralAgents
from freewheel.bench.trainings import Configuration

FEW = ControlSettings(against=("compiled-loop",), envs=("Pendulum-v1",), lanes=(8,), json=True)
SPEEDS = {"ours": 300.0, "compiled-loop": 150.0, LIMIT: 400.0}


def measured(self: Configuration, warm_s: float, seconds: float, versions: dict[str, str]) -> None:
    versions[self.side] = "1"
    speed = SPEEDS[self.side] / self.order["threads"]
    self.windows.append({"steps_per_s": speed, "updates_per_step": 1.0, "seconds": 1.0, "startup_s": 1.0})


def test_every_side_is_tried_with_each_number_of_threads_and_the_updates_alone_in_two_processes_too() -> None:
    tried = plan(FEW)
    names = {side: [c.name for c in tried if c.side == side] for side in ("ours", "compiled-loop", LIMIT)}
    assert names["ours"] == [
        f"{runtime}, compiled, 8 lanes, {threads}"
        for runtime in ("local", "sequential")
        for threads in ("1 thread", "2 threads")
    ]
    assert names["compiled-loop"] == ["8 envs, 1 thread", "8 envs, 2 threads"]
    assert names[LIMIT] == [
        f"{maker}, {how}" for maker in ("ours", "compiled-loop") for how in ("1 thread", "2 threads", "2 processes")
    ]
    halves = [c for c in tried if isinstance(c, SeveralAgents)]
    assert [(c.agents, c.order["rows"]) for c in halves] == [(2, 128), (2, 128)]
    assert halves[0]._agent("somewhere", 1).path == halves[0].path


def test_the_json_line_has_the_share_of_what_the_arithmetic_allows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Configuration, "measure", measured)
    monkeypatch.setattr(SeveralAgents, "measure", measured)
    bench.run(FEW)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    (case,) = line["cases"]
    assert (line["bench"], case["case"], case["unit"]) == ("control", "control/Pendulum-v1/256", "steps/s")
    assert (case["ours"], case["ratio"], case["goal"]) == (300.0, 2.0, 1.5)
    assert case["baselines"] == {LIMIT: 400.0}
    assert case["share_of_arithmetic"] == {"ours": 0.75, "compiled-loop": 0.375}
    assert case["share_goal"] == 0.85
    assert case["best"][LIMIT] == "ours, 1 thread"
    assert case["ratios"] == {"ours": 256.0, "compiled-loop": 256.0, LIMIT: 256.0}


def test_ours_makes_one_update_of_the_same_size_per_step() -> None:
    order = order_of(env="Pendulum-v1", lanes=8, runtime="local", threads=1, is_compiled=True)
    settings = settings_of(order, "somewhere")
    assert settings["learner.ratio"] == settings["learner.batch_size"] == same.BATCH
    assert settings["learner.updates_per_call"] * same.BATCH <= settings["replay.warmup_rows"]


def test_the_compiled_loop_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards that do not go on are the values themselves: the critics' loss goes to 0."""
    monkeypatch.setattr("torch.compile", lambda function, **_: function)
    monkeypatch.setattr("benchmarks.peers.control_sac.LR", 3e-3)
    sac, batch = Sac(3, 1), random_batch(16, 3, 1)
    batch = batch._replace(is_terminal=torch.ones(16))
    before, target = sac.critic_loss(batch).item(), sac._targets[0].clone()
    for _ in range(30):
        sac.update(batch)
    assert sac.critic_loss(batch).item() < 0.3 * before
    assert not torch.equal(sac._targets[0], target)
    assert sac.log_alpha.item() != 0.0
    assert all(param.requires_grad for param in sac.critics.parameters())


def test_drawn_actions_have_the_density_of_a_squashed_gaussian() -> None:
    torch.manual_seed(0)
    actor, obs = Actor(3, 2), torch.randn(100, 3)
    with torch.no_grad():
        action, log_prob = actor(obs)
        mean, raw = actor.body(obs).chunk(2, -1)
        std = (-5.0 + 3.5 * (torch.tanh(raw) + 1)).exp()
    squashed = TransformedDistribution(Normal(mean, std), [TanhTransform()])
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--envs", "Pendulum"], "Did you mean 'Pendulum-v1'"),
        (["--against", "sb"], "Did you mean 'sb"),
        (["--runtimes", "none"], "--runtimes none leaves nothing"),
        (["--threads", "0"], "--threads 0 must be"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["control", *words]) == 2
    assert says in capsys.readouterr().err
