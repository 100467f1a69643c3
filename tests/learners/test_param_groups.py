"""Several losses over several parameter groups: eager, compiled and in parts they are what torch's own optimisers make of them."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from test_update import as_traced, stacked
from torch import nn
from two_losses import Net, TwoGroups, make, rows

from freewheel.config import LearnerConfig
from freewheel.contracts import Loss, ParamGroup, TargetRule
from freewheel.errors import ConfigError
from freewheel.learners.gradient_workers import SharedGradients, WorkersMemory, work
from freewheel.learners.passes import shapes_of, slices_of
from freewheel.learners.update import Update
from freewheel.nets.flat import Flat

LRS = {"lr": 1e-2, "actor_lr": 3e-3}
UPDATES = 12
RULES = {
    "each update": {"critic_rule": TargetRule(0.5), "actor_rule": None},
    "own rules": {"critic_rule": TargetRule(0.3, 2), "actor_rule": TargetRule(1.0, 3)},
}


def reference(algo: TwoGroups, config: LearnerConfig, num_updates: int) -> tuple[Net, Net]:
    """The same updates by torch's own optimisers and clipping, loss by loss; the network and its target."""
    net, target = copy.deepcopy(algo.net), copy.deepcopy(algo.net)
    parts, lrs = (net.critic, net.actor), (LRS["lr"], LRS["actor_lr"])
    optimizers = [
        torch.optim.Adam(part.parameters(), lr=lr, betas=(config.beta1, config.beta2), eps=config.adam_eps)
        for part, lr in zip(parts, lrs, strict=True)
    ]
    for i in range(num_updates):
        batch, draws = rows(i)
        with torch.no_grad():
            later = target(batch["next_obs"]) + 0.1 * draws["noise"][:, 0]
            goal = batch["reward"] + 0.9 * target(batch["next_obs"], "critic", later)
        for which, (part, group) in enumerate(zip(parts, algo.groups, strict=True)):
            if which == 0:
                loss = (net(batch["obs"], "critic", batch["action"]) - goal).square().mean()
            else:
                loss = -net(batch["obs"], "critic", net(batch["obs"])).mean()
            net.zero_grad()
            loss.backward()
            if group.clip_norm:
                nn.utils.clip_grad_norm_(part.parameters(), group.clip_norm)
            optimizers[which].step()
        with torch.no_grad():
            for group, part, own in zip(algo.groups, parts, (target.critic, target.actor), strict=True):
                if group.target is not None and (i + 1) % group.target.every_updates == 0:
                    for moved, now in zip(own.parameters(), part.parameters(), strict=True):
                        moved.lerp_(now, group.target.tau)
    return net, target


def train(update: Any, num_updates: int = UPDATES) -> list[Any]:
    done = []
    for i in range(0, num_updates, update.unrolled):
        each = [rows(i + k) for k in range(update.unrolled)]
        batch, draws = (
            each[0] if update.unrolled == 1 else (stacked([b for b, _ in each]), stacked([d for _, d in each]))
        )
        done.append(update(batch, draws, LRS))
    return done


