"""Logs what is asked, and leaves the rest to DJL's service."""

import logging

from djl_python import Input, Output
from djl_python.huggingface import HuggingFaceService

service = HuggingFaceService()


def handle(inputs: Input) -> Output:
    if not service.initialized:
        service.initialize(inputs.get_properties())
    if inputs.is_empty():
        return None
    logging.info("%d requests for %s", inputs.get_batch_size(), type(service.model).__name__)
    return service.inference(inputs)
