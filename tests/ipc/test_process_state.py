import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from djl_python.ipc.process_state import CpuClock, halted


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes once it is told to."""
    code = "import sys; print(flush=True); sys.stdin.read(1)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


def _until_it_is(child: subprocess.Popen[bytes], status: str) -> None:
    while psutil.Process(child.pid).status() != status:
        pass


def test_a_process_is_halted_from_its_stop_to_its_continuation(child: subprocess.Popen[bytes]) -> None:
    assert not halted(child.pid)
    child.send_signal(signal.SIGSTOP)
    _until_it_is(child, psutil.STATUS_STOPPED)
    assert halted(child.pid)
    child.send_signal(signal.SIGCONT)
    while halted(child.pid):
        pass


def test_a_zombie_is_halted_until_it_is_reaped(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    _until_it_is(child, psutil.STATUS_ZOMBIE)
    assert halted(child.pid)
    child.wait()
    assert not halted(child.pid) and not CpuClock(child.pid).advanced()


def test_a_processs_clock_advances_while_it_computes(child: subprocess.Popen[bytes]) -> None:
    clock = CpuClock(child.pid)
    clock.advanced()
    assert not clock.advanced()
    assert child.stdin is not None
    child.stdin.write(b"x")
    child.stdin.flush()
    while not clock.advanced():
        pass
