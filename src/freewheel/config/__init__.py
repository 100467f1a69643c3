"""Every setting of a run: what there is, what a preset says, and the only place that checks values.
Takes flags, keywords and preset files; gives one frozen Config to all parts."""

from freewheel.config.algos import find_algo
from freewheel.config.assemble import assemble, from_dict, to_dict
from freewheel.config.local import LocalConfig
from freewheel.config.near import nearest
from freewheel.config.parts import CheckpointConfig, Config, LearnerConfig, LogConfig, NetConfig, WorldConfig
from freewheel.config.rollout import RolloutConfig
from freewheel.config.values import ExploreConfig, QConfig, ReplayConfig

__all__ = [
    "CheckpointConfig",
    "Config",
    "ExploreConfig",
    "LearnerConfig",
    "LocalConfig",
    "LogConfig",
    "NetConfig",
    "QConfig",
    "ReplayConfig",
    "RolloutConfig",
    "WorldConfig",
    "assemble",
    "find_algo",
    "from_dict",
    "nearest",
    "to_dict",
]
