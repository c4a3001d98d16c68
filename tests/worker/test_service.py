"""A spawned worker from the front end's side: calls, streams, errors, cancellation, and every way to end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from djl_python import worker
from tests.worker.conftest import Front, Loader

ECHO = """
    from djl_python import Input, Output

    def handle(inputs: Input) -> Output:
        if inputs.is_empty():
            return None
        return Output().add_as_json({"got": inputs.get_as_json(), "q": inputs.content.get_keys()})
"""


async def test_sync_handler_answers(loaded: Loader) -> None:
    front = await loaded(ECHO)
    answer = await front.call({"a": 1}, query=(("k", "v"),))
    assert answer.status == 200
    assert answer.json == {"got": {"a": 1}, "q": ["k", "data"]}
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.headers["x-request-id"]) >= 16
    assert front.statuses[-1].info.capacity == 1


async def test_request_id_comes_back_and_reaches_the_handler(loaded: Loader) -> None:
    front = await loaded(
        """
        from djl_python import Output
        def handle(inputs):
            return Output().add(inputs.get_property("X-Request-Id") or "")
        """
    )
    answer = await front.call(b"x", headers={"x-request-id": "abc"})
    assert (answer.body, answer.headers["x-request-id"]) == (b"abc", "abc")
    generated = await front.call(b"x")
    assert generated.body.decode() == generated.headers["x-request-id"] != ""


@pytest.mark.parametrize(("device", "index"), [("cuda:1", "1"), ("cpu", "-1")])
async def test_a_handler_is_told_its_gpu_when_it_loads_and_with_every_call(
    loaded: Loader, device: str, index: str
) -> None:
    one = await loaded(
        """
        from djl_python import Output

        class Handler:
            def load(self, context):
                self.device = context.properties["device_id"]

            def handle(self, inputs):
                return Output().add_as_json([self.device, inputs.get_property("device_id")])
        """,
        device=device,
    )
    assert (await one.call(b"x", headers={"device_id": "7"})).json == [index, index]


async def test_the_first_call_alone_has_the_options_that_would_make_a_batch_of_others(loaded: Loader) -> None:
    one = await loaded(
        """
        from djl_python import Output
        told = []
        def handle(inputs):
            told.append(inputs.get_properties().get("batch_size"))
            return None if inputs.is_empty() else Output().add_as_json(told)
        """,
        properties={"batch_size": "4"},
    )
    assert (await one.call(b"x")).json == ["4", None]


async def test_a_handler_may_say_what_it_answers(loaded: Loader) -> None:
    source = """
        from djl_python.handler import Handler

        class Mine(Handler):
            example = {"text": "it's"}

            async def load(self, context): ...
            async def serve(self, inputs, reply): ...
        """
    assert (await loaded(source)).statuses[-1].info.example == '{"text": "it\'s"}'


async def test_starts_without_torch(loaded: Loader) -> None:
    front = await loaded(
        """
        import sys
        from djl_python import Output
        def handle(inputs):
            return Output().add_as_json([m for m in ("torch", "tornado", "transformers", "numpy") if m in sys.modules])
        """
    )
    assert (await front.call(b"x")).json == []


async def test_a_cell_of_a_csv_body_may_be_long(loaded: Loader) -> None:
    front = await loaded(
        """
        from djl_python import Output
        from djl_python.encode_decode import decode
        def handle(inputs):
            if inputs.is_empty():
                return None
            cells = decode(inputs, inputs.get_property("content-type"))["inputs"]
            return Output().add_as_json([len(cell) for cell in cells])
        """
    )
    answer = await front.call(b"inputs\n" + b"a" * 140_000, headers={"content-type": "text/csv"})
    assert (answer.status, answer.json) == (200, [140_000])


async def test_async_handler_answers_many_at_once(loaded: Loader) -> None:
    front = await loaded(
        """
        import asyncio
        from djl_python import Output
        waiting = []
        async def handle(inputs):
            if inputs.is_empty():
                return None
            gate = asyncio.get_running_loop().create_future()
            waiting.append(gate)
            if len(waiting) == 3:
                for one in waiting:
                    one.set_result(None)
            await gate
            return Output().add(inputs.get_as_string())
        """
    )
    assert front.statuses[-1].info.capacity == 1000
    answers = await asyncio.gather(*(front.call(str(n).encode()) for n in range(3)))
    assert [answer.body for answer in answers] == [b"0", b"1", b"2"]


async def test_none_is_204(loaded: Loader) -> None:
    front = await loaded("def handle(inputs): return None")
    answer = await front.call(b"x")
    assert (answer.status, answer.body) == (204, b"")


async def test_exception_is_one_line_to_the_client_and_the_users_frames_in_the_log(
    loaded: Loader, capfd: pytest.CaptureFixture[str]
) -> None:
    front = await loaded(
        """
        def helper(value):
            return 1 / value
        def handle(inputs):
            if inputs.is_empty():
                return None
            if inputs.get_as_string() == "two":
                raise ValueError("first line\\nsecond line")
            return helper(0)
        """
    )
    answer = await front.call(b"x", headers={"x-request-id": "r-1"})
    assert answer.status == 424
    assert answer.json == {
        "code": 424,
        "message": "invoke handler failure",
        "error": "ZeroDivisionError: division by zero",
    }
    assert (await front.call(b"two")).json["error"] == "ValueError: first line"
    log = capfd.readouterr().err
    assert " [r-1] model demo: ZeroDivisionError: division by zero" in log
    assert "return helper(0)" in log
    assert "return 1 / value" in log
    for hidden in ("djl_python/worker", "concurrent/futures", "asyncio"):
        assert hidden not in log
    front.stop()
    assert await front.exit_status() == worker.EXIT_STOPPED


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("raise StopIteration", "RuntimeError: the handler raised StopIteration"),
        ("import sys; sys.exit(2)", "the handler called sys.exit(2)"),
        ("return 'text'", "Invalid output type: str, expected an Output or None"),
        ("return Output(code='x')", "the Output's code is 'x', expected an HTTP status from 200 to 599"),
        ("return Output().add_property('a', 'b\\n')", "property 'a' cannot be sent"),
        ("return Output().add_property('a b', 'c')", "property 'a b' is not the name"),
        ("return Output().add({1, object()})", "TypeError"),
        ("inputs.get_as_bytes('nope')", "requested data for key: nope"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise type('PanicException', (BaseException,), {})('rusty')", "PanicException: rusty"),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError: the handler cancelled itself"),
        ("raise ValueError('caf\\udce9')", "ValueError: caf\\udce9"),
    ],
)
async def test_every_bad_end_of_a_sync_handler_is_that_calls_error(loaded: Loader, statement: str, cause: str) -> None:
    front = await loaded(
        f"""
        from djl_python import Output
        def handle(inputs):
            if inputs.is_empty():
                return None
            if inputs.get_as_string() == "good":
                return Output().add("fine")
            {statement}
        """
    )
    bad, good = await asyncio.gather(front.call(b"bad"), front.call(b"good"))
    assert bad.status == 424
    assert cause in bad.json["error"]
    assert (good.status, good.body) == (200, b"fine")


ASYNC_ENDS = """
    import asyncio, sys
    from djl_python import Output

    async def leave():
        sys.exit(3)

    async def end(how):
        if how == "exit":
            sys.exit(1)
        if how == "task":
            await asyncio.create_task(leave())
        if how == "cancel":
            raise asyncio.CancelledError
        if how == "close":
            raise GeneratorExit
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "group":
            raise BaseExceptionGroup("several", [KeyboardInterrupt()])

    async def handle(inputs):
        if inputs.is_empty():
            return None
        out = Output()
        for index, item in enumerate(inputs.get_batches()):
            await end(item.get_as_string())
            out.add("fine", batch_index=index)
        return out
