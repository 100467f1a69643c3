"""Watch a run and stop it when it is good enough.  Run: python examples/callbacks.py"""

from pathlib import Path

import freewheel


class GoodEnough(freewheel.Callback):
    """Stops when the mean of the last 100 episodes reaches a goal; explores less from half of it on."""

    def __init__(self, goal: float) -> None:
        self.goal = goal
        self.best = float("-inf")

    def on_episode(self, moment: freewheel.Moment, episode: freewheel.Episode) -> None:
        if episode.ret > self.best:
            self.best = episode.ret
            print(f"step {moment.step}: best episode so far {episode.ret:.0f} ({episode.length} steps)")

    def on_step(self, moment: freewheel.Moment) -> None:
        if moment.return_mean is None:
            return
        if moment.return_mean > self.goal / 2:
            moment.set("epsilon", 0.01)
        if moment.return_mean > self.goal:
            moment.stop()  # ends the run with a checkpoint

    def on_checkpoint(self, moment: freewheel.Moment, path: Path) -> None:
        print(f"saved {path.name} after {moment.updates} updates")


def main(steps: int = 50_000, folder: str = "runs", goal: float = 150.0) -> float:
    settings = {"log.folder": folder, "eval_episodes": 10}
    run = freewheel.train("CartPole-v1", steps=steps, settings=settings, callbacks=[GoodEnough(goal)])
    print(f"stopped at step {run.result['steps']}; freewheel train --resume {run.folder} continues it")
    return float(run.result["return_mean"])


if __name__ == "__main__":
    main()
