"""What a line that begins with a slash does in a chat. Runs in the command's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from .conversation import Conversation
from .own_server import OwnServer
from .screen import harmless


class Leave(Exception):
    """The user wants to leave the chat."""


@dataclass
class Session:
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


def _help(session: Session, _: str) -> None:
    width = max(len(f"{name} {command.argument}") for name, command in COMMANDS.items())
    rows = [f"{f'{name} {command.argument}':<{width}}  {command.help}" for name, command in COMMANDS.items()]
    keys = [
        ("Ctrl-C", "stops the answer; once more leaves"),
        ("Ctrl-D", "leaves"),
        ("Alt-Enter", "a line feed within a question"),
        ("Up, Ctrl-R", "earlier questions"),
    ]
    session.say("\n".join([*rows, *(f"{key:<{width}}  {text}" for key, text in keys)]))


def _system(session: Session, text: str) -> None:
    conversation = session.conversation
    if text:
        conversation.system = "" if text == "-" else text
        session.say("the system prompt is set, from the next question on")
    else:
        session.say(conversation.system or "there is no system prompt; /system TEXT sets one, /system - removes it")


def _set(session: Session, text: str) -> None:
    parameters = session.conversation.parameters
    name, _, value = text.partition(" ")
    if value.strip():
        parameters[name] = _value(value.strip())
    elif name and parameters.pop(name, None) is None:
        session.say(f"{name} is not set; /set NAME VALUE sets a parameter")
    session.say(", ".join(f"{name}={json.dumps(value)}" for name, value in parameters.items()) or "no parameter is set")


def _value(text: str) -> object:
    """A number, a truth value, a list ... where the text is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reset(session: Session, _: str) -> None:
    session.conversation.messages.clear()
    session.say("a new chat")


def _save(session: Session, text: str) -> None:
    path = _path(text)
    if path.exists() and path not in session.saved:
        raise ValueError(f"{path} is there already")
    session.conversation.saved(path)
    session.saved |= {path}
    session.say(f"saved in {path}")


def _load(session: Session, text: str) -> None:
    session.conversation.loaded(_path(text))
    session.say(f"{len(session.conversation.messages)} messages")


def _path(text: str) -> Path:
    if not text:
        raise ValueError("which file?")
    return Path(text).expanduser()


def _markdown(session: Session, _: str) -> None:
    session.markdown = not session.markdown
    session.say(f"answers are {'rendered as Markdown' if session.markdown else 'shown as they are'}")


def _log(session: Session, _: str) -> None:
    if session.server is None:
        session.say(f"the server at {session.conversation.api.url} is not this chat's own")
    else:
        session.say("\n".join(session.server.lines))


def _exit(session: Session, _: str) -> None:
    raise Leave


@dataclass(frozen=True)
class Command:
    """A command of the chat. `argument`: what follows its name, as the help shows it."""

    act: Callable[[Session, str], None]
    argument: str
    help: str


COMMANDS: Final = {
    "/system": Command(_system, "[TEXT|-]", "set, show or remove the system prompt"),
    "/set": Command(_set, "[NAME [VALUE]]", "set, remove or show parameters: /set temperature 0.2"),
    "/reset": Command(_reset, "", "begin a new chat, with the same system prompt"),
    "/save": Command(_save, "FILE", "save the chat, as the JSON body of a request"),
    "/load": Command(_load, "FILE", "go on with a saved chat"),
    "/markdown": Command(_markdown, "", "switch rendering of answers as Markdown on or off"),
    "/log": Command(_log, "", "the last lines of the server that was started for this chat"),
    "/help": Command(_help, "", "this list"),
    "/exit": Command(_exit, "", "leave"),
}


def obey(session: Session, line: str) -> None:
    """Do what a line says that begins with a slash; what is wrong with it is said.

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
