"""Schedulers of PyTorch that follow all ranks, and the step of all ranks."""

from __future__ import annotations

import time

import pytest
import torch
from group import launch
from test_use import start, step
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

import quelea.torch as quelea

STEPS = 40
#: What three fast ranks of four have done on average over all.
REACHED = 3 * STEPS // 4

MAKERS = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "step": lambda optimizer: StepLR(optimizer, 10, gamma=0.5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, STEPS),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=STEPS),
}


def rate_after(make, steps):
    """The rate that the plain scheduler has after so many steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = make(optimizer)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    return scheduler.get_last_lr()[0]


def held_up(rank, kind):
    """The step of all and the rate at rank 0, which takes no step while the others take theirs."""
    model, optimizer = start("ad-psgd")
    scheduler = quelea.GlobalScheduler(MAKERS[kind](optimizer))
    for number in range(STEPS if rank > 0 else 0):
        step(model, optimizer, rank, number)
        scheduler.step()
    quelea.barrier()
    if rank == 0:
        limit = time.monotonic() + 30
        while quelea.global_step() < REACHED and time.monotonic() < limit:
            pass
        scheduler.step()
    found = quelea.global_step(), scheduler.get_last_lr()[0]
    quelea.barrier()
    quelea.shutdown()
    return found


@pytest.mark.parametrize("kind", MAKERS)
def test_the_rate_of_a_slow_rank_has_fallen_with_that_of_the_others(kind):
    reached, rate = launch(4, held_up, kind)[0]
    assert reached == REACHED
    assert rate == pytest.approx(rate_after(MAKERS[kind], REACHED))


def together(rank, algorithm, kind):
    model, optimizer = start(algorithm)
    scheduler = quelea.GlobalScheduler(MAKERS[kind](optimizer))
    found = []
    for number in range(12):
        step(model, optimizer, rank, number)
        scheduler.step()
        found.append((quelea.global_step(), scheduler.get_last_lr()[0]))
    quelea.shutdown()
    return found


@pytest.mark.parametrize("algorithm", ["allreduce", "sync-ps", "d-psgd"])
def test_in_synchronous_algorithms_it_is_the_plain_scheduler(algorithm):
    expected = [(k, rate_after(MAKERS["cosine"], k)) for k in range(1, 13)]
    for found in launch(2, together, algorithm, "cosine"):
        assert found == expected


def test_a_scheduler_of_epochs_advances_once_per_epoch():
    def work(rank):
        model, optimizer = start()
        scheduler = quelea.GlobalScheduler(StepLR(optimizer, 1, gamma=0.5), every=3)
        rates = []
        for number in range(7):
            step(model, optimizer, rank, number)
            scheduler.step()
            rates.append(scheduler.get_last_lr()[0])
        quelea.shutdown()
        return rates

    for rates in launch(2, work):
        assert rates == [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]


def test_one_cycle_is_not_stepped_beyond_its_end():
    def work(rank):
        model, optimizer = start()
        scheduler = quelea.GlobalScheduler(OneCycleLR(optimizer, 0.5, total_steps=4))
        for number in range(6):
            step(model, optimizer, rank, number)
            scheduler.step()
        quelea.shutdown()
        return scheduler.scheduler.last_epoch

    assert launch(1, work) == [4]


def resumed(rank, at):
    """The rates and the last step of a training that is resumed after `at` steps, or not."""
    model, optimizer = start()
    scheduler = quelea.GlobalScheduler(MAKERS["cosine"](optimizer), every=2)
    rates = []
    for number in range(9):
        if number == at:
            state, followed = quelea.state_dict(), scheduler.state_dict()
            quelea.shutdown()
            model = quelea.wrap(model, optimizer, "allreduce")
            scheduler = quelea.GlobalScheduler(MAKERS["cosine"](optimizer), every=2)
            scheduler.load_state_dict(followed)
            quelea.load_state_dict(state)
        step(model, optimizer, rank, number)
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    last = quelea.global_step()
    quelea.shutdown()
    return rates, last


def test_a_resumed_training_continues_its_schedule():
    whole = launch(2, resumed, None)
    assert whole[0][1] == 9
    assert launch(2, resumed, 5) == whole


def test_what_cannot_follow_steps_is_refused():
    def work(_rank):
        _, optimizer = start()
        with pytest.raises(TypeError, match="follows a measured value"):
            quelea.GlobalScheduler(ReduceLROnPlateau(optimizer))
        with pytest.raises(ValueError, match="every = 0: must be at least 1"):
            quelea.GlobalScheduler(StepLR(optimizer, 1), every=0)
        quelea.shutdown()
        with pytest.raises(quelea.Error, match="needs a wrapped model"):
            quelea.GlobalScheduler(StepLR(optimizer, 1))

    launch(1, work)
