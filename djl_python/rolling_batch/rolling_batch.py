"""DJL's base class of a rolling batch: requests in, and after each step the next piece of each one's answer.

Runs in the worker, in the thread for the user's code; `utils.rolling_batch_inference` takes the steps.
"""

from __future__ import annotations

import abc
import functools
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from ..compat.request import Request
from ..compat.request_io import Token
from ..compat.utils import IdCounter
from ..usercode.errors import one_line

log = logging.getLogger(__name__)

#: TensorRT-LLM's numbers of reasons to end -> their names.
FINISH_REASON_MAPPER: Final = ["length", "eos_token", "stop_sequence"]


def filter_unused_generation_params(
    parameters: dict[str, Any],
    allowed_params: Collection[str],
    backend: str,
    remove_unused_params: bool = False,
) -> dict[str, Any]:
    """Warn of parameters that a backend does not take, and remove them from `parameters` if that is wanted."""
    unused = sorted(set(parameters) - set(allowed_params))
    if unused:
        log.warning("%s does not take the parameters %s", backend, ", ".join(unused))
    for name in unused if remove_unused_params else ():
        del parameters[name]
    return parameters


def stop_on_any_exception(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `inference` so that an exception fails the active requests, and not the handler.

    Each of them ends with the finish reason error, and a token whose `error_msg` says what was raised.
    """

    @functools.wraps(function)
    def guarded(self: RollingBatch, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except Exception as exc:
            log.exception("a step of the rolling batch failed")
            for request in self.active_requests:
                failure = Token(-1, "", log_prob=-1, special_token=True, error_msg=one_line(exc))
                request.set_next_token(failure, last_token=True, finish_reason="error")
            results = self.postprocess_results()
            self.reset()
            return results

    return guarded


class RollingBatch(abc.ABC):
    """A batch that requests join and leave between steps.

    Attributes:
        active_requests: the requests of the batch.
        req_id_counter: numbers for requests.
        configs: what it was made with.
    """

    def __init__(self, configs: Any = None, *_: Any, **__: Any) -> None:
        self.active_requests: list[Request] = []
        self.req_id_counter = IdCounter()
        self.configs = configs

    def reset(self) -> None:
        """Forget all requests."""
        self.active_requests = []
        self.req_id_counter.reset()

    def get_tokenizer(self) -> Any:
        """The tokenizer of the model.

        Raises:
            RuntimeError: the subclass has none.
        """
        raise RuntimeError(f"{type(self).__name__} has no tokenizer to show")

    @abc.abstractmethod
    def inference(self, requests: list[Request]) -> list[dict[str, Any]]:
        """Take one step: the results of `postprocess_results`, one for each request."""

    @abc.abstractmethod
    def preprocess_requests(self, requests: list[Request]) -> Any:
        """Convert requests that join into what the backend takes."""

    def get_new_requests(self, requests: list[Request]) -> list[Request]:
        """Add those of `requests` that follow the active ones; returns them."""
        known = len(self.active_requests)
        self.active_requests += requests[known:]
        return self.active_requests[known:]

    def postprocess_results(self) -> list[dict[str, Any]]:
        """For each active request `data`, `last` and `content_type`; those at their end leave."""
        results = []
        for request in self.active_requests:
            results.append(
                {
                    "data": request.get_next_token(),
                    "last": request.is_last_token(),
                    "content_type": request.get_content_type(),
                }
            )
            request.reset_next_token()
        self.active_requests = [request for request in self.active_requests if not request.is_last_token()]
        if not self.active_requests:
            self.req_id_counter.reset()
        return results
