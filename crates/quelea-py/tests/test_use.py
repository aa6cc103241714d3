"""What training scripts do beside the plain loop."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import time

import pytest
import torch
from group import launch, outcomes
from models import batch, cnn, distance, flat, make
from torch import nn
from torch.nn.functional import cross_entropy

import quelea.torch as quelea
from quelea._step_delta import StepDelta


def start(algorithm="allreduce", model=None, lr=0.1, **settings):
    quelea.init()
    model = model or make("mlp")
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
    return quelea.wrap(model, optimizer, algorithm, **settings), optimizer


def step(model, optimizer, rank, number, kind="mlp"):
    inputs, targets = batch(kind, rank, number)
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def accumulate(rank):
    model, optimizer = start()
    for number in range(5):
        optimizer.zero_grad()
        with model.no_sync():
            for part in range(3):
                inputs, targets = batch("mlp", rank, 10 * number + part)
                (cross_entropy(model(inputs), targets) / 4).backward()
        inputs, targets = batch("mlp", rank, 10 * number + 3)
        (cross_entropy(model(inputs), targets) / 4).backward()
        optimizer.step()
    quelea.shutdown()
    return flat(model)


def test_accumulated_gradients_are_those_of_the_large_batch():
    found = launch(2, accumulate)
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(5):
        optimizer.zero_grad()
        parts = [batch("mlp", rank, 10 * number + part) for rank in range(2) for part in range(4)]
        inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert torch.equal(found[0], found[1])
    assert distance(found[0], flat(model)) < 1e-6


class Odd(nn.Module):
    """A layer used twice, a frozen one, one that every other rank uses, one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(10, 10)
        self.tied = self.shared
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.sometimes = nn.Linear(10, 10)
        self.never = nn.Linear(10, 10)
        self.head = nn.Linear(10, 3)
        self.use = True

    def forward(self, x):
        x = self.tied(torch.relu(self.shared(x)))
        x = self.frozen(x)
        return self.head(self.sometimes(x) if self.use else x)


def odd(rank):
    torch.manual_seed(rank)
    model = Odd()
    model.use = rank == 0
    model, optimizer = start(model=model, bucket_mb=1e-4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for number in range(5):
        step(model, optimizer, rank, number)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    quelea.shutdown()
    return flat(model).tolist(), sorted({name.split(".")[0] for name in moved})


def test_shared_frozen_and_unused_parameters_are_taken_as_they_are():
    (first, moved), (second, _) = launch(2, odd)
    assert first == second
    assert moved == ["head", "shared", "sometimes"]


def memory_format(rank, channels_last):
    model = make("cnn")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    model, optimizer = start(model=model)
    strides = model[0].weight.stride()
    for number in range(5):
        step(model, optimizer, rank, number, "cnn")
    quelea.shutdown()
    assert model[0].weight.stride() == strides
    return flat(model)


def test_channels_last_stays_and_changes_nothing():
    plain, last = launch(2, memory_format, False), launch(2, memory_format, True)
    assert distance(last[0], plain[0]) < 1e-5


def scaled(rank, algorithm, everywhere):
    model, optimizer = start(algorithm)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    taken = 0
    for number in range(6):
        inputs, targets = batch("mlp", rank, number)
        if number == 2 and (everywhere or rank == 0):
            inputs = inputs * float("inf")
        before = flat(model)
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        taken += not torch.equal(before, flat(model))
    quelea.shutdown()
    assert torch.isfinite(flat(model)).all()
    return taken


# In d-psgd the models are mixed whether or not the optimizer runs.
@pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this PyTorch scales no gradients on a CPU"
)
@pytest.mark.parametrize(("algorithm", "taken"), [("allreduce", 5), ("d-psgd", 6), ("aladdin", 5)])
def test_a_step_that_the_scaler_skips_keeps_nobody_waiting(algorithm, taken):
    assert launch(2, scaled, algorithm, True)[0] == taken
    launch(2, scaled, algorithm, False)


def evaluate(rank):
    model, optimizer = start("local-sgd", model=make("cnn"), period=100)
    for number in range(3):
        step(model, optimizer, rank, number, "cnn")
    own = flat(model)
    running = model[1].running_mean.clone()
    with quelea.evaluate_model() as inside:
        mean = flat(inside)
        assert not torch.equal(model[1].running_mean, running)
    assert torch.equal(flat(model), own) and torch.equal(model[1].running_mean, running)
    quelea.barrier()
    quelea.shutdown()
    return own.tolist(), mean.tolist()


def test_the_evaluated_model_is_the_mean_and_then_the_own_again():
    results = launch(3, evaluate)
    owns = torch.tensor([own for own, _ in results])
    assert len({tuple(mean) for _, mean in results}) == 1
    assert distance(torch.tensor(results[0][1]), owns.mean(0)) < 1e-6


