"""The pipelines that transformers' tokenizer classes build from tokenizer.json, reimplemented without transformers.

Runs in the worker. Some classes take only the vocabulary from tokenizer.json and build normalizer, pre-tokenizer and
decoder themselves; the classes of the usual decoders and encoders are reimplemented here, so that ids equal
AutoTokenizer's. `tests/text/tokens` compares both, and the tables below with transformers' own. `encoders` has the
pipelines of encoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from ...gguf import TOKENIZER_CLASS as GGUF_CLASS
from .encoders import ENCODERS, TokenizerClass

QWEN2_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: Class names (without "Fast") that take tokenizer.json as it is.
FILE_CLASSES: Final = frozenset({"TokenizersBackend", "PreTrainedTokenizer", "BloomTokenizer"})

#: Model types whose checkpoints name a wrong class -> the class to use, whatever they name.
OVERRIDES: Final = {
    "qwen2": "Qwen2Tokenizer",
    **dict.fromkeys(
        "arctic ernie4_5 ernie4_5_moe internlm2 internlm3 jamba minicpm3 minimax_m2 nemotron phi3 phimoe".split(),
        "TokenizersBackend",
    ),
}

#: Model type -> class, where the checkpoint names none or the type's registered class is "the file as it is".
REGISTERED: Final = {
    **OVERRIDES,
    **dict.fromkeys(
        "glm glm4 glm4_moe gpt_bigcode granite granitemoe ministral ministral3 mistral mixtral olmo2 olmo3 persimmon "
        "stablelm".split(),
        "TokenizersBackend",
    ),
    **dict.fromkeys("qwen2_moe qwen3 qwen3_moe qwen3_next".split(), "Qwen2Tokenizer"),
    **dict.fromkeys("codegen dbrx gpt2 gpt_neo gptj opt phi starcoder2".split(), "GPT2Tokenizer"),
    **dict.fromkeys("falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv".split(), "GPTNeoXTokenizer"),
    **dict.fromkeys("gemma gemma2 gemma3_text recurrent_gemma".split(), "GemmaTokenizer"),
    **dict.fromkeys("bert distilbert electra ernie megatron-bert nomic_bert".split(), "BertTokenizer"),
    "modernbert": "TokenizersBackend",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "xlm-roberta-xl": "TokenizersBackend",
}


def choose(config: Mapping[str, Any], model_config: Mapping[str, Any], *, byte_level: bool) -> TokenizerClass | None:
    """The checkpoint's tokenizer class; None: it is not reimplemented here.

    `config` is tokenizer_config.json, `model_config` config.json. `byte_level`: the pipeline in tokenizer.json works on
    bytes, so that the class name LlamaTokenizer (in some checkpoints of Llama 3) is wrong.
    """
    if "auto_map" in config:
        return None
    if config.get("tokenizer_class") == GGUF_CLASS:
        return _AS_IT_IS
    model_type = model_config.get("model_type") or ""
    named = (config.get("tokenizer_class") or model_config.get("tokenizer_class") or "").removesuffix("Fast")
    registered = REGISTERED.get(model_type)
    if named == "LlamaTokenizer" and model_type not in OVERRIDES and byte_level:
        name = "TokenizersBackend"
    elif not named or registered == "TokenizersBackend":
        name = registered or "TokenizersBackend"
    else:
        name = OVERRIDES.get(model_type, named)
    return _AS_IT_IS if name in FILE_CLASSES else CLASSES.get(name)


def add_tokens(
    tokenizer: Tokenizer, config: Mapping[str, Any], special_map: Mapping[str, Any], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Add the tokens that the configuration names and tokenizer.json lacks; returns the special tokens by name.

    `special_map` is special_tokens_map.json, {} if it does not count. A name that neither has is one of the class's
    `defaults`, if the vocabulary has that token.
    """
    declared = {int(i): _added(token) for i, token in (config.get("added_tokens_decoder") or {}).items()}
    by_text = {token.content: token for token in declared.values()}
    known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [token for _, token in sorted(declared.items(), key=lambda item: item[0]) if repr(token) not in known]

    named = {
        key: value if isinstance(value, str) else value["content"]
        for key, value in {**config, **special_map}.items()
        if key.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value))
    }
    for key, default in defaults.items():
        if key not in config and key not in special_map and tokenizer.token_to_id(default) is not None:
            named[key] = default
    texts = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | {
        token.content for token in missing
    }
    for text in [*named.values(), *_extra(config, special_map)]:
        if text not in texts:
            texts.add(text)
            missing.append(by_text.get(text) or AddedToken(text, special=True, normalized=False))
    for token in missing:
        if token.content in named.values():
            token.special = True
    tokenizer.add_tokens(missing)
    if config.get("split_special_tokens"):
        tokenizer.encode_special_tokens = True
    return named


def _extra(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> list[str]:
    tokens: list[str] = []
    for source in (config, special_map):
        extra = source.get("extra_special_tokens") or source.get("additional_special_tokens") or []
        values = extra.values() if isinstance(extra, dict) else extra
        tokens += [value if isinstance(value, str) else value["content"] for value in values]
    return tokens


def _added(token: Mapping[str, Any]) -> AddedToken:
    return AddedToken(**{key: value for key, value in token.items() if key != "__type"})


# ------------------------------------------------------------------------------------------------ the classes


def _as_it_is(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Keep the pipeline of tokenizer.json."""


def _llama(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    add_prefix_space = config.get("add_prefix_space")
    prefixed = True if add_prefix_space is None else bool(add_prefix_space)
    scheme = "never" if not prefixed else "always" if config.get("legacy", False) else "first"
    model = tokenizer.model
    model.fuse_unk = model.byte_fallback = True
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(content=" ", left=1)] * prefixed)


def _gemma(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    model = tokenizer.model
    model.fuse_unk = model.byte_fallback = True
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def _gpt2(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
    tokenizer.decoder = decoders.ByteLevel()


def _gpt_neox(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(config.get("add_prefix_space")), trim_offsets=bool(config.get("trim_offsets", True))
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Only this class ignores the post-processor in tokenizer.json.
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])


def _qwen2(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")), use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


_AS_IT_IS: Final = TokenizerClass(_as_it_is)
#: Class name (without "Fast") -> the class.
CLASSES: Final[Mapping[str, TokenizerClass]] = {
    "LlamaTokenizer": TokenizerClass(_llama, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "GemmaTokenizer": TokenizerClass(
        _gemma, {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    ),
    "GPT2Tokenizer": TokenizerClass(_gpt2, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")),
    "GPTNeoXTokenizer": TokenizerClass(
        _gpt_neox, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    ),
    "Qwen2Tokenizer": TokenizerClass(_qwen2, dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")),
    **ENCODERS,
}
