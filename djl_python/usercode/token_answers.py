"""LMI's shapes of an answer as functions of a `TextGenerationOutput`, for handlers that generate by themselves.

Runs in the worker. Each is called once for each token of the best sequence, as an @output_formatter is: the joined
results are the answer. The built-in handler has formatters of its own (`dialects`).
"""

from __future__ import annotations

import time
from typing import Any

from ..compat.request_io import Sequence, TextGenerationOutput, Token
from ..formats.json_framing import encode_json, encode_jsonlines, encode_sse


def json_answer(output: TextGenerationOutput) -> str:
    """One object, with the last token."""
    if not _take(output)[1]:
        return ""
    best, *_ = _sequences(output)
    shape: dict[str, Any] = {"generated_text": output.text}
    if output.input.parameters.get("details", output.input.tgi_compat):
        shape["details"] = {**_details(output, best), "tokens": output.get_tokens_as_dict(output.best_sequence_index)}
    elif best.finish_reason == "error":
        shape["details"] = {"finish_reason": "error"}
    return encode_json([shape] if output.input.tgi_compat else shape).decode()


def jsonlines_answer(output: TextGenerationOutput) -> str:
    """A line for each token; the last has the text."""
    return encode_jsonlines(_line(output)).decode()


def sse_answer(output: TextGenerationOutput) -> str:
    """A server-sent event for each token; the last has the text."""
    return encode_sse(_line(output)).decode()


def json_chat_answer(output: TextGenerationOutput) -> str:
    """OpenAI's chat completion, with the last token."""
    if not _take(output)[1]:
        return ""
    best, *_ = _sequences(output)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": output.text},
        "logprobs": _logprobs(output, best.tokens),
        "finish_reason": _chat_reason(best.finish_reason),
    }
    prompt, completion = len(getattr(output.input, "input_ids", ())), len(best.tokens)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return encode_json({**_chat_head(output, "chat.completion"), "choices": [choice], "usage": usage}).decode()


def jsonlines_chat_answer(output: TextGenerationOutput) -> str:
    """A chunk of OpenAI's chat completion for each token, as a line."""
    token, last = _take(output)
    best, *_ = _sequences(output)
    delta = {"content": token.text} | ({"role": "assistant"} if len(best.tokens) == 1 else {})
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": _logprobs(output, [token]),
        "finish_reason": _chat_reason(best.finish_reason) if last else None,
    }
    return encode_jsonlines({**_chat_head(output, "chat.completion.chunk"), "choices": [choice]}).decode()


def _take(output: TextGenerationOutput) -> tuple[Token, bool]:
    """The best sequence's next token, and whether it is the last."""
    token, _, last = output.sequences[output.best_sequence_index].get_next_token()
    if token is None:
        raise ValueError(f"request {output.request_id} has no token that was not read yet")
    return token, last


def _sequences(output: TextGenerationOutput) -> list[Sequence]:
    return [output.sequences[index] for index in (output.best_sequence_index, *output.other_sequences_indices)]


def _line(output: TextGenerationOutput) -> dict[str, Any]:
    token, last = _take(output)
    tgi = output.input.tgi_compat
    shape: dict[str, Any] = {"token": token.as_tgi_dict() if tgi else token.as_dict()}
    if last:
        best, *_ = _sequences(output)
        shape["generated_text"] = output.text
        if output.input.parameters.get("details", tgi):
            shape["details"] = _details(output, best)
        elif best.finish_reason == "error":
            shape["details"] = {"finish_reason": "error"}
    return shape


def _details(output: TextGenerationOutput, sequence: Sequence) -> dict[str, Any]:
    details: dict[str, Any] = {
        "finish_reason": sequence.finish_reason,
        "generated_tokens": len(sequence.tokens),
        "inputs": output.prompt_text,
    }
    if output.input.parameters.get("decoder_input_details"):
        details["prefill"] = output.get_prompt_tokens_as_dict()
    return details


def _chat_head(output: TextGenerationOutput, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{output.request_id}", "object": kind, "created": int(time.time())}


def _chat_reason(reason: str | None) -> str | None:
    return "stop" if reason in ("eos_token", "stop_sequence") else reason


def _logprobs(output: TextGenerationOutput, tokens: list[Token]) -> dict[str, Any] | None:
    if not output.input.parameters.get("logprobs"):
        return None
    shown = [{"token": token.text, "logprob": token.log_prob, "bytes": list(token.text.encode())} for token in tokens]
    return {"content": [{**token, "top_logprobs": [token]} for token in shown]}
