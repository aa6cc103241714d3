"""What a process that joins a run gets of another's script besides the vectors of its rank: the state of the
optimizer, buffers, frozen parameters, and how many steps were taken before the run."""

from __future__ import annotations

import io

import torch

from quelea._core import Error
from quelea._untrained import UntrainedTensors

#: Frozen parameters and buffers of up to so many bytes are sent; of more, only their digest.
SENT_BYTES = 64 << 20


class JoinedState:
    """The state with which a process has joined."""

    def __init__(self, state: bytes, params: torch.Tensor):
        try:
            loaded = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        except Exception as error:
            raise Error(f"the state of rank 0's script cannot be read: {error}") from error
        self._loaded = loaded
        #: Steps that were taken before the run.
        self.steps_before: int = loaded["steps_before"]
        #: With what data the run began, where its ranks share them.
        self.data: tuple[list[int], int] | None = loaded["data"]
        #: The flat parameters.
        self.params = params.detach().clone()

    @staticmethod
    def save(
        optimizer: torch.optim.Optimizer,
        untrained: UntrainedTensors,
        steps_before: int,
        data: tuple[list[int], int] | None,
    ) -> bytes:
        """The state of this script, for a process that joins."""
        tensors = untrained.tensors()
        is_small = sum(t.numel() * t.element_size() for t in tensors) <= SENT_BYTES
        file = io.BytesIO()
        torch.save(
            {
                "optimizer": optimizer.state_dict(),
                "untrained": [t.detach().cpu() for t in tensors] if is_small else None,
                "digest": None if is_small else untrained.digest(tensors),
                "steps_before": steps_before,
                "data": data,
            },
            file,
        )
        return file.getvalue()

    @torch.no_grad()
    def restore(self, optimizer: torch.optim.Optimizer, untrained: UntrainedTensors) -> None:
        """Puts it into the optimizer and the tensors that are not trained."""
        optimizer.load_state_dict(self._loaded["optimizer"])
        for group in optimizer.param_groups:
            # A scheduler that is advanced to where the others are begins with this one.
            if "initial_lr" in group:
                group["lr"] = group["initial_lr"]
        tensors, sent = untrained.tensors(), self._loaded["untrained"]
        if sent is not None:
            for mine, other in zip(tensors, sent, strict=True):
                mine.copy_(other)
        elif untrained.digest(tensors) != self._loaded["digest"]:
            raise Error(
                "frozen parameters and buffers are not those of the run, and too many to be sent: load "
                "them in the same way in every process"
            )
