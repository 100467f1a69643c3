"""Writes checkpoints in another thread, from copies, while training continues."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import CheckpointError
from freewheel.store.checkpoint import WriteFile, save

# After so many failures in a row the run is called degraded.
DEGRADED_AFTER = 3

Tensors = Mapping[str, torch.Tensor]
State = Mapping[str, Any]


class Saver:
    """Writes one checkpoint at a time. Each failure is reported; earlier checkpoints are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.newest_step = 0
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._messages: deque[dict[str, Any]] = deque()
        self._failed_in_row = 0

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, step: int, tensors: Tensors, state: State, files: Mapping[str, WriteFile], in_background: bool = False
    ) -> None:
        """Writes now, or later from copies of the tensors."""
        self.close()
        self.newest_step = step
        if not in_background:
            self._write(step, tensors, state, files)
            return
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        given = (step, copies, state, files)
        self._thread = threading.Thread(target=self._write, args=given, name="fw-saver", daemon=True)
        self._thread.start()

    def finished(self) -> list[dict[str, Any]]:
        """Messages about checkpoints that were saved or failed since the last call."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def close(self, timeout_s: float = 60.0) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _write(self, step: int, tensors: Tensors, state: State, files: Mapping[str, WriteFile]) -> None:
        try:
            path = save(self._folder, step, tensors, state, files, keep=self._keep)
        except CheckpointError as error:
            self._failed_in_row += 1
            note = f"CheckpointError: {error}"
            if self._failed_in_row >= DEGRADED_AFTER:
                note += f" The run is degraded: {self._failed_in_row} checkpoints in a row could not be written."
            self._messages.append({"note": note})
            return
        self._failed_in_row = 0
        self._messages.append({"saved": str(path)})
