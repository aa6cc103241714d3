"""Starts a script several times on this machine: ``python -m quelea.launch -n 4 train.py …``.

Every process gets its rank through the environment, which `quelea.torch.init()` reads. If one
fails, the others are ended, and the last line names it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO

#: How long the others may take to end on their own after one has failed.
GRACE_SECONDS = 5.0
#: How long all may take after Ctrl-C, to save their state.
INTERRUPT_SECONDS = 30.0


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="quelea launch", description=__doc__)
    parser.add_argument("-n", "--processes", type=int, required=True, metavar="N")
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
    if not given.module and not os.path.exists(given.script):
        parser.error(f"{given.script}: no such file")
    script = (["-m"] if given.module else []) + [given.script, *given.arguments]
    # What `quelea.torch.init()` reads at rank 0.
    for name, value in (("QUELEA_PAGE", given.page), ("QUELEA_RECORDS", given.records)):
        if value is not None:
            os.environ[name] = value
    return ChildProcesses(
        [sys.executable, "-u", *script], given.processes, not given.no_prefix
    ).run()


class ChildProcesses:
    """The processes of a launch. None outlives this object."""

    def __init__(self, command: list[str], count: int, prefix: bool):
        self.command, self.count, self.prefix = command, count, prefix
        self.children: list[subprocess.Popen] = []
        self.readers: list[threading.Thread] = []
        self.ended: list[tuple[int, int]] = []
        self.changed = threading.Condition()

    def _start_all(self) -> None:
        """Starts the processes and the threads that watch them."""
        job = f"{os.getpid()}-{secrets.token_hex(4)}"
        for rank in range(self.count):
            child = self._start(self.command, rank, self.count, job)
            self.children.append(child)
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
                self._start_all()
            with self.changed:
                while len(self.ended) < len(self.children) and not self._failures():
                    self.changed.wait()
            self._wait(GRACE_SECONDS)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
            self._await_interrupted()
        self._end()
        for reader in self.readers:
            reader.join(timeout=GRACE_SECONDS)
        if interrupted:
            return 130
        failures = self._failures()
        if not failures:
            return 0
        rank, status = failures[0]
        print(f"quelea: rank {rank} {_how(status)}; the others were ended", file=sys.stderr)
        return status if status > 0 else 1

    def _wait(self, seconds: float) -> None:
        """Waits until all have ended, or this time has passed."""
        until = time.monotonic() + seconds
        with self.changed:
            while len(self.ended) < len(self.children) and time.monotonic() < until:
                self.changed.wait(until - time.monotonic())

    def _await_interrupted(self) -> None:
        """The terminal has interrupted the scripts too: gives them time to save their state."""
        said = "quelea: interrupted; the scripts have {:.0f} s to end; Ctrl-C again ends them now"
        print(said.format(INTERRUPT_SECONDS), file=sys.stderr)
        try:
            self._wait(INTERRUPT_SECONDS)
        except KeyboardInterrupt:
            pass

    def _failures(self) -> list[tuple[int, int]]:
        return [(rank, status) for rank, status in self.ended if status != 0]

    def _end(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
        for child in self.children:
            child.wait()


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
