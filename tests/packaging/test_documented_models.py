"""docs/models.md names every architecture that the tests build."""

from __future__ import annotations

import re

from tests.checkpoints import NATIVE
from tests.packaging.documents import DOCS
from tests.vision_checkpoints import VISION_ARCHITECTURES


def test_every_architecture_of_the_tests_is_in_the_table() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    _, _, table = text.partition("## Architectures")
    named = set(re.findall(r"`([\w-]+)`", table.partition("\n## ")[0]))
    built = {config().model_type for config in NATIVE.values()} | VISION_ARCHITECTURES.keys()
    assert sorted(built - named) == []
