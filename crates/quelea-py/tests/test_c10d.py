"""`torch.distributed` with the backend `quelea`: values of all calls, groups, errors, the end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from distributed import _in_group, failures_in_group, in_group
from group import launch, outcomes
from torch._C._distributed_c10d import Backend

SIZE = 3
NUMBERS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
]
#: What a reduction is, on the tensors of all ranks in one.
REDUCTIONS = {
    "SUM": lambda t: t.sum(0),
    "PRODUCT": lambda t: t.prod(0),
    "MIN": lambda t: t.amin(0),
    "MAX": lambda t: t.amax(0),
}
BITWISE = {
    "BAND": lambda a, b: a & b,
    "BOR": lambda a, b: a | b,
    "BXOR": lambda a, b: a ^ b,
}


def given(rank: int, dtype: torch.dtype, length: int = 37) -> torch.Tensor:
    """Small whole numbers that every type and every sum of them holds exactly."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(1, 5, (length,), generator=generator).to(dtype)


def everybody(dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([given(rank, torch.float64) for rank in range(SIZE)])


def reductions(rank, dtype):
    found = {}
    for name in REDUCTIONS:
        tensor = given(rank, dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        found[name] = tensor.double().tolist()
    if dtype.is_floating_point:
        tensor = given(rank, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        found["AVG"] = tensor.double().tolist()
    return found


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_reduction_of_every_type_has_its_value(dtype):
    all_tensors = everybody(dtype)
    for found in in_group(SIZE, reductions, dtype):
        for name, compute in REDUCTIONS.items():
            assert found[name] == compute(all_tensors).tolist(), name
        if dtype.is_floating_point:
            mean = all_tensors.mean(0)
            assert torch.allclose(
                torch.tensor(found["AVG"], dtype=torch.float64), mean, rtol=float(torch.finfo(dtype).eps)
            )


def bitwise_reductions(rank):
    found = {}
    for name in BITWISE:
        tensor = given(rank, torch.int32)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        found[name] = tensor.tolist()
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return found, flags.tolist()


def test_bitwise_reductions_and_booleans():
    a, b, c = (given(rank, torch.int32) for rank in range(SIZE))
    for found, flags in in_group(SIZE, bitwise_reductions):
        for name, operation in BITWISE.items():
            assert found[name] == operation(operation(a, b), c).tolist()
        assert flags == [True, True, False]


def movements(rank):
    mine = torch.full((2, 3), float(rank))
    found = {}
    gathered = [torch.empty(2, 3) for _ in range(SIZE)]
    dist.all_gather(gathered, mine)
    found["all_gather"] = [t[0, 0].item() for t in gathered]
    single = torch.empty(2 * SIZE, 3)
    dist.all_gather_into_tensor(single, mine)
    found["all_gather_into_tensor"] = single[::2, 0].tolist()
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * SIZE) + rank)
    found["reduce_scatter_tensor"] = part.tolist()
    dist.reduce_scatter(part, [torch.full((2,), 10.0 * to + rank) for to in range(SIZE)])
    found["reduce_scatter"] = part.tolist()
    received = torch.empty(SIZE, dtype=torch.int64)
    dist.all_to_all_single(received, torch.arange(SIZE) + 10 * rank)
    found["all_to_all_single"] = received.tolist()
    # Rank r sends r + 1 elements to everybody.
    uneven = torch.empty(1 + 2 + 3)
    dist.all_to_all_single(
        uneven, torch.full((SIZE * (rank + 1),), float(rank)), [1, 2, 3], [rank + 1] * SIZE
    )
    found["uneven"] = uneven.tolist()
    lists = [torch.empty(1) for _ in range(SIZE)]
    dist.all_to_all(lists, [torch.tensor([10.0 * rank + to]) for to in range(SIZE)])
    found["all_to_all"] = [t.item() for t in lists]
    gathered = [torch.empty(2, 3) for _ in range(SIZE)] if rank == 1 else None
    dist.gather(mine, gathered, dst=1)
    found["gather"] = [t[0, 0].item() for t in gathered] if gathered else None
    scattered = torch.empty(1)
    dist.scatter(scattered, [torch.tensor([7.0 + to]) for to in range(SIZE)] if rank == 2 else None, 2)
    found["scatter"] = scattered.item()
    reduced = torch.tensor([float(rank + 1)])
    dist.reduce(reduced, 0, dist.ReduceOp.PRODUCT)
    found["reduce"] = reduced.item()
    # A view with gaps keeps what is between.
    grid = torch.zeros(4, 4)
    grid[:, 1] = rank
    dist.broadcast(grid[:, 1], 2)
    found["broadcast"] = grid.sum(0).tolist()
    many = [torch.tensor([float(rank)]), torch.tensor([[1.0, rank]])]
    dist.all_reduce_coalesced(many)
    found["coalesced"] = [t.flatten().tolist() for t in many]
    return found


def test_tensors_go_where_they_belong():
    for rank, found in enumerate(in_group(SIZE, movements)):
        assert found["all_gather"] == found["all_gather_into_tensor"] == [0, 1, 2]
        assert found["reduce_scatter_tensor"] == [3 * (2 * rank) + 3, 3 * (2 * rank + 1) + 3]
        assert found["reduce_scatter"] == [30 * rank + 3] * 2
        assert found["all_to_all_single"] == [rank, 10 + rank, 20 + rank]
        assert found["uneven"] == [0, 1, 1, 2, 2, 2]
        assert found["all_to_all"] == [rank, 10 + rank, 20 + rank]
        assert found["gather"] == ([0, 1, 2] if rank == 1 else None)
        assert found["scatter"] == 7 + rank
        assert found["reduce"] == (6 if rank == 0 else rank + 1)
        assert found["broadcast"] == [0, 8, 0, 0]
        assert found["coalesced"] == [[3], [3, 3]]


def points(rank):
    """Rank 0 sends three tensors to each other rank, which takes them in another order."""
    if rank == 0:
        works = [
            dist.isend(torch.full((1000,), float(10 * to + tag)), to, tag=tag)
            for to in range(1, SIZE)
            for tag in range(3)
        ]
        for work in works:
            work.wait()
        return None
    tensors = [torch.empty(1000) for _ in range(3)]
    works = [dist.irecv(tensors[tag], 0, tag=tag) for tag in (2, 0, 1)]
    for work in works:
        work.wait()
    return [t[-1].item() for t in tensors]


def test_sends_are_received_by_tag():
    assert in_group(SIZE, points) == [None, [10, 11, 12], [20, 21, 22]]


def batched(rank):
    received = [torch.empty(2), torch.empty(3)]
    before, after = (rank - 1) % SIZE, (rank + 1) % SIZE
    calls = [
        dist.P2POp(dist.isend, torch.full((2,), float(rank)), after),
        dist.P2POp(dist.irecv, received[0], before),
        dist.P2POp(dist.isend, torch.full((3,), 10.0 + rank), before),
        dist.P2POp(dist.irecv, received[1], after),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return [tensor.tolist() for tensor in received]


def test_sends_and_receives_in_one_batch():
    for rank, found in enumerate(in_group(SIZE, batched)):
        before, after = (rank - 1) % SIZE, (rank + 1) % SIZE
        assert found == [[before] * 2, [10 + after] * 3]


def properties_of_backend(rank):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    names = [name for name in dir(Backend) if isinstance(getattr(Backend, name), property)]
    # PyTorch's own raises an error for all backends without an allocator.
    return {name: repr(getattr(backend, name)) for name in names if name != "mem_allocator"}


def test_all_properties_of_a_backend_have_values():
    (found,) = in_group(1, properties_of_backend)
    assert found["supports_coalescing"] == "False" and found["supports_splitting"] == "True"


def coalesced(rank):
    shapes = [(3,), (2, 2), (), (300_000,), (5,)]
    tensors = [torch.full(shape, float(rank + k)) for k, shape in enumerate(shapes)]
    # Memory that is not contiguous.
    tensors.append(torch.full((6,), float(rank))[::2])
    calls = []
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    inner = group._group

    class Counting:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(inner, name)

    group._group = Counting()
    dist.all_reduce_coalesced(tensors)
    group._group = inner
    return [t.flatten()[[0, -1]].tolist() for t in tensors], calls


def test_short_tensors_of_a_coalesced_all_reduce_travel_as_one():
    ranks = sum(range(SIZE))
    for found, calls in in_group(SIZE, coalesced):
        sums = [*(ranks + k * SIZE for k in range(5)), ranks]
        assert found == [[value, value] for value in sums]
        # The first three, the long one, and the last two.
        assert calls == ["all_reduce"] * 3


def groups(rank):
    evens = dist.new_group([0, 2])
    all_of_them = dist.new_group()
    value = torch.tensor([float(rank)])
    if rank != 1:
        dist.all_reduce(value, group=evens)
    dist.all_reduce(value, dist.ReduceOp.MAX, group=all_of_them)
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 10 * rank})
    shared = [{"from": 0}, 3] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, 0)
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    return value.item(), objects, shared, doubled.wait().tolist()


