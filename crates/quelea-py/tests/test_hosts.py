"""`within_host`: two hosts with two ranks each, told apart by an environment variable."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from distributed import in_group
from group import launch
from models import batch, distance, flat, make
from torch import nn
from torch.nn.functional import cross_entropy

import quelea.torch as quelea

STEPS, HOSTS, LOCAL = 20, 2, 2


def name_host(rank: int) -> None:
    os.environ["QUELEA_NODE"] = f"host-{rank // LOCAL}"


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def whole(model: nn.Module) -> torch.Tensor:
    parts = [p.detach() for p in model.parameters()]
    return torch.cat([getattr(p, "full_tensor", p.clone)().flatten() for p in parts]).float()


def work(rank, way, algorithm, optimizer_name, options, dtype=torch.float32):
    name_host(rank)
    quelea.init()
    model = make("mlp", seed=rank).to(dtype)
    optimizer = optimizer_of(model, optimizer_name)
    quelea.wrap(model, optimizer, algorithm, within_host=way, bucket_mb=0.002, **options)
    for step in range(STEPS):
        inputs, targets = batch("mlp", rank, step)
        optimizer.zero_grad()
        cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    quelea.shutdown()
    return whole(model)


def reference(algorithm: str, optimizer_name: str) -> list[torch.Tensor]:
    """A host's gradient is the mean over its ranks' batches; hosts average gradients, or mix by halves."""
    models = [make("mlp") for _ in range(HOSTS)]
    optimizers = [optimizer_of(model, optimizer_name) for model in models]
    for step in range(STEPS):
        for host, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for place in range(LOCAL):
                inputs, targets = batch("mlp", LOCAL * host + place, step)
                (cross_entropy(model(inputs), targets) / LOCAL).backward()
        if algorithm == "allreduce":
            for first, second in zip(*(model.parameters() for model in models), strict=True):
                mean = (first.grad + second.grad) / 2
                first.grad, second.grad = mean, mean.clone()
        for model in models:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if algorithm == "d-psgd":
            with torch.no_grad():
                for first, second in zip(*(model.parameters() for model in models), strict=True):
                    mean = (first + second) / 2
                    first.copy_(mean)
                    second.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
    return [flat(model) for model in models]


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize(("algorithm", "optimizer"), [("allreduce", "sgd"), ("d-psgd", "adam")])
def test_hosts_train_as_one_rank_each_with_their_ranks_batches(way, algorithm, optimizer):
    options = {"form": "consensus", "topology": "ring"} if algorithm == "d-psgd" else {}
    found = launch(HOSTS * LOCAL, work, way, algorithm, optimizer, options)
    expected = reference(algorithm, optimizer)
    for rank, mine in enumerate(found):
        assert torch.equal(mine, found[rank - rank % LOCAL]), "ranks of one host differ"
        assert distance(mine, expected[rank // LOCAL]) < 1e-5
    if algorithm == "d-psgd":
        assert not torch.equal(found[0], found[-1]), "hosts of a gossip run differ"


def displaced(rank, way):
    """Exact diffusion sends displacements."""
    return work(rank, way, "exact-diffusion", "sgd", {"topology": "ring"})


def test_both_ways_give_the_same_parameters_where_steps_are_displacements():
    first, second = (launch(HOSTS * LOCAL, displaced, way) for way in ("ddp", "fsdp"))
    for mine, other in zip(first, second, strict=True):
        assert distance(mine, other) < 1e-5


def test_half_precision_in_hosts_learns_what_float32_learns():
    wide = launch(HOSTS * LOCAL, work, "ddp", "d-psgd", "sgd", {})
    half = launch(HOSTS * LOCAL, work, "ddp", "d-psgd", "sgd", {}, torch.bfloat16)
    way = (wide[0] - flat(make("mlp"))).norm()
    for narrow, full in zip(half, wide, strict=True):
        assert (narrow - full).norm() < 0.1 * way


def evaluated(rank):
    name_host(rank)
    quelea.init()
    model = make("mlp")
    optimizer = optimizer_of(model, "sgd")
    quelea.wrap(model, optimizer, "ad-psgd", within_host="ddp")
    inputs, targets = batch("mlp", rank, 0)
    for _ in range(10):
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    own = flat(model)
    with quelea.evaluate_model():
        mean = flat(model)
    assert torch.equal(flat(model), own)
    state = quelea.state_dict()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    quelea.load_state_dict(state)
    assert torch.equal(flat(model), own)
    quelea.shutdown()
    return torch.stack([own, mean])


def test_evaluation_and_state_are_of_the_whole_model():
    results = launch(HOSTS * LOCAL, evaluated)
    owns, means = [r[0] for r in results], [r[1] for r in results]
    expected = (owns[0] + owns[LOCAL]) / 2
    assert all(torch.allclose(mean, expected, atol=1e-6) for mean in means)


def initialized_by_the_script(rank):
    """torch.distributed has all ranks; the hosts are groups of it."""
    found = work(rank, "ddp", "allreduce", "sgd", {})
    assert dist.get_world_size() == HOSTS * LOCAL
    return found


def test_a_process_group_of_the_script_is_used():
    found = in_group(HOSTS * LOCAL, initialized_by_the_script, backend="gloo")
    expected = reference("allreduce", "sgd")
    assert all(distance(mine, expected[0]) < 1e-5 for mine in found)


def unequal(rank):
    os.environ["QUELEA_NODE"] = "many" if rank < 2 else "few"
    quelea.init()
    model = make("mlp")
    try:
        quelea.wrap(model, optimizer_of(model, "sgd"), within_host="ddp")
    except quelea.Error as error:
        return str(error)
    return "nothing was refused"


def test_hosts_with_different_numbers_of_ranks_are_named():
    for message in launch(3, unequal):
        assert "2 on many, 1 on few" in message


def with_state(rank):
    name_host(rank)
    quelea.init()
    found = {}
    model = make("mlp")
    optimizer = optimizer_of(model, "sgd")
    try:
        quelea.wrap(model, optimizer, "qg-dmsgd", within_host="ddp")
    except quelea.Error as error:
        found['use within_host="fsdp"'] = str(error)
    inputs, targets = batch("mlp", rank, 0)
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    try:
        quelea.wrap(model, optimizer, within_host="fsdp")
    except quelea.Error as error:
        found["before the first step"] = str(error)
    return found


def test_what_a_host_cannot_divide_is_refused():
    for found in launch(HOSTS * LOCAL, with_state):
        assert len(found) == 2
        for expected, message in found.items():
            assert expected in message
