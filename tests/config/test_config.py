"""Settings: layers, names, values, and none without effect."""

from __future__ import annotations

import ast
import json
import math
import sys
import typing
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from freewheel.algos import appo, ppo, sac
from freewheel.config import Config, algo_settings, assemble, find_algo, from_dict, settings
from freewheel.config.algos import names
from freewheel.config.assemble import known, presets, read_preset
from freewheel.config.check import unused
from freewheel.config.ranges import Range
from freewheel.errors import ConfigError

NO_ENV = "NoPresetForThis-v0"


def all_known() -> dict[str, Any]:
    """The settings of all algorithms."""
    return {name: kind for algo in names() for name, kind in known(find_algo(algo).Settings).items()}


def owner(name: str) -> str:
    """An algorithm that has this setting."""
    return next(algo for algo in ("dqn", "appo", "sac") if name in known(find_algo(algo).Settings))


def refused(given: dict[str, Any], env: str = NO_ENV, preset: str = "auto") -> str:
    with pytest.raises(ConfigError) as error:
        assemble(env, given, preset)
    return str(error.value)


def test_given_goes_before_preset_before_meaning_before_default(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text("[all]\nsteps = 7\n[all.q]\nn_step = 4\n[rainbow.q]\ngamma = 0.9\n[dqn.q]\ngamma = 0.8\n")
    config = assemble(NO_ENV, {"algo": "rainbow", "q.dueling": False}, str(preset))
    assert (config.steps, config.q.n_step, config.q.gamma, config.q.dueling) == (7, 4, 0.9, False)
    assert config.q.noisy
    assert config.replay.prioritized
    assert config.learner == Config(env="x").learner


def test_rainbow_is_a_combination_of_settings() -> None:
    config = assemble(NO_ENV, {"algo": "rainbow"})
    assert (config.q.double, config.q.dueling, config.q.noisy, config.q.n_step) == (True, True, True, 3)
    assert config.replay.prioritized


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"])
@pytest.mark.parametrize("algo", ["dqn", "qrdqn", "iqn", "c51", "rainbow"])
def test_presets_are_there_and_hold(env: str, algo: str) -> None:
    assert env in presets()
    assert assemble(env, {"algo": algo}) != assemble(env, {"algo": algo}, "none")


def test_a_preset_can_be_chosen_by_name_or_left_out() -> None:
    chosen = assemble(NO_ENV, {}, "CartPole-v1")
    assert chosen.learner == assemble("CartPole-v1", {}).learner
    assert assemble("CartPole-v1", {}, "none").learner == Config(env="x").learner
    assert "Did you mean CartPole-v1" in refused({}, preset="CartPole-v2")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[all\n", "cannot be read"),
        ("[dqm]\nsteps = 1\n", "Did you mean dqn"),
        ("[all]\nenv = 'Acrobot-v1'\n", "must not choose"),
        ("[all.learner]\nlrr = 1.0\n", "learner.lr"),
        ("[all.learner]\nlr = 'fast'\n", "must be float"),
    ],
)
def test_a_wrong_preset_is_named(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    message = refused({}, preset=str(tmp_path / "bad.toml"))
    assert part in message
    assert "bad.toml" in message


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"lr": 1e-3}, "learner.lr"),
        ({"learner.batchsize": 3}, "learner.batch_size"),
        ({"algo": "rainbw"}, "rainbow"),
        ({"q.loss": "hubber"}, "huber"),
        ({"net.activation": "rellu"}, "relu"),
        ({"net.norm": "group"}, "layer"),
        ({"net.init": "zero"}, "orthogonal"),
        ({"steps": 1.5}, "must be int"),
        ({"steps": True}, "must be int"),
        ({"q.double": 1}, "must be bool"),
        ({"net.hidden": "128"}, "list"),
        ({"world.kwargs": "[1]"}, "JSON object"),
        ({"world.kwargs": "{"}, "not JSON"),
        ({"learner.batch_size": 512, "replay.warmup_rows": 256}, "exceeds replay.warmup_rows=256"),
        ({"learner.accumulate": 3}, "equal parts"),
        ({"learner.ratio": 1e6, "learner.batch_size": 8}, "125,000 updates"),
        ({"world.lanes": 64, "q.n_step": 30, "replay.warmup_rows": 128}, "Raise the first to 1920"),
        ({"learner.device": "cuda:" + "9" * 400}, "must be auto, cpu"),
        ({"replay.rows": 500}, "warm-up would never end"),
        ({"algo": "c51", "q.v_min": 3.0, "q.v_max": 3.0}, "below"),
        ({"net.kernels": [3]}, "one entry per convolution"),
        ({"net.channels": [], "net.kernels": [], "net.strides": []}, "net.channels is empty"),
        ({"net.body": "impala", "net.channels": []}, "net.channels is empty"),
        ({"explore.schedule": "exponential", "explore.end": 0.0}, "never reaches 0"),
        ({"explore.pulse_every_steps": 10, "explore.pulse_steps": 20}, "never end"),
        ({"learner.tau": 1.5}, "at most 1"),
        ({"learner.beta2": 1.0}, "below 1"),
        ({"learner.lr": float("nan")}, "finite"),
        ({"net.body": "mpl"}, "module:name"),
    ],
)
def test_what_cannot_work_is_refused_with_the_cure(given: dict[str, Any], part: str) -> None:
    assert part in refused(given)


