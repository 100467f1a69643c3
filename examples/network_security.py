"""Take over a small network, host by host (NASim), with PPO.  Run: python examples/network_security.py"""

from typing import Any

import gymnasium

import freewheel

# Three hosts in three subnets. The agent sees only what its scans have found.
SCENARIO = "nasim:TinyPO-v0"


def make(scenario: str = SCENARIO) -> gymnasium.Env[Any, Any]:
    """NASim takes plain integers; the actions of Gymnasium's spaces are numpy integers."""
    env = gymnasium.make(scenario)
    return gymnasium.wrappers.TransformAction(env, int, env.action_space)


def main(steps: int = 100_000, folder: str = "runs") -> float:
    # The preset is for slow envs: actors step them in separate processes (runtime=local).
    # After a failed exploit the observation may be unchanged, and a greedy policy would repeat the exploit forever:
    # evaluate with sampled actions.
    settings = {"log.folder": folder, "world.lanes": 16, "rollout.rows": 64, "eval_sampled": True}
    run = freewheel.train(make, algo="ppo", preset="cyber", steps=steps, settings=settings)
    mean: float = run.result["eval_return_mean"]
    print(f"return {mean:.1f}: two prizes of 100 each, minus a small cost for every scan and exploit")
    return mean


if __name__ == "__main__":
    main()
