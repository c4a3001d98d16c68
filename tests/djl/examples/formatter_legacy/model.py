"""A formatter of LMI 0.28, with six parameters."""

import json

from djl_python.output_formatter import output_formatter


@output_formatter
def write(token, first_token, last_token, details, generated_text, id):
    if first_token and "fail" in details.get("inputs", ""):
        raise ValueError("refused by the formatter")
    prefix = "[" if first_token else ", "
    suffix = f", {json.dumps(details.get('finish_reason'))}]" if last_token else ""
    return prefix + json.dumps(token.text) + suffix
