"""Runs all configurations of a task side by side on one device, within a time:

    python run.py cifar10  --data DIR --out OUT --seconds 540
    python run.py multi30k --data DIR --out OUT --seconds 540

Each configuration is a process of its own. Without --epochs the jobs first measure, all at once,
how fast they are (about 25 seconds), and the same number of epochs is chosen for all so that the
slowest should end in time; the schedules of learning rates are stretched to it. OUT/TASK.json has
the results of all jobs and is renewed while they run; a job that is cut off when the time is up
stays in it as incomplete, with the epochs that it did. `python table.py OUT/*.json` makes the page.

With --checkpoints DIR every job saves its state there now and then, and the same command with the
same --epochs continues jobs that were cut off.

If NVIDIA's multi-process service is there it is started for the time of the run, so that kernels of
several jobs run at once; without it the jobs take turns on the GPU.

On one H200 with 16 cores and the service, 4 jobs of cifar10 did about 350 to 390 gradients a second
each, 4.0 to 4.5 s an epoch; 7 jobs 180 to 260, 6 to 8.5 s an epoch; 12 jobs 90 to 104. Before
gradients were computed together, 8 jobs did 160 to 170 each, and all 7 of multi30k 21 to 31, 17 to
22 s an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job import write_json

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for data.py, models.py and text.py

FILES = {
    "cifar10": [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"],
    "multi30k": [
        f"{part}.{tongue}"
        for part in ("train", "val", "test_2016_flickr")
        for tongue in ("en", "de")
    ],
}
#: Of the time that is left after measuring, the share that the slowest job may be expected to take.
SAFETY = 0.8


def main() -> int:
    options, more = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until = time.monotonic() + options.seconds
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    if options.checkpoints:
        Path(options.checkpoints).mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="quelea-accuracy-"))
    service = Service(scratch / "mps") if options.device != "cpu" and not options.no_mps else None
    jobs: list[Running] = []
    try:
        unpack(options, scratch)
        environment = service.start() if service else {}
        jobs = start(options, more, scratch, environment)
        if not options.epochs:
            agree(jobs, scratch, until, options)
        watch(jobs, until, out / f"{options.task}.json")
    except KeyboardInterrupt:
        print("told to end", flush=True)
    finally:
        for job in jobs:
            job.end()
        collect(jobs, out / f"{options.task}.json")
        if service:
            service.stop()
        status = report(jobs)
        shutil.rmtree(scratch, ignore_errors=True)
    return status


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=sorted(FILES))
    parser.add_argument("--data", required=True, help="folder of the data files, maybe compressed")
    parser.add_argument("--out", required=True, help="folder for TASK.json")
    parser.add_argument("--seconds", type=float, default=540.0, help="everything in so many")
    parser.add_argument("--epochs", type=float, default=0.0, help="0: as many as the time allows")
    parser.add_argument("--epochs-max", type=float, default=164.0)
    parser.add_argument("--only", nargs="*", help="these configurations only")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--device", default="", help="cpu or cuda; the default is what there is")
    parser.add_argument("--checkpoints", help="folder for checkpoints and results of every job")
    parser.add_argument("--no-mps", action="store_true", help="without the multi-process service")
    return parser.parse_known_args()


class Running:
    """A job, its files, and how it fares."""

    def __init__(
        self, name: str, seed: int, command: list[str], scratch: Path, environment: dict, saved: str
    ):
        self.name, self.seed, self.label = name, seed, f"{name}-{seed}"
        self.result = Path(saved or scratch) / f"{self.label}.json"
        if saved:
            command = [*command, "--checkpoints", str(Path(saved) / self.label)]
        self.log = scratch / f"{self.label}.log"
        command = [*command, "--out", str(self.result), "--seed", str(seed)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.was_cut = False

    def is_running(self) -> bool:
        return self.process.poll() is None

    def read(self) -> dict | None:
        return json.loads(self.result.read_text()) if self.result.exists() else None

    def state(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:110] if lines else "starting"

    def end(self) -> None:
        """Asks it to end, and ends it after some seconds."""
        if self.is_running():
            self.was_cut = True
            self.process.terminate()
            try:
                self.process.wait(timeout=8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def failed(self) -> bool:
        return not self.was_cut and self.process.returncode not in (0, None)


def unpack(options, scratch: Path) -> None:
    """Puts the data into the scratch folder as they are read quickest, once for all jobs."""
    from concurrent.futures import ThreadPoolExecutor

    from data import read

    began, folder = time.monotonic(), scratch / "data"
    folder.mkdir()
    with ThreadPoolExecutor() as pool:  # decompressing is done without Python's lock
        contents = pool.map(lambda name: read(options.data, name), FILES[options.task])
        for name, content in zip(FILES[options.task], contents):
            (folder / name).write_bytes(content)
    if options.task == "multi30k":
        from multi30k import TOKENS, vocabulary

        vocabulary(str(folder), TOKENS)
    print(f"data ready in {time.monotonic() - began:.1f} s", flush=True)


def start(options, more: list[str], scratch: Path, extra: dict[str, str]) -> list[Running]:
    from importlib import import_module

    known = list(import_module(options.task).CONFIGURATIONS)
    names = options.only or known
    for name in names:
        if name not in known:
            raise SystemExit(f"unknown configuration {name}: known are {', '.join(known)}")
    agree = scratch / "agree"
    agree.mkdir()
    threads = max(1, (os.cpu_count() or 1) // (len(names) * len(options.seeds)))
    environment = {**os.environ, **extra, "QUELEA_COMMIT": commit(), "PYTHONUNBUFFERED": "1"}
    environment["OMP_NUM_THREADS"] = str(threads)
    jobs = []
    for name in names:
        for seed in options.seeds:
            command = [sys.executable, str(HERE / f"{options.task}.py"), name, *more]
            command += ["--data", str(scratch / "data")]
            if options.device:
                command += ["--device", options.device]
            place = agree / f"{name}-{seed}"
            if options.epochs:
                command += ["--epochs", str(options.epochs)]
            else:
                place.mkdir()
                command += ["--agree", str(place)]
            saved = options.checkpoints or ""
            jobs.append(Running(name, seed, command, scratch, environment, saved))
    print(f"{len(jobs)} jobs of {threads} threads each", flush=True)
    return jobs


def commit() -> str:
    if "QUELEA_COMMIT" in os.environ:
        return os.environ["QUELEA_COMMIT"]
    asked = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return asked.stdout.strip() or "unknown"


def agree(jobs: list[Running], scratch: Path, until: float, options) -> None:
    """Waits until every job has measured itself beside the others, and chooses the epochs."""
    shown = time.monotonic()
    while True:
        waiting, slowest = [], 0.0
        for job in jobs:
            path = scratch / "agree" / job.label / f"{job.name}.rate.json"
            found = json.loads(path.read_text()) if path.exists() else {"rounds": 0}
            if found["rounds"] >= 3:
                slowest = max(slowest, found["seconds_per_epoch"])
            elif job.is_running():
                waiting.append(job.label)
        left = until - time.monotonic()
        if (not waiting and slowest > 0) or not any(job.is_running() for job in jobs):
            break
        if left < options.seconds / 2 and slowest > 0:
            print(f"not waiting for {', '.join(waiting)}", flush=True)
            break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"measuring; still waiting for {len(waiting)} jobs", flush=True)
            for job in jobs:
                print(f"  {job.label}: {job.state()}", flush=True)
        time.sleep(0.2)
    if slowest == 0:
        return
    epochs = min(options.epochs_max, max(0.05, SAFETY * left / slowest))
    epochs = float(int(epochs)) if epochs >= 2 else epochs
    print(
        f"{epochs:g} epochs: the slowest job takes {slowest:.2f} s for one, {left:.0f} s are left"
    )
    for job in jobs:
        write_json(scratch / "agree" / job.label / "epochs.json", {"epochs": epochs})


def watch(jobs: list[Running], until: float, out: Path) -> None:
    shown = 0.0
    # Ending the jobs and gathering the results takes some seconds.
    while any(job.is_running() for job in jobs) and time.monotonic() < until - 5:
        time.sleep(0.5)
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            collect(jobs, out)
            print(f"{until - shown:.0f} s left", flush=True)
            for job in jobs:
                print(f"  {job.label}: {job.state()}", flush=True)


def collect(jobs: list[Running], out: Path) -> None:
    """All results in one file, and the end of the log of those that failed."""
    results = [found for job in jobs if (found := job.read())]
    failures = {job.label: job.log.read_text()[-3000:] for job in jobs if job.failed()}
    if jobs:
        write_json(out, {"results": results, "failures": failures})


def report(jobs: list[Running]) -> int:
    for job in jobs:
        how = "failed" if job.failed() else "cut off" if job.was_cut else "done"
        print(f"{job.label}: {how}: {job.state()}")
    return 1 if any(job.failed() for job in jobs) or not jobs else 0


class Service:
    """NVIDIA's multi-process service, in folders of its own."""

    def __init__(self, folder: Path):
        self.folder, self.process, self.binary = folder, None, ""
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def start(self) -> dict[str, str]:
        """What jobs need in their environment to use it; nothing where it does not work."""
        places = f"{os.environ.get('PATH', '')}:/usr/local/nvidia/bin:/usr/local/cuda/bin"
        binary = shutil.which("nvidia-cuda-mps-control", path=places)
        if binary is None:
            print("no multi-process service here: jobs take turns on the GPU", flush=True)
            return {}
        for folder in self.environment.values():
            Path(folder).mkdir(parents=True)
        own, self.binary = {**os.environ, **self.environment}, binary
        log = (self.folder / "daemon.log").open("w")
        self.process = subprocess.Popen([binary, "-f"], env=own, stdout=log, stderr=log)
        time.sleep(1.0)  # the check below fails, and the run goes on without, if this is too short
        check = "import torch; print(torch.ones(2, device='cuda').sum().item())"
        try:
            tried = subprocess.run(
                [sys.executable, "-c", check], env=own, capture_output=True, text=True, timeout=40
            )
            works, said = tried.returncode == 0, tried.stderr.strip()[-300:]
        except subprocess.TimeoutExpired:
            works, said = False, "no answer within 40 s"
        if works:
            print("the multi-process service runs", flush=True)
            return self.environment
        print(f"the multi-process service does not work, jobs take turns on the GPU: {said}")
        self.stop()
        return {}

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        own = {**os.environ, **self.environment}
        try:
            subprocess.run([self.binary], input="quit\n", text=True, env=own, timeout=10)
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    sys.exit(main())
