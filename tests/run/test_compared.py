"""A learner that got compiled updates keeps them if they are faster, and remembers it either way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from freewheel.learners import forms
from freewheel.run.learning import Learning


class Step:
    is_compiled = True

    def go_back(self) -> None:
        self.is_compiled = False


@pytest.mark.parametrize(
    ("compiled_s", "stays", "said"),
    [
        (0.01, True, "a compiled update takes 10 ms, an eager one took 20 ms."),
        (0.04, False, "a compiled update takes 40 ms, an eager one took 20 ms: updates are eager again."),
    ],
)
def test_the_faster_updates_go_on(
    compiled_s: float, stays: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    step, notes, team = Step(), [], list[str]()
    learning: Any = SimpleNamespace(
        job=SimpleNamespace(form_key="key"),
        learner=SimpleNamespace(step=step),
        channel=SimpleNamespace(send=notes.append),
        helping=SimpleNamespace(close=lambda: team.append("dismissed"), go_on=lambda: team.append("goes on")),
    )
    Learning._compared(learning, 0.02, compiled_s)
    assert step.is_compiled is stays
    assert notes == [{"note": said}]
    assert team == ["dismissed" if stays else "goes on"]
    assert forms.recall("key") == {"compiled": 0.02 / compiled_s}
