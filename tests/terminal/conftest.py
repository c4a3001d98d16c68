"""A terminal, and what runs in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x08")
#: A body whose answer nobody waits for.
ENDLESS = '{"max_tokens": 100000}'
#: Longest wait for something to appear.
PATIENCE_S = 60


class Terminal:
    """`djl-serving ARGUMENTS` in a pseudo-terminal, which a test types into."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            ["-m", "djl_python", *arguments],
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment},
            encoding="utf-8",
            timeout=PATIENCE_S,
            dimensions=(40, 160),
        )

    def see(self, pattern: str) -> str:
        """What came before what matches the pattern, and that; without colours."""
        self.child.expect(pattern)
        return _ESCAPES.sub("", f"{self.child.before}{self.child.after}")

    def prompted(self) -> Terminal:
        """Wait until the prompt reads keys."""
        self.child.expect(r">>>.*\x1b\[\?25h")
        return self

    def enter(self, line: str) -> None:
        """Type a line at the next prompt."""
        self.prompted().child.send(f"{line}\r")

    def press(self, key: str) -> None:
        self.child.send(key)

    def end(self) -> int | None:
        """Wait for its end: the exit status."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts commands; each has a state directory of the test's own."""
    started: list[Terminal] = []

    def start(*arguments: str, **environment: str) -> Terminal:
        started.append(Terminal(list(arguments), {"XDG_STATE_HOME": str(tmp_path / "state"), **environment}))
        return started[-1]

    yield start
    for one in started:
        one.child.close(force=True)


@pytest.fixture(scope="package")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model that repeats the messages, a byte each 20 ms, until `max_tokens`."""
    path = write_byte_tokenizer(tmp_path_factory.mktemp("models") / "repeating")
    (path / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    settings = f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms=20\n"
    (path / "serving.properties").write_text(settings)
    with running_server("-m", f"repeating={path}") as server:
        yield server