def assert_equal(update: Any, net: Net, target: Net) -> None:
    vectors = (update.state.weights, net), (update.state.target, target)
    for vector, expected in vectors:
        views = update.flat.views(vector)
        for name, tensor in expected.named_parameters():
            torch.testing.assert_close(
                views[name], tensor.detach(), rtol=5e-4, atol=5e-6, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("rules", RULES)
def test_eager_updates_are_those_of_torch(rules: str, accumulate: int) -> None:
    config = LearnerConfig(accumulate=accumulate)
    update = make(config, **RULES[rules])
    expected = reference(update.algo, config, UPDATES)  # type: ignore[arg-type]
    done = train(update)
    assert_equal(update, *expected)
    assert done[0].loss.shape == done[0].norm.shape == (2,)  # one for each loss
    assert done[0].norm[0] > 0.05  # it was clipped
    assert done[0].outcome.error.shape == (12,)
    assert update.state.updates.tolist() == [UPDATES, UPDATES]


@pytest.mark.parametrize(("unrolled", "accumulate"), [(1, 1), (3, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("rules", RULES)
def test_compiled_updates_are_those_of_torch(
    rules: str, unrolled: int, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_traced(monkeypatch)
    config = LearnerConfig(accumulate=accumulate)
    update, eager = (make(config, unrolled, **RULES[rules]) for _ in range(2))
    each = [rows(100 + k) for k in range(unrolled)]
    batch, draws = each[0] if unrolled == 1 else (stacked([b for b, _ in each]), stacked([d for _, d in each]))
    update.compile(batch, draws)
    expected = reference(eager.algo, config, UPDATES)  # type: ignore[arg-type]
    for ours, theirs in zip(train(update), train(eager), strict=True):
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.norm, theirs.norm, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.outcome, theirs.outcome, rtol=1e-3, atol=1e-4)
    assert update.is_compiled
    assert_equal(update, *expected)
    for name, tensor in update.tensors().items():
        torch.testing.assert_close(tensor, eager.tensors()[name], rtol=1e-3, atol=1e-5, msg=name)


def test_one_really_compiled_is_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    update = make(**RULES["own rules"])
    expected = reference(update.algo, update.config, UPDATES)  # type: ignore[arg-type]
    update.compile(*rows(100))
    train(update)
    assert update.is_compiled
    assert_equal(update, *expected)


def test_gradient_workers_share_each_loss() -> None:
    config = LearnerConfig()
    update, other = (make(config, **RULES["own rules"]) for _ in range(2))
    expected = reference(other.algo, config, UPDATES)  # type: ignore[arg-type]
    shared = WorkersMemory(2, update, *rows(0))
    SharedGradients(update, shared)
    thread = threading.Thread(target=work, args=(shared, 1, other, lambda: False))
    thread.start()
    try:
        train(update)
    finally:
        shared.dismiss()
        thread.join(20)
    assert_equal(update, *expected)


def test_a_bad_loss_of_one_group_leaves_the_other_alone() -> None:
    update = make()
    train(update, 2)
    before = {name: tensor.clone() for name, tensor in update.flat.views(update.state.weights).items()}
    batch, draws = rows(5)
    batch["reward"][0] = float("nan")  # the actor's loss does not look at it
    update(batch, draws, LRS)
    assert update.state.bad_in_row.tolist() == [1, 0]
    for name, tensor in update.flat.views(update.state.weights).items():
        assert torch.equal(tensor, before[name]) == name.startswith("critic.")


@pytest.mark.parametrize("unrolled", [1, 4])
def test_a_group_that_several_losses_train_moves_its_target_once_an_update(
    unrolled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager and in a graph alike: rules count updates, not steps of the optimiser."""
    as_traced(monkeypatch)
    results = []
    for is_compiled in (False, True):
        update = make(unrolled=unrolled, critic_rule=TargetRule(0.5, 2))
        first, second = update.algo.losses
        update.algo.losses = (first, first, second)
        if is_compiled:
            each = [rows(100 + k) for k in range(unrolled)]
            stack = (stacked([b for b, _ in each]), stacked([d for _, d in each]))
            update.compile(*(each[0] if unrolled == 1 else stack))
        train(update)
        assert update.is_compiled == is_compiled
        results.append(update.state.target.clone())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


def groups(*prefixes: str) -> list[ParamGroup]:
    return [ParamGroup(prefix.strip("."), prefix) for prefix in prefixes]


def test_slices_are_where_the_parameters_lie() -> None:
    net = Net()
    flat = Flat(net)
    critic, actor = (sum(p.numel() for p in part.parameters()) for part in (net.critic, net.actor))
    assert slices_of(shapes_of(flat, groups("critic.", "actor."))) == [slice(0, critic), slice(critic, critic + actor)]
    assert slices_of(shapes_of(flat, [ParamGroup("all")])) == [slice(0, critic + actor)]
    first = net.critic[0].weight.numel() + net.critic[0].bias.numel()
    assert slices_of(shapes_of(flat, groups("critic.0.", "critic.", "actor."))) == [
        slice(0, first),
        slice(first, critic),
        slice(critic, critic + actor),
    ]


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (("actor.", "critic."), "no parameters of the group 'actor' at their place"),
        (("critic.",), "parameter actor.0.weight of the network belongs to no parameter group"),
        (("critic.", "actor.", "alpha."), "no parameters of the group 'alpha'"),
        (("critic.0.", "actor."), "no parameters of the group 'actor' at their place"),
    ],
)
def test_groups_that_are_not_the_network_in_order_are_refused(prefixes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shapes_of(Flat(Net()), groups(*prefixes))


def test_statistics_of_a_norm_belong_to_the_update_of_its_loss() -> None:
    """BatchNorm of the critic: eager and as a graph they learn the same from both losses."""
    update = make(norm=True)
    assert update.flat.size > update.flat.num_params
    train(update, 3)
    moved = update.flat.views(update.state.weights)["critic.1.num_batches_tracked"]
    assert moved.item() == 2 * 3
    assert all(isinstance(loss, Loss) for loss in update.algo.losses)


class Apart(TwoGroups):
    """Losses that do not look at each other's weights: as two losses, or as one over both groups."""

    def __init__(self, joined: bool) -> None:
        super().__init__(clip=(0.05, 0.0))
        self.losses = (Loss(self.critic_loss, (0,)), Loss(self.actor_loss, (1,)))
        if joined:
            self.losses = (Loss(self.both, (0, 1)),)

    def actor_loss(self, forward: Any, params: Any, target: Any, batch: Any, draws: Any, hyper: Any) -> Any:
        return forward(params, batch["obs"]).square().mean(), None

    def both(self, *given: Any) -> Any:
        (critic, outcome), (actor, _) = self.critic_loss(*given), self.actor_loss(*given)
        return critic + actor, outcome


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("unrolled", [0, 1, 4])
def test_one_loss_over_two_groups_steps_each_by_its_own_rate_and_clipping(
    unrolled: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same steps as by two losses; with 0 eager."""
    as_traced(monkeypatch)
    found = []
    for joined in (False, True):
        algo: Any = Apart(joined)
        update = Update(algo, LearnerConfig(), unrolled=max(unrolled, 1), precision=precision)
        if precision == "fp16":
            update.state.scale.copy_(torch.tensor([64.0, 8.0]))  # small: none of these overflows
        if unrolled:
            each = [rows(100 + k) for k in range(unrolled)]
            stack = (stacked([b for b, _ in each]), stacked([d for _, d in each]))
            update.compile(*(each[0] if unrolled == 1 else stack))
        train(update)
        assert update.is_compiled == bool(unrolled)
        assert update.state.updates.tolist()[0] == update.state.updates.tolist()[1]
        found.append(update.state)
    for name in ("weights", "target", "mean", "square"):
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name), rtol=1e-3, atol=1e-6)
