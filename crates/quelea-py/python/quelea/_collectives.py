"""The collectives of `torch.distributed` as calls of the Rust side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from quelea._buffers import Buffers
from quelea._core import Error, PendingCall
from quelea._work import CollectiveWork, TaggedWork, TensorWork, Worker


class TensorCollectives:
    """What a backend does with tensors. PyTorch's C++ side calls the methods without an underscore."""

    _group: Any
    _options: Any
    _rank: int
    _size: int
    _collectives: int
    _worker: Worker

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> TensorWork:
        reduction = _name_of(opts.reduceOp)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._group.all_reduce(buffers.at(t), _element(t), reduction, limit, buffers)
                for t in tensors
            ]

        return self._collective(start, tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> TensorWork:
        """Short tensors of one type travel as one."""
        reduction, runs = _name_of(opts.reduceOp), _short_runs(tensors)

        def start(buffers: Buffers, limit: float) -> list[PendingCall]:
            return [
                self._group.all_reduce(buffers.at_joined(run), _element(run[0]), reduction, limit, buffers)
                for run in runs
            ]

        return self._collective(start, tensors, tensors, opts)

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


#: Up to so many bytes are joined: copying them takes less than another exchange.
_JOINED_BYTES = 1 << 20


def _short_runs(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors in their order; those of one type whose bytes are few are together."""
    runs: list[list[torch.Tensor]] = []
    for tensor in tensors:
        last = runs[-1] if runs else []
        is_short = sum(map(_bytes, last)) + _bytes(tensor) <= _JOINED_BYTES
        if last and is_short and last[0].dtype == tensor.dtype and last[0].device == tensor.device:
            last.append(tensor)
        else:
            runs.append([tensor])
    return runs


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _element(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name_of(reduce_op: Any) -> str:
    """The name of a `ReduceOp`, which is an object or a constant."""
    return getattr(reduce_op, "op", reduce_op).name.lower()
