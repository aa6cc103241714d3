"""One training in the virtual cluster, whose result is on disk after every evaluation."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import quelea


#: Checkpoints of a run that makes them.
SAVES = 8


@dataclass
class Task:
    """What is trained; the scripts of this folder make one."""

    name: str
    make_model: Callable[[], torch.nn.Module]
    #: Of a model and the tensor that `collate` makes of sample numbers.
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
    collate: Callable[[list[int]], torch.Tensor]
    #: Named numbers of a model, among them `loss`; the flag says that it is the last time.
    measure: Callable[[torch.nn.Module, bool], dict[str, float]]
    samples: int
    batch: int
    #: Of a configuration and the steps of the run, what `quelea.simulate` takes.
    config: Callable[[str, int], dict[str, Any]]
    #: What a reader must know to judge the numbers.
    settings: dict[str, Any] = field(default_factory=dict)


def arguments(description: str, names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", choices=names, help="the configuration")
    parser.add_argument("--data", required=True, help="folder of the data files")
    parser.add_argument("--out", required=True, help="the file for the result (JSON)")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--agree", help="folder in which run.py and its jobs agree on the epochs")
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-graph", action="store_true", help="do not capture CUDA graphs")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None, help="of each worker")
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument(
        "--hosts", type=int, default=None, help="of the virtual cluster; one for each worker"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the algorithm, such as averaging=active, order=mix-then-step, alpha=0.9",
    )
    parser.add_argument(
        "--reshuffle", action="store_true", help="distribute all samples anew in every epoch"
    )
    parser.add_argument(
        "--together", type=int, default=None, help="gradients that are computed together on a GPU"
    )
    parser.add_argument(
        "--checkpoints", help="folder for checkpoints; a run that has some there is resumed"
    )
    parser.add_argument("--samples", type=int, default=None, help="train on so many only")
    return parser


def algorithm_options(options: argparse.Namespace) -> dict[str, Any]:
    """What `--option` gave; a value that is no number, truth value or list is a name."""
    found: dict[str, Any] = {}
    for text in options.option:
        name, is_there, value = text.partition("=")
        if not is_there or not name:
            raise SystemExit(f"--option {text}: must be NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


class Job:
    """Trains a task, and keeps its result on disk."""

    def __init__(self, task: Task, options: argparse.Namespace):
        self.task, self.options = task, options
        workers = task.config(options.name, 1)["workers"]
        self.steps_per_epoch = max(1, task.samples // workers // task.batch)
        self.workers = workers
        # The sum of the losses of mini-batches, and their number, since the last evaluation.
        self.losses = [0.0, 0]
        self.result: dict[str, Any] = {}
        self.notes: list[str] = []
        self.began = 0.0

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        warnings.showwarning = self.note
        try:
            epochs = self.agreed() if self.options.agree else self.options.epochs
            self.train(epochs)
        except KeyboardInterrupt:
            print("ended before its time")

    def train(self, epochs: float) -> None:
        options, task = self.options, self.task
        steps = max(1, round(epochs * self.steps_per_epoch))
        if options.checkpoints and is_complete(Path(options.out)):
            return
        evaluations = min(options.evaluations, steps)
        config = {**task.config(options.name, steps), "evaluations": evaluations}
        self.result = {
            "task": task.name,
            "name": options.name,
            "settings": {**task.settings, "reshuffle": options.reshuffle},
            "config": config,
            "seed": options.seed,
            "device": device_name(options.device),
            "versions": {"quelea": quelea.__version__, "torch": torch.__version__},
            "commit": os.environ.get("QUELEA_COMMIT", "unknown"),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "epochs": epochs,
            "epochs_done": 0.0,
            "complete": False,
            "evaluations": [],
            "notes": self.notes,
        }
        places: dict[str, Any] = {}
        if options.checkpoints:
            config["checkpoint"] = {"every": max(1, steps // SAVES)}
            places = self.take_up(Path(options.checkpoints), steps)
        self.began = time.monotonic() - self.seconds_before()
        summary = self.simulate(config, self.evaluate, **places)
        self.result.update(
            complete=True,
            worker_models=summary["worker_models"],
            virtual_seconds=summary["clock_seconds"],
            consensus_distance=summary["consensus_distance"],
            warnings=summary["warnings"],
        )
        self.write()

    def take_up(self, folder: Path, steps: int) -> dict[str, Any]:
        """Where the run's files go; if it was broken off, the result until its last checkpoint is
        read back."""
        saved = [int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")]
        if not saved:
            return {"out": folder}
        out = Path(self.options.out)
        before = json.loads(out.read_text())["evaluations"] if out.exists() else []
        reached = self.result["epochs"] * max(saved) / steps
        rows = [row for row in before if row["epoch"] <= reached * (1 + 1e-9)]
        self.result["evaluations"] = rows
        return {"resume": folder}

    def seconds_before(self) -> float:
        """How long an earlier part of the run took."""
        rows = self.result["evaluations"]
        return rows[-1]["seconds"] if rows else 0.0

    def simulate(
        self, config: dict[str, Any], evaluate, collate=None, **places
    ) -> dict[str, Any]:
        task, options = self.task, self.options
        return quelea.simulate(
            task.make_model,
            task.loss,
            range(task.samples),
            config,
            batch=task.batch,
            evaluate=evaluate,
            collate=collate or task.collate,
            device=options.device,
            graph=not options.no_graph,
            together=options.together,
            reshuffle=options.reshuffle,
            watch=self.watch,
            **places,
        )

    def watch(self, rank: int, step: int, loss: float) -> None:
        self.losses[0] += loss
        self.losses[1] += 1

    def evaluate(self, model: torch.nn.Module) -> tuple[float, float | None]:
        done, planned = self.result["evaluations"], self.result["config"]["evaluations"]
        if len(done) == planned:  # now the workers' own models come
            found = self.task.measure(model, False)
            return found["loss"], found.get("accuracy")
        found = self.task.measure(model, len(done) + 1 == planned)
        epoch = self.result["epochs"] * (len(done) + 1) / planned
        total, count = self.losses
        self.losses = [0.0, 0]
        seconds = time.monotonic() - self.began
        row = {"epoch": epoch, "train_loss": total / max(1, count), **found, "seconds": seconds}
        done.append(row)
        self.result["epochs_done"] = epoch
        self.write()
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in row.items())
        print(numbers, flush=True)
        return found["loss"], found.get("accuracy")

    def note(self, message, *where) -> None:
        """Keeps a warning with the result, such as one that there is no CUDA graph."""
        self.notes.append(str(message))
        print(message, flush=True)

    def write(self) -> None:
        write_json(Path(self.options.out), self.result)

    def agreed(self) -> float:
        """Measures how many gradients a second there are while all jobs run, and waits for what
        run.py makes of it."""
        folder, rounds, seconds = Path(self.options.agree), 0, 1.0
        steps = 4
        while not (folder / "epochs.json").exists():
            times: list[float] = []

            def collate(rows: list[int]) -> torch.Tensor:
                if (folder / "epochs.json").exists():
                    raise Agreed
                times.append(time.monotonic())
                return self.task.collate(rows)

            config = {**self.task.config(self.options.name, steps), "evaluations": 1}
            try:
                self.simulate(config, lambda model: (0.0, None), collate)
            except Agreed:
                break
            # The first gradient waits for the libraries and the capture.
            rate = (len(times) - 2) / max(1e-9, times[-1] - times[1])
            rounds += 1
            write_json(
                folder / f"{self.options.name}.rate.json",
                {
                    "rounds": rounds,
                    "seconds_per_epoch": self.steps_per_epoch * self.workers / rate,
                },
            )
            print(f"{rate:.1f} gradients/s", flush=True)
            seconds = min(6.0, 3 * seconds)
            steps = max(4, int(seconds * rate / self.workers))
        self.losses = [0.0, 0]
        return json.loads((folder / "epochs.json").read_text())["epochs"]


class Agreed(Exception):
    """There is no need to measure any more."""


def is_complete(result: Path) -> bool:
    """Whether an earlier part of the run has come to its end."""
    return result.exists() and json.loads(result.read_text())["complete"]


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return "CPU"


def write_json(path: Path, value: Any) -> None:
    """Written beside and renamed: a reader sees the old or the new one."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(value, indent=1))
    beside.replace(path)


def quick_kernels() -> None:
    """TensorFloat-32, and the fastest convolutions for shapes that never change."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
