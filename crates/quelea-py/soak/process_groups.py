"""All of PyTorch's own tests of process groups, with gloo and with quelea: `cargo xtask soak process-groups`.

What gloo passes must pass with quelea, unless it is one of the exceptions; those must still be exceptions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "tests/pytorch_suite.py"
#: How long all tests of one backend may take.
LIMIT_SECONDS = 3600

#: What gloo passes and quelea does not, and why.
EXCEPTIONS = {
    **dict.fromkeys(
        ("test_isend", "test_irecv", "test_isend_autograd_profiler", "test_isend_torch_profiler"),
        "Work.is_completed() of a backend in Python does not reach it in PyTorch 2.15",
    ),
    **dict.fromkeys(
        (
            "test_send_recv_any_source",
            "test_send_recv_any_source_autograd_profiler",
            "test_send_recv_any_source_torch_profiler",
        ),
        "neither does the source of a receive from any rank",
    ),
    **dict.fromkeys(
        (
            "test_monitored_barrier_gloo",
            "test_monitored_barrier_gloo_rank_0_timeout",
            "test_monitored_barrier_gloo_subgroup",
        ),
        "PyTorch allows monitored_barrier() for gloo only",
    ),
    "test_ddp_logging_data_cpu": "PyTorch logs every backend that it does not have itself as `custom`",
    "test_sparse_all_reduce_sum": "sparse tensors are refused: call to_dense()",
}


def outcomes(backend: str) -> dict[str, str]:
    """How every test ends with a backend."""
    print(f"{backend}:", flush=True)
    # With fewer processes PyTorch skips tests of groups in a group.
    command = [sys.executable, SCRIPT, "--all", "--backend", backend, "--processes", "4"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def kind(outcome: str) -> str:
    return outcome if outcome == "passed" else "skipped" if outcome.startswith("skipped") else "failed"


def problems(gloo: dict[str, str], quelea: dict[str, str]) -> list[str]:
    """What does not hold."""
    found = []
    for name, theirs in gloo.items():
        passes, is_exception = quelea[name] == "passed", name in EXCEPTIONS
        if theirs == "passed" and not passes and not is_exception:
            found.append(f"{name}: gloo passes it, quelea does not:\n{quelea[name]}")
        if is_exception and (passes or theirs != "passed"):
            found.append(f"{name} is no exception: gloo {kind(theirs)}, quelea {kind(quelea[name])}")
    return found + [f"{name} is an exception, but no test" for name in EXCEPTIONS if name not in gloo]


def main() -> None:
    gloo, quelea = outcomes("gloo"), outcomes("quelea")
    print(f"{len(gloo)} tests")
    for (theirs, ours), count in Counter((kind(gloo[n]), kind(quelea[n])) for n in gloo).items():
        print(f"{count:4}  gloo {theirs}, quelea {ours}")
    for name, reason in EXCEPTIONS.items():
        print(f"exception: {name}: {reason}")
    found = problems(gloo, quelea)
    if found:
        sys.exit("\n\n".join(found))


if __name__ == "__main__":
    main()
