"""Everything that the page of results still lacks, in order of weight, run in pieces of a GPU's time:

    python cells.py --list --out OUT
    python cells.py --data DIR --out OUT --seconds 540

Each cell is a call of run.py with checkpoints in OUT/LABEL, so that the same command, given again,
continues where the last one was cut off, and goes to the next cell when one is complete. DIR has the
folders `cifar10` and `multi30k`. `python table.py OUT/*/*.json docs/experiments/accuracy.json` makes the
page of all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
FULL = ["--nesterov", "--reshuffle", "--together", "8", "--evaluations", "41"]
GRID = (5e-4, 1e-3, 2e-3)


@dataclass
class Cell:
    """Jobs that run side by side, with the same options."""

    label: str
    task: str
    names: list[str]
    epochs: float
    seeds: list[int] = field(default_factory=lambda: [1])
    more: list[str] = field(default_factory=list)

    def jobs(self) -> int:
        return len(self.names) * len(self.seeds)

    def done(self, out: Path) -> int:
        """How many of its jobs are complete."""
        path = out / self.label / f"{self.task}.json"
        if not path.exists():
            return 0
        return sum(result["complete"] for result in json.loads(path.read_text())["results"])

    def command(self, data: str, out: Path, seconds: float, device: str) -> list[str]:
        place = out / self.label
        words = [sys.executable, str(HERE / "run.py"), self.task, "--data", f"{data}/{self.task}"]
        words += ["--out", str(place), "--checkpoints", str(place), "--seconds", f"{seconds:.0f}"]
        words += ["--epochs", f"{self.epochs:g}", "--only", *self.names]
        words += ["--seeds", *map(str, self.seeds), *(["--device", device] if device else [])]
        return [*words, *self.more]


def cells() -> list[Cell]:
    """First what the papers' main claims need."""
    main = ["allreduce", "d-psgd", "ad-psgd", "aladdin"]
    found = [
        Cell(f"cifar10-164-seed-{seed}", "cifar10", main, 164, [seed], FULL) for seed in (1, 2, 3)
    ]
    for slow in (10, 100):
        more = [*FULL, "--slow", str(slow)]
        found.append(
            Cell(f"cifar10-164-slow-{slow}", "cifar10", ["ad-psgd", "aladdin"], 164, [1, 2], more)
        )
    found += [
        Cell("cifar10-164-fixed-shards", "cifar10", main, 164, [1], ["--together", "8", *FULL[-2:]]),
        Cell("cifar10-164-others", "cifar10", ["sgp", "asp"], 164, [1], FULL),
        Cell("cifar10-164-easgd", "cifar10", ["easgd"], 164, [1], [*FULL, *option("period=1")]),
        Cell("cifar10-164-aer", "cifar10", ["accum-adam"], 164, [1], [*FULL, "--hosts", "4"]),
        Cell("vgg-100", "cifar10", main[:3], 100, [1], [*FULL, "--model", "vgg11"]),
        Cell(
            "cifar10-164-active", "cifar10", ["ad-psgd"], 164, [1, 2], FULL + option("averaging=active")
        ),
    ]
    for period in (1, 4):
        order = option("order=mix-then-step", f"period={period}")
        found.append(
            Cell(f"cifar10-164-order-{period}", "cifar10", ["aladdin"], 164, [1, 2], FULL + order)
        )
    return found + trials() + translation()


def trials() -> list[Cell]:
    """ALADDIN's own cluster, 8 workers on 4 hosts: six trials of the two most important options of
    each method, measured on held-out training images."""
    base = [*FULL, "--workers", "8", "--hosts", "4", "--held-out", "5000"]
    options = {
        "aladdin": [(f"alpha={a}", f"period={p}") for a in (0.3, 0.5, 0.9) for p in (1, 4)],
        "easgd": [(f"alpha={a}", f"period={p}") for a in (0.05, 0.1, 0.3) for p in (1, 4)],
    }
    found = []
    for name, tried in options.items():
        for k, chosen in enumerate(tried):
            found.append(
                Cell(f"trial-{name}-{k}", "cifar10", [name], 82, [1], base + option(*chosen))
            )
    for name in ("allreduce", "d-psgd", "ad-psgd", "sgp", "asp"):
        for k, lr in enumerate((0.025, 0.05, 0.1, 0.2, 0.3, 0.4)):
            more = [*base, "--lr", str(lr)]
            found.append(Cell(f"trial-{name}-{k}", "cifar10", [name], 82, [1], more))
    return found


def translation() -> list[Cell]:
    """Every optimizer and topology with every rate of one grid, 4 hosts with 2 workers each. The rate of
    each is chosen by the validation loss."""
    names = ["allreduce"]
    names += [f"{o}-{t}" for o in ("adam", "accum-adam") for t in ("ring", "aer", "complete")]
    found = []
    for lr in GRID:
        more = ["--hosts", "4", "--lr", str(lr), "--together", "8"]
        found.append(Cell(f"multi30k-100-lr-{lr:g}", "multi30k", names, 100, [1], more))
    return found


def option(*chosen: str) -> list[str]:
    return [word for text in chosen for word in ("--option", text)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder of the folders cifar10 and multi30k")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=540.0, help="everything in so many")
    parser.add_argument("--only", nargs="*", help="these cells, by the beginning of their label")
    parser.add_argument("--device", default="", help="cpu or cuda; the default is what there is")
    parser.add_argument("--list", action="store_true", help="say what is done, and run nothing")
    options = parser.parse_args()
    chosen = [
        cell
        for cell in cells()
        if not options.only or any(cell.label.startswith(word) for word in options.only)
    ]
    if options.list:
        for cell in chosen:
            how = f"{cell.done(options.out)} of {cell.jobs()} jobs"
            print(f"{cell.label}: {how}, {cell.epochs:g} epochs: {', '.join(cell.names)}")
        return 0
    if not options.data:
        parser.error("--data is needed to run cells")
    until = time.monotonic() + options.seconds
    for cell in chosen:
        left = until - time.monotonic()
        if cell.done(options.out) == cell.jobs():
            continue
        if left < 60:  # starting the jobs alone takes half of that
            break
        print(f"{cell.label}: {left:.0f} s left", flush=True)
        command = cell.command(options.data, options.out, left, options.device)
        if status := subprocess.run(command).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
