"""The plan of a run, which every role gets: the settings, and for each policy its spaces and the shared memory between its roles."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from freewheel.algos.make import make_algo, refuse_modes, seed_of, stream_seed
from freewheel.config import Config, find_algo
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError, about
from freewheel.learners.gradient_workers import WorkersMemory
from freewheel.learners.target_process import TargetValues
from freewheel.machine.device import Placing
from freewheel.machine.process import owner_id
from freewheel.machine.update_form import Form
from freewheel.memory.counts import RunCounts
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import Bootstraps, Lanes
from freewheel.nets.budget import IN_TRAINING
from freewheel.nets.flat import Flat
from freewheel.report.ledger import Ledger
from freewheel.report.phases import new_ledger
from freewheel.run.layout import Layout
from freewheel.spec import RowSpec, describe
from freewheel.store.checkpoint import Checkpoint
from freewheel.store.folder import POLICY_NAME, RunFolder
from freewheel.store.load import sign
from freewheel.weights.board import Board
from freewheel.worlds.world import Group

SUPERVISOR, FIRST_LEARNER = 0, 1


@dataclass
class Setup:
    """What a run is made from. `given` has the settings that the user gave, `given_to` what was given to one of several policies only,
    `policies` all settings of several policies; both by name.
    """

    config: Config
    env: Any
    layout: Layout
    body: Any = None
    loss: Any = None
    given: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, Config] | None = None
    folder: RunFolder | None = None  # of a resumed run
    checkpoint: Checkpoint | None = None
    notes: list[str] = field(default_factory=list)
    given_to: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_ours: bool = True  # this user has chosen or trusted all that the settings name: checkpoints are signed

    @property
    def configs(self) -> Mapping[str, Config]:
        """The settings of each policy; a single policy has the name ""."""
        return self.policies or {"": self.config}


@dataclass
class PolicyPlan:
    """One policy: its settings, rows and weights. It plays the world's group `index`; a single policy has the name ""."""

    name: str
    index: int
    config: Any  # the settings of its algorithm
    spaces: Spaces
    lanes_per_copy: int
    lanes: Lanes
    board: Board
    dials: Dials
    bootstraps: Bootstraps | None
    updates_per_step: float  # per step of the whole run, all policies together
    body: Any = None
    loss: Any = None
    is_ours: bool = True  # as in `Setup`
    signature: str = ""  # of `described`, for its checkpoints
    pace_state: dict[str, Any] = field(default_factory=dict)  # the counts at which a run was resumed
    form: Form = field(default_factory=Form)
    form_key: str = ""  # of the form in the machine's cache
    device: str = "cpu"  # of the learner
    placing: Placing = field(default_factory=lambda: Placing(("cpu",), ()))
    workers: WorkersMemory | None = None
    targets: TargetValues | None = None

    def algo(self) -> Any:
        """The algorithm with its network. The initial weights are the same in every process."""
        return make_algo(self.config, self.spaces, self.name, self.body, self.loss)

    def described(self) -> dict[str, Any]:
        """What a checkpoint says of it, from which it can be made again."""
        spaces = {"obs_space": describe(self.spaces.obs), "action_space": describe(self.spaces.action)}
        return {"config": asdict(self.config), **spaces}

    def seed(self, stream: str) -> int:
        return stream_seed(self.config, self.name, stream)

    def algo_class(self) -> Any:
        return find_algo(self.config.algo)

    def num_updates(self, steps: int) -> float:
        """Updates that are due after `steps` steps of the run."""
        return steps * self.updates_per_step

    def set_dial(self, name: str, value: float | None, pace: Any) -> None:
        self.algo_class().refuse_dial(self.config, name)
        self.dials.check(name, value)
        if value != self.dials.value(name):  # a callback may set the same value at every step
            counts = pace.counts
            self.dials.set(name, value, pace.since(value) if name == "ratio" else (counts.steps, counts.updates))

    @property
    def prefix(self) -> str:
        """Comes before its names in checkpoints and logs. Empty for a single policy."""
        return f"{self.name}/" if self.name else ""

    def checkpoints(self, plan: Plan) -> Path:
        """Where its learner's process saves: the run's folder of checkpoints, with several policies a subfolder each."""
        return plan.checkpoints / self.name if self.name else plan.checkpoints

    def own_lanes(self, copies: range) -> range:
        """The policy's lanes in these copies of the env."""
        return range(copies.start * self.lanes_per_copy, copies.stop * self.lanes_per_copy)


