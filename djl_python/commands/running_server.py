"""A running server, as the commands `list`, `ps` and `stop` ask it: its management API.

Runs in the command's own process.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx2
import msgspec

from ..config import api_key
from ..config.sources import shown_url
from ..core.errors import ServingError

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_CONNECT_S: Final = 5.0
#: A server may wait for requests that run before it ends a model's workers.
_ANSWER_S: Final = 300.0
_UNIX: Final = "unix:"
_NO_ENTRY: Final = (401, 403)


class ServerError(ServingError):
    """No server answers there, or it refuses what is asked for."""

    kind = "running_server"


class NoServerError(ServerError):
    """No server answers there."""

    kind = "no_server"


class RunningModel(msgspec.Struct, frozen=True, rename="camel"):
    """A model of a server, see `server.management.types.DescribedModel`."""

    model_name: str
    model_url: str
    status: str
    request_in_queue: int = 0
    request_in_flight: int = 0
    memory_bytes: int = 0
    idle_seconds: float | None = None
    expires_at: str = ""
    failure: str = ""
    version: str = ""


class _Listed(msgspec.Struct, frozen=True, rename="camel"):
    model_name: str


class _Page(msgspec.Struct, frozen=True):
    models: list[_Listed]
    token: str = msgspec.field(default="", name="nextPageToken")


class _Described(msgspec.Struct, frozen=True):
    models: list[RunningModel]
    version: str = ""


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which server."""
    parser.add_argument(
        "--url",
        default="",
        metavar="URL",
        help="the address at which the server's models are managed: http(s)://host:port or unix:/path (default "
        f"{DEFAULT_URL})",
    )
    parser.add_argument(
        "--api-key",
        default=api_key(),
        metavar="KEY",
        help="sent as a bearer token (default: the variable DJL_API_KEY, which other users can't read)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


class RunningServer:
    """A server's management API.

    Args:
        url: "" for `DEFAULT_URL`.
    """

    def __init__(self, url: str = "", *, key: str = "") -> None:
        url = url or DEFAULT_URL
        self.url = shown_url(url)
        socket = url.removeprefix(_UNIX) if url.startswith(_UNIX) else ""
        self._client = httpx2.Client(
            base_url="http://localhost" if socket else url.rstrip("/"),
            transport=httpx2.HTTPTransport(uds=socket) if socket else None,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S),
            trust_env=not socket,
        )

    def close(self) -> None:
        """End its connections."""
        self._client.close()

    def models(self) -> list[RunningModel]:
        """Every registered model, by name.

        Raises:
            ServerError: none answers there, or it refuses.
        """
        names: list[str] = []
        token = "0"
        while token:
            page = self._read(_Page, "GET", "/models", {"limit": "100", "next_page_token": token})
            names += [model.model_name for model in page.models]
            token = page.token
        return [model for name in dict.fromkeys(names) for model in self._described(name)]

    def unload(self, name: str) -> None:
        """End a model's workers once its requests are answered; it stays registered.

        Raises:
            ServerError: none answers there, or it refuses.
        """
        self._ask("POST", f"/models/{quote(name, safe='')}/unload", {})

    def _described(self, name: str) -> Iterator[RunningModel]:
        for version in self._read(list[_Described], "GET", f"/models/{quote(name, safe='')}", {}):
            for model in version.models:
                yield msgspec.structs.replace(model, version=version.version)

    def _read(self, into: Any, method: str, path: str, query: Mapping[str, str]) -> Any:
        answer = self._ask(method, path, query)
        try:
            return msgspec.json.decode(answer.content, type=into)
        except msgspec.MsgspecError as exc:
            raise ServerError(f"{self.url} is no djl-serving: {method} {path} answers something else") from exc

    def _ask(self, method: str, path: str, query: Mapping[str, str]) -> httpx2.Response:
        try:
            answer = self._client.request(method, path, params=dict(query))
        except httpx2.ConnectError as exc:
            raise NoServerError(f"no server runs at {self.url} (--url names another address)") from exc
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise ServerError(f"{self.url}: {exc or type(exc).__name__}") from exc
        if answer.status_code >= 400:
            try:
                reason = str(answer.json()["message"])
            except (ValueError, KeyError, TypeError):
                reason = answer.text.strip()[:300] or answer.reason_phrase
            hint = " (--api-key, or the variable DJL_API_KEY, sends a key)" if answer.status_code in _NO_ENTRY else ""
            raise ServerError(f"{self.url}: {answer.status_code}: {reason}{hint}")
        return answer


@contextmanager
def server_of(options: argparse.Namespace) -> Iterator[RunningServer]:
    """The server that a command line names."""
    server = RunningServer(options.url, key=options.api_key or "")
    try:
        yield server
    finally:
        server.close()
