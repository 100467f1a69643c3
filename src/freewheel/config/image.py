"""Settings of the pictures that an env shows, a part of those of the world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageConfig:
    """How pictures are made ready where they arise, before anybody keeps or sees them. By default they stay as they are."""

    image_size: int = 0
    """Resize images to a square of this side; 0 keeps their size."""

    grey: bool = False
    """Convert images to greyscale."""

    skip: int = 1
    """Frame skip: repeat each action for this many frames. The image is the pixelwise maximum of the last two, since some games draw objects only every second frame."""

    noop_max: int = 0
    """Start each episode with a random number of no-op frames, fewer than this."""

    fire_reset: bool = False
    """Press FIRE when an episode begins, in games that have it."""

    episodic_life: bool = False
    """Treat the loss of a life as the end of an episode for training. Reported returns and evaluation use whole games."""


def wanted(config: ImageConfig) -> dict[str, object]:
    """The settings that differ from leaving pictures as they are, by name."""
    plain = ImageConfig()
    return {name: value for name in vars(plain) if (value := getattr(config, name)) != getattr(plain, name)}
