"""What a line that begins with a slash does in a chat. Runs in the command's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from ..core.names import did_you_mean
from .conversation import Conversation
from .own_server import OwnServer
from .screen import harmless

#: Fields of a request that the chat sets itself.
_OF_THE_CHAT: Final = frozenset({"messages", "model", "stream", "stream_options"})


class Leave(Exception):
    """The user wants to leave the chat."""


@dataclass
class ChatSession:
    """What commands work on.

    Attributes:
        server: the chat's own, if it has one.
        markdown: whether answers are rendered.
        saved: the files that this chat has written: it may write them again.
    """

    conversation: Conversation
    console: Console
    server: OwnServer | None = None
    markdown: bool = False
    saved: frozenset[Path] = frozenset()

    def say(self, text: str) -> None:
        """Print a remark that is no part of the chat."""
        self.console.print(Text(harmless(text), "dim"))


def _help(session: ChatSession, _: str) -> None:
    width = max(len(f"{name} {command.argument}") for name, command in COMMANDS.items())
    rows = [f"{f'{name} {command.argument}':<{width}}  {command.help}" for name, command in COMMANDS.items()]
    keys = [
        ("Ctrl-C", "stops the answer; once more leaves"),
        ("Ctrl-D", "leaves"),
        ("Alt-Enter", "a line feed within a question"),
        ("Up, Ctrl-R", "earlier questions"),
    ]
    session.say("\n".join([*rows, *(f"{key:<{width}}  {text}" for key, text in keys)]))


def _system(session: ChatSession, text: str) -> None:
    conversation = session.conversation
    if text:
        conversation.system = "" if text == "-" else text
        session.say("the system prompt is set, from the next question on")
    else:
        session.say(conversation.system or "there is no system prompt; /system TEXT sets one, /system - removes it")


def _set(session: ChatSession, text: str) -> None:
    parameters = session.conversation.parameters
    name, _, value = text.partition(" ")
    if value.strip():
        if name not in known_parameters() and name not in parameters:
            hint = did_you_mean(name, known_parameters()) or "; any field may be sent with --body when the chat begins"
            raise ValueError(f"there is no parameter {name}{hint}")
        parameters[name] = _value(value.strip())
    elif name and parameters.pop(name, None) is None:
        session.say(f"{name} is not set; /set NAME VALUE sets a parameter")
    session.say(", ".join(f"{name}={json.dumps(value)}" for name, value in parameters.items()) or "no parameter is set")


@cache
def known_parameters() -> frozenset[str]:
    """The fields of a chat request that set something: OpenAI's, vLLM's and TGI's, as this server takes them."""
    from ..dialects.shared.chat.request import ChatRequest  # only now: most chats set nothing

    return frozenset(ChatRequest.__struct_encode_fields__) - _OF_THE_CHAT


def _value(text: str) -> object:
    """A number, a truth value, a list ... where the text is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reset(session: ChatSession, _: str) -> None:
    session.conversation.messages.clear()
    session.say("a new chat")


def _save(session: ChatSession, text: str) -> None:
    path = _path(text)
    if path.exists() and path not in session.saved:
        raise ValueError(f"{path} is there already")
    session.conversation.saved(path)
    session.saved |= {path}
    session.say(f"saved in {path}")


def _load(session: ChatSession, text: str) -> None:
    session.conversation.loaded(_path(text))
    session.say(f"{len(session.conversation.messages)} messages")


def _path(text: str) -> Path:
    if not text:
        raise ValueError("which file?")
    return Path(text).expanduser()


def _markdown(session: ChatSession, _: str) -> None:
    session.markdown = not session.markdown
    session.say(f"answers are {'rendered as Markdown' if session.markdown else 'shown as they are'}")


def _log(session: ChatSession, _: str) -> None:
    if session.server is None:
        session.say(f"the server at {session.conversation.api.url} is not this chat's own")
    else:
        session.say("\n".join(session.server.lines))


def _exit(session: ChatSession, _: str) -> None:
    raise Leave


@dataclass(frozen=True)
class TerminalCommand:
    """A command of the chat. `argument`: what follows its name, as the help shows it."""

    act: Callable[[ChatSession, str], None]
    argument: str
    help: str


COMMANDS: Final = {
    "/system": TerminalCommand(_system, "[TEXT|-]", "set, show or remove the system prompt"),
    "/set": TerminalCommand(_set, "[NAME [VALUE]]", "set, remove or show parameters: /set temperature 0.2"),
    "/reset": TerminalCommand(_reset, "", "begin a new chat, with the same system prompt"),
    "/save": TerminalCommand(_save, "FILE", "save the chat, as the JSON body of a request"),
    "/load": TerminalCommand(_load, "FILE", "go on with a saved chat"),
    "/markdown": TerminalCommand(_markdown, "", "switch rendering of answers as Markdown on or off"),
    "/log": TerminalCommand(_log, "", "the last lines of the server that was started for this chat"),
    "/help": TerminalCommand(_help, "", "this list"),
    "/exit": TerminalCommand(_exit, "", "leave"),
}


def obey(session: ChatSession, line: str) -> None:
    """Run a command line that begins with a slash, or print what is wrong with it.

    Raises:
        Leave: that is what it says.
    """
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        session.say(f"there is no {name}; /help lists the commands")
        return
    try:
        command.act(session, argument.strip())
    except (OSError, ValueError) as exc:
        session.say(f"{name}: {exc}")
