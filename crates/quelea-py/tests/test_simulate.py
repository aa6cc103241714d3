"""The virtual cluster with a PyTorch model."""

from __future__ import annotations

import json

import pytest
import torch
from models import digits
from torch import nn
from torch.nn.functional import cross_entropy

import quelea
from quelea._order import SampleOrder


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


def run(algorithm, out=None, loss=loss, arguments=None, **more):
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
    return quelea.simulate(network, loss, data, config, evaluate=evaluate, out=out, **(arguments or {}))


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


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "ad-psgd", "aladdin", "asp"])
def test_gradients_that_are_computed_together_change_nothing(tmp_path, algorithm):
    """Records hold the loss of every step, every evaluation and its virtual time."""
    for together in (None, 4):
        out, arguments = tmp_path / str(together), {"together": together}
        run(algorithm, out=out, arguments=arguments, evaluations=7)
    one_by_one, batched = tmp_path / "None", tmp_path / "4"
    for file in ("records.jsonl", "final.safetensors"):
        assert (one_by_one / file).read_bytes() == (batched / file).read_bytes()


class Broken(Exception):
    """Ends a run as the end of a lease does."""


@pytest.mark.parametrize("together", [None, 4])
@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "ad-psgd", "aladdin"])
def test_a_run_that_was_interrupted_resumes_to_the_bit(tmp_path, algorithm, together):
    calls = 0

    def breaking(model, batch):
        nonlocal calls
        calls += model.training
        if calls == 6 * 45:
            raise Broken
        return loss(model, batch)

    settings = {"arguments": {"together": together}, "checkpoint": {"every": 20}}
    whole = run(algorithm, out=tmp_path / "whole", **settings)
    with pytest.raises(Broken):
        run(algorithm, out=tmp_path / "parts", loss=breaking, **settings)
    # Steps count on average where workers count by themselves.
    assert {path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()} >= {"step-40"}
    settings["arguments"]["resume"] = tmp_path / "parts"
    resumed = run(algorithm, **settings)
    assert resumed["resumed_from_step"] == 40 and whole["resumed_from_step"] is None
    for key in ("loss", "accuracy", "worker_models"):
        assert resumed[key] == whole[key], key
    # Workers of a resumed run start at the same time.
    assert resumed["clock_seconds"] == pytest.approx(whole["clock_seconds"], rel=0.01)
    final = "final.safetensors"
    assert (tmp_path / "parts" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()


def test_a_resumed_run_may_write_elsewhere_and_refuses_other_settings(tmp_path):
    settings = {"checkpoint": {"every": 20}}
    run("allreduce", out=tmp_path / "first", **settings)
    arguments = {"resume": tmp_path / "first"}
    longer = run("allreduce", out=tmp_path / "second", arguments=arguments, steps=80, **settings)
    assert longer["resumed_from_step"] in (40, 60)
    assert (tmp_path / "second" / "summary.json").exists()
    with pytest.raises(ValueError, match="a resumed run keeps it"):
        run("allreduce", out=tmp_path / "third", arguments=arguments, seed=2, **settings)
    with pytest.raises(ValueError, match="no such folder"):
        run("allreduce", out=tmp_path / "third", arguments={"resume": tmp_path / "none"})


def test_every_epoch_deals_all_samples_to_the_workers():
    samples, workers, batch = 103, 4, 5
    order = SampleOrder(samples, {"workers": workers, "seed": 3}, batch, reshuffle=True)
    steps = samples // workers // batch
    epochs = []
    for epoch in range(3):
        shares = [
            [i for step in range(steps) for i in order.samples(rank, epoch * steps + step)]
            for rank in range(workers)
        ]
        seen = [i for share in shares for i in share]
        assert len(seen) == len(set(seen)) == workers * steps * batch
        epochs.append([set(share) for share in shares])
    # A worker has other samples in the next epoch, and the same ones again when it is asked again.
    assert epochs[0][0] != epochs[1][0] != epochs[2][0]
    again = SampleOrder(samples, {"workers": workers, "seed": 3}, batch, reshuffle=True)
    assert again.samples(2, 7) == order.samples(2, 7)


def test_without_reshuffling_a_worker_keeps_its_samples():
    order = SampleOrder(103, {"workers": 4, "seed": 3}, 5, reshuffle=False)
    seen = {i for step in range(10) for i in order.samples(1, step)}
    assert seen <= set(range(1, 103, 4))
    with pytest.raises(ValueError, match="every worker needs at least one"):
        SampleOrder(3, {"workers": 4}, 5, reshuffle=False)
