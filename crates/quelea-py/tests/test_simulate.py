"""The virtual cluster with a PyTorch model."""

from __future__ import annotations

import json

import pytest
import torch
from models import digits
from torch import nn
from torch.nn.functional import cross_entropy

import quelea


class Digits(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs, self.targets = digits()

    def __len__(self):
        return 1500

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def loss(model, batch):
    inputs, targets = batch
    return cross_entropy(model(inputs), targets)


def run(algorithm, out=None, **more):
    data = Digits()

    def evaluate(model):
        scores = model(data.inputs[1500:])
        targets = data.targets[1500:]
        return float(cross_entropy(scores, targets)), float((scores.argmax(1) == targets).float().mean())

    config = {
        "workers": 6,
        "steps": 60,
        "algorithm": {"name": algorithm},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5},
        "cluster": {"hosts": 6, "compute_ms": 10.0, "slow": {"3": 4.0}},
        **more,
    }
    return quelea.simulate(network, loss, data, config, evaluate=evaluate, out=out)


def test_virtual_workers_learn_and_a_slow_one_costs_what_it_must(tmp_path):
    allreduce, asynchronous = run("allreduce", out=tmp_path / "run"), run("ad-psgd")
    assert allreduce["accuracy"] > 0.8 and asynchronous["accuracy"] > 0.8
    # Everybody waits for the worker that takes four times as long; nobody waits in ad-psgd.
    assert 60 * 0.04 <= allreduce["clock_seconds"] < 60 * 0.045
    assert asynchronous["clock_seconds"] < 60 * 0.02
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"summary.json", "records.jsonl", "final.safetensors", "trace.json"} <= files
    first = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[0])
    assert {"t", "rank", "step", "kind"} <= set(first)


def test_the_same_configuration_gives_the_same_numbers():
    assert run("d-psgd")["loss"] == run("d-psgd")["loss"]


def test_what_python_raises_inside_comes_out():
    def broken(model, batch):
        raise KeyError("column")

    config = {"workers": 2, "steps": 2}
    with pytest.raises(KeyError, match="column"):
        quelea.simulate(network, broken, Digits(), config)
    with pytest.raises(ValueError, match="did you mean"):
        quelea.simulate(network, loss, Digits(), {**config, "algorithm": {"name": "alladdin"}})


def test_wrong_arguments_are_named(tmp_path):
    config = {"workers": 2, "steps": 2}
    with pytest.raises(TypeError, match="must be a loss and an accuracy or None"):
        quelea.simulate(network, loss, Digits(), config, evaluate=lambda model: 1.0)
    quelea.simulate(network, loss, Digits(), config, out=tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run already"):
        quelea.simulate(network, loss, Digits(), config, out=tmp_path / "run")
