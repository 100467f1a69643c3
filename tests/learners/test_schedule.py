from __future__ import annotations

import pytest

from freewheel.config import LearnerConfig
from freewheel.learners.optimizer import lr_at


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1, 1, 1]), ("linear", [1, 0.6, 0.2]), ("cosine", [1, 0.6, 0.2])],
)
def test_the_course_over_a_run(schedule: str, expected: list[float]) -> None:
    config = LearnerConfig(lr=1.0, lr_schedule=schedule, lr_end=0.2)  # type: ignore[arg-type]
    assert [lr_at(config, 1000, share) for share in (0.0, 0.5, 1.0)] == pytest.approx(expected)


def test_it_rises_first() -> None:
    config = LearnerConfig(lr=1.0, lr_warmup_updates=4)
    assert [lr_at(config, n, 0.0) for n in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_restarts_begin_again_after_the_rise() -> None:
    config = LearnerConfig(lr=1.0, lr_schedule="restarts", lr_warmup_updates=10, lr_restart_updates=4)
    course = [lr_at(config, 10 + n, 0.9) for n in range(8)]
    assert course[:4] == pytest.approx([1.0, 0.853553, 0.5, 0.146447], rel=1e-4)
    assert course[4:] == course[:4]
