"""Every setting of a run: what there is, what a preset says, and the only place that checks values.
Takes flags, keywords and preset files; gives one frozen Config to all parts."""

from freewheel.config.assemble import assemble, from_dict, nearest, to_dict
from freewheel.config.local import LocalConfig
from freewheel.config.on_policy import ON_POLICY, PPOConfig, RolloutConfig
from freewheel.config.parts import (
    CheckpointConfig,
    Config,
    ExploreConfig,
    LearnerConfig,
    LogConfig,
    NetConfig,
    QConfig,
    ReplayConfig,
    WorldConfig,
)

__all__ = [
    "ON_POLICY",
    "CheckpointConfig",
    "Config",
    "ExploreConfig",
    "LearnerConfig",
    "LocalConfig",
    "LogConfig",
    "NetConfig",
    "PPOConfig",
    "QConfig",
    "ReplayConfig",
    "RolloutConfig",
    "WorldConfig",
    "assemble",
    "from_dict",
    "nearest",
    "to_dict",
]
