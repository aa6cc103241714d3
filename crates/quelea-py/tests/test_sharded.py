"""Sharded models (FSDP2): two shards, two replicas, four processes."""

from __future__ import annotations

import gc

import pytest
import torch
from distributed import in_group
from models import batch, distance, flat, make
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import quelea.torch as quelea

STEPS = 20
RANKS, SHARDS = 4, 2


def two_by_two():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def sharded(model: nn.Module, mesh) -> nn.Module:
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def whole(model: nn.Module) -> torch.Tensor:
    """All parameters of a replica; its ranks call it together."""
    return torch.cat([p.detach().full_tensor().flatten() for p in model.parameters()]).float()


def train(model, optimizer, rank, steps=STEPS, dtype=torch.float32):
    for step in range(steps):
        inputs, targets = batch("mlp", rank, step)
        optimizer.zero_grad()
        cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def hsdp(rank, optimizer_name, dtype=torch.float32):
    model = sharded(make("mlp").to(dtype), two_by_two())
    train(model, optimizer_of(model, optimizer_name), rank, dtype=dtype)
    return whole(model)


def ours(rank, algorithm, optimizer_name, dtype=torch.float32, **options):
    quelea.init()
    mesh = two_by_two()
    # The first replica's start is everybody's.
    model = sharded(make("mlp", seed=mesh.get_local_rank("replicate")).to(dtype), mesh["shard"])
    optimizer = optimizer_of(model, optimizer_name)
    quelea.wrap(
        model, optimizer, algorithm, replicate=mesh["replicate"], bucket_mb=0.002, **options
    )
    train(model, optimizer, rank, dtype=dtype)
    states = [state["exp_avg" if optimizer_name == "adam" else "momentum_buffer"]
              for state in optimizer.state.values()]  # fmt: skip
    assert all(isinstance(state, DTensor) for state in states), "the optimizer's state is sharded"
    assert sum(state._local_tensor.numel() for state in states) <= flat(make("mlp")).numel() / 2 + 50
    assert {p.dtype for p in model.parameters()} == {dtype}
    quelea.shutdown()
    return whole(model)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_all_reduce_gives_the_parameters_of_hsdp(optimizer):
    expected = in_group(RANKS, hsdp, optimizer, backend="gloo")
    found = in_group(RANKS, ours, "allreduce", optimizer, backend="gloo")
    assert all(torch.equal(found[0], other) for other in found), "replicas differ"
    assert distance(found[0], expected[0]) < 1e-5
    assert distance(flat(make("mlp")), expected[0]) > 0.01, "nothing was learnt"


