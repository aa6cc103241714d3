"""Ray Train: a few steps of the example and of its version with DDP, and a worker that is lost and replaced.

Ray is not in the environment of the other tests: `cargo xtask python` installs it beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PATH = os.environ.get("QUELEA_RAY_PATH")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples/python"
pytestmark = pytest.mark.skipif(PATH is None, reason="Ray is not installed")


def said_by(tmp_path: Path, script: Path, *words: object) -> str:
    """What a script prints whose Ray cluster is this machine."""
    paths = [str(EXAMPLES), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(PATH)]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1", HOME=str(tmp_path))
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
    command = [sys.executable, str(script), *map(str, words)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    return ended.stdout


@pytest.mark.parametrize("example", ["ray_gpt", "ddp_ray_gpt"])
def test_examples_train_a_few_steps(example, tmp_path):
    (tmp_path / "input.txt").write_text("to be or not to be, that is the question. " * 60)
    words = ["--data", tmp_path, "--workers", 2, "--steps", 6, "--batch", 4, "--length", 16, "--width", 16]
    said = said_by(tmp_path, EXAMPLES / f"{example}.py", *words)
    (loss,) = re.findall(r"^loss ([\d.]+)", said, re.MULTILINE)
    assert 1.0 < float(loss) < 4.0


def test_the_example_has_under_60_lines():
    assert len((EXAMPLES / "ray_gpt.py").read_text().splitlines()) < 60


#: The second worker dies at its third step; when the one that replaces it has joined, all take ten more.
REPLACED = """
import os, sys
from pathlib import Path
import ray, ray.train, torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import quelea.ray
import quelea.torch as quelea_torch

def train(config):
    folder = Path(config["folder"])
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model = quelea.ray.wrap(model, optimizer)
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    loader = quelea.ray.prepare_data_loader(torch.utils.data.DataLoader(rows, 2, shuffle=True))
    rank, first = quelea_torch.rank(), quelea_torch.start_step()
    with open(folder / f"started-{rank}", "a") as file:
        file.write(f"{first} ")
    if first > 0:
        (folder / "joined").touch()
    step, end = first, None
    while end is None or step < end:
        for batch in loader:
            if end is None and rank == 0 and (folder / "joined").exists():
                (folder / "new-end").write_text(str(step + 10))
                (folder / "new-end").rename(folder / "end")
            if (folder / "end").exists():
                # Whoever is a step behind finds it in time.
                end = int((folder / "end").read_text())
            if step == end:
                break
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank == 1 and first == 0 and step == 3:
                os._exit(1)
    (folder / f"ended-{rank}").write_text(f"{step} {model.weight.tolist()}")
    ray.train.report({"step": step})

TorchTrainer(
    train, train_loop_config={"folder": sys.argv[1]}, torch_config=quelea.ray.QueleaConfig("allreduce"),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1], failure_config=FailureConfig(max_failures=2)),
).fit()
"""


def test_a_worker_that_ray_replaces_joins_the_others_who_continue(tmp_path):
    (tmp_path / "script.py").write_text(REPLACED)
    said_by(tmp_path, tmp_path / "script.py", tmp_path)
    first, second = ((tmp_path / f"started-{rank}").read_text().split() for rank in range(2))
    assert first == ["0"], "the first worker was started once"
    assert len(second) == 2 and second[0] == "0" and int(second[1]) >= 3
    ends = [(tmp_path / f"ended-{rank}").read_text() for rank in range(2)]
    assert ends[0] == ends[1], "they have taken the same steps and have the same model"
