"""Distributed training: any algorithm, on machines that are not all fast and not all alike.

For PyTorch::

    import murmura.torch as murmura

    murmura.init()
    model = murmura.wrap(model, optimizer, algorithm="d-psgd", topology="ring")

Scripts are started with ``python -m murmura.launch -n 4 train.py``, or by torchrun, mpirun,
srun or a Kubernetes indexed job.
"""

from murmura._core import Error, __version__, algorithms

__all__ = ["Error", "__version__", "algorithms"]
