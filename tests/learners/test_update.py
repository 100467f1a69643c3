"""One update: against torch's own optimiser, in parts and whole, eager and compiled, with numbers that are not finite."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from freewheel.algos.make import make_algo
from freewheel.config import LearnerConfig, NetConfig, QConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError
from freewheel.learners import package
from freewheel.learners.update import Update, unrolled

OBS = spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = spaces.Discrete(2)
ROWS = 16


def make(
    config: LearnerConfig | None = None,
    q: QConfig | None = None,
    algo: str = "dqn",
    norm: Any = "none",
    **more: Any,
) -> Update:
    net, learner = NetConfig(hidden=(16, 16), norm=norm), config or LearnerConfig()
    settings = find_algo(algo).Settings("test", algo=algo, q=q or QConfig(), net=net, learner=learner)
    return Update(make_algo(settings, Spaces(OBS, ACTIONS, 1)), learner, **more)


def rows(seed: int, count: int = ROWS) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(count, 4, generator=generator),
        "next_obs": torch.randn(count, 4, generator=generator),
        "action": torch.randint(0, 2, (count,), generator=generator),
        "reward": torch.randn(count, generator=generator),
        "discount": torch.full((count,), 0.99),
        "weight": torch.rand(count, generator=generator) + 0.5,
    }


def reference(net: nn.Module, config: LearnerConfig, num_updates: int, lr: float) -> nn.Module:
    """The same updates with modules, torch.optim and its clipping."""
    net = copy.deepcopy(net)
    target = copy.deepcopy(net)
    betas = (config.beta1, config.beta2)
    kind, more = (torch.optim.AdamW, {"weight_decay": config.weight_decay})
    if config.optimizer == "adam":
        kind, more = torch.optim.Adam, {}  # type: ignore[assignment]
    optimizer = kind(net.parameters(), lr=lr, betas=betas, eps=config.adam_eps, **more)
    for i in range(num_updates):
        batch = rows(i)
        with torch.no_grad():
            best = net(batch["next_obs"]).argmax(1, keepdim=True)
            value = target(batch["next_obs"]).gather(1, best)[:, 0]
            goal = batch["reward"] + batch["discount"] * value
        q = net(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        loss = (nn.functional.smooth_l1_loss(q, goal, reduction="none") * batch["weight"]).mean()
        optimizer.zero_grad()
        loss.backward()
        if config.clip_norm:
            nn.utils.clip_grad_norm_(net.parameters(), config.clip_norm)
        optimizer.step()
        if (i + 1) % config.target_every_updates == 0:
            with torch.no_grad():
                for moved, own in zip(target.parameters(), net.parameters(), strict=True):
                    moved.lerp_(own, config.tau)
        if config.target_refresh_updates and (i + 1) % config.target_refresh_updates == 0:
            target.load_state_dict(net.state_dict())
    return net


@pytest.mark.parametrize(
    "config",
    [
        LearnerConfig(target_every_updates=3),
        LearnerConfig(target_every_updates=1, tau=0.1, clip_norm=0.01),
        LearnerConfig(clip_norm=0.0, optimizer="adamw", weight_decay=0.1),
        LearnerConfig(accumulate=4, target_every_updates=2),
        LearnerConfig(target_every_updates=2, tau=0.1, target_refresh_updates=5),
    ],
    ids=["hard", "soft-clipped", "adamw", "accumulated", "soft-and-refreshed"],
)
def test_updates_equal_those_of_torch(config: LearnerConfig) -> None:
    update = make(config)
    expected = reference(update.passes.net, config, 20, 1e-2)
    for i in range(20):
        update(rows(i), {}, {"lr": 1e-2})
    for own, theirs in zip(update.passes.net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=2e-4, atol=2e-6)
    assert update.num_updates == int(update.state.updates) == 20
    torch.testing.assert_close(update.state.decay, torch.tensor([config.beta1**20, config.beta2**20]))


def test_parts_of_a_batch_give_the_gradient_of_the_whole() -> None:
    q = QConfig(noisy=True)
    whole, parts = make(q=q, algo="iqn"), make(LearnerConfig(accumulate=4), q=q, algo="iqn")
    generator = torch.Generator().manual_seed(1)
    for i in range(3):
        draws = whole.algo.draws(ROWS, generator)
        one, four = whole(rows(i), draws, {"lr": 1e-3}), parts(rows(i), draws, {"lr": 1e-3})
        torch.testing.assert_close(one.loss, four.loss)
        torch.testing.assert_close(one.norm, four.norm)
        torch.testing.assert_close(one.outcome.priorities, four.outcome.priorities)
    torch.testing.assert_close(whole.state.weights, parts.state.weights)


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_f09_an_update_that_is_not_finite_changes_nothing(what: str) -> None:
    update = make()
    update(rows(0), {}, {"lr": 1e-3})
    before = {name: tensor.clone() for name, tensor in update.tensors().items()}
    for i in range(3):
        bad = rows(i)
        bad[what][0] = float("nan")
        update(bad, {}, {"lr": 1e-3})
        assert int(update.state.bad_in_row) == i + 1
    for name, tensor in update.tensors().items():
        if name not in ("optimizer.updates", "optimizer.bad_in_row"):
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    update(rows(9), {}, {"lr": 1e-3})
    assert int(update.state.bad_in_row) == 0
    torch.testing.assert_close(update.state.decay, torch.tensor([0.9**2, 0.999**2]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e25])
@pytest.mark.parametrize(("is_graph", "accumulate"), [(False, 1), (True, 1), (False, 2), (True, 2)])
def test_a_skipped_update_leaves_the_statistics_of_batch_norm(
    bad: float, is_graph: bool, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1e25 the loss and its gradient are finite, but the variance is not."""
    as_traced(monkeypatch)
    update = make(LearnerConfig(accumulate=accumulate, target_every_updates=2), norm="batch")
    if is_graph:
        update.compile(rows(0), {})
    update(rows(0), {}, {"lr": 1e-3})
    before = {name: tensor.clone() for name, tensor in update.tensors().items()}
    for i in range(2):
        batch = rows(i)
        batch["obs"][-1] = bad
        update(batch, {}, {"lr": 1e-3})
    assert int(update.state.bad_in_row) == 2
    for name, tensor in update.tensors().items():
        if name.startswith("target"):  # follows the weights
            assert torch.isfinite(tensor).all()
        elif name not in ("optimizer.updates", "optimizer.bad_in_row"):
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, msg=name)
    update(rows(5), {}, {"lr": 1e-3})
    assert int(update.state.bad_in_row) == 0
    counted = update.tensors()["net.body.layers.norm0.num_batches_tracked"]
    assert counted == 2 * accumulate


