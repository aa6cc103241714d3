"""Losses of the examples for Transformers, Lightning and Ray Train against their versions with DDP: `cargo xtask soak
frameworks`.

Each is trained from several seeds, by two processes. Means over the seeds must not differ significantly (Welch's t-test).
`QUELEA_DATA` names the folder with Shakespeare's text.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/python"
SEEDS = (1, 2, 3)
SIZES = ("--steps", "150", "--batch", "8", "--length", "32", "--width", "32")
#: What |t| of two times three values must not exceed: two sides, 1 %, four degrees of freedom.
CRITICAL = 4.604
LIMIT_SECONDS = 900

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCH = ("-m", "quelea.launch", "-n", "2")
#: How each is started, by the name of the example: with DDP, and with quelea.
STARTED = {
    "hf_gpt": ((*TORCHRUN, "SCRIPT"), (*LAUNCH, "SCRIPT")),
    "lightning_gpt": (("SCRIPT", "--devices", "2"), (*LAUNCH, "SCRIPT")),
    "ray_gpt": (("SCRIPT", "--workers", "2"), ("SCRIPT", "--workers", "2")),
}
#: Whose loss is that of DDP; the second mixes models, and has another loss only by the noise of one step.
ALGORITHMS = ("allreduce", "d-psgd")


def loss(command: tuple[str, ...], script: str, data: str, seed: int, *more: str) -> float:
    """The mean of the losses that the processes print."""
    packages = [os.environ["PYTHONPATH"], os.environ["QUELEA_FRAMEWORKS_PATH"]]
    if "ray" in script:
        packages[1] = os.environ["QUELEA_RAY_PATH"]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(EXAMPLES), *packages]), HF_HUB_OFFLINE="1")
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "CUDA_VISIBLE_DEVICES": ""}
    path = str(EXAMPLES / script)
    words = [sys.executable, *(path if word == "SCRIPT" else word for word in command)]
    words += ["--data", data, "--seed", str(seed), *SIZES, *more]
    with tempfile.TemporaryDirectory() as folder:
        env["HOME"] = folder
        ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=folder)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    return statistics.mean(float(found) for found in re.findall(r"^(?:\[\d\] )?loss ([\d.]+)", ended.stdout, re.M))


def welch(ours: list[float], theirs: list[float]) -> float:
    """How many standard errors the means are apart."""
    error = sum(statistics.variance(values) / len(values) for values in (ours, theirs)) ** 0.5
    return abs(statistics.mean(ours) - statistics.mean(theirs)) / error


def main() -> None:
    data = os.environ.get("QUELEA_DATA") or sys.exit("QUELEA_DATA must name the folder with input.txt")
    different = []
    for example, (with_ddp, with_ours) in STARTED.items():
        theirs = [loss(with_ddp, f"ddp_{example}.py", data, seed) for seed in SEEDS]
        print(f"{example}: DDP {theirs}")
        for algorithm in ALGORITHMS:
            ours = [
                loss(with_ours, f"{example}.py", data, seed, "--algorithm", algorithm) for seed in SEEDS
            ]
            apart = welch(ours, theirs)
            print(f"{example}: {algorithm} {ours}, |t| = {apart:.2f} (at most {CRITICAL})")
            if apart > CRITICAL:
                different.append(f"{example} with {algorithm}: {ours}, DDP {theirs}")
    if different:
        sys.exit("\n".join(different))


if __name__ == "__main__":
    main()
