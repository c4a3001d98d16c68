"""`djl-serving run`, with the demo model behind a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from djl_python.testing import RunningServer
from tests.conftest import DEMO

from .conftest import ENDLESS, PATIENCE_S

ANSWER = (
    "Deep learning is a branch of machine learning that trains neural networks with many layers to find patterns "
    "in data.\n"
)
COMMAND = [sys.executable, "-m", "djl_python", "run"]


def run(*arguments: str, stdin: str = "", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    return done.returncode, done.stdout, done.stderr


def test_stdout_has_the_answer_alone(demo: RunningServer) -> None:
    assert run(demo.url, "What is deep learning?", "--temperature", "0") == (0, ANSWER, "")
    assert run("--temperature", "0", demo.url, "--seed", "1", "What is deep learning?")[:2] == (0, ANSWER)


def test_a_missing_model_and_ignored_parameters_are_told_on_stderr(demo: RunningServer) -> None:
    status, out, err = run(demo.url, "What is deep learning?", "--temperature", "0", "--model", "nope")
    assert (status, out) == (0, ANSWER)
    assert err == f"djl-serving run: {demo.url} has no model nope: demo answered\n"
    _, _, err = run(demo.url, "Hello", "--body", '{"max_tokens": 1, "mine": 1}')
    assert err == "djl-serving run: without effect on this answer: mine\n"


def test_the_prompt_comes_from_stdin_too(demo: RunningServer) -> None:
    assert run(demo.url, "--temperature", "0", stdin="What is deep learning?\n") == (0, ANSWER, "")
    status, answer, _ = run(
        f"{demo.url}/v1", "What is", "-", "--completion", "--max-tokens", "4", stdin="deep learning?"
    )
    assert status == 0 and answer.strip()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((), 2, "the prompt is empty"),
        (("Hello", "--completion", "--system", "x"), 2, "--system has no place"),
        (("Hello", "--body", "[1]"), 2, "expected a JSON object"),
        (("Hello", "--temperature", "-1"), 1, "400: temperature"),
        (("Hello", "--set", "dtype=fp32"), 2, "is a server with settings of its own"),
        (("Hello", "--max-modl-len", "4"), 2, "there is no option --max-modl-len; did you mean --max-model-len?"),
        (("Hello", "--enforce-eager=maybe"), 1, "--enforce-eager=maybe: expected no value, or true or false"),
    ],
)
def test_mistakes_are_told_on_stderr(demo: RunningServer, arguments: tuple[str, ...], status: int, told: str) -> None:
    code, out, err = run(demo.url, *arguments)
    assert (code, out) == (status, "") and told in err


def test_a_url_that_is_no_openai_api_fails(demo: RunningServer) -> None:
    status, out, err = run(f"{demo.url}/ping", "Hello")
    assert (status, out) == (1, "") and "404" in err


def test_an_answer_that_nobody_wants_ends(repeating: RunningServer) -> None:
    with subprocess.Popen([*COMMAND, repeating.url, "Hello", "--body", ENDLESS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


@pytest.mark.slow
def test_a_model_is_served_for_one_answer(tmp_path: Path) -> None:
    status, out, err = run(str(DEMO), "What is deep learning?", "--temperature", "0")
    assert (status, out) == (0, ANSWER) and "Traceback" not in err
    status, out, err = run(str(DEMO), "What is deep learning?", "--max-model-len", "4")
    assert (status, out) == (1, "") and "maximum context length is 4 tokens" in err
    (tmp_path / "serving.properties").write_text("option.model_id=/nowhere\n")
    status, out, err = run(str(tmp_path), "Hello")
    assert (status, out) == (1, "") and "/nowhere" in err
