"""Runs on a real Ray cluster of several nodes on this machine, to which nodes are added and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATH = os.environ.get("QUELEA_RAY_PATH")
pytestmark = pytest.mark.skipif(PATH is None, reason="Ray is not installed: cargo xtask ray")

#: How long anything may take.
LIMIT_SECONDS = 180.0
TASK = {"task": {"name": "quadratic", "dimensions": 64}, "seed": 3}


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose first node has room for two workers."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("QUELEA_SECRET", raising=False)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def ranks_of(out: Path, kind: str) -> list[int]:
    """The ranks of this kind of record that the run has written so far, to the file that gets its name at the end."""
    found = []
    for path in [*out.glob(".records.jsonl.*.partial"), *out.glob("records.jsonl")]:
        with path.open() as lines:
            # Most lines are of other kinds, and the last one may be incomplete.
            found += [json.loads(line) for line in lines if f'"{kind}"' in line and line.endswith("}\n")]
    return [record["rank"] for record in found if record["kind"] == kind]


def wait_for(what, running):
    """Until `what` holds; the run must not end before that."""
    import ray

    limit = time.monotonic() + LIMIT_SECONDS
    while not what():
        ended, _ = ray.wait([running._ended], timeout=0.1)
        assert not ended, ray.get(ended[0])
        assert time.monotonic() < limit, "it has not come to pass"


def test_a_run_on_ray_ends_with_the_file_that_the_virtual_cluster_ends_with(cluster, tmp_path):
    import quelea.ray

    config = {**TASK, "steps": 30, "algorithm": {"name": "allreduce"}}
    summary = quelea.ray.run(config, num_workers=2, out=tmp_path / "ray")
    assert (summary["config"]["workers"], summary["steps"]) == (2, 60)
    words = ["workers=2", "steps=30", "seed=3", "algorithm.name=allreduce", "task.name=quadratic", "task.dimensions=64"]
    settings = [word for setting in words for word in ("--set", setting)]
    simulate = [sys.executable, "-m", "quelea", "simulate", *settings, "--out", str(tmp_path / "virtual"), "--quiet"]
    subprocess.run(simulate, check=True)
    final = "final.safetensors"
    assert (tmp_path / "ray" / final).read_bytes() == (tmp_path / "virtual" / final).read_bytes()


def test_workers_join_with_a_node_and_are_replaced_when_it_is_gone(cluster, tmp_path):
    import quelea.ray

    # It ends when it is told to; records are in their file when a checkpoint is complete.
    config = {**TASK, "steps": 1_000_000_000, "algorithm": {"name": "ad-psgd"}, "checkpoint": {"every_seconds": 1.0}}
    running = quelea.ray.start(config, num_workers=(2, 3), out=tmp_path / "run")
    wait_for(lambda: any(running.out.glob(".records.jsonl.*.partial")), running)
    assert ranks_of(running.out, "joined") == []
    node = cluster.add_node(num_cpus=1)
    wait_for(lambda: ranks_of(running.out, "joined") == [2], running)
    cluster.remove_node(node)
    wait_for(lambda: ranks_of(running.out, "lost") == [2], running)
    cluster.add_node(num_cpus=1)
    wait_for(lambda: ranks_of(running.out, "joined") == [2, 2], running)
    running.stop()
    assert ranks_of(running.out, "lost") == [2]


def test_a_run_that_cannot_begin_says_why(cluster, tmp_path):
    import quelea.ray

    with pytest.raises(quelea.ray.Error, match="algorithm.name"):
        quelea.ray.run({"algorithm": {"name": "no-such"}}, num_workers=1, out=tmp_path / "run")
    with pytest.raises(quelea.ray.Error, match=r"num_workers=\(3, 2\): must be"):
        quelea.ray.run(TASK, num_workers=(3, 2), out=tmp_path / "run")


def test_a_second_run_of_the_same_process_uses_the_same_cluster(cluster, tmp_path):
    import quelea.ray

    config = {**TASK, "steps": 5, "algorithm": {"name": "allreduce"}}
    outs = [tmp_path / "first", tmp_path / "second"]
    found = [quelea.ray.run(config, num_workers=1, out=out)["steps"] for out in outs]
    assert found == [5, 5]