def keep_using(rank):
    model, optimizer = start("d-psgd")
    step(model, optimizer, rank, 0)
    twin = copy.deepcopy(model)
    quelea.shutdown()
    del optimizer
    gc.collect()
    inputs, targets = batch("mlp", rank, 1)
    cross_entropy(model(inputs), targets).backward()
    assert torch.equal(flat(twin), flat(model))
    # A second run in the same process.
    optimizer = torch.optim.Adam(model.parameters())
    quelea.wrap(model, optimizer, "aladdin", alpha=0.5, period=2)
    for number in range(4):
        step(model, optimizer, rank, number)
    quelea.shutdown()
    return flat(model)


def test_a_model_can_be_used_and_wrapped_again_after_its_run():
    launch(2, keep_using)


def resumed(rank, algorithm, broken):
    model, optimizer = start(algorithm, lr=0.1)
    for number in range(6):
        if broken and number == 3:
            state = quelea.state_dict()
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            quelea.load_state_dict(state)
        step(model, optimizer, rank, number)
    quelea.shutdown()
    return flat(model)


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "sgp"])
def test_a_loaded_state_continues_as_if_nothing_had_happened(algorithm):
    for whole, broken in zip(
        launch(3, resumed, algorithm, False), launch(3, resumed, algorithm, True), strict=True
    ):
        assert distance(broken, whole) < 1e-6


def scheduled(rank, algorithm):
    model, optimizer = start(algorithm)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    step(model, optimizer, rank, 0)
    scheduler.step()
    before = flat(model)
    step(model, optimizer, rank, 1)
    quelea.shutdown()
    return torch.equal(before, flat(model))


@pytest.mark.parametrize("algorithm", ["allreduce", "sync-ps"])
def test_the_scripts_schedule_holds_at_workers_and_servers(algorithm):
    assert launch(2, scheduled, algorithm) == [True, True]


def test_all_ranks_start_from_the_parameters_and_buffers_of_rank_0():
    def work(rank):
        torch.manual_seed(rank)
        model = cnn()
        with torch.no_grad():
            model[1].running_mean += rank + 1
        model, _ = start(model=model)
        quelea.shutdown()
        return flat(model).tolist(), model[1].running_mean.tolist()

    results = launch(3, work)
    assert results[0] == results[1] == results[2]
    assert results[0][1] == [1.0] * 6


def died(rank, algorithm, victim):
    model, optimizer = start(algorithm, on_loss="stop")
    for number in itertools.count():
        if rank == victim and number == 3:
            os.kill(os.getpid(), 9)
        begun = time.monotonic()
        try:
            step(model, optimizer, rank, number)
        except quelea.Error as error:
            return str(error), time.monotonic() - begun


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "asp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_ends_the_others_within_seconds_where_they_are_to_stop(algorithm, victim):
    for failure, (message, seconds) in outcomes(3, died, algorithm, victim, dead=(victim,)):
        assert failure is None
        # A rank that loses rank 0 loses the coordinator.
        assert "rank 1" in message if victim == 1 else "coordinator" in message, message
        assert seconds < 5


def changed_between(rank):
    """A model that is large enough to be copied beside the forward pass, and a plain one."""
    quelea.init()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(800, 800, bias=False), nn.Linear(800, 4, bias=False))
    wrapped = copy.deepcopy(plain)
    models = (plain, wrapped)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9) for model in models]
    # Alone, and without a model of the server, it is plain SGD.
    quelea.wrap(wrapped, optimizers[1], "aladdin", period=1000)
    inputs = torch.randn(4, 800)
    for number in range(8):
        losses = [model(inputs).square().mean() for model in models]
        if number == 4:
            # After the copy has begun.
            halved = {name: value / 2 for name, value in plain.state_dict().items()}
            for model in models:
                model.load_state_dict(halved)
            losses = [model(inputs).square().mean() for model in models]
        for loss, optimizer in zip(losses, optimizers):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        with quelea.evaluate_model() as mean:
            mean(inputs)
    quelea.shutdown()
    return distance(flat(wrapped), flat(plain))


def test_parameters_that_a_script_changes_between_forward_and_step_count():
    assert launch(1, changed_between)[0] < 1e-6


def decayed(rank, limit):
    """Weight decay by hand between backward() and step(), with and without a copying thread."""
    StepDelta.LARGE = limit
    model, optimizer = start("ad-psgd", lr=0.0)
    before = flat(model)
    for number in range(3):
        inputs, targets = batch("mlp", rank, number)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for p in model.parameters():
            p.data.mul_(0.5)
        optimizer.step()
    quelea.shutdown()
    return distance(flat(model), before / 8)


@pytest.mark.parametrize("limit", [1, StepDelta.LARGE], ids=["large", "small"])
def test_what_a_script_does_between_backward_and_step_is_a_part_of_the_step(limit):
    assert launch(1, decayed, limit)[0] < 1e-6


