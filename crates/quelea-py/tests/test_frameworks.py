"""Transformers and Lightning: a few steps of their examples, the parameters of all-reduce, and their own
DDP over the backend `quelea`.

They are not in the environment of the other tests: `cargo xtask python` installs them beside it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PATH = os.environ.get("QUELEA_FRAMEWORKS_PATH")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples/python"
pytestmark = pytest.mark.skipif(PATH is None, reason="the frameworks are not installed")


def said_by(tmp_path: Path, *command: object) -> str:
    """What the processes of a command of this Python print."""
    paths = [str(EXAMPLES), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(PATH)]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    words = [sys.executable, *map(str, command)]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def launched(tmp_path: Path, processes: int, script: Path, *words: str) -> str:
    """What the processes of a launch print."""
    return said_by(tmp_path, "-m", "quelea.launch", "-n", processes, script, *words)


#: How Transformers' users start two processes.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "input.txt").write_text("to be or not to be, that is the question. " * 60)
    return tmp_path


FEW_STEPS = ("--steps", "6", "--batch", "4", "--length", "16", "--width", "16")


@pytest.mark.parametrize("example", ["hf_gpt", "lightning_gpt"])
def test_examples_train_a_few_steps(example, data):
    said = launched(data, 2, EXAMPLES / f"{example}.py", "--data", str(data), *FEW_STEPS)
    losses = [float(found) for found in re.findall(r"\[\d\] loss ([\d.]+)", said)]
    assert len(losses) == 2
    assert all(1.0 < loss < 4.0 for loss in losses)


@pytest.mark.parametrize("example", ["hf_gpt", "lightning_gpt"])
def test_examples_have_under_60_lines(example):
    assert len((EXAMPLES / f"{example}.py").read_text().splitlines()) < 60


#: Two processes with a batch of 2 each, against one with a batch of 4: the same mean gradients.
TRAINER = """
import json, sys
import torch
from transformers import TrainingArguments, Trainer
from quelea.transformers import QueleaTrainer
import quelea.torch as quelea

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Linear(4, 2)
    def forward(self, x, y):
        out = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(out, y), "logits": out}

quelea.init()
many = quelea.world_size()
generator = torch.Generator().manual_seed(1)
rows = [{"x": torch.randn(4, generator=generator), "y": torch.tensor(i % 2)} for i in range(32)]
# Ranks take every other sample of the same order.
args = TrainingArguments(
    sys.argv[1], max_steps=6, per_device_train_batch_size=4 // many, gradient_accumulation_steps=2,
    learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=1.0, save_steps=3,
    report_to="none", disable_tqdm=True, remove_unused_columns=False, average_tokens_across_devices=False,
    eval_strategy="steps", eval_steps=3,
)
trainer = QueleaTrainer(Model(), args, train_dataset=rows, eval_dataset=rows, algorithm="allreduce")
if many == 1:
    order = torch.utils.data.DistributedSampler(rows, 1, 0, seed=args.seed)
    trainer._get_train_sampler = lambda dataset=None: order
trainer.train()
print(json.dumps([p.tolist() for p in trainer.model.parameters()]))
"""


def printed_parameters(said: str) -> list:
    return [json.loads(line.split("] ", 1)[-1]) for line in said.splitlines() if "[[[" in line]


def test_the_trainer_divides_the_data_and_accumulates_gradients(tmp_path):
    import torch

    (tmp_path / "script.py").write_text(TRAINER)
    (alone,) = printed_parameters(launched(tmp_path, 1, tmp_path / "script.py", str(tmp_path / "one")))
    both = printed_parameters(launched(tmp_path, 2, tmp_path / "script.py", str(tmp_path / "two")))
    assert len(both) == 2
    for found in both:
        for mine, other in zip(found, alone, strict=True):
            assert torch.allclose(torch.tensor(mine), torch.tensor(other), atol=1e-5)
    assert (tmp_path / "two" / "checkpoint-6").exists()


#: The callback alone, with data that the script divides: every process has every other sample.
CALLBACK = TRAINER.replace(
    """trainer = QueleaTrainer(Model(), args, train_dataset=rows, eval_dataset=rows, algorithm="allreduce")
if many == 1:
    order = torch.utils.data.DistributedSampler(rows, 1, 0, seed=args.seed)
    trainer._get_train_sampler = lambda dataset=None: order
