"""The store of responses: what it keeps, for whom, how long, and what goes when there is no room."""

from __future__ import annotations

import json
import logging
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ServerConfig
from djl_python.core.access.api_key import ANYONE, ApiKey
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ConfigError, KeptNotFoundError, OverloadedError, TooLargeError
from djl_python.server.responses.kept import Kept
from djl_python.server.responses.store import Store

ITEMS = b'[{"type":"message","role":"user","content":"a"}]'
A, B, OPERATOR = (
    ApiKey(name=name, sha256="0" * 64, scopes=(scope,))
    for name, scope in (("a", Scope.INFER), ("b", Scope.INFER), ("o", Scope.MANAGE))
)


def store(directory: Path | None = None, **settings: Any) -> Store:
    return Store(ServerConfig(responses_directory=str(directory or ""), **settings))


def response(name: str, status: str = "completed", pad: int = 0) -> bytes:
    return json.dumps({"id": name, "status": status, "output": [], "pad": "x" * pad}).encode()


def kept(to: Store, name: str, key: ApiKey = ANYONE, previous: str = "", pad: int = 0) -> Kept:
    made = to.begin(name, key, ITEMS, previous=previous)
    to.update(made, response(name, pad=pad), "completed")
    return made


def names(of: Store, *asked: str) -> list[str]:
    """Those of the names under which something is kept."""
    ids = []
    for name in asked:
        try:
            ids.append(of.find(name, ANYONE).id)
        except KeptNotFoundError:
            continue
    return ids


async def test_a_response_is_found_once_it_is_complete() -> None:
    to = store()
    made = to.begin("r", ANYONE, ITEMS)
    assert names(to, "r") == []
    to.update(made, response("r"), "completed")
    assert await to.content(to.find("r", ANYONE)) == (ITEMS, response("r"))
    to.update(made, response("r", "failed"), "failed")  # it has ended
    assert (await to.content(made))[1] == response("r")
    to.drop(made)
    assert names(to, "r") == []


async def test_an_empty_name_is_no_response() -> None:
    with pytest.raises(KeptNotFoundError, match="Previous response with id '' not found"):
        store().chain("", ANYONE, "f")


async def test_a_chain_is_its_own_keys_alone() -> None:
    to = store()
    kept(to, "1", A)
    kept(to, "2", A, previous="1")
    for key in (A, OPERATOR):
        assert [one.id for one in to.chain("2", key, "f")] == ["1", "2"]
    with pytest.raises(KeptNotFoundError, match="Previous response with id '2' not found") as refused:
        to.chain("2", B, "f")
    assert refused.value.field == "f"
    to.drop(to.find("1", A))
    with pytest.raises(KeptNotFoundError, match="id '1' not found"):
        to.chain("2", A, "f")


async def test_the_least_recently_used_go_and_those_being_made_stay() -> None:
    to = store(responses_max=3)
    unfinished = to.begin("0", ANYONE, ITEMS)
    kept(to, "1")
    kept(to, "2")
    to.find("1", ANYONE)
    kept(to, "3")
    assert names(to, "1", "2", "3") == ["1", "3"]
    to.update(unfinished, response("0"), "completed")
    assert names(to, "0") == ["0"]


async def test_bytes_are_limited_together() -> None:
    to = store(responses_max_bytes=2_000)
    kept(to, "1", pad=700)
    kept(to, "2", pad=700)
    kept(to, "3", pad=700)
    assert names(to, "1", "2", "3") == ["2", "3"]
    kept(to, "4", pad=5_000)  # a response that is there already is not lost, but room for others
    assert names(to, "2", "3", "4") == ["4"]
    kept(to, "5")
    assert names(to, "4", "5") == ["5"]
    with pytest.raises(TooLargeError, match=r"the input has 3000 bytes, .* may have 2000 together"):
        to.begin("6", ANYONE, b"x" * 3_000)


async def test_a_response_that_is_being_made_grows_into_the_room_of_those_that_have_ended() -> None:
    to = store(responses_max_bytes=2_000)
    made = to.begin("1", ANYONE, ITEMS, response=response("1", "queued"), status="queued")
    kept(to, "2", pad=1_000)
    assert to.grow(made, 1_500) and names(to, "1", "2") == ["1"]
    assert not to.grow(made, 1_500)
    assert to.grow(made, -1_500)
    kept(to, "3")
    to.drop(made)
    assert to.grow(made, 5_000) and names(to, "1", "3") == ["3"]  # it is nobody's any more


@pytest.mark.parametrize("limit", [{"responses_max": 6}, {"responses_max_bytes": 6 * 220}])
async def test_a_keys_flood_drops_its_own_responses(limit: dict[str, Any]) -> None:
    to = store(**limit)
    kept(to, "old", A, pad=100)
    kept(to, "older", A, pad=100)
    for number in range(100):
        kept(to, f"flood{number}", B, pad=100)
    assert [to.find(name, A).id for name in ("old", "older")] == ["old", "older"]
    assert [to.find(f"flood{number}", B).id for number in range(96, 100)] == [f"flood{n}" for n in range(96, 100)]
    with pytest.raises(KeptNotFoundError):
        to.find("flood95", B)
    for number in range(100):  # each has half, at last
        kept(to, f"more{number}", A, pad=100)
    for name, key in (("flood", B), ("more", A)):
        assert [to.find(f"{name}{number}", key).id for number in (98, 99)] == [f"{name}98", f"{name}99"]