"""
ASYNC_CAUSES = {
    b"exit": "the handler called sys.exit(1)",
    b"task": "the handler called sys.exit(3)",
    b"cancel": "CancelledError: the handler cancelled itself",
    b"close": "GeneratorExit",
    b"interrupt": "KeyboardInterrupt",
    b"group": "BaseExceptionGroup: several (1 sub-exception)",
}


@pytest.mark.parametrize("batch_size", [1, 7])
async def test_no_bad_end_of_an_async_handler_costs_a_neighbour(loaded: Loader, batch_size: int) -> None:
    front = await loaded(ASYNC_ENDS, serving={"batch_size": batch_size, "max_batch_delay_ms": 5000})
    good, *bad = await asyncio.gather(front.call(b"good"), *(front.call(how) for how in ASYNC_CAUSES))
    assert (good.status, good.body) == (200, b"fine")
    assert [answer.json.get("error") for answer in bad] == list(ASYNC_CAUSES.values())
    assert {answer.status for answer in bad} == {424}


async def test_body_that_is_not_json_is_a_payload_error(loaded: Loader) -> None:
    front = await loaded(ECHO)
    answer = await front.call(b"{oops", headers={"content-type": "application/json"})
    assert answer.status == 424
    assert "not valid JSON" in answer.json["error"]
    broken = await front.call(b"--x\r\n", headers={"content-type": "multipart/form-data; boundary=x"})
    assert broken.status == 424
    assert "cut off" in broken.json["error"]


# ------------------------------------------------------------------------------------------------ streams


async def test_stream_content_arrives_piece_by_piece(loaded: Loader, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    front = await loaded(
        f"""
        import os, time
        from djl_python import Output
        def pieces():
            yield ["a"]
            while not os.path.exists({str(gate)!r}):
                time.sleep(0.005)
            yield ["b"]
        def handle(inputs):
            return Output().add_stream_content(pieces())
        """
    )
    answer = front.send(b"x")
    await answer.until(answer.moved)
    assert answer.body == b'{"outputs":["a"]}\n'
    assert not answer.ended.is_set()
    gate.touch()
    await answer.until(answer.ended)
    assert answer.body == b'{"outputs":["a"]}\n{"outputs":["b"]}\n'
    assert answer.headers["content-type"] == "application/jsonlines"


@pytest.mark.parametrize("prefix", ["", "async "])
async def test_generator_handlers_stream(loaded: Loader, prefix: str) -> None:
    front = await loaded(
        f"""
        from djl_python import Output
        {prefix}def handle(inputs):
            if inputs.is_empty():
                return
            yield Output(code=201).add_property("Content-Type", "text/event-stream")
            yield "data: 1\\n\\n"
            yield b"data: 2\\n\\n"
        """
    )
    answer = await front.call(b"x")
    assert (answer.status, answer.headers["content-type"]) == (201, "text/event-stream")
    assert answer.body == b"data: 1\n\ndata: 2\n\n"


async def test_error_before_the_first_piece_has_its_own_status(loaded: Loader) -> None:
    front = await loaded(
        """
        def handle(inputs):
            if not inputs.is_empty():
                raise ValueError("early")
            yield ""
        """
    )
    answer = await front.call(b"x")
    assert (answer.status, answer.json["error"]) == (424, "ValueError: early")


async def test_error_after_the_first_piece_ends_the_stream(loaded: Loader) -> None:
    front = await loaded(
        """
        from djl_python import Output
        def pieces():
            yield "a"
            raise ValueError("late")
        def handle(inputs):
            return Output().add_stream_content(pieces())
        """
    )
    answer = await front.call(b"x")
    first, last, end = answer.body.split(b"\n")
    assert (answer.status, first, end) == (200, b'{"outputs":"a"}', b"")
    assert b"ValueError: late" in last
    assert b'"finish_reason":"error"' in last


async def test_a_stream_without_a_place_for_an_error_breaks_off(loaded: Loader) -> None:
    front = await loaded(
        """
        from djl_python import Output
        def pieces():
            yield "a,b"
            raise ValueError("late")
        def handle(inputs):
            return Output().add_property("content-type", "text/csv").add_stream_content(pieces(), None)
        """
    )
    answer = front.send(b"x")
    await answer.until(answer.ended)
    assert (answer.broken, answer.body) == (True, b"a,b")


async def test_finalizer_runs_once_the_answer_is_sent(loaded: Loader, tmp_path: Path) -> None:
    front = await loaded(
        f"""
        import pathlib
        from djl_python import Output
        def handle(inputs):
            if inputs.is_empty():
                return None
            if inputs.get_as_string() == "first":
                return Output().add("one").finalize(pathlib.Path({str(tmp_path)!r}, "done").write_text, "yes")
            return Output().add(pathlib.Path({str(tmp_path)!r}, "done").read_text())
        """
    )
    await front.call(b"first")
    assert (await front.call(b"second")).body == b"yes"


# ------------------------------------------------------------------------------------------------ cancellation


async def test_cancelled_async_handler_is_told_and_answers_nothing(loaded: Loader, tmp_path: Path) -> None:
    front = await loaded(
        f"""
        import asyncio, pathlib
        async def handle(inputs):
            if inputs.is_empty():
                return
            try:
                yield "begun"
                await asyncio.Event().wait()
            finally:
                pathlib.Path({str(tmp_path)!r}, "closed").touch()
        """
    )
    answer = front.send(b"x")
    await answer.until(answer.moved)
    front.cancel(answer)
    await answer.until(answer.ended)  # the worker has let go of it
    assert answer.body == b"begun"
    assert (tmp_path / "closed").exists()
    front.stop()
    assert await front.exit_status() == worker.EXIT_STOPPED


BLOCKS = """
    import pathlib, threading
    from djl_python import Output

    HERE = pathlib.Path(__file__).parent

    def handle(inputs):
        if inputs.is_empty():
            return None
        name = inputs.get_as_string()
        if name.startswith("block"):
            (HERE / "begun").touch()
            while not (HERE / "go").exists():
                threading.Event().wait(0.005)
        return Output().add("answer " + name).finalize((HERE / f"finalized-{name}").touch)
