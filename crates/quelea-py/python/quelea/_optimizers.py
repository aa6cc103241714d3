"""PyTorch optimizers: their configuration for servers, and their state."""

from __future__ import annotations

import itertools

import torch

from quelea._core import Error, Properties
from quelea._sharded import local, with_local

#: Options that all parameter groups must share where servers run the optimizer.
_SHARED = (
    "momentum",
    "dampening",
    "nesterov",
    "weight_decay",
    "betas",
    "eps",
    "amsgrad",
    "maximize",
)


#: The state of torch.optim.SGD with momentum.
VELOCITY = "momentum_buffer"


def to_quelea_config(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The configuration of quelea's optimizer that does the same; raises if there is none."""
    groups = optimizer.param_groups
    name = type(optimizer).__name__
    _check_groups(optimizer, (*_SHARED, "lr"))
    group = groups[0]
    if group.get("amsgrad") or group.get("maximize") or group.get("dampening"):
        raise Error(
            f"{name} with amsgrad, maximize or dampening cannot run at the servers of this "
            "algorithm: disable them, or use an algorithm whose workers run the optimizer"
        )
    if type(optimizer) is torch.optim.SGD:
        keys = {key: group[key] for key in ("momentum", "nesterov", "weight_decay")}
        return {"name": "sgd", **keys}
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        beta1, beta2 = group["betas"]
        decoupled = type(optimizer) is torch.optim.AdamW or group.get("decoupled_weight_decay")
        return {
            "name": "adamw" if decoupled else "adam",
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": group["eps"],
            "weight_decay": group["weight_decay"],
        }
    raise Error(
        f"the servers of this algorithm run the optimizer, and they do not have {name}: pass "
        'server_optimizer={"name": "sgd", "momentum": 0.9} (or "adam", "adamw"), or use an '
        "algorithm whose workers run the optimizer"
    )


def _check_groups(optimizer: torch.optim.Optimizer, keys: tuple[str, ...]) -> None:
    groups = optimizer.param_groups
    for group, key in itertools.product(groups[1:], keys):
        if group.get(key) != groups[0].get(key):
            raise Error(
                f"{type(optimizer).__name__} has parameter groups with different `{key}`, and the "
                "servers of this algorithm have one for all: give all groups the same, or use an "
                "algorithm whose workers run the optimizer"
            )


def check_server_optimizer(optimizer: torch.optim.Optimizer, known: dict[str, object]) -> None:
    """Raises if the optimizer is no longer what the servers know of it; only its learning rates are
    checked if that is nothing, because they have their own."""
    if not known:
        return _check_groups(optimizer, ("lr",))
    now = to_quelea_config(optimizer)
    if now != known:
        key = next(key for key in now if now[key] != known.get(key))
        raise Error(
            f"`{key}` of the optimizer was {known.get(key)} at wrap() and is {now[key]} now, but "
            "the servers of this algorithm follow only the learning rate: do not change it "
            "(OneCycleLR: cycle_momentum=False), or use an algorithm whose workers run the "
            "optimizer"
        )


def check_requirement(
    optimizer: torch.optim.Optimizer, algorithm: str, properties: Properties
) -> None:
    """Raises if the algorithm cannot be trained with this optimizer."""
    fits = not properties.needs_sgd or isinstance(optimizer, torch.optim.SGD)
    momentum = [group["momentum"] for group in optimizer.param_groups if "momentum" in group]
    if fits and not (properties.refuses_momentum and any(momentum)):
        return
    given = f"{type(optimizer).__name__}" + (f" with momentum={momentum[0]}" if fits else "")
    raise Error(f"{algorithm} cannot use {given}: {properties.optimizer_reason}")


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of the current step."""
    return float(optimizer.param_groups[0].get("lr", 0.0))


def state_names(optimizer: torch.optim.Optimizer) -> list[str]:
    """The vectors of the optimizer's state that algorithms can average, reset or replace; empty if
    this optimizer is not supported."""
    group = optimizer.param_groups[0]
    if type(optimizer) is torch.optim.SGD:
        return [VELOCITY] if group["momentum"] and not group["dampening"] else []
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and not group["amsgrad"]:
        return ["exp_avg", "exp_avg_sq"]
    return []


def bind_state(
    optimizer: torch.optim.Optimizer,
    params: list[torch.nn.Parameter],
    vectors: dict[str, list[torch.Tensor]],
) -> None:
    """Replaces the state of the optimizer by these views: by name, one for each parameter."""
    for index, p in enumerate(params):
        state = optimizer.state[p]
        if "exp_avg" in vectors:
            state.setdefault("step", torch.tensor(0.0))
        for name, views in vectors.items():
            before = state.get(name)
            if before is None:
                views[index].zero_()
            elif local(before) is not views[index]:
                views[index].copy_(local(before))
            state[name] = with_local(p, views[index])
