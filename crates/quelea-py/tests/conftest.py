"""Every test process has one thread: there are several of them."""

import faulthandler
import os
import sys
import traceback
from pathlib import Path

import pytest
import torch
from _pytest.faulthandler import fault_handler_stderr_fd_key

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

# A test that hangs ends the test command with a traceback of every thread.
TEST_SECONDS = 600


@pytest.fixture(autouse=True)
def time_limit(request):
    uncaptured = request.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(TEST_SECONDS, exit=True, file=uncaptured)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Where there is a GPU, a backward pass begins threads that no fork survives, and the tests
    fork: there, every test is a process of its own."""
    if not os.path.exists("/dev/nvidiactl"):
        return None
    words = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pyfuncitem.obj(**words)
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        os._exit(0)
    os.close(writing)
    with open(reading, errors="replace") as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    if said or status != 0:
        pytest.fail(said or f"the test's process ended with status {status}", pytrace=False)
    return True
