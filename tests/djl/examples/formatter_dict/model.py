"""Payloads and responses as dicts, as current LMI has them."""

from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    if "inputPrompt" in decoded_payload:
        decoded_payload["inputs"] = decoded_payload.pop("inputPrompt")
    decoded_payload.setdefault("parameters", {}).setdefault("max_new_tokens", 3)
    return decoded_payload


@output_formatter
def write(response_data: dict) -> dict:
    if response_data.get("generated_text") == "":
        raise LookupError("nothing was generated")
    response_data["reviewed"] = True
    return response_data
