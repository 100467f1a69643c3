"""All settings of a run, the presets, and the only place that checks values.
Takes flags, keywords and preset files; gives one frozen Config to all parts."""

from freewheel.config.algo_settings import ExploreConfig, QConfig, ReplayConfig, RolloutConfig
from freewheel.config.algos import find_algo
from freewheel.config.assemble import assemble, from_dict
from freewheel.config.ranges import Range
from freewheel.config.settings import Config, LearnerConfig, NetConfig, WorldConfig, wanted

__all__ = [
    "Config",
    "ExploreConfig",
    "LearnerConfig",
    "NetConfig",
    "QConfig",
    "Range",
    "ReplayConfig",
    "RolloutConfig",
    "WorldConfig",
    "assemble",
    "find_algo",
    "from_dict",
    "wanted",
]
