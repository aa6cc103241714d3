"""What a run resumes from: one rank's state, and checkpoints of `torch.distributed.checkpoint`."""

from __future__ import annotations

from typing import Any

import torch

from quelea._core import Error
from quelea._flat import vector_of
from quelea._session import Session
from quelea._sharded import is_sharded, local, with_local


def _wrapped(what: str, model: torch.nn.Module | None) -> Session:
    # quelea.torch imports this file.
    from quelea.torch import _wrapped

    return _wrapped(what, model)


def state_dict(model: torch.nn.Module | None = None) -> dict[str, Any]:
    """What this rank needs to resume: its own parameters, which in gossip differ between ranks.

    Save it at every rank, beside ``optimizer.state_dict()``.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "d-psgd")
    >>> state = quelea.state_dict()
    >>> state["algorithm"], state["rank"], state["params"].numel()
    ('d-psgd', 0, 3)
    """
    session = _wrapped("state_dict()", model)
    session.check_between_steps("state_dict()")
    return {
        "algorithm": session.settings.algorithm,
        "rank": session.exchange.processes.rank,
        "world_size": session.exchange.processes.world_size,
        "global_step": session.global_step,
        "params": session.packed(),
    }


def load_state_dict(state: dict[str, Any], model: torch.nn.Module | None = None) -> None:
    """Resumes from what `state_dict` returned, at all ranks together.

    In most gossip algorithms every rank resumes from its own parameters; in all others the ranks
    start from the mean. What an algorithm keeps beside the parameters (trackers, corrections,
    push-sum weights, servers' models) is reset. In a process that has just joined a run it does nothing: the
    others are further.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "d-psgd")
    >>> state = quelea.state_dict()
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> quelea.load_state_dict(state)
    >>> bool((model.weight != 0).all())
    True
    """
    session = _wrapped("load_state_dict()", model)
    session.check_between_steps("load_state_dict()")
    for key, mine in (("world_size", session.exchange.processes.world_size), ("rank", session.exchange.processes.rank)):
        if state[key] != mine:
            raise Error(f"the state has {key} {state[key]}, this process has {key} {mine}")
    count = session.trained.count
    if state["params"].numel() != count:
        raise Error(f"the state has {state['params'].numel()} parameters, the model {count}")
    # States of earlier versions have no step.
    session.reopen(state["params"], state.get("global_step", session.global_step))


