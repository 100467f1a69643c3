"""Checkpoints written by a thread of their own, from copies: training goes on meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import CheckpointError
from freewheel.store.checkpoint import WriteFile, save

# So many failures in a row, and the run counts as degraded.
DEGRADED_AFTER = 3


class Saver:
    """One checkpoint at a time. What could not be written is told each time; the older checkpoints stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.newest_step = 0
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._told: deque[dict[str, Any]] = deque()
        self._failed_in_row = 0

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Copies at once and writes later."""
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.close()
        self.newest_step = step
        self._thread = threading.Thread(
            target=self._write, args=(step, copies, state, {}), name="fw-saver", daemon=True
        )
        self._thread.start()

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        files: Mapping[str, WriteFile],
    ) -> None:
        """Writes now."""
        self.close()
        self.newest_step = step
        self._write(step, tensors, state, files)

    def finished(self) -> list[dict[str, Any]]:
        """What was saved, and what could not be, since the last call."""
        told = []
        while self._told:
            told.append(self._told.popleft())
        return told

    def close(self, timeout_s: float = 60.0) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _write(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        files: Mapping[str, WriteFile],
    ) -> None:
        try:
            path = save(self._folder, step, tensors, state, files, keep=self._keep)
        except CheckpointError as error:
            self._failed_in_row += 1
            degraded = f" The run is degraded: {self._failed_in_row} checkpoints in a row could not be written."
            self._told.append(
                {"note": f"CheckpointError: {error}{degraded if self._failed_in_row >= DEGRADED_AFTER else ''}"}
            )
            return
        self._failed_in_row = 0
        self._told.append({"saved": str(path), "step": step})
