"""Trains the demo model: a byte-level BPE tokenizer and a small Llama, from the text in ``corpus/``.

Run it by hand, ``python train.py [--output DIR]``; nothing of the server imports it. It needs torch,
transformers and tokenizers, two CPU cores and a few minutes. The seed is fixed: the same versions on
the same kind of machine give the same weights.

The model sees every answer in three forms: as a chat (with and without a system prompt, one turn or
several), as a plain completion of the question, and as a text of its own. Only the answers count in the loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from conversations import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    SYSTEM_PROMPTS,
    Entry,
    Sampler,
    Segment,
    chat,
    later_turn,
    plain,
    read_corpus,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

HERE = Path(__file__).resolve().parent
PAD = "<|pad|>"
VOCAB_SIZE = 2048
CONTEXT_TOKENS = 2048
SEED = 20240601
CUT_TOKENS = 8
FIRST_WEIGHT = 8.0  # the first tokens decide which answer it becomes, so they count more in the loss

SAMPLE_PROMPTS = (
    "What is deep learning?",
    "what is continuous batching",
    "Who are you?",
    "How do I write my own handler?",
    "Say hello in Japanese.",
    "Count to twenty.",
)


class Example(NamedTuple):
    """Token ids, and how much each counts in the loss (0: the model does not learn to write it)."""

    ids: list[int]
    weights: list[float]


def train_tokenizer(entries: list[Entry]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the corpus: any text can be encoded, and decoding gives it back exactly."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, IM_START, IM_END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    questions = [question for entry in entries for question in entry.questions]
    answers = [text for entry in entries for text in (entry.answer, " " + entry.answer)]
    lowered = [question.lower() for question in questions]
    bpe.train_from_iterator(questions + lowered + answers + list(SYSTEM_PROMPTS), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[IM_START],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )
    tokenizer.chat_template = (HERE / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A small Llama with random weights in fp32."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def encode(segments: list[Segment], tokenizer: PreTrainedTokenizerFast, limit: int | None = None) -> Example:
    """Tokens of a conversation, weighted where they are trained; at most ``limit`` of the last segment."""
    example = Example([], [])
    for number, (text, trained) in enumerate(segments, 1):
        ids = tokenizer.encode(text)[: limit if number == len(segments) else None]
        example.ids.extend(ids)
        example.weights.extend(1 + FIRST_WEIGHT / (1 + i) if trained else 0.0 for i in range(len(ids)))
    if len(segments) == 1:  # a text of its own: its first words are given, not learned
        example.weights[:] = [0.0, 0.0] + [1.0] * (len(example.ids) - 2)
    return example


def by_length(examples: Iterable[Example]) -> list[Example]:
    """The examples, shortest first, so that neighbours need little padding."""
    return sorted(examples, key=lambda example: len(example.ids))


def batches(sampler: Sampler, tokenizer: PreTrainedTokenizerFast, tokens: int) -> Iterator[list[Example]]:
    """Groups of examples of similar length, about ``tokens`` tokens each, in random order."""
    # Which answer to give is harder to learn than its continuation, so every second answer is cut short.
    stream = zip(sampler, itertools.cycle((None, CUT_TOKENS)))
    while True:
        pool = by_length(encode(text, tokenizer, limit) for text, limit in itertools.islice(stream, 1024))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(example.ids) > tokens:
                groups.append([])
            groups[-1].append(example)
        sampler.rng.shuffle(groups)
        yield from groups


def predict(model: LlamaForCausalLM, batch: list[Example]) -> tuple[torch.Tensor, ...]:
    """Logits, targets, weights and row numbers, (n, vocab) and three times (n,), of the n trained tokens."""
    width = max(len(example.ids) for example in batch)
    # Padding is on the right, where the causal mask hides it.
    ids = torch.tensor([example.ids + [0] * (width - len(example.ids)) for example in batch])
    weights = torch.tensor([example.weights + [0.0] * (width - len(example.ids)) for example in batch])
    trained = weights[:, 1:] > 0
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][trained])
    return logits, ids[:, 1:][trained], weights[:, 1:][trained], trained.nonzero()[:, 0]


def train(model: LlamaForCausalLM, data: Iterator[list[Example]], steps: int, learning_rate: float) -> None:
    """AdamW with warm-up and a linear decay to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.05 * steps), (steps - step) / (0.95 * steps), 1.0)
    )
    started, tokens, average = time.monotonic(), 0, 0.0
    model.train()
    for step in range(1, steps + 1):
        batch = next(data)
        logits, targets, weights, _ = predict(model, batch)
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        tokens += sum(len(example.ids) for example in batch)
        average += (loss.item() - average) * max(0.05, 1 / step)
        if step % 100 == 0 or step == steps:
            seconds = time.monotonic() - started
            speed = f"{tokens / seconds:.0f} tokens/s  {seconds:.0f} s"
            print(f"step {step}/{steps}  loss {average:.3f}  {speed}", flush=True)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes everything that ``from_pretrained`` needs."""
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.bos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it is written readable by its owner only
    tokenizer.save_pretrained(folder)
    # Names that transformers 4 knows as well, for servers that still use it.
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@torch.inference_mode()
def verbatim(model: LlamaForCausalLM, examples: list[Example]) -> float:
    """The share of examples whose answer greedy decoding gives word for word.

    One pass is enough: greedy decoding gives the answer when each of its tokens is the likeliest after
    those before.
    """
    right = 0
    for start in range(0, len(examples), 32):
        batch = examples[start : start + 32]
        logits, targets, _, rows = predict(model, batch)
        right += len(batch) - len(torch.unique(rows[logits.argmax(-1) != targets]))
    return right / len(examples)


def report(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry]) -> None:
    """Prints how many of the corpus's questions are answered word for word, and some answers."""
    model.eval()
    pairs = [(question, entry.answer) for entry in entries for question in entry.questions]

    def careless(question: str) -> str:
        return question.lower().rstrip(".?!")

    forms = {
        "plain": [plain(question, answer) for question, answer in pairs],
        "plain, lower case, no mark": [plain(careless(question), answer) for question, answer in pairs],
        "chat": [chat([pair], None) for pair in pairs],
        "chat with a system prompt": [chat([pair], SYSTEM_PROMPTS[0]) for pair in pairs],
        "second turn": [later_turn(pairs[i - 7], pair) for i, pair in enumerate(pairs)],
    }
    for name, conversations in forms.items():
        examples = by_length(encode(segments, tokenizer) for segments in conversations)
        print(f"{verbatim(model, examples):6.1%} word for word: {name}")
    for prompt in SAMPLE_PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for form, full in (("plain", prompt), ("chat", text)):
            inputs = tokenizer(full, return_tensors="pt")
            output = model.generate(**inputs, max_new_tokens=80, do_sample=False)
            new = output[0, inputs["input_ids"].shape[1] :]
            answer = tokenizer.decode(new, skip_special_tokens=True)
            print(f"{form:5} {prompt!r} -> {answer!r} ({len(new)} tokens)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model from the text in corpus/.")
    parser.add_argument("--output", type=Path, default=HERE.parent, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=2400, help="training steps (default: %(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=1024, help="per step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="peak (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    disable_progress_bar()

    entries = read_corpus(HERE / "corpus")
    tokenizer = train_tokenizer(entries)
    model = new_model(tokenizer)
    questions = sum(len(entry.questions) for entry in entries)
    print(f"{len(entries)} answers, {questions} questions, {model.num_parameters():,} parameters", flush=True)
    data = batches(Sampler(entries, SEED), tokenizer, options.batch_tokens)
    train(model, data, options.steps, options.learning_rate)

    save(model.to(torch.bfloat16), tokenizer, options.output)
    report(model.float(), tokenizer, entries)


if __name__ == "__main__":
    main()