def gossip_reference() -> list[torch.Tensor]:
    """D-PSGD with plain PyTorch in one process: a replica's gradient is the mean over its ranks' batches, and a
    ring of two gives halves."""
    models = [make("mlp") for _ in range(RANKS // SHARDS)]
    optimizers = [optimizer_of(model, "adam") for model in models]
    for step in range(STEPS):
        for replica, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for shard in range(SHARDS):
                inputs, targets = batch("mlp", SHARDS * replica + shard, step)
                (cross_entropy(model(inputs), targets) / SHARDS).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            for first, second in zip(*(model.parameters() for model in models), strict=True):
                mean = (first + second) / 2
                first.copy_(mean)
                second.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
    return [flat(model) for model in models]


def test_d_psgd_on_shards_follows_its_equations():
    found = in_group(RANKS, gossip, backend="gloo")
    for rank, expected in enumerate(each for each in gossip_reference() for _ in range(SHARDS)):
        assert distance(found[rank], expected) < 1e-5
    assert not torch.equal(found[0], found[2]), "replicas of a gossip run differ"


def gossip(rank):
    return ours(rank, "d-psgd", "adam", topology="ring", form="consensus")


def test_bf16_shards_are_as_near_to_float32_as_those_of_hsdp():
    wide, half = (
        in_group(RANKS, hsdp, "sgd", dtype, backend="gloo")[0] for dtype in (torch.float32, torch.bfloat16)
    )
    rounding = (half - wide).norm()
    for found in in_group(RANKS, ours, "allreduce", "sgd", torch.bfloat16, backend="gloo"):
        assert distance(found, half) < 1e-3
    narrow = in_group(RANKS, ours, "d-psgd", "sgd", torch.bfloat16, backend="gloo")
    full = in_group(RANKS, ours, "d-psgd", "sgd", backend="gloo")
    for mine, other in zip(narrow, full, strict=True):
        assert 0 < (mine - other).norm() < 1.5 * rounding


def other_algorithms(rank):
    quelea.init()
    mesh, losses = two_by_two(), {}
    for algorithm, options in {
        "ad-psgd": {},
        "aladdin": {},
        "diloco": {"period": 4},
        "local-sgd": {"period": 4, "buffers": "average"},
        "qg-dmsgd": {},
        "sync-ps": {},
    }.items():
        model = sharded(make("mlp"), mesh["shard"])
        optimizer = optimizer_of(model, "sgd")
        quelea.wrap(model, optimizer, algorithm, replicate=mesh["replicate"], **options)
        inputs, targets = batch("mlp", rank, 0)
        seen = []
        for _ in range(16):
            loss = cross_entropy(model(inputs), targets)
            seen.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses[algorithm] = (seen[0], seen[-1])
        with quelea.evaluate_model(), torch.no_grad():
            mean = whole(model)
            evaluated = model(inputs)
        own = whole(model)
        # A pass after an evaluation must not use what was gathered in it.
        model(inputs).sum().backward()
        optimizer.step()
        quelea.shutdown()
        losses[f"{algorithm} mean"] = (mean.tolist(), own.tolist(), evaluated.tolist())
    return losses


def test_other_algorithms_train_shards_and_evaluate_their_mean():
    results = in_group(RANKS, other_algorithms, backend="gloo", seconds=120)
    for rank, result in enumerate(results):
        for name, found in result.items():
            if not name.endswith("mean"):
                first, last = (sum(each[name][i] for each in results) for i in (0, 1))
                assert last < 0.98 * first, (name, first, last)
                continue
            mean, _, evaluated = found
            owns = torch.tensor([results[each][name][1] for each in (0, 2)])
            assert torch.allclose(torch.tensor(mean), owns.mean(0), atol=1e-6), (rank, name)
            inputs, _ = batch("mlp", rank, 0)
            model = make("mlp")
            nn.utils.vector_to_parameters(torch.tensor(mean), model.parameters())
            assert torch.allclose(model(inputs), torch.tensor(evaluated), atol=1e-5), (rank, name)


def bytes_of_tensors() -> int:
    """The memory of all tensors of this process."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor):
            found = getattr(found, "_local_tensor", found)
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def memory(rank, algorithm):
    mesh = two_by_two()
    width, layers = 256, 6
    model = sharded(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), mesh["shard"])
    optimizer = optimizer_of(model, "adam")
    if algorithm is not None:
        quelea.init()
        quelea.wrap(model, optimizer, algorithm, replicate=mesh["replicate"])
    used = []
    for step in range(2):
        model(torch.ones(2, width)).square().mean().backward()
        used += [bytes_of_tensors()] if step == 1 else []
        optimizer.step()
        used += [bytes_of_tensors()] if step == 1 else []
        optimizer.zero_grad()
    if algorithm is not None:
        quelea.shutdown()
    return max(used), 4 * sum(p._local_tensor.numel() for p in model.parameters())


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd"])
def test_memory_is_at_most_one_shard_above_that_of_fsdp_alone(algorithm):
    alone = in_group(RANKS, memory, None, backend="gloo")
    wrapped = in_group(RANKS, memory, algorithm, backend="gloo")
    for (used, shard), (more, _) in zip(alone, wrapped, strict=True):
        assert used >= 4 * shard, "parameters, gradients and two vectors of Adam"
        assert more <= used + shard + 4096


def message_of(call) -> str:
    try:
        call()
    except (quelea.Error, ValueError, TypeError) as error:
        return str(error)
    return "nothing was refused"


def wrong_uses(rank):
    quelea.init()
    mesh = two_by_two()

    def wrap(model, **settings):
        return message_of(lambda: quelea.wrap(model, optimizer_of(model, "sgd"), **settings))

    def on(part):
        return sharded(make("mlp"), part)

    half = make("mlp")
    fully_shard(half[0], mesh=mesh["shard"])
    return {
        "nothing says which ranks have the same shard": wrap(on(mesh["shard"])),
        "this one is not sharded": wrap(make("mlp"), replicate=mesh["replicate"]),
        "which fully_shard() averages itself": wrap(on(mesh), replicate=mesh["replicate"]),
        "are not replicas of the parameter": wrap(on(mesh["shard"]), replicate=mesh["shard"]),
        "select the one of the replicas": wrap(on(mesh["shard"]), replicate=mesh),
        "pass a dimension of a device mesh": wrap(on(mesh["shard"]), replicate="replicate"),
        "is not sharded, but others are": wrap(half, replicate=mesh["replicate"]),
        "the second finds the replicas itself": wrap(
            on(mesh["shard"]), replicate=mesh["replicate"], within_host="fsdp"
        ),
        'must be "ddp" or "fsdp"': wrap(make("mlp"), within_host="zero"),
    }


def test_wrong_use_of_sharded_models_says_what_to_do():
    for found in in_group(RANKS, wrong_uses, backend="gloo"):
        for expected, message in found.items():
            assert expected in message, message
