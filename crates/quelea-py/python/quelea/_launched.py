"""What a script and ``quelea launch`` tell each other: whether a run is under way that continues without a
lost process, and how many lost processes are started again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: The variables in which the launcher names its folder, and says how often it starts processes again.
FOLDER, RESTARTS = "QUELEA_LAUNCH_FOLDER", "QUELEA_RESTARTS"
#: A file in the launcher's folder, which is there while such a run is under way.
CONTINUES = "continues"
#: Another one, where such a run also continues without rank 0.
SURVIVES = "survives"


def restarts() -> int:
    """How many lost processes the launcher starts again."""
    return int(os.environ.get(RESTARTS, "0"))


def note_run(rank: int, continues: bool, survives: bool) -> None:
    """A run has begun at this rank: the launcher lets the others continue when one is lost, or not, and also
    when that is rank 0, or not."""
    folder = os.environ.get(FOLDER)
    if folder is not None and rank == 0 and continues:
        with contextlib.suppress(OSError):
            Path(folder, CONTINUES).touch()
            if survives:
                Path(folder, SURVIVES).touch()


def note_end(rank: int) -> None:
    """The run has ended at this rank."""
    folder = os.environ.get(FOLDER)
    if folder is not None and rank == 0:
        for name in (CONTINUES, SURVIVES):
            with contextlib.suppress(OSError):
                Path(folder, name).unlink()
