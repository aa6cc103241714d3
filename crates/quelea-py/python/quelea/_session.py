"""One wrapped model: hooks that hand its gradient over, and that wait where it must wait.

The turns of a step, as Rust tells them:

=============  ====================================================================
``gradient``   parameters and gradients are the script's: forward, backward
``apply``      the optimizer is to run; the parameters take its step
``displace``   the optimizer is to run; how far it moved goes out, the algorithm moves
``move``       the optimizer is to run; how far it moved goes out, and so it stays
``done``       servers have taken the step: the optimizer is not to run
=============  ====================================================================
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_post_hook

from quelea import _optimizers
from quelea._core import Error, Group, Run
from quelea._flat import Flat, layout_of, padding, tensor_at, view_like
from quelea._shadow import Shadow


#: Rows whose ranks may begin apart; all others begin at a common point.
OWN_START = {
    "ad-psgd", "d-amsgrad", "d-psgd", "d2", "decentlam", "exact-diffusion", "extra",
    "gradient-tracking", "qg-dmsgd", "sgp",
}  # fmt: skip


#: Rows in which parameters are all there is: what a script loads into them is what goes on.
ONLY_PARAMETERS = {
    "allreduce", "choco", "d2", "exact-diffusion", "gossip-aga", "gossip-pga", "gradient-tracking",
    "local-sgd",
}  # fmt: skip


#: Turns after which the rank wants to know how far the optimizer moved.
DISPLACING = ("displace", "move")


class Session:
    """A model in a run."""

    def __init__(
        self,
        group: Group,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: dict[str, Any],
        state: list[str],
        served: dict[str, object] | None,
    ):
        self.group, self.model, self.optimizer = group, model, optimizer
        # In the order in which backward passes finish them, roughly.
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad][::-1]
        check(model, optimizer, named)
        self.params = [p for _, p in named]
        self.known = {id(p) for p in self.params}
        #: What servers know of the optimizer, where they take the steps.
        self.served = served
        self.closed_by_forward = False
        self.device = self.params[0].device
        self._agree(named, settings)
        self.pads = [padding(p) for p in self.params]
        sizes = [p.numel() + pad for p, pad in zip(self.params, self.pads, strict=True)]
        #: Where each begins in the flat vectors.
        self.starts = list(itertools.accumulate(sizes, initial=0))[:-1]
        initial = self._padded([_in_memory_order(p).cpu() for p in self.params])
        group.broadcast_vector("wrap()", initial.data_ptr(), initial.numel())
        self._equalize_rest()
        self.names = [name for name, _ in named]
        self.tensors: list[tuple[str, list[int]]] = []
        for (name, p), pad in zip(named, self.pads, strict=True):
            self.tensors.append((name, list(p.shape)))
            if pad > 0:
                self.tensors.append((f"{name}_padding", [pad]))
        self.settings, self.state = settings, state
        self.algorithm: str = settings["algorithm"]["name"]
        self.paused = False
        self.shadow: Shadow | None = None
        self.loss = math.nan
        self._open(initial)
        self._hook()

    def _open(self, initial: torch.Tensor) -> None:
        """Begins a run at these parameters."""
        shape = (len(self.state), self.state == ["momentum_buffer"])
        start = (initial.data_ptr(), initial.numel())
        self.run = Run(self.group, self.settings, self.tensors, start, shape)
        self.buckets, self.reads_gradient = self.run.buckets, self.run.reads_gradient
        self.run.set_learning_rate(_optimizers.learning_rate(self.optimizer))
        self._expect("gradient")
        self.flat = Flat(self.run.vectors(), self.run.memory(), self.device)
        self._bind()
        self._bind_state(self.state)
        self._begin()

    def _agree(self, named: list[tuple[str, torch.nn.Parameter]], settings: dict) -> None:
        lines = [f"the settings {settings}", f"a model on the device type {self.device.type}"]
        for name, p in named:
            lines.append(f"the parameter `{name}` of shape {tuple(p.shape)}, {layout_of(p)}")
        self.group.agree("wrap()", lines)

    def _untrained(self) -> list[torch.Tensor]:
        frozen = [p.data for p in self.model.parameters() if id(p) not in self.known]
        return [t for t in [*frozen, *self.model.buffers()] if t.numel() > 0]

    def _rest(self) -> list[torch.Tensor]:
        """What is not trained but must be equal at the start, and averaged for evaluation."""
        return [t for t in self._untrained() if t.dtype == torch.float32]

    def _equalize_rest(self) -> None:
        rest = self._rest()
        if rest:
            flat = torch.cat([t.detach().flatten() for t in rest]).cpu()
            self.group.broadcast_vector("wrap()", flat.data_ptr(), flat.numel())
            _scatter(flat, rest)
        # Integers, and numbers of other lengths: large if they are a frozen model, and equal then.
        others = [t for t in self._untrained() if t.dtype != torch.float32]
        others = [t for t in others if t.layout == torch.strided and not t.is_quantized]
        digest = hashlib.blake2b()
        for t in others:
            digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        try:
            self.group.agree("wrap()", [digest.hexdigest()])
        except Error:
            file = io.BytesIO()
            if self.group.rank == 0:
                torch.save([t.detach().cpu() for t in others], file)
            first = self.group.broadcast("wrap()", file.getvalue())
            loaded = torch.load(io.BytesIO(first), weights_only=True)
            for mine, other in zip(others, loaded, strict=True):
                mine.copy_(other)

    def _bind(self) -> None:
        """Parameters, and gradients that are read, become views into the flat vectors."""
        self.homes, self.views, self.bucket_of = [], [], []
        bucket = 0
        for p, start in zip(self.params, self.starts, strict=True):
            self.homes.append(view_like(self.flat.params, start, p.data))
            p.data = self.homes[-1]
            self.views.append(view_like(self.flat.grads, start, p.data))
            p.grad = None
            # An empty parameter may come after the end of the last bucket.
            while bucket + 1 < len(self.buckets) and start >= self.buckets[bucket][1]:
                bucket += 1
            self.bucket_of.append(bucket)
        self.sizes = [self.bucket_of.count(b) for b in range(len(self.buckets))]

    def _bind_state(self, names: list[str]) -> None:
        """The state of the optimizer becomes views too, where the algorithm looks at it."""
        vectors: dict[str, list[torch.Tensor]] = {}
        for name, address in zip(names, self.run.state_vectors(), strict=True):
            flat = tensor_at(address, self.flat.params.numel(), self.run.memory())
            places = zip(self.params, self.starts, strict=True)
            vectors[name] = [view_like(flat, start, p) for p, start in places]
        if vectors:
            _optimizers.bind_state(self.optimizer, self.params, vectors)

    def _hook(self) -> None:
        def accumulated(index: int):
            return lambda p: self.accumulated(index, p)

        register = torch.Tensor.register_post_accumulate_grad_hook
        self.hooks: list[Any] = [register(p, accumulated(i)) for i, p in enumerate(self.params)]
        self.hooks.append(self.optimizer.register_step_pre_hook(self.before_step))
        self.hooks.append(self.optimizer.register_step_post_hook(self.after_step))
        self.hooks.append(self.model.register_forward_pre_hook(_before_forward))
        self.hooks.append(self.optimizer.register_load_state_dict_post_hook(self.state_loaded))
        self.hooks.append(self.model.register_load_state_dict_post_hook(_after_load))
        self.hooks.append(register_optimizer_step_post_hook(self.another_has_stepped))

    def _begin(self) -> None:
        """It is the script's turn to compute a gradient."""
        global leaving
        leaving = None
        self.turn = "gradient"
        self.counting = False
        self.next_bucket = 0
        #: Buckets, and what has to happen before they may be handed over.
        self.on_way: list[tuple[int, torch.cuda.Event | None]] = []
        self.params_sent: torch.cuda.Event | None = None
        self.ready = [False] * len(self.params)
        self.left = list(self.sizes)

    # Backward.

    def accumulated(self, index: int, p: torch.Tensor) -> None:
        """The gradient of a parameter is complete for this backward pass."""
        if self.paused:
            return
        if self.turn != "gradient" or self.ready[index]:
            raise Error(
                "backward() came twice before optimizer.step(): put all but the last backward "
                "pass of a step into `with quelea.no_sync():`, call the model as a whole, and "
                "give torch.utils.checkpoint.checkpoint() use_reentrant=False"
            )
        if not self.counting:
            self.counting = True
            self.closed_by_forward = False
            if self.served is not None:
                _optimizers.check_served(self.optimizer, self.served)
            self.run.set_learning_rate(_optimizers.learning_rate(self.optimizer))
            Variable._execution_engine.queue_callback(self.backward_done)
            self._bring_home()
            if self.flat.on_gpu and not self.run.lends_a_copy:
                # The script may have changed them since the last step.
                self.params_sent = self.flat.send_later("params", 0, self.flat.params.numel())
        self._take(index, p)
        bucket = self.bucket_of[index]
        self.left[bucket] -= 1
        if self.left[bucket] == 0:
            self._hand_over()

    def _bring_home(self) -> None:
        """Parameters that the script has given other memory (`p.data = …`, or an LSTM that flattens
        its weights) come back to the flat vector with what they have now."""
        for name, p, home in zip(self.names, self.params, self.homes, strict=True):
            if p.data_ptr() == home.data_ptr():
                continue
            if (p.shape, p.dtype, p.device) != (home.shape, home.dtype, home.device):
                raise Error(
                    f"the parameter `{name}` was of {home.dtype} on {home.device} at wrap() and is "
                    f"of {p.dtype} on {p.device} now: bring the model to its type and device "
                    "before wrap()"
                )
            p.data = home.copy_(p.data)

    def _take(self, index: int, p: torch.Tensor) -> None:
        """Brings the gradient of a parameter into the flat vector, if anybody looks at it there."""
        self.ready[index] = True
        if not self.reads_gradient:
            return
        view, grad = self.views[index], p.grad
        if not p.requires_grad:
            # Frozen since wrap(): others see no gradient, and the optimizer passes over it.
            view.zero_()
            return
        if grad is None:
            view.zero_()
        elif grad is not view:
            if grad.is_sparse:
                raise Error(
                    "a parameter has a sparse gradient; quelea exchanges dense ones: use "
                    "sparse=False in the embedding"
                )
            view.copy_(grad.detach())
        p.grad = view

    def _hand_over(self) -> None:
        """Hands over the buckets that are complete, in order."""
        while self.next_bucket < len(self.buckets) and self.left[self.next_bucket] == 0:
            event = self.params_sent
            if self.reads_gradient and self.flat.on_gpu:
                event = self.flat.send_later("grads", *self.buckets[self.next_bucket])
            self.on_way.append((self.next_bucket, event))
            self.next_bucket += 1
        while self.on_way and (self.on_way[0][1] is None or self.on_way[0][1].query()):
            self.run.bucket(self.on_way.pop(0)[0])

    def backward_done(self) -> None:
        """The backward pass is over: what is averaged is averaged when this returns."""
        for index, p in enumerate(self.params):
            if not self.ready[index]:
                self._take(index, p)
        self.left = [0] * len(self.left)
        self._hand_over()
        for bucket, event in self.on_way:
            if event is not None:
                event.synchronize()
            self.run.bucket(bucket)
        if self.algorithm == "gossip-aga" and math.isnan(self.loss):
            raise Error(
                "gossip-aga chooses its period by the loss: call quelea.report_loss(loss) before "
                "loss.backward()"
            )
        self.run.gradient(self.loss)
        self.counting, self.loss = False, math.nan
        self.turn = self.run.wait()
        if self.turn == "gradient":
            self.turn = "done"
        self.flat.fetch(grads=self.reads_gradient)
        self.grads_version = self.flat.grads._version
        if self.turn in DISPLACING:
            if self.shadow is None or self.shadow.flat is not self.flat:
                self.shadow = Shadow(self.flat, self.reads_gradient)
            self.shadow.complete()

    # Step.

    def before_step(self, _optimizer: Any, args: Any, kwargs: Any) -> None:
        """The script has called optimizer.step()."""
        if any(callable(a) for a in args) or callable(kwargs.get("closure")):
            raise Error(
                "optimizer.step(closure) computes gradients inside the step, where they cannot be "
                "exchanged; call backward() first and step() without a closure"
            )
        for p in itertools.chain.from_iterable(g["params"] for g in self.optimizer.param_groups):
            if p.requires_grad and id(p) not in self.known:
                name = next((n for n, q in self.model.named_parameters() if q is p), "?")
                raise Error(
                    f"the parameter `{name}` is trained now but was not at wrap(), so that it is "
                    "not exchanged: call quelea.shutdown() and quelea.wrap() again, at all ranks"
                )
        if self.turn == "gradient":
            if self.closed_by_forward:
                raise Error(
                    "a forward pass came between backward() and optimizer.step(), which ends the "
                    "step: put it under torch.no_grad(), or after the step"
                )
            if any(p.grad is not None for p in self.params):
                raise Error(
                    "optimizer.step() without a gradient that was handed over: the last backward "
                    "pass before a step must be outside no_sync()"
                )
        elif self.turn == "done":
            if self.flat.grads._version != self.grads_version:
                raise Error(
                    f"gradients were changed between backward() and step(), but {self.algorithm} "
                    "sends them to its servers inside backward(): leave clipping and GradScaler "
                    "out (bfloat16 needs no scaler), or use an algorithm whose workers take the "
                    "steps, such as allreduce or aladdin"
                )
            # Optimizers leave parameters without a gradient alone.
            for p in self.params:
                p.grad = None

    def after_step(self, *_: Any) -> None:
        """The optimizer has run."""
        if self.turn in DISPLACING:
            assert self.shadow is not None
            self.shadow.displace(back=self.turn == "displace" and not self.run.lends_a_copy)
            self.flat.send("grads")
        if self.turn in ("apply", "move"):
            self.flat.send("params")
        self._go_on()

    def close_skipped(self) -> None:
        """Closes a step that the script has left out, as GradScaler does: nothing moves."""
        if self.turn in DISPLACING:
            assert self.shadow is not None
            self.shadow.forget()
            if self.flat.on_gpu:
                # Parameters may still be on their way from where the rank will write next.
                torch.cuda.current_stream(self.device).synchronize()
            self.flat.host_grads.zero_()
        self._go_on()

    def _go_on(self) -> None:
        """Waits until the next gradient may start."""
        if self.turn == "gradient":
            return
        if self.turn in ("apply", *DISPLACING):
            self.run.optimized()
        if self.turn != "done":
            self._expect("gradient")
        self.flat.fetch(grads=False)
        self._begin()

    def _expect(self, turn: str) -> None:
        came = self.run.wait()
        if came != turn:
            raise Error(f"quelea has a defect: it is the turn for {came}, not for {turn}")

    def another_has_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Some optimizer has run; one that contains this one has run this one too."""
        if optimizer is self.optimizer or self.turn in ("gradient", "done"):
            return
        if any(id(p) in self.known for group in optimizer.param_groups for p in group["params"]):
            raise Error(
                "another optimizer than the one given to wrap() has moved the parameters, of which "
                "the other ranks hear nothing: call quelea.shutdown() and quelea.wrap() with it"
            )

    # Everything else.


    def state_loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        """The script has called optimizer.load_state_dict(), which makes the state anew."""
        self.check_between_steps("optimizer.load_state_dict()")
        self._bind_state(self.state)

    def check_between_steps(self, what: str) -> None:
        """Refuses what may only be done between two steps."""
        self.close_skipped()
        if self.counting:
            self.check_backward_ended()
            raise Error(f"{what} inside a backward pass; call it between two steps")

    def check_backward_ended(self) -> None:
        """Refuses to go on after a backward pass that an exception has ended."""
        if self.counting and torch._C._current_graph_task_id() == -1:
            raise Error(
                "an exception has ended the last backward pass, of which a part may be with the "
                "other ranks: the run cannot go on"
            )

    def average(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Puts the mean over all ranks into the model; returns what was there."""
        saved = []
        for tensors in ([self.flat.params], self._rest()):
            if not tensors:
                continue
            saved += [(t, t.detach().clone()) for t in tensors]
            flat = torch.cat([t.detach().flatten() for t in tensors]).cpu()
            self.group.mean("evaluate_model()", flat.data_ptr(), flat.numel(), self.run)
            _scatter(flat, tensors)
        return saved

    def _padded(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """A vector for the rank of what belongs to the parameters."""
        free = (torch.zeros(pad) for pad in self.pads)
        return torch.cat([part for pair in zip(parts, free, strict=True) for part in pair])

    def packed(self) -> torch.Tensor:
        """A copy of the parameters as one vector, without anything between them."""
        return torch.cat([_in_memory_order(p).cpu() for p in self.params])

    def reopen(self, params: torch.Tensor) -> None:
        """Ends the run and begins another at these parameters, together with all other ranks."""
        params = params.detach().to(torch.float32).cpu()
        initial = self._padded(params.split([p.numel() for p in self.params]))
        if self.algorithm not in OWN_START:
            self.group.mean("load_state_dict()", initial.data_ptr(), initial.numel(), self.run)
        self._close_run()
        self._open(initial)

    def finish(self) -> None:
        """Ends the run together with all other ranks."""
        try:
            self.check_between_steps("shutdown()")
        finally:
            for hook in self.hooks:
                hook.remove()
        self._close_run()

    def _close_run(self) -> None:
        try:
            if not self.run.lends_a_copy:
                self.flat.send("params")
            self.run.finish()
            self.flat.fetch(grads=False)
        finally:
            self.flat.close()


def _in_memory_order(p: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor in the order in which they lie in memory."""
    p = p.detach()
    if layout_of(p) in ("contiguous", "strided"):
        return p.flatten()
    return p.as_strided((p.numel(),), (1,))


def _scatter(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    start = 0
    for t in tensors:
        t.detach().copy_(flat[start : start + t.numel()].view(t.shape))
        start += t.numel()


def check(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named: list[tuple[str, torch.nn.Parameter]],
) -> None:
    """Refuses what cannot be wrapped, saying what to do."""
    if not named:
        raise Error("the model has no parameter that requires a gradient: nothing to train")
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    known = {id(p) for _, p in named}
    for name, p in named:
        if id(p) not in owned:
            raise Error(
                f"the optimizer does not own the parameter `{name}`: make the optimizer from "
                "model.parameters() of this very model, or freeze it with requires_grad_(False)"
            )
        if p.dtype != torch.float32:
            raise Error(
                f"the parameter `{name}` is of {p.dtype}: parameters must be torch.float32; "
                "use torch.autocast for lower precision"
            )
        if p.device != named[0][1].device:
            raise Error(
                f"the parameter `{name}` is on {p.device}, others on {named[0][1].device}: "
                "quelea needs a model on one device"
            )
    if named[0][1].device.type not in ("cpu", "cuda"):
        raise Error(f"a model on {named[0][1].device}: quelea knows the CPU and CUDA")
    for group in optimizer.param_groups:
        if any(p.requires_grad and id(p) not in known for p in group["params"]):
            raise Error(
                "the optimizer owns parameters that are not the model's: they would not be "
                "exchanged; give it only model.parameters()"
            )


current: Session | None = None
#: What sys.exit() was called with since the last step. A script that goes on has caught it.
leaving: object = None


# Hooks of the model are copied and saved with it: they must not hold the session.


def _after_load(module: torch.nn.Module, _keys: Any) -> None:
    """The script has called model.load_state_dict()."""
    session = current
    if session is not None and module is session.model:
        if session.algorithm not in ONLY_PARAMETERS:
            warnings.warn(
                f"model.load_state_dict() after wrap(): {session.algorithm} keeps more than these "
                "parameters, and would mix them with what was before; load before wrap(), or call "
                "quelea.load_state_dict(quelea.state_dict()) at all ranks after it",
                stacklevel=3,
            )


@torch.compiler.disable
def _before_forward(module: torch.nn.Module, _args: Any) -> None:
    """A new forward pass: the step before it is over, whether it was taken or not."""
    session = current
    if session is not None and module is session.model and torch.is_grad_enabled():
        session.check_backward_ended()
        session.closed_by_forward |= session.turn not in ("gradient", "done")
        session.close_skipped()
        if session.shadow is not None:
            session.shadow.begin()
