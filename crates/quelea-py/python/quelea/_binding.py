"""Parameters, gradients and optimizer state of a model as views into a rank's flat vectors."""

from __future__ import annotations

import torch

from quelea import _optimizers
from quelea._core import Error, RankVectors
from quelea._flat import Flat, tensor_at, view_like
from quelea._narrow import NarrowParams
from quelea._params import TrainedParams
from quelea._sharded import local, set_local_grad


class Binding:
    """The views of one run's flat vectors that a model uses."""

    def __init__(self, trained: TrainedParams, flat: Flat, buckets: list[tuple[int, int]]):
        self.trained, self._flat_params = trained, flat.params
        #: The views that the parameters are, and those that their gradients become.
        self.param_views: list[torch.Tensor] = []
        self.grad_views: list[torch.Tensor] = []
        #: The bucket of each parameter.
        self.bucket_of: list[int] = []
        bucket = 0
        for p, start in zip(trained.params, trained.starts, strict=True):
            self.param_views.append(view_like(flat.params, start, local(p).data))
            self.grad_views.append(view_like(flat.grads, start, local(p).data))
            if p.dtype == torch.float32:
                trained.shards.bind(p, self.param_views[-1], flat.params, start)
            p.grad = None
            # An empty parameter may come after the end of the last bucket.
            while bucket + 1 < len(buckets) and start >= buckets[bucket][1]:
                bucket += 1
            self.bucket_of.append(bucket)
        #: How many parameters each bucket has.
        self.bucket_sizes = [self.bucket_of.count(b) for b in range(len(buckets))]
        if flat.averages:
            # Buckets are of a part of the host's average: none is complete before the pass ends.
            self.bucket_of = [0] * len(trained.params)
            self.bucket_sizes = [len(trained.params) + 1] * len(buckets)
        self.narrow = NarrowParams(trained, self.param_views, self.grad_views)
        self.narrow.refresh()

    def rebind_params(self) -> None:
        """Copies parameters that the script has given other memory (`p.data = …`, or an LSTM that
        flattens its weights) back into the flat vector, and makes them views again."""
        trained = self.trained
        self.narrow.absorb()
        each = zip(trained.named, self.param_views, trained.starts, strict=True)
        for (name, p), view, start in each:
            own = local(p)
            if own.data_ptr() == view.data_ptr() or self.narrow.has(p):
                continue
            if (own.shape, own.dtype, own.device) != (view.shape, view.dtype, view.device):
                raise Error(
                    f"the parameter `{name}` was {view.dtype} on {view.device} at wrap() and is "
                    f"{p.dtype} on {p.device} now: change type and device of the model before "
                    "wrap()"
                )
            view.copy_(own.data)
            trained.shards.bind(p, view, self._flat_params, start)

    def take_gradient(self, index: int, p: torch.Tensor) -> None:
        """Copies the gradient of a parameter into the flat vector, and makes it a view."""
        view, grad = self.grad_views[index], None if p.grad is None else local(p.grad)
        if not p.requires_grad:
            # Frozen since wrap(): the other ranks see a zero gradient, and the optimizer none.
            view.zero_()
            return
        if grad is None:
            view.zero_()
        elif grad is not view:
            if grad.is_sparse:
                raise Error(
                    "a parameter has a sparse gradient, and only dense gradients can be "
                    "exchanged: use sparse=False in the embedding"
                )
            view.copy_(grad.detach())
        if not self.narrow.has(p):
            set_local_grad(p, view)

    def bind_state(
        self, optimizer: torch.optim.Optimizer, names: list[str], vectors: RankVectors
    ) -> None:
        """Makes the optimizer's state of these names views into the rank's vectors."""
        trained = self.trained
        views: dict[str, list[torch.Tensor]] = {}
        for name, vector in zip(names, vectors.state, strict=True):
            flat = tensor_at(vector, vectors)
            places = zip(trained.params, trained.starts, strict=True)
            views[name] = [view_like(flat, start, local(p).data) for p, start in places]
        if views:
            _optimizers.bind_state(optimizer, trained.params, views)