"""


async def there(front: Front, name: str) -> None:
    """Until the handler has made a file of this name."""
    async with asyncio.timeout(10):
        while not Path(front.config.path, name).exists():
            await asyncio.sleep(0.005)


async def begun(front: Front) -> None:
    await there(front, "begun")


async def test_disconnect_of_a_running_sync_call_discards_its_result(loaded: Loader) -> None:
    front = await loaded(BLOCKS)
    gone, waiting = front.send(b"block"), front.send(b"waiting")
    await begun(front)
    front.cancel(gone, "disconnect")
    front.cancel(waiting, "timeout")
    await waiting.until(waiting.ended)  # both have been heard
    following = front.send(b"next")
    assert not gone.ended.is_set()
    Path(front.config.path, "go").touch()
    await following.until(following.ended)
    assert following.body == b"answer next"
    await gone.until(gone.ended)
    assert not gone.started.is_set() and gone.body == b""
    await there(front, "finalized-block")


async def test_timeout_of_a_call_that_does_not_return_ends_the_process(
    loaded: Loader, capfd: pytest.CaptureFixture[str]
) -> None:
    front = await loaded(BLOCKS)
    stuck = front.send(b"block")
    await begun(front)
    front.cancel(stuck, "timeout")
    assert await front.exit_status() == worker.EXIT_TIMEOUT
    assert not stuck.started.is_set()
    assert front.statuses[-1].state == "failed"
    assert "did not return in time" in capfd.readouterr().err


async def test_timeout_of_a_waiting_or_returning_call_does_not(loaded: Loader) -> None:
    front = await loaded(BLOCKS)
    running, waiting = front.send(b"block"), front.send(b"waiting")
    await begun(front)
    front.cancel(waiting, "timeout")
    front.cancel(running, "timeout")
    await waiting.until(waiting.ended)  # it has been heard
    Path(front.config.path, "go").touch()
    assert (await front.call(b"after")).body == b"answer after"
    front.stop()
    assert await front.exit_status() == worker.EXIT_STOPPED
    assert not waiting.started.is_set()


# ------------------------------------------------------------------------------------------------ ways to end


async def test_front_end_gone_while_the_thread_is_blocked(loaded: Loader) -> None:
    front = await loaded(BLOCKS)
    front.send(b"block")
    await begun(front)
    front.channel.close()
    assert await front.exit_status() == worker.EXIT_ORPHANED


async def test_front_end_gone_while_the_model_loads(front: Callable[..., Front]) -> None:
    one = front(
        """
        import pathlib, threading
        pathlib.Path(__file__).parent.joinpath("begun").touch()
        threading.Event().wait()
        """
    )
    await one.start()
    await begun(one)
    one.channel.close()
    assert await one.exit_status() == worker.EXIT_ORPHANED


async def test_front_end_killed(tmp_path: Path, config_of: Callable[..., object]) -> None:
    """SIGKILL of the parent, which has a worker whose event loop is blocked."""
    config_of(
        """
        import os, pathlib, time
        async def handle(inputs):
            pathlib.Path(__file__).parent.joinpath("pid").write_text(str(os.getpid()))
            time.sleep(600)
        """
    )
    script = f"""
