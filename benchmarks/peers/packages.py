"""Which peers there are, and by what names Python and pip know them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    module: str
    distribution: str
    has_prioritized: bool = False
    venv: str = ""  # where it cannot live with the others: the name after that of their environment


# TorchRL has a prioritized buffer whose compiled part does not load against torch 2.13.
PACKAGES = {
    "cpprb": Package("cpprb", "cpprb", has_prioritized=True),
    "sb3": Package("stable_baselines3", "stable-baselines3"),
    "torchrl": Package("torchrl", "torchrl"),
    "tianshou": Package("tianshou", "tianshou", has_prioritized=True),
    "envpool": Package("envpool", "envpool"),  # vector envs, no buffer
    "pufferlib": Package("pufferlib", "pufferlib", venv="puffer"),  # vector envs and a training; an older gymnasium
    "sbx": Package("sbx", "sbx-rl"),  # a training, no buffer
    "sample-factory": Package("sample_factory", "sample-factory", venv="sf"),  # likewise; an older numpy
}
PEERS = ("cpprb", "sb3", "torchrl", "tianshou")
