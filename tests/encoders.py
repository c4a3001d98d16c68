"""Encoders for tests: small checkpoints with random weights, and the engine in the test's own process."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from djl_python.config import ModelConfig
from djl_python.core.engine_info import EngineStats
from djl_python.core.errors import from_kind
from djl_python.core.turns.precedence import Precedence
from djl_python.engine.encoding.batching import BatchingEncoder
from djl_python.engine.encoding.opening import open_encoder
from djl_python.engine.encoding.row import encoder_settings
from djl_python.engine.encoding.settings import EncoderSettings, Head
from djl_python.engine.process import Hooks, common_settings
from djl_python.ipc.encodings import EncodeRequest, EncoderInput, Encoding
from djl_python.ipc.protocol import Opened

SPECIAL: Final = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS: Final = "the cat sat on a mat and saw two birds who where is it".split()
VOCABULARY: Final = 64
#: Sizes that most configurations name alike.
_SIZES: Final = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 0,
}
_DECODERS: Final = {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
#: model type -> its configuration.
CONFIGURATIONS: Final[dict[str, Callable[[], Any]]] = {
    "bert": lambda: transformers.BertConfig(**_SIZES),
    "roberta": lambda: transformers.RobertaConfig(**{**_SIZES, "pad_token_id": 1}),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**{**_SIZES, "pad_token_id": 1}),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
    ),
    "mpnet": lambda: transformers.MPNetConfig(**{**_SIZES, "pad_token_id": 1}),
    "electra": lambda: transformers.ElectraConfig(embedding_size=16, **_SIZES),
    "deberta": lambda: transformers.DebertaConfig(
        relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False, **_SIZES
    ),
    "deberta-v2": lambda: transformers.DebertaV2Config(
        relative_attention=True,
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        **_SIZES,
    ),
    "modernbert": lambda: transformers.ModernBertConfig(
        global_attn_every_n_layers=2, local_attention=8, cls_token_id=2, sep_token_id=3, **_SIZES
    ),
    "nomic_bert": lambda: transformers.NomicBertConfig(**_SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**_DECODERS),
    "mistral": lambda: transformers.MistralConfig(sliding_window=8, **_DECODERS),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        use_bidirectional_attention=True,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=16,
        **_DECODERS,
    ),
}


def write_word_tokenizer(path: Path, *, specials_twice: bool = False) -> None:
    """A tokenizer whose tokens are words, with BERT's special tokens, which tells the two texts of a pair apart."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )
    fast.save_pretrained(path)


#: Tokens with huge embeddings in two columns; and columns that are large for all tokens.
_SINKS: Final = {5: 3000.0, 17: -2000.0, 40: 1500.0}
#: Ids of these tokens.
SINKS: Final = tuple(_SINKS)
_HUGE: Final = (7, 21)
_OUTLIERS: Final = (11, 30)


@torch.no_grad()
def plant_sinks(model: Any) -> None:
    """Make a model as ill-conditioned as trained ones: sinks, outlier channels, large and tiny norm weights."""
    table = model.get_input_embeddings().weight
    width = table.shape[1]
    for token, size in _SINKS.items():
        for column, share in zip(_HUGE, (1.0, -0.5), strict=True):
            table[token, column % width] += size * share
    for name, tensor in model.named_parameters():
        if tensor.dim() == 2 and tensor.shape[0] > max(_OUTLIERS) and tensor.shape[0] != VOCABULARY:
            tensor[list(_OUTLIERS)] *= 8
        if tensor.dim() == 1 and "norm" in name.lower() and len(tensor) > max(_OUTLIERS):
            tensor[list(_OUTLIERS)] *= 10
            tensor[[1, 2]] *= 1e-3


def write_encoder(
    path: Path, kind: str = "bert", auto_class: str = "AutoModel", *, sinks: bool = False, **settings: Any
) -> Any:
    """Save a checkpoint with random weights, the same ones every time; returns transformers' model of it.

    Args:
        sinks: with numbers as trained models have them, see `plant_sinks`.
    """
    write_word_tokenizer(path)
    config = CONFIGURATIONS[kind]()
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(5)
    model = getattr(transformers, auto_class).from_config(config).eval()
    if sinks:
        plant_sinks(model)
    model.save_pretrained(path)
    return model