import asyncio, msgspec
from djl_python.ipc.channel import Channel
from djl_python.config import ModelConfig
from djl_python.ipc.processes import spawn
from djl_python.ipc.protocol import Load

async def main():
    process, sock = await spawn("djl_python.worker", log_name="demo/0", new_session=True)
    channel = Channel(lambda m: None, lambda: None)
    await channel.attach(sock)
    channel.send(Load(msgspec.msgpack.encode(ModelConfig(name="demo", path={str(tmp_path)!r}))))
    await asyncio.Event().wait()

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    file = tmp_path / "pid"
    while not (file.exists() and file.read_text()):
        await asyncio.sleep(0.01)
    pid = int(file.read_text())
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(10):
        while _alive(pid):
            await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_stop_closes_a_class_handler(loaded: Loader, tmp_path: Path) -> None:
    front = await loaded(
        """
        from djl_python import Output
        class Counter:
            def load(self, context):
                self.name, self.dir = context.name, context.model_dir
                context.progress("weights", 1, 2)
                context.metrics.count("loads")
                self.calls = 0
            def handle(self, inputs):
                assert not inputs.is_empty()
                self.calls += 1
                return Output().add_as_json([self.name, self.calls])
            def close(self):
                (self.dir / "closed").write_text(str(self.calls))
        """
    )
    assert [(s.detail, s.done, s.total) for s in front.statuses if s.total] == [("weights", 1, 2)]
    await asyncio.wait_for(front.reported.wait(), 10)
    assert front.reports[0].counts == {"loads": 1}
    assert (await front.call(b"x")).json == ["demo", 1]
    front.stop()
    assert await front.exit_status() == worker.EXIT_STOPPED
    assert (tmp_path / "closed").read_text() == "1"


