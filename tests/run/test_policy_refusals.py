"""What is refused about several policies: names, settings and files of theirs that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_cases import RUNTIMES
from run_cases import train as train_one
from test_two_policies import BLUE, POLICIES, RED, train

import freewheel
from freewheel.errors import CheckpointError, ConfigError, Diverged

every_run = pytest.mark.parametrize("runtime", RUNTIMES)


@pytest.mark.parametrize("name", ["", "/tmp/x", "..", "a/b", "a b\n", "a\n", "ü", "a" * 65, "step-000000100", "red", 3])
@every_run
def test_a_group_needs_a_name_that_can_be_a_file(runtime: str, name: Any, tmp_path: Path) -> None:
    settings = {"world.kwargs": json.dumps({"names": ["red", name]})}
    with pytest.raises(ConfigError, match="the world has a group .* needs its own name"):
        train(tmp_path, runtime, policies={"red": RED, str(name): BLUE}, settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_names_of_the_longest_kind_are_trained_and_loaded(tmp_path: Path) -> None:
    names = ["Red_1-a", "b" * 64]
    policies = dict(zip(names, POLICIES.values(), strict=True))
    run = train(tmp_path, "sequential", policies=policies, settings={"world.kwargs": json.dumps({"names": names})})
    assert [run.policy(name).config.algo for name in names] == ["dqn", "ppo"]


@pytest.mark.parametrize("policies", [{"": {}}, {"red": {}}])
def test_an_env_with_one_policy_takes_no_policies(policies: Any, tmp_path: Path) -> None:
    settings = {"log.folder": str(tmp_path), "runtime": "sequential"}
    with pytest.raises(ConfigError, match="the env has a single policy, so policies= is not needed"):
        freewheel.train("CartPole-v1", steps=100, policies=policies, settings=settings, preset="none")


def test_a_resumed_run_keeps_its_policies(tmp_path: Path) -> None:
    run = train(tmp_path, "sequential", 100)
    with pytest.raises(ConfigError, match="policies was given, but a resumed run keeps its own"):
        freewheel.train(resume=run.folder, steps=200, policies={"red": {"learner.lr": 1.0}})


@pytest.mark.parametrize(
    ("policy", "given"),
    [
        ("red", {"local.prefetch": 9}),
        ("red", {"local.free": True}),
        ("blue", {"learner.workers": 2}),
    ],
)
def test_settings_of_a_policy_need_their_runtime(policy: str, given: dict[str, Any], tmp_path: Path) -> None:
    policies = {**POLICIES, policy: {**POLICIES[policy], **given}}
    with pytest.raises(ConfigError, match=f"{next(iter(given))} was given, but .* the runtime is sequential"):
        train(tmp_path, "sequential", policies=policies)


@pytest.mark.parametrize(
    "given",
    [
        {"env": "CartPole-v1"},
        {"local.stall_s": 9.0},
        {"local.restarts": 0},
        {"local.step_timeout_s": 9.0},
        {"local.profile": True},
    ],
)
def test_settings_of_the_run_are_not_given_to_a_policy(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"{next(iter(given))} is given for the policy 'blue', but holds for the whole"
    ):
        train(tmp_path, "local", policies={**POLICIES, "blue": {**BLUE, **given}})


@pytest.mark.parametrize(
    ("policy", "given"),
    [
        ("blue", {"ppo.log_std": -1.0}),
        ("red", {"net.channels": (8,), "net.kernels": (3,), "net.strides": (1,)}),
        ("red", {"learner.memory_format": "channels_last"}),
    ],
)
@every_run
def test_settings_of_a_policy_fit_its_spaces(runtime: str, policy: str, given: dict[str, Any], tmp_path: Path) -> None:
    policies = {**POLICIES, policy: {**POLICIES[policy], **given}}
    with pytest.raises(ConfigError, match=f"{next(iter(given))} was given, but has no effect"):
        train(tmp_path, runtime, policies=policies)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policies", [["red", "blue"], {"red": RED, "blue": None}, {"red": RED, 3: BLUE}])
def test_policies_are_settings_by_name(policies: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be settings by name"):
        train(tmp_path, "sequential", policies=policies)


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    run = train(tmp_path, "sequential", 100)
    path = run.folder / "config.json"
    saved = json.loads(path.read_text())
    for damaged in ([], {}, {"red": "x"}, 5, None):
        path.write_text(json.dumps({**saved, "policies": damaged}))
        for use in (lambda: freewheel.train(resume=run.folder, steps=200), lambda: run.policy("red")):
            with pytest.raises(CheckpointError, match=f"{run.folder}: config.json is damaged: policies"):
                use()


@every_run
def test_a_divergence_names_its_policy(runtime: str, tmp_path: Path) -> None:
    policies = {**POLICIES, "blue": {**BLUE, "learner.lr": 1e3, "ppo.value_weight": 1e15}}
    who = "policy blue" if runtime == "sequential" else "learner-blue"
    with pytest.raises(Diverged, match=f"^{who}: the loss"):
        train(tmp_path, runtime, 20_000, policies=policies)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algo": "sac"}, "^policy blue: .*Box"),
        ({"algo": "ppo", "ppo.log_std": -1.0}, "^policy blue: ppo.log_std was given"),
        ({"algo": "ppo", "replay.rows": 9}, "^policy blue: algo=ppo has no setting"),
        ({"algo": "ppo", "local.free": True}, "^policy blue: local.free was given"),
    ],
)
def test_a_refused_setting_names_its_policy(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, "sequential", policies={"red": RED, "blue": given})


@every_run
def test_policies_without_an_update_are_named(runtime: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policies = {"red": {**RED, "replay.warmup_rows": 400}, "blue": {**BLUE, "rollout.rows": 500}}
    train(tmp_path, runtime, 100, policies=policies)
    said = capfd.readouterr().err
    assert "policy red was not trained: it took 5" in said
    assert "its first update needs at least 402" in said
    assert "policy blue was not trained: it took" in said
    assert "its first update needs at least 2,000" in said
    train(tmp_path, runtime, 600)
    assert "was not trained" not in capfd.readouterr().err


@every_run
def test_a_single_policy_without_an_update_is_told(
    runtime: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train_one(tmp_path, "ppo", runtime, steps=20)
    assert "warning: the policy was not trained: it took 20 steps, and its first update needs at least 64." in (
        capfd.readouterr().err
    )
