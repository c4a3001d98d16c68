"""--record, --replay and --compare as a user runs them, with a real server behind."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from djl_python import cli
from djl_python.testing import RunningServer, free_port

SECRET = "s3cret"


@contextlib.contextmanager
def recording(target: str, file: Path, *options: str) -> Iterator[str]:
    """The URL of a proxy that records."""
    command = [sys.executable, "-m", "djl_python", "bench", target, "--record", str(file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = re.search("http://127.0.0.1:[0-9]+", process.stdout.readline())
        assert said is not None
        try:
            yield said[0]
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=30)
        assert process.returncode == 0 and "requests are in" in rest


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]


@pytest.fixture(scope="module")
def recorded(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat, a stream of one, LMI, an error, a page: as a client sends them."""
    file = tmp_path_factory.mktemp("traffic") / "traffic.jsonl"
    with recording(server.url, file) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key=SECRET)
        completion = client.completions.create(model="echo", prompt="Hello", max_tokens=5, temperature=0)
        assert completion.choices[0].text
        pieces = client.completions.create(model="echo", prompt="Hello", max_tokens=5, temperature=0, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == completion.choices[0].text
        with httpx.Client(base_url=url, cookies={"session": SECRET}) as other:
            body = {"inputs": "Hello", "parameters": {"max_new_tokens": 5}}
            assert other.post("/invocations?api_key=" + SECRET, json=body).status_code == 200
            assert other.post("/invocations", json={"inputs": 3}).is_client_error
            assert other.get("/ping").json() == httpx.get(server.url + "/ping").json()
    return file


def test_requests_are_recorded_without_secrets(recorded: Path) -> None:
    requests = entries(recorded)
    assert [one["path"].partition("?")[0] for one in requests] == [
        *("/v1/completions", "/v1/completions", "/invocations", "/invocations", "/ping")
    ]
    assert json.loads(requests[0]["body"])["prompt"] == "Hello"
    assert requests[0]["status"] == 200 and requests[0]["answer_bytes"] > 50 and requests[0]["duration_s"] > 0
    assert [one["at_s"] for one in requests] == sorted(one["at_s"] for one in requests)
    assert SECRET not in recorded.read_text(encoding="utf-8")


def test_a_recording_is_played(server: RunningServer, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", server.url, "--replay", str(recorded), "--speed", "100"]) == 0
    printed = capsys.readouterr().out
    assert "5 requests, 5 with the status that was recorded" in printed
    assert "played, to the first byte: p50" in printed


def test_two_servers_that_are_alike(server: RunningServer, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", server.url, "--replay", str(recorded), "--compare", server.url, "--speed", "100"]
    assert cli.main(command) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "5 of 5 answers are the same" in printed and "not compared: created," in printed


def test_two_servers_that_differ(
    server: RunningServer, demo: RunningServer, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", server.url, "--replay", str(recorded), "--compare", demo.url, "--speed", "100"]
    assert cli.main(command) == 1
    printed = capsys.readouterr().out
    assert re.search(r'^#1 POST /v1/completions\n  body\.model: "echo" \| "demo"\n', printed, re.MULTILINE)
    assert re.search(r"differ at body\.choices\[\]\.text", printed)


def test_a_server_that_is_not_there(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert cli.main(["bench", url, "--replay", str(recorded), "--speed", "100"]) == 1
    assert "status 200 was recorded, ConnectError" in capsys.readouterr().out


def test_bodies_are_redacted_and_left_out(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"model": "echo", "prompt": "My name is Zoë", "max_tokens": 2}
    with recording(server.url, tmp_path / "a", "--redact", "prompt", "--keep-header", "X-Tenant") as url:
        httpx.post(f"{url}/v1/completions", json=body, headers={"x-tenant": "acme"})
    (one,) = entries(tmp_path / "a")
    assert json.loads(one["body"])["prompt"] == "xx xxxx xx xxx" and one["headers"]["x-tenant"] == "acme"
    with recording(server.url, tmp_path / "b", "--no-bodies") as url:
        httpx.post(f"{url}/v1/completions", json=body)
    assert cli.main(["bench", server.url, "--replay", str(tmp_path / "b")]) == 0
    assert "1 requests were recorded without their bodies: left out" in capsys.readouterr().err


def test_requests_pass_as_they_are(tmp_path: Path) -> None:
    """A client that does not ask for compression gets none; nothing is added to what it sends."""
    got: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.extend(name.lower() for name in self.headers)
            self.send_response(299, "Odd")
            self.send_header("X-Two", "1")
            self.send_header("X-Two", "2")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as behind:
        threading.Thread(target=behind.serve_forever, daemon=True).start()
        with recording(f"http://127.0.0.1:{behind.server_port}", tmp_path / "a") as url:
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            connection.putrequest("GET", "/a%2Fb?c=%20d", skip_accept_encoding=True)
            connection.endheaders()
            answer = connection.getresponse()
            answer.read()
            connection.close()
        behind.shutdown()
    assert (answer.status, answer.reason, answer.headers.get_all("x-two")) == (299, "Odd", ["1", "2"])
    assert set(got) <= {"host", "connection"}
    assert [one["path"] for one in entries(tmp_path / "a")] == ["/a%2Fb?c=%20d"]


@pytest.mark.slow
def test_a_stream_that_is_under_way_is_answered_and_recorded(server: RunningServer, tmp_path: Path) -> None:
    body = {"model": "echo", "prompt": "Hello", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    proxy = contextlib.ExitStack()
    url = proxy.enter_context(recording(server.url, tmp_path / "a"))
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        ending = threading.Thread(target=proxy.close)  # it is told to end; the rest of the stream comes all the same
        ending.start()
        rest = list(lines)
    ending.join()
    assert "data: [DONE]" in rest
    assert [one["status"] for one in entries(tmp_path / "a")] == [200]


@pytest.mark.slow
def test_a_server_that_is_away_while_it_records(tmp_path: Path) -> None:
    with recording(f"http://127.0.0.1:{free_port()}", tmp_path / "a") as url:
        answer = httpx.get(f"{url}/ping")
        assert answer.status_code == 502 and "ConnectError" in answer.text
    assert [(one["path"], one["status"]) for one in entries(tmp_path / "a")] == [("/ping", 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compare", "http://b"], "--compare needs --replay"),
        (["--replay", "a", "--record", "b"], "not allowed with"),
        (["--replay", "a", "--speed", "0"], "expected a positive number"),
    ],
)
def test_mistakes_in_the_arguments(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "http://a", *options])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_files_that_cant_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("{}\n")
    assert cli.main(["bench", "http://a", "--replay", str(tmp_path / "a")]) == 1
    assert "line 1: not a recording" in capsys.readouterr().err
    assert cli.main(["bench", "http://a", "--replay", str(tmp_path / "none")]) == 1
    assert cli.main(["bench", "http://a", "--record", str(tmp_path / "a")]) == 1
    assert "File exists" in capsys.readouterr().err
    assert cli.main(["bench", "http://a", "--record", str(tmp_path / "b"), "--listen", "8081"]) == 1
    assert "expected HOST:PORT" in capsys.readouterr().err
