"""Forms of an update: what is tried, what wins, and what is remembered."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from freewheel.config import LearnerConfig, NetConfig, QConfig
from freewheel.machine import precision
from freewheel.machine import update_form as forms
from freewheel.machine.trial import Measured
from freewheel.machine.update_form import Form
from freewheel.nets.value_net import build_net

FRAME = spaces.Box(0, 255, (36, 36), np.uint8)


def image_net() -> nn.Module:
    return build_net(FRAME, spaces.Discrete(2), NetConfig(channels=(4,), kernels=(8,), strides=(4,)), QConfig(), "dqn")


def vector_net() -> nn.Module:
    return build_net(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), NetConfig(), QConfig(), "dqn")


def test_without_a_trial_images_have_channels_last_and_all_cores() -> None:
    assert forms.settled(LearnerConfig(), image_net(), 4) == Form("fp32", "channels_last", 4)
    assert forms.settled(LearnerConfig(), image_net(), 4, "cuda") == Form("fp32", "channels_last", 1)
    assert forms.settled(LearnerConfig(), vector_net(), 4) == Form("fp32", "contiguous", 1)
    asked = LearnerConfig(memory_format="contiguous", threads=3)
    assert forms.settled(asked, image_net(), 4) == Form("fp32", "contiguous", 3)


def test_threads_that_spin_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert forms.settled_here(LearnerConfig(), image_net(), 4).threads == 1
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert forms.settled_here(LearnerConfig(), image_net(), 4).threads == 4


def test_what_is_left_open_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forms.candidates(LearnerConfig(), vector_net(), 8, "cpu") == [Form()]
    found = forms.candidates(LearnerConfig(), image_net(), 6, "cpu")
    assert found[0] == Form("fp32", "channels_last", 6)
    assert sorted((form.memory_format, form.threads) for form in found) == [
        (name, count) for name in ("channels_last", "contiguous") for count in (1, 2, 4, 6)
    ]
    assert len(forms.candidates(LearnerConfig(memory_format="contiguous", threads=1), image_net(), 6, "cpu")) == 1
    monkeypatch.setattr(precision, "why_not", lambda name, device: "it died" if name == "bf16" else "")
    tried = forms.candidates(LearnerConfig(precision="auto", threads=1), image_net(), 6, "cpu")
    assert {form.precision for form in tried} == {"fp32", "fp16"}


@given(cores=st.integers(1, 256))
def test_thread_counts_go_from_one_to_all(cores: int) -> None:
    counts = forms.thread_counts(cores)
    assert counts[0] == 1
    assert counts[-1] == cores
    assert counts == sorted(set(counts))


def test_the_fastest_by_the_median_unless_the_first_is_as_good() -> None:
    first, other, dead = Form(threads=2), Form(threads=1), Form("bf16")
    assert forms.fastest({first: [3.0, 3.0, 9.0], other: [1.0, 2.0, 8.0], dead: []}) == other
    assert forms.fastest({first: [1.02], other: [1.0]}) == first
    assert forms.fastest({first: [], other: [1.0]}) == other
    pixels = Form(memory_format="channels_last")
    assert forms.fastest({first: [3.0], other: [1.0], pixels: [1.2]}) == pixels
    assert forms.fastest({first: [3.0], other: [1.0], pixels: [1.3]}) == other
    assert forms.fastest({first: [3.0], other: [1.0], pixels: [1.2]}, may_compile=False) == other
    said = forms.sentence(Measured({first: [0.003], dead: [], other: []}, "SIGILL"))
    assert said == (
        "fp32, contiguous, 2 threads 3 ms; bf16, contiguous, 1 thread does not run here (SIGILL); "
        "fp32, contiguous, 1 thread was not tried"
    )


def test_the_key_is_that_of_network_batch_forms_and_device() -> None:
    net, open_forms = image_net(), [Form(), Form(threads=2)]
    key = forms.key_of(net, 32, open_forms, FRAME, "cpu")
    assert key == forms.key_of(image_net(), 32, open_forms, FRAME, "cpu")
    others = {
        forms.key_of(vector_net(), 32, open_forms, FRAME, "cpu"),
        forms.key_of(net, 64, open_forms, FRAME, "cpu"),
        forms.key_of(net, 32, open_forms[:1], FRAME, "cpu"),
        forms.key_of(net, 32, open_forms, FRAME, "cuda"),
    }
    assert key not in others
    assert len(others) == 4
