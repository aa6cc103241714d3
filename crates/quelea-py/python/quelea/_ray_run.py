"""Runs of the built-in tasks on Ray: one actor coordinates, every other one is a worker.

The coordinator is ``quelea serve`` on the node of the caller, a worker ``quelea join`` wherever Ray has room. The run
begins with the fewest workers that were asked for; others join while it runs. When a node is lost, Ray starts its actors
again on another one as soon as there is room, and they join in the place of those that were lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from quelea._core import Error

#: Between two attempts of a worker to join.
PAUSE_SECONDS = 1.0
#: How long the coordinator may take to save the run when it is stopped.
STOP_SECONDS = 60.0
#: What a program's last words may be.
LAST_CHARACTERS = 4000


def run(config: Any, num_workers: int | tuple[int, int], **options: Any) -> dict[str, Any]:
    """Trains on a Ray cluster and returns the run's summary; arguments are those of `start`.

    Ctrl-C stops the run; what it has learned is in its last checkpoint.
    """
    running = start(config, num_workers, **options)
    try:
        return running.result()
    except BaseException:
        running.stop()
        raise


def start(
    config: str | os.PathLike[str] | Mapping[str, Any],
    num_workers: int | tuple[int, int],
    *,
    out: str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    wait_seconds: int = 600,
) -> RayRun:
    """Starts a run on a Ray cluster.

    `config` is a run file, or what would be in one. With `num_workers` = (2, 8) the run begins when two workers are there;
    up to eight take part while Ray has room for them. `out` is the folder for the run's files, on the caller's node.
    `settings` has further keys, as in ``{"optimizer.lr": 0.1}``. Each worker takes `resources_per_worker`, as in
    ``{"CPU": 4}``; without it, one CPU.
    """
    fewest, most = (num_workers, num_workers) if isinstance(num_workers, int) else num_workers
    if not 1 <= fewest <= most:
        raise Error(f"num_workers={num_workers!r}: must be a number, or the fewest and the most, at least 1")
    if not ray.is_initialized():
        ray.init()
    membership = {"on_loss": "continue", "min_workers": 1, "max_workers": most}
    given = {"workers": fewest, **{f"membership.{key}": value for key, value in membership.items()}}
    text = None
    if isinstance(config, Mapping):
        given.update(_flat(config))
    else:
        text = Path(config).read_text()
    given.update(settings or {})
    secret = os.environ.get("QUELEA_SECRET") or secrets.token_hex(32)
    here = ray.get_runtime_context().get_node_id()
    placed = NodeAffinitySchedulingStrategy(here, soft=False)
    coordinator = _Coordinator.options(scheduling_strategy=placed).remote(secret)
    address = ray.get(coordinator.address.remote())
    words = [word for key, value in given.items() for word in ("--set", f"{key}={_toml(value)}")]
    folder = str(Path(out).resolve())
    ended = coordinator.run.remote(text, words, folder, wait_seconds)
    resources = dict(resources_per_worker or {"CPU": 1})
    placing = {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0)}
    workers = [
        _Worker.options(resources=resources, **placing).remote(secret, address, wait_seconds)
        for _ in range(most)
    ]
    joined = [worker.work.remote() for worker in workers]
    return RayRun(coordinator, workers, ended, joined, Path(folder))


class RayRun:
    """A run that has been started."""

    def __init__(self, coordinator: Any, workers: list[Any], ended: Any, joined: list[Any], out: Path):
        self._coordinator, self._workers = coordinator, workers
        self._ended, self._joined = ended, joined
        #: The folder of the run's files.
        self.out = out

    def result(self) -> dict[str, Any]:
        """Waits until the run has ended; its summary."""
        try:
            status, said = ray.get(self._ended)
        finally:
            self._release()
        if status != 0:
            raise Error(f"quelea serve ended with status {status}: {said}")
        return json.loads((self.out / "summary.json").read_text())

    def stop(self) -> None:
        """Has the run saved and ended before its time, if it has not ended."""
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(self._coordinator.stop.remote())
            ray.wait([self._ended], timeout=STOP_SECONDS)
        self._release()

    def _release(self) -> None:
        for actor in [*self._workers, self._coordinator]:
            ray.kill(actor)


class _Program:
    """A `quelea` command that ends with the actor that has started it."""

    def __init__(self, words: list[str], secret: str):
        variables = {key: value for key, value in os.environ.items() if not key.startswith("QUELEA_")}
        self.said = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "quelea", *words],
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=self.said,
            env={**variables, "QUELEA_SECRET": secret},
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )

    def wait(self) -> tuple[int, str]:
        """The exit status, and its last words."""
        status = self.child.wait()
        self.said.seek(0)
        return status, self.said.read().decode(errors="replace")[-LAST_CHARACTERS:]


@ray.remote(num_cpus=0, max_concurrency=3)
class _Coordinator:
    def __init__(self, secret: str):
        self.secret = secret
        self.host = ray.util.get_node_ip_address()
        with socket.socket() as found:
            found.bind(("", 0))
            self.port = found.getsockname()[1]
        self.program: _Program | None = None

    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def run(self, text: str | None, words: list[str], out: str, wait_seconds: int) -> tuple[int, str]:
        with _run_file(text) as file:
            bound = ["--bind", self.address(), "--wait", str(wait_seconds), "--out", out, "--json"]
            self.program = _Program(["serve", *file, *words, *bound], self.secret)
            return self.program.wait()

    def stop(self) -> None:
        if self.program is not None and self.program.child.poll() is None:
            self.program.child.send_signal(signal.SIGTERM)


@ray.remote(max_restarts=-1, max_task_retries=-1)
class _Worker:
    def __init__(self, secret: str, address: str, wait_seconds: int):
        self.secret, self.address, self.wait_seconds = secret, address, wait_seconds

    def work(self) -> None:
        """Takes part until the run has ended. Ray calls it again when it has started this actor again."""
        words = ["join", self.address, "--quiet", "--wait", str(self.wait_seconds)]
        while _Program(words, self.secret).wait()[0] != 0:
            # It was lost, or there is no seat yet; the driver ends this actor with the run.
            time.sleep(PAUSE_SECONDS)


def _end_with_parent() -> None:
    """Ends this process when the actor is gone: another one is started in its place."""
    end_with_parent = 1
    ctypes.CDLL(None).prctl(end_with_parent, signal.SIGKILL)


@contextlib.contextmanager
def _run_file(text: str | None) -> Iterator[list[str]]:
    """What names a run file with this text on the command line."""
    if text is None:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(text)
        yield [str(path)]


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """``{"task": {"name": …}}`` → ``{"task.name": …}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{before}{key}."))
        else:
            flat[f"{before}{key}"] = value
    return flat


def _toml(value: Any) -> str:
    """A number, word, flag or list as a run file has it."""
    return value if isinstance(value, str) else json.dumps(value)
