"""Answers in the form that the client accepts; the file and the function have names of their own."""

from djl_python import Input, Output
from djl_python.encode_decode import decode, encode


def predict(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    content_type = inputs.get_property("Content-Type")
    texts = decode(inputs, content_type)["inputs"]
    outputs = Output()
    encode(outputs, [{"text": text, "length": len(text)} for text in texts], inputs.get_property("Accept"))
    return outputs
