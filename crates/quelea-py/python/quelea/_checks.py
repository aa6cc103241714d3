"""Checks for wrong use. Every error says what to do instead."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from quelea._active_run import ActiveRun
from quelea._core import Error, Properties
from quelea._params import TrainedParams
from quelea._turn import StepCycle, Turn

SECOND_BACKWARD = (
    "backward() was called twice before optimizer.step(): put all but the last backward pass of a "
    "step into `with quelea.no_sync():`, call the model as a whole, and use "
    "torch.utils.checkpoint.checkpoint() with use_reentrant=False"
)


def check_wrappable(
    optimizer: torch.optim.Optimizer, trained: TrainedParams, replicas: list[int] | None
) -> None:
    """Raises if `wrap` does not support this model with this optimizer, between these replicas of shards."""
    if not trained.params:
        raise Error("the model has no parameter that requires a gradient: nothing to train")
    trained.shards.check(trained.named, replicas)
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    device = trained.device
    for name, p in trained.named:
        if id(p) not in owned:
            raise Error(
                f"the optimizer does not have the parameter `{name}`: create the optimizer from "
                "model.parameters() of this model, or freeze it with requires_grad_(False)"
            )
        if p.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise Error(
                f"the parameter `{name}` is {p.dtype}: parameters must be torch.float32, "
                "torch.bfloat16 or torch.float16; convert it before wrap()"
            )
        if p.device != device:
            raise Error(
                f"the parameter `{name}` is on {p.device}, others are on {device}: all parameters "
                "must be on one device"
            )
    if device.type not in ("cpu", "cuda"):
        raise Error(f"the model is on {device}: supported are the CPU and CUDA")
    for group in optimizer.param_groups:
        if any(p.requires_grad and id(p) not in trained.ids for p in group["params"]):
            raise Error(
                "the optimizer has parameters that are not the model's and would not be "
                "exchanged: create it from model.parameters()"
            )


def check_not_shared(trained: TrainedParams, others: list[TrainedParams]) -> None:
    """Raises if another wrapped model of this process trains one of these parameters."""
    for name, p in trained.named:
        if any(id(p) in other.ids for other in others):
            raise Error(
                f"the parameter `{name}` belongs to another wrapped model, which trains it: freeze it in one "
                "of them, or wrap a module that has both"
            )


def check_loss(properties: Properties, algorithm: str, loss: float) -> None:
    """Raises if the algorithm needs the loss of the step and does not have it."""
    if properties.needs_loss and math.isnan(loss):
        raise Error(
            f"{algorithm} needs the loss of every step: call quelea.report_loss(loss) before "
            "loss.backward()"
        )


def check_no_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises if optimizer.step() was given a closure."""
    if any(callable(a) for a in args) or callable(kwargs.get("closure")):
        raise Error(
            "optimizer.step(closure) computes gradients inside the step, where they cannot be "
            "exchanged: call backward() first and step() without a closure"
        )


def check_trained_params(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, trained: TrainedParams
) -> None:
    """Raises if the optimizer trains parameters that were not trained at wrap()."""
    for p in itertools.chain.from_iterable(g["params"] for g in optimizer.param_groups):
        if p.requires_grad and id(p) not in trained.ids:
            name = next((n for n, q in model.named_parameters() if q is p), "?")
            raise Error(
                f"the parameter `{name}` is trained now but was not at wrap(), so that it is not "
                "exchanged: call quelea.shutdown() and quelea.wrap() again at all ranks"
            )


def check_step_has_gradient(cycle: StepCycle, params: list[torch.nn.Parameter]) -> None:
    """Raises if optimizer.step() would use a gradient that was not handed over."""
    if not cycle.turn.awaits_gradient:
        return
    if cycle.closed_by_forward:
        raise Error(
            "a forward pass came between backward() and optimizer.step(), which ends the step: "
            "put it under torch.no_grad(), or after the step"
        )
    if any(p.grad is not None for p in params):
        raise Error(
            "optimizer.step() without a gradient that was exchanged: the last backward pass "
            "before a step must be outside no_sync()"
        )


def check_gradients_unchanged(active: ActiveRun) -> None:
    """Raises if gradients were changed after they were sent to servers."""
    if active.flat.grads._version != active.grads_version:
        raise Error(
            f"gradients were changed between backward() and step(), but {active.algorithm} sends "
            "them to its servers inside backward(): do not clip or scale them (bfloat16 needs no "
            "GradScaler), or use an algorithm whose workers run the optimizer"
        )


def check_foreign_step(
    stepped: torch.optim.Optimizer,
    own: torch.optim.Optimizer,
    turn: Turn,
    trained: TrainedParams,
) -> None:
    """Raises if another optimizer has moved the parameters during a step. (One that contains the
    own one has called its step(), and the turn is over.)"""
    if stepped is own or not turn.runs_optimizer:
        return
    if any(id(p) in trained.ids for group in stepped.param_groups for p in group["params"]):
        raise Error(
            "another optimizer than the one given to wrap() has moved the parameters, and the "
            "other ranks do not see its step: call quelea.shutdown(), then quelea.wrap() with it"
        )


def check_backward_ended(cycle: StepCycle) -> None:
    """Raises if an exception has ended the last backward pass."""
    if cycle.turn is Turn.BACKWARD and torch._C._current_graph_task_id() == -1:
        raise Error(
            "an exception has ended the last backward pass, and a part of its gradient may be "
            "with the other ranks: the run cannot continue"
        )


def check_outside_backward(what: str, cycle: StepCycle) -> None:
    """Raises if `what` was called inside a backward pass."""
    if cycle.turn is Turn.BACKWARD:
        check_backward_ended(cycle)
        raise Error(f"{what} was called inside a backward pass: call it between two steps")