class RunState:
    """A run for `torch.distributed.checkpoint`: parameters and optimizer state, with as many ranks as you like.

    ``dcp.save({"run": RunState(model)}, checkpoint_id=path)`` saves at all ranks together. ``dcp.load({"run":
    RunState(model, saved=path)}, checkpoint_id=path)`` loads; `saved` is the path, or the storage reader, and `key`
    the name under which the run was saved, if there are several. With as many replicas as were saved, every rank resumes from its own parameters where the algorithm allows it, and from
    its own optimizer state; with another number all start from the means of both. What the algorithm keeps
    beside them is reset.

    >>> import tempfile, torch, torch.distributed.checkpoint as dcp, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, "d-psgd")
    >>> with tempfile.TemporaryDirectory() as path:
    ...     _ = dcp.save({"run": quelea.RunState(model)}, checkpoint_id=path, no_dist=True)
    ...     _ = torch.nn.init.zeros_(model.weight)
    ...     dcp.load({"run": quelea.RunState(model, saved=path)}, checkpoint_id=path, no_dist=True)
    >>> bool((model.weight != 0).all())
    True
    """

    def __init__(
        self, model: torch.nn.Module | None = None, saved: Any = None, key: str | None = None
    ):
        self._session, self._saved, self._key = _wrapped("RunState()", model), saved, key

    def state_dict(self) -> dict[str, Any]:
        """What is saved; or, with `saved`, room for what was saved."""
        session = self._session
        session.check_between_steps("RunState.state_dict()")
        _check_process_group(session)
        if self._saved is not None:
            return self._room()
        own = {"optimizer": _optimizer_state(session)}
        if session.active.properties.own_start:
            own["params"] = _params(session)
        mean = {"params": _params(session), "optimizer": _optimizer_state(session)}
        return {
            "algorithm": session.settings.algorithm,
            "replicas": session.group.world_size,
            "global_step": session.global_step,
            "mean": _averaged(session, mean),
            _replica(session): own,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from what was saved, at all ranks together."""
        session = self._session
        if state["algorithm"] != session.settings.algorithm:
            raise Error(
                f"the checkpoint is of {state['algorithm']}, the run of {session.settings.algorithm}: wrap the "
                "model with the same algorithm"
            )
        same = state["replicas"] == session.group.world_size
        own = state.get(_replica(session), {}) if same else {}
        chosen = {**state["mean"], **own}
        params = chosen["params"]
        parts = [local(params[name]).detach().float().flatten().cpu() for name in session.trained.names]
        session.reopen(torch.cat(parts), state["global_step"])
        _set_optimizer_state(session, chosen.get("optimizer", {}))

    def _room(self) -> dict[str, Any]:
        """Tensors of the saved sizes under the saved names, for what this rank loads."""
        from torch.distributed.checkpoint import FileSystemReader

        session, reader = self._session, self._saved
        if not hasattr(reader, "read_metadata"):
            reader = FileSystemReader(reader)
        keys = reader.read_metadata().state_dict_metadata
        prefix = self._prefix(list(keys))
        saved = {key[len(prefix) :]: kept for key, kept in keys.items() if key.startswith(prefix)}
        replicas = {key.split(".")[0] for key in saved if key.startswith("replica_")}
        room: dict[str, Any] = {"algorithm": "", "replicas": 0, "global_step": 0}
        wanted = ["mean"]
        if len(replicas) == session.group.world_size:
            wanted.append(_replica(session))
        for key, kept in saved.items():
            part, _, rest = key.partition(".")
            kind, _, name = rest.partition(".")
            if part in wanted:
                place = room.setdefault(part, {}).setdefault(kind, {})
                place[name] = _room_for(session, kind, name, kept)
        return room

    def _prefix(self, keys: list[str]) -> str:
        """What the names of this run start with."""
        end = ".mean.params." + self._session.trained.names[0]
        found = [key[: -len(end)] for key in keys if key.endswith(end)]
        found = sorted(name for name in found if self._key in (None, name))
        if len(found) == 1:
            return f"{found[0]}."
        if not found:
            raise Error(
                f"{self._saved} has no run of this model: save it with dcp.save({{NAME: quelea.RunState(model)}})"
            )
        raise Error(f"{self._saved} has the runs {', '.join(found)}: say which one by key=…")


def _check_process_group(session: Session) -> None:
    ready = torch.distributed.is_initialized()
    count = session.exchange.processes.world_size
    if count > 1 and not (ready and torch.distributed.get_world_size() == count):
        raise Error(
            "torch.distributed.checkpoint writes one checkpoint of all ranks only where torch.distributed has all "
            'of them: call torch.distributed.init_process_group("quelea") (or "gloo") first'
        )


def _replica(session: Session) -> str:
    return f"replica_{session.group.rank}"


def _params(session: Session) -> dict[str, Any]:
    """A copy of the parameters in float32, as the rank has them."""
    binding = session.active.binding
    binding.rebind_params()
    each = zip(session.trained.named, binding.param_views, strict=True)
    return {name: with_local(p, view.detach().clone()) for (name, p), view in each}


def _optimizer_state(session: Session) -> dict[str, Any]:
    """A copy of the optimizer's state: `PARAMETER/NAME`, without the dots that separate names elsewhere."""
    found: dict[str, Any] = {}
    for name, p in session.trained.named:
        for key, value in session.optimizer.state.get(p, {}).items():
            kept = value.detach().clone() if isinstance(value, torch.Tensor) else value
            found[f"{name}/{key}"] = kept
    return found


def _averaged(session: Session, state: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Replaces the floats by their mean over all replicas."""
    each = [value for part in state.values() for value in part.values()]
    tensors = [local(value) for value in each if isinstance(value, torch.Tensor)]
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel() > 0]
    flat = torch.cat([tensor.flatten().float().cpu() for tensor in floats])
    session.group.mean("RunState.state_dict()", vector_of(flat), session.active.run)
    for tensor, mean in zip(floats, flat.split([t.numel() for t in floats]), strict=True):
        tensor.copy_(mean.view(tensor.shape))
    return state


def _room_for(session: Session, kind: str, name: str, kept: Any) -> Any:
    size = getattr(kept, "size", None)
    if size is None:
        return None
    p = dict(session.trained.named).get(name if kind == "params" else name.rpartition("/")[0])
    dtype = kept.properties.dtype
    if p is not None and is_sharded(p) and size == p.shape:
        return with_local(p, torch.zeros_like(local(p), dtype=dtype))
    return torch.zeros(size, dtype=dtype)


def _set_optimizer_state(session: Session, loaded: dict[str, Any]) -> None:
    params = dict(session.trained.named)
    for key, value in loaded.items():
        name, _, entry = key.rpartition("/")
        p = params.get(name)
        if p is None:
            raise Error(f"the checkpoint has a state of `{name}`, which this model does not train")
        # Counters stay on the CPU, where optimizers keep them.
        if isinstance(value, torch.Tensor) and value.dim() > 0 and not is_sharded(value):
            value = value.to(p.device)
        session.optimizer.state[p][entry] = value
    session.bind_state()