""",
    """args.gradient_accumulation_steps, args.eval_strategy = 1, "no"
rows = rows[quelea.rank() :: many]
trainer = Trainer(Model(), args, train_dataset=rows, callbacks=[QueleaCallback("allreduce")])
trainer._get_train_sampler = lambda dataset=None: torch.utils.data.SequentialSampler(rows)
""",
).replace("import QueleaTrainer", "import QueleaCallback")


def test_the_callback_alone_trains_with_data_that_the_script_divides(tmp_path):
    import torch

    (tmp_path / "script.py").write_text(CALLBACK)
    (alone,) = printed_parameters(launched(tmp_path, 1, tmp_path / "script.py", str(tmp_path / "one")))
    both = printed_parameters(launched(tmp_path, 2, tmp_path / "script.py", str(tmp_path / "two")))
    assert len(both) == 2
    for found in both:
        for mine, other in zip(found, alone, strict=True):
            assert torch.allclose(torch.tensor(mine), torch.tensor(other), atol=1e-5)


#: What the scripts of frameworks that run unchanged have in common.
UNCHANGED = """
import json, os, sys
import torch
import torch.distributed as dist

folder, backend = sys.argv[1:]
# On a CPU Accelerate allows no other backend than gloo, but uses the process group that is there.
dist.init_process_group(backend)

def done(model):
    assert dist.get_backend() == backend and dist.get_world_size() == 2
    if dist.get_rank() == 0:
        print(json.dumps([p.tolist() for p in model.parameters()]))
    dist.destroy_process_group()
    # Threads of gloo may outlive it, and end the process with an error.
    sys.stdout.flush()
    os._exit(0)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Linear(4, 2)
    def forward(self, x, y):
        out = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(out, y), "logits": out}

generator = torch.Generator().manual_seed(1)
rows = [{"x": torch.randn(4, generator=generator), "y": torch.tensor(i % 2)} for i in range(32)]
same = dict(
    max_steps=6, per_device_train_batch_size=2, learning_rate=0.1, optim="sgd", report_to="none", save_strategy="no",
    disable_tqdm=True, use_cpu=True,
)
"""

TRANSFORMERS_DDP = """
from transformers import Trainer, TrainingArguments

args = TrainingArguments(folder, remove_unused_columns=False, **same)
trainer = Trainer(Model(), args, train_dataset=rows)
trainer.train()
done(trainer.model)
"""



FRAMEWORKS = {
    "transformers": (TORCHRUN, TRANSFORMERS_DDP),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_run_unchanged_over_the_backend(framework, tmp_path):
    import torch

    launcher, script = FRAMEWORKS[framework]
    (tmp_path / "script.py").write_text(UNCHANGED + script)
    found = {}
    for backend in ("gloo", "quelea"):
        said = said_by(tmp_path, *launcher, tmp_path / "script.py", tmp_path / backend, backend)
        (found[backend],) = printed_parameters(said)
    for mine, other in zip(found["quelea"], found["gloo"], strict=True):
        assert torch.allclose(torch.tensor(mine), torch.tensor(other), atol=1e-6)


#: Two processes with a batch of 2 each, against one with a batch of 4.
STRATEGY = """
import json
import torch
from lightning.pytorch import LightningModule, Trainer
import quelea.lightning
import quelea.torch as quelea

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Linear(4, 2)
    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

generator = torch.Generator().manual_seed(1)
rows = [(torch.randn(4, generator=generator), i % 2) for i in range(32)]
quelea.init()
many = quelea.world_size()
loader = torch.utils.data.DataLoader(rows, 4 // many)
model = Model()
trainer = Trainer(
    strategy="quelea", devices=1, max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=1.0,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(model, loader)
assert trainer.world_size == many
print(json.dumps([p.tolist() for p in model.parameters()]))
"""


def test_the_strategy_trains_as_one_process_with_all_samples(tmp_path):
    import torch

    (tmp_path / "script.py").write_text(STRATEGY)
    (alone,) = printed_parameters(launched(tmp_path, 1, tmp_path / "script.py"))
    both = printed_parameters(launched(tmp_path, 2, tmp_path / "script.py"))
    assert len(both) == 2
    for found in both:
        for mine, other in zip(found, alone, strict=True):
            assert torch.allclose(torch.tensor(mine), torch.tensor(other), atol=1e-5)
