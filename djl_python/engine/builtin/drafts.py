"""The source of drafts: reads the engine's own options, or vLLM's option.speculative_config. Runs in every process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from .options import BatchOptions

_KEY: Final = "option.speculative_config"
_EXAMPLES: Final = '{"method": "ngram", "num_speculative_tokens": 4} or {"model": "DIR", "num_speculative_tokens": 3}'
#: vLLM's name, as a model, of drafts that are looked up in the text.
_NGRAM_MODEL: Final = "[ngram]"
#: vLLM's methods with a smaller draft model of the same vocabulary; None: vLLM detects the method.
_OF_A_MODEL: Final = (None, "draft_model")
_READ: Final = frozenset({"method", "model", "num_speculative_tokens"})


@dataclass(frozen=True)
class Drafts:
    """The source of drafts.

    Attributes:
        looked_up: whether they are looked up in the text so far.
        model: the checkpoint of the model that makes them, as option.draft_model_id names it; "" for none.
        length: tokens of a draft at most; None: the engine's default.
        fault: why the options can't be read; "" where they can.
        remark: which parts of option.speculative_config have no effect; "": none.
    """

    looked_up: bool = False
    model: str = ""
    length: int | None = None
    fault: str = ""
    remark: str = ""


def drafts_of(options: BatchOptions) -> Drafts:
    """The source of drafts by these options."""
    if not options.speculative_config.strip():
        return Drafts(options.speculative == "ngram", options.draft_model_id, options.spec_length)
    if options.speculative != "none" or options.draft_model_id or options.spec_length is not None:
        own = "option.speculative, option.draft_model_id and option.spec_length"
        return Drafts(fault=f"{_KEY}: it stands for {own}, which are set too; expected one way to say it")
    try:
        written = json.loads(options.speculative_config)
    except ValueError as exc:
        return Drafts(fault=f"{_KEY}: not valid JSON ({exc}); expected {_EXAMPLES}")
    return _read(written) if isinstance(written, dict) else Drafts(fault=f"{_KEY}: expected an object, {_EXAMPLES}")


def _read(written: dict[str, Any]) -> Drafts:
    method, model, length = written.get("method"), written.get("model") or "", written.get("num_speculative_tokens")
    if not isinstance(model, str):
        return Drafts(fault=f"{_KEY}: model: expected a text, as in {_EXAMPLES}")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        return Drafts(fault=f"{_KEY}: num_speculative_tokens: expected an integer >= 1, as in {_EXAMPLES}")
    ignored = sorted(written.keys() - _READ)
    remark = f"{_KEY}: {', '.join(ignored)} {'have' if len(ignored) > 1 else 'has'} no effect" if ignored else ""
    if method == "ngram" or (method is None and model == _NGRAM_MODEL):
        return Drafts(looked_up=True, length=length, remark=remark)
    if method in _OF_A_MODEL and model:
        return Drafts(model=model, length=length, remark=remark)
    named = (
        f"method {method!r} is for vLLM (option.rolling_batch=vllm)" if method else "there is no method and no model"
    )
    here = 'here drafts are looked up (method "ngram") or made by a smaller model (model)'
    return Drafts(remark=f"{_KEY} has no effect: {named}; {here}")
