import asyncio

from djl_python.server.http.draining import Draining


async def test_pages_that_are_being_made_are_waited_for() -> None:
    draining, made = Draining(), asyncio.get_running_loop().create_future()
    await draining.wait_done()
    draining.keep(made)
    waiting = asyncio.create_task(draining.wait_done())
    await asyncio.sleep(0)
    assert draining.doing == 1 and not waiting.done()
    made.set_result(None)
    await waiting
    assert draining.doing == 0


async def test_answers_on_their_way_are_waited_for_but_not_for_ever() -> None:
    draining, sent = Draining(), asyncio.get_running_loop().create_future()
    draining.sending(sent)
    async with asyncio.timeout(5):
        await draining.wait_sent(timeout_s=0.01)
    waiting = asyncio.create_task(draining.wait_sent())
    await asyncio.sleep(0)
    assert not waiting.done()
    sent.set_result(None)
    await waiting
    await draining.wait_sent()


async def test_waits_for_models_are_cancelled_when_the_end_begins() -> None:
    draining, loop = Draining(), asyncio.get_running_loop()
    ended, waits = loop.create_future(), loop.create_future()
    draining.waiting(ended)
    draining.waiting(waits)
    ended.set_result(None)
    draining.begin()
    assert draining.begun and waits.cancelled() and not ended.cancelled()
