"""The facts that the handler of encoders reads from a checkpoint's files.

Runs in the worker and, for checks, in the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from djl_python.config import Options, read_json_object
from djl_python.core.errors import ModelLoadError
from djl_python.core.text_tasks import Activation
from djl_python.engine.encoding.sentence_transformers import SentenceTransformer

#: torch's activations of a classifier's logits.
_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "Sigmoid": Activation.SIGMOID,
    "Softmax": Activation.SOFTMAX,
    "Identity": Activation.NONE,
}
_OF_PROBLEMS: Final[Mapping[str, Activation]] = {
    "regression": Activation.NONE,
    "multi_label_classification": Activation.SIGMOID,
    "single_label_classification": Activation.SOFTMAX,
}
#: Placeholders in tokenizer_config.json for an unknown length.
_ANY_LENGTH: Final = 1 << 30


@dataclass(frozen=True)
class EncoderCheckpoint:
    """A checkpoint.

    Attributes:
        sentence: the files of sentence-transformers.
        labels: names of the labels, by number; () where the model has none.
        activation: turns logits into scores.
        max_tokens: most tokens of a text that its files name; None: they name none.
        normalizes: whether embeddings have length 1 where a request does not say it.
    """

    sentence: SentenceTransformer
    labels: tuple[str, ...]
    activation: Activation
    max_tokens: int | None
    normalizes: bool

    @classmethod
    def read(cls, path: Path, option: Options) -> EncoderCheckpoint:
        """Read the files of the checkpoint in `path`, which settings may override.

        Raises:
            ModelLoadError: one of them is broken.
        """
        config = read_json_object(path / "config.json")
        sentence = SentenceTransformer.read(path)
        labels = _labels(config, path)
        declared = read_json_object(path / "tokenizer_config.json").get("model_max_length")
        lengths = [
            sentence.max_tokens,
            int(declared) if isinstance(declared, int | float) and declared < _ANY_LENGTH else None,
        ]
        known = [length for length in lengths if length is not None]
        return cls(
            sentence,
            labels,
            _activation(config, len(labels)),
            min(known) if known else None,
            sentence.modules.normalizes if option.normalize is None else option.normalize,
        )

    @property
    def entailment(self) -> int | None:
        """The label "entailment" of a model of natural language inference; None: there is none."""
        return next((at for at, name in enumerate(self.labels) if name.lower().startswith("entail")), None)


def _labels(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """As transformers has them: by id2label, else as many as num_labels says, else two."""
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)
        return tuple(f"LABEL_{at}" for at in range(count if isinstance(count, int) else 2))
    try:
        by_number = {int(number): str(name) for number, name in names.items()}
        return tuple(by_number[at] for at in range(len(by_number)))
    except (AttributeError, ValueError, KeyError) as exc:
        raise ModelLoadError(
            f'{path / "config.json"}: id2label: expected names by number, as in {{"0": "negative", "1": "positive"}}'
        ) from exc


def _activation(config: Mapping[str, Any], labels: int) -> Activation:
    own = config.get("sentence_transformers")
    named = (own.get("activation_fn") if isinstance(own, dict) else None) or config.get(
        "sbert_ce_default_activation_function"
    )
    if isinstance(named, str) and (activation := _ACTIVATIONS.get(named.rpartition(".")[2])) is not None:
        return activation
    if (activation := _OF_PROBLEMS.get(str(config.get("problem_type")))) is not None:
        return activation
    return Activation.SIGMOID if labels == 1 else Activation.SOFTMAX
