"""quelea on Ray: `run` for runs of the built-in tasks; `QueleaConfig`, `wrap` and `prepare_data_loader` for scripts in
Ray Train.

    import quelea.ray

    summary = quelea.ray.run("run.toml", num_workers=(2, 8), out="runs/a")

`run` needs the package ``ray``; the others need ``ray[train]`` and PyTorch.
"""

from __future__ import annotations

from typing import Any

from quelea._core import Error
from quelea._ray_run import RayRun, run, start

__all__ = ["Error", "QueleaConfig", "RayRun", "prepare_data_loader", "run", "start", "wrap"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name in ("QueleaConfig", "prepare_data_loader", "wrap"):
        from quelea import _ray_train

        return getattr(_ray_train, name)
    raise AttributeError(f"module 'quelea.ray' has no attribute {name!r}")
