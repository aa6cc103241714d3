"""Shares of the work in proportion to speeds, which are given here and so the same in every run."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from group import launch
from models import distance, flat, make
from torch.nn.functional import cross_entropy

import quelea.torch as quelea
from quelea._balance import Balance, shares

SAMPLES, BATCH, EVERY = 360, 12, 2


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(SAMPLES, 10, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)


@pytest.mark.parametrize(
    ("speeds", "total", "limits", "expected"),
    [
        ([1.0, 1.0, 1.0], 36, (0.25, 4), [12, 12, 12]),
        ([3.0, 2.0, 1.0], 36, (0.25, 4), [18, 12, 6]),
        # What the limits take from one goes to the others.
        ([100.0, 1.0, 1.0], 36, (0.5, 2), [24, 6, 6]),
        ([100.0, 1.0, 1.0, 1.0], 40, (0.1, 2), [20, 7, 7, 6]),
        ([1.0, 1.0, 0.001], 36, (0.5, 4), [15, 15, 6]),
        # Nobody is left without a sample, and the sum stays.
        ([1000.0, 1.0], 2, (0.01, 4), [1, 1]),
        ([1.0, 1.0, 1.0], 10, (0.25, 4), [4, 3, 3]),
    ],
)
def test_shares_are_in_proportion_within_limits_and_whole(speeds, total, limits, expected):
    assert shares(speeds, total, Balance(*limits)) == expected


def share_batches(rank, speeds, algorithm):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    said = io.StringIO()
    balance = Balance(every=EVERY, speed=lambda: speeds[rank])
    options = {"form": "consensus", "topology": "ring"} if algorithm == "d-psgd" else {}
    quelea.wrap(model, optimizer, algorithm, balance=balance, **options)
    batches = quelea.BalancedBatches(SAMPLES, BATCH, seed=3)
    inputs, targets = data()
    dataset = torch.utils.data.TensorDataset(torch.arange(SAMPLES), inputs, targets)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches)
    seen = []
    with contextlib.redirect_stderr(said):
        for epoch in range(2):
            batches.set_epoch(epoch)
            for index, x, y in loader:
                seen.append(index.tolist())
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
    quelea.shutdown()
    return flat(model).tolist(), seen, said.getvalue()


def reference(ranks: int) -> torch.Tensor:
    """One process with the mini-batches of all ranks."""
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = data()
    for epoch in range(2):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3 + epoch))
        for part in order.split(BATCH * ranks):
            optimizer.zero_grad()
            cross_entropy(model(inputs[part]), targets[part]).backward()
            optimizer.step()
    return flat(model)


def test_gradients_weigh_as_much_as_their_samples():
    speeds = [3.0, 2.0, 1.0]
    results = launch(3, share_batches, speeds, "allreduce")
    expected = reference(3)
    for rank, (found, seen, said) in enumerate(results):
        assert distance(torch.tensor(found), expected) < 1e-5
        assert [len(part) for part in seen[: EVERY + 2]] == [12] * EVERY + [[18, 12, 6][rank]] * 2
        assert said == ("quelea: batch shares 18, 12, 6 of 36 for speeds 3, 2, 1\n" if rank == 0 else "")
    steps = SAMPLES // (3 * BATCH)
    for epoch in (0, 1):
        used = [i for _, seen, _ in results for part in seen[epoch * steps :][:steps] for i in part]
        assert sorted(used) == list(range(SAMPLES)), "every sample is in one mini-batch of an epoch"


def test_gossip_multiplies_gradients_by_their_shares():
    results = launch(2, share_batches, [3.0, 1.0], "d-psgd")
    models = [make("mlp"), make("mlp")]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    inputs, targets = data()
    for step in range(len(results[0][1])):
        parts = [seen[step] for _, seen, _ in results]
        for model, optimizer, part in zip(models, optimizers, parts, strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[part]), targets[part])
            (loss * len(part) / BATCH).backward()
        with torch.no_grad():
            for first, second in zip(*(model.parameters() for model in models), strict=True):
                mean = (first + second) / 2
                first.copy_(mean)
                second.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
    for (found, seen, _), model in zip(results, models, strict=True):
        assert distance(torch.tensor(found), flat(model)) < 1e-5
        assert len(seen[-1]) != BATCH


def share_steps(rank, speeds):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balance = Balance(every=4, speed=lambda: speeds[rank])
    quelea.wrap(model, optimizer, "local-sgd", period=4, balance=balance)
    batches = quelea.BalancedBatches(SAMPLES, BATCH, shuffle=False)
    inputs, targets = data()
    used, models = [], []
    for part in batches:
        used.append(part)
        optimizer.zero_grad()
        cross_entropy(model(inputs[part]), targets[part]).backward()
        optimizer.step()
        models.append(flat(model))
    step = quelea.global_step()
    quelea.shutdown()
    return used, torch.stack(models).tolist(), step


def test_ranks_take_local_steps_in_proportion_to_their_speeds():
    results = launch(2, share_steps, [4.0, 2.0])
    # The first round has equal shares; then 4 and 2 steps.
    rounds = 1 + (SAMPLES - 8 * BATCH) // (6 * BATCH)
    counts = [[4] + [4] * (rounds - 1), [4] + [2] * (rounds - 1)]
    assert [len(used) for used, _, _ in results] == [sum(each) for each in counts]
    assert {step for *_, step in results} == {4 * rounds}
    inputs, targets = data()
    replicas = [make("mlp"), make("mlp")]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in replicas]
    places = [0, 0]
    for number in range(rounds):
        for rank, (model, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            for _ in range(counts[rank][number]):
                part = results[rank][0][places[rank]]
                places[rank] += 1
                optimizer.zero_grad()
                cross_entropy(model(inputs[part]), targets[part]).backward()
                optimizer.step()
        mean = (flat(replicas[0]) + flat(replicas[1])) / 2
        for model in replicas:
            torch.nn.utils.vector_to_parameters(mean.clone(), model.parameters())
        for rank in (0, 1):
            assert distance(torch.tensor(results[rank][1][places[rank] - 1]), mean) < 1e-5
    used = [i for used, _, _ in results for part in used for i in part]
    assert len(used) == len(set(used)), "no sample is used twice"


def measured(rank):
    """Without `speed`, the time of gradients is measured."""
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quelea.wrap(model, optimizer, balance=Balance(every=3))
    batches = quelea.BalancedBatches(SAMPLES, BATCH)
    inputs, targets = data()
    for part in batches:
        cross_entropy(model(inputs[part]), targets[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
    from quelea import _session

    speeds = _session.sessions[0].balancer.speeds
    quelea.shutdown()
    return speeds


def test_speeds_are_measured_and_all_ranks_know_them():
    first, second = launch(2, measured)
    assert first == second
    assert min(first) > 0
    assert first != [1.0, 1.0]


def message_of(call) -> str:
    try:
        call()
    except (quelea.Error, ValueError, TypeError) as error:
        return str(error)
    return "nothing was refused"


def wrong_uses(rank):
    quelea.init()

    def wrap(**settings):
        model = make("mlp")
        return quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **settings)

    found = {
        "leave balance out": message_of(lambda: wrap(algorithm="ad-psgd", balance=True)),
        "must be True, False or a quelea.Balance": message_of(lambda: wrap(balance=0.5)),
        "least is above 0": message_of(lambda: Balance(least=2.0)),
    }
    wrap()
    found["wrapped with balance=True"] = message_of(lambda: quelea.BalancedBatches(10, 1))
    quelea.shutdown()
    model = wrap(balance=True)
    found["pass quelea.BalancedBatches(…) as batch_sampler="] = message_of(
        model(torch.ones(4, 10)).sum().backward
    )
    return found


def test_wrong_use_of_balance_says_what_to_do():
    for expected, message in launch(1, wrong_uses)[0].items():
        assert expected in message, message
