"""All that LMI documents of an output formatter's argument, as one object at the end."""

import json

from djl_python.output_formatter import RequestOutput, output_formatter


@output_formatter
def write(request_output: RequestOutput) -> str:
    if not request_output.finished:
        return ""
    asked, best = request_output.input, request_output.sequences[request_output.best_sequence_index]
    last = best.tokens[-1]
    fields = {
        "request_ids": [request_output.request_id, asked.request_id, last.request_id],
        "input_text": asked.input_text,
        "input_ids": asked.input_ids,
        "tokenized": asked.tokenizer.encode(asked.input_text),
        "parameters": asked.parameters,
        "server_parameters": asked.server_parameters,
        "adapters": asked.adapters,
        "is_callable": callable(asked.output_formatter),
        "texts": [token.text for token in best.tokens],
        "last": [last.id, last.log_prob, last.special_token, last.as_dict()],
        "top_tokens": [[token.text for token in top] for top in best.top_tokens],
        "prompt_tokens": [token.text for token in request_output.prompt_tokens_details],
        "cumulative_log_prob": best.cumulative_log_prob,
        "finish_reason": best.finish_reason,
        "sequences": [len(request_output.sequences), request_output.other_sequences_indices],
    }
    return json.dumps(fields)
