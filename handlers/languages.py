"""Which languages an encoder-decoder translates between: tokens of the prompt and of the answer, by request.

Runs in the worker. A tokenizer of several languages has a special token for each ("fr_XX", "fra_Latn", "__fr__"), and
writes one before or after a text. The answer's language is the first token of the decoder, which it does not generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from djl_python.core.errors import ParameterError
from djl_python.core.types import DecoderTokens, GenerateRequest, Translation
from djl_python.text.tokens.tokenizer import Tokenizer

#: Forms of a language's token, by its name.
_FORMS: Final = ("{}", "__{}__")
#: Languages that an error names.
_SHOWN: Final = 5


class Languages:
    """The languages of one model.

    Args:
        decoder: how the model's answers begin; None: it is no encoder-decoder, and has no languages to choose from.
        refuses_unknown: whether a parameter without effect is refused (option.unknown_parameters=error).
    """

    def __init__(self, tokenizer: Tokenizer, decoder: DecoderTokens | None, *, refuses_unknown: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._refuses_unknown = refuses_unknown
        others = {tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values()}
        self._ids = tokenizer.special_ids - others

    def taken(self, request: GenerateRequest) -> GenerateRequest:
        """The request, with what has no effect on this model among its ignored parameters.

        Raises:
            ParameterError: ignoring is not allowed.
        """
        translation = request.translation
        if translation is None or self._decoder is not None:
            return request
        named = [name for name in translation.__struct_fields__ if getattr(translation, name) is not None]
        if self._refuses_unknown:
            raise ParameterError(f"{named[0]}: the model does not translate: it has no encoder", named[0])
        return msgspec.structs.replace(request, ignored=tuple(sorted({*request.ignored, *named})), translation=None)

    def written(self, ids: list[int], request: GenerateRequest) -> list[int]:
        """The ids of a text, in the language that the request says it is in.

        Raises:
            ParameterError: the model has no such language, or its tokenizer writes none beside a text.
        """
        name = None if request.translation is None else request.translation.src_lang
        if name is None:
            return ids
        language = self._id(name, "src_lang")
        place = next((at for at in (0, len(ids) - 1) if ids and ids[at] in self._ids), None)
        if place is None:
            raise ParameterError("src_lang: this tokenizer writes no language before or after a text", "src_lang")
        return [*ids[:place], language, *ids[place + 1 :]]

    def parted(self, ids: list[int], request: GenerateRequest) -> tuple[list[int], list[int], DecoderTokens | None]:
        """(what an encoder reads, what the decoder goes on from, how the answer begins and ends), of a prompt.

        Raises:
            ParameterError: the model has no such language.
        """
        decoder = self._decoder
        if decoder is None:
            return [], ids, None
        translation = request.translation or Translation()
        first = translation.forced_bos_token_id
        if translation.tgt_lang is not None:
            language = self._id(translation.tgt_lang, "tgt_lang")
            if first not in (None, language):
                raise ParameterError(
                    f"forced_bos_token_id: expected {language}, which is tgt_lang's, got {first}", "forced_bos_token_id"
                )
            first = language
        if first is not None:
            decoder = msgspec.structs.replace(decoder, start_ids=(decoder.start_ids[0], first), forced=1)
        return ids, list(decoder.start_ids), decoder

    def _id(self, name: str, field: str) -> int:
        for form in _FORMS:
            token_id = self._tokenizer.token_to_id(form.format(name))
            if token_id in self._ids:
                return token_id
        raise ParameterError(f"{field}: expected {self._names(sorted(self._ids))}, got {name[:40]!r}", field)

    def _names(self, ids: Sequence[int]) -> str:
        if not ids:
            return "no value: the model has no languages to choose from"
        names = [self._tokenizer.decode([one], skip_special_tokens=False).strip() for one in ids[:_SHOWN]]
        more = f" or one of {len(ids) - _SHOWN} others" if len(ids) > _SHOWN else ""
        return f"one of the model's languages: {', '.join(names)}{more}"
