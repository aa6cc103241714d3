"""Runs a function in several processes that are one group of `torch.distributed`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from group import launch, outcomes


def _in_group(rank, backend, processes, file, seconds, work, args):
    dist.init_process_group(
        backend,
        init_method=f"file://{file}",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=seconds),
    )
    value = work(rank, *args)
    dist.destroy_process_group()
    return value


def in_group(
    processes: int, work: Callable[..., Any], *args: Any, backend: str = "quelea", seconds: float = 60.0
) -> list[Any]:
    """What `work(rank, *args)` returned at every rank; fails with the first traceback."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/store"
        return launch(processes, _in_group, backend, processes, file, seconds, work, args)


def failures_in_group(
    processes: int,
    work: Callable[..., Any],
    *args: Any,
    dead: tuple[int, ...] = (),
    seconds: float = 60.0,
) -> list[str | None]:
    """The traceback or None of every rank; nothing of those that die."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/store"
        ended = outcomes(
            processes, _in_group, "quelea", processes, file, seconds, work, args, dead=dead
        )
        return [failure for failure, _ in ended]