def test_subgroups_objects_and_futures():
    for value, objects, shared, doubled in in_group(SIZE, groups):
        assert value == 2
        assert objects == [{"rank": rank, "text": "x" * 10 * rank} for rank in range(SIZE)]
        assert shared == [{"from": 0}, 3]
        assert doubled == [6, 6]


def shrunk(rank):
    if rank == 1:
        dist.barrier()
        return None
    dist.barrier()
    smaller = dist.shrink_group([1])
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value, group=smaller)
    return value.item(), dist.get_world_size()


def test_a_group_shrinks_to_the_ranks_that_remain():
    assert in_group(SIZE, shrunk) == [(4, 2), None, (4, 2)]


def reconfigured(rank):
    handles = [None] * SIZE
    dist.all_gather_object(handles, dist._get_reconfigure_handle())
    dist._reconfigure(7, handles).wait()
    value = torch.tensor([float(rank)])
    dist.all_reduce(value)
    try:
        dist._reconfigure(8, [dist._get_reconfigure_handle()])
    except RuntimeError as error:
        return value.item(), str(error)
    return None


def test_a_group_is_reconfigured_with_as_many_ranks_and_no_others():
    for value, refused in in_group(SIZE, reconfigured):
        assert value == 3
        assert "call dist.shrink_group()" in refused


