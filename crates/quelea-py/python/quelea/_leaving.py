"""Notice to leave a run, which SIGTERM gives where the script does not handle that signal itself."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quelea._session import Session


class Notice:
    """While it is open, SIGTERM makes this process leave the run."""

    def __init__(self, session: Session):
        self.session = session
        in_main = threading.current_thread() is threading.main_thread()
        self.is_open = (
            in_main
            and session.active.run.can_leave
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self.is_open:
            signal.signal(signal.SIGTERM, self._given)

    def _given(self, *_: Any) -> None:
        self.session.active.run.leave()

    def close(self) -> None:
        """The run has ended: SIGTERM ends the process again."""
        if self.is_open and signal.getsignal(signal.SIGTERM) == self._given:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.session.active.run.has_left:
            said = f"quelea: rank {self.session.exchange.processes.rank} has left the run; the others continue"
            print(said, file=sys.stderr, flush=True)
