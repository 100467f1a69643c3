"""Writes checkpoints in another thread, from copies, while training continues."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import CheckpointError
from freewheel.store.checkpoint import WriteFile, save
from freewheel.store.folder import spare_run

# After so many failures in a row the run is called degraded.
DEGRADED_AFTER = 3

Tensors = Mapping[str, torch.Tensor]
State = Mapping[str, Any]
Files = Mapping[str, WriteFile]


class Saver:
    """Writes one checkpoint at a time. Each failure is reported; earlier checkpoints are kept.

    `run` is the run's folder. If it cannot take the last checkpoint, a copy of the run in the folder `spare` does.
    """

    def __init__(self, folder: Path, keep: int, run: Path, spare: str = "", step: int = 0) -> None:
        self.newest_step = self.saved_step = step  # of the newest attempt, and of the newest checkpoint
        self._folder, self._keep, self._run, self._spare = folder, keep, run, spare and os.path.abspath(spare)
        self._thread: threading.Thread | None = None
        self._messages: deque[dict[str, Any]] = deque()
        self._failed_in_row = 0

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, tensors: Tensors, state: State, files: Files, in_background: bool = False) -> None:
        """Writes now, or later from copies of the tensors."""
        self.close()
        self.newest_step = step
        if not in_background:
            self._report(step, tensors, state, files)
            return
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        given = (step, copies, state, files)
        self._thread = threading.Thread(target=self._report, args=given, name="fw-saver", daemon=True)
        self._thread.start()

    def save_last(self, step: int, tensors: Tensors, state: State, files: Files) -> None:
        """Writes the last checkpoint now. If that fails, the policy at least: there, or in the spare folder."""
        self.close()
        self.newest_step = step
        error = self._write(step, tensors, state, files)
        if error is None:
            return
        if files and self._write(step, tensors, state, {}) is None:
            where = f"It was saved without {', '.join(files)}, so a resumed run has to collect its rows again."
        else:
            where = self._save_spare(step, tensors, state)
        self._messages.append({"unsaved": f"{error} {where}"})

    def finished(self) -> list[dict[str, Any]]:
        """Messages about checkpoints that were saved or failed since the last call."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def close(self, timeout_s: float = 60.0) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _report(self, step: int, tensors: Tensors, state: State, files: Files) -> None:
        if (error := self._write(step, tensors, state, files)) is None:
            return
        self._failed_in_row += 1
        note = f"CheckpointError: {error} The next save tries again."
        if self._failed_in_row >= DEGRADED_AFTER:
            note += f" The run is degraded: {self._failed_in_row} checkpoints in a row could not be written."
        self._messages.append({"note": note})

    def _write(self, step: int, tensors: Tensors, state: State, files: Files) -> CheckpointError | None:
        try:
            path = save(self._folder, step, tensors, state, files, keep=self._keep)
        except CheckpointError as error:
            return error
        self._failed_in_row = 0
        self.saved_step = step
        self._messages.append({"saved": str(path)})
        return None

    def _save_spare(self, step: int, tensors: Tensors, state: State) -> str:
        try:
            run = spare_run(self._run, self._spare)
            save(run / self._folder.relative_to(self._run), step, tensors, state, keep=1)
        except CheckpointError as error:
            return f"Nor could it be saved elsewhere: {error} What was learned since step {self.saved_step:,} is lost."
        return f"It was saved in {run} instead: give that folder to freewheel eval, or to freewheel train --resume."
