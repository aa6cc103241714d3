"""Calls on tensors beside `wrap`: values against closed forms, windows, examples, wrong use."""

from __future__ import annotations

import pytest
import torch
from group import launch
from test_examples import numbers, together

import quelea.torch as quelea

SIZE = 4


def collectives(rank):
    quelea.init()
    mine = torch.tensor([[1.0, rank], [rank, 2.0]])
    sent = quelea.broadcast_nonblocking(mine, 2)
    found = {
        "mean": quelea.allreduce(mine).tolist(),
        "sum": quelea.allreduce(torch.tensor([rank]), average=False).tolist(),
        "gathered": quelea.allgather(torch.tensor([rank, 10 * rank])).tolist(),
        "broadcast": quelea.synchronize(sent).tolist(),
        "unchanged": mine.tolist(),
    }
    quelea.shutdown()
    return found


def test_collectives_have_their_values_and_leave_their_argument():
    for rank, found in enumerate(launch(SIZE, collectives)):
        assert found["mean"] == [[1.0, 1.5], [1.5, 2.0]]
        assert found["sum"] == [6]
        assert found["gathered"] == [0, 0, 1, 10, 2, 20, 3, 30]
        assert found["broadcast"] == [[1.0, 2.0], [2.0, 2.0]]
        assert found["unchanged"] == [[1.0, rank], [rank, 2.0]]


def neighbours(rank, dtype):
    quelea.init()
    quelea.set_topology("ring")
    x = torch.tensor([3.0 * rank], dtype=dtype)
    static = quelea.neighbor_allreduce(x)
    # One peer that changes: at step k, rank r sends to r + 2^k.
    dynamic = x
    for step in range(2):
        to, source = (rank + 2**step) % SIZE, (rank - 2**step) % SIZE
        dynamic = quelea.neighbor_allreduce(
            dynamic, self_weight=0.5, src_weights={source: 0.5}, dst_weights=[to]
        )
    # A factor at the sender, and one at the receiver.
    scaled = quelea.neighbor_allreduce(
        x,
        self_weight=1.0,
        src_weights={(rank - 1) % SIZE: 2.0},
        dst_weights={(rank + 1) % SIZE: 0.25},
    )
    in_ranks, out_ranks = quelea.in_neighbor_ranks(), quelea.out_neighbor_ranks()
    quelea.shutdown()
    return static.item(), dynamic.item(), scaled.item(), in_ranks, out_ranks, str(static.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_neighbours_are_mixed_with_the_weights_of_the_topology_or_of_the_call(dtype):
    for rank, (static, dynamic, scaled, *rest) in enumerate(launch(SIZE, neighbours, dtype)):
        left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
        close = {"rel": 1e-2 if dtype == torch.bfloat16 else 1e-6}
        # A ring of four has weights of a third.
        assert static == pytest.approx(left + rank + right, **close)
        # Two rounds of the one-peer exponential graph over four ranks are the mean.
        assert dynamic == pytest.approx(4.5, **close)
        assert scaled == pytest.approx(3 * rank + 1.5 * left, **close)
        assert rest == [sorted([left, right]), sorted([left, right]), str(dtype)]


def windows(rank):
    quelea.init()
    quelea.set_topology("ring")
    left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
    x = torch.full((3,), float(rank))
    quelea.win_create(x, "x")
    found = {"created": quelea.win_update("x")[0].item()}
    quelea.barrier()
    quelea.win_put(x, "x", self_weight=1.0)
    quelea.barrier()
    found["put"] = quelea.win_update("x", 1.0, {left: 10.0, right: 100.0})[0].item()
    quelea.win_free("x")
    quelea.win_create(x, "y", zero_init=True)
    handles = [quelea.win_accumulate_nonblocking(x, "y", dst_weights=[right]) for _ in range(3)]
    for handle in handles:
        quelea.synchronize(handle)
    quelea.barrier()
    found["accumulated"] = quelea.win_update("y", 0.0, {left: 1.0, right: 1.0}, reset=True)[0].item()
    found["reset"] = quelea.win_update("y", 0.0, {left: 1.0, right: 1.0})[0].item()
    quelea.win_put(x, "y", self_weight=2.0, dst_weights=[])
    quelea.barrier()
    quelea.win_get("y", [left])
    # An update publishes its result.
    quelea.barrier()
    found["got"] = quelea.win_update("y", 0.0, {left: 1.0})[0].item()
    quelea.win_free("y")
    quelea.shutdown()
    return found


def test_windows_have_what_neighbours_put_added_and_offered():
    for rank, found in enumerate(launch(SIZE, windows)):
        left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
        # Every place has the own value at first.
        assert found["created"] == pytest.approx(rank)
        assert found["put"] == pytest.approx(rank + 10 * left + 100 * right)
        assert found["accumulated"] == 3 * left
        assert found["reset"] == 0
        assert found["got"] == 2 * left


def test_consensus_on_a_ring_of_four_loses_two_thirds_of_the_distance_a_step():
    distances = numbers(together(4, "consensus.py", "--steps", 12), "distance")
    assert len(distances) == 12
    # The other eigenvalues of a ring of four with weights of a third are ± 1/3.
    for earlier, later in zip(distances, distances[1:], strict=False):
        assert later == pytest.approx(earlier / 3, rel=1e-4)


@pytest.mark.parametrize("method", ["exact-diffusion", "gradient-tracking"])
def test_exact_methods_find_the_least_squares_solution(method):
    printed = together(4, "least_squares.py", "--method", method)
    assert numbers(printed, "distance")[-1] < 1e-8, printed


def test_plain_gossip_does_not():
    printed = together(4, "least_squares.py", "--method", "dgd")
    assert numbers(printed, "distance")[-1] > 1e-3, printed


def test_push_sum_finds_the_mean_and_loses_nothing():
    printed = together(4, "push_sum.py")
    assert numbers(printed, "distance")[0] < 1e-6, printed
    assert numbers(printed, "lost")[0] < 1e-12, printed


WRONG = {
    "integers have no mean": (
        lambda: quelea.allreduce(torch.tensor([1, 2])),
        "needs a floating point tensor, not torch.int64",
    ),
    "a root that is not there": (
        lambda: quelea.broadcast(torch.ones(1), 7),
        "root_rank = 7: must be below the 2 ranks",
    ),
    "half of the weights": (
        lambda: quelea.neighbor_allreduce(torch.ones(1), self_weight=0.5),
        "needs self_weight, src_weights and dst_weights together",
    ),
    "itself as neighbour": (
        lambda: quelea.neighbor_allreduce(
            torch.ones(1), self_weight=0.5, src_weights={quelea.rank(): 0.5}, dst_weights=[]
        ),
        "it must be another rank, below 2",
    ),
    "no window": (lambda: quelea.win_update("x"), "call win_create(tensor, name) at all ranks first"),
    "a scalar": (lambda: quelea.allgather(torch.tensor(1.0)), "use tensor[None]"),
    "an unknown topology": (lambda: quelea.set_topology("rign"), "ring"),
}


def wrong(rank, name):
    quelea.init()
    try:
        WRONG[name][0]()
    except Exception as error:
        said = str(error)
    quelea.allreduce(torch.ones(1))
    quelea.shutdown()
    return said


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_an_error_and_later_calls_work(name):
    for said in launch(2, wrong, name):
        assert WRONG[name][1] in said


def test_calls_need_init():
    def work(rank):
        with pytest.raises(quelea.Error, match="call quelea.init\\(\\) first"):
            quelea.allreduce(torch.ones(1))

    launch(1, work)
