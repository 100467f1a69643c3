"""Takes over a small network, host by host (NASim), with PPO.  Run: python examples/network_security.py"""

from typing import Any

import gymnasium

import freewheel

# Three hosts in three subnets, of which the agent sees only what its scans have shown.
SCENARIO = "nasim:TinyPO-v0"


def make(scenario: str = SCENARIO) -> gymnasium.Env[Any, Any]:
    """NASim takes plain integers, and Gymnasium's actions are numpy's."""
    env = gymnasium.make(scenario)
    return gymnasium.wrappers.TransformAction(env, int, env.action_space)


def main(steps: int = 100_000, folder: str = "runs") -> float:
    # The preset is for slow envs: processes of their own step them (runtime=local).
    # What a failed exploit shows may be what was seen before it: the likeliest action would be tried in vain for ever.
    settings = {"log.folder": folder, "world.lanes": 16, "rollout.rows": 64, "eval_sampled": True}
    run = freewheel.train(make, algo="ppo", preset="cyber", steps=steps, settings=settings)
    figure: float = run.result["eval_return_mean"]
    print(f"return {figure:.1f}: two prizes of 100 each, and every scan and exploit costs a little")
    return figure


if __name__ == "__main__":
    main()
