"""The life of a wrapped model: hooks are registered, a run starts, is replaced, ends."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from quelea import _checks, _optimizers, _pages
from quelea._active_run import ActiveRun
from quelea._backward import BackwardPass
from quelea._core import Group, Run
from quelea._flat import layout_of, vector_of
from quelea._gpu_memory import GpuMemory
from quelea._narrow import codec_of
from quelea._params import TrainedParams
from quelea._settings import WrapSettings
from quelea._step import OptimizerStep
from quelea._untrained import UntrainedTensors, gather, scatter

#: The wrapped model of this process.
current: Session | None = None


class Session:
    """A model and its optimizer in a run."""

    active: ActiveRun

    def __init__(
        self,
        group: Group,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: WrapSettings,
    ):
        self.group, self.model, self.optimizer, self.settings = group, model, optimizer, settings
        self.trained = TrainedParams(model)
        _checks.check_wrappable(optimizer, self.trained)
        self.untrained = UntrainedTensors(model, self.trained)
        self._agree()
        initial = self.trained.flattened()
        group.broadcast_vector("wrap()", vector_of(initial))
        self.untrained.broadcast(group)
        self.backward = BackwardPass(optimizer, settings.server_optimizer)
        self.step = OptimizerStep(self.backward)
        self.gpu_memory = GpuMemory(self.trained.device)
        #: Steps of earlier runs of this process, and of the processes that this one resumes.
        self._steps_of_earlier_runs = self._steps_resumed = 0
        self._open(initial)
        self._register_hooks()

    def _agree(self) -> None:
        """Raises if the ranks have different settings or models."""
        device = self.trained.device.type
        lines = [f"the settings {self.settings.config}", f"a model on the device type {device}"]
        for name, p in self.trained.named:
            lines.append(
                f"the parameter `{name}` of shape {tuple(p.shape)}, {layout_of(p)}, {p.dtype}"
            )
        self.group.agree("wrap()", lines)

    def _open(self, initial: torch.Tensor) -> None:
        """Starts a run from these parameters."""
        run = self._run(initial)
        run.set_learning_rate(_optimizers.learning_rate(self.optimizer))
        self.active = ActiveRun(run, self.settings.algorithm, self.trained)
        self._bind_state()
        self.backward.attach(self.active)
        self.step.attach(self.active)

    def _run(self, initial: torch.Tensor) -> Run:
        settings = self.settings

        def start(config: dict[str, Any]) -> Run:
            return Run(
                self.group,
                config,
                self.trained.shapes(),
                initial=vector_of(initial),
                state_vectors=len(settings.state),
                has_velocity=settings.has_velocity,
                page=None if _pages.live is None else _pages.live.served,
                records=None if _pages.records is None else str(_pages.records),
            )

        codec = codec_of(self.trained.params)
        if codec is not None and "codec" not in settings.config:
            try:
                return start({**settings.config, "codec": {"name": codec}})
            except ValueError:
                # Not every algorithm takes every codec; all ranks find the same.
                pass
        return start(settings.config)

    def _bind_state(self) -> None:
        active = self.active
        active.binding.bind_state(self.optimizer, self.settings.state, active.vectors)

    @property
    def steps_in_process(self) -> int:
        """Steps that the ranks have taken on average since `wrap`, as far as this one knows."""
        return self._steps_of_earlier_runs + self.active.run.global_step

    @property
    def global_step(self) -> int:
        """Steps that the ranks have taken on average since the training began."""
        return self._steps_resumed + self.steps_in_process

    def reopen(self, packed: torch.Tensor, global_step: int) -> None:
        """Replaces the run by one that starts from these parameters, together with all ranks."""
        initial, active = self.trained.unpacked(packed), self.active
        if not active.properties.own_start:
            self.group.mean("load_state_dict()", vector_of(initial), active.run)
        active.close()
        self._steps_of_earlier_runs = self.steps_in_process
        self._steps_resumed = global_step - self._steps_of_earlier_runs
        self._open(initial)

    def packed(self) -> torch.Tensor:
        """A copy of this rank's parameters in `float32`, as one vector on the CPU."""
        binding = self.active.binding
        binding.rebind_params()
        return self.trained.packed(binding.param_views)

    def finish(self) -> None:
        """Ends the run together with all other ranks."""
        try:
            self.check_between_steps("shutdown()")
        finally:
            for hook in self.hooks:
                hook.remove()
        self.active.close()

    def average(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Puts the mean over all ranks into the model; returns tensors with their old values."""
        narrow = self.active.binding.narrow
        narrow.absorb()
        saved = [(t, t.clone()) for t in narrow.tensors()]
        for tensors in ([self.active.flat.params], self.untrained.floats()):
            if not tensors:
                continue
            saved += [(t, t.detach().clone()) for t in tensors]
            flat = gather(tensors)
            self.group.mean("evaluate_model()", vector_of(flat), self.active.run)
            scatter(flat, tensors)
        narrow.refresh()
        return saved

    def check_between_steps(self, what: str) -> None:
        """Closes a step that was skipped; raises if `what` was called inside a backward pass."""
        self.step.close_skipped()
        _checks.check_outside_backward(what, self.active.cycle)

    # Hooks.

    def _register_hooks(self) -> None:
        def accumulated(index: int) -> Any:
            return lambda p: self.backward.accumulated(index, p)

        register = torch.Tensor.register_post_accumulate_grad_hook
        params = self.trained.params
        self.hooks: list[Any] = [register(p, accumulated(i)) for i, p in enumerate(params)]
        self.hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
        self.hooks.append(self.optimizer.register_step_post_hook(self._after_step))
        self.hooks.append(self.model.register_forward_pre_hook(_before_forward))
        self.hooks.append(self.optimizer.register_load_state_dict_post_hook(self._state_loaded))
        self.hooks.append(self.model.register_load_state_dict_post_hook(_params_loaded))
        self.hooks.append(register_optimizer_step_post_hook(self._any_stepped))

    def _before_step(self, _optimizer: Any, args: Any, kwargs: Any) -> None:
        """The script has called optimizer.step()."""
        _checks.check_no_closure(args, kwargs)
        _checks.check_trained_params(self.model, self.optimizer, self.trained)
        self.step.before()

    def _after_step(self, *_: Any) -> None:
        """The optimizer has run."""
        self.step.after()
        self.gpu_memory.note(self.active.run)

    def _any_stepped(self, stepped: torch.optim.Optimizer, *_: Any) -> None:
        """Some optimizer of the process has run."""
        turn = self.active.cycle.turn
        _checks.check_foreign_step(stepped, self.optimizer, turn, self.trained)

    def _state_loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        """The script has called optimizer.load_state_dict(), which creates new state."""
        self.check_between_steps("optimizer.load_state_dict()")
        self._bind_state()


# Hooks of the model are copied and saved with it: they must not hold the session.


def _params_loaded(module: torch.nn.Module, _keys: Any) -> None:
    """The script has called model.load_state_dict()."""
    session = current
    if session is None or module is not session.model or session.active.properties.reloadable:
        return
    warnings.warn(
        f"model.load_state_dict() after wrap(): {session.settings.algorithm} keeps models beside "
        "these parameters and would mix them with the loaded ones; load before wrap(), or call "
        "quelea.load_state_dict(quelea.state_dict()) at all ranks afterwards",
        stacklevel=3,
    )


@torch.compiler.disable
def _before_forward(module: torch.nn.Module, args: Any) -> None:
    """A new forward pass ends the step before it, whether that was taken or not."""
    session = current
    if session is not None and module is session.model and torch.is_grad_enabled():
        active = session.active
        _checks.check_backward_ended(active.cycle)
        active.cycle.start_forward()
        session.step.close_skipped()
        active.binding.narrow.absorb()
        session.backward.see_inputs(args)
        if active.step_delta is not None:
            active.step_delta.begin()
