"""The plan of a run: what every role is given. Settings, and for each policy its spaces and the shared memory that joins its roles."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.algos.make import make_algo, stream_seed
from freewheel.config import Config, find_algo
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError
from freewheel.learners.gradient_workers import WorkersMemory
from freewheel.learners.target_process import TargetValues
from freewheel.machine.placement import Placing
from freewheel.machine.process import owner_id
from freewheel.machine.update_form import Form
from freewheel.memory.counts import Counts, RunCounts
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import Bootstraps, Lanes
from freewheel.nets.flat import Flat
from freewheel.report.ledger import Ledger
from freewheel.report.phases import new_ledger
from freewheel.run.layout import Layout
from freewheel.spec import RowSpec
from freewheel.weights.board import Board
from freewheel.worlds.world import Group

SUPERVISOR, FIRST_LEARNER = 0, 1


@dataclass
class PolicyPlan:
    """One policy: its settings, the group of the world that it plays, its rows, its weights. `name` is "" where it is the only one."""

    name: str
    index: int
    group: int
    config: Any  # the settings of its algorithm
    spaces: Spaces
    lanes_per_copy: int
    lanes: Lanes
    board: Board
    dials: Dials
    bootstraps: Bootstraps | None
    updates_per_step: float  # of the whole run, of which a policy among several takes the share of its lanes
    body: Any = None
    loss: Any = None
    pace_state: dict[str, Any] = field(default_factory=dict)  # where a resumed run counts from
    form: Form = field(default_factory=Form)
    form_key: str = ""  # under which more is remembered of the form
    device: str = "cpu"  # of the learner
    placing: Placing = field(default_factory=lambda: Placing(("cpu",), ()))
    workers: WorkersMemory | None = None
    targets: TargetValues | None = None

    def algo(self) -> Any:
        """The algorithm with its network; first weights are the same in every process."""
        return make_algo(self.config, self.spaces, self.name, self.body, self.loss)

    def seed(self, stream: str) -> int:
        return stream_seed(self.config, self.name, stream)

    def algo_class(self) -> Any:
        return find_algo(self.config.algo)

    def num_updates(self, steps: int) -> float:
        """That so many steps make due."""
        return steps * self.updates_per_step

    def set_dial(self, name: str, value: float | None, counts: Counts) -> None:
        has = self.algo_class().dials
        if name not in has:
            raise ConfigError(f"algo={self.config.algo} has no dial {name!r}; it has {', '.join(has)}.")
        if value != self.dials.value(name):  # a callback may say the same at every step
            self.dials.set(name, value, (counts.steps, counts.updates))

    @property
    def prefix(self) -> str:
        """Of its names in checkpoints and logs: a sole policy has none."""
        return f"{self.name}/" if self.name else ""

    def checkpoints(self, plan: Plan) -> Path:
        """Where its learner's process saves it: in the run's own folder, or where there are several, in one of its own."""
        return plan.checkpoints / self.name if self.name else plan.checkpoints

    def own_lanes(self, copies: range) -> range:
        """The policy's lanes in these copies of the env."""
        return range(copies.start * self.lanes_per_copy, copies.stop * self.lanes_per_copy)


@dataclass
class Plan:
    """Goes to a child process as an argument. Shared memory belongs to the supervisor and outlives every role."""

    config: Config
    env: Any
    layout: Layout
    policies: list[PolicyPlan]
    counts: RunCounts
    ledger: Ledger
    checkpoints: Path = field(default_factory=Path)
    began_s: float = field(
        default_factory=time.monotonic
    )  # of the run, on the monotonic clock that all processes share
    parent: int = field(default_factory=os.getpid)
    owner: str = field(default_factory=owner_id)
    notes: list[str] = field(default_factory=list)  # what was chosen, and why
    resumed_at: int = 0  # steps of the run's earlier life

    @property
    def folder(self) -> Path:
        return self.checkpoints.parent

    @property
    def first_actor(self) -> int:
        """Its page in the ledger; those of the other actors follow."""
        return FIRST_LEARNER + len(self.policies)

    def copies_of(self, actor: int) -> range:
        """The copies of the env that an actor steps."""
        first = sum(self.layout.lanes_per_actor[:actor])
        return range(first, first + self.layout.lanes_per_actor[actor])

    def role_name(self, kind: str, policy: int, index: int) -> str:
        """`actor-0`, `learner`, `worker-1`; where there are several policies with the name of theirs: `learner-red`."""
        own = self.policies[policy].name if kind != "actor" else ""
        parts = [kind, own, str(index) if kind in ("actor", "worker") else ""]
        return "-".join(part for part in parts if part)

    def given(self) -> list[Any]:
        """What the user handed over as objects."""
        return [self.env, *(thing for policy in self.policies for thing in (policy.body, policy.loss))]


def make_plan(
    config: Config,
    env: Any,
    layout: Layout,
    groups: Sequence[Group],
    *,
    body: Any = None,
    loss: Any = None,
    policies: Mapping[str, Config] | None = None,
) -> Plan:
    """Shared memory for every policy; what cannot work is refused before anything starts.

    `policies` are the settings of several policies, by the names of the groups that they play.
    """
    if loss is not None and not find_algo(config.algo).takes_loss:
        raise ConfigError(f"algo={config.algo} has its own loss: leave loss= out.")
    _check_groups(groups, policies)
    own = [config] if policies is None else [policies[group.name] for group in groups]
    actors = layout.actors if layout.runtime == "local" else 0
    plan = Plan(config, env, layout, [], RunCounts(len(own)), new_ledger(FIRST_LEARNER + len(own) + actors, len(own)))
    all_lanes = sum(group.num_lanes for group in groups)
    for index, (group, settings) in enumerate(zip(groups, own, strict=True)):
        name = "" if policies is None else group.name
        plan.policies.append(_plan_policy(plan, index, group, settings, name, body, loss))
        plan.policies[-1].updates_per_step *= group.num_lanes / all_lanes
    return plan


def _check_groups(groups: Sequence[Group], policies: Mapping[str, Config] | None) -> None:
    names = [group.name for group in groups]
    if policies is None and len(groups) > 1:
        raise ConfigError(f"the world has the groups {', '.join(names)}: each needs a policy. Give policies= for them.")
    if policies is not None and sorted(policies) != sorted(names):
        raise ConfigError(
            f"policies are given for {', '.join(policies)}, and the world has the groups {', '.join(names)}."
        )


def _plan_policy(plan: Plan, index: int, group: Group, config: Any, name: str, body: Any, loss: Any) -> PolicyPlan:
    is_local = plan.layout.runtime == "local"
    copies = plan.config.world.lanes if group.num_lanes % plan.config.world.lanes == 0 else group.num_lanes
    spaces = Spaces(group.obs_space, group.action_space, group.num_lanes)
    algo = make_algo(config, spaces, name, body, loss)
    spec = RowSpec.of(group.obs_space, group.action_space, algo.extra)
    algo.refuse_memory(spec, group.num_lanes)
    algo.updates_together()  # refuses what does not go together
    return PolicyPlan(
        name,
        index,
        index,
        config,
        spaces,
        group.num_lanes // copies,
        Lanes(spec, group.num_lanes, algo.lane_rows(group.num_lanes, is_local)),
        Board(Flat(algo.net).size * 4),
        Dials(),
        Bootstraps(group.num_lanes) if algo.needs_bootstraps else None,
        algo.num_updates(10**9) / 10**9,
        body,
        loss,
    )
