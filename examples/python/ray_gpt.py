"""A small GPT in Ray Train on Shakespeare: `python examples/python/ray_gpt.py --data DIR`.

DIR has `input.txt`, also as `.gz` or `.xz`. Needs `pip install "ray[train]"`.
"""

import argparse

import ray.train
import torch
from data import shakespeare
from models import GPT
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import quelea.ray
import quelea.torch


def train(options):
    text = shakespeare(options["data"])
    number = {letter: place for place, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[letter] for letter in text])
    rows = tokens.unfold(0, options["length"] + 1, options["length"])
    torch.manual_seed(options["seed"])
    model = GPT(len(number), options["length"], options["width"])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    model = quelea.ray.wrap(model, optimizer)
    loader = quelea.ray.prepare_data_loader(DataLoader(rows, options["batch"], shuffle=True))
    step, losses = quelea.torch.start_step(), []
    while step < options["steps"]:
        for _, batch in zip(range(options["steps"] - step), loader):
            loss = cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step, losses = step + 1, [*losses, loss.item()]
    ray.train.report({"loss": sum(losses) / len(losses)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--algorithm", default="d-psgd")
    sizes = {"workers": 4, "steps": 500, "batch": 16, "length": 128, "width": 128, "seed": 0}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    workers, failures = ScalingConfig(num_workers=options.workers), FailureConfig(max_failures=3)
    settings = {"scaling_config": workers, "run_config": RunConfig(failure_config=failures)}
    settings["torch_config"] = quelea.ray.QueleaConfig(options.algorithm)
    trainer = TorchTrainer(train, train_loop_config=vars(options), **settings)
    print(f"loss {trainer.fit().metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
