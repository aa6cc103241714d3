"""How the processes of a group of `torch.distributed` find each other: through PyTorch's store."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from quelea._core import Error, TensorGroup, TensorListener

#: The address of this machine that others connect to, where the one that is found is wrong.
HOST_VARIABLE = "QUELEA_HOST"

#: With 1, connections of a group may go to other machines, where they are plain.
INSECURE_VARIABLE = "QUELEA_INSECURE"


def listener(insecure: bool = False) -> TensorListener:
    """Where this process waits for others: on loopback, unless plain connections are asked for."""
    return TensorListener(insecure or os.environ.get(INSECURE_VARIABLE) == "1")


def _hosts(store: Any, towards: str | None) -> list[str]:
    """Where this machine can be reached: from the machine of a store, or of the name `towards`."""
    named = os.environ.get(HOST_VARIABLE)
    if named:
        return [named]
    while store is not None and not hasattr(store, "host"):
        store = getattr(store, "underlying_store", None)
    target = towards or getattr(store, "host", None) or os.environ.get("MASTER_ADDR")
    found = TensorListener.address_towards(target) if target else None
    # Without a name of the other machines: by this machine's own, or on it alone.
    return [found] if found else [socket.gethostname(), "127.0.0.1"]


def addresses(
    listener: TensorListener, store: Any = None, towards: str | None = None
) -> list[str]:
    """Where a listener of this process can be reached."""
    hosts = _hosts(store, towards)
    if listener.is_local and "127.0.0.1" not in hosts:
        # The other address tells ranks of another machine from those of this one.
        hosts = ["127.0.0.1", *hosts]
    return [f"{host}:{listener.port}" for host in hosts]


def connect(store: Any, rank: int, names: list[int], seconds: float) -> TensorGroup:
    """Connects all ranks of a group that share this store. `names` are their global ranks."""
    own = listener()
    if rank == 0:
        store.set("quelea/token", os.urandom(16).hex())
    store.set(f"quelea/{rank}", json.dumps(addresses(own, store)))
    found: list[list[str]] = []
    for other, name in enumerate(names):
        try:
            found.append(json.loads(store.get(f"quelea/{other}")))
        except Exception as error:
            raise Error(
                f"rank {name} has not come to this call within the time limit: all ranks of a "
                f"group must create it ({error})"
            ) from error
    token = bytes.fromhex(store.get("quelea/token").decode())
    return TensorGroup(own, rank, found, token, names, seconds)
