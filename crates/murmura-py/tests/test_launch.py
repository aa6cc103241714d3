"""`python -m murmura.launch`, with scripts that need no PyTorch."""

from __future__ import annotations

import subprocess
import sys
import time


def run(tmp_path, script: str, *words: str, processes: int = 3) -> subprocess.CompletedProcess:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "murmura.launch", "-n", str(processes), str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_process_has_its_rank_and_the_arguments(tmp_path):
    script = "import os, sys; print(os.environ['MURMURA_RANK'], sys.argv[1:])"
    done = run(tmp_path, script, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    lines = [f"[{rank}] {rank} ['--lr', '0.1']" for rank in range(3)]
    assert sorted(done.stdout.splitlines()) == lines


def test_one_that_fails_ends_the_others_and_is_named_with_its_traceback(tmp_path):
    script = (
        "import os, time\n"
        "if os.environ['MURMURA_RANK'] == '1': raise ValueError('no such column')\n"
        "time.sleep(600)\n"
    )
    begun = time.monotonic()
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "[1] ValueError: no such column" in done.stderr
    assert done.stderr.splitlines()[-1] == "murmura: rank 1 ended with status 1; all were ended"
    assert time.monotonic() - begun < 30


def test_one_that_is_killed_is_named_with_the_signal(tmp_path):
    script = "import os; os.environ['MURMURA_RANK'] == '2' and os.kill(os.getpid(), 9)"
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "rank 2 was killed by signal 9 (SIGKILL)" in done.stderr


def test_wrong_words_are_refused(tmp_path):
    done = run(tmp_path, "", processes=0)
    assert done.returncode == 2 and "must be at least 1" in done.stderr
    command = [sys.executable, "-m", "murmura.launch", "-n", "2", "nowhere.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "there is no such file" in done.stderr