def moved_elsewhere(rank, broken):
    model, optimizer = start("local-sgd", period=1)
    for number in range(4):
        if broken and number == 2:
            for p in model.parameters():
                p.data = p.data.clone()
        step(model, optimizer, rank, number)
    quelea.shutdown()
    return flat(model)


def test_parameters_that_get_other_memory_are_exchanged_all_the_same():
    whole, broken = launch(2, moved_elsewhere, False), launch(2, moved_elsewhere, True)
    assert torch.equal(broken[0], broken[1]) and torch.equal(whole[0], broken[0])


def reloaded(rank, broken):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    quelea.wrap(model, optimizer, "qg-dmsgd")
    for number in range(6):
        if broken and number == 3:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(model, optimizer, rank, number)
    quelea.shutdown()
    return flat(model)


def test_the_state_of_an_optimizer_can_be_loaded_during_a_run():
    for whole, broken in zip(launch(2, reloaded, False), launch(2, reloaded, True), strict=True):
        assert torch.equal(whole, broken)


class Empty(nn.Module):
    """Its first parameter has no elements, so that it comes last in the order of backward passes."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0))
        self.layer = nn.Linear(10, 3)

    def forward(self, x):
        return self.layer(x) + self.nothing.sum()


def empty(rank):
    torch.manual_seed(0)
    model, optimizer = start("allreduce", model=Empty())
    before = flat(model)
    step(model, optimizer, rank, 0)
    quelea.shutdown()
    return distance(flat(model), before)


def test_a_parameter_may_be_empty():
    assert min(launch(2, empty)) > 0


class Mixed(nn.Module):
    """What is not trained, in several types."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 3)
        self.register_buffer("order", torch.randperm(10))
        self.register_buffer("mask", torch.rand(10) < 0.5)
        self.base = nn.Parameter(torch.randn(3).bfloat16(), requires_grad=False)

    def forward(self, x):
        return self.layer(x[:, self.order] * self.mask) + self.base.float()


def mixed(rank):
    torch.manual_seed(rank)
    model, optimizer = start(model=Mixed())
    step(model, optimizer, rank, 0)
    quelea.shutdown()
    return model.order.tolist(), model.mask.tolist(), model.base.float().tolist()


def test_untrained_tensors_of_any_type_start_as_those_of_rank_0():
    torch.manual_seed(0)
    first = Mixed()
    expected = first.order.tolist(), first.mask.tolist(), first.base.float().tolist()
    assert launch(2, mixed) == [expected, expected]


def frozen_later(rank, algorithm):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    quelea.wrap(model, optimizer, algorithm)
    step(model, optimizer, rank, 0)
    model[0].requires_grad_(False)
    before = flat(model)
    with quelea.evaluate_model():
        pass
    assert torch.equal(flat(model), before)
    step(model, optimizer, rank, 1)
    quelea.shutdown()
    moved = flat(model) != before
    count = sum(p.numel() for p in model[0].parameters())
    return moved[:count].any().item(), moved[count:].any().item()


@pytest.mark.parametrize("algorithm", ["allreduce", "local-sgd"])
def test_a_layer_that_is_frozen_later_stays(algorithm):
    assert launch(2, frozen_later, algorithm) == [(False, True)] * 2


def penalized(rank):
    """A penalty on the gradient: backward() with create_graph."""
    model, optimizer = start()
    for number in range(2):
        inputs, targets = batch("mlp", rank, number)
        optimizer.zero_grad()
        with model.no_sync():
            cross_entropy(model(inputs), targets).backward(create_graph=True)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward(create_graph=True)
        optimizer.step()
    quelea.shutdown()
    return flat(model)


def test_a_backward_pass_may_create_a_graph():
    first, second = launch(2, penalized)
    assert torch.equal(first, second)


#: Algorithms for which parameters and optimizer state are all that a rank needs to resume.
RESUMED = ["allreduce", "d-psgd", "sgp", "decentlam", "qg-dmsgd"]


def interrupted(rank, algorithm, broken):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    quelea.wrap(model, optimizer, algorithm)
    for number in range(8):
        if broken and number == 4:
            parts = (model.state_dict(), optimizer.state_dict(), quelea.state_dict())
            of_model, of_optimizer, of_run = copy.deepcopy(parts)
            quelea.shutdown()
            model = make("mlp", seed=7)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model.load_state_dict(of_model)
            quelea.wrap(model, optimizer, algorithm)
            optimizer.load_state_dict(of_optimizer)
            quelea.load_state_dict(of_run)
        step(model, optimizer, rank, number)
    quelea.shutdown()
    return flat(model)


@pytest.mark.parametrize("algorithm", RESUMED)
def test_a_run_resumes_from_the_files_of_every_rank(algorithm):
    whole, broken = launch(3, interrupted, algorithm, False), launch(3, interrupted, algorithm, True)
    assert all(torch.equal(one, other) for one, other in zip(whole, broken, strict=True))