def replaced(rank, file):
    """A group whose last rank dies and is replaced by a new process, as PyTorch means it: the group is created without
    connections, and processes exchange handles by a store of their own."""
    is_new = os.environ["QUELEA_TEST_RESTARTED"] == "yes"
    generation = int(is_new)
    store = dist.FileStore(f"{file}.handles", SIZE)
    dist.init_process_group(
        "quelea",
        init_method=f"file://{file}.{generation}",
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=60),
        enable_reconfigure=True,
    )
    said = None
    if not is_new:
        meet(store, rank, generation=0)
        dist.barrier()
        if rank == SIZE - 1:
            os._exit(1)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            said = str(error)
    meet(store, rank, generation=1)
    value = torch.tensor([10.0 ** rank])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return said, value.item()


def meet(store, rank, generation):
    """Connects all ranks of a generation."""
    store.set(f"{generation}/{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"{generation}/{other}").decode() for other in range(SIZE)]
    dist._reconfigure(generation, handles).wait()


def test_a_new_process_takes_the_place_of_one_that_died(tmp_path):
    ended = outcomes(SIZE, replaced, str(tmp_path / "store"), restarted=(SIZE - 1,))
    failures, values = zip(*ended, strict=True)
    assert failures == (None,) * SIZE
    gone = "rank 2 is gone: its process has ended"
    assert values == ((gone, 111.0), (gone, 111.0), (None, 111.0))


def unconnected(rank, file):
    dist.init_process_group(
        "quelea", init_method=f"file://{file}", rank=rank, world_size=1, enable_reconfigure=True
    )
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        dist.destroy_process_group()
        return str(error)
    return None


def test_a_group_without_connections_says_what_to_call(tmp_path):
    (said,) = launch(1, unconnected, str(tmp_path / "store"))
    assert said == "the process group is not connected yet: call reconfigure() at all ranks first"


def shrunk_after_a_death(rank):
    dist.barrier()
    if rank == 1:
        os._exit(1)
    # Its peers are in the middle of a call when it dies.
    work = dist.all_reduce(torch.ones(10), async_op=True)
    smaller = dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    try:
        work.wait()
    except RuntimeError as error:
        said = str(error)
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value, group=smaller)
    return said, value.item()


