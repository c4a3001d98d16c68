"""A rolling batch of one's own: a step spells each request's next letter."""

from djl_python import Input, Output
from djl_python.input_parser import parse_input_with_formatter
from djl_python.properties_manager.properties import Properties
from djl_python.request_io import Token
from djl_python.rolling_batch.rolling_batch import RollingBatch, stop_on_any_exception
from djl_python.utils import rolling_batch_inference


class Speller(RollingBatch):
    @stop_on_any_exception
    def inference(self, requests):
        self.preprocess_requests(self.get_new_requests(requests))
        for request in self.active_requests:
            rest = self.letters[request.id]
            letter = rest.pop(0)
            if letter == "!":
                raise RuntimeError("no exclamations")
            last = not rest
            token = Token(ord(letter), letter, -0.5)
            request.set_next_token(token, last_token=last, finish_reason="eos_token" if last else None)
        return self.postprocess_results()

    def preprocess_requests(self, requests):
        self.letters = getattr(self, "letters", {})
        for request in requests:
            self.letters[request.id] = list(request.input_text)


configs = None
batch = None


def handle(inputs: Input) -> Output:
    global configs, batch
    if batch is None:
        configs = Properties(**inputs.get_properties())
        batch = Speller(configs)
    if inputs.is_empty():
        return None
    parsed = parse_input_with_formatter(inputs, configs=configs, rolling_batch=batch)
    return rolling_batch_inference(parsed, inputs, Output(), batch)
