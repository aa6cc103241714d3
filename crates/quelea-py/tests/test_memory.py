"""A step asks for no memory of the model's size beyond what PyTorch does by itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from group import launch
from torch import nn

import quelea.torch as quelea
from quelea import _core

WIDTH, LAYERS = 512, 4
MODEL_BYTES = 4 * LAYERS * WIDTH * WIDTH
WARM, STEPS = 10, 20
#: Memory for messages grows while more are on their way at once than ever before; what every step
#: asked for would be in every window.
WINDOWS = 8
#: Pieces from here on count, in Rust too.
LARGE = 32 << 10


class Training:
    def __init__(self) -> None:
        layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.inputs = torch.ones(2, WIDTH)

    def step(self) -> None:
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def asked_of_pytorch(self) -> int:
        """Bytes that STEPS steps ask PyTorch for, in large pieces."""
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
            for _ in range(STEPS):
                self.step()
        events = profile.profiler.kineto_results.events()
        pieces = [event.nbytes() for event in events if event.name() == "[memory]"]
        return sum(piece for piece in pieces if piece >= LARGE)


def asked(rank: int, algorithm: str) -> tuple[int, int, list[int]]:
    """Bytes that the same steps ask for: of PyTorch without quelea and with it, and then, as many
    times as there are windows, in Rust."""
    plain = Training()
    plain.step()
    without = plain.asked_of_pytorch()
    quelea.init()
    wrapped = Training()
    quelea.wrap(wrapped.model, wrapped.optimizer, algorithm, bucket_mb=1)
    for _ in range(WARM):
        wrapped.step()
    with_quelea = wrapped.asked_of_pytorch()
    seen = [_core.large_allocations()]
    for _ in range(WINDOWS):
        for _ in range(STEPS):
            wrapped.step()
        seen.append(_core.large_allocations())
    quelea.shutdown()
    counts = [count for count in seen if count is not None]
    assert len(counts) == len(seen), "counted in builds for tests"
    return without, with_quelea, [after - before for before, after in pairwise(counts)]


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "ad-psgd", "aladdin", "sgp", "sync-ps"])
def test_steps_ask_for_no_memory_of_the_models_size(algorithm):
    for without, with_quelea, in_rust in launch(2, asked, algorithm):
        assert without >= STEPS * MODEL_BYTES, "PyTorch makes new gradients at every step"
        assert with_quelea <= without
        assert min(in_rust) == 0, in_rust
