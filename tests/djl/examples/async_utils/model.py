"""Greets, in one piece or word by word, with the helpers of LMI's page on vLLM."""

from djl_python import Input
from djl_python.async_utils import create_non_stream_output, handle_streaming_response


async def words(text):
    for word in text.split():
        yield word


def formatter(word, history, end):
    history.append(word)
    return {"word": word, "so_far": " ".join(history)}, word == end, history


async def handle(inputs: Input):
    if inputs.is_empty():
        return None
    body = inputs.get_batches()[0].get_as_json()
    if "name" not in body:
        return create_non_stream_output("", error="there is no name", code=400)
    greeting = f"Hello, {body['name']}! Bye"
    if body.get("stream"):
        return handle_streaming_response(words(greeting), formatter, accumulate_chunks=True, end=f"{body['name']}!")
    return create_non_stream_output({"greeting": greeting}, properties={"X-Greeted": body["name"]})
