"""`djl-serving keys`: makes, lists and revokes the API keys of a file (`api_keys`).

Runs in a process of its own; a server that uses the file notices. Exit codes: 0 done; 1 it can't be done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from ...config import read_server_config
from ...core.access.api_key import KEY_LIMITS, ApiKey, digest, new_secret, now
from ...core.access.scopes import KEY_SCOPES, Scope
from ...core.errors import ConfigError
from .key_file import add_key, read_keys, remove_keys

#: How many digits of a hash identify a key here.
_ID_DIGITS: Final = 12
_EXAMPLES: Final = """\
examples:
  djl-serving keys new --file keys.jsonl --name ci
  djl-serving keys new --file keys.jsonl --name operator --scopes manage
  djl-serving keys new --file keys.jsonl --name trial --expires-in-days 30 --models llama --tokens-per-minute 10000
  djl-serving keys list --file keys.jsonl
  djl-serving keys revoke --file keys.jsonl ci
  SERVING_API_KEYS=keys.jsonl djl-serving --host 0.0.0.0 /models/llama-3
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: the file can't be read or written, or an argument is wrong.
    """
    options = parser().parse_args(arguments)
    path = options.file or _configured()
    if options.action == "new":
        return _make(path, options)
    if options.action == "revoke":
        return _revoke(path, options.key)
    for key in read_keys(path):
        print(_row(key))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving keys",
        description="Make, list and revoke API keys. The file has hashes of keys only; a server that uses it "
        "(api_keys) notices changes within a second.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = made.add_subparsers(dest="action", metavar="new|list|revoke", required=True)
    new = actions.add_parser("new", help="make a key and print it: it is shown this once")
    new.add_argument("--name", required=True, help="whose it is: in logs and metrics, and for files and batches")
    new.add_argument(
        "--scopes",
        nargs="+",
        default=[Scope.INFER.value],
        choices=[scope.value for scope in KEY_SCOPES],
        help="what it may do (default infer); manage: everything",
    )
    new.add_argument("--models", nargs="+", default=(), metavar="MODEL", help="the models it may use (default: all)")
    for limit in KEY_LIMITS:
        new.add_argument(f"--{limit.replace('_', '-')}", type=int, metavar="N", help=f"instead of the server's {limit}")
    new.add_argument("--expires-in-days", type=float, metavar="N", help="when it ends (default: never)")
    listed = actions.add_parser("list", help="the keys of the file: id, name, scopes, and more")
    revoke = actions.add_parser("revoke", help="remove a name's keys, or one key")
    revoke.add_argument("key", metavar="NAME|ID")
    for action in (new, listed, revoke):
        action.add_argument("-f", "--file", type=Path, help="the file (default: what SERVING_API_KEYS names)")
    return made


def _configured() -> Path:
    config, _ = read_server_config(None, {})
    if not config.api_keys:
        raise ConfigError(
            "no file of keys is named: expected --file FILE, api_keys in config.properties, or SERVING_API_KEYS"
        )
    return Path(config.api_keys)


def _make(path: Path, options: argparse.Namespace) -> int:
    secret = new_secret()
    days = options.expires_in_days
    expires_at: datetime | None = None if days is None else now() + timedelta(days=days)
    fields = {
        "name": options.name,
        "sha256": digest(secret),
        "scopes": options.scopes,
        "models": options.models,
        **{limit: getattr(options, limit) for limit in KEY_LIMITS},
        "created_at": now(),
        "expires_at": expires_at,
    }
    try:
        key = msgspec.convert(fields, ApiKey)
    except msgspec.ValidationError as exc:
        raise ConfigError(str(exc)) from None
    add_key(path, key)
    print(secret)
    print(f"{_row(key)}\nThe line above is the key: it is shown this once.", file=sys.stderr)
    return 0


def _revoke(path: Path, named: str) -> int:
    keys = remove_keys(path, lambda key: named == key.name or (len(named) >= 8 and key.sha256.startswith(named)))
    for key in keys:
        print(f"revoked: {_row(key)}")
    if not keys:
        print(f"djl-serving keys: {path} has no key {named!r}", file=sys.stderr)
    return 0 if keys else 1


def _row(key: ApiKey) -> str:
    parts = [key.sha256[:_ID_DIGITS], key.name, ",".join(scope.value for scope in key.scopes)]
    if key.models:
        parts.append(f"models={','.join(key.models)}")
    parts += [f"{limit}={most}" for limit in KEY_LIMITS if (most := getattr(key, limit)) is not None]
    if key.expires_at is not None:
        parts.append(f"expires={key.expires_at:%Y-%m-%dT%H:%M:%SZ}")
    return "  ".join(parts)