def test_devices_go_by_their_names() -> None:
    config = assemble(NO_ENV, {"learner.device": "cuda:1", "local.act_device": "cuda"})
    assert (config.learner.device, config.local.act_device) == ("cuda:1", "cuda")
    assert "learner.device='gpu' must be auto, cpu, mps, cuda or one such as cuda:1" in refused(
        {"learner.device": "gpu"}
    )
    assert "learner.device='cuda:x'" in refused({"learner.device": "cuda:x"})
    assert "local.act_device='auto' must be cpu, cuda" in refused({"local.act_device": "auto"})
    together = {"local.act_device": "cuda", "local.act_precision": "int8"}
    assert "local.act_precision=int8 needs actors on the CPU" in refused(together)


def all_ranges() -> dict[str, tuple[type, Range]]:
    """The type and range of each setting that has a range."""
    found = {}
    for algo in names():
        for part, section in typing.get_type_hints(find_algo(algo).Settings, include_extras=True).items():
            inside = typing.get_type_hints(section, include_extras=True) if is_dataclass(section) else {"": section}
            for name, kind in inside.items():
                for allowed in getattr(kind, "__metadata__", ()):
                    found[f"{part}.{name}".rstrip(".")] = kind.__origin__, allowed
    return found


@pytest.mark.parametrize("name", sorted(all_ranges()))
def test_every_range_is_kept(name: str) -> None:
    kind, (least, most, _) = all_ranges()[name]
    for outside in (least - 1, most + 1):
        if math.isfinite(outside) and outside < sys.float_info.max:
            given: Any = float(outside) if float in (kind, *typing.get_args(kind)) else int(outside)
            is_list = typing.get_origin(kind) is tuple
            assert f"{name}=" in (message := refused({"algo": owner(name), name: [given] if is_list else given}))
            assert str(given) in message


def test_f29_every_number_has_a_range_with_two_ends() -> None:
    numbers = {name for name, kind in all_known().items() if {int, float} & {kind, *typing.get_args(kind)}}
    assert numbers == all_ranges().keys()
    for kind, (least, most, _) in all_ranges().values():
        assert -1e15 <= least < most <= (1e15 if kind is float else 2**63 - 1)


BEYOND = {"2**63": 2**63, "10**400": 10**400, "10**5000": 10**5_000, "1e308": 1e308, "-1e308": -1e308, "inf": math.inf}


@pytest.mark.parametrize("value", BEYOND.values(), ids=BEYOND)
def test_f29_a_number_beyond_all_ranges_is_refused_in_one_short_line(value: float) -> None:
    for name, (kind, _) in all_ranges().items():
        is_list = typing.get_origin(kind) is tuple
        message = refused({"algo": owner(name), name: [value] if is_list else value})
        assert message.startswith(f"{name}=")
        assert len(message) < 400