async def test_a_wrong_number_fails_the_call_that_it_is_in_and_no_other(loaded: Loader) -> None:
    front = await loaded(
        """
        import asyncio
        from djl_python import Output
        class Counter:
            def load(self, context):
                self.metrics, self.failed = context.metrics, asyncio.Event()
            async def handle(self, inputs):
                amount = inputs.get_as_json()
                if amount:
                    await self.failed.wait()
                try:
                    self.metrics.count("generated_tokens", amount or -1)
                finally:
                    self.failed.set()
                return Output().add("counted")
        """
    )
    neighbour, wrong = await asyncio.gather(front.call(3), front.call(0))
    assert wrong.status == 424 and "can't grow by -1" in wrong.json["error"]
    assert neighbour.body == b"counted"


async def test_progress_that_is_no_number_is_told_where_it_was_said(front: Callable[..., Front]) -> None:
    status = await front(
        """
        class Model:
            def load(self, context):
                context.progress("weights", 0.5, 1)
            def handle(self, inputs):
                pass
        """
    ).load()
    assert status.state == "failed"
    assert "TypeError: 'float' object cannot be interpreted as an integer" in status.detail
    assert 'context.progress("weights", 0.5, 1)' in status.detail


async def test_ctrl_c_is_left_to_the_front_end(loaded: Loader) -> None:
    front = await loaded(ECHO)
    front.process.send_signal(signal.SIGINT)
    assert (await front.call({})).status == 200


async def test_handler_that_can_no_longer_answer(loaded: Loader, capfd: pytest.CaptureFixture[str]) -> None:
    front = await loaded(
        """
        class Broken:
            def load(self, context):
                self.fail = context.fail
            def handle(self, inputs):
                self.fail("the device is lost")
        """
    )
    front.send(b"x")
    assert await front.exit_status() == worker.EXIT_HANDLER_FAILED
    assert "the device is lost" in front.statuses[-1].detail
    assert "the device is lost" in capfd.readouterr().err


# ------------------------------------------------------------------------------------------------ failing to load


