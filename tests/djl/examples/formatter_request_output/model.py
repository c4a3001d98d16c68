"""Requests with a field of their own, and tokens as a tool of the owner's wants them."""

import json

from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import RequestOutput, output_formatter
from djl_python.request_io import TextInput


class Labelled(TextInput):
    label: str = ""


@input_formatter
def read(input_item: Input, **kwargs) -> TextInput:
    body = decode(input_item, input_item.get_property("Content-Type"))
    request = Labelled()
    request.input_text = body["question"]
    request.parameters = {"max_new_tokens": 3}
    request.label = body.get("label", "none")
    return request


@output_formatter
def write(request_output: RequestOutput) -> str:
    best = request_output.sequences[request_output.best_sequence_index]
    token, is_first, is_last = best.get_next_token()
    line = {"token_id": token.id, "token_text": token.text, "first": is_first}
    if is_last:
        line["finish_reason"] = best.finish_reason
        line["label"] = request_output.input.label
    return json.dumps(line) + "\n"