def test_f29_long_names_are_refused_in_one_short_line(tmp_path: Path) -> None:
    long = "x" * 5_000
    assert assemble(long, {}).learner == assemble(NO_ENV, {}).learner  # no preset has this name
    for given in ({"net.body": long}, {"learner.device": long}, {"world.kind": long}, {"q.loss": long}, {long: 1}):
        assert len(refused(given)) < 500
    assert len(refused({}, preset=long)) < 500
    assert len(refused({}, preset=f"{long}.toml")) < 500
    assert len(refused({"algo": long})) < 500
    for kwargs in ("[" * 100_000, "9" * 10_000, long):
        assert len(refused({"world.kwargs": kwargs})) < 500


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"q.num_atoms": 51}, "c51"),
        ({"algo": "c51", "q.huber": 2.0}, "belongs to dqn, qrdqn and iqn"),
        ({"q.noisy_sigma": 0.1}, "q.noisy is off"),
        ({"replay.alpha": 0.5}, "prioritized is off"),
        ({"learner.weight_decay": 0.1}, "optimizer=adam"),
        ({"learner.target_refresh_updates": 100}, "tau=1 copies"),
        ({"algo": "ppo", "learner.target_refresh_updates": 100}, "algo=ppo does not use it"),
        ({"q.noisy": True, "explore.end": 0.1}, "q.noisy explores"),
        ({"explore.ladder_base": 0.5}, "schedule=linear"),
        ({"net.body": "mlp", "net.channels": [8, 8, 8]}, "net.body=mlp"),
        ({"net.body": "my:net", "net.hidden": [8]}, "your own network"),
        ({"net.complete": True}, "built-in network"),
        ({"net.body": "my:net", "net.complete": True, "learner.precision": "bf16"}, "computed in fp32"),
        ({"net.body": "my:net", "net.complete": True, "local.act_precision": "int8"}, "computed in fp32"),
        ({"q.head": "linear"}, "one linear head"),
        ({"q.dueling": True, "q.head": "paper", "net.body": "my:net"}, "your own network"),
        ({"q.dueling": True, "q.head": "paper", "net.hidden": []}, "no layer for the head"),
        ({"algo": "iqn", "q.head": "paper", "net.body": "mlp", "net.hidden": [8]}, "no layer for the head"),
    ],
)
def test_a_setting_without_effect_is_refused(given: dict[str, Any], reason: str) -> None:
    message = refused(given)
    assert "no effect" in message
    assert reason in message


def test_every_name_in_the_tables_is_a_setting() -> None:
    for algo in names():
        config, cls = assemble(NO_ENV, {"algo": algo}), find_algo(algo)
        assert unused(config).keys() <= known(cls.Settings).keys()


def test_a_saved_config_comes_back() -> None:
    config = assemble("CartPole-v1", {"algo": "iqn", "net.hidden": [8, 4], "explore.override": 0.5})
    assert from_dict(json.loads(json.dumps(asdict(config)))) == config
    assert from_dict(asdict(config), {"steps": 5}).steps == 5


def test_a_config_of_before_a_setting_means_what_it_did_then() -> None:
    saved = asdict(assemble(NO_ENV, {"algo": "rainbow"}))
    assert saved["q"].pop("head") == "paper"
    assert from_dict(saved).q.head == "linear"  # type: ignore[attr-defined]


def test_a_network_that_gives_the_values_itself_is_computed_in_float32(tmp_path: Path) -> None:
    preset = tmp_path / "own.toml"
    preset.write_text('[all.learner]\nprecision = "auto"\n')
    config = assemble(NO_ENV, {"net.body": "my:net", "net.complete": True}, str(preset))
    assert (config.learner.precision, config.local.act_precision) == ("fp32", "fp32")


def test_every_setting_says_what_it_is() -> None:
    """`--help` shows these sentences."""
    modules = (settings, algo_settings, ppo, appo, sac)
    nodes = [node for module in modules for node in ast.parse(Path(module.__file__).read_text()).body]
    for cls in [node for node in nodes if isinstance(node, ast.ClassDef) and node.name.endswith("Config")]:
        for node, following in zip(cls.body, [*cls.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign):
                continue
            is_part = isinstance(node.annotation, ast.Name) and node.annotation.id.endswith("Config")
            has_words = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert is_part or has_words, f"{cls.name}.{ast.unparse(node.target)}"


def test_reading_no_preset_gives_nothing() -> None:
    assert read_preset(NO_ENV, "dqn", "auto") == {}
