"""The arguments of `wrap` as a configuration of quelea."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quelea import _core, _optimizers
from quelea._core import Error, Properties


@dataclass(frozen=True)
class WrapSettings:
    """What a run needs beside the model and its optimizer."""

    #: The configuration, as a run file has it.
    config: dict[str, Any]
    #: The vectors of the optimizer's state that the algorithm averages, resets or replaces.
    state: list[str]
    #: The optimizer as servers know it, which must not change; empty if they have their own, and
    #: None if they have none.
    server_optimizer: dict[str, object] | None

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        name: str = self.config["algorithm"]["name"]
        return name

    @property
    def has_velocity(self) -> bool:
        """Whether the first vector of the state is the velocity of momentum."""
        return self.state == [_optimizers.VELOCITY]


def settings_of(
    config: dict[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    server_optimizer: dict[str, Any] | None,
) -> WrapSettings:
    """Adds to `config` what follows from the model, its optimizer and the algorithm."""
    config = {key: value for key, value in config.items() if value is not None}
    properties, algorithm = _core.properties(config), config["algorithm"]["name"]
    if not properties.plain_sgd:  # The servers' configuration says that one.
        _optimizers.check_requirement(optimizer, algorithm, properties)
    if properties.reads_gradient and not properties.servers_optimize:
        # A gradient scaler finds the infinities that it makes, and skips the step.
        config.setdefault("trust", {"poison": "ignore"})
    state = _state(properties, algorithm, model, optimizer)
    known = _server_optimizer(properties, algorithm, optimizer, server_optimizer)
    if known is not None:
        config["optimizer"] = server_optimizer or known
        _optimizers.check_server_optimizer(optimizer, known)
    return WrapSettings(config, state, known)


def _server_optimizer(
    properties: Properties,
    algorithm: str,
    optimizer: torch.optim.Optimizer,
    given: dict[str, Any] | None,
) -> dict[str, object] | None:
    if properties.servers_optimize:
        return {} if given else _optimizers.to_quelea_config(optimizer)
    if given is not None:
        raise Error(
            f"server_optimizer = {given}: {algorithm} runs the optimizer at the workers; leave the "
            "argument out"
        )
    return _optimizers.to_quelea_config(optimizer) if properties.plain_sgd else None


def _state(
    properties: Properties,
    algorithm: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> list[str]:
    if not (properties.replaces_velocity or properties.synchronizes_state):
        return []
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    is_wide = all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    names = _optimizers.state_names(optimizer) if on_cpu and is_wide else []
    if properties.replaces_velocity and names != [_optimizers.VELOCITY]:
        raise Error(
            f"{algorithm} replaces the momentum inside the optimizer: it needs torch.optim.SGD "
            "with momentum and without dampening, and float32 parameters, on the CPU"
        )
    if not names:
        raise Error(
            f"{algorithm} with these options averages or resets the optimizer's state, which is "
            "supported for SGD with momentum, Adam and AdamW with float32 parameters on the CPU; use "
            'buffers="keep"'
        )
    return names