@dataclass
class Plan:
    """A child process gets it as an argument. The supervisor owns the shared memory, which outlives every role."""

    config: Config
    env: Any
    layout: Layout
    policies: list[PolicyPlan]
    counts: RunCounts
    ledger: Ledger
    checkpoints: Path = field(default_factory=Path)
    began_s: float = field(default_factory=time.monotonic)  # all processes share this clock
    owner: str = field(default_factory=owner_id)
    notes: list[str] = field(default_factory=list)  # what was chosen, and why
    resumed_at: int = 0  # the step at which the run was resumed

    @property
    def folder(self) -> Path:
        return self.checkpoints.parent

    @property
    def first_actor(self) -> int:
        """The ledger page of the first actor; the other actors follow."""
        return FIRST_LEARNER + len(self.policies)

    def copies_of(self, actor: int) -> range:
        """The copies of the env that an actor steps."""
        first = sum(self.layout.lanes_per_actor[:actor])
        return range(first, first + self.layout.lanes_per_actor[actor])

    def role_name(self, kind: str, policy: int, index: int) -> str:
        """`actor-0`, `learner`, `worker-1`; with several policies also the policy's name: `learner-red`."""
        own = self.policies[policy].name if kind != "actor" else ""
        parts = [kind, own, str(index) if kind in ("actor", "worker") else ""]
        return "-".join(part for part in parts if part)

    def process_seed(self, name: str, life: int = 0) -> int:
        """Of the generators that a process shares with the libraries in it. One that is started again draws other numbers."""
        return seed_of(self.config, f"process.{name}.{life}.{self.resumed_at}")

    def given(self) -> list[Any]:
        """The objects that the user passed."""
        return [self.env, *(thing for policy in self.policies for thing in (policy.body, policy.loss))]


def make_plan(setup: Setup, groups: Sequence[Group]) -> Plan:
    """Shared memory for the policy of each group. Refuses what cannot work before anything starts."""
    config, layout, policies = setup.config, setup.layout, setup.policies
    if setup.loss is not None and not find_algo(config.algo).takes_loss:
        raise ConfigError(f"algo={config.algo} has its own loss. Leave loss= out.")
    names = [group.name for group in groups]
    if names == [""] and policies is not None:
        raise ConfigError("the env has a single policy, so policies= is not needed. Give its settings in settings=.")
    for name in names if names != [""] else ():
        if not isinstance(name, str) or not POLICY_NAME.fullmatch(name) or names.count(name) > 1:
            raise ConfigError(
                f"the world has a group {name!r}. Each group needs its own name of 1 to 64 letters (a-z, A-Z), digits, _ or -, "
                "which does not begin with step-."
            )
    if policies is None and len(groups) > 1:
        raise ConfigError(f"the world has the groups {', '.join(names)}; each needs a policy. Give policies= for them.")
    if policies is not None and sorted(policies) != sorted(names):
        raise ConfigError(
            f"policies= has settings for {', '.join(policies)}, but the world has the groups {', '.join(names)}. "
            "Use the same names."
        )
    num_pages = FIRST_LEARNER + len(groups) + (layout.actors if layout.runtime == "local" else 0)
    plan = Plan(config, setup.env, layout, [], RunCounts(len(groups)), new_ledger(num_pages, len(groups)))
    all_lanes = sum(group.num_lanes for group in groups)
    for group in groups:
        name = "" if policies is None else group.name
        with about(name):
            plan.policies.append(_plan_policy(plan, setup, group, name, group.num_lanes / all_lanes))
    return plan


def _plan_policy(plan: Plan, setup: Setup, group: Group, name: str, share: float) -> PolicyPlan:
    """`share` is the policy's share of all lanes."""
    num_lanes, num_copies = group.num_lanes, plan.config.world.lanes
    config = setup.configs[name]
    spaces = Spaces(group.obs_space, group.action_space, num_lanes)
    algo = make_algo(config, spaces, name, setup.body, setup.loss, copies=IN_TRAINING)
    spec = RowSpec.of(group.obs_space, group.action_space, algo.extra)
    algo.refuse_memory(spec, num_lanes)
    algo.updates_together()  # refuses settings that exclude each other
    if setup.body is not None or ":" in config.net.body:
        refuse_modes(algo)
    policy = PolicyPlan(
        name,
        len(plan.policies),
        config,
        spaces,
        num_lanes // num_copies if num_lanes % num_copies == 0 else 1,
        Lanes(spec, num_lanes, algo.lane_rows(num_lanes, plan.layout.runtime == "local")),
        Board(Flat(algo.net).size * 4),
        Dials(),
        Bootstraps(num_lanes) if algo.needs_bootstraps else None,
        algo.num_updates(10**9) / 10**9 * share,
        setup.body,
        setup.loss,
        setup.is_ours,
    )
    policy.signature = sign(policy.described()) if policy.is_ours else ""
    return policy
