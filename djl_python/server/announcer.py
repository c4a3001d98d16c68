"""Start-up output for people: models found, loading progress, the ready block or why a model failed.

Runs in the front end. Progress goes to stderr, as a bar on a terminal and as plain, rate-limited lines elsewhere; the
ready block goes to stdout.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TextIO
from urllib.parse import quote

import msgspec

from ..config import Address, ModelConfig
from ..config.sources import shown_url
from ..core.engine_info import EngineInfo
from ..ipc.protocol import Status

_BAR_CELLS: Final = 24
_PLAIN_EVERY_S: Final = 5.0
_BAR_EVERY_S: Final = 0.1
#: The body of a command for a handler whose input only its author knows, and the remark on it.
_OWN: Final = "@request.json"
_OWN_REMARK: Final = "   # a file with what the handler reads"


class Announcer:
    """Prints start-up messages; knows nothing of how models are loaded."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._terminal = self._err.isatty()
        self._drawn = False
        self._announced: dict[str, tuple[str, float]] = {}  # model -> (what, when)

    def list_models(self, models: Sequence[ModelConfig]) -> None:
        """Print the models that will be loaded, with their warnings."""
        for config in models:
            version = f" version {config.version}" if config.version else ""
            self._line(f"model {config.name}{version}: {config.path or shown_url(config.url)}")
            for warning in config.warnings:
                self._line(f"  warning: {warning}")

    def progress(self, config: ModelConfig, status: Status) -> None:
        """Print loading progress, unless the model's last line said the same just before."""
        what, now = status.detail or "loading", time.monotonic()
        before, at = self._announced.get(config.name, ("", 0.0))
        finished = 0 < status.total <= status.done
        if what == before and not finished and now - at < (_BAR_EVERY_S if self._terminal else _PLAIN_EVERY_S):
            return
        self._announced[config.name] = (what, now)
        done = f" {status.done}/{status.total}" if status.total else ""
        if status.current:
            what = f"{what}: {status.current}"
        if not self._terminal:
            self._line(f"model {config.name}: {what}{done}")
            return
        cells = _BAR_CELLS * status.done // status.total if status.total else 0
        bar = f" [{'#' * cells}{'.' * (_BAR_CELLS - cells)}]" if status.total else " ..."
        # A line that is wider than the terminal could not be wiped off it.
        line = f"model {config.name}:{bar}{done} {what}"[: shutil.get_terminal_size().columns - 1]
        _write(self._err, f"\r\x1b[K{line}")
        self._drawn = True

    def ready(self, config: ModelConfig, seconds: float, engine: EngineInfo | None = None) -> None:
        """Print that a model can answer, and which engine runs it, if any."""
        line = f"model {config.name}: ready after {seconds:.1f} s"
        self._line(line if engine is None else f"{line}, on {engine.summary}")
        for warning in () if engine is None else engine.warnings:
            self._line(f"  warning: {warning}")

    def failed(self, config: ModelConfig, detail: str) -> None:
        """Print, as one block, why a model failed to load."""
        lines = [
            f"model {config.name} failed to load ({config.path or shown_url(config.url)}):",
            *detail.strip().splitlines(),
        ]
        self._line("\n" + "\n  ".join(lines) + "\n")

    def serving(
        self,
        address: Address,
        models: Sequence[tuple[ModelConfig, str]],
        *,
        only: bool,
        console: bool = False,
        certificate_file: str = "",
        keys: bool = False,
    ) -> None:
        """Print the ready block: the address, that of the console if there is one, and a command per model.

        Args:
            models: each with an example of a JSON body, "" if there is none.
            only: requests need not name the model.
            certificate_file: of an address that is https.
            keys: requests need an API key.
        """
        lines = ["", f"djl-serving is ready at {address}"]
        if console and not address.unix_path:
            lines += ["", f"  {reachable(address)}/console"]
        for config, example in models:
            lines.append("")
            lines.append(
                f"  {curl_line(address, config, example, only=only, certificate_file=certificate_file, keys=keys)}"
            )
        self.clear()
        _write(self._out, "\n".join(lines) + "\n\n")

    def note(self, text: str) -> None:
        """Print any other line."""
        self._line(text)

    def clear(self) -> None:
        """Wipe the bar off the terminal."""
        if self._drawn:
            _write(self._err, "\r\x1b[K")
            self._drawn = False

    def _line(self, text: str) -> None:
        self.clear()
        _write(self._err, f"{text}\n")


def _write(to: TextIO, text: str) -> None:
    with suppress(OSError):  # the reader has gone; the server goes on
        to.write(text)
        to.flush()


def curl_line(
    address: Address, config: ModelConfig, example: str, *, only: bool, certificate_file: str = "", keys: bool = False
) -> str:
    """A command that gets an answer from this model, with the body `example`, or one that the user has to write.

    It trusts the certificate of `certificate_file`, for it may have signed itself.
    """
    path = "/invocations" if only else f"/predictions/{quote(config.name, safe='')}"
    if not only and config.version:
        path += f"/{quote(config.version)}"
    if address.unix_path:
        target = f"--unix-socket {shlex.quote(address.unix_path)} http://localhost{path}"
    else:
        target = f"{reachable(address)}{path}"
        if address.secure:
            target = f"--cacert {shlex.quote(certificate_file)} {target}"
    body, remark = (shlex.quote(example), "") if example else (_OWN, _OWN_REMARK)
    key = ' -H "Authorization: Bearer $KEY"' if keys else ""
    return f"curl {target}{key} -H 'Content-Type: application/json' -d {body}{remark}"


def reachable(address: Address) -> Address:
    """An address that a client on this machine can use: 0.0.0.0 is for listening only."""
    if address.host in ("", "0.0.0.0", "::"):
        return msgspec.structs.replace(address, host="127.0.0.1")
    return address
