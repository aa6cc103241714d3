"""quelea as a backend of ``torch.distributed``.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("quelea")            # doctest: +SKIP

PyTorch finds it by the entry point ``torch.distributed.backends`` of the package; where the package
is only on the path, call `register` first. Devices are the CPU and CUDA, whose tensors travel through
pinned memory of the host.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from quelea._core import Error

__all__ = ["register"]

#: The first PyTorch whose C++ side calls methods of a backend that is written in Python.
_FIRST_VERSION = (2, 15)


def register() -> None:
    """Makes the backend known to PyTorch; a second call does nothing."""
    if not dist.is_available():
        raise Error("this PyTorch is built without torch.distributed: install one that has it")
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _FIRST_VERSION:
        raise Error(
            f"PyTorch {torch.__version__} cannot load backends that are written in Python: use "
            "PyTorch 2.15 or later, or quelea.wrap() with init_process_group('gloo')"
        )
    if "quelea" not in dist.Backend.backend_list:
        dist.Backend.register_backend("quelea", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _backend_options: object) -> Any:
    from quelea._backend import QueleaBackend

    names = list(options.global_ranks_in_group) or list(range(options.group_size))
    return QueleaBackend(
        options.store, options.group_rank, names, options.timeout, options.enable_reconfigure
    )
