"""Large bodies are parsed beside the event loop, one after the other; small ones at once."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from pathlib import Path

import pytest

from djl_python.core.budgets import LARGE_BODY_BYTES
from djl_python.core.errors import PayloadError, ServingError
from djl_python.dialects.lmi.dialect import LmiDialect
from djl_python.dialects.responses.dialect import ResponsesDialect
from djl_python.handlers.large_bodies import LargeBodies
from tests.handlers.conftest import Watch
from tests.handlers.harness import Served

SMALL, LARGE = LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1
ABOUT: contextvars.ContextVar[str] = contextvars.ContextVar("about")


async def test_a_large_body_is_parsed_off_the_loop(model_dir: Path, watch: Watch) -> None:
    served = await Served(model_dir).load()
    went_on = watch(LmiDialect, "parse")
    assert (await served.answer("a")).status == 200
    with pytest.raises(PayloadError):
        await served.answer([1, "a" * LARGE_BODY_BYTES])
    assert went_on == [False, True]


async def test_a_small_body_that_goes_on_with_many_responses_is_parsed_off_the_loop(
    model_dir: Path, watch: Watch
) -> None:
    served = await Served(model_dir).load()
    went_on = watch(ResponsesDialect, "parse")
    for padding in ("", "a" * LARGE_BODY_BYTES):
        item = {"type": "message", "role": "user", "content": "a", "status": padding}
        context = json.dumps({"id": "resp_1", "kept": True, "previous": [item]}).encode()
        with pytest.raises(ServingError):  # this model has no chat template
            await served.ended(*served.call("responses", "create_response", {"input": "a"}, context=context))
    assert went_on == [False, True]


async def test_large_bodies_are_parsed_one_after_the_other() -> None:
    bodies, order = LargeBodies(), list[str]()
    first_runs, go_on = threading.Event(), threading.Event()

    def first() -> int:
        first_runs.set()
        go_on.wait(20)
        order.append("first")
        return threading.get_ident()

    def second() -> int:
        order.append("second")
        return threading.get_ident()

    runs = [asyncio.ensure_future(bodies.parse(LARGE, one)) for one in (first, second)]
    await asyncio.to_thread(first_runs.wait, 20)
    assert await bodies.parse(SMALL, threading.get_ident) == threading.get_ident()
    go_on.set()
    idents = set(await asyncio.gather(*runs))
    assert order == ["first", "second"]
    assert len(idents) == 1 and threading.get_ident() not in idents
    bodies.close()


async def test_a_parser_knows_what_it_is_about_and_its_errors_arrive() -> None:
    bodies = LargeBodies()
    ABOUT.set("this request")
    assert await bodies.parse(LARGE, ABOUT.get) == "this request"

    def refuse() -> None:
        raise PayloadError("x: no", "x")

    with pytest.raises(PayloadError, match="x: no"):
        await bodies.parse(LARGE, refuse)
    bodies.close()
