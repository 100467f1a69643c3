"""Settings of the pictures that an env shows, a part of those of the world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageConfig:
    """How pictures are made ready where they arise, before anybody keeps or sees them. By default they stay as they are."""

    image_size: int = 0
    """Side of the square that pictures are brought to; 0 keeps their size."""

    grey: bool = False
    """Pictures in grey instead of colour."""

    skip: int = 1
    """Frames that an action is held for. The picture has the brighter of the last two frames in each place: some games draw things in every second one."""

    noop_max: int = 0
    """Begin an episode after a random number of idle frames, fewer than this."""

    fire_reset: bool = False
    """Press FIRE when an episode begins, in games that have it."""

    episodic_life: bool = False
    """The loss of a life is an end for learning. Returns are still those of whole games, and evaluation plays whole games."""


def wanted(config: ImageConfig) -> dict[str, object]:
    """The settings that differ from leaving pictures as they are, by name."""
    plain = ImageConfig()
    return {name: value for name in vars(plain) if (value := getattr(config, name)) != getattr(plain, name)}
