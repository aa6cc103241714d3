"""Runs in checkpoints of `torch.distributed.checkpoint`, also with another number of ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from distributed import in_group
from models import batch, flat, make
from test_sharded import sharded, two_by_two
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

import quelea.torch as quelea


def optimizer_of(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, rank, steps):
    for step in range(steps):
        inputs, targets = batch("mlp", rank, step)
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def vectors(model, optimizer) -> torch.Tensor:
    """Parameters and both vectors of Adam; ranks of a replica call it together."""
    whole = lambda t: getattr(t.detach(), "full_tensor", t.detach().clone)().flatten()  # noqa: E731
    rows = [torch.cat([whole(p) for p in model.parameters()])]
    for name in ("exp_avg", "exp_avg_sq"):
        rows.append(torch.cat([whole(optimizer.state[p][name]) for p in model.parameters()]))
    return torch.stack(rows)


def save(rank, path, algorithm):
    quelea.init()
    model = make("mlp")
    optimizer = optimizer_of(model)
    quelea.wrap(model, optimizer, algorithm, **({"period": 4} if algorithm == "local-sgd" else {}))
    train(model, optimizer, rank, 6)
    dcp.save({"run": quelea.RunState(model)}, checkpoint_id=path)
    saved = vectors(model, optimizer)
    quelea.shutdown()
    return saved


def load(rank, path, algorithm):
    quelea.init()
    model = make("mlp", seed=7 + rank)
    optimizer = optimizer_of(model)
    quelea.wrap(model, optimizer, algorithm, **({"period": 4} if algorithm == "local-sgd" else {}))
    dcp.load({"run": quelea.RunState(model, saved=path)}, checkpoint_id=path)
    assert quelea.global_step() == 6
    assert {int(state["step"]) for state in optimizer.state.values()} == {6}
    loaded = vectors(model, optimizer)
    train(model, optimizer, rank, 2)
    quelea.shutdown()
    return loaded


@pytest.mark.parametrize("algorithm", ["d-psgd", "local-sgd"])
def test_a_run_resumes_with_fewer_as_many_and_more_ranks(algorithm, tmp_path):
    path = str(tmp_path / "checkpoint")
    saved = torch.stack(in_group(3, save, path, algorithm))
    assert not torch.equal(saved[0], saved[1]), "models differ between averages"
    mean = saved.mean(0)
    same = torch.stack(in_group(3, load, path, algorithm))
    # Every rank has its own optimizer state; its own parameters where the algorithm allows it.
    assert torch.equal(same[:, 1:], saved[:, 1:])
    expected = saved[:, 0] if algorithm == "d-psgd" else mean[0].expand(3, -1)
    assert torch.allclose(same[:, 0], expected, atol=1e-6)
    for ranks in (2, 4):
        for found in in_group(ranks, load, path, algorithm):
            assert torch.allclose(found, mean, atol=1e-6)


def save_shards(rank, path):
    quelea.init()
    mesh = two_by_two()
    model = sharded(make("mlp"), mesh["shard"])
    optimizer = optimizer_of(model)
    quelea.wrap(model, optimizer, "d-psgd", replicate=mesh["replicate"])
    train(model, optimizer, rank, 6)
    dcp.save({"run": quelea.RunState(model)}, checkpoint_id=path)
    saved = vectors(model, optimizer)
    quelea.shutdown()
    return saved


def load_one_shard_each(rank, path):
    return load(rank, path, "d-psgd")


def load_three_shards(rank, path):
    quelea.init()
    mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("replicate", "shard"))
    model = sharded(make("mlp", seed=3), mesh["shard"])
    optimizer = optimizer_of(model)
    quelea.wrap(model, optimizer, "d-psgd", replicate=mesh["replicate"])
    dcp.load({"run": quelea.RunState(model, saved=path)}, checkpoint_id=path)
    loaded = vectors(model, optimizer)
    train(model, optimizer, rank, 2)
    quelea.shutdown()
    return loaded


def test_shards_are_loaded_as_other_shards(tmp_path):
    path = str(tmp_path / "checkpoint")
    saved = in_group(4, save_shards, path, backend="gloo")
    # Two replicas that are not sharded: each has what its replica had.
    whole = in_group(2, load_one_shard_each, path, backend="gloo")
    assert torch.equal(whole[0], saved[0])
    assert torch.equal(whole[1], saved[2])
    assert not torch.equal(whole[0], whole[1])
    # One replica in three shards: the mean.
    mean = (saved[0] + saved[2]) / 2
    for found in in_group(3, load_three_shards, path, backend="gloo"):
        assert torch.allclose(found, mean, atol=1e-6)


def two_runs(rank, path):
    quelea.init()
    models = [make("mlp", seed=seed) for seed in (1, 2)]
    for model in models:
        quelea.wrap(model, optimizer_of(model))
    started = [flat(model) for model in models]
    dcp.save({f"run{i}": quelea.RunState(m) for i, m in enumerate(models)}, checkpoint_id=path)
    with torch.no_grad():
        for model in models:
            for p in model.parameters():
                p.zero_()
    try:
        dcp.load({"run1": quelea.RunState(models[1], saved=path)}, checkpoint_id=path)
    except Exception as error:
        message = str(error)
    states = {f"run{i}": quelea.RunState(m, saved=path, key=f"run{i}") for i, m in enumerate(models)}
    dcp.load(states, checkpoint_id=path)
    assert all(torch.equal(flat(m), start) for m, start in zip(models, started, strict=True))
    quelea.shutdown()
    return message


def test_several_runs_of_one_checkpoint_are_told_apart_by_key(tmp_path):
    for message in in_group(2, two_runs, str(tmp_path / "checkpoint")):
        assert "has the runs run0, run1: say which one by key=…" in message


def without_process_group(rank):
    quelea.init()
    model = make("mlp")
    quelea.wrap(model, optimizer_of(model))
    try:
        quelea.RunState(model).state_dict()
    except quelea.Error as error:
        return str(error)
    return "nothing was refused"


def test_a_checkpoint_of_several_ranks_needs_a_process_group():
    from group import launch

    for message in launch(2, without_process_group):
        assert 'init_process_group("quelea")' in message
