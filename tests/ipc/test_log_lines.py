"""Lines of the log from children to the front end, through real processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.core import logs
from djl_python.ipc import log_lines

#: Logs, then has a child of its own log: each as `begin_child` sets processes up.
CHILD = """
import logging, subprocess, sys
from djl_python.core import logs
from djl_python.ipc import log_lines
logs.configure("info", name=sys.argv[2])
log_lines.send_to(int(sys.argv[1]))
logging.getLogger().info("hello from %s", sys.argv[2])
if sys.argv[3:]:
    (inherited,) = log_lines.descriptors()
    subprocess.run([sys.executable, __file__, str(inherited), *sys.argv[3:]], pass_fds=(inherited,), check=True)
"""
#: Logs more than a socket holds, and a last line when told to.
TALKATIVE = """
import logging, sys
from djl_python.core import logs
from djl_python.ipc import log_lines
logs.configure("info")
log_lines.send_to(int(sys.argv[1]))
for _ in range(1000):
    logging.getLogger().info("x" * 4000)
print("all are logged", flush=True)
sys.stdin.readline()
logging.getLogger().info("after all")
"""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


async def test_lines_come_from_this_process_and_from_all_below(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    lines: list[str] = []
    logs.configure("info")
    with log_lines.gathered(lines.append):
        logging.getLogger().info("hello from %s", "here")
        (inherited,) = log_lines.descriptors()
        command = (str(program), str(inherited), "child", "grandchild")
        process = await asyncio.create_subprocess_exec(sys.executable, *command, pass_fds=(inherited,))
        assert await process.wait() == 0
        async with asyncio.timeout(5):
            while len(lines) < 3:
                await asyncio.sleep(0.01)
    assert [text.partition("INFO ")[2] for text in lines] == [
        "- hello from here",
        "child hello from child",
        "grandchild hello from grandchild",
    ]
    logging.getLogger().info("nobody gathers this")
    assert len(lines) == 3
    assert log_lines.descriptors() == ()


def test_a_full_socket_delays_nobody_and_what_was_lost_is_said(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text(TALKATIVE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        inherited = theirs.fileno()
        with subprocess.Popen(
            [sys.executable, str(program), str(inherited)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(inherited,),
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "all are logged\n"
            for _ in range(5):
                assert ours.recv(log_lines.MAX_LINE_BYTES).decode().endswith("x" * 4000)
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.wait(60) == 0
        ours.setblocking(False)
        texts = []
        with contextlib.suppress(BlockingIOError):
            while True:
                texts.append(ours.recv(log_lines.MAX_LINE_BYTES).decode())
    lost = 1000 - 5 - (len(texts) - 1)
    assert lost > 0
    assert texts[-1].startswith(f"({lost} records of this process are on stderr alone)\n")
    assert texts[-1].endswith("after all")
