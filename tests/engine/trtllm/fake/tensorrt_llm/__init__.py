"""What is used of TensorRT-LLM 1.2, over a small model of transformers on a CPU.

As the real one, it refuses arguments that it does not have, gives all of a sequence's tokens again with each new one,
cuts the token that stopped a sequence off its end unless it is told otherwise, tells as many log-probabilities as it is
asked for and no further one for a token that is not among them, and ignores penalties and seeds.
"""

from .llmapi import LLM, SamplingParams

__version__ = "1.2.1"
__all__ = ["LLM", "SamplingParams", "__version__"]
