"""A thin OpenAI-style front for OpenVINO GenAI's continuous batching. Runs in the peer's environment, not in ours.

    python openvino_server.py MODEL --port 8000 --precision bf16

OpenVINO GenAI is a library: to be measured like a server it needs one. Two processes, because `step()` holds the
interpreter lock: this one speaks HTTP and knows text, the other steps the pipeline and knows token ids. It does less
than any real server (streams of /v1/completions, greedy, one token decoded at a time), which is in the peer's favour;
beside that, the log-probabilities of a prompt of token ids that is echoed.
Standard library, tokenizers and openvino_genai only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def engine(pipe: Connection, model: str, precision: str, cache_gb: int) -> None:
    """The second process: requests come as (id, token ids, count, echo), lists of (id, ids, logprobs, ended) go back.

    With `echo` the prompt's ids and log-probabilities come first; without, log-probabilities say nothing.
    """
    import openvino_genai
    from openvino import Core, Tensor

    import numpy  # isort: skip  (openvino depends on it)

    config = openvino_genai.SchedulerConfig()
    config.cache_size = cache_gb
    config.max_num_seqs = 64
    config.dynamic_split_fuse = True
    # Where a processor has no bf16, OpenVINO computes in fp32 and wants its cache in that.
    dtype = "bf16" if "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"
    properties = {"INFERENCE_PRECISION_HINT": dtype, "PERFORMANCE_HINT": "LATENCY"}
    properties["KV_CACHE_PRECISION"] = dtype if precision == "bf16" else "u8"
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, config, "CPU", properties)
    pipe.send("ready")
    handles: dict[int, Any] = {}
    while True:
        while pipe.poll(0 if handles else None):
            request, ids, count, echo = pipe.recv()
            wanted = openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True)
            if echo:
                wanted.echo, wanted.logprobs = True, 1
            handles[request] = pipeline.add_request(request, Tensor(numpy.array([ids], numpy.int64)), wanted)
        pipeline.step()
        events = []
        for request, handle in list(handles.items()):
            ids, logprobs = [], []
            while handle.can_read():
                for output in handle.read().values():
                    ids += output.generated_ids
                    logprobs += output.generated_log_probs
            ended = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
            if ended:
                del handles[request]
            if ids or ended:
                events.append((request, ids, logprobs, ended))
        if events:
            pipe.send(events)


class Front:
    """HTTP/1.1, one request a connection."""

    def __init__(self, pipe: Connection, model: Path) -> None:
        from tokenizers import Tokenizer

        self._pipe = pipe
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._queues: dict[int, asyncio.Queue[tuple[list[int], list[float], bool]]] = {}
        self._next = 0

    def from_engine(self) -> None:
        """The pipe is readable."""
        while self._pipe.poll():
            for request, *news in self._pipe.recv():
                self._queues[request].put_nowait(tuple(news))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its first byte to its last."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("get"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            else:
                length = int(head.partition("content-length:")[2].split("\r\n", 1)[0])
                body = json.loads(await reader.readexactly(length))
                await (self._echo if body.get("echo") else self._stream)(body, writer)
            await writer.drain()
        finally:
            writer.close()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        ids = self._tokenizer.encode(body["prompt"]).ids
        request, queue = self._ask(ids, body["max_tokens"], echo=False)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        count, ended = 0, False
        while not ended:
            new, _, ended = await queue.get()
            count += len(new)
            choice = {"text": self._tokenizer.decode(new), "token_ids": new}
            event = {"choices": [{"index": 0, **choice, "finish_reason": "length" if ended else None}]}
            writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        usage = {"prompt_tokens": len(ids), "completion_tokens": count}
        writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        del self._queues[request]

    async def _echo(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        request, queue = self._ask(body["prompt"], body["max_tokens"], echo=True)
        told: list[float | None] = []
        ended = False
        while not ended:
            _, logprobs, ended = await queue.get()
            told += logprobs
        told[0] = None  # nothing stands before the first token
        answer = json.dumps({"choices": [{"index": 0, "logprobs": {"token_logprobs": told}}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(answer) + answer)
        del self._queues[request]

    def _ask(self, ids: list[int], count: int, *, echo: bool) -> tuple[int, asyncio.Queue[Any]]:
        """Have the engine begin."""
        request, self._next = self._next, self._next + 1
        queue = self._queues[request] = asyncio.Queue()
        self._pipe.send((request, ids, count, echo))
        return request, queue


async def serve(front: Front, pipe: Connection, port: int) -> None:
    """Until the process is ended."""
    asyncio.get_running_loop().add_reader(pipe.fileno(), front.from_engine)
    async with await asyncio.start_server(front.answer, "127.0.0.1", port, limit=2**20) as server:
        await server.serve_forever()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="directory that optimum-cli export openvino wrote")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--precision", choices=["bf16", "int8", "int4"], default="bf16")
    parser.add_argument("--cache-gb", type=int, default=2)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=engine, args=(theirs, str(arguments.model), arguments.precision, arguments.cache_gb), daemon=True
    )
    child.start()
    theirs.close()
    ours.recv()  # ready; EOFError if the engine has ended
    asyncio.run(serve(Front(ours, arguments.model), ours, arguments.port))


if __name__ == "__main__":
    main()
