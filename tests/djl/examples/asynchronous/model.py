"""Answers many requests at a time: each tells how many others were waiting with it."""

import asyncio

from djl_python import Input, Output

waiting = 0


async def handle(inputs: Input) -> Output:
    global waiting
    if inputs.is_empty():
        return None
    waiting += 1
    await asyncio.sleep(0.3)
    together = waiting
    await asyncio.sleep(0.1)
    waiting -= 1
    return Output().add_as_json({"together": together})