def test_a_group_shrinks_after_a_rank_has_died():
    with tempfile.TemporaryDirectory() as folder:
        arguments = ("quelea", SIZE, f"{folder}/store", 60.0, shrunk_after_a_death, ())
        ended = outcomes(SIZE, _in_group, *arguments, dead=(1,))
    for failure, value in ended:
        assert failure is None
        said, reduced = value
        assert reduced == 4.0
        assert "rank 1 is gone" in said or "the process group is shrinking" in said


def dying(rank):
    dist.barrier()
    if rank == 2:
        os._exit(1)
    dist.all_reduce(torch.ones(10))


def test_the_error_names_the_rank_that_died():
    for failure in failures_in_group(SIZE, dying, dead=(2,)):
        assert failure is not None
        assert "quelea.Error: rank 2 is gone: its process has ended" in failure


def late(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(10))
        finally:
            store.set("gave up", "")
    else:
        # Its peer has given up by then, and has said so.
        store.wait(["gave up"], timedelta(seconds=60))
        dist.all_reduce(torch.ones(10))


def test_a_time_limit_names_the_rank_that_did_not_come():
    first, second = failures_in_group(2, late, seconds=1.0)
    assert first is not None and "timed out: rank 0 waited for rank 1 (all_reduce)" in first
    assert second is not None and "timed out" in second


def different(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(3 + rank))
    else:
        dist.broadcast(torch.ones(3), 1)


def test_different_calls_at_one_place_are_an_error_that_names_both():
    for failure in failures_in_group(2, different):
        assert failure is not None
        assert "all ranks must make the same calls in the same order" in failure


WRONG = {
    "premul": (
        lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0)),
        "the reduction premul_sum is not supported, only sum, avg",
    ),
    "bits of floats": (
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        "bitwise reductions need integers",
    ),
    "sparse": (lambda: dist.all_reduce(torch.ones(2, 2).to_sparse()), "to_dense"),
    "uneven splits": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3)),
        "divisible by the 2 ranks",
    ),
}


def wrong(rank, name):
    try:
        WRONG[name][0]()
    except Exception as error:
        dist.barrier()
        return str(error)
    return None


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_an_error_and_the_group_still_works(name):
    for said in in_group(2, wrong, name):
        assert said is not None and WRONG[name][1] in said


SCRIPT = """
import torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("quelea", timeout=timedelta(seconds=60))
group = dist.new_group([0, 1])
value = torch.ones(4)
dist.all_reduce(value, group=group)
assert value.tolist() == [2.0] * 4
{end}
print("complete")
"""


@pytest.mark.parametrize("end", ["dist.destroy_process_group()", ""], ids=["destroyed", "left open"])
def test_processes_end_without_an_abort_and_need_no_import(end, free_port):
    def start(rank):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port),
        }
        command = [sys.executable, "-c", SCRIPT.format(end=end)]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    for process in [start(rank) for rank in range(2)]:
        said, complained = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, b"complete\n"), complained.decode()


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def waits(rank):
    if rank == 0:
        work = dist.irecv(torch.empty(1), 1)
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError as error:
            said = str(error)
        dist.barrier()
        work.wait()
        return said
    dist.barrier()
    dist.send(torch.ones(1), 0)
    return None


def test_waiting_with_a_time_limit_leaves_the_operation_running():
    said = in_group(2, waits)[0]
    assert "timed out" in said
