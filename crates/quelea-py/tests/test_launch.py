"""Scripts that are launched: by `python -m quelea.launch`, and by the real mpirun."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

#: Longer than anything here takes on a machine that is busy with other things.
LIMIT_SECONDS = 180


def run(tmp_path, script: str, *words: str, processes: int = 3) -> subprocess.CompletedProcess:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "quelea.launch", "-n", str(processes), str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)


def test_every_process_has_its_rank_and_the_arguments(tmp_path):
    script = "import os, sys; print(os.environ['QUELEA_RANK'], sys.argv[1:])"
    done = run(tmp_path, script, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    lines = [f"[{rank}] {rank} ['--lr', '0.1']" for rank in range(3)]
    assert sorted(done.stdout.splitlines()) == lines


def test_one_that_fails_ends_the_others_and_is_named_with_its_traceback(tmp_path):
    script = (
        "import os, time\n"
        "if os.environ['QUELEA_RANK'] == '1': raise ValueError('no such column')\n"
        "time.sleep(600)\n"
    )
    begun = time.monotonic()
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "[1] ValueError: no such column" in done.stderr
    assert done.stderr.splitlines()[-1] == "quelea: rank 1 ended with status 1; the others were ended"
    assert time.monotonic() - begun < 30


def test_one_that_is_killed_is_named_with_the_signal(tmp_path):
    script = "import os; os.environ['QUELEA_RANK'] == '2' and os.kill(os.getpid(), 9)"
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "rank 2 was killed by signal 9 (SIGKILL)" in done.stderr


def test_an_interrupted_script_may_save_its_state(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import sys, time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.5)\n"
        "    print('saved')\n"
    )
    launched = subprocess.Popen(
        [sys.executable, "-m", "quelea.launch", "-n", "2", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test that runs in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert {launched.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    # As a terminal does.
    os.killpg(launched.pid, signal.SIGINT)
    rest, _ = launched.communicate(timeout=LIMIT_SECONDS)
    assert sorted(rest.splitlines()) == ["[0] saved", "[1] saved"]
    assert launched.returncode == 130


#: A launcher that is interrupted after the start of its first process.
INTERRUPTED = """
import os, signal, sys
from quelea import launch

signal.signal(signal.SIGINT, signal.default_int_handler)
start = launch.ChildProcesses._start

def interrupted(self, command, rank, *rest):
    child = start(self, command, rank, *rest)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGINT)
    return child

launch.ChildProcesses._start = interrupted
sys.exit(launch.main(["-n", "2", sys.argv[1]]))
"""


def test_an_interrupt_during_the_start_leaves_no_process_unwatched(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("print('saved')")
    command = [sys.executable, "-c", INTERRUPTED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert sorted(done.stdout.splitlines()) == ["[0] saved", "[1] saved"]
    assert done.returncode == 130, done.stderr


def test_wrong_arguments_are_refused(tmp_path):
    done = run(tmp_path, "", processes=0)
    assert done.returncode == 2 and "must be at least 1" in done.stderr
    command = [sys.executable, "-m", "quelea.launch", "-n", "2", "nowhere.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 2 and "no such file" in done.stderr


TRAINING = """
import pathlib, sys, torch
import quelea.torch as quelea

quelea.init()
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
quelea.wrap(model, optimizer, on_loss="stop")
for step in range(int(sys.argv[1])):
    if step == 3 and quelea.rank() == 1:
        LEAVE
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
found = f"{quelea.world_size()} ranks, {model.weight.tolist()}"
pathlib.Path(__file__).with_name(f"rank-{quelea.rank()}").write_text(found)
"""


@pytest.mark.parametrize(
    ("leave", "why"),
    [
        ("sys.exit(7)", "rank 1 failed: it ended with sys.exit(7)"),
        # Python tells nobody about these; that nothing moves any more is seen.
        ("raise SystemExit(7)", "rank 0 waits for others' next step; rank 1 has ended its steps"),
        ("break", "rank 0 waits for others' next step; rank 1 has ended its steps"),
    ],
)
def test_one_that_leaves_half_way_ends_the_others_by_name(tmp_path, leave, why):
    done = run(tmp_path, TRAINING.replace("LEAVE", leave), "1000000", processes=2)
    # Who leaves first, and is named by the launcher, is a matter of time.
    assert done.returncode in (1, 7)
    assert f"[0] quelea.Error: {why}" in done.stderr


@pytest.mark.skipif(
    shutil.which("mpirun") is None and "CI" not in os.environ, reason="mpirun is not here"
)
def test_mpirun_starts_scripts(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(TRAINING.replace("LEAVE", "break"))
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command = [*mpirun, sys.executable, str(path), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / f"rank-{rank}").read_text() for rank in range(2))
    assert first.startswith("2 ranks") and first == second
