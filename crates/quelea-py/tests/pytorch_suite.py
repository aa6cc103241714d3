"""Runs tests of PyTorch's own `distributed_test.py` with the backend `quelea`, or another one.

    python pytorch_suite.py test_broadcast test_barrier …      prints {"test_broadcast": "passed", …}
    python pytorch_suite.py --all --backend gloo               the same of all of them

PyTorch's tests start new processes that import PyTorch; these are forked, which takes a tenth of the time. What PyTorch
runs for gloo is run for every backend: it decides by the backend's name when the module is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import types
import unittest

#: How long one test may take until its processes are ended.
LIMIT_SECONDS = 90


class LikeGloo(str):
    """The name of a backend that tests take for gloo where they compare it, as those that know only its name and NCCL's."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def suite(backend: str, processes: int) -> type[unittest.TestCase]:
    """PyTorch's tests, those that it runs for gloo, with the process groups of a backend."""
    folder = tempfile.mkdtemp()
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(processes), TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/store")
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(LIMIT_SECONDS)
    # PyTorch's tests import it for comparisons with long texts, of which there are none here.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    common_distributed.TIMEOUT_OVERRIDE.clear()
    distributed_test.BACKEND = LikeGloo(backend)
    torch.set_num_threads(1)

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


def outcome(case: unittest.TestCase) -> str:
    """How a test ends: passed, skipped and why, or the end of its traceback."""
    result = unittest.TestResult()
    case.run(result)
    if result.failures or result.errors:
        return (result.failures + result.errors)[0][1][-1500:]
    if result.skipped:
        return f"skipped: {result.skipped[0][1]}"
    return "passed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--backend", default="quelea")
    parser.add_argument("--processes", type=int, default=3, help="of every test")
    options = parser.parse_args()
    made = suite(options.backend, options.processes)
    names = unittest.TestLoader().getTestCaseNames(made) if options.all else options.names
    outcomes = {}
    for name in names:
        outcomes[name] = outcome(made(name))
        print(f"{name}: {outcomes[name].splitlines()[-1][:150]}", file=sys.stderr, flush=True)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
