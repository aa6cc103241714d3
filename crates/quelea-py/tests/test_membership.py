"""Processes of a run that are lost, are started again, or leave: what the others do."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from group import launch, outcomes
from models import batch, distance, flat, make
from torch.nn.functional import cross_entropy

import quelea.torch as quelea
from quelea import _launched

#: Longer than anything here takes on a machine that is busy with other things.
LIMIT_SECONDS = 500
ALGORITHMS = ["allreduce", "d-psgd", "ad-psgd", "aladdin"]
SYNCHRONOUS = ["allreduce", "d-psgd"]
STEPS = 12
#: The rank that is lost, and the step before which it is.
VICTIM, DEATH = 1, 3


def start(algorithm, **settings):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return quelea.wrap(model, optimizer, algorithm, **settings), optimizer


def step(model, optimizer, rank, number):
    optimizer.zero_grad()
    inputs, targets = batch("mlp", rank, number)
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def is_restarted():
    return os.environ["QUELEA_TEST_RESTARTED"] == "yes"


def own_and_mean(model):
    own = flat(model)
    with quelea.evaluate_model() as mean:
        return own.tolist(), flat(mean).tolist()


def bereft(rank, algorithm):
    """Trains on when the victim is gone; what is left of the run at its end."""
    model, optimizer = start(algorithm)
    for number in range(STEPS):
        if rank == VICTIM and number == DEATH:
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, rank, number)
    # Where nobody waits for anybody, the loss may still be on its way.
    while algorithm not in SYNCHRONOUS and len(quelea.workers()) == 3:
        step(model, optimizer, rank, number)
    found = quelea.workers(), *own_and_mean(model)
    quelea.shutdown()
    return found


def plain_all_reduce():
    """What all-reduce must come to: the mean gradient of those who were there at each step."""
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        living = [rank for rank in range(3) if rank != VICTIM or number < DEATH]
        for rank in living:
            inputs, targets = batch("mlp", rank, number)
            (cross_entropy(model(inputs), targets) / len(living)).backward()
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_others_continue_when_a_process_is_killed(algorithm):
    results = outcomes(3, bereft, algorithm, dead=(VICTIM,))
    assert [failure for failure, _ in results] == [None, None], results
    (_, (first, own_0, mean_0)), (_, (second, own_2, mean_2)) = results
    assert first == second == [0, 2]
    expected = (torch.tensor(own_0) + torch.tensor(own_2)) / 2
    assert mean_0 == mean_2 and distance(torch.tensor(mean_0), expected) < 1e-6
    if algorithm == "allreduce":
        assert own_0 == own_2
        assert distance(torch.tensor(own_0), plain_all_reduce()) < 1e-5


def orphaned(rank, algorithm):
    """Trains on when rank 0 is gone, whose process controls the run."""
    model, optimizer = start(algorithm)
    for number in range(STEPS):
        if rank == 0 and number == DEATH:
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, rank, number)
    while algorithm not in SYNCHRONOUS and len(quelea.workers()) == 4:
        step(model, optimizer, rank, number)
    found = quelea.workers(), flat(model).tolist()
    quelea.shutdown()
    return found


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "ad-psgd"])
def test_the_others_continue_when_the_process_that_controls_the_run_is_killed(algorithm):
    results = outcomes(4, orphaned, algorithm, dead=(0,))
    assert [failure for failure, _ in results] == [None, None, None], results
    assert [workers for _, (workers, _) in results] == [[1, 2, 3]] * 3
    models = [torch.tensor(model) for _, (_, model) in results]
    if algorithm == "allreduce":
        assert torch.equal(models[0], models[1]) and torch.equal(models[1], models[2])


def rejoined_synchronously(rank, algorithm):
    """Trains until the victim is replaced and six steps further: at the same step everywhere."""
    model, optimizer = start(algorithm)
    end = None
    for number in itertools.count(quelea.start_step()):
        if rank == VICTIM and number == DEATH and not is_restarted():
            os.kill(os.getpid(), signal.SIGKILL)
        # No step from the victim's last one on is complete before the loss is known.
        if end is None and number > DEATH + 1 and quelea.workers() == [0, 1, 2]:
            end = number + 6
        if end is not None and number >= end - 3:
            # Only the exchange moves the parameters from here on.
            optimizer.param_groups[0].update(lr=0.0)
        if number == end:
            break
        step(model, optimizer, rank, number)
    found = number, quelea.start_step(), *own_and_mean(model)
    quelea.shutdown()
    return found


@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_a_process_that_is_started_again_joins_and_all_models_agree(algorithm):
    results = outcomes(3, rejoined_synchronously, algorithm, restarted=(VICTIM,))
    assert [failure for failure, _ in results] == [None] * 3, results
    ends, starts, owns, means = zip(*(found for _, found in results), strict=True)
    assert len(set(ends)) == 1
    assert starts[0] == starts[2] == 0 and starts[VICTIM] == ends[0] - 6 > DEATH
    assert means[0] == means[1] == means[2]
    if algorithm == "allreduce":
        # Momentum included: it would be missed in the three steps before the rate is zero.
        assert owns[0] == owns[1] == owns[2]
    for own in owns:
        assert distance(torch.tensor(own), torch.tensor(means[0])) < 1e-5


def rejoined_at_will(rank, algorithm, has_joined):
    """Trains until the victim is replaced, and some steps more."""
    model, optimizer = start(algorithm)
    left = STEPS
    if is_restarted():
        has_joined.set()
    for number in itertools.count(quelea.start_step()):
        if rank == VICTIM and number == DEATH and not is_restarted():
            os.kill(os.getpid(), signal.SIGKILL)
        left -= has_joined.is_set()
        if left == 0:
            break
        step(model, optimizer, rank, number)
    found = quelea.start_step(), quelea.workers(), *own_and_mean(model)
    quelea.shutdown()
    return found


@pytest.mark.parametrize("algorithm", ["ad-psgd", "aladdin"])
def test_a_process_that_is_started_again_joins_where_nobody_waits(algorithm):
    import multiprocessing

    has_joined = multiprocessing.get_context("fork").Event()
    results = outcomes(3, rejoined_at_will, algorithm, has_joined, restarted=(VICTIM,))
    assert [failure for failure, _ in results] == [None] * 3, results
    starts, workers, owns, means = zip(*(found for _, found in results), strict=True)
    assert starts[0] == starts[2] == 0 and starts[VICTIM] > 0
    assert workers == ([0, 1, 2],) * 3
    mean = torch.tensor(owns).mean(0)
    assert means[0] == means[1] == means[2] and distance(torch.tensor(means[0]), mean) < 1e-6
    initial = flat(make("mlp"))
    for own in owns:
        # Nobody begins anew, and nobody is far from the others.
        assert distance(torch.tensor(own), mean) < distance(initial, mean)


def waiting(rank):
    model, optimizer = start("allreduce")
    for number in range(STEPS):
        if number == DEATH:
            if rank == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            quelea.barrier()
        step(model, optimizer, rank, number)
    quelea.shutdown()
    quelea.barrier()
    return flat(model).tolist()


def test_calls_that_all_make_together_do_not_wait_for_a_lost_process():
    (none, first), (_, second) = outcomes(3, waiting, dead=(VICTIM,))
    assert none is None and first == second


def given_notice(rank, algorithm):
    model, optimizer = start(algorithm)
    number = 0
    try:
        while number < STEPS or quelea.workers() == [0, 1, 2]:
            if rank == VICTIM and number == DEATH:
                os.kill(os.getpid(), signal.SIGTERM)
            step(model, optimizer, rank, number)
            number += 1
    except quelea.Left as left:
        quelea.shutdown()
        return "left", left.code
    quelea.shutdown()
    return quelea_is_free(), number


def quelea_is_free():
    """SIGTERM is what it was."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("algorithm", ["ad-psgd", "aladdin"])
