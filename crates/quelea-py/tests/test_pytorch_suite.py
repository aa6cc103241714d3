"""Tests of PyTorch's own suite for process groups that gloo passes, with the backend `quelea`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Tests by what they call; all of them pass.
PASSED = {
    "send and recv": ["test_send_recv", "test_send_recv_with_tag"],
    "broadcast": ["test_broadcast", "test_broadcast_full_group"],
    "reduce": [
        "test_reduce_sum",
        "test_reduce_product",
        "test_reduce_min",
        "test_reduce_max",
        "test_reduce_full_group_sum",
        "test_reduce_full_group_product",
        "test_reduce_full_group_min",
        "test_reduce_full_group_max",
        "test_reduce_sum_twice",
    ],
    "all_reduce": [
        "test_all_reduce_sum",
        "test_all_reduce_sum_async",
        "test_all_reduce_sum_complex",
        "test_all_reduce_complex_unsupported_ops",
        "test_all_reduce_product",
        "test_all_reduce_min",
        "test_all_reduce_max",
        "test_all_reduce_full_group_sum",
        "test_all_reduce_full_group_max",
    ],
    "scatter and gather": [
        "test_scatter_checks",
        "test_scatter",
        "test_scatter_complex",
        "test_scatter_full_group",
        "test_gather_checks",
        "test_gather",
        "test_gather_full_group",
    ],
    "all_gather": [
        "test_all_gather",
        "test_all_gather_complex",
        "test_all_gather_full_group",
        "test_all_gather_coalesced_simple",
        "test_all_gather_coalesced_with_empty",
    ],
    "groups": [
        "test_get_rank",
        "test_destroy_group",
        "test_destroy_full_group",
        "test_get_rank_size_group",
        "test_barrier",
        "test_barrier_full_group",
    ],
    "DistributedDataParallel": [
        "test_DistributedDataParallelCPU",
        "test_DistributedDataParallelCPU_grad_is_view",
        "test_DistributedDataParallel_requires_grad",
        "test_static_graph_api_cpu",
    ],
}

@pytest.fixture(scope="module")
def outcomes():
    """How all of them end, in one process that imports PyTorch's tests once."""
    names = [name for part in PASSED.values() for name in part]
    script = Path(__file__).with_name("pytorch_suite.py")
    run = subprocess.run(
        [sys.executable, script, *names],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("part", PASSED)
def test_pytorchs_own_tests_pass(part, outcomes):
    names = PASSED[part]
    assert {name: outcomes[name] for name in names} == dict.fromkeys(names, "passed")
