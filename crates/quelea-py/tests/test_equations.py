"""The same numbers as somebody else's implementation."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from group import launch
from models import batch, distance, flat, make
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import quelea.torch as quelea
from quelea._step_delta import StepDelta

STEPS = 50
#: Steps that a script leaves out, as GradScaler does.
SKIPPED = (3, 20, 21)


def optimizer_of(model: torch.nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, kind: str, rank: int) -> None:
    for step in range(STEPS):
        inputs, targets = batch(kind, rank, step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def ours(rank: int, kind: str, optimizer_name: str) -> torch.Tensor:
    quelea.init()
    # Rank 0's start is everybody's.
    model = make(kind, seed=rank)
    optimizer = optimizer_of(model, optimizer_name)
    model = quelea.wrap(model, optimizer, algorithm="allreduce", bucket_mb=0.002)
    train(model, optimizer, kind, rank)
    quelea.shutdown()
    return flat(model)


def theirs(rank: int, processes: int, kind: str, optimizer_name: str, store: str) -> torch.Tensor:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    model = make(kind, seed=rank)
    wrapped = DistributedDataParallel(model)
    optimizer = optimizer_of(model, optimizer_name)
    train(wrapped, optimizer, kind, rank)
    dist.destroy_process_group()
    return flat(model)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
@pytest.mark.parametrize(("processes", "tolerance"), [(2, 1e-6), (4, 1e-5)])
def test_allreduce_gives_the_parameters_of_ddp(kind, processes, tolerance, tmp_path):
    expected = launch(processes, theirs, processes, kind, "sgd", str(tmp_path / "store"))
    found = launch(processes, ours, kind, "sgd")
    assert all(torch.equal(found[0], other) for other in found), "replicas differ"
    assert distance(found[0], expected[0]) < tolerance
    moved = distance(flat(make(kind)), expected[0])
    assert moved > 0.01, "nothing was learnt, so that nothing was compared"


def gossip(rank: int, form: str) -> torch.Tensor:
    quelea.init()
    model = make("mlp")
    optimizer = optimizer_of(model, "adam")
    quelea.wrap(model, optimizer, algorithm="d-psgd", topology="ring", form=form, bucket_mb=0.001)
    for step in range(STEPS):
        inputs, targets = batch("mlp", rank, step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    quelea.shutdown()
    return flat(model)


def grouped(rank: int, topology: str) -> torch.Tensor:
    quelea.init()
    model = make("mlp")
    optimizer = optimizer_of(model, "adam")
    quelea.wrap(
        model,
        optimizer,
        algorithm="d-psgd",
        topology=topology,
        form="adapt-then-combine",
        bucket_mb=0.001,
    )
    for step in range(STEPS):
        inputs, targets = batch("mlp", rank, step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    quelea.shutdown()
    return flat(model)


def test_a_group_of_all_workers_gives_the_mean_of_their_models():
    """`complete` runs as an all-reduce of the models after every step."""
    models = [make("mlp") for _ in range(4)]
    optimizers = [optimizer_of(model, "adam") for model in models]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = batch("mlp", rank, step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        means = [sum(p.detach() for p in same) / 4 for same in zip(*(m.parameters() for m in models))]
        for model in models:
            for p, mean in zip(model.parameters(), means, strict=True):
                p.data.copy_(mean)
    found = launch(4, grouped, "complete")
    assert max(distance(vector, flat(models[0])) for vector in found) < 1e-5
    assert distance(flat(make("mlp")), flat(models[0])) > 0.01, "nothing was learnt"


def test_the_groups_of_aer_keep_the_mean_and_bring_workers_together():
    """Every rank its own host: pairs that alternate, so that two steps mix all four."""
    found = launch(4, grouped, "aer")
    alone = launch(4, grouped, "complete")
    middle = sum(found) / 4
    assert max(distance(vector, middle) for vector in found) < 0.2
    assert distance(middle, sum(alone) / 4) < 0.2
    assert any(not torch.equal(found[0], other) for other in found[1:]), "pairs, not all of them"


def mix(models: list[torch.nn.Module], own: float = 0.0) -> None:
    """A ring of three or more gives every worker and its two neighbours a third; the worker itself
    then `own` of all."""
    vectors = [[p.detach().clone() for p in model.parameters()] for model in models]
    for i, model in enumerate(models):
        for k, p in enumerate(model.parameters()):
            near = (vectors[(i + d) % len(models)][k] for d in (-1, 0, 1))
            p.data.copy_((1 - own) * sum(near) / 3 + own * vectors[i][k])


def reference(processes: int, form: str) -> list[torch.Tensor]:
    """The equations of D-PSGD with plain PyTorch in one process."""
    models = [make("mlp") for _ in range(processes)]
    optimizers = [optimizer_of(model, "adam") for model in models]

    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = batch("mlp", rank, step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
        if form == "consensus":
            mix(models)
        for optimizer in optimizers:
            optimizer.step()
        if form == "adapt-then-combine":
            mix(models)
    return [flat(model) for model in models]


@pytest.mark.parametrize("form", ["consensus", "adapt-then-combine"])
def test_d_psgd_with_adam_follows_its_equations(form):
    found, expected = launch(4, gossip, form), reference(4, form)
    for mine, other in zip(found, expected, strict=True):
        assert distance(mine, other) < 1e-5
    if form == "consensus":
        assert not torch.equal(found[0], found[1]), "workers of a gossip run differ"


def diffusion(rank: int) -> torch.Tensor:
    quelea.init()
    model = make("mlp")
    optimizer = optimizer_of(model, "sgd")
    quelea.wrap(model, optimizer, algorithm="exact-diffusion", topology="ring", bucket_mb=0.001)
    with_steps_left_out(model, optimizer, rank)
    quelea.shutdown()
    return flat(model)


def with_steps_left_out(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for step in range(STEPS):
        inputs, targets = batch("mlp", rank, step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        if step not in SKIPPED:
            optimizer.step()


def diffusion_reference(processes: int) -> list[torch.Tensor]:
    """As its paper writes it: adapt to ψ, add x − the ψ before, combine with (I + W)/2."""
    models = [make("mlp") for _ in range(processes)]
    optimizers = [optimizer_of(model, "sgd") for model in models]
    adapted = [[p.detach().clone() for p in model.parameters()] for model in models]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = batch("mlp", rank, step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            before = [p.detach().clone() for p in model.parameters()]
            if step not in SKIPPED:
                optimizer.step()
            for p, x, psi in zip(model.parameters(), before, adapted[rank], strict=True):
                now = p.detach().clone()
                p.data.add_(x - psi)
                psi.copy_(now)
        mix(models, own=0.5)
    return [flat(model) for model in models]


def test_exact_diffusion_follows_its_equations_also_where_steps_are_left_out():
    found, expected = launch(4, diffusion), diffusion_reference(4)
    for mine, other in zip(found, expected, strict=True):
        assert distance(mine, other) < 1e-5


def alone(rank: int, algorithm: str) -> torch.Tensor:
    # As for a large model: what was before a step is copied by another thread.
    StepDelta.LARGE = 1
    quelea.init()
    model = make("mlp")
    optimizer = optimizer_of(model, "sgd")
    quelea.wrap(model, optimizer, algorithm=algorithm)
    with_steps_left_out(model, optimizer, rank)
    quelea.shutdown()
    return flat(model)


@pytest.mark.parametrize("algorithm", ["ad-psgd", "sgp"])
def test_one_rank_alone_trains_as_without_us_also_where_steps_are_left_out(algorithm):
    (found,) = launch(1, alone, algorithm)
    model = make("mlp")
    with_steps_left_out(model, optimizer_of(model, "sgd"), 0)
    assert distance(found, flat(model)) < 1e-5
