"""LMI's handler for TensorRT-LLM, for a `model.py` that wraps it: HuggingFaceService, on transformers alone.

Runs in the worker. As `option.entryPoint`, its name stands for the built-in handler, which is faster.
"""

from __future__ import annotations

from .compat.services.huggingface import HuggingFaceService as TRTLLMService
from .compat.services.huggingface import handle

__all__ = ["TRTLLMService", "handle"]
