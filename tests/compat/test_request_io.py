from __future__ import annotations

from djl_python.request_io import RequestInput, Sequence, TextGenerationOutput, TextInput, Token


def test_token_shapes() -> None:
    assert Token(1, "a", -0.5).as_dict() == {"id": 1, "text": "a", "log_prob": -0.5}
    error = Token(-1, "", -1, special_token=True, error_msg="boom")
    assert error.as_dict() == {"id": -1, "text": "", "log_prob": -1, "special_token": True, "error_msg": "boom"}
    assert error.as_tgi_dict() == {"id": -1, "text": "", "logprob": -1, "special": True}


def test_sequence_iterates_over_what_has_come() -> None:
    sequence = Sequence()
    assert sequence.get_next_token() == (None, False, False)
    first, last = Token(1, "a", -0.5), Token(2, "b", -0.25)
    sequence.set_next_token(first)
    assert sequence.get_next_token() == (first, True, False)
    assert not sequence.has_next_token() and sequence.get_last_token() is None
    sequence.set_next_token(last, is_last_token=True)
    assert sequence.get_next_token() == (last, False, True)
    assert sequence.get_last_token() is last
    assert sequence.cumulative_log_prob == -0.75
    sequence.set_next_top_tokens([first, last])
    assert sequence.get_next_top_tokens() == [first, last]
    assert sequence.get_next_top_tokens() is None


def test_output_shapes_follow_the_requests_api() -> None:
    out = TextGenerationOutput(1, TextInput(1, input_text="p", input_ids=[1, 2], tgi_compat=True))
    out.set_next_token(Token(1, "a", -0.5))
    out.set_next_token(Token(9, "z"), sequence_index=3, finish_reason="length")
    out.set_next_top_tokens([Token(2, "b", -1.0)])
    out.prompt_tokens_details = [Token(5, "p")]
    assert out.get_tokens_as_dict() == [{"id": 1, "text": "a", "logprob": -0.5, "special": False}]
    assert out.get_tokens_as_dict(3)[0]["id"] == 9
    assert (out.sequences[3].tokens[0].request_id, Token(1, "a").request_id) == (1, None)
    assert out.sequences[3].finish_reason == "length"
    assert out.get_top_tokens_as_dict() == [[{"id": 2, "text": "b", "logprob": -1.0, "special": False}]]
    assert out.get_prompt_tokens_as_dict()[0]["text"] == "p"
    out.set_best_sequence_index(3)
    out.set_finish_reason("eos_token", 3)
    assert (out.text, out.prompt_text, out.sequences[3].finish_reason) == ("z", "p", "eos_token")
    assert isinstance(out.input, TextInput) and out.input.prompt_tokens_length() == 2


def test_an_output_has_its_best_sequence_from_the_beginning() -> None:
    out = TextGenerationOutput(1, TextInput(1, parameters={"return_full_text": True}))
    assert (out.text, out.prompt_text, out.get_tokens_as_dict()) == ("", "", [])
    assert TextGenerationOutput(1, RequestInput(1)).prompt_text == ""
    out.set_finish_reason("length")
    out.set_next_token(Token(1, "a"))
    assert out.sequences[0].finish_reason == "length"
