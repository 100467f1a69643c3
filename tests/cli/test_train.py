"""`freewheel train` as a user types it: flags, presets, JSON, resume, signals, wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from freewheel.cli import main as cli
from freewheel.cli.train import given_names
from freewheel.config import find_algo
from freewheel.config.assemble import known

TINY = [
    "--runtime",
    "sequential",
    "--steps",
    "300",
    "--learner.updates-per-call",
    "8",
    "--replay.warmup-rows",
    "128",
    "--eval-episodes",
    "4",
    "--log.no-tensorboard",
]
FIELDS = {
    "run",
    "env",
    "algo",
    "runtime",
    "seed",
    "steps",
    "updates",
    "seconds",
    "steps_per_s",
    "updates_per_s",
    "ratio",
}


def train(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> tuple[int, str, str]:
    code = cli.main(["train", *words, "--log.folder", str(tmp_path)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_last_line_is_json_with_all_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = train(capsys, tmp_path, "CartPole-v1", *TINY, "--json", "--seed", "3", "--algo", "qrdqn")
    assert code == 0
    result = json.loads(out.strip().splitlines()[-1])
    assert result.keys() >= FIELDS | {"return_mean", "eval_return_mean"}
    assert (result["env"], result["algo"], result["seed"], result["runtime"]) == (
        "CartPole-v1",
        "qrdqn",
        3,
        "sequential",
    )
    assert 300 <= result["steps"] < 310
    assert 8 <= result["eval_return_mean"] <= 500
    config = json.loads((Path(result["run"]) / "config.json").read_text())
    assert config["steps"] == 300
    assert config["q"]["n_step"] == 3  # the preset's
    for name in ("metrics.csv", "episodes.csv", "result.json"):
        assert (Path(result["run"]) / name).stat().st_size > 0


def test_without_json_a_few_plain_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = train(capsys, tmp_path, "CartPole-v1", *TINY)
    assert code == 0
    assert "evaluation" in out
    assert "\x1b" not in out + err
    assert "300 steps" in err


def test_resume_goes_on_in_the_same_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = train(capsys, tmp_path, "CartPole-v1", *TINY, "--json", "--quiet")
    first = json.loads(out.strip().splitlines()[-1])
    name = Path(first["run"]).name
    code, out, err = train(capsys, tmp_path, "--resume", name, "--steps", "600", "--json")
    assert code == 0
    second = json.loads(out.strip().splitlines()[-1])
    assert second["run"] == first["run"]
    assert second["steps"] >= 600 > first["steps"]
    assert second["updates"] > first["updates"]
    assert "replay was not saved" in err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["CartPol-v1"], ["CartPole-v1"]),
        (["LunarLander-v2"], ["LunarLander-v3"]),
        (["CartPole-v1", "--algo", "dqm"], ["dqn"]),
        (["CartPole-v1", "--learner.lrr", "1"], ["--learner.lr"]),
        (["CartPole-v1", "--q.num-atoms", "5"], ["q.num_atoms", "c51"]),
        (["CartPole-v1", "--learner.batch-size", "5000"], ["exceeds replay.warmup_rows="]),
        (["CartPole-v1", "--replay.rows", "999999999999"], ["replay.rows"]),
        (["CartPole-v1", "--replay.rows", "4000000000"], ["GB"]),
        (["CartPole-v1", "--preset", "nosuch"], ["nosuch"]),
        (["Pendulum-v1"], ["Discrete", "Box"]),
        (["no.such.module:make"], ["no.such.module"]),
        (["--quiet"], ["CartPole-v1"]),
        (["--resume", "nosuchrun"], ["nosuchrun"]),
        (["CartPole-v1", "--resume", "x"], ["leave CartPole-v1 out"]),
        (["CartPole-v1", "--net.body", "no.such:net"], ["no.such"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_wrong_input_is_told_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    try:
        code, out, err = train(capsys, tmp_path, *words)
    except SystemExit as exit:  # the parser's way
        code, (out, err) = int(exit.code or 0), capsys.readouterr()
    assert code in (1, 2)
    for part in parts:
        assert part in out + err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_help_shows_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "CartPole-v1", "--help"])
    out = capsys.readouterr().out
    flag = out[out.index("--q.n-step") :]
    assert "(default: 3)" in flag[: flag.index("--q.double")]


def test_flags_are_known_by_their_dotted_names() -> None:
    words = ["CartPole-v1", "--learner.batch-size", "3", "--q.no-double", "--seed=4", "--no-such", "--compile"]
    assert given_names(words, known(find_algo("dqn").Settings)) == ["learner.batch_size", "q.double", "seed"]


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "freewheel.cli.main", "train", *words, "--log.folder", str(tmp_path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_f16_a_signal_ends_the_run_with_a_checkpoint(tmp_path: Path, number: int, code: int) -> None:
    process = start(tmp_path, "CartPole-v1", "--steps", "10000000", "--json", "--log.no-tensorboard")
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/status.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, err
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    (checkpoint,) = Path(result["run"]).glob("checkpoints/step-*")
    assert int(checkpoint.name.removeprefix("step-")) == result["steps"]


def test_a_lost_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    process = start(tmp_path, "CartPole-v1", *TINY, "--json")
    assert process.stderr is not None
    process.stderr.close()
    out = process.stdout.read() if process.stdout else ""
    process.wait(60)
    if process.stdout:
        process.stdout.close()
    assert process.returncode == 0
    assert json.loads(out.strip().splitlines()[-1])["steps"] >= 300
