"""Train an agent, look at its returns, and let it act.  Run: python examples/first_agent.py"""

import gymnasium

import freewheel


def main(steps: int = 50_000, folder: str = "runs") -> float:
    run = freewheel.train("CartPole-v1", algo="dqn", steps=steps, seed=1, settings={"log.folder": folder})
    print(f"{len(run.returns)} episodes; the last ten returned {run.returns[-10:]}")
    print(f"evaluation: {run.result['eval_return_mean']:.1f} of 500")

    # A policy needs only the run's folder, not the env that it was trained in.
    policy = freewheel.load(run.folder)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    total, is_over = 0.0, False
    while not is_over:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        total += float(reward)
        is_over = terminated or truncated
    env.close()
    print(f"one more episode: {total:.0f}")
    return total


if __name__ == "__main__":
    main()
