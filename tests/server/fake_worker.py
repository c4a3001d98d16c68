"""A worker that needs no model: it speaks the protocol over the inherited socket and does what a request's body says.

How it loads is said by the model's properties: `load` = ok | fail | no_memory | crash | hang | later | never, and
`capacity`.
`crash_after` names a file: the worker that does not find it loads and creates it, later ones crash, or do what `then`
says. `stopped` names one that it creates when it is told to stop. It takes one query besides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from djl_python.config import ModelConfig
from djl_python.core.engine_info import EngineInfo
from djl_python.ipc.channel import Channel
from djl_python.ipc.heartbeat import Heart
from djl_python.ipc.protocol import (
    AnyMessage,
    BodyChunk,
    Break,
    Call,
    Cancel,
    Load,
    Report,
    Start,
    Status,
    Stop,
    Taken,
    UsageReport,
    WorkerInfo,
)


class FakeWorker:
    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.cancels: list[str] = []
        self.taken: Counter[int] = Counter()
        self.heard = asyncio.Event()
        self.channel: Channel
        self.heart: Heart
        self.config: ModelConfig

    async def run(self, fd: int) -> None:
        self.channel = Channel(self.on_messages, self.done.set)
        await self.channel.attach(socket.socket(fileno=fd))
        await self.done.wait()

    def on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, Load):
                self.config = msgspec.msgpack.decode(message.model, type=ModelConfig)
                self.heart = Heart(self.channel, self.config.serving.heartbeat_timeout_s)
                self.tasks[0] = asyncio.create_task(self.load(self.config))
            elif isinstance(message, Call):
                self.tasks[message.id] = asyncio.create_task(self.answer(message))
                asyncio.get_running_loop().call_soon(self.report)  # which a frozen worker does not get to
            elif isinstance(message, Taken):
                self.taken[message.id] += message.size
                self.heard.set()
            elif isinstance(message, Cancel):
                self.cancels.append(message.reason)
                if (task := self.tasks.pop(message.id, None)) is not None:
                    task.cancel()
                    self.channel.send(BodyChunk(message.id, b"", True))
                self.report()
            elif isinstance(message, Stop):
                Path(self.config.properties.get("stopped", os.devnull)).touch()
                self.done.set()

    def report(self) -> None:
        running = sum(1 for call in self.tasks if call)
        gauges: dict[str, float] = {
            "running_requests": running,
            "kv_cache_blocks_used": running * 2,
            "kv_cache_blocks_total": 8,
        }
        self.channel.send(Report(gauges=gauges, counts={"generated_tokens": 1, "nonsense": 1}))

    async def load(self, config: ModelConfig) -> None:
        how = config.properties.get("load", "ok")
        marker = config.properties.get("crash_after")
        if marker:
            try:
                Path(marker).touch(exist_ok=False)  # of two that start at once, one creates it
                how = "ok"
            except FileExistsError:
                how = config.properties.get("then", "crash")
        if log := config.properties.get("pids"):
            with Path(log).open("a") as file:
                file.write(f"{os.getpid()}\n")
        self.channel.send(Status("loading", "reading weights", 1, 2))
        if how == "later":
            await asyncio.sleep(0.5)
        if how in ("fail", "no_memory"):
            why = 'model.py:3: in handle\nZeroDivisionError: "oops"'
            self.channel.send(Status("failed", why, no_memory=how == "no_memory"))
            await self.channel.drain()
            self.done.set()
        elif how == "crash":
            os._exit(3)
        elif how == "hang":
            time.sleep(600)
        elif how == "never":  # as hang, in a process that others share
            await asyncio.sleep(600)
        else:
            runner, device = config.properties.get("runner"), Path(config.properties.get("device_file", "none"))
            engine = (
                None
                if runner is None
                else EngineInfo(runner=runner, device=device.read_text() if device.exists() else "")
            )
            capacity = int(config.properties.get("capacity", "4"))
            self.channel.send(Status("ready", info=WorkerInfo(capacity, at_once=capacity, queries=1, engine=engine)))
            self.report()

    async def answer(self, call: Call) -> None:
        order = json.loads(call.body) if call.body else {}
        for name in ("model", "stream"):  # the front end's business
            order.pop(name, None)
        await getattr(self, f"do_{order.pop('do', 'echo')}")(call, **order)
        self.tasks.pop(call.id, None)
        self.report()

    def reply(self, call: Call, value: object) -> None:
        headers = {"content-type": "application/json", "x-request-id": call.headers["x-request-id"]}
        self.channel.send(Start(call.id, 200, headers))
        self.channel.send(BodyChunk(call.id, json.dumps(value).encode(), True))

    async def do_echo(self, call: Call, sleep_s: float = 0) -> None:
        await asyncio.sleep(sleep_s)
        self.reply(call, {"path": call.path, "query": call.query, "headers": call.headers, "pid": os.getpid()})

    async def do_anything(self, call: Call, **_fields: object) -> None:
        self.reply(call, {})

    async def do_bytes(self, call: Call, answer: str, kind: str, times: int = 1, **_fields: object) -> None:
        """Answers with these bytes, in Latin-1, so many times."""
        self.channel.send(Start(call.id, 200, {"content-type": kind}))
        for _ in range(times - 1):
            self.channel.send(BodyChunk(call.id, answer.encode("latin-1"), False))
            await asyncio.sleep(0)
        self.channel.send(BodyChunk(call.id, answer.encode("latin-1"), True))

    async def do_print(self, call: Call, text: str) -> None:
        print(text, flush=True)
        self.reply(call, {})

    async def do_headers(self, call: Call, status: int = 200, **headers: str) -> None:
        self.channel.send(Start(call.id, status, headers))
        self.channel.send(BodyChunk(call.id, b"" if status == 204 else b"body", True))

    async def do_stream(self, call: Call, n: int = 3, gap_s: float = 0, size: int = 0, kind: str = "jsonlines") -> None:
        content_type = "text/event-stream" if kind == "sse" else "application/jsonlines"
        self.channel.send(Start(call.id, 200, {"content-type": content_type}))
        for index in range(n):
            line = json.dumps({"n": index, "pad": "x" * size}).encode()
            self.channel.send(BodyChunk(call.id, b"data: " + line + b"\n\n" if kind == "sse" else line + b"\n", False))
            await asyncio.sleep(gap_s)
        self.channel.send(BodyChunk(call.id, b"", True))

    async def do_flow(self, call: Call, n: int, size: int, ahead: int) -> None:
        """A stream that is never more than `ahead` bytes before its client."""
        self.channel.send(Start(call.id, 200, {}))
        written = 0
        for _ in range(n):
            self.channel.send(BodyChunk(call.id, bytes(size), False))
            written += size
            while written - self.taken[call.id] > ahead:
                self.heard.clear()
                await self.heard.wait()
        self.channel.send(BodyChunk(call.id, b"", True))

    async def do_break(self, call: Call, size: int = 0) -> None:
        self.channel.send(Start(call.id, 200, {"content-type": "text/csv"}))
        self.channel.send(BodyChunk(call.id, b"a,b" + b"c" * size, False))
        self.channel.send(Break(call.id))

    async def do_tokens(self, call: Call, prompt: int, generated: int) -> None:
        """Says that the call had so many tokens, if it is asked."""
        if call.counted:
            self.channel.send(UsageReport(call.id, prompt, generated))
        self.reply(call, {"key": call.key_name, "is_manager": call.is_manager})

    async def do_usage(self, call: Call, usage: dict[str, object]) -> None:
        """Answers with these token counts."""
        self.reply(call, {"usage": usage})

    async def do_hang(self, call: Call, **_fields: object) -> None:
        await asyncio.sleep(600)

    async def do_freeze(self, call: Call, seconds: float = 600) -> None:
        time.sleep(seconds)
        self.reply(call, os.getpid())

    async def do_answers(self, call: Call, yes: bool, again_s: float = 0.5) -> None:
        self.heart.set_answering(yes)
        asyncio.get_running_loop().call_later(again_s, self.heart.set_answering, True)
        self.reply(call, "told")

    async def do_die(self, call: Call) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def do_give_up(self, call: Call) -> None:
        self.reply(call, "last words")
        self.channel.send(Status("failed", "the engine has died"))
        await self.channel.drain()
        self.done.set()

    async def do_progress(self, call: Call) -> None:
        self.channel.send(Status("loading", "more of it", 1, 2))
        self.reply(call, os.getpid())

    async def do_cancels(self, call: Call) -> None:
        self.reply(call, self.cancels)

    async def do_child(self, call: Call) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.reply(call, {"pid": child.pid})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    asyncio.run(FakeWorker().run(parser.parse_known_args()[0].fd))
