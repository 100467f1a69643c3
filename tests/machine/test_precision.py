"""Precisions: tried where dying does no harm, chosen by what was measured, remembered; and the scale of float16's gradients."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from small_updates import ROWS, make, rows

from freewheel.config import LearnerConfig, QConfig
from freewheel.learners import optimizer, package
from freewheel.learners.update import Update
from freewheel.machine import precision, trial
from freewheel.machine.trial import Choice, Report


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Machine:
    """Where each precision is so many times as fast as fp32, or fails with an exit code."""

    def __init__(self, **speeds: float | Report) -> None:
        self.speeds = speeds
        self.asked: list[str] = []

    def throwaway(self, work: Any, name: str, device: str, timeout_s: float) -> Report:
        self.asked.append(name)
        found = self.speeds[name]
        return found if isinstance(found, Report) else Report([[[3.0, 1.0], [1 / found, 2.0]]])


DEAD = Report([], "its process died by SIGILL", -signal.SIGILL)


def machine(monkeypatch: pytest.MonkeyPatch, **speeds: float | Report) -> Machine:
    made = Machine(**speeds)
    monkeypatch.setattr(trial, "throwaway", made.throwaway)
    return made


def test_a_precision_that_kills_its_process_becomes_a_reason_and_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch, bf16=DEAD)
    first, again = precision.choose("bf16", "cpu"), precision.choose("bf16", "cpu")
    assert first.chosen == again.chosen == "fp32"
    assert first.reason == "Training in fp32: bf16 does not run here (its process died by SIGILL)."
    assert again.reason == "Training in fp32: bf16 does not run here (its process died by SIGILL) (measured earlier)."
    assert here.asked == ["bf16"]
    assert precision.why_not("bf16", "cpu") == "its process died by SIGILL"


@pytest.mark.parametrize(
    "report",
    [
        Report([], "its process ended with exit code 3", 3),
        Report([], "RuntimeError: no such device"),
        Report([], "its process died by SIGKILL", -signal.SIGKILL),
        Report([], "no answer within 60 s"),
    ],
)
def test_a_failure_that_may_pass_is_not_remembered(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch, fp16=report)
    found = precision.choose("fp16", "cpu")
    assert found.chosen == "fp32"
    assert report.failure in found.reason
    here.speeds["fp16"] = 2.0
    assert precision.choose("fp16", "cpu").chosen == "fp16"


def test_the_measurement_itself_gives_times_or_dies_alone() -> None:
    found = precision.tried("fp16", "cpu")
    assert bool(found.failure) != all(len(each) == trial.ROUNDS for each in found.times.values())
    assert precision.tried("fp16", "cpu").is_remembered


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({"bf16": DEAD, "fp16": 0.7}, "fp32"),
        ({"bf16": DEAD, "fp16": DEAD}, "fp32"),
        ({"bf16": 1.02, "fp16": 0.7}, "fp32"),  # not worth the digits
        ({"bf16": 1.9, "fp16": 2.0}, "fp16"),
        ({"bf16": 1.9, "fp16": DEAD}, "bf16"),
    ],
)
def test_auto_takes_the_fastest_that_runs(
    speeds: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(monkeypatch, **speeds)
    found = precision.choose("auto", "cpu")
    assert found.chosen == expected
    assert found.reason.startswith(f"Training in {expected}: bf16 ")
    assert ", fp16 " in found.reason
    assert precision.choose("auto", "cpu").chosen == expected
    assert here.asked == ["bf16", "fp16"]  # once each


def test_fp32_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch)
    assert precision.choose("fp32", "cpu") == Choice("fp32")
    assert here.asked == []


def test_what_was_asked_for_is_told_with_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, bf16=0.5)
    expected = "Training in bf16, as set: bf16 is 0.50 times as fast as fp32."
    assert precision.choose("bf16", "cpu").reason == expected


def scaled(config: LearnerConfig | None = None, **more: Any) -> Update:
    """The scaler of fp16 with float32's numbers: runs on every machine, and equals fp32 to rounding errors."""
    update = make(config, precision="fp16", **more)
    update.passes._dtype = None
    return update


def train(update: Update, num: int) -> list[Any]:
    return [update(rows(i), {}, {"lr": 1e-2}) for i in range(num)]


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
        self.state = optimizer.State.around(torch.ones(4), 4)
        self.state.scale.fill_(scale)
        self.apply = optimizer.Adam(LearnerConfig(), 4, torch.device("cpu"), is_scaled=True, clip_norm=0.0)

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
    monkeypatch.setattr(optimizer, "GROW_AFTER", 3)
    monkeypatch.setattr(optimizer, "MOST_SCALE", 16.0)
    small = Small()
    seen = []
    for _ in range(7):
        small.update(1.0)
        seen.append(small.counts[:2])
    assert seen == [(8, 1), (8, 2), (16, 0), (16, 1), (16, 2), (16, 0), (16, 1)]


def test_the_scale_is_part_of_what_a_checkpoint_keeps() -> None:
    update = scaled()
    train(update, 3)
    kept = update.tensors()
    assert kept["optimizer.scale"].item() == optimizer.FIRST_SCALE
    assert int(kept["optimizer.good_in_row"]) == 3
    assert make().tensors().keys() == kept.keys()  # so that a run may go on in another precision


@pytest.fixture(scope="module")
def _float16_runs() -> None:
    if why := precision.why_not("fp16", "cpu"):
        pytest.skip(why)


@pytest.mark.usefixtures("_float16_runs")
@pytest.mark.parametrize("algo", ["dqn", "iqn"])
def test_float16_learns_as_float32_does_and_as_a_graph(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The graph that would be compiled, run as it was traced: the compiler itself takes most of a minute.
    monkeypatch.setattr(package, "make", package.trace)
    monkeypatch.setattr(package, "load", lambda graph: graph)
    q = QConfig(noisy=True)
    plain, half, graph = make(q=q, algo=algo), *(make(q=q, algo=algo, precision="fp16") for _ in range(2))
    for update in (half, graph):
        update.state.scale.fill_(256.0)  # the first scale overflows with so few rows: updates would be skipped
    generator = torch.Generator().manual_seed(0)
    for i in range(5):
        draws = plain.algo.draws(ROWS, generator)
        if i == 0:
            graph.compile(rows(0), draws)
        one, two, three = (update(rows(i), draws, {"lr": 1e-3}) for update in (plain, half, graph))
        assert two.loss.dtype == two.outcome.q.dtype == torch.float32
        torch.testing.assert_close(two.loss, one.loss, rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(two.norm, one.norm, rtol=5e-2, atol=1e-2)
        torch.testing.assert_close(three.loss, two.loss, rtol=1e-2, atol=1e-3)
    assert not torch.equal(half.state.weights, plain.state.weights)  # or it was float32 after all
    assert half.state.weights.dtype == torch.float32
    torch.testing.assert_close(half.state.mean, plain.state.mean, rtol=0.1, atol=5e-3)
    torch.testing.assert_close(graph.state.mean, half.state.mean, rtol=0.1, atol=5e-3)
