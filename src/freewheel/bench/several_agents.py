"""Several trainings of one kind side by side, measured over the same seconds: each has its own env, its own policy and its own roles."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from freewheel.bench.harness import median
from freewheel.bench.trainings import Configuration, Figures


@dataclass
class SeveralAgents(Configuration):
    """`agents` trainings that share the machine and nothing else; its windows are those of all of them together."""

    agents: int = 1

    def measure(self, warm_s: float, seconds: float, versions: dict[str, str]) -> None:
        """The window of each opens when all are warm. One that fails opens it for the others, and then none of it counts."""
        if self.problem is not None:
            return
        with tempfile.TemporaryDirectory(prefix="freewheel-agents-") as folder, ThreadPoolExecutor(self.agents) as pool:
            agents = [self._agent(folder, number) for number in range(self.agents)]

            def run(agent: Configuration) -> None:
                agent.measure(warm_s, seconds, versions)
                if agent.problem is not None:
                    Path(folder, f"{agent.order['together']['name']}-failed").touch()

            list(pool.map(run, agents))
        self.problem = next((agent.problem for agent in agents if agent.problem is not None), None)
        if self.problem is None:
            self.windows.append(joined([agent.windows[0] for agent in agents]))

    def _agent(self, folder: str, number: int) -> Configuration:
        order = {**self.order, "together": {"folder": folder, "name": str(number), "count": self.agents}}
        name = f"{self.name}, agent {number + 1}"
        return Configuration(
            self.kind, self.side, name, self.python, self.module, order, pace=self.pace, path=self.path
        )


def joined(windows: Sequence[Figures]) -> Figures:
    """Rates add up; the account is that of the first, as all have the same roles."""
    steps_per_s = sum(window["steps_per_s"] for window in windows)
    updates_per_s = sum(window["updates_per_s"] for window in windows)
    return {
        **windows[0],
        "steps_per_s": steps_per_s,
        "updates_per_s": updates_per_s,
        "updates_per_step": updates_per_s / steps_per_s,
        "seconds": median([window["seconds"] for window in windows]),
        "startup_s": max(window["startup_s"] for window in windows),
    }
