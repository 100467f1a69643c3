"""Whole runs, as small as they go: every case is there and well formed. Nothing here asserts a speed."""

import json
from typing import Any

import pytest

from freewheel.bench import replay, weights
from freewheel.bench.settings import ReplaySettings, WeightsSettings
from freewheel.bench.worker.rows import EPISODE_ROWS, episode, parse_obs, steps
from freewheel.cli.main import main


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


def test_replay_runs_without_peers(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ReplaySettings(
        obs=("f32[171]", "u8[4,12,12]"),
        batches=(32, 256),
        capacity=2048,
        rounds=2,
        seconds=0.002,
        json=True,
    )
    replay.run(settings)
    line = last_line(capsys)
    assert line["bench"] == "replay"
    assert line["machine"]["cores"] >= 1
    assert {case["case"] for case in line["cases"]} == {
        *(f"add/{obs}/{rows}" for obs in settings.obs for rows in (1, 64)),
        *(f"{op}/{obs}/{b}" for op in ("uniform", "prioritized") for obs in settings.obs for b in (32, 256)),
        "bytes/u8[4,12,12]",
        "per_cost/f32[171]/256",
    }
    for case in line["cases"]:
        assert case["ours"] > 0
        assert case["peers"] == {}
        assert (case["ratio"] is None) == ("baseline" not in case)
        assert case["spread"]["ours"][0] <= case["ours"] <= case["spread"]["ours"][1]
        if not case["case"].startswith(("prioritized", "bytes", "per_cost")):
            assert case["baselines"]["numpy"] > 0


def test_our_rows_take_the_memory_of_single_frames(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ReplaySettings(
        obs=("u8[4,84,84]",),
        batches=(32,),
        capacity=1024,
        rounds=1,
        seconds=0.001,
        json=True,
    )
    replay.run(settings)
    (case,) = [case for case in last_line(capsys)["cases"] if case["case"].startswith("bytes")]
    assert 84 * 84 <= case["ours"] < 2 * 84 * 84


def test_weights_run_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    ways = ("two_copies", "load_state_dict", "clone_load_state_dict")
    weights.run(WeightsSettings(against=ways, rounds=2, seconds=0.002, json=True))
    cases = {case["case"]: case for case in last_line(capsys)["cases"]}
    assert list(cases) == [
        "publish+fetch/0.1M",
        "vs_two_copies/0.1M",
        "vs_clone_load/0.1M",
        "publish+fetch/1.7M",
        "vs_two_copies/1.7M",
    ]
    assert list(cases["publish+fetch/1.7M"]["peers"]) == ["clone_load_state_dict"]
    assert cases["vs_two_copies/1.7M"]["baseline"] == "two_copies"


def test_the_rows_of_the_peers_are_one_episode() -> None:
    block = episode(parse_obs("u8[4,6,5]"))
    assert block.obs.shape == (EPISODE_ROWS, 4, 6, 5)
    assert (block.next_obs[:-1] == block.obs[1:]).all()
    assert (block.obs[10, -1] == block.obs[11, -2]).all()  # a stack moves on by one frame
    made = steps(block, 64)
    assert len(made) == EPISODE_ROWS
    assert all(len(step) == 64 for step in made)
    assert sum(bool(step.truncated.all()) for step in made) == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ["bnch"],
            2,
            "ConfigError: unknown command 'bnch'. Did you mean bench?",
        ),
        ([], 2, "usage: freewheel COMMAND"),
        (["bench", "replay", "--rounds", "0"], 2, "--rounds 0 must be at least 1"),
        (["bench", "weights", "--against", "copies"], 2, "Did you mean 'two_copies'"),
        (["bench", "weights", "--sizes", "2M"], 2, "unknown size '2M'"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    words: list[str],
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(words) == code
    assert says in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["bench", "replay", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--json", "--obs", "--batches", "--seconds", "--rounds", "--capacity"):
        assert flag in out


def test_ledger_marks_are_measured_in_both_languages() -> None:
    from freewheel.bench import ledger
    from freewheel.bench.settings import LedgerSettings

    python, core = ledger.run(LedgerSettings(rounds=1, seconds=0.01))
    assert (python.name, core.name) == ("mark/python", "mark/core")
    assert python.ratio is not None
    assert core.ours[0] > 0
