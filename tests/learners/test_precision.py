"""Precisions: tried where dying does no harm, chosen by what was measured, remembered; and the scale of float16's gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_step import ROWS, as_traced, make, rows

from freewheel.config import LearnerConfig, QConfig
from freewheel.learners import adam, precision, remembered
from freewheel.learners.step import Step


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Machine:
    """Where each precision comes to what it is told to."""

    def __init__(self, **speeds: float | str) -> None:
        self.speeds = speeds
        self.asked: list[str] = []
        self.is_certain = True

    def probe(self, name: str, device: str) -> tuple[precision.Found, bool]:
        self.asked.append(name)
        found = self.speeds[name]
        return ({"why": found} if isinstance(found, str) else {"speed": found}), self.is_certain


def machine(monkeypatch: pytest.MonkeyPatch, **speeds: float | str) -> Machine:
    made = Machine(**speeds)
    monkeypatch.setattr(precision, "probe", made.probe)
    return made


def python_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str) -> None:
    """Takes the place of the interpreter that a probe runs in."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{does}\n")
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fake))


def test_a_precision_that_kills_its_process_becomes_a_message_and_fp32(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python_that(monkeypatch, tmp_path, "kill -ILL $$")
    expected = "bf16 does not run on this machine (the probe died with SIGILL); training in fp32"
    assert precision.choose("bf16", "cpu") == ("fp32", expected)
    python_that(monkeypatch, tmp_path, "exit 9")  # is remembered: not asked again
    assert precision.choose("bf16", "cpu") == ("fp32", expected)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo broken >&2; exit 3", "the probe ended with 3: broken"),
        ("echo nonsense", "the probe ended with 0: it said nothing"),
        ("kill -KILL $$", "the probe died with SIGKILL"),
        ("exec sleep 20", "the probe took more than 0 s"),
    ],
)
def test_a_probe_that_says_nothing_certain_is_not_remembered(
    does: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "sleep" in does:
        monkeypatch.setattr(precision, "PROBE_TIMEOUT_S", 0.2)
    python_that(monkeypatch, tmp_path, does)
    chosen, reason = precision.choose("fp16", "cpu")
    assert chosen == "fp32"
    assert said in reason
    monkeypatch.setattr(precision, "PROBE_TIMEOUT_S", 60.0)
    python_that(monkeypatch, tmp_path, """echo '{"fp32": 2.0, "fp16": 1.0}'""")
    assert precision.choose("fp16", "cpu")[0] == "fp16"


def test_the_probe_itself_measures_or_dies_alone() -> None:
    found, _ = precision.probe("fp16", "cpu")
    assert ("speed" in found and found["speed"] > 0) != ("why" in found)


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({"bf16": "dead", "fp16": 0.7}, "fp32"),
        ({"bf16": "dead", "fp16": "dead"}, "fp32"),
        ({"bf16": 1.02, "fp16": 0.7}, "fp32"),  # not worth the digits
        ({"bf16": 1.9, "fp16": 2.0}, "fp16"),
        ({"bf16": 1.9, "fp16": "dead"}, "bf16"),
    ],
)
def test_auto_takes_the_fastest_that_runs(
    speeds: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(monkeypatch, **speeds)
    chosen, reason = precision.choose("auto", "cpu")
    assert chosen == expected
    assert "bf16" in reason
    assert "fp16" in reason
    assert precision.choose("auto", "cpu") == (chosen, reason)
    assert here.asked == ["bf16", "fp16"]  # once each


def test_fp32_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch)
    assert precision.choose("fp32", "cpu") == ("fp32", "as asked")
    assert here.asked == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"KEY": 3}', '{"KEY": {"speed": "fast"}}', "\x00\xff"])
def test_a_damaged_memory_is_ignored_and_replaced(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch, bf16=1.5)
    path = remembered.file_of(precision.FILE)
    path.parent.mkdir(parents=True)
    path.write_bytes(content.replace("KEY", f"bf16 {precision._machine('cpu')}").encode("latin-1"))
    assert [precision.choose("bf16", "cpu")[0] for _ in range(2)] == ["bf16", "bf16"]
    assert here.asked == ["bf16"]
    assert [left.name for left in path.parent.iterdir()] == ["precision.json"]


def test_a_memory_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = machine(monkeypatch, bf16=1.5)
    (tmp_path / "freewheel").write_text("in the way")
    assert [precision.choose("bf16", "cpu")[0] for _ in range(2)] == ["bf16", "bf16"]
    assert here.asked == ["bf16", "bf16"]


def scaled(config: LearnerConfig | None = None, **more: Any) -> Step:
    """The scaler of fp16 with float32's numbers: runs on every machine, and equals fp32 to rounding errors."""
    step = make(config, precision="fp16", **more)
    step._dtype = None
    return step


def train(step: Step, num: int) -> list[Any]:
    return [step.update(rows(i), {}, 1e-2) for i in range(num)]


