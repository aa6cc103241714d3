"""The process group of `torch.distributed`: its methods are called by PyTorch's C++ side."""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from quelea import _mesh
from quelea._collectives import TensorCollectives
from quelea._core import Error, TensorGroup, TensorListener
from quelea._work import TensorWork, Worker

#: How long a group that is destroyed waits until its last bytes are written.
_LEAVE_SECONDS = 30.0

#: All groups that were not shut down. PyTorch's C++ side has a pointer to the C++ part of a backend
#: and calls its Python part: without a reference of Python's own, that part would be freed first.
_living: list[QueleaBackend] = []


class QueleaBackend(TensorCollectives, Backend):
    """One process's end of a group. All ranks must call collectives in the same order."""

    def __init__(
        self,
        store: Any,
        rank: int,
        names: Sequence[int],
        timeout: timedelta,
        enable_reconfigure: bool = False,
    ):
        super().__init__(rank, len(names))
        self._store, self._names = store, list(names)
        self._options = Backend.Options("quelea", timeout)
        self._options.global_ranks_in_group = self._names
        self._rank, self._size = rank, len(names)
        self._worker = Worker()
        self._collectives = self._descendants = 0
        self._listener: TensorListener | None = None
        self._group: Any = (
            _Unconnected("is not connected yet: call reconfigure() at all ranks first")
            if enable_reconfigure
            else _mesh.connect(store, rank, self._names, timeout.total_seconds())
        )
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

    # PyTorch's own properties call those of the Python part, and these would be themselves.

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

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
            self._group = _Unconnected("has been destroyed: call init_process_group() again")
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
            self._group.abandon("the process group is shrinking")
        return self._descendant(remaining, "shrink", timeout)

    def get_reconfigure_handle(self) -> str:
        if self._listener is None:
            self._listener = _mesh.listener()
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
        self._group.abandon("the process group is being reconfigured")
        self._group = TensorGroup(
            listener,
            rank,
            [json.loads(handle) for handle in handles],
            token,
            self._names,
            limit.total_seconds(),
        )
        return self.barrier(None)


class _Unconnected:
    """Stands for a group that has no connections, and says why."""

    def __init__(self, reason: str):
        self._reason = reason

    def leave(self, _seconds: float) -> None:
        """There is nobody to leave."""

    def abort(self, _reason: str) -> None:
        """Nothing is under way."""

    def abandon(self, _reason: str) -> None:
        """Nothing is under way."""

    def __getattr__(self, _name: str) -> Any:
        raise Error(f"the process group {self._reason}")


#: Groups that were shut down. Their C++ part may be used until the process ends.
_ended: list[QueleaBackend] = []


@atexit.register
def _leave_all() -> None:
    """Ends threads before Python ends: afterwards they could not."""
    for backend in list(_living):
        backend.shutdown()
