"""Changes a model that transformers has made, before it loads the weights. Runs in the engine process, at load.

transformers offers this hook to quantization libraries: the change takes the form of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

_NAME: Final = "prepared"  # this quantization method's name in transformers

#: Changes a model in place, whose weights are on the device `meta`.
Preparation = Callable[[Any], None]


def preparing_config(prepare: Preparation, method: str | None = None) -> dict[str, Any]:
    """A `quantization_config` that has `prepare` change the model.

    Args:
        method: how the checkpoint's weights are quantized, which the model's configuration says then.
    """
    _register()
    return {"quant_method": _NAME, "prepare": prepare, "method": method}


@functools.cache
def _register() -> None:
    """Register this method with transformers."""
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(_NAME)
    class Config(QuantizationConfigMixin):  # type: ignore[misc]
        def __init__(self, prepare: Preparation, method: str | None, **_: Any) -> None:
            self.quant_method = _NAME
            self.prepare = prepare
            self.method = method
            self.dequantize = method is None  # the model is not to count as a quantized one

        def to_dict(self) -> dict[str, Any]:
            return {"quant_method": self.method or _NAME}

    @register_quantizer(_NAME)
    class Quantizer(HfQuantizer):  # type: ignore[misc]
        is_trainable = False

        def is_serializable(self) -> bool:
            return False

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
            self.quantization_config.prepare(model)
            return model
