"""Operations of `torch.distributed` that run or have ended, and the thread that ends some of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work

from quelea._buffers import Buffers
from quelea._core import Error, PendingCall

#: Starts the calls of an operation on memory of the host.
Start = Callable[[], list[PendingCall]]


class TensorWork(Work):
    """One operation on tensors.

    On a CPU its calls start at once, and whoever waits for it waits for them. With tensors of a
    GPU, a thread starts them when the copies to the host are complete, and copies results back.
    """

    def __init__(self, start: Start, buffers: Buffers, deferred: bool):
        super().__init__()
        self._start, self._buffers = start, buffers
        self._lock = threading.Lock()
        self._calls: list[PendingCall] | None = None if deferred else start()
        self._ended = threading.Event() if deferred else None
        self._failure: BaseException | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._copied_back = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: B008
        seconds = timeout.total_seconds() or None
        if self._ended is None:
            self._join(seconds)
        else:
            if not self._ended.wait(seconds):
                raise Error(f"timed out: the operation has not ended within {seconds} s")
            if self._failure is not None:
                raise self._failure
        self._buffers.make_visible()
        return True

    def is_completed(self) -> bool:
        if self._ended is not None:
            return self._ended.is_set()
        return all(call.is_done for call in self._calls or [])

    def result(self) -> list[torch.Tensor]:
        return self._buffers.results

    def _join(self, seconds: float | None) -> None:
        for call in self._calls or []:
            call.wait(seconds)
        with self._lock:
            if not self._copied_back:
                self._buffers.copy_back()
                self._copied_back = True

    def run(self) -> None:
        """Does what the thread does for an operation."""
        try:
            if self._calls is None:
                self._buffers.wait_for_copies()
                self._calls = self._start()
            self._join(None)
        except BaseException as error:
            self._failure = error
        if self._ended is not None:
            self._ended.set()
        with self._lock:
            if self._future is not None:
                self._resolve(self._future)

    def future(self) -> tuple[torch.futures.Future[list[torch.Tensor]], bool]:
        """The future of the results, and whether somebody must call `run` for it."""
        with self._lock:
            if self._future is not None:
                return self._future, False
            self._future = torch.futures.Future(devices=self._buffers.devices)
            if self._ended is not None and self._ended.is_set():
                self._resolve(self._future)
            return self._future, self._ended is None

    def _resolve(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._failure is None:
            with self._buffers.on_stream():
                future.set_result(self._buffers.results)
        else:
            future.set_exception(self._failure)


class Worker:
    """A thread that runs one operation after the other; it starts with the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[TensorWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unfinished = 0
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether operations wait for the thread."""
        return self._unfinished > 0

    def add(self, work: TensorWork) -> None:
        with self._lock:
            self._unfinished += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="quelea-works", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def close(self, seconds: float) -> None:
        """Ends the thread after what was added."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join(seconds)

    def _loop(self) -> None:
        while (work := self._queue.get()) is not None:
            work.run()
            with self._lock:
                self._unfinished -= 1
            # The last reference may be this one, and tensors are large.
            del work


class CollectiveWork(TensorWork):
    """An operation that ends in the order in which it was started."""

    def __init__(self, start: Start, buffers: Buffers, deferred: bool, worker: Worker):
        super().__init__(start, buffers, deferred)
        self._worker = worker
        if deferred:
            worker.add(self)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future, must_run = self.future()
        if must_run:
            self._worker.add(self)
        return future


class TaggedWork(TensorWork):
    """A send or a receive, which may end in any order: each has a thread, if it needs one."""

    def __init__(self, start: Start, buffers: Buffers, deferred: bool):
        super().__init__(start, buffers, deferred)
        if deferred:
            self._run_later()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future, must_run = self.future()
        if must_run:
            self._run_later()
        return future

    def _run_later(self) -> None:
        threading.Thread(target=self.run, name="quelea-work", daemon=True).start()