def test_a_first_update_that_is_not_finite_is_skipped_too() -> None:
    update = make(LearnerConfig(optimizer="adamw"))
    before = update.state.weights.clone()
    bad = rows(0)
    bad["reward"][:] = float("inf")
    update(bad, {}, {"lr": 1e-3})
    torch.testing.assert_close(update.state.weights, before, rtol=0, atol=0)


def test_batch_norm_learns_its_statistics_from_trained_rows_only() -> None:
    update = make(norm="batch")
    batch = rows(0)
    batch["next_obs"] += 100.0
    update(batch, {}, {"lr": 1e-3})
    mean = update.flat.views(update.state.weights)["body.layers.norm0.running_mean"]
    inputs = update.passes.net.get_submodule("body.layers.linear0")(batch["obs"])
    assert mean.abs().max() < inputs.abs().max()  # a tenth of the rows' mean; the next observations' is far off
    assert mean.abs().sum() > 0
    assert update.state.target[update.flat.num_params :].sum() != update.state.weights[update.flat.num_params :].sum()
    assert not update.passes.eval_net.training
    assert not update.passes.target_net.training


def as_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that would be compiled, run as it was traced: the compiler itself takes most of a minute."""
    monkeypatch.setattr(package, "make", package.trace)
    monkeypatch.setattr(package, "load", lambda graph: graph)


def stacked(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def calls(algo: Any, num: int, together: int) -> list[tuple[list[Any], list[Any]]]:
    """Batches and draws of so many calls."""
    generator = torch.Generator().manual_seed(0)
    seeds = [[call * together + i for i in range(together)] for call in range(num)]
    return [([rows(seed) for seed in of], [algo.draws(ROWS, generator) for _ in of]) for of in seeds]


@pytest.mark.parametrize(
    ("algo", "q", "norm"),
    [("dqn", QConfig(), "batch"), ("rainbow", QConfig(dueling=True, noisy=True), "layer"), ("iqn", QConfig(), "none")],
)
def test_compiled_agrees_with_eager(algo: str, q: QConfig, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_traced(monkeypatch)
    config = LearnerConfig(target_every_updates=3, tau=0.5)
    eager, graph = make(config, q, algo, norm), make(config, q, algo, norm, unrolled=2)
    for batches, draws in calls(eager.algo, 2, 2):
        each = [eager(batch, draw, {"lr": 1e-3}) for batch, draw in zip(batches, draws, strict=True)]
        if not graph.is_compiled:
            graph.compile(stacked(batches), stacked(draws))
        done = graph(stacked(batches), stacked(draws), {"lr": 1e-3})
        torch.testing.assert_close(done.loss, torch.stack([one.loss for one in each]), rtol=1e-4, atol=1e-5)
        expected = torch.cat([one.outcome.priorities for one in each])
        torch.testing.assert_close(done.outcome.priorities, expected, rtol=1e-3, atol=1e-4)
    # BatchNorm cancels what precedes it, so some gradients are rounding errors, which Adam makes large.
    tolerance = 5e-3 if norm == "batch" else 1e-5
    torch.testing.assert_close(graph.state.weights, eager.state.weights, rtol=1e-3, atol=tolerance)
    torch.testing.assert_close(graph.state.target, eager.state.target, rtol=1e-3, atol=tolerance)
    assert graph.tensors().keys() == eager.tensors().keys()


@pytest.mark.parametrize(
    ("together", "every", "accumulate", "refresh"),
    [(1, 3, 1, 0), (2, 3, 4, 0), (2, 4, 1, 0), (1, 2, 1, 3), (2, 4, 1, 6), (2, 4, 1, 9)],
)
def test_r105_the_switch_to_a_package_changes_no_result(
    together: int, every: int, accumulate: int, refresh: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three calls eager, three as a graph that an equal update has made: as six eager ones, the target's moves included."""
    as_traced(monkeypatch)
    config = LearnerConfig(target_every_updates=every, tau=0.5, accumulate=accumulate, target_refresh_updates=refresh)
    q = QConfig(noisy=True, num_quantiles=5)
    eager, update, other = (make(config, q, "qrdqn", unrolled=together) for _ in range(3))
    for n, (batches, draws) in enumerate(calls(eager.algo, 6, together)):
        batch, draw = (batches[0], draws[0]) if together == 1 else (stacked(batches), stacked(draws))
        if n == 3:
            before = {name: tensor.clone() for name, tensor in other.tensors().items()}
            update.adopt(other.package(batch, draw))
            torch.testing.assert_close(other.tensors(), before, rtol=0, atol=0)  # a trial changes nothing
            assert (update.is_compiled, other.is_compiled) == (True, False)
        expected, done = eager(batch, draw, {"lr": 1e-2}), update(batch, draw, {"lr": 1e-2})
        torch.testing.assert_close(done.loss, expected.loss, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(done.norm, expected.norm, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(done.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    assert update.num_updates == int(update.state.updates) == 6 * together
    for name, tensor in update.tensors().items():
        torch.testing.assert_close(tensor, eager.tensors()[name], rtol=1e-3, atol=1e-5, msg=name)


def test_a_package_compiled_in_one_step_is_adopted_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one real compilation of an update here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = LearnerConfig(target_every_updates=2)
    update, eager, maker = (make(config) for _ in range(3))
    for i in range(3):
        update(rows(i), {}, {"lr": 1e-2})
        eager(rows(i), {}, {"lr": 1e-2})
    update.adopt(maker.package(rows(0), {}))
    for i in range(3, 6):
        torch.testing.assert_close(update(rows(i), {}, {"lr": 1e-2}).loss, eager(rows(i), {}, {"lr": 1e-2}).loss)
    for name, tensor in update.tensors().items():
        torch.testing.assert_close(tensor, eager.tensors()[name], rtol=1e-3, atol=1e-5, msg=name)


class Masked(nn.Module):
    """Adds a constant with infinities, as attention does."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        shares: torch.Tensor = (self.linear(obs) + self.mask).softmax(1)
        return shares + self.linear(obs)


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("is_graph", [False, True])
def test_a_constant_with_infinities_is_no_statistic(
    tau: float, is_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_traced(monkeypatch)
    config = LearnerConfig(target_every_updates=1, tau=tau)
    settings = find_algo("dqn").Settings("test", net=NetConfig(complete=True))
    settings = replace(settings, learner=config)
    update = Update(make_algo(settings, Spaces(OBS, ACTIONS, 1), body=Masked()), config)
    if is_graph:
        update.compile(rows(0), {})
    for i in range(3):
        assert update(rows(i), {}, {"lr": 1e-3}).loss.isfinite()
    assert int(update.state.bad_in_row) == 0
    assert update.state.target.isfinite().all()


class Moody(nn.Module):
    """Looks at its numbers to decide what to do: no graph can say it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(obs)
        return out if out.sum() > 0 else -out


def test_a_network_that_cannot_be_traced_is_named_with_the_cure() -> None:
    settings = find_algo("dqn").Settings("test", net=NetConfig(complete=True))
    update = Update(make_algo(settings, Spaces(OBS, ACTIONS, 1), body=Moody()), LearnerConfig())
    with pytest.raises(ConfigError, match=r"could not trace the update: \w+: .*--compile off") as raised:
        update.compile(rows(0), {})
    assert "\n" not in str(raised.value)
    assert not update.is_compiled
    update(rows(0), {}, {"lr": 1e-3})


def test_as_many_updates_are_unrolled_as_divide_a_call() -> None:
    assert [unrolled(n) for n in (1, 2, 6, 7, 8, 11, 12, 128)] == [1, 2, 6, 7, 8, 1, 6, 8]


@pytest.mark.parametrize("before", [0, 2, 7])
def test_a_target_moves_whatever_was_updated_before_the_calls(before: int) -> None:
    """Updates alone, as before an error, leave a count that no call of eight divides; a call's last update moves what was due in it."""
    config = LearnerConfig(target_every_updates=16)
    update = make(config, unrolled=8)
    update.num_updates = before
    out = torch.zeros(8)
    called: Any = lambda *args: (out, out, *(torch.zeros(8 * ROWS) for _ in range(3)))  # noqa: E731
    update._use([called, lambda *args: (out,)] if update.has_lookahead else [called])
    batch = {name: torch.stack([each] * 8) for name, each in rows(0).items()}
    moved_at = []
    for call in range(20):
        moves = update.num_moves
        update(batch, {}, {"lr": 0.0})
        if update.num_moves > moves:
            moved_at.append(update.num_updates)
        assert update.num_moves - moves <= 1, call
    assert update.num_moves == (before + 160) // 16
    assert all(at % 16 < 8 for at in moved_at), "at most a call late"
