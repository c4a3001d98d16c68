"""One request of a handler that generates by itself: what it asks for, and what has been generated so far.

Runs in the worker. DJL's rolling batches (`rolling_batch`) give each request its tokens as they come.
"""

from __future__ import annotations

from .output_formatter import adapt_legacy_output_formatter, get_output_formatter, takes_tokens_one_by_one
from .request_io import TextGenerationOutput, TextInput, Token


class Request:
    """A request and its output.

    Attributes:
        id: its number.
        request_input, request_output: as formatters see them.
        input_text: the prompt.
        parameters: those of the generation; a handler may change them.
        adapter: the LoRA adapters that it names, or None.
    """

    def __init__(self, request_input: TextInput) -> None:
        self.id = request_input.request_id
        self.request_input = request_input
        self.parameters = request_input.server_parameters
        self.input_text = request_input.input_text
        self.adapter = request_input.adapters
        self.request_output = TextGenerationOutput(request_id=self.id, input=request_input)
        self.output_formatter, self.content_type = get_output_formatter(
            request_input.output_formatter,
            bool(request_input.parameters.get("stream")),
            request_input.tgi_compat,
        )
        self.legacy_formatter = not takes_tokens_one_by_one(self.output_formatter)
        self.last_token = False
        self.next_token_str = ""
        self._unread = 0
        self._error: tuple[str | None, int | None] = (None, None)

    def __repr__(self) -> str:
        return f"<Request {self.id}: {self.input_text!r}, {self.parameters}, finished: {self.last_token}>"

    def set_next_token(
        self,
        next_token: Token | str,
        last_token: bool = False,
        finish_reason: str | None = None,
        prompt_tokens_details: list[Token] | None = None,
    ) -> None:
        """Append a token; text alone is one without an id (-1).

        `finish_reason` is length, eos_token, stop_sequence or error, with the last token.
        """
        token = Token(-1, next_token) if isinstance(next_token, str) else next_token
        self.request_output.set_next_token(token, is_last_token=last_token, finish_reason=finish_reason)
        if prompt_tokens_details is not None:
            self.request_output.prompt_tokens_details = prompt_tokens_details
        self._unread += 1
        self.last_token = last_token
        self.request_output.finished = self.request_output.finished or last_token

    def get_next_token(self) -> str:
        """What the formatter makes of the tokens since `reset_next_token`."""
        if self.next_token_str:
            return self.next_token_str
        if self.legacy_formatter:
            self.next_token_str = adapt_legacy_output_formatter(self.request_output)
        else:
            for _ in range(self._unread):
                self.next_token_str += self.output_formatter(self.request_output)
        self._unread = 0
        return self.next_token_str

    def reset_next_token(self) -> None:
        """Forget what `get_next_token` returned: the next call is about the tokens after it."""
        self.next_token_str = ""

    def is_last_token(self) -> bool:
        """Whether the output is complete."""
        return self.last_token

    def get_content_type(self) -> str | None:
        """The content type of the answer; None where the user's formatter makes it."""
        return self.content_type

    def set_error_message(self, message: str) -> None:
        """Say why the request failed."""
        self._error = (message, self._error[1])

    def get_error_message(self) -> str | None:
        """Why the request failed, or None."""
        return self._error[0]

    def set_error_code(self, code: int) -> None:
        """The HTTP status of a failed request."""
        self._error = (self._error[0], code)

    def get_error_code(self) -> int | None:
        """The HTTP status of a failed request, or None."""
        return self._error[1]

    def get_client_request_id(self) -> str | None:
        """The client's x-request-id, where the handler has put it among the parameters."""
        return self.parameters.get("request_id")
