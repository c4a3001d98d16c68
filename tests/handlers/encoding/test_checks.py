"""What is refused of an encoder's checkpoint before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import ModelLoadError
from djl_python.handlers.encoding.checks import check_files
from tests.encoders import write_encoder

#: What config.json of published checkpoints says of their code.
GTE = {"model_type": "new", "architectures": ["NewModel"], "auto_map": {"AutoModel": "new-impl--modeling.NewModel"}}
JINA_V3 = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaLoRA"],
    "auto_map": {"AutoModel": "xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
}
JINA_V2 = {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "auto_map": {"AutoModel": "jina-bert-implementation--modeling_bert.JinaBertModel"},
}
#: Its code is transformers' own by now.
NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {"AutoModel": "nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}


def check_changed(path: Path, said: dict[str, Any], kind: str = "bert") -> None:
    """Check a checkpoint whose config.json says this."""
    write_encoder(path, kind)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | said))
    check_files(ModelConfig(name="m", path=str(path)), "feature-extraction", path)


@pytest.mark.parametrize(
    ("said", "named"),
    [(GTE, "model_type 'new'"), (JINA_V3, "XLMRobertaLoRA"), (JINA_V2, "JinaBertForMaskedLM")],
)
def test_code_of_the_checkpoints_own_is_refused_by_name(tmp_path: Path, said: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        check_changed(tmp_path, said)
    assert named in caught.value.message
    assert "option.trust_remote_code=true" in caught.value.message


def test_code_that_is_transformers_own_by_now_is_not_needed(tmp_path: Path) -> None:
    check_changed(tmp_path, NOMIC, "nomic_bert")