def write_modules(path: Path, *kinds: str, pooling: dict[str, Any] | None = None, dense_width: int = 8) -> None:
    """The files of sentence-transformers, with modules of these kinds behind the Transformer."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, kind in enumerate(kinds, 1):
        folder = f"{number}_{kind}"
        (path / folder).mkdir()
        modules.append(
            {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        )
        if kind == "Pooling":
            (path / folder / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
        if kind == "Dense":
            generator = torch.Generator().manual_seed(3)
            width = 32
            weights = {
                "linear.weight": torch.randn(dense_width, width, generator=generator),
                "linear.bias": torch.randn(dense_width, generator=generator),
            }
            save_file(weights, path / folder / "model.safetensors")
            says: dict[str, Any] = {"in_features": width, "out_features": dense_width, "bias": True}
            says["activation_function"] = "torch.nn.modules.activation.Tanh"
            (path / folder / "config.json").write_text(json.dumps(says))
    (path / "modules.json").write_text(json.dumps(modules))


def settings_of(path: Path, head: Head = Head.EMBEDDING, **settings: Any) -> EncoderSettings:
    """What an engine on one thread is opened with."""
    return EncoderSettings(model_path=str(path), head=head, **{"threads": 1, "max_batch_size": 32, **settings})


def open_here(path: Path, head: Head = Head.EMBEDDING, **settings: Any) -> BatchingEncoder:
    """The engine of a checkpoint, in this process."""
    return open_encoder(settings_of(path, head, **settings), lambda what, done, total: None)


def run_to_end(engine: BatchingEncoder) -> list[Encoding]:
    """All that it makes of what it has been given."""
    encodings: list[Encoding] = []
    while not engine.idle:
        encodings += engine.step()
    return encodings


def numbers_of(encodings: Sequence[Encoding]) -> dict[tuple[int, int], npt.NDArray[np.float32]]:
    """The arrays, by (request, index)."""
    return {
        (one.request_id, one.index): np.frombuffer(one.numbers.data, np.float32).reshape(one.numbers.shape)
        for one in encodings
        if one.numbers is not None
    }


class EncoderHere:
    """An `EncoderClient` whose engine is in this process; it computes a request as soon as it comes."""

    def __init__(self, engine: BatchingEncoder, hooks: Hooks) -> None:
        self.hooks = hooks
        self._engine = engine
        self._ids = itertools.count(1)
        self.requests: list[list[EncoderInput]] = []
        self.precedences: list[Precedence] = []
        self.limits = Opened(
            engine.max_model_len,
            engine.max_batch_size,
            0,
            0,
            engine.description,
            info=engine.info,
            max_batch_tokens=engine.max_batch_tokens,
            pooling=engine.pooling,
        )
        self.may_compute = asyncio.Event()
        self.may_compute.set()
        self.cancelled = 0
        self.closed = False

    @classmethod
    async def open(cls, config: ModelConfig, path: Path, head: Head, hooks: Hooks) -> EncoderHere:
        return cls(open_encoder(encoder_settings(config, common_settings(config, path), head), hooks.progress), hooks)

    async def encode(
        self, request: EncodeRequest, *, on_progress: Callable[[], object]
    ) -> list[npt.NDArray[np.float32]]:
        self.requests.append(request.inputs)
        self.precedences.append(request.precedence)
        try:
            await self.may_compute.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        number = next(self._ids)
        self._engine.add(msgspec.structs.replace(request, id=number))
        encodings = run_to_end(self._engine)
        self.hooks.on_stats(EngineStats())
        for one in encodings:
            if one.error is not None:
                raise from_kind(one.error_kind, one.error)
            on_progress()
        arrays = numbers_of(encodings)
        return [arrays[number, index] for index in range(len(request.inputs))]

    async def close(self) -> None:
        self.closed = True
