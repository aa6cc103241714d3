"""Runs a function in several processes that are one launch. They are forked, so that PyTorch is
imported once."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable
from typing import Any

import numpy
import torch

_forks = multiprocessing.get_context("fork")
_jobs = itertools.count()


def launch(processes: int, work: Callable[..., Any], *args: Any, limit: float = 60.0) -> list[Any]:
    """What `work(rank, *args)` returned at every rank; fails with the first traceback."""
    results = outcomes(processes, work, *args, limit=limit)
    for rank, (failure, _) in enumerate(results):
        assert failure is None, f"rank {rank}:\n{failure}"
    return [value for _, value in results]


def outcomes(
    processes: int,
    work: Callable[..., Any],
    *args: Any,
    limit: float = 60.0,
    dead: tuple[int, ...] = (),
    restarted: tuple[int, ...] = (),
) -> list[tuple[str | None, Any]]:
    """The traceback or None, and what was returned, of every rank; nothing of those that die. The ranks
    `restarted` die and are started once more, with ``QUELEA_TEST_RESTARTED`` in their environment."""
    answers = _forks.Queue()
    job = f"test-{os.getpid()}-{next(_jobs)}"

    def child(rank: int, restarted: str = "") -> None:
        os.environ["QUELEA_TEST_RESTARTED"] = restarted
        os.environ.update(
            QUELEA_RANK=str(rank), QUELEA_WORLD_SIZE=str(processes), QUELEA_JOB=job
        )
        try:
            value = work(rank, *args)
            # Tensors would travel as files that end with this process.
            answers.put((rank, None, value.numpy() if isinstance(value, torch.Tensor) else value))
        except BaseException as error:
            answers.put((rank, "".join(traceback.format_exception(error)), None))

    children = [_forks.Process(target=child, args=(rank,)) for rank in range(processes)]
    for started in children:
        started.start()
    results: dict[int, tuple[str | None, Any]] = {}
    for rank in restarted:
        children[rank].join(timeout=limit)
        children[rank] = _forks.Process(target=child, args=(rank, "yes"))
        children[rank].start()
    try:
        while len(results) < processes - len(dead):
            rank, failure, value = answers.get(timeout=limit)
            if isinstance(value, numpy.ndarray):
                value = torch.from_numpy(value)
            results[rank] = (failure, value)
    except queue.Empty:
        missing = sorted(set(range(processes)) - set(results))
        raise AssertionError(f"ranks {missing} hang; the others: {results}") from None
    finally:
        for started in children:
            started.join(timeout=5)
            started.kill()
    return [results[rank] for rank in range(processes) if rank not in dead]
