"""The `quelea` command, which is a part of the package."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from quelea import _core
from quelea._algorithm import Algorithm, register


def main(
    arguments: Sequence[str] | None = None, algorithms: Iterable[type[Algorithm]] = ()
) -> int:
    """Runs the command with these arguments, or with those of this process; returns its exit status.

    A script of your own that ends with ``sys.exit(quelea.main(algorithms=[Mine]))`` is the whole
    command with one algorithm more: ``python mine.py plan --set algorithm.name=mine``.
    """
    for algorithm in algorithms:
        register(algorithm)
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _core.command_line(_program(), words)


def _program() -> list[str]:
    """What starts this program again, without its arguments."""
    started = len(sys.orig_argv) - len(sys.argv) + 1
    return [sys.executable, *sys.orig_argv[1:started]]
