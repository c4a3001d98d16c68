"""A handler of one's own: guesses the language of a text from its commonest words.

The first call has no content: it loads the model. Every later one is a request.
"""

from __future__ import annotations

from djl_python import Input, Output

COMMON_WORDS = {
    "english": "the of and to in is that it was for on are with they this have from",
    "french": "le la les de des et un une est dans que qui pour pas sur avec il elle",
    "german": "der die das und ist nicht ein eine zu mit auf für von den sie wir es",
    "spanish": "el los las de y que en un una es por con para no se del al",
}


class LanguageGuesser:
    """The model. A real one would load weights from `properties["model_dir"]` here."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.words = {language: set(words.split()) for language, words in COMMON_WORDS.items()}
        self.unknown = properties.get("unknown_language", "unknown")

    def guess(self, text: str) -> dict[str, str | float]:
        """The likeliest language, and the share of the text's words that speak for it."""
        words = text.lower().split()
        hits = {language: sum(word in known for word in words) for language, known in self.words.items()}
        best = max(hits, key=lambda language: hits[language])
        if not hits[best]:
            return {"language": self.unknown, "score": 0.0}
        return {"language": best, "score": round(hits[best] / len(words), 2)}


_model: LanguageGuesser | None = None


def handle(inputs: Input) -> Output | None:
    """Answer one request: JSON {"text": "..."}."""
    global _model
    if _model is None:
        _model = LanguageGuesser(inputs.get_properties())
    if inputs.is_empty():
        return None  # the call that loads the model

    request = inputs.get_as_json()
    if not isinstance(request, dict) or not isinstance(request.get("text"), str):
        return Output().error('expected {"text": "..."}', code=400, message="bad request")
    return Output().add_as_json(_model.guess(request["text"]))
