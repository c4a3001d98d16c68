"""Streams words, in DJL's default form or with a formatter of one's own."""

from djl_python import Input, Output


def words(text, times):
    for _ in range(times):
        yield from text.split()


def as_event(word):
    return f"data: {word}\n\n".encode()


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    request = inputs.get_as_json()
    stream = words(request["inputs"], request.get("times", 1))
    outputs = Output()
    if request.get("events"):
        outputs.add_property("content-type", "text/event-stream")
        outputs.add_stream_content(stream, output_formatter=as_event)
    else:
        outputs.add_stream_content(stream)
    return outputs
