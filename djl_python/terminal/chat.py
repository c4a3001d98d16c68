"""The subcommand `djl-serving chat`: questions and answers with a model. Runs in the command's own process.

Exit codes: 0 the user has left; 1 the model can't be had; 2 the command line is wrong, or there is no terminal; 130
interrupted before the chat began.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

from ..commands.models import settings_given
from ..commands.parsing import parse
from ..config import state_directory
from ..core.help_text import HelpFormatter
from .arguments import add_parameters, add_target, parameters_of
from .commands import COMMANDS, ChatSession, Leave, obey
from .conversation import Conversation
from .openai_api import ApiError, remarks
from .own_server import StartError
from .screen import MarkdownAnswer, PlainAnswer, ShownAnswer, harmless
from .target import opened, url_of

_PROMPT: Final = ">>> "
#: Lines that are kept free below the prompt for what completes a command.
_MENU_LINES: Final = 4
_EXAMPLES: Final = """\
examples:
  djl-serving chat /models/llama-3                                a server is started, and ends with the chat
  djl-serving chat http://127.0.0.1:8080 --temperature 0          any server with OpenAI's API
  djl-serving chat hf://HuggingFaceTB/SmolLM2-135M-Instruct --system "Answer in one sentence."

In the chat, /help lists its commands. Ctrl-C stops an answer; Ctrl-C at the prompt, or Ctrl-D, leaves.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving chat",
        description="Chat with a model of a server, or with a model for which a server is started.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    add_target(made)
    add_parameters(made)
    made.add_argument("--markdown", action="store_true", help="render answers as Markdown (in the chat: /markdown)")
    made.add_argument("--no-history", action="store_true", help="do not keep the questions for the next chat")
    made.add_argument("--stats", action="store_true", help="say after each answer how many tokens it had, and how fast")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run `djl-serving chat ARGUMENTS`; returns the exit code."""
    made = parser()
    options = parse(made, arguments)
    settings_given(made, options, url_of(options))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(
            "djl-serving chat: stdin or stdout is not a terminal; for one prompt, use djl-serving run", file=sys.stderr
        )
        return 2
    console = Console(highlight=False)
    try:
        with opened(options, console) as (api, server):
            conversation = Conversation(api, options.system, parameters_of(options))
            session = ChatSession(conversation, console, server, options.markdown)
            where = api.url if server is None else f"{options.target}, served for this chat at {api.url}"
            # The terminal breaks the line, and not rich: an address that is copied has no line break in it.
            console.print(Text(harmless(f"{api.model} at {where}"), "bold"), soft_wrap=True)
            session.say("/help lists commands, Ctrl-D leaves")
            _Chat(session, _history(session, options), show_stats=options.stats).run()
    except (ApiError, StartError) as error:
        print(f"djl-serving chat: {error}", file=sys.stderr)
        return 1
    return 0


class _Chat:
    """The loop of questions and answers."""

    def __init__(self, session: ChatSession, history: History, *, show_stats: bool) -> None:
        self._session = session
        self._show_stats = show_stats
        self._remarked: set[str] = set()
        self._interrupted = False  # by the last key: once more leaves
        words = WordCompleter(list(COMMANDS), sentence=True)
        self._prompt: PromptSession[str] = PromptSession(
            history=history, completer=words, key_bindings=_keys(), reserve_space_for_menu=_MENU_LINES
        )

    def run(self) -> None:
        """Until the user leaves."""
        while True:
            try:
                line = self._prompt.prompt(_PROMPT)
            except EOFError:
                return
            except KeyboardInterrupt:
                if self._interrupted:
                    return
                self._interrupted = True
                self._session.say("Ctrl-C once more, or Ctrl-D, leaves")
                continue
            self._interrupted = False
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    obey(self._session, line.strip())
                else:
                    self._answer(line)
            except Leave:
                return

    def _answer(self, question: str) -> None:
        session = self._session
        answer: ShownAnswer = MarkdownAnswer(session.console) if session.markdown else PlainAnswer(session.console)
        began_s = time.monotonic()
        reason, tokens = "", None
        try:
            with answer, closing(session.conversation.ask(question)) as pieces:
                for piece in pieces:
                    if piece.reasoning:
                        answer.reason(piece.reasoning)
                    if piece.text:
                        answer.write(piece.text)
                    reason, tokens = piece.finish_reason or reason, piece.tokens or tokens
        except KeyboardInterrupt:
            self._interrupted = True
            session.say("stopped; Ctrl-C once more, or Ctrl-D, leaves")
        except ApiError as error:
            session.say(f"no answer: {error}")
        else:
            self._remark()
            if reason == "length":
                session.say("the answer has as many tokens as it may have (--max-tokens, /set max_tokens N)")
            if self._show_stats and tokens:
                duration_s = time.monotonic() - began_s
                session.say(f"{tokens} tokens in {duration_s:.1f} s: {tokens / duration_s:.1f} tokens/s")

    def _remark(self) -> None:
        """Say, once each, that another model answers, and which parameters have no effect."""
        api = self._session.conversation.api
        for remark in remarks(api):
            if remark not in self._remarked:
                self._remarked.add(remark)
                self._session.say(remark)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def line_feed(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history(session: ChatSession, options: argparse.Namespace) -> History:
    """The questions of earlier chats, in a file that only this user reads."""
    path = Path()
    try:
        if not options.no_history:
            path = state_directory() / "chat_history"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            return FileHistory(path)
    except (OSError, RuntimeError) as exc:  # RuntimeError: this user has no home
        session.say(f"questions are not kept for the next chat: {exc}")
    return InMemoryHistory()
