"""The options of LoRA adapters, the same for every engine that takes them, and what is refused of them at once.

Read in every process. A struct can't have two others as its bases, so that each engine's options name these types.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from ..config import ModelConfig
from ..config.adapters import adapter_rank
from ..config.settings.values import Positive
from ..core.faults import Faults

#: LMI's number of adapters in one batch, where no setting says it.
LMI_MAX_LORAS: Final = 4
#: vLLM's highest rank of an adapter, where no setting says it and none is higher.
VLLM_MAX_RANK: Final = 16

EnableLora = Annotated[
    bool | None,
    Meta(
        description="Serve LoRA adapters, which requests name; unset: where `option.adapters` or `option.lora_modules` "
        "has some."
    ),
]
AdaptersFolder = Annotated[
    str, Meta(description="Directory with a folder for each adapter, in the model's directory or its checkpoint's.")
]
LoraModules = Annotated[
    str, Meta(description="Further adapters: NAME=PATH, separated by commas, or vLLM's JSON objects.")
]
MaxLoras = Annotated[
    Positive | None, Meta(description="Adapters in one batch, with vLLM on CPUs in all; unset: 4, as in LMI.")
]
MaxCpuLoras = Annotated[
    Positive | None,
    Meta(description="Adapters in the host's memory; unset: with vLLM as many as in a batch, else four times as many."),
]
MaxLoraRank = Annotated[
    Positive | None, Meta(description="The highest rank of an adapter; unset: the highest there is, or 16.")
]


def rank_faults(config: ModelConfig, most: int | None) -> Faults:
    """Adapters whose rank is above `option.max_lora_rank`."""
    faults = Faults()
    for name, directory in config.adapters.items():
        if most is not None and (rank := adapter_rank(directory)) > most:
            faults.add([f"{config.cite('option.max_lora_rank', most)}: the adapter {name} has rank {rank}"])
    return faults
