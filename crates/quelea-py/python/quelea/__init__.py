"""Distributed training: any algorithm, on machines that are not all fast and not all alike.

For PyTorch::

    import quelea.torch as quelea

    quelea.init()
    model = quelea.wrap(model, optimizer, algorithm="d-psgd", topology="ring")

Scripts are started with ``python -m quelea.launch -n 4 train.py``, or by torchrun, mpirun,
srun or a Kubernetes indexed job.
"""

from typing import Any

from quelea._algorithm import Algorithm, register
from quelea._core import Average, Context, Error, Exchange, Message, __version__, algorithms, conformance_properties
from quelea._command import main
from quelea._conformance import conformance
from quelea._results import open_run

__all__ = [
    "Algorithm",
    "Average",
    "Context",
    "Error",
    "Exchange",
    "Message",
    "__version__",
    "algorithms",
    "conformance",
    "conformance_properties",
    "main",
    "open_run",
    "register",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import, and the launcher does not need it.
    if name == "simulate":
        from quelea.simulation import simulate

        return simulate
    raise AttributeError(f"module 'quelea' has no attribute {name!r}")