def test_a_scaled_update_equals_a_plain_one_and_clips_the_true_gradient() -> None:
    config = LearnerConfig(clip_norm=0.05, accumulate=2)
    plain, other = make(config), scaled(config)
    for one, two in zip(train(plain, 5), train(other, 5), strict=True):
        torch.testing.assert_close(two.loss, one.loss)
        torch.testing.assert_close(two.norm, one.norm)
    torch.testing.assert_close(other.state.weights, plain.state.weights)
    torch.testing.assert_close(other.state.mean, plain.state.mean)
    assert int(other.state.good_in_row) == 5


class Small:
    """Four weights and their optimiser, given gradients by hand."""

    def __init__(self, scale: float = 8.0) -> None:
        self.state = adam.State.around(torch.ones(4), 4)
        self.state.scale.fill_(scale)
        self.apply = adam.Adam(LearnerConfig(), 4, torch.device("cpu"), is_scaled=True)

    def update(self, gradient: float, loss: float = 1.0) -> float:
        """The gradient is that of the scaled loss."""
        return self.apply(self.state, torch.tensor(0.1), torch.full((4,), gradient), torch.tensor(loss)).item()

    @property
    def counts(self) -> tuple[float, int, int]:
        state = self.state
        return state.scale.item(), int(state.good_in_row), int(state.bad_in_row)


def test_the_norm_is_that_of_the_unscaled_gradient() -> None:
    assert Small().update(8.0) == pytest.approx(2.0)


def test_a_gradient_that_overflows_halves_the_scale_and_is_no_bad_update() -> None:
    small = Small()
    small.update(1.0)
    before = {name: tensor.clone() for name, tensor in vars(small.state).items()}
    small.update(float("inf"))
    assert small.counts == (4.0, 0, 0)
    for name in ("weights", "mean", "square", "decay"):
        torch.testing.assert_close(getattr(small.state, name), before[name], rtol=0, atol=0)
    assert int(small.state.updates) == 2


def test_at_its_floor_the_scale_is_not_to_blame() -> None:
    small = Small(scale=2.0)
    for expected in ((1.0, 0, 0), (1.0, 0, 1), (1.0, 0, 2)):
        small.update(float("nan"))
        assert small.counts == expected
    small.update(1.0)
    assert small.counts == (1.0, 1, 0)


def test_a_loss_that_is_no_number_counts_at_once() -> None:
    small = Small()
    small.update(float("nan"), loss=float("nan"))
    assert small.counts == (8.0, 0, 1)


def test_the_scale_grows_after_many_good_updates_up_to_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam, "GROW_AFTER", 3)
    monkeypatch.setattr(adam, "MOST_SCALE", 16.0)
    small = Small()
    seen = []
    for _ in range(7):
        small.update(1.0)
        seen.append(small.counts[:2])
    assert seen == [(8, 1), (8, 2), (16, 0), (16, 1), (16, 2), (16, 0), (16, 1)]


def test_the_scale_is_part_of_what_a_checkpoint_keeps() -> None:
    step = scaled()
    train(step, 3)
    kept = step.tensors()
    assert kept["optimizer.scale"].item() == adam.FIRST_SCALE
    assert int(kept["optimizer.good_in_row"]) == 3
    assert make().tensors().keys() == kept.keys()  # so that a run may go on in another precision


@pytest.fixture(scope="module")
def _float16_runs() -> None:
    found, _ = precision.probe("fp16", "cpu")
    if "why" in found:
        pytest.skip(found["why"])


@pytest.mark.usefixtures("_float16_runs")
@pytest.mark.parametrize("algo", ["dqn", "iqn"])
def test_float16_learns_as_float32_does_and_as_a_graph(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_traced(monkeypatch)
    q = QConfig(noisy=True)
    plain, half, graph = make(q=q, algo=algo), *(make(q=q, algo=algo, precision="fp16") for _ in range(2))
    for step in (half, graph):
        step.state.scale.fill_(256.0)  # the first scale overflows with so few rows: updates would be skipped
    generator = torch.Generator().manual_seed(0)
    for i in range(5):
        draws = plain.algo.draws(ROWS, generator)
        if i == 0:
            graph.compile(rows(0), draws)
        one, two, three = (step.update(rows(i), draws, 1e-3) for step in (plain, half, graph))
        assert two.loss.dtype == two.outcome.q.dtype == torch.float32
        torch.testing.assert_close(two.loss, one.loss, rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(two.norm, one.norm, rtol=5e-2, atol=1e-2)
        torch.testing.assert_close(three.loss, two.loss, rtol=1e-2, atol=1e-3)
    assert not torch.equal(half.state.weights, plain.state.weights)  # or it was float32 after all
    assert half.state.weights.dtype == torch.float32
    torch.testing.assert_close(half.state.mean, plain.state.mean, rtol=0.1, atol=5e-3)
    torch.testing.assert_close(graph.state.mean, half.state.mean, rtol=0.1, atol=5e-3)
