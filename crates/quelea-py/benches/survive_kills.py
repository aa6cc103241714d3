"""Runs `survive.py` in four processes under one system, kills processes at random, and measures what follows.

`cargo xtask bench survive` calls it once for every contestant, with a plan in JSON; it prints one JSON object.
A kill is SIGKILL to one process. Measured from then on:

- until every survivor has finished a step that it began after the kill and that contained an exchange;
- until the process that was started in its place has finished such a step (full membership);
- steps that are missing until then, against four processes that go on as before the kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("survive.py")
#: How long anything may take that is waited for.
LIMIT_SECONDS = 90.0
#: How often the files are looked at; it does not enter what is measured.
POLL_SECONDS = 0.02
#: Steps that all processes must have done undisturbed before a kill.
CALM_STEPS = 8

Line = dict[str, Any]


class Failed(Exception):
    """The contestant did not do what was waited for."""


class Contestant:
    """The processes of one system."""

    def __init__(self, plan: dict[str, Any], folder: Path):
        self.plan = plan | {"folder": str(folder), "joins": False}
        self.folder, self.random = folder, random.Random(plan["seed"])
        self.children: list[subprocess.Popen[bytes]] = []
        self.errors = open(folder / "errors.txt", "ab")

    # How processes are started.

    def start(self) -> None:
        system, processes = self.plan["system"], self.plan["processes"]
        if system == "quelea":
            restarts = str(10 * self.plan["kills"])
            words = ["-m", "quelea.launch", "-n", str(processes), "--no-prefix", "--restarts", restarts]
            self.spawn([*words, str(SCRIPT)], {})
        elif system == "torchrun":
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
            self.spawn([*words, "--max-restarts", str(10 * self.plan["kills"]), str(SCRIPT)], {})
        else:
            self.plan |= self.seed_process(system)
            for rank in range(processes):
                self.start_rank(rank)

    def start_rank(self, rank: int) -> None:
        self.spawn([str(SCRIPT)], {"RANK": str(rank)})

    def spawn(self, words: list[str], variables: dict[str, str]) -> None:
        command = [sys.executable, "-u", *words, json.dumps(self.plan)]
        child = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=self.errors,
            stderr=self.errors,
            start_new_session=True,
        )
        self.children.append(child)

    def seed_process(self, system: str) -> dict[str, Any]:
        """What the processes of a system find each other by: it lives here, and is not killed."""
        if system == "torchft":
            from torchft.coordination import LighthouseServer

            self.kept = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=10_000)
            return {"lighthouse": self.kept.address().replace(os.uname().nodename, "127.0.0.1")}
        import hivemind

        self.kept = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
        return {"peers": [str(address) for address in self.kept.get_visible_maddrs()]}

    def end(self) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for pid in {int(file.name.split(".")[1]) for file in self.folder.glob("*.jsonl")}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self.children:
            child.wait()

    # What they have done.

    def files(self) -> dict[tuple[int, int], list[Line]]:
        """The lines of every process, by rank and process."""
        found = {}
        for file in self.folder.glob("*.jsonl"):
            rank, pid = file.name.split(".")[:2]
            text = file.read_text()
            lines = text[: text.rfind("\n") + 1].splitlines()
            found[int(rank), int(pid)] = [json.loads(line) for line in lines]
        return found

    def living(self) -> dict[int, tuple[int, list[Line]]]:
        """The process of every rank that has done something last, with its lines."""
        latest: dict[int, tuple[int, list[Line]]] = {}
        for (rank, pid), lines in self.files().items():
            if lines and (rank not in latest or lines[-1]["ended"] > latest[rank][1][-1]["ended"]):
                latest[rank] = (pid, lines)
        return latest

    def until(self, what: str, holds: Any) -> Any:
        begun = time.time()
        while True:
            found = holds()
            if found:
                return found
            if time.time() - begun > LIMIT_SECONDS:
                raise Failed(f"waited {LIMIT_SECONDS:.0f} s until {what}")
            if self.plan["system"] in ("quelea", "torchrun") and self.children[0].poll() is not None:
                raise Failed(f"ended with status {self.children[0].returncode} before {what}")
            time.sleep(POLL_SECONDS)

    def calm(self, since: float) -> dict[int, tuple[int, list[Line]]]:
        """Waits until all ranks have done some steps, one of them with an exchange, since then."""

        def holds() -> Any:
            living = self.living()
            fresh = {
                rank: [line for line in lines if line["begun"] > since]
                for rank, (_, lines) in living.items()
            }
            done = [
                len(lines) >= CALM_STEPS and any(line["exchange"] for line in lines)
                for lines in fresh.values()
            ]
            return living if len(done) == self.plan["processes"] and all(done) else None

        return self.until("all processes take part", holds)

    # One kill.

    def kill(self, calm_since: float) -> dict[str, float]:
        living = self.calm(calm_since)
        paces = [
            statistics.median(line["ended"] - line["begun"] for line in lines[-CALM_STEPS:])
            for _, lines in living.values()
        ]
        victim = self.random.choice(self.plan["victims"])
        time.sleep(self.random.random())
        before = self.files()
        pid = self.living()[victim][0]
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        if self.plan["system"] in ("torchft", "hivemind"):
            self.plan["joins"] = True
            self.start_rank(victim)
        survivors = [rank for rank in range(self.plan["processes"]) if rank != victim]
        continued = self.until("the survivors continue", lambda: self.next_exchange(survivors, killed))
        whole = self.until(
            "the place is taken", lambda: self.next_exchange([victim], killed, besides=pid)
        )
        whole = max(whole, continued)
        return {
            "next_step_seconds": continued - killed,
            "full_seconds": whole - killed,
            "step_seconds": statistics.median(paces),
            "steps_lost": self.missing(before, killed, whole, paces),
        }

    def next_exchange(self, ranks: list[int], since: float, besides: int = -1) -> float | None:
        """When all of these ranks have finished a step with an exchange that began after `since`."""
        ended = {}
        for (rank, pid), lines in self.files().items():
            fitting = [
                line["ended"] for line in lines if line["exchange"] and line["begun"] > since
            ]
            if rank in ranks and pid != besides and fitting:
                ended[rank] = min(fitting + [ended.get(rank, float("inf"))])
        return max(ended.values()) if len(ended) == len(ranks) else None

    def missing(
        self,
        before: dict[tuple[int, int], list[Line]],
        killed: float,
        whole: float,
        paces: list[float],
    ) -> float:
        """Steps of all processes that were not done between the kill and full membership. Where all return to a
        checkpoint, steps that were done before do not count again."""
        reached = max(line["step"] for lines in before.values() for line in lines)
        returns = self.plan["system"] == "torchrun"
        lines = [line for lines in self.files().values() for line in lines]
        done = sum(
            killed < line["ended"] <= whole and (not returns or line["step"] > reached)
            for line in lines
        )
        return sum((whole - killed) / pace for pace in paces) - done


@contextlib.contextmanager
def running(plan: dict[str, Any]) -> Iterator[Contestant]:
    with tempfile.TemporaryDirectory() as folder:
        contestant = Contestant(plan, Path(folder))
        try:
            contestant.start()
            yield contestant
        except Failed as failure:
            tail = (Path(folder) / "errors.txt").read_text(errors="replace")[-2000:]
            raise Failed(f"{failure}; it said last: {tail}") from None
        finally:
            contestant.end()


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    kills: list[dict[str, float]] = []
    problem = None
    try:
        with running(plan) as contestant:
            since = time.time()
            for _ in range(plan["kills"]):
                kills.append(contestant.kill(since))
                since = time.time()
    except Failed as failure:
        problem = str(failure)
    found: dict[str, Any] = {"kills": len(kills), "kills_asked": plan["kills"], "problem": problem}
    for key in kills[0] if kills else []:
        values = [kill[key] for kill in kills]
        found[key] = statistics.median(values)
        found[f"{key}_worst"] = max(values)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
