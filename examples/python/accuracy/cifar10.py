"""CIFAR-10 with ResNet-20 on 16 virtual workers: `python cifar10.py ad-psgd --data DIR --out FILE`.

The settings are those of Zhang et al. for AD-PSGD: 32 images per learner, SGD with momentum 0.9 and
weight decay 1e-4, a learning rate of 0.1 that is divided by ten after 81/164 and 122/164 of all
epochs. A warm-up over the first 5/164 is ours. AccumAdam has its own rate, 1.5e-3 with an L2 of
1/32768 and s = 8 (Wang et al., for ResNet-50), and the same warm-up and divisions.

`--nesterov --reshuffle` is the setting of fb.resnet.torch, whose schedule this is: Nesterov's
momentum, and all images distributed over the workers anew in every epoch.

`--model vgg11` is Zhang et al.'s second network, for which they train 100 epochs. `--held-out 5000` trains
without the last 5,000 training images and measures on them, so that options can be chosen without the
test images.

It needs the six files `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin` in DIR, also as
`.bin.xz` or `.bin.gz`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).parents[1]))

from data import cifar10, cropped  # noqa: E402
from job import Job, Task, algorithm_options, arguments, quick_kernels  # noqa: E402
from models import resnet20, vgg11  # noqa: E402

WORKERS, BATCH, LR = 16, 32, 0.1
SGD = {"name": "sgd", "lr": LR, "momentum": 0.9, "weight_decay": 1e-4}
ACCUM_ADAM = {"name": "accum-adam", "lr": 1.5e-3, "accumulate": 8, "weight_decay": 1 / 32768}
#: Algorithm, topology and optimizer.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "allreduce": {},
    "d-psgd": {"topology": {"name": "ring"}},
    "ad-psgd": {"topology": {"name": "ring"}},
    "accum-adam": {
        "algorithm": {"name": "d-psgd"},
        "topology": {"name": "aer"},
        "optimizer": ACCUM_ADAM,
    },
    "sgp": {"topology": {"name": "one-peer-exponential"}},
    "easgd": {},
    "asp": {},
    "aladdin": {},
}
MODELS = {"resnet20": ("ResNet-20", resnet20), "vgg11": ("VGG-11", vgg11)}
#: The cluster of the paper: it decides who is how late in the asynchronous ones.
CLUSTER = {"bandwidth_gbps": 100.0, "latency_us": 2.0, "compute_ms": 11.55, "compute_cv": 0.1}


def main() -> None:
    parser = arguments(__doc__, list(CONFIGURATIONS))
    parser.add_argument("--channels-last", action="store_true", help="how images lie in memory")
    parser.add_argument("--nesterov", action="store_true", help="Nesterov's momentum")
    parser.add_argument("--slow", type=float, default=1.0, help="how much slower the last worker is")
    parser.add_argument("--model", choices=list(MODELS), default="resnet20")
    parser.add_argument(
        "--held-out", type=int, default=0, help="training images that are measured instead"
    )
    options = parser.parse_args()
    quick_kernels()
    Job(task(options), options).run()


class Cifar10:
    """The data on the device, and what a task needs of it."""

    def __init__(self, options):
        self.options, self.workers = options, options.workers or WORKERS
        self.layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.images, self.classes = self.tensors("train")
        if held := options.held_out:
            self.test_images, self.test_classes = self.images[-held:], self.classes[-held:]
            self.images, self.classes = self.images[:-held], self.classes[:-held]
        else:
            self.test_images, self.test_classes = self.tensors("test")

    def tensors(self, part: str) -> list[torch.Tensor]:
        samples, device = self.options.samples, self.options.device
        return [tensor[:samples].to(device) for tensor in cifar10(self.options.data, part)]

    def make_model(self) -> torch.nn.Module:
        torch.manual_seed(self.options.seed)
        return MODELS[self.options.model][1]()

    def collate(self, rows: list[int]) -> torch.Tensor:
        """Which images, and how they are moved."""
        limits = torch.tensor([9, 9, 2])
        moves = (torch.rand(len(rows), 3) * limits).long()
        return torch.cat([torch.tensor(rows)[:, None], moves], 1)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        which = batch[:, 0]
        inputs = cropped(self.images[which], batch[:, 1:]).contiguous(memory_format=self.layout)
        return cross_entropy(model(inputs), self.classes[which])

    def measure(self, model: torch.nn.Module, is_last: bool) -> dict[str, float]:
        total, right, count = 0.0, 0, len(self.test_classes)
        for part, truth in zip(self.test_images.split(2500), self.test_classes.split(2500)):
            scores = model(part.contiguous(memory_format=self.layout))
            total += float(cross_entropy(scores, truth, reduction="sum"))
            right += int((scores.argmax(1) == truth).sum())
        return {"loss": total / count, "accuracy": right / count}

    def config(self, name: str, steps: int) -> dict[str, Any]:
        chosen = CONFIGURATIONS[name]
        optimizer = dict(chosen.get("optimizer", SGD))
        if self.options.lr and "optimizer" not in chosen:
            optimizer["lr"] = self.options.lr
        if self.options.nesterov and "optimizer" not in chosen:
            optimizer["nesterov"] = True
        optimizer["schedule"] = {
            "name": "step",
            "milestones": [round(steps * epoch / 164) for epoch in (81, 122)],
            "gamma": 0.1,
            "warmup_steps": round(steps * 5 / 164),
        }
        cluster: dict[str, Any] = {"hosts": self.options.hosts or self.workers, **CLUSTER}
        if self.options.slow != 1.0:
            cluster["slow"] = {str(self.workers - 1): self.options.slow}
        algorithm = chosen.get("algorithm", {"name": name})
        return {
            "seed": self.options.seed,
            "workers": self.workers,
            "steps": steps,
            "plots": False,
            "cluster": cluster,
            **chosen,
            "algorithm": {**algorithm, **algorithm_options(self.options)},
            "optimizer": optimizer,
        }


def task(options) -> Task:
    data, batch = Cifar10(options), options.batch or BATCH
    return Task(
        "cifar10",
        data.make_model,
        data.loss,
        data.collate,
        data.measure,
        len(data.images),
        batch,
        data.config,
        {
            "model": MODELS[options.model][0],
            "batch": batch,
            "workers": data.workers,
            **({"held_out": options.held_out} if options.held_out else {}),
        },
    )


if __name__ == "__main__":
    main()
