"""The cases of `bench worlds`: which way of ours is held against whom, on which env."""

from __future__ import annotations

from dataclasses import dataclass

# Peers by the package they come with.
WAYS = {
    "gymnasium": ("gym-sync", "gym-async", "gym-vector"),
    "sb3": ("sb3-dummy", "sb3-subproc"),
    "envpool": ("envpool",),
    "pufferlib": ("puffer",),
}
# Envs that one process steps in turn: where a step waits or takes long, that is out of the question.
IN_TURN = {"gym-sync", "sb3-dummy", "puffer"}
FAST = ("cartpole",)
HAS_VECTOR = ("cartpole", "atari")
GOALS = {
    "inline/cartpole": 1.3,
    "pool/cartpole/128": 4.0,
    "pool/sleep/128": 2.0,
    "pool/heavy/128": 2.0,
    "auto": 1.0,
    "vector": 0.95,
}
# Native code does not step an env that is written in Python: it stands beside auto and does not count there.
NATIVE = ("envpool", "gym-vector")


@dataclass(frozen=True)
class Plan:
    """One case: ours of this kind against these peers; `beside` are shown and do not count."""

    kind: str
    env: str
    lanes: int
    peers: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.env}/{self.lanes}"

    @property
    def goal(self) -> float | None:
        found = [GOALS[key] for key in (self.name, f"{self.kind}/{self.env}", self.kind) if key in GOALS]
        return found[0] if found else None


def plans_of(env: str, lanes: int, peers: list[str]) -> list[Plan]:
    """The cases of one env with so many lanes, with the peers that are there."""
    able = [peer for peer in peers if is_able(peer, env)]
    python = tuple(peer for peer in able if peer not in NATIVE)
    native = tuple(peer for peer in able if peer in NATIVE)

    def only(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in able)

    found = []
    if env in FAST:
        found.append(Plan("inline", env, lanes, only("gym-sync"), only("sb3-dummy", "puffer")))
    found.append(Plan("pool", env, lanes, only("gym-async"), only("sb3-subproc")))
    if env in HAS_VECTOR:
        found.append(Plan("vector", env, lanes, only("gym-vector"), only("envpool")))
    found.append(Plan("auto", env, lanes, python, native))
    return found


def is_able(peer: str, env: str) -> bool:
    if peer in NATIVE:
        return env in HAS_VECTOR
    return env in FAST or peer not in IN_TURN
