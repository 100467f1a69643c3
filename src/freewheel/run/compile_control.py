"""Decides during training whether to compile a learner's update, and has another process compile it."""

from __future__ import annotations

from collections.abc import Callable

from freewheel.machine.compile_decision import LOOK_AFTER, decide, known_gain
from freewheel.run.channel import Message
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.run.role_process import RoleProcess
from freewheel.run.supervisor import Supervisor


class CompileControl:
    """For one policy. compile=on: compiles from the start; auto: once the time of an update is known, if it pays."""

    def __init__(self, plan: Plan, policy: PolicyPlan, supervisor: Supervisor, note: Callable[[str], None]) -> None:
        self._plan, self._policy, self._supervisor, self._note = plan, policy, supervisor, note
        self._config = policy.config.learner
        self._is_decided = self._config.compile != "auto" or self._config.workers > 1
        self._update_s = 0.0
        self._adopt: Message | None = None  # the result, for a learner that is restarted

    def begin(self) -> None:
        if self._config.compile == "on":
            self._supervisor.compile(self._policy.index)

    def decide(self) -> None:
        counts = self._plan.counts.of(self._policy.index)
        if self._is_decided or not self._update_s or counts.updates < LOOK_AFTER:
            return
        self._is_decided = True
        left = self._policy.num_updates(max(self._plan.config.steps - counts.run_steps, 0))
        choice = decide(left * self._update_s, known_gain(self._policy.form_key))
        self._note(choice.reason)
        if choice.chosen is not None:
            self._supervisor.compile(self._policy.index, only_find=not choice.chosen)

    def receive(self, role: RoleProcess, message: Message) -> None:
        """A message of this policy's learner or compiler."""
        supervisor, learner = self._supervisor, self._supervisor.learners[self._policy.index]
        if "update_s" in message:
            self._update_s = message["update_s"]
        if message.get("package"):
            self._adopt = {"adopt": message["package"]}
            if self._policy.targets is not None:
                supervisor.start_targets(self._policy.index, message["package"][-1])
            supervisor.tell(learner, self._adopt)
        if message.get("compiler_ended"):
            self._note(f"The update could not be compiled ({message['why']}). Training continues with eager updates.")
            self._adopt = {"adopt": None}
            supervisor.tell(learner, self._adopt)
        if "stack" in message and role is learner and self._adopt is not None:
            supervisor.tell(role, self._adopt)
        if "compiled" in message:
            self._note(f"Compiled updates from update {self._plan.counts.of(self._policy.index).updates:,} on.")
