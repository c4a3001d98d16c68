"""The tokenizer of a GGUF model, as tokenizer.json and tokenizer_config.json have one. Runs where models are fetched.

Two kinds are read. "gpt2" works on bytes: words are cut out by expressions, and their bytes merged in a stored order.
"llama" (SentencePiece's BPE) merges whatever pair makes the token of the highest score, the leftmost of several; that
is BPE whose merges are sorted by the score of what they make.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ..core.names import choices
from .errors import GgufError
from .files import TOKENIZER_CLASS
from .pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, split_steps
from .reading import Metadata
from .shards import GgufModel

log = logging.getLogger(__name__)

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE: Final = "▁"
#: Characters; cutting a token at every place takes the square of its length. Vocabularies of 262,144 tokens have some
#: 20 million of these squares together.
_LONGEST_TOKEN: Final = 4096
MOST_SQUARES: Final = 1 << 29
_NAMED: Final = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
#: Tokens that end a text wherever a vocabulary has them as control tokens; the metadata names only one or two.
_ENDS: Final = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>"),
        "<｜end▁of▁sentence｜>",
    )
)


#: Models of these names have tokens that take the space after them along, which the metadata does not say. All added
#: tokens do but a few.
_PHI3: Final = ("phi-3", "phi3")
_PHI3_KEEP: Final = frozenset(("<unk>", "<s>", "<|endoftext|>"))


class Vocabulary:
    """The vocabulary of a model.

    Attributes:
        tokens: by id.
        types: by id, GGUF's numbers of kinds of tokens.
        pre_name: `tokenizer.ggml.pre`, of a byte-level vocabulary.
    """

    def __init__(self, model: GgufModel) -> None:
        self._metadata = metadata = Metadata(model)
        self.kind = metadata.text("tokenizer.ggml.model")
        if self.kind not in ("gpt2", "llama"):
            raise GgufError(
                f"{model.path}: tokenizer.ggml.model is {self.kind!r}; expected gpt2 (BPE of bytes) or llama "
                "(SentencePiece's BPE)"
            )
        self.tokens = metadata.texts("tokenizer.ggml.tokens")
        if too_long := next((token for token in self.tokens if len(token) > _LONGEST_TOKEN), ""):
            raise GgufError(f"{model.path}: a token has {len(too_long)} characters; expected at most {_LONGEST_TOKEN}")
        self.types = self._per_token("tokenizer.ggml.token_type", 1)
        self.pre_name = metadata.text("tokenizer.ggml.pre", "default") if self.kind == "gpt2" else ""
        if self.kind == "gpt2" and "tokenizer.ggml.pre" not in metadata:
            log.warning(
                "%s: tokenizer.ggml.pre is missing, as in files of early 2024: texts are cut into words by the default "
                "rules, which may not be the model's; a newer conversion of the model names them",
                model.path,
            )
        self._ids = {token: number for number, token in reversed(list(enumerate(self.tokens)))}

    def _per_token(self, key: str, default: float) -> list[Any]:
        numbers = self._metadata.numbers(key, [default] * len(self.tokens))
        if len(numbers) != len(self.tokens):
            raise GgufError(f"{self._metadata.path}: {key} has {len(numbers)} numbers; expected {len(self.tokens)}")
        return numbers

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end a generated text."""
        named = [
            self._metadata.count(key, least=0)
            for name in ("eos", "eot", "eom")
            if (key := f"tokenizer.ggml.{name}_token_id") in self._metadata
        ]
        by_text = [self._ids[token] for token in _ENDS if token in self._ids]
        return list(dict.fromkeys([*named, *sorted(each for each in by_text if self.types[each] == _CONTROL)]))

    @property
    def named(self) -> dict[str, str]:
        """The special tokens by the names that chat templates use."""
        tokens = {}
        for name, own in _NAMED.items():
            key = f"tokenizer.ggml.{own}_token_id"
            if key in self._metadata:
                tokens[name] = self._token(key)
        return tokens

    def _token(self, key: str) -> str:
        number = self._metadata.count(key, least=0)
        if number >= len(self.tokens):
            raise GgufError(f"{self._metadata.path}: {key} is {number}, and there are {len(self.tokens)} tokens")
        return self.tokens[number]

    def tokenizer(self) -> dict[str, Any]:
        """tokenizer.json."""
        made = self._of_bytes() if self.kind == "gpt2" else self._of_scores()
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            "post_processor": self._ends(),
            **made,
        }

    def config(self) -> dict[str, Any]:
        """tokenizer_config.json. The chat template is a file of its own."""
        return {"tokenizer_class": TOKENIZER_CLASS, "clean_up_tokenization_spaces": False, **self.named}

    def _added(self) -> list[dict[str, Any]]:
        """Tokens that are found in a text before anything else is done to it."""
        special = {_CONTROL, _UNKNOWN} if self.kind == "llama" else {_CONTROL}
        flags = {"single_word": False, "lstrip": False, "normalized": False}
        name = self._metadata.text("general.name", "").lower()
        keeping = _PHI3_KEEP if any(each in name for each in _PHI3) else frozenset(self.tokens)
        return [
            {
                "id": number,
                "content": self.tokens[number],
                **flags,
                "rstrip": self.tokens[number] not in keeping,
                "special": kind in special,
            }
            for number, kind in enumerate(self.types)
            if (kind in special or kind == _USER_DEFINED) and self._ids[self.tokens[number]] == number
        ]

    def _model(self, merges: list[list[str]], **more: Any) -> dict[str, Any]:
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": self._ids,
            "merges": merges,
            **more,
        }

    @property
    def _pre(self) -> PreTokenizer:
        if self.pre_name not in PRE_TOKENIZERS:
            raise GgufError(
                f"{self._metadata.path}: tokenizer.ggml.pre is {self.pre_name!r}; expected one of "
                f"{choices(self.pre_name, PRE_TOKENIZERS)}"
            )
        return PRE_TOKENIZERS[self.pre_name]

    def _of_bytes(self) -> dict[str, Any]:
        merges = []
        for line in self._metadata.texts("tokenizer.ggml.merges"):
            first, space, second = line.partition(" ") if not line.startswith(" ") else ("", "", "")
            if not (first and space and second):
                raise GgufError(f"{self._metadata.path}: tokenizer.ggml.merges: {line!r}; expected two tokens")
            if first in self._ids and second in self._ids and first + second in self._ids:
                merges.append([first, second])
            else:
                raise GgufError(f"{self._metadata.path}: tokenizer.ggml.merges: {line!r} names no tokens")
        return {
            "normalizer": {"type": self._pre.normal_form} if self._pre.normal_form else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": split_steps(self._pre)},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": self._model(merges, ignore_merges=self._pre.whole_words),
        }

    def _of_scores(self) -> dict[str, Any]:
        prefixed = self._metadata.flag("tokenizer.ggml.add_space_prefix", True)
        steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
        undone: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if prefixed:
            undone.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        unknown = self.named.get("unk_token")
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": undone},
            "model": self._model(self._merges(), byte_fallback=True, fuse_unk=True, unk_token=unknown),
        }

    def _merges(self) -> list[list[str]]:
        """Every pair of tokens that makes a token, sorted by the score of what it makes."""
        scores = self._per_token("tokenizer.ggml.scores", 0.0)
        if (squares := sum(len(token) ** 2 for token in self._ids)) > MOST_SQUARES:
            raise GgufError(
                f"{self._metadata.path}: the squares of the tokens' lengths are {squares} together; expected at most "
                f"{MOST_SQUARES}"
            )
        pairs = [
            (-scores[number], number, token[:cut], token[cut:])
            for token, number in self._ids.items()
            if self.types[number] not in (_CONTROL, _UNKNOWN, _BYTE)
            for cut in range(1, len(token))
            if token[:cut] in self._ids and token[cut:] in self._ids
        ]
        pairs.sort(key=lambda pair: (pair[0], pair[1], -len(pair[2])))
        return [[first, second] for _, _, first, second in pairs]

    def _ends(self) -> dict[str, Any] | None:
        """What goes before and after a text: BOS and EOS, where the metadata or the kind of vocabulary says so."""
        begins = self._pre.begins if self.kind == "gpt2" else True
        around: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        used = {}
        if self._metadata.flag("tokenizer.ggml.add_bos_token", begins) and "bos_token" in self.named:
            around.insert(0, {"SpecialToken": {"id": self.named["bos_token"], "type_id": 0}})
            used[self.named["bos_token"]] = self._metadata.count("tokenizer.ggml.bos_token_id", least=0)
        if self._metadata.flag("tokenizer.ggml.add_eos_token", False) and "eos_token" in self.named:
            around.append({"SpecialToken": {"id": self.named["eos_token"], "type_id": 0}})
            used[self.named["eos_token"]] = self._metadata.count("tokenizer.ggml.eos_token_id", least=0)
        if not used:
            return None
        return {
            "type": "TemplateProcessing",
            "single": around,
            "pair": [*around, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [number], "tokens": [token]} for token, number in used.items()
            },
        }