@pytest.mark.parametrize(
    ("source", "expected", "hidden"),
    [
        (
            "def work():\n    raise ValueError('no weights')\nwork()",
            ["ValueError: no weights", "model.py", "work()"],
            ["djl_python/worker", "importlib"],
        ),
        ("import not_there", ["ModuleNotFoundError: No module named 'not_there'", "model.py"], []),
        ("def handle(:", ["SyntaxError", "model.py"], []),
        ("import sys; sys.exit(7)", ["sys.exit(7)"], []),
        ("class Panic(BaseException): pass\nraise Panic('rusty')", ["Panic: rusty", "model.py"], []),
        ("async def handle(i): raise KeyboardInterrupt", ["KeyboardInterrupt", "model.py"], []),
        ("def other(x): pass", ["has no function 'handle'", "Its functions: other"], []),
        (
            "from djl_python import Output\ndef handle(i): return Output().error('no GPU')",
            ["first, empty call was answered with code 424", "no GPU"],
            [],
        ),
        ("def handle(i): return i.get_as_json()", ["begin it with `if inputs.is_empty(): return None`"], []),
        (
            "from djl_python.handler import Handler\nclass H(Handler):\n    example = {'a': {1}}\n"
            "    async def load(self, c): ...\n    async def serve(self, i, r): ...",
            ["TypeError", "set"],
            [],
        ),
        (
            "class H:\n    def load(self, c): raise OSError('disk')\n    def handle(self, i): pass",
            ["OSError: disk"],
            ["user_handler"],
        ),
    ],
)
async def test_failure_to_load_is_one_readable_block(
    front: Callable[..., Front], source: str, expected: list[str], hidden: list[str]
) -> None:
    one = front(source)
    status = await one.load()
    assert status.state == "failed"
    assert not status.detail.startswith("Model "), "whoever shows it names the model"
    for text in expected:
        assert text in status.detail
    for text in hidden:
        assert text not in status.detail
    assert await one.exit_status() == worker.EXIT_LOAD_FAILED


async def test_call_before_the_model_is_there(front: Callable[..., Front], tmp_path: Path) -> None:
    one = front(
        """
        import pathlib, threading
        while not pathlib.Path(__file__).parent.joinpath("go").exists():
            threading.Event().wait(0.005)
        def handle(inputs):
            return None
        """
    )
    await one.start()
    assert (await one.call({})).status == 503
    (tmp_path / "go").touch()
    await asyncio.wait_for(one.settled.wait(), 20)
    assert (await one.call({})).status == 204


# ------------------------------------------------------------------------------------------------ batches

BATCH = """
    from djl_python import Output
    seen = []
    def handle(inputs):
        if inputs.is_empty():
            return None
        items = inputs.get_batches()
        seen.append(len(items))
        out = Output()
        if len(items) == 1:
            value = items[0].get_as_json()
            if value == "seen":
                return out.add_as_json(seen)
            if value == "bad":
                raise ValueError("bad item")
            return out.add_as_json([value, inputs.is_batch()])
        assert sorted(k[:10] for k in inputs.content.get_keys()) == [f"batch_{i:03d}." for i in range(len(items))]
        for index, item in enumerate(items):
            value = item.get_as_json()
            if value == "bad":
                raise ValueError("bad item")
            if value == "own":
                out.error("only mine", batch_index=index)
            elif value != "lost":
                out.add_as_json([value, item.get_property("x-tag")], batch_index=index)
        return out
"""


async def test_calls_are_gathered_with_djls_keys(loaded: Loader) -> None:
    front = await loaded(BATCH, serving={"batch_size": 3, "max_batch_delay_ms": 5000})
    assert front.statuses[-1].info.capacity == 3
    answers = await asyncio.gather(*(front.call(n, headers={"x-tag": f"t{n}"}) for n in range(3)))
    assert [answer.json for answer in answers] == [[0, "t0"], [1, "t1"], [2, "t2"]]
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}


async def test_errors_in_a_batch_belong_to_their_item(loaded: Loader) -> None:
    front = await loaded(BATCH, serving={"batch_size": 3, "max_batch_delay_ms": 5000})
    good, bad, own = await asyncio.gather(front.call("good"), front.call("bad"), front.call("own"))
    assert (good.status, good.json) == (200, ["good", False])  # run again singly: not a batch
    assert (bad.status, bad.json["error"]) == (424, "ValueError: bad item")
    assert own.status == 200
    good, own, other = await asyncio.gather(front.call("good"), front.call("own"), front.call("other"))
    assert (good.status, own.status, other.status) == (200, 424, 200)
    assert own.json == {"code": 424, "message": "invoke handler failure", "error": "only mine"}


async def test_an_item_that_the_batch_does_not_answer_fails_alone(loaded: Loader) -> None:
    front = await loaded(BATCH, serving={"batch_size": 2, "max_batch_delay_ms": 5000})
    answered, lost = await asyncio.gather(front.call("a"), front.call("lost"))
    assert (answered.status, lost.status) == (200, 424)
    assert lost.json["error"] == "Batch output size mismatch, expected: 2, actual: 1: no entry for item 1 (batch_001)"
