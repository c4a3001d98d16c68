"""Labels of tokens and entities equal those of transformers' pipeline, with every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from djl_python.core.text_tasks import TagRequest, TextInput
from tests.encoders import SPECIAL, WORDS, write_encoder
from tests.handlers.encoding.harness import ServedEncoder

TEXT = "the cats saw2 a Zebra, birdsong and matcats is it ; two"
LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC", 5: "MISC"}


def write_pieces(path: Path) -> None:
    """A WordPiece tokenizer, some of whose words have several tokens."""
    parts = ["##s", "##song", "##cats", "##2", "bird", "##e", ",", ";"]
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS, *parts])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(path)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")  # transformers', about its own heuristic
@pytest.mark.parametrize("pieces", [True, False], ids=["wordpiece", "words"])
async def test_tags_equal_the_pipelines(tmp_path: Path, pieces: bool) -> None:
    write_encoder(tmp_path, auto_class="AutoModelForTokenClassification", id2label=LABELS, initializer_range=0.05)
    if pieces:
        write_pieces(tmp_path)
    pipeline: Any = transformers.pipeline("token-classification", str(tmp_path))
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.task == "token-classification"
    text = TextInput(text=TEXT)
    for strategy in ("none", "simple", "first", "average", "max"):
        for ignored in (["O"], ["MISC", "PER"]):
            expected = pipeline(TEXT, aggregation_strategy=strategy, ignore_labels=ignored)
            (tagged,) = await served.ask(TagRequest(text=text, aggregation=strategy, ignored=tuple(ignored)))
            assert len(expected) > 2
            for mine, theirs in zip(tagged["entities"], expected, strict=True):
                assert mine["label"] == theirs.get("entity_group", theirs.get("entity"))
                assert mine["score"] == pytest.approx(float(theirs["score"]), abs=1e-5)
                assert [mine[name] for name in ("word", "start", "end")] == [
                    theirs[name] for name in ("word", "start", "end")
                ]
                assert mine["index"] == theirs.get("index")


async def test_places_are_those_of_the_whole_text_where_its_beginning_is_cut_off(tmp_path: Path) -> None:
    write_encoder(tmp_path, auto_class="AutoModelForTokenClassification", id2label=LABELS, initializer_range=0.05)
    served = await ServedEncoder(tmp_path).load()
    text = " ".join(["cats saw"] * 300) + " zebra birdsong"
    (tagged,) = await served.ask(TagRequest(text=TextInput(text=text, truncate="left", max_tokens=8), ignored=()))
    places = [(entity["start"], entity["end"]) for entity in tagged["entities"]]
    assert len(places) == 6
    assert [text[start:end] for start, end in places][-2:] == ["zebra", "birdsong"]
    assert places[-1][1] == len(text)
