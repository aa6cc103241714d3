"""PyTorch, or an error that says how to install it."""

from __future__ import annotations

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "this part of quelea needs PyTorch: pip install 'quelea[torch]'", name="torch"
    ) from None

__all__ = ["torch"]
