"""The life of a wrapped model: hooks are registered, a run starts, is replaced, ends."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from quelea import _checks, _launched, _optimizers, _pages
from quelea._active_run import ActiveRun
from quelea._backward import BackwardPass
from quelea._core import Error, Run
from quelea._exchange import Exchange
from quelea._flat import layout_of, vector_of
from quelea._gpu_memory import GpuMemory
from quelea._joined import JoinedState
from quelea._leaving import Notice
from quelea._narrow import codec_of
from quelea._params import TrainedParams
from quelea._settings import WrapSettings
from quelea._sharded import local
from quelea._step import OptimizerStep
from quelea._untrained import UntrainedTensors, gather, scatter

if TYPE_CHECKING:
    from quelea._balance import Balancer

#: The wrapped models of this process, in the order of `wrap`.
sessions: list[Session] = []


def session_of(model: torch.nn.Module) -> Session | None:
    """The session of a wrapped model."""
    return next((session for session in sessions if session.model is model), None)


def chosen(what: str, model: torch.nn.Module | None) -> Session:
    """The session of `model`, or the only one; raises if there is none or the choice is open."""
    if not sessions:
        raise Error(f"{what} needs a wrapped model: call quelea.wrap(model, optimizer, …) first")
    if model is None and len(sessions) > 1:
        raise Error(f"{len(sessions)} models are wrapped: say which one {what} is for by model=…")
    found = sessions[0] if model is None else session_of(model)
    if found is None:
        raise Error(f"the model given to {what} is not wrapped: pass what was given to quelea.wrap()")
    return found


def _free_records() -> Path | None:
    """The folder of records, or one in it: models that train at once have folders of their own."""
    folder, number = _pages.records, 1
    while folder is not None and any(session._records == folder for session in sessions):
        number += 1
        folder = _pages.records and _pages.records / f"model-{number}"
    return folder

#: A process that is silent for less is not suspected. One that ends is noticed at once; scripts share their machine
#: with data loaders and compilers, and a false suspicion costs a restart.
SILENCE_FLOOR_SECONDS = 10.0


def membership(on_loss: str, min_workers: int) -> dict[str, Any]:
    """What a run file says in ``[membership]``."""
    return {
        "on_loss": on_loss,
        "min_workers": min_workers,
        "silence_floor_seconds": SILENCE_FLOOR_SECONDS,
    }


class Session:
    """A model and its optimizer in a run."""

    active: ActiveRun

    def __init__(
        self,
        exchange: Exchange,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: WrapSettings,
        balancer: Balancer | None = None,
    ):
        self.exchange, self.group = exchange, exchange.group
        self.model, self.optimizer, self.settings = model, optimizer, settings
        self.trained = TrainedParams(model)
        _checks.check_wrappable(optimizer, self.trained, exchange.replicas)
        _checks.check_not_shared(self.trained, [other.trained for other in sessions])
        exchange.check_state(settings.state, settings.algorithm)
        #: Where rank 0 writes what is measured.
        self._records = _free_records()
        self.untrained = UntrainedTensors(model, self.trained)
        self.described = self._described()
        initial = self.trained.flattened()
        is_late = self.group.is_late
        if not is_late:
            self.group.agree("wrap()", self.described)
            self.group.broadcast_vector("wrap()", vector_of(initial))
            self.untrained.broadcast(self.group)
        self.backward = BackwardPass(optimizer, settings.server_optimizer)
        self.step = OptimizerStep(self.backward)
        #: What divides the work among unequal ranks.
        self.balancer = self.backward.balancer = balancer
        self.gpu_memory = GpuMemory(self.trained.device)
        #: Steps of earlier runs of this process, and of the processes that this one resumes.
        self._steps_of_earlier_runs = self._steps_resumed = 0
        #: What a process that has joined a run began with, until its first step.
        self.joined: JoinedState | None = None
        #: With what data that run began, where its ranks share them.
        self.joined_data: tuple[list[int], int] | None = None
        self._open(initial)
        if is_late:
            self._take_over()
        self._register_hooks()
        self.notice = Notice(self)

    def _described(self) -> list[str]:
        """Settings and model, which must be the same at all ranks."""
        device = self.trained.device.type
        lines = [f"the settings {self.settings.config}", f"a model on the device type {device}"]
        for name, p in self.trained.named:
            own = local(p)
            lines.append(
                f"the parameter `{name}` of shape {tuple(own.shape)}, {layout_of(own)}, {p.dtype}"
            )
        return lines

    def _open(self, initial: torch.Tensor) -> None:
        """Starts a run from these parameters."""
        run = self._run(initial)
        run.set_learning_rate(_optimizers.learning_rate(self.optimizer))
        self.active = ActiveRun(
            run, self.settings.algorithm, self.trained, self.exchange, self._save
        )
        rank, continues = self.exchange.processes.rank, self.settings.continues
        _launched.note_run(rank, continues, self.active.run.survives)
        self.trained.shards.reshard()
        self.bind_state()
        self.backward.attach(self.active)
        self.step.attach(self.active)
        if self.balancer is not None:
            self.balancer.restart()

    def _run(self, initial: torch.Tensor) -> Run:
        settings, part = self.settings, self.exchange.part(initial)

        def start(config: dict[str, Any]) -> Run:
            return Run(
                self.group,
                config,
                self.exchange.shapes(self.trained),
                initial=vector_of(part),
                state_vectors=len(settings.state),
                has_velocity=settings.has_velocity,
                described=self.described,
                restarts=_launched.restarts(),
                page=None if _pages.live is None else _pages.live.served,
                records=None if self._records is None else str(self._records),
            )

        codec = codec_of(self.trained.params)
        if codec is not None and "codec" not in settings.config:
            try:
                return start({**settings.config, "codec": {"name": codec}})
            except ValueError:
                # Not every algorithm takes every codec; all ranks find the same.
                pass
        return start(settings.config)

    def _save(self) -> bytes:
        """What a process that joins needs besides the vectors of this rank."""
        steps_before = self._steps_of_earlier_runs + self._steps_resumed
        sampler = self.step.sampler
        data = None if sampler is None else sampler.start()
        return JoinedState.save(self.optimizer, self.untrained, steps_before, data)

    def _take_over(self) -> None:
        """Begins where the others are, after this process has joined their run."""
        state = self.active.run.joined_state
        if state is None:
            raise Error("internal error in quelea: the others' state did not come with the run")
        self.joined = JoinedState(state, self.active.flat.params)
        self._steps_resumed = self.joined.steps_before
        self.joined_data = self.joined.data
        self.restore_joined()

    def restore_joined(self) -> None:
        """Puts the state with which this process has joined into model and optimizer."""
        # None meanwhile: the optimizer's hook calls this too.
        joined, self.joined = self.joined, None
        if joined is not None:
            narrow = self.active.binding.narrow
            self.active.flat.params.copy_(joined.params)
            narrow.refresh()
            self.trained.shards.reshard()
            joined.restore(self.optimizer, self.untrained)
            self.bind_state()
            self.active.run.set_learning_rate(_optimizers.learning_rate(self.optimizer))
        self.joined = joined

    def bind_state(self) -> None:
        """Makes the optimizer's state that the algorithm works on views of the rank's vectors."""
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

    @property
    def start_step(self) -> int:
        """The step with which this process began, or resumed."""
        return self._steps_resumed + self._steps_of_earlier_runs + self.active.run.start_step

    def reopen(self, packed: torch.Tensor, global_step: int) -> None:
        """Replaces the run by one that starts from these parameters, together with all ranks. A process that
        has just joined has the state of the others, who are further."""
        if self.joined is not None:
            return
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
        has_left = self.active.run.has_left
        try:
            if not has_left:
                self.check_between_steps("shutdown()")
        finally:
            self.notice.close()
            for hook in self.hooks:
                hook.remove()
        if has_left:
            self.active.flat.close()
        else:
            self.active.close()
        _launched.note_end(self.exchange.processes.rank)

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
        self.trained.shards.reshard()
        return saved

    def restore(self, saved: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Gives the model back what `average` has returned."""
        for tensor, value in saved:
            tensor.copy_(value)
        self.trained.shards.reshard()

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
        # FSDP gathers parameters in a hook of its own, which must come after.
        first = bool(self.trained.shards)
        self.hooks.append(self.model.register_forward_pre_hook(_before_forward, prepend=first))
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
        self.joined = None
        self.step.after()
        self.gpu_memory.note(self.active.run)

    def _any_stepped(self, stepped: torch.optim.Optimizer, *_: Any) -> None:
        """Some optimizer of the process has run."""
        turn = self.active.cycle.turn
        _checks.check_foreign_step(stepped, self.optimizer, turn, self.trained)

    def _state_loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        """The script has called optimizer.load_state_dict(), which creates new state."""
        self.check_between_steps("optimizer.load_state_dict()")
        self.bind_state()
        self.restore_joined()


# Hooks of the model are copied and saved with it: they must not hold the session.


def _params_loaded(module: torch.nn.Module, _keys: Any) -> None:
    """The script has called model.load_state_dict()."""
    session = session_of(module)
    if session is None:
        return
    if session.joined is not None:
        return session.restore_joined()
    if session.active.properties.reloadable:
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
    session = session_of(module) if torch.is_grad_enabled() else None
    if session is not None:
        active = session.active
        _checks.check_backward_ended(active.cycle)
        active.cycle.start_forward()
        session.step.close_skipped()
        active.binding.narrow.absorb()
        session.backward.see_inputs(args)
        if active.step_delta is not None:
            active.step_delta.begin()