async def test_responses_that_a_key_is_making_drop_those_of_no_other_key() -> None:
    to = store(responses_max_bytes=1200)
    to.update(to.begin("old", A, bytes(300)), bytes(300), "completed")
    made = to.begin("begun", B, bytes(500))
    with pytest.raises(OverloadedError):
        to.begin("more", B, bytes(300))
    assert to.grow(made, 100) and not to.grow(made, 100)
    assert to.find("old", A).id == "old"
    to.grow(made, -400)
    with pytest.raises(OverloadedError):  # B would have more than A
        to.begin("more", B, bytes(400))
    to.begin("other", A, bytes(400))


@pytest.mark.parametrize("limit", [{"responses_max": 8}, {"responses_max_bytes": 8 * 100}])
async def test_each_key_can_begin_a_response_while_others_make_all_they_can(limit: dict[str, Any]) -> None:
    to = store(**limit)

    def begin(key: ApiKey, number: int) -> Kept:
        return to.begin(f"{key.name}{number}", key, bytes(100), response=b"", status="queued")

    for key, share in ((A, 4), (B, 2), (OPERATOR, 1)):
        made = [begin(key, number) for number in range(share)]
        with pytest.raises(OverloadedError, match="as much as is left for others"):
            begin(key, share)
        to.drop(made[0])
        begin(key, share)


async def test_answers_of_a_keys_responses_take_no_more_than_its_share() -> None:
    to = store(responses_max_bytes=1000)
    one, two = (to.begin(name, A, bytes(100), response=b"", status="queued") for name in "12")
    assert to.grow(one, 200) and to.grow(two, 100) and not to.grow(two, 100)
    other = to.begin("3", B, bytes(100), response=b"", status="queued")
    assert to.grow(other, 100)
    with pytest.raises(TooLargeError, match="as much as is left for others"):
        to.begin("4", B, bytes(600))


async def test_nothing_is_remembered_of_responses_that_are_not_kept_any_more() -> None:
    to = store(responses_max=10)
    tracemalloc.start()
    try:
        for number in range(10_000):
            kept(to, str(number), A)
            if number == 100:
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] < before + 100_000
    finally:
        tracemalloc.stop()
    assert to.find("9990", A) and to.find("9999", A)


async def test_requests_are_refused_while_those_being_made_fill_the_store() -> None:
    to = store(responses_max=1)
    first = to.begin("1", ANYONE, ITEMS)
    with pytest.raises(OverloadedError, match="responses_max=1"):
        to.begin("2", ANYONE, ITEMS)
    to.drop(first)
    kept(to, "2")
    assert names(to, "2") == ["2"]


async def test_a_response_expires() -> None:
    to = store(responses_expiration_s=0.05)
    made = kept(to, "1")
    time.sleep(max(0.0, made.expires_s - time.time()))
    assert names(to, "1") == []


async def test_a_directory_keeps_them_for_the_next_server(tmp_path: Path) -> None:
    to = store(tmp_path)
    kept(to, "1", A)
    kept(to, "2", A, previous="1")
    gone = kept(to, "3")
    to.drop(gone)
    to.begin("4", ANYONE, ITEMS, response=response("4", "queued"), status="queued")
    to.begin("5", ANYONE, ITEMS)
    with pytest.raises(ConfigError, match="another server uses this directory"):
        store(tmp_path)
    await to.close()
    assert {path.stem for path in tmp_path.glob("*.json")} == {"1", "2", "4"}
    to = store(tmp_path)
    assert [one.id for one in to.chain("2", A, "f")] == ["1", "2"]
    assert await to.content(to.find("2", A)) == (ITEMS, response("2"))
    with pytest.raises(KeptNotFoundError):
        to.find("1", B)
    answer = json.loads((await to.content(to.find("4", ANYONE)))[1])
    assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")
    await to.close()
    to = store(tmp_path, responses_max=1)
    await to.close()
    assert len(list(tmp_path.glob("*.json"))) == 1


async def test_a_file_that_is_none_of_ours_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("x")
    with pytest.raises(ConfigError, match=r"a\.json can't be read"):
        store(tmp_path)


async def test_a_response_that_can_not_be_written_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = store(tmp_path)
    (tmp_path / "1.json.tmp").mkdir()  # where the file would be written
    with caplog.at_level(logging.ERROR):
        made = kept(to, "1")
        await to.close()
    assert "response 1 is not written to responses_directory" in caplog.text
    assert await to.content(made) == (ITEMS, response("1"))