def test_a_process_that_is_given_notice_leaves_and_the_others_continue(algorithm):
    found = launch(3, given_notice, algorithm)
    assert found[VICTIM] == ("left", None)
    assert all(is_free and number >= STEPS for is_free, number in (found[0], found[2]))


def leaving_in_step(rank):
    """In a synchronous run all who stay take as many steps."""
    model, optimizer = start("allreduce")
    end = None
    try:
        for number in itertools.count():
            if rank == VICTIM and number == DEATH:
                quelea.leave()
            if end is None and len(quelea.workers()) == 2:
                end = number + 5
            if number == end:
                break
            step(model, optimizer, rank, number)
    except quelea.Left:
        return "left"
    quelea.shutdown()
    return number, flat(model).tolist()


def test_in_a_synchronous_run_one_that_leaves_does_so_between_two_steps():
    first, left, second = launch(3, leaving_in_step)
    assert left == "left" and first == second


def refused(rank):
    os.environ[_launched.RESTARTS] = "2"
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        quelea.wrap(model, optimizer, on_loss="stop")
    except quelea.Error as error:
        return str(error)


def test_restarts_that_would_restart_nothing_are_refused_before_the_run():
    assert "--restarts 2 would restart nothing: on_loss=\"stop\"" in launch(1, refused)[0]


RESTARTED = """
import itertools, os, pathlib, signal, time, torch
import quelea.torch as quelea

quelea.init()
torch.manual_seed(quelea.rank())
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model = quelea.wrap(model, optimizer, "allreduce")
scheduler = quelea.GlobalScheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99))
killed = pathlib.Path(__file__).with_name("killed")
end = None
for step in itertools.count(quelea.start_step()):
    if quelea.rank() == 1 and step == 3 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if end is None and step > 4 and quelea.workers() == [0, 1, 2]:
        end = step + 5
    if step == end:
        break
    optimizer.zero_grad()
    # As a gradient does: whoever is started again needs a core meanwhile.
    time.sleep(0.02)
    model(torch.full((2, 4), float(quelea.rank() + step))).square().mean().backward()
    optimizer.step()
    scheduler.step()
quelea.shutdown()
print(model.weight.tolist(), abs(scheduler.get_last_lr()[0] / (0.01 * 0.99**step) - 1) < 1e-9)
"""


def test_launch_starts_a_killed_process_again_and_ends_well(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(RESTARTED)
    words = ["-n", "3", "--restarts", "1", "--no-prefix", str(path)]
    command = [sys.executable, "-m", "quelea.launch", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    again = "rank 1 was killed by signal 9 (SIGKILL); it is started again (restart 1 of 1)"
    assert f"quelea: {again}" in done.stderr
    # What it said last may have died with it.
    lost = r"quelea: rank 1 was lost after [23] steps; the others continue"
    assert re.search(lost, done.stderr), done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1 and lines[0].endswith("True"), done.stdout


ORPHANED = """
import os, signal, torch
import quelea.torch as quelea

quelea.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
quelea.wrap(model, optimizer, "d-psgd", topology="complete")
for number in range(10):
    if quelea.rank() == 0 and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print(quelea.rank(), quelea.workers())
quelea.shutdown()
"""


def test_launch_ends_well_when_rank_0_is_killed(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(ORPHANED)
    command = [sys.executable, "-m", "quelea.launch", "-n", "4", "--no-prefix", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == [f"{rank} [1, 2, 3]" for rank in (1, 2, 3)], done.stdout
    taken = "quelea: the process of rank 0, which controlled the run, was lost; that of rank 1"
    assert taken in done.stderr, done.stderr
