"""`djl-serving tls`: makes a self-signed certificate. Runs in the command's own process, without a server."""

from __future__ import annotations

import argparse
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .self_signed import make_pair

_EXAMPLES: Final = """\
examples:
  djl-serving tls                                 cert.pem and key.pem, for this machine
  djl-serving tls --name models.example.com --name 10.0.0.7 --directory /etc/djl-serving

Clients trust a certificate that nobody else has signed only where they are told to: with curl --cacert cert.pem, with
the variable SSL_CERT_FILE=cert.pem for djl-serving chat, run, bench and batch. For the public, get a certificate of an
authority's, such as Let's Encrypt.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: as of `make_pair`.
    """
    options = parser().parse_args(arguments)
    directory: Path = options.directory
    certificate, key = directory / "cert.pem", directory / "key.pem"
    make_pair(certificate, key, ["localhost", "127.0.0.1", "::1", *_own_name(), *options.name], options.days)
    print(f"{certificate} and {key} are valid for {options.days} days")
    print(f"\n  djl-serving --tls-cert {shlex.quote(str(certificate))} --tls-key {shlex.quote(str(key))} MODEL")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="djl-serving tls",
        description="Make a self-signed certificate for https: cert.pem and key.pem, for localhost, 127.0.0.1, ::1 and "
        "this machine's name.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--name", action="append", default=[], metavar="HOST", help="another host name or IP address; may be repeated"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the files go; made if it is missing (default: here)",
    )
    parser.add_argument("--days", type=_days, default=365, metavar="N", help="how long it is valid (default 365)")
    return parser


def _days(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError(f"{text!r}: expected days, from 1 to 36500")
    return int(text)


def _own_name() -> list[str]:
    name = socket.gethostname()
    return [name] if name.isascii() else []
