"""Starts a script several times on this machine: ``python -m quelea.launch -n 4 train.py …``.

Every process gets its rank through the environment, which `quelea.torch.init()` reads. If one fails, the
others are ended, and the last line names it; except in a run that continues without lost processes, where with
``--restarts`` another is started in its place, and joins.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO

from quelea import _launched

#: How long the others may take to end on their own after one has failed.
GRACE_SECONDS = 5.0
#: How long all may take after Ctrl-C, to save their state.
INTERRUPT_SECONDS = 30.0
#: A process that lived for less has died at once.
AT_ONCE_SECONDS = 5.0
#: How long the second in a row that dies at once waits before it is started again, and the longest that any does.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="quelea launch", description=__doc__)
    parser.add_argument("-n", "--processes", "--nproc", type=int, required=True, metavar="N")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="K",
        help="start a process that is lost again, K times in all; it joins the run",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT names a module")
    parser.add_argument(
        "--no-prefix", action="store_true", help="do not prefix lines with the rank"
    )
    parser.add_argument("--page", metavar="ADDRESS:PORT", help="show the run in a browser")
    parser.add_argument("--records", metavar="FOLDER", help="write what is measured to this folder")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…")
    given = parser.parse_args(words)
    if given.processes < 1:
        parser.error(f"-n {given.processes}: must be at least 1")
    if given.restarts < 0:
        parser.error(f"--restarts {given.restarts}: must not be negative")
    if not given.module and not os.path.exists(given.script):
        parser.error(f"{given.script}: no such file")
    script = (["-m"] if given.module else []) + [given.script, *given.arguments]
    # What `quelea.torch.init()` reads at rank 0.
    for name, value in (("QUELEA_PAGE", given.page), ("QUELEA_RECORDS", given.records)):
        if value is not None:
            os.environ[name] = value
    command = [sys.executable, "-u", *script]
    return ChildProcesses(command, given.processes, not given.no_prefix, given.restarts).run()


class ChildProcesses:
    """The processes of a launch. None outlives this object."""

    def __init__(self, command: list[str], count: int, prefix: bool, restarts: int = 0):
        self.command, self.count, self.prefix, self.restarts = command, count, prefix, restarts
        self.job = f"{os.getpid()}-{secrets.token_hex(4)}"
        #: Where rank 0 says whether its run continues without lost processes.
        self.folder = tempfile.mkdtemp(prefix="quelea-launch-")
        self.children: dict[int, subprocess.Popen] = {}
        self.readers: list[threading.Thread] = []
        #: Processes that have ended, as the threads that wait for them say.
        self.ended: list[tuple[int, int]] = []
        self.changed = threading.Condition()
        #: The first process whose failure is that of the launch.
        self.failure: tuple[int, int] | None = None
        #: When processes are started again, by rank, and how many were.
        self.due: dict[int, float] = {}
        self.restarted: list[int] = []
        #: By rank: when its process was started, and how many in a row have died at once.
        self.started: dict[int, float] = {}
        self.died_at_once: dict[int, int] = {}

    def _start_rank(self, rank: int) -> None:
        """Starts a process and the threads that watch it."""
        child = self._start(self.command, rank, self.count, self.job)
        self.children[rank] = child
        self.started[rank] = time.monotonic()
        threading.Thread(target=self._await, args=(rank, child), daemon=True).start()
        for source, sink in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            label = f"[{rank}] " if self.prefix and self.count > 1 else ""
            reader = threading.Thread(target=_copy, args=(source, sink, label), daemon=True)
            reader.start()
            self.readers.append(reader)

    def _start(self, command: list[str], rank: int, count: int, job: str) -> subprocess.Popen:
        env = dict(
            os.environ,
            QUELEA_RANK=str(rank),
            QUELEA_WORLD_SIZE=str(count),
            QUELEA_LOCAL_RANK=str(rank),
            QUELEA_LOCAL_SIZE=str(count),
            QUELEA_JOB=job,
        )
        env |= {_launched.FOLDER: self.folder, _launched.RESTARTS: str(self.restarts)}
        if count > 1:
            env.setdefault("OMP_NUM_THREADS", "1")
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )

    def _await(self, rank: int, child: subprocess.Popen) -> None:
        status = child.wait()
        with self.changed:
            self.ended.append((rank, status))
            self.changed.notify_all()

    def run(self) -> int:
        """Waits until all have ended; the status of the first that failed, or 0."""
        try:
            with _interrupts_deferred():
                for rank in range(self.count):
                    self._start_rank(rank)
            while (self.children or self.due) and self.failure is None:
                self._attend(min(self.due.values(), default=None))
            self._wait(GRACE_SECONDS if self.failure is not None else 0.0)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
            self._await_interrupted()
        self._end()
        for reader in self.readers:
            reader.join(timeout=GRACE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        if interrupted:
            return 130
        if self.failure is None:
            return 0
        rank, status = self.failure
        _say(f"rank {rank} {_how(status)}; the others were ended")
        return status if status > 0 else 1

    def _attend(self, until: float | None) -> None:
        """Waits for a process to end, until then at most; starts those again whose time has come."""
        with self.changed:
            if not self.ended:
                self.changed.wait(None if until is None else max(until - time.monotonic(), 0.0))
            ended, self.ended = self.ended, []
        for rank, status in ended:
            del self.children[rank]
            if status != 0 and self.failure is None:
                self._fail(rank, status)
        for rank in [rank for rank, at in self.due.items() if at <= time.monotonic()]:
            del self.due[rank]
            # A run that has ended meanwhile cannot be joined.
            if self._continues():
                self._start_rank(rank)

    def _continues(self) -> bool:
        """Whether a run is under way that continues without a lost process."""
        return os.path.exists(os.path.join(self.folder, _launched.CONTINUES))

    def _fail(self, rank: int, status: int) -> None:
        """A process has failed, or was killed: the others are ended, unless their run continues."""
        how = f"rank {rank} {_how(status)}"
        if rank == 0 and os.path.exists(os.path.join(self.folder, _launched.SURVIVES)):
            _say(f"{how}; the others continue without it, and another process controls the run")
        elif rank == 0 or not (self._continues() or rank in self.restarted):
            self.failure = (rank, status)
        elif not self._continues():
            _say(f"{how} after the run")
        elif self.restarts == 0:
            _say(f"{how}; the others continue without it")
        elif len(self.restarted) == self.restarts:
            _say(f"{how}; it is not started again: all {self.restarts} restarts are used")
        else:
            self.restarted.append(rank)
            pause = self._pause(rank)
            when = f" in {pause:.2f} s" if pause > 0.0 else ""
            used = f"restart {len(self.restarted)} of {self.restarts}"
            _say(f"{how}; it is started again{when} ({used})")
            self.due[rank] = time.monotonic() + pause

    def _pause(self, rank: int) -> float:
        """How long to wait before a process is started again: one that can never run does not keep the machine
        busy."""
        is_at_once = time.monotonic() - self.started[rank] < AT_ONCE_SECONDS
        deaths = self.died_at_once[rank] = self.died_at_once.get(rank, 0) + 1 if is_at_once else 0
        return 0.0 if deaths < 2 else min(FIRST_PAUSE * 2.0 ** (deaths - 2), LONGEST_PAUSE)

    def _wait(self, seconds: float) -> None:
        """Waits until all have ended, or this time has passed."""
        until = time.monotonic() + seconds
        self.due.clear()
        while self.children and time.monotonic() < until:
            self._attend(until)

    def _await_interrupted(self) -> None:
        """The terminal has interrupted the scripts too: gives them time to save their state."""
        said = "interrupted; the scripts have {:.0f} s to end; Ctrl-C again ends them now"
        _say(said.format(INTERRUPT_SECONDS))
        try:
            # What ends now ends because of that.
            self.restarts = 0
            self._wait(INTERRUPT_SECONDS)
        except KeyboardInterrupt:
            pass

    def _end(self) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
        for child in self.children.values():
            child.wait()


def _say(sentence: str) -> None:
    print(f"quelea: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """An interrupt inside is raised at the end, so that no process is left without its threads."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts:
        raise KeyboardInterrupt


def _how(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"


def _copy(source: IO[bytes], sink: IO[str], label: str) -> None:
    for line in source:
        sink.write(label + line.decode(errors="replace"))
        sink.flush()


def _end_with_parent() -> None:
    """Ends this process when the launcher is killed."""
    end_with_parent = 1
    ctypes.CDLL(None).prctl(end_with_parent, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
