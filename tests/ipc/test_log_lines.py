"""Lines of the log from children to the front end, through real processes."""

from __future__ import annotations

import asyncio
import logging
import socket
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


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


async def test_lines_come_from_this_process_and_from_all_below(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    found: list[str] = []
    logs.configure("info")
    with log_lines.gathered(found.append):
        logging.getLogger().info("hello from %s", "here")
        (inherited,) = log_lines.descriptors()
        command = (str(program), str(inherited), "child", "grandchild")
        process = await asyncio.create_subprocess_exec(sys.executable, *command, pass_fds=(inherited,))
        assert await process.wait() == 0
        async with asyncio.timeout(5):
            while len(found) < 3:
                await asyncio.sleep(0.01)
    assert [text.partition("INFO ")[2] for text in found] == [
        "- hello from here",
        "child hello from child",
        "grandchild hello from grandchild",
    ]
    logging.getLogger().info("nobody gathers this")
    assert len(found) == 3
    assert log_lines.descriptors() == ()


def test_a_full_socket_delays_nobody_and_what_was_lost_is_said() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = list(logs._readers)
    with ours:
        log_lines.send_to(theirs.detach())
        (send,) = [one for one in logs._readers if one not in before]
        try:
            line = "x" * 4000
            for _ in range(1000):
                send(line)
            ours.setblocking(False)
            received = 0
            while received < 5:
                assert ours.recv(log_lines.MAX_LINE_BYTES).decode() == line
                received += 1
            send("after all")
            texts = []
            try:
                while True:
                    texts.append(ours.recv(log_lines.MAX_LINE_BYTES).decode())
            except BlockingIOError:
                pass
            lost = 1000 - received - (len(texts) - 1)
            assert lost > 0
            assert texts[-1] == f"({lost} records of this process are on stderr alone)\nafter all"
        finally:
            logs.remove_reader(send)
            log_lines._ends.pop().close()
