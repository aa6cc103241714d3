"""What a model's GPU holds, now and then, for those who look at the run."""

from __future__ import annotations

import time

import torch

from quelea._core import Run

#: How often it is asked for: as often as ranks are asked.
INTERVAL_SECONDS = 0.5


class GpuMemory:
    """Tells a run how much memory PyTorch has allocated on a device; nothing without a GPU."""

    def __init__(self, device: torch.device):
        self.device = device if device.type == "cuda" else None
        self._next = 0.0

    def note(self, run: Run) -> None:
        """Called after every step."""
        if self.device is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL_SECONDS
            run.note_gpu_bytes(torch.cuda.memory_allocated(self.device))
