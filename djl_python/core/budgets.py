"""What one request may ask for: every limit on a request's size, in one table. Used in every process.

Each limit is checked before the work that it bounds, in steps that stop at the limit, so a request that is too large
costs little more than reading its bytes. The words of a refusal come from here; its field, status and shape are its
dialect's. docs/limits.md shows the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Budget(NamedTuple):
    """One limit.

    Attributes:
        most: the most that is taken.
        of: the noun after the number: what is counted.
        where: where it is counted, for the documents.
        why: the reason for the number, for the documents.
    """

    most: int
    of: str
    where: str
    why: str

    def excess(self, got: int, *, at_least: bool = False) -> str:
        """The words of a refusal, "at most ..., got ...", if the number is too large; "" if not.

        Args:
            at_least: whether counting stopped early.
        """
        if got <= self.most:
            return ""
        return f"expected at most {self.most} {self.of}, got {'at least ' if at_least else ''}{got}"


#: Bodies of more bytes are parsed by a thread of their own, so that other requests' tokens go on being written. A
#: change of threads costs 0.1 ms; a body of this size may hold the event loop for up to 0.1 s.
LARGE_BODY_BYTES: Final = 64 << 10

VALUES: Final = Budget(
    500_000,
    "JSON values",
    "a body, and the responses that a request goes on with; set by `option.max_request_values`",
    "Decoding holds the interpreter, 0.1 s for as many objects. A prompt of token ids has a value for each.",
)
PAGE_VALUES: Final = Budget(
    10_000, "JSON values", "a body about models, files or batches", "The front end reads it in its event loop."
)
MESSAGES: Final = Budget(10_000, "messages", "a chat", "Each is checked and rendered, in 10 µs.")
ROLE_CHARS: Final = Budget(256, "characters", "a message's role", "What a template makes of it is remembered.")
PARTS: Final = Budget(
    10_000,
    "content parts",
    "all messages of a chat, tools' results and reasoning among them, or MindIE's `inputs`",
    "As for messages.",
)
TOOLS: Final = Budget(1_024, "tools", "a chat", "OpenAI's API takes 128.")
SALT_CHARS: Final = Budget(256, "characters", "`cache_salt`", "vLLM's documents advise 43. The KV cache keeps it.")
TEMPLATE_VARIABLES: Final = Budget(256, "variables", "`chat_template_kwargs`", "Templates read a handful.")
CHOICES: Final = Budget(128, "sequences", "one prompt: `n`, `best_of`, `num_beams`", "As in OpenAI's API.")
SEQUENCES: Final = Budget(
    1_024, "sequences together", "all prompts of a request", "The worker's loop prepares and submits each of them."
)
BEAMS: Final = Budget(128, "sequences together", "a beam search", "Each beam is submitted anew with every step.")
WORDS: Final = Budget(
    1_024, "texts", "a list: stop sequences, banned words, `guided_choice`", "Each is searched for at every token."
)
WORD_CHARS: Final = Budget(
    32_768, "characters together", "such a list", "The matcher is built before the first token, in 30 ms."
)
TOKEN_IDS: Final = Budget(
    1_024, "token ids", "`stop_token_ids`, `logit_bias`", "They are sent to the engine with each sequence."
)
REGEX_CHARS: Final = Budget(
    32_768, "characters", "a regular expression", "As for such a list; compiling it takes the engine time and memory."
)
GBNF_CHARS: Final = Budget(32_768, "characters", "a grammar in GBNF", "As a regular expression's.")
SCHEMA_VALUES: Final = Budget(
    50_000, "JSON values", "a JSON schema, or all tools' together", "Checking and completing one takes 10 µs."
)
SCHEMA_CHARS: Final = Budget(
    262_144, "characters", "a JSON schema, or all tools' together: keys and strings", "OpenAI's API takes 120,000."
)
SCHEMA_DEPTH: Final = Budget(
    100, "levels", "a JSON schema: nested objects and arrays", "Real schemas have few; recursive readers take as many."
)
SCHEMA_REFERENCES: Final = Budget(
    5_000,
    "references",
    "a JSON schema, or all tools' together: `$ref`",
    "OpenAI's API takes 5,000 properties.",
)
SCHEMA_ENUM: Final = Budget(10_000, "enum values", "a JSON schema, or all tools' together", "OpenAI's API takes 1,000.")
SCHEMA_ALTERNATIVES: Final = Budget(
    10_000, "alternatives", "a JSON schema, or all tools' together: `anyOf`, `oneOf`, `allOf`", "As for enum values."
)
SCHEMA_COMPARISONS: Final = Budget(
    200_000,
    "comparisons",
    "a JSON schema: alternatives of its `oneOf` with one another",
    "They take 50 ms. Beyond, or with more than 100 alternatives, these stay open to properties that they don't list.",
)
GRAMMAR_CHARS: Final = Budget(
    64 << 20,
    "characters of grammars together",
    "all sequences of a request",
    "Each sequence takes its grammar to the engine.",
)
TEXTS: Final = Budget(
    2_048,
    "texts",
    "a request to embed, rank or classify; a zero-shot label counts as one for each text",
    "OpenAI's API takes as many. Each is tokenized, batched and answered by itself.",
)
TOKEN_VECTORS: Final = Budget(
    16_384,
    "vectors of tokens together",
    "a request for a vector of each token",
    "Each has a thousand numbers; the worker holds and writes all of them.",
)
WIDE_VECTORS: Final = Budget(
    256,
    "masks or sparse vectors together",
    "a request to fill masks, or for sparse embeddings",
    "Each has a number for every token of the vocabulary.",
)
LISTED_TOKENS: Final = Budget(
    500_000, "tokens together", "the texts of a `/tokenize` of Text Embeddings Inference", "Each becomes an object."
)
PIECES: Final = Budget(
    256,
    "pieces",
    "the context of a question, 2,048 all contexts of a request: 384 tokens each, those of the question among them",
    "Each is a text for the model.",
)
FILLINGS: Final = Budget(
    2_048, "answers together", "a request to fill masks: `top_k` for each mask", "Each is written with its whole text."
)
HYPOTHESIS_CHARS: Final = Budget(
    2_048, "characters", "`hypothesis_template` with a label in it", "The model reads it with each text."
)
LABELS: Final = Budget(256, "labels", "`candidate_labels`", "The model reads each text once for each label.")
BEST: Final = Budget(1_024, "answers", "one text: `top_k`", "Each becomes an object of the answer.")
TARGETS: Final = Budget(1_024, "texts", "`targets` of a mask", "Each is looked up in the vocabulary.")
TENSOR_DIMENSIONS: Final = Budget(32, "dimensions", "the shape of a tensor", "As in numpy 1.")
TENSORS: Final = Budget(64, "tensors", "Triton's `inputs`, `outputs`", "There are 27 parameters.")
SAMPLING_CHARS: Final = Budget(
    1 << 20,
    "characters together",
    "Triton's tensor `sampling_parameters`",
    "A KiB for each prompt; texts that are the same count once.",
)
FORM_FIELDS: Final = Budget(10_000, "fields", "a form", "Each becomes a name and a value, in 2 µs.")
#: How many names without effect are kept: more than the header has room for.
IGNORED_NAMES: Final = 1_024


def budgets() -> Iterator[Budget]:
    """Every limit, in order."""
    return (value for value in globals().values() if isinstance(value, Budget))
