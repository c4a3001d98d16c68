"""Where workers on other machines connect, and the certificate that they see there. Runs in the front end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ...config import ServerConfig
from ...ipc.joining import Endpoint
from .certificates import context_with

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


def worker_endpoint(config: ServerConfig) -> Endpoint:
    """The endpoint that the server's settings describe.

    Raises:
        ConfigError: the certificate or its key can't be read, or don't go together.
    """
    host, port = split(config.worker_address)
    certificate, key = config.worker_certificate_file, config.worker_private_key_file
    if not certificate:
        return Endpoint(host, port)
    context = context_with(("worker_certificate_file", certificate), ("worker_private_key_file", key))
    # The first is the server's own. Whoever trusted the others, too, would trust all that these have signed.
    own = _CERTIFICATE.search(Path(certificate).read_text(encoding="utf-8"))
    return Endpoint(host, port, context, own.group() if own else "")


def split(address: str) -> tuple[str, int]:
    """The host and the port of `worker_address`; "" and 0 for what it leaves out."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, "0"
    return host.strip("[]"), int(port)
