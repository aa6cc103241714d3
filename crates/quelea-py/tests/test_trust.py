"""Who may take part in a script's run, and what a rank that misbehaves can do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

LIMIT_SECONDS = 180

TRAIN = """
import os, sys, torch
import quelea.torch as quelea
torch.manual_seed(1)
quelea.init(timeout=20)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = quelea.wrap(model, optimizer, "allreduce")
for step in range(5):
    optimizer.zero_grad()
    inputs = torch.full((2, 4), float(quelea.rank() + step))
    model(inputs).square().mean().backward()
    optimizer.step()
quelea.shutdown()
print(model.weight.tolist())
"""


def launch(tmp_path, script: str, processes: int = 2, **env: str) -> subprocess.CompletedProcess:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "quelea.launch", "-n", str(processes), "--no-prefix", str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env={**os.environ, **env}
    )


def test_an_encrypted_run_gives_the_same_bits(tmp_path):
    plain = launch(tmp_path, TRAIN)
    assert plain.returncode == 0, plain.stderr
    encrypted = launch(tmp_path, TRAIN, QUELEA_SECRET="0123456789abcdef" * 4)
    assert encrypted.returncode == 0, encrypted.stderr
    assert encrypted.stdout == plain.stdout
    assert len(set(encrypted.stdout.splitlines())) == 1


def test_a_process_with_another_secret_does_not_take_part(tmp_path):
    script = "import os; os.environ['QUELEA_SECRET'] = 'x' * 40 + os.environ['QUELEA_RANK']\n" + TRAIN
    done = launch(tmp_path, script)
    assert done.returncode != 0
    assert "it is of another run" in done.stderr or "did not come to init()" in done.stderr
    assert "xxxxxxxx" not in done.stderr


def test_other_machines_need_a_secret_or_must_be_trusted_explicitly(tmp_path):
    done = launch(tmp_path, TRAIN, QUELEA_RENDEZVOUS="192.0.2.1:29470")
    assert "192.0.2.1 is not this machine" in done.stderr, done.stderr
    assert "QUELEA_SECRET" in done.stderr


def test_a_rank_that_sends_nan_is_named(tmp_path):
    script = TRAIN.replace("float(quelea.rank() + step)", "float('nan') if quelea.rank() else 1.0")
    # Where gradients travel it must be asked for: a gradient scaler looks for infinities itself.
    stopped = script.replace('"allreduce"', '"allreduce", poison="stop"')
    gossiped = script.replace('"allreduce"', '"d-psgd"')
    for script in (stopped, gossiped):
        done = launch(tmp_path, script)
        assert done.returncode != 0
        assert "rank 1 sent NaN as element " in done.stderr, done.stderr


def test_init_has_one_deadline_however_slowly_a_stranger_speaks(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "alone.py"
    script.write_text(
        "import time, quelea.torch as quelea\n"
        "begun = time.monotonic()\n"
        "try:\n"
        "    quelea.init(timeout=3)\n"
        "except quelea.Error as error:\n"
        "    print(time.monotonic() - begun, error)\n"
    )
    env = dict(
        os.environ,
        QUELEA_RANK="0",
        QUELEA_WORLD_SIZE="2",
        QUELEA_RENDEZVOUS=f"127.0.0.1:{port}",
    )
    over = threading.Event()

    def drip() -> None:
        while not over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                    while not over.is_set():
                        stranger.sendall(b"q")
                        time.sleep(0.2)
            except OSError:
                time.sleep(0.05)

    strangers = [threading.Thread(target=drip) for _ in range(8)]
    for stranger in strangers:
        stranger.start()
    try:
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env=env,
        )
    finally:
        over.set()
        for stranger in strangers:
            stranger.join()
    seconds, _, reason = done.stdout.partition(" ")
    assert "rank 1 did not come to init()" in reason, done.stdout + done.stderr
    assert float(seconds) < 10


def test_a_barrier_names_the_rank_that_does_not_come(tmp_path):
    script = (
        "import time, quelea.torch as quelea\n"
        "quelea.init(timeout=20)\n"
        "if quelea.rank() == 1:\n"
        "    time.sleep(8)\n"
        "else:\n"
        "    try:\n"
        "        quelea.barrier(timeout=1)\n"
        "    except quelea.Error as error:\n"
        "        print(error)\n"
    )
    done = launch(tmp_path, script)
    assert "s for rank 1 at barrier()" in done.stdout, done.stdout + done.stderr
