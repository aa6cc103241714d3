"""How far a step of the optimizer has moved the parameters."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from quelea._flat import Flat


class StepDelta:
    """The parameters as they were before a step, to compute how far it moved them.

    They are copied when a forward pass starts; for large models by another thread during the pass,
    as nobody writes to them before its backward pass has ended. The copy lies where the
    displacement will be, unless a gradient is there.
    """

    #: Elements that are handled at once: what was just read is read again from the cache.
    PIECE = 1 << 17
    #: From this number of elements on, copying in another thread is faster.
    LARGE = 1 << 19

    def __init__(self, flat: Flat, reads_gradient: bool):
        self.flat = flat
        self.before = torch.empty_like(flat.params) if reads_gradient else flat.grads
        self.moved = torch.empty_like(flat.params[: self.PIECE])
        vectors = (self.before, flat.params, flat.grads)
        self.pieces = list(zip(*(v.split(self.PIECE) for v in vectors), strict=True))
        in_thread = not flat.on_gpu and flat.params.numel() >= self.LARGE
        self.thread = ThreadPoolExecutor(1, "quelea-step-delta") if in_thread else None
        self.copying: Future[None] | None = None
        self.is_copied = False

    def begin(self) -> None:
        """Starts the copy: a forward pass starts."""
        self.discard()
        if self.thread is not None:
            self.copying = self.thread.submit(self._copy)
        else:
            self._copy()
        self.is_copied = True

    def _copy(self) -> None:
        self.before.copy_(self.flat.params)

    def discard(self) -> None:
        """Marks the copy as out of date."""
        self._end_copying()
        self.is_copied = False

    def _end_copying(self) -> None:
        copying, self.copying = self.copying, None
        if copying is not None:
            copying.result()

    def complete(self) -> None:
        """Ends the copy: after the backward pass the script may change the parameters."""
        self._end_copying()
        # A script may have called only parts of the model, so that no forward pass was seen.
        if not self.is_copied:
            self._copy()

    def write_displacement(self, restore: bool) -> None:
        """Replaces the gradient by parameters before minus after the step; with `restore` the
        parameters get their old values back."""
        for before, params, grads in self.pieces:
            if restore:
                moved = torch.sub(before, params, out=self.moved[: params.numel()])
                params.copy_(before)
                grads.copy_(moved)
            else:
                torch.sub(before, params, out=grads)
        self.is_copied = False
