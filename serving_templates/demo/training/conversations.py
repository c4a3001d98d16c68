"""The conversations that the demo model learns: the corpus, and the forms in which its questions are asked.

Plain text in, plain text out; tokens are the business of ``train.py``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful AI assistant.",
    "You are a friendly chatbot.",
    "You are the demo model of djl-serving.",
    "You are a concise assistant. Answer briefly.",
    "Answer in one sentence.",
    "Be brief.",
    "You are an expert in machine learning. Answer the questions of the user as well as you can.",
)
PLAIN_FORMS = (  # (prompt, what comes before the answer), the first one is the usual one
    ("{}", " "),
    ("{}\n", ""),
    ("Question: {}\nAnswer:", " "),
    ("Q: {}\nA:", " "),
)


@dataclass(frozen=True)
class Entry:
    """One answer and the questions that ask for it; without questions, a text to complete."""

    questions: tuple[str, ...]
    answer: str


class Segment(NamedTuple):
    """A stretch of text; the model learns to write it only when ``trained``."""

    text: str
    trained: bool


def read_corpus(folder: Path) -> list[Entry]:
    """Reads every ``*.txt`` of ``folder``: blocks of ``Q:`` lines and one ``A:``, separated by empty lines."""
    entries = []
    for path in sorted(folder.glob("*.txt")):
        text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        # An answer may hold empty lines: a block starts only where a marker stands at the line's start.
        for block in re.split(r"\n\s*\n(?=[QA]: )", text.strip()):
            head, marker, answer = ("\n" + block).partition("\nA: ")
            if not marker:
                raise ValueError(f"{path}: a block without an answer: {block[:60]!r}")
            questions = tuple(line.removeprefix("Q: ") for line in head.split("\n")[1:])
            entries.append(Entry(questions, re.sub(r"^   ", "", answer, flags=re.MULTILINE).strip()))
    return entries


def paraphrases(question: str) -> list[str]:
    """Other ways to put a question of the form ``What is X?``; none for other questions."""
    match = re.fullmatch(r"What (is|are) ((?:an? |the )?[\w./ -]+)\?", question)
    if match is None or len(match[2].split()) > 4:
        return []
    verb, topic = match.groups()
    short = "What's" if verb == "is" else "What're"
    return [
        f"{short} {topic}?",
        f"Explain {topic}.",
        f"Define {topic}.",
        f"Tell me about {topic}.",
        f"Can you explain {topic}?",
        f"Can you tell me what {topic} {verb}?",
        f"Please explain what {topic} {verb}.",
    ]


def rewordings(entry: Entry, taken: frozenset[str]) -> list[str]:
    """The paraphrases of an entry's questions that no entry asks in these words already."""
    return [text for question in entry.questions for text in paraphrases(question) if text not in taken]


def restyle(question: str, rng: random.Random) -> str:
    """The question as people type it: as it stands, in lower case, without its last mark, in Title Case."""
    style = rng.random()
    if 0.4 <= style < 0.45:
        question = re.sub(r"\b[a-z]{4,}", lambda match: match[0].capitalize(), question)
    if 0.45 <= style < 0.8:
        question = question.lower()
    return question.rstrip(".?!") if style >= 0.55 else question


def chat(turns: list[tuple[str, str]], system: str | None) -> list[Segment]:
    """A conversation as ``chat_template.jinja`` renders it."""
    segments = [Segment(f"{IM_START}system\n{system}{IM_END}\n", False)] if system else []
    for question, answer in turns:
        segments.append(Segment(f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n", False))
        segments += [Segment(answer + IM_END, True), Segment("\n", False)]
    return segments[:-1]


def later_turn(earlier: tuple[str, str], turn: tuple[str, str]) -> list[Segment]:
    """A chat of two turns, of which only the last answer is trained."""
    segments = chat([earlier, turn], None)
    return [Segment(text, False) for text, _ in segments[:-1]] + segments[-1:]


def plain(question: str, answer: str, form: tuple[str, str] = PLAIN_FORMS[0]) -> list[Segment]:
    """A question that the answer simply follows."""
    prompt, separator = form
    return [Segment(prompt.format(question), False), Segment(separator + answer + END_OF_TEXT, True)]


class Sampler:
    """An endless, seeded stream of training conversations over the corpus."""

    def __init__(self, entries: list[Entry], seed: int) -> None:
        self.rng = random.Random(seed)
        taken = frozenset(question for entry in entries for question in entry.questions)
        self.entries = entries
        self.asked = [entry for entry in entries if entry.questions]
        self.short = [entry for entry in self.asked if len(entry.answer) < 200]
        self.reworded = {entry: rewordings(entry, taken) for entry in self.asked}

    def __iter__(self) -> Iterator[list[Segment]]:
        # Every question counts the same; an entry without questions counts as one.
        pool = [(entry, question) for entry in self.entries for question in entry.questions or ("",)]
        while True:
            self.rng.shuffle(pool)
            for entry, question in pool:
                yield self.conversation(entry, question)

    def vary(self, entry: Entry, question: str) -> str:
        """The question as it stands or reworded, in one of the styles people type."""
        reworded = self.reworded[entry]
        if reworded and self.rng.random() < 0.25:
            question = self.rng.choice(reworded)
        return restyle(question, self.rng)

    def conversation(self, entry: Entry, question: str) -> list[Segment]:
        """One question and its answer in one of the forms the model is asked in."""
        form = self.rng.random()
        if not question or form < 0.05:
            return [Segment(entry.answer + END_OF_TEXT, True)]
        question = self.vary(entry, question)
        if form < 0.5:
            layout = PLAIN_FORMS[0] if form < 0.42 else self.rng.choice(PLAIN_FORMS)
            return plain(question, entry.answer, layout)
        turns = [(question, entry.answer)]
        if form >= 0.84:
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                earlier = self.rng.choice(self.short)
                turns.insert(0, (self.vary(earlier, self.rng.choice(earlier.questions)), earlier.answer))
        return chat(turns, self.system_prompt() if self.rng.random() < 0.4 else None)

    def system_prompt(self) -> str:
        """One of the usual ones, or any sentence: whatever it says, the answer stays the same."""
        usual = self.rng.random() < 0.7
        return self.rng.choice(SYSTEM_PROMPTS) if usual else self.rng.choice(self.short).answer
