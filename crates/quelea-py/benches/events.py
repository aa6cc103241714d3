"""How long events of algorithms in Python take, against the same algorithms in Rust.

    python benches/events.py [--elements 262144] [--workers 4] [--steps 200]

With vectors of 1 MiB, without a network, a gradient or an optimizer, in turns; medians of 5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from quelea import _core
from quelea._algorithm import resolved

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/python/algorithms"))
from allreduce import AllReduce  # noqa: E402
from d_psgd import DPsgd  # noqa: E402
from damped_gossip import DampedGossip  # noqa: E402

ROUNDS = 5
PAIRS = {
    "all-reduce": ({"name": "allreduce"}, AllReduce),
    "D-PSGD": ({"name": "d-psgd"}, DPsgd),
    "gossip of tensors": ({"name": "d-psgd", "form": "adapt-then-combine"}, DampedGossip(gamma=1.0)),
}


def microseconds(algorithm: object, given: argparse.Namespace) -> float:
    """The mean time of an event."""
    config = {
        "workers": given.workers,
        "algorithm": resolved(algorithm),
        "topology": {"name": "ring"},
        "buckets": {"size_mb": 25.0},
    }
    events, seconds = _core.event_times(config, given.elements, given.steps)
    return 1e6 * seconds / events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 18)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    for name, pair in PAIRS.items():
        times = [[microseconds(side, given) for side in pair] for _ in range(ROUNDS)]
        rust, python = (statistics.median(column) for column in zip(*times, strict=True))
        row = {
            "name": f"events of {name} in Python, against Rust",
            "ratio": statistics.median(python / rust for rust, python in times),
            "goal": 3.0,
            "python_us": python,
            "rust_us": rust,
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
