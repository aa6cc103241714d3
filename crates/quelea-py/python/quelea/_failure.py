"""A script that fails gives the other ranks the reason before its process ends."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

#: How long a process whose run was ended by another rank lets that rank's process exit first:
#: launchers name the process that exits first.
ECHO_SECONDS = 1.0

#: What sys.exit() was called with since the last step.
_exit_status: object = None
_failed = False


def continues() -> None:
    """The script trains on: a sys.exit() before was caught."""
    global _exit_status
    _exit_status = None


def watch(fail: Callable[[str], bool], shutdown: Callable[[], None]) -> None:
    """Calls `fail(reason)` when the script ends with an exception or an exit status, and
    `shutdown()` when it ends well. `fail` returns False if the run had ended already."""
    report, leave = sys.excepthook, sys.exit

    def hook(kind: type, error: BaseException, trace: Any) -> None:
        global _failed
        if hasattr(sys, "ps1"):
            # An interactive session continues after an exception.
            return report(kind, error, trace)
        _failed = True
        report(kind, error, trace)
        sys.stderr.flush()
        text = str(error).splitlines()
        _fail(fail, ": ".join([kind.__name__, *text[:1]]))

    def exit(status: object = None, /) -> NoReturn:
        # Python forgets the status before it calls the functions that are registered for its end,
        # and a script that has given up must not wait there for the others' last steps.
        global _exit_status
        _exit_status = status
        leave(status)  # type: ignore[arg-type]

    def at_exit() -> None:
        if _exit_status not in (None, 0):
            _fail(fail, f"it ended with sys.exit({_exit_status!r})")
        elif not _failed:
            shutdown()

    sys.excepthook, sys.exit = hook, exit
    atexit.register(at_exit)


def _fail(fail: Callable[[str], bool], reason: str) -> None:
    if not fail(reason):
        # This failure is only the consequence of another rank's.
        time.sleep(ECHO_SECONDS)
