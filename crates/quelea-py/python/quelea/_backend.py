"""The process group of `torch.distributed`: its methods are called by PyTorch's C++ side."""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from quelea import _mesh
from quelea._buffers import Buffers
from quelea._core import Error, PendingCall, TensorGroup, TensorListener
from quelea._work import CollectiveWork, TaggedWork, TensorWork, Worker

#: How long a group that is destroyed waits until its last bytes are written.
_LEAVE_SECONDS = 30.0

#: All groups that were not shut down. PyTorch's C++ side has a pointer to the C++ part of a backend
#: and calls its Python part: without a reference of Python's own, that part would be freed first.
_living: list[QueleaBackend] = []


class QueleaBackend(Backend):
    """One process's end of a group. All ranks must call collectives in the same order."""

    def __init__(self, store: Any, rank: int, names: Sequence[int], timeout: timedelta):
        super().__init__(rank, len(names))
        self._store, self._names = store, list(names)
        self._options = Backend.Options("quelea", timeout)
        self._options.global_ranks_in_group = self._names
        self._rank, self._size = rank, len(names)
        self._worker = Worker()
        self._collectives = self._descendants = 0
        self._listener: TensorListener | None = None
        self._group: Any = _mesh.connect(store, rank, self._names, timeout.total_seconds())
        _living.append(self)

    # What PyTorch asks about the group.

    def getBackendName(self) -> str:  # noqa: N802
        return "quelea"

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        return True

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._collectives

    def _set_sequence_number_for_group(self) -> None:
        pass

    # The end of a group, and groups that are made from it.

    def shutdown(self) -> None:
        if self in _living:
            self._worker.close(_LEAVE_SECONDS)
            self._group.leave(_LEAVE_SECONDS)
            self._group = _LeftGroup()
            _living.remove(self)
            # C++ may hold its part a little longer.
            _ended.append(self)

    def abort(self) -> None:
        if self in _living:
            self._group.abort(f"rank {self._names[self._rank]} has aborted the process group")
            self.shutdown()

    def _descendant(self, ranks: Sequence[int], what: str, timeout: timedelta) -> QueleaBackend:
        """A group of these ranks of this one, with keys of their own in the store."""
        self._descendants += 1
        prefix = f"quelea/{what}/{self._descendants}/{','.join(map(str, ranks))}"
        store = dist.PrefixStore(prefix, self._store)
        names = [self._names[rank] for rank in ranks]
        return QueleaBackend(store, list(ranks).index(self._rank), names, timeout)

    def split(self, store: Any, ranks: list[int], opts: Any) -> QueleaBackend | None:
        if self._rank not in ranks:
            return None
        names = [self._names[rank] for rank in ranks]
        return QueleaBackend(store, ranks.index(self._rank), names, opts._timeout)

    def shrink(self, ranks_to_exclude: list[int], flags: int, opts: Any) -> QueleaBackend:
        remaining = [rank for rank in range(self._size) if rank not in ranks_to_exclude]
        timeout = opts._timeout if opts is not None else self._options._timeout
        if flags & dist.distributed_c10d.SHRINK_ABORT:
            self._group.abort("the process group is shrinking")
        return self._descendant(remaining, "shrink", timeout)

    def get_reconfigure_handle(self) -> str:
        if self._listener is None:
            self._listener = TensorListener()
        return json.dumps(_mesh.addresses(self._listener, self._store))

    def reconfigure(self, opts: Any) -> TensorWork:
        mine = self.get_reconfigure_handle()
        handles = opts.handles if isinstance(opts.handles, list) else sorted(opts.handles)
        if mine not in handles:
            raise Error("this process is not among the handles of reconfigure()")
        rank = handles.index(mine)
        if (rank, len(handles)) != (self._rank, self._size):
            raise Error(
                f"reconfigure() would make rank {self._rank} of {self._size} rank {rank} of "
                f"{len(handles)}, which PyTorch does not let a backend in Python do: replace lost "
                "ranks by new processes of the same rank, or call dist.shrink_group()"
            )
        token = hashlib.sha256(f"{opts.uuid} {handles}".encode()).digest()[:16]
        limit = opts.timeout if opts.timeout is not None else self._options._timeout
        listener, self._listener = self._listener, None
        self._group.abort("the process group is being reconfigured")
        self._group = TensorGroup(
            listener,
            rank,
            [json.loads(handle) for handle in handles],
            token,
            self._names,
            limit.total_seconds(),
        )
        return self.barrier(None)

    # Collectives.

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> TensorWork:
        reduction = _name_of(opts.reduceOp)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._group.all_reduce(buffers.at(t), _element(t), reduction, limit, buffers)
                for t in tensors
            ]

        return self._collective(start, tensors, tensors, opts)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> TensorWork:
        is_root = self._rank == opts.rootRank

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._group.broadcast(buffers.at(t), opts.rootRank, limit, buffers) for t in tensors
            ]

        return self._collective(
            start, tensors if is_root else [], [] if is_root else tensors, opts, results=tensors
        )

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> TensorWork:
        reduction, root = _name_of(opts.reduceOp), opts.rootRank
        is_root = self._rank == root

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._group.reduce_to(
                    "reduce",
                    [] if is_root else [(root, buffers.at(t))],
                    buffers.at(t) if is_root else None,
                    buffers.at(t) if is_root else None,
                    _element(t),
                    reduction,
                    limit,
                    buffers,
                )
                for t in tensors
            ]

        return self._collective(start, tensors, tensors if is_root else [], opts, results=tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> TensorWork:
        for gathered in outputs:
            self._check_one_per_rank("the list of outputs", gathered)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._all_gather(buffers, buffers.at(given), [buffers.at(t) for t in gathered], limit)
                for gathered, given in zip(outputs, inputs, strict=True)
            ]

        return self._collective(start, inputs, [t for part in outputs for t in part], opts)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> TensorWork:
        # Here the lists are by rank, and in each the tensors.
        by_tensor = [[part[k] for part in outputs] for k in range(len(inputs))]
        return self.allgather(by_tensor, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> TensorWork:
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> TensorWork:
        for output, given in zip(outputs, inputs, strict=True):
            self._check_multiple("the output of all_gather", output, "its input", given)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            calls = []
            for output, given in zip(outputs, inputs, strict=True):
                places = buffers.parts(output, [_bytes(given)] * self._size)
                calls.append(self._all_gather(buffers, buffers.at(given), places, limit))
            return calls

        return self._collective(start, inputs, outputs, opts)

    def _all_gather(
        self, buffers: Buffers, mine: Any, places: list[Any], limit: float
    ) -> PendingCall:
        return self._group.exchange(
            "all_gather",
            [(peer, mine) for peer in self._peers()],
            [(peer, places[peer]) for peer in self._peers()],
            [(mine, places[self._rank])],
            limit,
            buffers,
        )

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> TensorWork:
        for parts in inputs:
            self._check_one_per_rank("the list of inputs", parts)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._reduce_scatter(buffers, output, [buffers.at(t) for t in parts], opts, limit)
                for output, parts in zip(outputs, inputs, strict=True)
            ]

        return self._collective(start, [t for part in inputs for t in part], outputs, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any
    ) -> TensorWork:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> TensorWork:
        for output, given in zip(outputs, inputs, strict=True):
            self._check_multiple("the input of reduce_scatter", given, "its output", output)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            calls = []
            for output, given in zip(outputs, inputs, strict=True):
                parts = buffers.parts(given, [_bytes(output)] * self._size)
                calls.append(self._reduce_scatter(buffers, output, parts, opts, limit))
            return calls

        return self._collective(start, inputs, outputs, opts)

    def _reduce_scatter(
        self, buffers: Buffers, output: torch.Tensor, parts: list[Any], opts: Any, limit: float
    ) -> PendingCall:
        return self._group.reduce_to(
            "reduce_scatter",
            [(peer, parts[peer]) for peer in self._peers()],
            parts[self._rank],
            buffers.at(output),
            _element(output),
            _name_of(opts.reduceOp),
            limit,
            buffers,
        )

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> TensorWork:
        is_root = self._rank == opts.rootRank
        gathered = outputs[0] if is_root else []
        if is_root:
            self._check_one_per_rank("the list of outputs", gathered)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            mine = buffers.at(inputs[0])
            places = [buffers.at(t) for t in gathered]
            return [
                self._group.exchange(
                    "gather",
                    [] if is_root else [(opts.rootRank, mine)],
                    [(peer, places[peer]) for peer in self._peers()] if is_root else [],
                    [(mine, places[self._rank])] if is_root else [],
                    limit,
                    buffers,
                )
            ]

        return self._collective(start, inputs, gathered, opts)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> TensorWork:
        is_root = self._rank == opts.rootRank
        given = inputs[0] if is_root else []
        if is_root:
            self._check_one_per_rank("the list of inputs", given)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            mine = buffers.at(outputs[0])
            places = [buffers.at(t) for t in given]
            return [
                self._group.exchange(
                    "scatter",
                    [(peer, places[peer]) for peer in self._peers()] if is_root else [],
                    [] if is_root else [(opts.rootRank, mine)],
                    [(places[self._rank], mine)] if is_root else [],
                    limit,
                    buffers,
                )
            ]

        return self._collective(start, given, outputs, opts)

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> TensorWork:
        self._check_one_per_rank("the list of outputs", outputs)
        self._check_one_per_rank("the list of inputs", inputs)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            sent = [buffers.at(t) for t in inputs]
            return [self._all_to_all(buffers, sent, [buffers.at(t) for t in outputs], limit)]

        return self._collective(start, inputs, outputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> TensorWork:
        received = self._split_bytes("the output", output, output_splits)
        sent = self._split_bytes("the input", given, input_splits)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            places = buffers.parts(output, received)
            return [self._all_to_all(buffers, buffers.parts(given, sent), places, limit)]

        return self._collective(start, [given], [output], opts)

    def _all_to_all(
        self, buffers: Buffers, sent: list[Any], places: list[Any], limit: float
    ) -> PendingCall:
        return self._group.exchange(
            "all_to_all",
            [(peer, sent[peer]) for peer in self._peers()],
            [(peer, places[peer]) for peer in self._peers()],
            [(sent[self._rank], places[self._rank])],
            limit,
            buffers,
        )

    def barrier(self, opts: Any) -> TensorWork:
        def start(_buffers: Buffers, limit: float) -> list[PendingCall]:
            return [self._group.barrier(limit)]

        return self._collective(start, [], [], opts)

    # One tensor to one rank.

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> TensorWork:
        self._check_peer(dst)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [self._group.send(dst, buffers.at(t), tag, limit, buffers) for t in tensors]

        return self._tagged(start, tensors, [])

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> TensorWork:
        self._check_peer(src)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [self._group.receive(src, buffers.at(t), tag, limit, buffers) for t in tensors]

        return self._tagged(start, [], tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> TensorWork:
        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [self._group.receive(None, buffers.at(t), tag, limit, buffers) for t in tensors]

        return self._tagged(start, [], tensors)

    # What all of them have in common.

    def _peers(self) -> list[int]:
        return [peer for peer in range(self._size) if peer != self._rank]

    def _collective(
        self,
        start: Callable[[Buffers, float], list[PendingCall]],
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        opts: Any,
        results: Sequence[torch.Tensor] | None = None,
    ) -> TensorWork:
        buffers, limit = Buffers(reads, writes, results), self._limit(opts)
        self._collectives += 1
        # Collectives keep their order, whatever their device.
        deferred = buffers.on_gpu or self._worker.is_busy
        return CollectiveWork(lambda: start(buffers, limit), buffers, deferred, self._worker)

    def _tagged(
        self,
        start: Callable[[Buffers, float], list[PendingCall]],
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> TensorWork:
        buffers, limit = Buffers(reads, writes), self._limit(None)
        return TaggedWork(lambda: start(buffers, limit), buffers, buffers.on_gpu)

    def _limit(self, opts: Any) -> float:
        given = opts.timeout if opts is not None else timedelta(0)
        # PyTorch passes a negative time where the caller has passed none.
        chosen = given if given > timedelta(0) else self._options._timeout
        return chosen.total_seconds()

    def _check_peer(self, peer: int) -> None:
        if peer == self._rank or not 0 <= peer < self._size:
            raise Error(f"rank {peer} is no other rank of this group of {self._size}")

    def _check_one_per_rank(self, what: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != self._size:
            raise Error(f"{what} has {len(tensors)} tensors: pass one per rank, {self._size}")

    def _check_multiple(
        self, what: str, large: torch.Tensor, other: str, small: torch.Tensor
    ) -> None:
        if large.dtype != small.dtype or large.numel() != small.numel() * self._size:
            raise Error(
                f"{what} has {large.numel()} elements of {large.dtype}, {other} {small.numel()} of "
                f"{small.dtype}: it must have {self._size} times as many, of the same type"
            )

    def _split_bytes(self, what: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """How many bytes go to each rank, for a split of the first dimension."""
        length = tensor.shape[0] if tensor.dim() > 0 else 0
        if not splits:
            if length % self._size:
                raise Error(
                    f"{what} of all_to_all_single has length {length}: pass split sizes, or make it "
                    f"divisible by the {self._size} ranks"
                )
            splits = [length // self._size] * self._size
        if len(splits) != self._size or sum(splits) != length:
            raise Error(
                f"the split sizes {list(splits)} do not fit {what} of all_to_all_single, of length "
                f"{length}, and {self._size} ranks"
            )
        row = _bytes(tensor) // length if length else 0
        return [count * row for count in splits]


class _LeftGroup:
    """Stands for a group that was destroyed."""

    def __getattr__(self, _name: str) -> Any:
        raise Error("the process group has been destroyed: call init_process_group() again")


#: Groups that were shut down. Their C++ part may be used until the process ends.
_ended: list[QueleaBackend] = []


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _element(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name_of(reduce_op: Any) -> str:
    """The name of a `ReduceOp`, which is an object or a constant."""
    return getattr(reduce_op, "op", reduce_op).name.lower()


@atexit.register
def _leave_all() -> None:
    """Ends threads before Python ends: afterwards they could not."""
    for backend in list(_living):
        backend.shutdown()
