"""What the settings of a run folder name as code, and whether it may be imported and called.

Settings may name functions, classes and modules, and a folder may come from anybody. So what a folder names is used only if this
user's signature says that the settings are their own, if the user trusts the folder, or if they give the names again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from freewheel.config import Config, from_dict
from freewheel.errors import CheckpointError, ConfigError, Untrusted
from freewheel.nets.custom import GIVEN

# The settings whose names are imported: whenever an agent acts, and when its run goes on.
TO_ACT = ("algo", "env", "net.body", "world.kind", "world.kwargs")
TO_RESUME = (*TO_ACT, "log.sinks")
# Written like a user's function, but part of this package.
OWN = ("freewheel.worlds.mario:make",)


@dataclass(frozen=True)
class Consent:
    """`uses` are the settings whose names are used: those that the user gives again are not among them. `how` says how to trust."""

    trusts: bool = False
    uses: tuple[str, ...] = TO_ACT
    how: str = "trust=True"

    def without(self, *given: str) -> tuple[str, ...]:
        return tuple(name for name in self.uses if name not in given)


def read_settings(
    saved: Mapping[str, Any], where: str, foreign: str, consent: Consent, changes: Mapping[str, Any] | None = None
) -> Config:
    """The saved settings with `changes`. An Untrusted error says which names of code they have without consent.

    `foreign` says why the settings may be somebody else's; it is empty if this user's signature is right.
    """
    is_refusing = bool(foreign) and not consent.trusts
    algo = str(saved.get("algo", "dqn"))  # `from_dict` imports it
    if is_refusing and ":" in algo and "algo" in consent.uses:
        raise _refusal({"algo": algo}, where, foreign, consent)
    try:
        config = from_dict(saved)
    except ConfigError as error:
        raise CheckpointError(f"the settings of {where} cannot be used: {error}") from error
    if changes:
        config = from_dict(saved, changes)
    found = {name: text for name, text in _named(config) if name in consent.uses}
    if is_refusing and found:
        raise _refusal(found, where, foreign, consent)
    return config


def names_code(config: Config) -> bool:
    return any(_named(config))


def _named(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that name code, with the names."""
    texts = {"algo": config.algo, "env": config.env, "net.body": config.net.body, "world.kind": config.world.kind}
    for name, text in texts.items():
        if ":" in text and text not in OWN and not (name == "net.body" and text.startswith(GIVEN)):
            yield name, text
    # An env may import what its arguments name.
    for text in _texts(json.loads(config.world.kwargs)):
        if ":" in text:
            yield "world.kwargs", text
    for text in config.log.sinks:
        yield "log.sinks", text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _refusal(found: Mapping[str, str], where: str, foreign: str, consent: Consent) -> Untrusted:
    names = ", ".join(f"{name}={text[:80]!r}" for name, text in found.items())
    return Untrusted(
        f"{where} names code, {names}, which would run with your rights. It was not imported, because {foreign}. "
        f"If you trust it: {consent.how}."
    )
