"""Runs tests of PyTorch's own `distributed_test.py` with the backend `quelea`; a test calls it.

    python pytorch_suite.py test_broadcast test_barrier …      prints {"test_broadcast": "passed", …}

PyTorch's tests start new processes that import PyTorch; these are forked, which takes a tenth of the
time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
import unittest


def main(names: list[str]) -> None:
    backend = os.environ.get("BACKEND", "quelea")
    os.environ.update(BACKEND=backend, WORLD_SIZE="3", TEMP_DIR=tempfile.mkdtemp())
    # PyTorch's tests import it for comparisons with long texts, of which there are none here.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    import torch
    from torch.testing._internal.common_distributed import DistTestCases

    # Tests of these features are for backends that are known to have them.
    for feature in ("ddp", "subgroup"):
        DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test

    torch.set_num_threads(1)

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    outcomes = {}
    for name in names:
        result = unittest.TestResult()
        Suite(name).run(result)
        if result.failures or result.errors:
            outcomes[name] = (result.failures + result.errors)[0][1][-1500:]
        elif result.skipped:
            outcomes[name] = f"skipped: {result.skipped[0][1]}"
        else:
            outcomes[name] = "passed"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
