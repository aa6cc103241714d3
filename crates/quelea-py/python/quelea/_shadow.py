"""How far a step has moved."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from quelea._flat import Flat


class Shadow:
    """The parameters as they were before the step, to tell how far it moved.

    They are copied when a forward pass begins; for large models while it goes on, as nobody writes
    to them before its backward pass is over. The copy lies where the displacement will be, unless a
    gradient is there.
    """

    #: Elements that are handled at once: what was just read is read again from the cache.
    PIECE = 1 << 17
    #: Below so many elements another thread does not pay.
    LARGE = 1 << 19

    def __init__(self, flat: Flat, reads_gradient: bool):
        self.flat = flat
        self.before = torch.empty_like(flat.params) if reads_gradient else flat.grads
        self.moved = torch.empty_like(flat.params[: self.PIECE])
        vectors = (self.before, flat.params, flat.grads)
        self.pieces = list(zip(*(v.split(self.PIECE) for v in vectors), strict=True))
        beside = not flat.on_gpu and flat.params.numel() >= self.LARGE
        self.thread = ThreadPoolExecutor(1, "quelea-shadow") if beside else None
        self.copying: Future[None] | None = None
        self.is_copied = False

    def begin(self) -> None:
        """A forward pass begins."""
        self.forget()
        if self.thread is not None:
            self.copying = self.thread.submit(self._copy)
        else:
            self._copy()
        self.is_copied = True

    def _copy(self) -> None:
        self.before.copy_(self.flat.params)

    def forget(self) -> None:
        """What was copied is no longer true."""
        self._end_copying()
        self.is_copied = False

    def _end_copying(self) -> None:
        copying, self.copying = self.copying, None
        if copying is not None:
            copying.result()

    def complete(self) -> None:
        """The backward pass is over: from now on the script may change the parameters."""
        self._end_copying()
        # A script may have called parts of the model only.
        if not self.is_copied:
            self._copy()

    def displace(self, back: bool) -> None:
        """The gradient becomes how far the parameters moved, and perhaps they go back."""
        for before, params, grads in self.pieces:
            if back:
                moved = torch.sub(before, params, out=self.moved[: params.numel()])
                params.copy_(before)
                grads.copy_(moved)
            else:
                torch.sub(before, params, out=grads)
        self.is_copied = False
