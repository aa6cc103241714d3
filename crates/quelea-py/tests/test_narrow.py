"""Parameters of half precision in `wrap`: nothing is lost by rounding, and training works."""

from __future__ import annotations

import pytest
import torch
from group import launch
from models import batch, flat, make
from torch.nn.functional import cross_entropy

import quelea.torch as quelea

SIZE = 4


def own_model(rank: int, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(100 + rank)
    return torch.nn.Linear(16, 8).to(dtype)


def exchanges(rank, dtype, algorithm, count):
    """Every rank starts from parameters of its own, and the learning rate is zero."""
    quelea.init()
    torch.set_num_threads(1)
    model = own_model(rank, dtype)
    own = torch.cat([p.detach().flatten().float() for p in reversed(list(model.parameters()))])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    quelea.wrap(model, optimizer, algorithm)
    state = quelea.state_dict()
    quelea.load_state_dict({**state, "params": own})
    for _ in range(count):
        model(torch.ones(1, 16, dtype=dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    kept = quelea.state_dict()["params"].double()
    types = {str(p.dtype) for p in model.parameters()}
    quelea.shutdown()
    return [kept.tolist(), flat(model).double().tolist()], types


def unit(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place of each value, in this type."""
    return torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(values.abs().clamp_min(1e-6)))


def returned(results):
    return torch.tensor([values for values, _ in results], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_thousand_exchanges_leave_the_mean_where_it_was(dtype):
    results = launch(SIZE, exchanges, dtype, "d-psgd", 1000, limit=200)
    models = [own_model(rank, dtype) for rank in range(SIZE)]
    initial = torch.stack([flat(model).double() for model in models])
    found = returned(results)
    # The parameters of the model, which are rounded.
    mean = initial.mean(0)
    assert ((found[:, 1].mean(0) - mean).abs() <= unit(mean, dtype)).all()
    # What the ranks keep has the mean to the precision of float32; a unit here is up to 2e-3.
    packed_mean = torch.cat([mean[-8:], mean[:-8]])
    assert (found[:, 0].mean(0) - packed_mean).abs().max() < 1e-5
    assert all(types == {str(dtype)} for _, types in results)


def learn(rank, dtypes, algorithm):
    quelea.init()
    model = make("mlp")
    layers = [layer for layer in model if list(layer.parameters())]
    for layer, dtype in zip(layers, dtypes, strict=True):
        layer.to(dtype)

    def forward(x):
        for layer in model:
            own = next(iter(layer.parameters()), x)
            x = layer(x.to(own.dtype))
        return x.float()

    model.forward = forward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quelea.wrap(model, optimizer, algorithm)
    for step in range(60):
        x, y = batch("mlp", rank, step % 4)
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    with quelea.evaluate_model(), torch.no_grad():
        mean = flat(model)
    types = [str(p.dtype) for p in model.parameters()]
    quelea.shutdown()
    return mean.float().tolist(), types


#: Asynchronous algorithms have one rank: with two, no run is like another.
RANKS = {"allreduce": 2, "d-psgd": 2, "sync-ps": 2, "exact-diffusion": 2, "ad-psgd": 1, "aladdin": 1}


@pytest.mark.parametrize("algorithm", RANKS)
def test_models_of_mixed_types_learn_what_float32_learns(algorithm):
    types, ranks = [torch.bfloat16, torch.float32, torch.float16], RANKS[algorithm]
    wide = torch.tensor(launch(ranks, learn, [torch.float32] * 3, algorithm)[0][0])
    way = (wide - flat(make("mlp"))).norm()
    for mean, names in launch(ranks, learn, types, algorithm):
        assert names == [str(t) for t in types for _ in range(2)]
        # Rounding of each step, relative to how far training went.
        assert (torch.tensor(mean) - wide).norm() < 0.1 * way


def test_all_reduce_in_half_precision_keeps_all_ranks_equal():
    def work(rank):
        quelea.init()
        model = make("mlp").to(torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        quelea.wrap(model, optimizer)
        for step in range(5):
            x, y = batch("mlp", rank, step)
            cross_entropy(model(x.bfloat16()).float(), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        result = flat(model).float()
        quelea.shutdown()
        return result

    first, second = launch(2, work)
    assert torch.equal(first, second)


def small_steps(rank):
    """Steps of a sixteenth of a unit in the last place."""
    quelea.init()
    model = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-11)
    quelea.wrap(model, optimizer, "d-psgd")
    for _ in range(16):
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weight = model.weight.item()
    quelea.shutdown()
    return weight


def test_a_step_that_the_optimizer_rounds_away_is_not_ours_to_keep():
    # The optimizer works on the parameter itself: what it rounds away never happened.
    assert launch(2, small_steps) == [1.0, 1.0]
